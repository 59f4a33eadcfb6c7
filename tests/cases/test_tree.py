"""Cases 81 to 95: the tree of entries, as repair mends it or leaves it alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apis import log_history
from tests.cases.repairs import entries, found, lines, mended
from tests.stored import DAY, call, document, entry, result, set_age, state
from tests.terminal import environment, run


@pytest.mark.parametrize("closes", ["e1", "e2", "e3"])
def test_case_081_a_cycle(folder: Path, closes: str) -> None:
    """Whichever entry closes the loop, the earliest of the loop becomes a root."""
    talk = [entry("e1", None), entry("e2", "e1", "assistant", "b"), entry("e3", "e2", "user", "c")]
    number = int(closes[1]) - 1
    talk[number] = talk[number] | {"parentId": "e3"}
    before = lines(folder, *talk)
    assert found(folder, 5)[0] == ("parent-cycle", True)
    after = mended(folder)
    assert after == before.replace(b'"parentId":"e3"', b'"parentId":null')
    assert log_history(after)[-1] == talk[2]["message"]


def test_case_083_a_missing_parent(folder: Path) -> None:
    """FORMATS.md section 4 reports it only: nobody knows where the entry belongs; show --tree has all four."""
    before = lines(
        folder,
        entry("e1", None, "user", "a"),
        entry("e2", "e1", "assistant", "b"),
        entry("e4", "e3", "user", "d"),
        entry("e5", "e4", "assistant", "e"),
    )
    assert ("missing-parent", False) in found(folder, 0)
    assert mended(folder) == before
    out = run("repair", "s1", "-s", folder).stdout
    assert "its parent 'e3' is not in the log  [the history begins there; show --tree prints what lies before]" in out


def test_case_085_a_repair_makes_nothing_worse(folder: Path) -> None:
    """The wanted fork and the lost parent stay; what is mended takes no message out of the history."""
    before = lines(
        folder,
        entry("e1", None, "user", "a"),
        entry("e2", "e1", "assistant", "b"),
        entry("e3", "e1", "assistant", "other b"),
        entry("e4", "gone", "user", "c"),
        entry("e5", "e4", "assistant", [call("t1")]),
    )
    after = mended(folder)
    assert after.startswith(before)
    assert log_history(after)[: len(log_history(before))] == log_history(before)


def test_case_087_a_failed_repair_changes_nothing(folder: Path) -> None:
    path = folder / "s1.json"
    path.write_bytes(b'{"id":"s1","messages":[{"id":"m1","role":"user","content":"hi')
    set_age(path, DAY)
    before = state(folder)
    assert found(folder, 5) == [("invalid-json", False)]
    mended(folder, code=5)
    assert state(folder) == before, "the same bytes, mode and time, and no neighbours"


def test_case_089_no_branch_is_lost(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", "a"),
        entry("e2", "e1", "assistant", "b1"),
        entry("e3", "e1", "assistant", "b2"),
        entry("e4", "e3", "user", "c"),
        entry("e5", "e4", "assistant", [call("t1")]),
    )
    after = mended(folder)
    assert after.startswith(before)
    [made] = entries(after)[5:]
    assert (made["parentId"], made["message"]["content"][0]["tool_use_id"]) == ("e5", "t1")


def test_case_091_a_side_chain_that_was_written_last(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", "plan"),
        entry("e2", "e1", "assistant", [call("t1", "agent")]),
        entry("e3", "e2", "user", [result("t1", "done")]),
        entry("e4", "e3", "assistant", "All set."),
        entry("p1", "e2", "system", "progress 1"),
        entry("p2", "p1", "system", "progress 2"),
    )
    mended_log = mended(folder)
    assert [e["message"] for e in entries(before)] == [
        e["message"] for e in entries(mended_log) if not str(e["message"]).count("[sessionctl]")
    ], "nothing of either branch is lost"


def test_case_093_entries_written_twice(folder: Path) -> None:
    a, b = entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b")
    before = lines(folder, a, b, a, b, entry("e3", "e2", "user", "c"))
    assert found(folder, 0)[:2] == [("duplicate-entry", True)] * 2
    kept = before.splitlines(keepends=True)
    assert mended(folder) == b"".join([*kept[:2], kept[4]])


def test_case_095_file_name_and_inner_id_differ(folder: Path) -> None:
    """Reported only; the session is mended under the name that the store has, whichever of both it is called by."""
    document(folder, "s-a", id="s-b", messages=[])
    before = state(folder)
    for name in ("s-a", "s-b"):
        done = run("repair", name, "--fix", "-s", folder, env=environment(folder.parent / "home"))
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "s-a  empty\n  warning id-mismatch  id: the id inside is 's-b'  "
            "[rename the session, or correct the id in it by hand]\n"
        )
    assert state(folder) == before
