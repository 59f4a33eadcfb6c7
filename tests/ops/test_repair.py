"""Repairs of stored sessions: what the fixtures come to, and the hands that change a store."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionctl.errors import UsageError
from sessionctl.model import Ref
from sessionctl.ops.mend import Options, mend
from sessionctl.ops.repair import Backup, Report, check, diff_lines, repair
from sessionctl.stores import open_store
from sessionctl.stores.folder import FolderStore
from sessionctl.stores.memory import MemoryStore
from tests.apis import log_history, refused

DATA = Path(__file__).parents[1] / "data" / "fixtures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())
NOW = 1_900_000_000_000
OLD = 1_796_000_000_000
T0 = 1_750_000_000_000
STAY = {
    "draft",
    "consecutive-user-messages",
    "id-mismatch",
    "bad-timestamp",
    "timestamp-in-seconds",
    "lone-surrogate",
    "missing-parent",
    "several-roots",
    "conflicting-entry",
    "duplicate-tool-call-id",
    "empty-file",
}
"""Codes that are report only."""
HOPELESS = {
    "truncated",
    "nul-filled",
    "not-an-object",
    "messages-not-a-list",
    "latin1-bytes",
    "not-json",
    "json-but-not-an-entry",
}


def clock() -> int:
    return NOW


@pytest.fixture(params=EXPECTED)
def fixture_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, FolderStore]:
    name: str = request.param
    top = name.partition("/")[0]
    shutil.copytree(DATA / top, tmp_path / top)
    folder = tmp_path / name
    for path in (tmp_path / top).rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if path.is_file():
            os.utime(path, ns=(OLD * 1_000_000, OLD * 1_000_000))
    return name, FolderStore(folder)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir() if p.is_file()}


def codes(report: Report) -> list[str]:
    return sorted({o.finding.code for o in report.outcomes})


def test_fixtures_are_found_to_be_what_they_are(fixture_store: tuple[str, FolderStore]) -> None:
    name, store = fixture_store
    before = contents(store.path)
    reports = {r.ref.key: r for r in check(store, NOW)}
    expected = dict(EXPECTED[name])
    if "lost-main" in reports:
        assert codes(reports.pop("lost-main")) == ["stray-temporary-file"]
    assert {k: (r.status, codes(r)) for k, r in reports.items()} == {
        k: (e["status"], e["findings"]) for k, e in expected.items()
    }
    assert contents(store.path) == before


def test_fixtures_are_mended(fixture_store: tuple[str, FolderStore], tmp_path: Path) -> None:
    _, store = fixture_store
    before = contents(store.path)
    dry = {r.ref.key: r for r in repair(store, clock, None)}
    assert contents(store.path) == before
    backup = Backup(now=NOW, root=tmp_path / "state")
    reports = {r.ref.key: r for r in repair(store, clock, backup)}
    for key, report in reports.items():
        assert (report.error, report.skipped) == (
            "",
            "awaiting approval" if key.endswith("awaiting") and report.outcomes else "",
        ), report
        assert [o.fixed for o in report.outcomes] == [o.fixed for o in dry[key].outcomes]
        if key not in HOPELESS:
            assert all(o.fixed or o.finding.code in STAY for o in report.outcomes), report
        else:
            assert not any(o.fixed for o in report.outcomes)
        payload = store.get(report.ref).payload
        assert payload is not None
        if report.status in ("ok", "draft"):
            assert refused(payload, report.ref.kind) == []
        kept = dry[key]
        if report.backup is not None and kept.before != kept.after:  # else a temporary file alone is there
            assert open_store(report.backup).get(report.ref).payload == kept.before
            assert payload.split(b"[sessionctl]")[0][:40] in (kept.after or b"")
        else:
            assert kept.before in (None, b"", kept.after)
        stamp = store.stamp(report.ref)
        assert stamp is not None and stamp.changed_at == OLD
    after = contents(store.path)
    assert all(not r.backup for r in repair(store, clock, Backup(now=NOW, root=tmp_path / "none")))
    assert contents(store.path) == after and not (tmp_path / "none").exists()
    assert ".sessionctl" not in os.listdir(store.path)
    # What was taken away can be put back byte for byte.
    for folder in (tmp_path / "state").glob("*"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all((folder / p.name).read_bytes() == before[p.name][0] for p in folder.iterdir())


# --- single sessions --------------------------------------------------------------------------------------------------


def log(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def entry(id_: str, parent: str | None, role: str, content: Any) -> str:
    return json.dumps(
        {"id": id_, "parentId": parent, "message": {"role": role, "content": content}}, separators=(",", ":")
    )


def use(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": i, "name": "ls", "input": {}} for i in ids]


def result(id_: str, text: str = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": text}


def doc(*messages: dict[str, Any], indent: int | None = 2) -> bytes:
    numbered = [{"id": f"m{n}", **m, "timestamp": T0 + n} for n, m in enumerate(messages)]
    whole = {"id": "s", "messages": numbered, "createdAt": T0, "updatedAt": T0 + 60_000}
    return json.dumps(whole, indent=indent).encode()


def calling(*ids: str, text: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "toolCalls": [{"id": i, "name": "ls", "arguments": {}} for i in ids]}


def answer(id_: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "content": text, "toolCallId": id_}


def mended(payload: bytes, options: Options | None = None, approvals: tuple[str, ...] = ()) -> bytes:
    ref = Ref("s", "document" if b"createdAt" in payload else "log")
    plan = mend(ref, payload, NOW, options, approvals)
    after = payload if plan.after is None else plan.after
    assert mend(ref, after, NOW, options, approvals).after is None
    return after


def ids_of(payload: bytes) -> list[str]:
    return [json.loads(line)["id"] for line in payload.decode().splitlines()]


def test_a_result_in_the_middle_of_a_log_changes_no_other_line() -> None:
    before = log(
        entry("e1", None, "user", "condensed"),
        entry("e2", "e1", "user", "check"),
        entry("e3", "e2", "assistant", [{"type": "text", "text": "Looking."}, *use("t1")]),
        entry("e4", "e3", "user", "go on"),
    )
    after = mended(before)
    lines = after.splitlines()
    assert lines[:3] + lines[4:] == before.splitlines()
    made = json.loads(lines[3])
    assert made["parentId"] == "e3"
    [block] = made["message"]["content"]
    assert block["tool_use_id"] == "t1" and block["is_error"] is True
    assert block["content"].startswith("[sessionctl]") and "did not run" in block["content"]
    assert log_history(after)[3] == made["message"]
    assert refused(after, "log") == []


def test_results_come_in_call_order_after_the_real_one() -> None:
    before = doc(
        {"role": "user", "content": "scan"},
        calling("c1", "c2", "c3", "c4"),
        answer("c1"),
        {"role": "user", "content": "next"},
    )
    after = json.loads(mended(before))["messages"]
    assert [m.get("toolCallId") for m in after] == [None, None, "c1", "c2", "c3", "c4", None]
    assert [m["timestamp"] for m in after[3:6]] == [T0 + 2] * 3


def test_parallel_results_as_siblings_are_healthy() -> None:
    payload = log(
        entry("e1", None, "user", "roll"),
        entry("e2", "e1", "assistant", use("t1", "t2")),
        entry("r1", "e2", "user", [result("t1")]),
        entry("r2", "e2", "user", [result("t2")]),
        entry("e3", "r2", "assistant", "Done."),
    )
    assert mended(payload) == payload


def test_a_result_stored_inline_and_as_a_message() -> None:
    call = calling("c1")
    call["toolCalls"][0]["result"] = "hello"
    same = doc({"role": "user", "content": "x"}, call, answer("c1", "hello"))
    assert mended(same) == same
    other = doc({"role": "user", "content": "x"}, call, answer("c1", "other"))
    plan = mend(Ref("s", "document"), other, NOW)
    assert plan.after is None and plan.status == "broken"
    assert [(o.finding.code, o.finding.fixable) for o in plan.outcomes] == [("duplicate-tool-result", False)]


def test_a_late_result_moves_and_nothing_is_made_up() -> None:
    joke = [{"role": "user", "content": "joke"}, {"role": "assistant", "content": "Why"}]
    after = json.loads(mended(doc({"role": "user", "content": "w"}, calling("c1"), *joke, answer("c1", "sunny"))))
    assert [m["id"] for m in after["messages"]] == ["m0", "m1", "m4", "m2", "m3"]


def test_a_result_before_its_call_moves() -> None:
    after = json.loads(mended(doc({"role": "user", "content": "w"}, answer("c1"), calling("c1"))))
    assert [m["id"] for m in after["messages"]] == ["m0", "m2", "m1"]
    in_log = log(
        entry("e1", None, "user", "x"),
        entry("e2", "e1", "user", [result("t1")]),
        entry("e3", "e2", "assistant", use("t1")),
    )
    assert ids_of(mended(in_log)) == ["e1", "e3", "e2"]
    assert refused(mended(in_log), "log") == []


@pytest.mark.parametrize("between", [[], [entry("x", "e3", "user", "and?")]])
def test_a_real_result_wins_over_a_made_up_one(between: list[str]) -> None:
    before = log(
        entry("e1", None, "user", "count"),
        entry("e2", "e1", "assistant", use("t1")),
        entry("e3", "e2", "user", [{**result("t1", "[sessionctl] no result was recorded"), "is_error": True}]),
        *between,
        entry("e4", "x" if between else "e3", "user", [result("t1", "42 files")]),
    )
    after = mended(before)
    assert b"[sessionctl]" not in after and b"42 files" in after
    assert refused(after, "log") == []
    assert ids_of(after) == ["e1", "e2", "e4", *(["x"] if between else [])]


def test_only_the_orphan_leaves_a_message() -> None:
    before = log(
        entry("e1", None, "user", [result("t9"), {"type": "text", "text": "now deploy"}]),
        entry("e2", "e1", "assistant", "Deploying."),
    )
    assert mended(before) == before.replace(json.dumps(result("t9"), separators=(",", ":")).encode() + b",", b"")


def test_thinking_and_branches_stay_as_they_are() -> None:
    before = log(
        entry("e1", None, "user", "a"),
        entry("e2", "e1", "assistant", "b1"),
        entry("e3", "e1", "assistant", [{"type": "thinking", "thinking": "", "signature": "c2ln"}, *use("t0")]),
        entry("r", "e3", "user", [result("t0")]),
        entry("e5", "r", "assistant", use("t1")),
    )
    after = mended(before)
    assert after.startswith(before) and len(after.splitlines()) == 6


def test_a_given_up_branch_that_topology_repair_brings_back() -> None:
    before = log(
        entry("e1", None, "user", "a"),
        entry("b1", "e1", "assistant", use("t1", "t2")),
        entry("b2", "b1", "user", [result("t1"), result("t2")]),
        entry("e2", "e1", "assistant", "other way"),
        entry("e3", "e2", "user", "b"),
    )
    assert refused(before, "log")
    after = mended(before)
    assert refused(after, "log") == []
    assert set(before.splitlines()) < set(after.splitlines())


def test_the_spelling_and_layout_of_a_log_are_kept() -> None:
    before = (DATA / "loopengine/.sessions/python-writer.jsonl").read_bytes()
    lines = before.splitlines(keepends=True)[:2]
    made = mended(b"".join(lines)).splitlines()[2].decode()
    assert made.isascii() and '"parent_id": "py1", "message": {"role": "user", "content": [{' in made


def test_calls_in_the_spelling_of_openai_get_tool_messages() -> None:
    before = (DATA / "loopengine-damaged/.sessions/openai-style.jsonl").read_bytes()
    message = json.loads(mended(before).splitlines()[-1])["message"]
    assert message["role"] == "tool" and message["tool_call_id"] == "call_1"


@pytest.mark.parametrize("arguments", ['{"command":', 7])
def test_no_result_is_made_up_for_a_malformed_call(arguments: object) -> None:
    call = calling("c1")
    call["toolCalls"][0]["arguments"] = arguments
    payload = doc({"role": "user", "content": "x"}, call)
    plan = mend(Ref("s", "document"), payload, NOW)
    assert plan.after is None and plan.status == "broken"


def test_hostile_bytes_outside_the_edit_stay() -> None:
    text = (DATA / "seepient/sessions/hostile-text.json").read_text(encoding="utf-8")
    call = r"""
      "toolCalls": [{"id": "c\ud83d", "name": "é", "arguments": {"n": 1e400, "n": 12345678901234567890}, "x": -0.0}]"""
    text = text.replace('and 1e400 as text"', 'and 1e400 as text",' + call)
    text = text.replace('"metadata"', '"unknown": [1.50, 0.1e1], "metadata"')
    before = text.encode()
    after = mend(Ref("hostile-text", "document"), before, NOW).after
    assert after is not None
    start = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    assert after.endswith(before[start:])
    added = json.loads(
        "[{" + after[start : len(after) - len(before) + start].decode().partition("{")[2].rpartition("}")[0] + "}]"
    )
    assert added[0]["toolCallId"] == "c\ud83d" and b'"c\\ud83d"' in after[start:]


def test_repeated_messages_keys_the_last_counts() -> None:
    good = doc({"role": "user", "content": "x"}, calling("c1"))
    before = good.replace(b'"messages": [', b'"messages": ["first"], "messages": [', 1)
    after = mended(before)
    assert b'"messages": ["first"], "messages": [' in after and b"[sessionctl]" in after


def test_strategies() -> None:
    dangling = doc({"role": "user", "content": "x"}, calling("c1"))
    assert mended(dangling, Options(strategy="truncate")) == doc({"role": "user", "content": "x"})
    noted = mended(dangling, Options(strategy="note"))
    assert refused(noted, "document") == []
    assert [m["role"] for m in json.loads(noted)["messages"]] == ["user", "assistant", "tool", "user"]
    both = Options(strategy="truncate", drop_drafts=True)
    assert json.loads(mended(dangling, both))["messages"] == []
    middle = doc({"role": "user", "content": "x"}, calling("c1"), {"role": "user", "content": "y"})
    assert len(json.loads(mended(middle, Options(strategy="truncate")))["messages"]) == 4
    side = log(
        entry("e1", None, "user", "a"), entry("p", "e1", "system", "side"), entry("e2", "e1", "assistant", use("t1"))
    )
    assert ids_of(mended(side, Options(strategy="truncate"))) == ["p", "e1"]


def test_options_are_checked() -> None:
    for wrong in ({"only": frozenset({"x"})}, {"strategy": "guess"}, {"strategy": "note", "drop_drafts": True}):
        with pytest.raises(UsageError):
            Options(**wrong)  # type: ignore[arg-type]


def test_only_and_skip() -> None:
    torn = log(entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", use("t1"))) + b'{"id":"e3"'
    assert mended(torn, Options(skip=frozenset({"torn-tail"}))) == torn
    assert mended(torn, Options(only=frozenset({"torn-tail"}))) == torn.removesuffix(b'{"id":"e3"')
    assert refused(mended(torn), "log") == []


def test_a_call_that_awaits_approval_gets_no_result() -> None:
    payload = log(entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", use("t1", "t2")))
    assert mended(payload, approvals=("t1", "t2")) == payload
    assert mended(payload, approvals=("t1",)) == payload
    assert mended(payload + b"{", approvals=("t1", "t2")) == payload + b"{"
    assert mended(payload, Options(force=True), approvals=("t1",)).count(b"is_error") == 1


def test_cycle_repeats_and_crlf() -> None:
    ring = log(entry("e1", "e3", "user", "a"), entry("e2", "e1", "assistant", "b"), entry("e3", "e2", "user", "c"))
    assert mended(ring) == ring.replace(b'"parentId":"e3"', b'"parentId":null')
    a, b = entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b")
    assert mended(log(a, b, a, b, entry("e3", "e2", "user", "c"))) == log(a, b, entry("e3", "e2", "user", "c"))
    assert mended(log(a + "\r", "", b + "\r")) == log(a, b)
    assert mended(log(a + b)) == log(a, b)


# --- the hands --------------------------------------------------------------------------------------------------------

DANGLING = log(entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", use("t1")))


def place(folder: Path, name: str, payload: bytes, at: int = OLD) -> Path:
    path = folder / name
    path.write_bytes(payload)
    os.utime(path, ns=(at * 1_000_000, at * 1_000_000))
    return path


def run(store: Any, tmp_path: Path, **more: Any) -> list[Report]:
    return list(repair(store, clock, Backup(now=NOW, root=tmp_path / "state"), **more))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    return made


def test_a_locked_session_is_left_alone(folder: Path, tmp_path: Path) -> None:
    path = place(folder, "s.jsonl", DANGLING)
    with FolderStore(folder).lock(Ref("s", "log"), 0):
        [report] = run(FolderStore(folder), tmp_path, lock_wait=0)
    assert report.skipped and report.exit_code == 6 and path.read_bytes() == DANGLING


def test_a_session_in_use_is_left_alone(folder: Path, tmp_path: Path) -> None:
    path = place(folder, "s.jsonl", DANGLING, NOW - 30_000)
    [report] = run(FolderStore(folder), tmp_path)
    assert "changed 30 s ago" in report.skipped and path.read_bytes() == DANGLING
    [report] = run(FolderStore(folder), tmp_path, options=Options(force=True))
    assert report.status == "ok"


def test_no_backup_no_repair(folder: Path, tmp_path: Path) -> None:
    path = place(folder, "s.jsonl", DANGLING)
    (tmp_path / "state").write_text("in the way")
    [report] = run(FolderStore(folder), tmp_path)
    assert "no backup" in report.error and path.read_bytes() == DANGLING


def test_a_backup_of_another_session_of_that_key_is_not_overwritten(folder: Path) -> None:
    path = place(folder, "s.jsonl", DANGLING)
    kept = MemoryStore()
    kept.put(Ref("s", "log"), b"something else\n", expect=None)
    [report] = repair(FolderStore(folder), clock, Backup(kept, now=NOW))
    assert "no backup" in report.error and path.read_bytes() == DANGLING


class _Interfering(FolderStore):
    """A folder in which somebody else writes right before we do."""

    def put(self, ref: Ref, payload: bytes, **more: Any) -> Any:
        with (self.path / f"{ref.key}.jsonl").open("ab") as file:
            file.write(entry("e9", "e2", "user", "me too").encode() + b"\n")
        return super().put(ref, payload, **more)

    append = put


def test_what_changed_meanwhile_is_left_alone(folder: Path, tmp_path: Path) -> None:
    torn = DANGLING + b"{"
    path = place(folder, "s.jsonl", torn)
    [report] = run(_Interfering(folder), tmp_path)
    assert "changed meanwhile" in report.skipped and report.exit_code == 6
    assert path.read_bytes().startswith(torn) and b"e9" in path.read_bytes()


def test_one_that_fails_stops_no_other(folder: Path, tmp_path: Path) -> None:
    class Full(FolderStore):
        def append(self, ref: Ref, lines: bytes, **more: Any) -> Any:
            if ref.key == "a":
                from sessionctl.errors import WriteFailed

                raise WriteFailed(os.strerror(errno.ENOSPC))
            return super().append(ref, lines, **more)

    place(folder, "a.jsonl", DANGLING)
    place(folder, "b.jsonl", DANGLING)
    reports = {r.ref.key: r for r in run(Full(folder), tmp_path)}
    assert "No space" in reports["a"].error and reports["a"].exit_code == 8
    assert reports["b"].status == "ok" and (folder / "a.jsonl").read_bytes() == DANGLING


def test_two_repairs_at_once_write_one_result(folder: Path, tmp_path: Path) -> None:
    path = place(folder, "s.jsonl", DANGLING)
    threads = [threading.Thread(target=lambda: run(FolderStore(folder), tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(path.read_bytes().splitlines()) == 3


def strays(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if ".tmp." in p.name)


def whole(at: int, text: str = "x") -> bytes:
    return doc({"role": "user", "content": text}, {"role": "assistant", "content": "y"}).replace(
        str(T0 + 60_000).encode(), str(at).encode()
    )


@pytest.mark.parametrize("main", [None, whole(T0 + 60_000), whole(T0 + 60_000)[:50]])
def test_a_complete_temporary_file_that_is_newer_is_the_session(
    folder: Path, tmp_path: Path, main: bytes | None
) -> None:
    if main is not None:
        place(folder, "s.json", main)
    place(folder, "s.json.tmp.1", whole(T0 + 90_000, "new"))
    [report] = run(FolderStore(folder), tmp_path)
    assert (folder / "s.json").read_bytes() == whole(T0 + 90_000, "new") and strays(folder) == []
    assert all(o.fixed for o in report.outcomes if o.finding.code == "stray-temporary-file")
    assert (report.backup is None) == (main is None)


def test_other_temporary_files_go_after_an_hour(folder: Path, tmp_path: Path) -> None:
    place(folder, "s.json", whole(T0 + 90_000))
    place(folder, "s.json.tmp.1", whole(T0 + 60_000))
    place(folder, "s.json.tmp.2", b"{")
    place(folder, "s.json.tmp.3", b"{", NOW - 600_000)
    place(folder, "gone.json.tmp.4", b"{")
    place(folder, "gone.json.tmp.5", b"")
    store = FolderStore(folder)
    dry = {r.ref.key: r for r in repair(store, clock, None)}
    assert sorted(dry["s"].changes) == [
        "removed the superseded temporary file s.json.tmp.1; a copy goes into the backup",
        "removed the torn temporary file s.json.tmp.2; a copy goes into the backup",
    ]
    assert len(strays(folder)) == 5
    reports = {r.ref.key: r for r in run(store, tmp_path)}
    assert strays(folder) == ["s.json.tmp.3"]
    assert [o.fixed for o in reports["gone"].outcomes] == [True, True]
    kept = Path(reports["s"].backup or "")
    assert {path.name: path.read_bytes() for path in kept.glob("*.tmp.*")} == {
        "s.json.tmp.1": whole(T0 + 60_000),
        "s.json.tmp.2": b"{",
        "gone.json.tmp.4": b"{",
    }
    assert sorted(reports["gone"].changes) == [
        "removed the empty temporary file gone.json.tmp.5",
        f"removed the torn temporary file gone.json.tmp.4; a copy is in {kept}",
    ]
    assert sorted(o.fixed for o in reports["s"].outcomes) == [False, True, True]


def test_a_temporary_file_that_is_recovered_and_mended_is_kept_as_it_was(folder: Path, tmp_path: Path) -> None:
    torn = doc({"role": "user", "content": "x"}, calling("c1"))
    place(folder, "s.json.tmp.1", torn)
    [report] = run(FolderStore(folder), tmp_path)
    assert (report.status, strays(folder)) == ("ok", [])
    assert (folder / "s.json").read_bytes() != torn
    assert (Path(report.backup or "") / "s.json.tmp.1").read_bytes() == torn


def test_stale_locks_are_broken_when_mending(tmp_path: Path) -> None:
    from sessionctl.locks import Holder

    class Stale(MemoryStore):
        stale = True

        def holders(self, refs: Any = None) -> dict[Ref, Holder]:
            return {Ref("s", "log"): Holder("somebody", note="no expiry")} if self.stale else {}

        def break_lock(self, ref: Ref) -> bool:
            broke, self.stale = self.stale, False
            return broke

    store = Stale()
    healthy = log(entry("e1", None, "user", "a"), entry("e2", "e1", "assistant", "b"))
    store.put(Ref("s", "log"), healthy, expect=None, changed_at=OLD)
    [report] = check(store, NOW)
    assert codes(report) == ["stale-lock"]
    [report] = run(store, tmp_path, options=Options(skip=frozenset({"stale-lock"})))
    assert store.stale and not any(o.fixed for o in report.outcomes)
    [report] = run(store, tmp_path)
    assert not store.stale and all(o.fixed for o in report.outcomes) and report.backup is None


# --- diffs ------------------------------------------------------------------------------------------------------------


def patched(before: bytes, lines: Iterator[str]) -> tuple[list[str], list[str]]:
    shown = list(lines)
    return ([x[1:] for x in shown if x[0] == "-"], [x[1:] for x in shown if x[0] == "+"])


def test_diffs_show_only_what_changes() -> None:
    before = doc({"role": "user", "content": "x"}, calling("c1"))
    gone, new = patched(before, diff_lines(before, mended(before)))
    assert gone == [] and len(new) == 7 and any("[sessionctl]" in line for line in new)
    compact = doc({"role": "user", "content": "x"}, calling("c1"), indent=None)
    gone, new = patched(compact, diff_lines(compact, mended(compact)))
    assert all(len(line) < len(compact) for line in gone) and any("[sessionctl]" in line for line in new)
    assert any("\\xe9" in line for line in diff_lines(b"a\n\xe9\n", b"a\n"))


def test_a_diff_of_a_large_log_is_quick_and_right() -> None:
    lines = [f"line {n}".encode() for n in range(50_000)]
    new = [x for n, line in enumerate(lines) if n % 100 for x in ([line, b"new"] if n % 7 == 0 else [line])]
    gone, come = patched(b"", diff_lines(b"\n".join(lines), b"\n".join(new)))
    assert len(gone) == 500 and set(come) == {"new"}
