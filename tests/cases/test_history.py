"""Cases 1 to 31 and 81 to 95: calls and results, and the tree of entries, as list and show tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stored import call, document, entry, log, message, names, result
from tests.terminal import run

AT = 1_750_000_000_000


def shown(folder: Path, *arguments: str, code: int = 0) -> str:
    done = run("show", "s1", *arguments, "-s", folder, timeout=5)
    assert done.returncode == code, done.stderr
    return done.stdout


def row(folder: Path) -> dict[str, Any]:
    return json.loads(run("list", "-o", "json", "-s", folder, timeout=5).stdout)[0]


def texts(folder: Path) -> list[str]:
    done = run("show", "s1", "-o", "json", "-s", folder, timeout=5)
    return [m["text"] for m in json.loads(done.stdout)[0]["messages"]]


def called(*ids: str, name: str = "ls", **more: Any) -> dict[str, Any]:
    return message("assistant", "", AT, toolCalls=[{"id": i, "name": name, "arguments": {}} | more for i in ids])


def test_case_001_a_call_without_result(folder: Path) -> None:
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "user", "check the queue"),
        entry("e3", "e2", "assistant", [{"type": "text", "text": "Looking."}, call("t1", "shell", cmd="ping")]),
        entry("e4", "e3", "user", "go on"))  # fmt: skip
    assert (row(folder)["status"], row(folder)["unresolved"]) == ("broken", ["t1"])
    assert "✗ no result (t1)" in shown(folder)


def test_case_003_a_call_without_result_in_a_document(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "run"), called("call_122"), message("user", "never mind")])
    done = run("list", "-s", folder)
    assert done.returncode == 0
    assert "1 call without result" in done.stdout


def test_case_005_a_result_without_a_call(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", [result("t9"), {"type": "text", "text": "now deploy"}]),
        entry("e2", "e1", "assistant", "Deploying."))  # fmt: skip
    found = shown(folder)
    assert "t9: result without a call" in found
    assert "now deploy" in found


def test_case_007_some_of_parallel_calls_answered(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "scan"), called("c1", "c2", "c3", "c4"),
                                     message("tool", "a.txt", toolCallId="c1"), message("user", "next")])  # fmt: skip
    found = shown(folder)
    assert "→ ls {}\n    a.txt\n" in found
    assert [f"no result ({c})" in found for c in ("c1", "c2", "c3", "c4")] == [False, True, True, True]
    assert row(folder)["unresolved"] == ["c2", "c3", "c4"]


def test_case_009_parallel_results_as_siblings(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", "roll"),
        entry("e2", "e1", "assistant", [call("t1"), call("t2"), call("t3")]),
        *(entry(f"r{n}", "e2", "user", [result(f"t{n}", f"number {n}")]) for n in (1, 2, 3)),
        entry("e3", "r3", "assistant", "Done."))  # fmt: skip
    found = shown(folder)
    assert all(f"number {n}" in found for n in (1, 2, 3))
    assert (row(folder)["status"], row(folder)["findings"]) == ("ok", [])


def test_case_011_ids_used_twice(folder: Path) -> None:
    """FORMATS.md: report only; position tells which result belongs to which call."""
    document(folder, "s1", messages=[
        message("user", "one"), called("call_0"), message("tool", "A", toolCallId="call_0"),
        message("user", "two"), called("call_0"), message("tool", "B", toolCallId="call_0"),
    ])  # fmt: skip
    assert (row(folder)["findings"], row(folder)["unresolved"]) == (["duplicate-tool-call-id"], [])
    found = shown(folder)
    assert found.index("    A\n") < found.index("two") < found.index("    B\n")


@pytest.mark.parametrize(("stored", "healthy"), [("hello", True), ("differs", False)])
def test_case_013_one_result_stored_twice(folder: Path, stored: str, healthy: bool) -> None:
    document(folder, "s1", messages=[message("user", "read it"), called("c1", result="hello"),
                                     message("tool", stored, toolCallId="c1")])  # fmt: skip
    found = shown(folder)
    assert (row(folder)["findings"] == []) is healthy
    assert (found.count("hello"), found.count(stored)) == (1, 1)


def test_case_015_a_late_result(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "weather?"), called("c1"), message("user", "tell me a joke"),
                                     message("assistant", "Why"),
                                     message("tool", "sunny", toolCallId="c1")])  # fmt: skip
    assert (row(folder)["findings"], row(folder)["messages"]) == (["late-tool-result"], 5)
    assert shown(folder).index("sunny") < shown(folder).index("tell me a joke")


def test_case_017_a_result_before_its_call(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "x"), message("tool", "ok", toolCallId="c1"), called("c1")])
    assert "→ ls {}\n    ok\n" in shown(folder)
    assert (row(folder)["findings"], row(folder)["unresolved"]) == (["late-tool-result"], [])


def test_case_019_a_real_result_after_a_made_up_one(folder: Path) -> None:
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "assistant", [call("t1")]),
        entry("e3", "e2", "user", [result("t1", "[sessionctl] no result was recorded", is_error=True)]),
        entry("e4", "e3", "user", [result("t1", "42 files")]))  # fmt: skip
    assert row(folder)["findings"] == ["duplicate-tool-result"]
    assert "42 files" in shown(folder)


def test_case_021_arguments_cut_off(folder: Path) -> None:
    cut = '{"command":"cat > a.txt << EOF'
    document(folder, "s1", messages=[message("user", "write it"), called("c1", arguments=cut),
                                     message("tool", "[error] missing argument", toolCallId="c1")])  # fmt: skip
    found = shown(folder)
    assert cut in found
    assert "malformed call" in found
    assert "[error] missing argument" in found
    assert row(folder)["findings"] == ["malformed-tool-call"]


def test_case_023_an_empty_text(folder: Path) -> None:
    """FORMATS.md: report only."""
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "assistant", [{"type": "text", "text": ""}, call("t1")]),
        entry("e3", "e2", "user", [result("t1")]))  # fmt: skip
    assert (row(folder)["findings"], row(folder)["status"]) == (["empty-text"], "ok")


def test_case_025_content_is_null_or_missing(folder: Path) -> None:
    document(folder, "s1", messages=[{"role": "user", "content": None}, {"role": "assistant"}])
    assert (row(folder)["messages"], row(folder)["findings"]) == (2, ["missing-content"])
    assert shown(folder).count("(empty)") == 2


def test_case_027_reasoning_is_left_alone(folder: Path) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "assistant", [thinking, call("t1")]),
        entry("e3", "e2", "user", [result("t1")]), entry("e4", "e3", "assistant", [call("t2")]))  # fmt: skip
    assert (row(folder)["status"], row(folder)["unresolved"]) == ("interrupted", ["t2"])
    assert row(folder)["findings"] == ["unresolved-tool-call"]


def test_case_029_what_hangs_on_a_lone_result_stays_reachable(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b"),
        entry("e3", "e2", "user", [result("t9", "lone")]), entry("e4", "e3", "assistant", "c"))  # fmt: skip
    assert row(folder)["messages"] == 4
    assert [line in shown(folder) for line in ("  a\n", "  b\n", "lone", "  c\n")] == [True] * 4


def test_case_031_a_malformed_call(folder: Path) -> None:
    blocks = [{"type": "text", "text": "all good"}, call("", "")]
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "assistant", blocks))
    found = shown(folder)
    assert "all good" in found
    assert "→ (no name) {}\n    ⚠ malformed call" in found


@pytest.mark.parametrize("parent", ["e3", "e1"])
def test_case_081_a_cycle_ends(folder: Path, parent: str) -> None:
    """FORMATS.md: no history, all messages still shown, damaged."""
    log(folder, "s1", entry("e1", parent, "user", "aaa"), entry("e2", "e1", "assistant", "bbb"),
        entry("e3", "e2", "user", "ccc"))  # fmt: skip
    assert (row(folder)["status"], row(folder)["findings"]) == ("damaged", ["parent-cycle"])
    found = shown(folder, code=5)
    assert [text in found for text in ("aaa", "bbb", "ccc")] == [True] * 3


def test_case_083_a_missing_parent(folder: Path) -> None:
    """FORMATS.md: an unknown parent ends the walk, so the history is two messages; the others are a branch (--tree)."""
    log(folder, "s1", entry("e1", None, "user", "aaa"), entry("e2", "e1", "assistant", "bbb"),
        entry("e4", "e3", "user", "ddd"), entry("e5", "e4", "assistant", "eee"))  # fmt: skip
    assert (row(folder)["messages"], row(folder)["findings"]) == (2, ["missing-parent"])
    assert "2 more messages outside the history (--tree)" in shown(folder)
    assert all(text in shown(folder, "--tree") for text in ("aaa", "bbb", "ddd", "eee"))


def test_case_089_branches_are_kept_and_shown(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b1"),
        entry("e3", "e1", "assistant", "b2"), entry("e4", "e3", "user", "c"),
        entry("e5", "e4", "assistant", [call("t1")]))  # fmt: skip
    assert texts(folder) == ["a", "b1", "b2", "c", ""] or texts(folder) == ["a", "b2", "b1", "c", ""]


def test_case_091_a_side_chain_that_was_written_last(folder: Path) -> None:
    """FORMATS.md: the leaf is the last entry; what that leaves out is told and shown by --tree."""
    log(folder, "s1", entry("e1", None, "user", "plan"), entry("e2", "e1", "assistant", [call("t1", "agent")]),
        entry("e3", "e2", "user", [result("t1", "done")]), entry("e4", "e3", "assistant", "All set."),
        entry("p1", "e2", "system", "progress 1"), entry("p2", "p1", "system", "progress 2"))  # fmt: skip
    assert "1 more message outside the history (--tree)" in shown(folder)
    tree = shown(folder, "--tree")
    assert tree.index("branch 1") < tree.index("All set.")


def test_case_093_entries_written_twice(folder: Path) -> None:
    """FORMATS.md: the chain rule counts; the repeats are named."""
    first = (entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b"))
    log(folder, "s1", *first, *first, entry("e3", "e2", "user", "c"))
    assert (row(folder)["messages"], row(folder)["status"]) == (3, "draft")
    assert "duplicate-entry" in row(folder)["findings"]
    assert texts(folder) == ["a", "b", "c"]


def test_case_095_file_name_and_inner_id_differ(folder: Path) -> None:
    """DESIGN.md: an ID is a key or the document's own id, by the same rule in every command."""
    document(folder, "s-a", id="s-b")
    assert (row(folder)["key"], row(folder)["id"], row(folder)["findings"]) == ("s-a", "s-b", ["id-mismatch"])
    for key in ("s-a", "s-b"):
        assert run("show", key, "-s", folder).stdout.splitlines()[0] == "s-a"
    assert "deleted s-a" in run("delete", "s-b", "-y", "-s", folder).stdout
    assert names(folder) == []


def test_case_183_the_other_spelling_of_parents(folder: Path) -> None:
    """An entry with both spellings and different values is a conflict, and not guessed."""
    log(folder, "s1", *({"id": i, "parent_id": p, "message": {"role": r, "content": i}}
                        for i, p, r in (("e1", None, "user"), ("e2", "e1", "assistant"))))  # fmt: skip
    assert (texts(folder), row(folder)["findings"]) == (["e1", "e2"], [])
    log(folder, "s1", entry("e1", None), entry("e2", "e1", "assistant", "x", parent_id="other"))
    assert row(folder)["findings"] == ["conflicting-entry"]
