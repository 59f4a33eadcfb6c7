"""``sessionctl gc``: rules, protection, what is said, archives, races, and nothing lost on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionctl.model import Ref, Stamp
from sessionctl.ops import gc
from sessionctl.ops.select import Filter, Summary
from sessionctl.stores.base import ANY, Store
from sessionctl.stores.folder import FolderStore
from tests.servers import Server
from tests.stored import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    TALK,
    call,
    document,
    entry,
    log,
    message,
    names,
    now_ms,
    set_age,
    state,
)
from tests.terminal import COMMAND, FIXTURES, Terminal, environment, run

OLD = ("--older-than", "24h")


def report(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    done = run("gc", "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def reasons(found: dict[str, Any]) -> dict[str, str]:
    return {skip["key"]: skip["reason"] for skip in found["skipped"]}


# --- what is expired ---


@pytest.fixture
def varied(folder: Path) -> Path:
    now = now_ms()
    document(folder, "old", age=10 * DAY)
    document(folder, "young", age=HOUR)
    document(folder, "old but active", age=10 * DAY, metadata={"lastActivityAt": now - 2 * HOUR})
    document(folder, "created long ago", age=2 * HOUR, createdAt=now - 40 * DAY)
    document(folder, "last message late", age=10 * DAY, messages=[message("assistant", "x", now - 3 * HOUR)])
    document(folder, "big" * 5, age=9 * DAY + HOUR, messages=[message("assistant", "x" * 5000, now - 10 * DAY)])
    log(folder, "old log", age=10 * DAY)
    log(folder, "young log", age=HOUR)
    set_age(folder / "young.json", 90 * DAY)
    set_age(folder / "old.json", 2 * MINUTE)
    return folder


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["--older-than", "24h"], ["bigbigbigbigbig", "old", "old log"]),
        (["--older-than", "150m"], ["bigbigbigbigbig", "last message late", "old", "old log"]),
        (["--older-than", "30d"], []),
        (["--ttl", "30d"], ["created long ago"]),
        (["--idle", "24h"], ["bigbigbigbigbig", "old", "old log"]),
        (["--idle", "9d", "--ttl", "30d"], ["bigbigbigbigbig", "created long ago", "old", "old log"]),
        (["--older-than", "24h", "old*"], ["old", "old log"]),
        (["--older-than", "24h", "--kind", "log"], ["old log"]),
        (["--older-than", "24h", "--newer-than", "30d", "--kind", "document"], ["bigbigbigbigbig", "old"]),
        (["--older-than", "24h", "--limit", "1", "--kind", "document", "--status", "ok"], ["old"]),
        (["--older-than", "24h", "--limit", "0"], []),
    ],
)
def test_rules(varied: Path, rules: list[str], expected: list[str]) -> None:
    before = state(varied)
    found = report(*rules, "-n", "-s", varied)
    assert sorted(found["keys"]) == expected
    assert (found["dry_run"], found["deleted"], found["freed_bytes"]) == (True, 0, 0)
    assert state(varied) == before
    there = set(names(varied))
    done = report(*rules, "-y", "-v", "-s", varied)
    assert sorted(done["keys"]) == expected
    assert done["deleted"] == len(expected)
    gone = there - set(names(varied))
    assert {name.removesuffix(".json").removesuffix(".jsonl") for name in gone} == set(expected)
    assert done["freed_bytes"] == sum(before[str(varied / name)][2] for name in gone)


def test_the_newest_of_each_owner_stay(folder: Path) -> None:
    for number in range(4):
        document(folder, f"a{number}", age=(number + 2) * HOUR, principalId="alice")
        document(folder, f"b{number}", age=(number + 2) * HOUR, principalId="bob")
        document(folder, f"n{number}", age=(number + 2) * HOUR)
        log(folder, f"acme:p:x:{number}", age=(number + 2) * HOUR)
        log(folder, f"else:p:x:{number}", age=(number + 2) * HOUR)
    found = report("--keep-last", "2", "-n", "-s", folder)
    gone = [f"{name}{number}" for name in ("a", "b", "n", "acme:p:x:", "else:p:x:") for number in (2, 3)]
    assert sorted(found["keys"]) == sorted(gone)
    assert report("--keep-last", "2", "-y", "-s", folder)["deleted"] == len(gone)
    assert report("--keep-last", "2", "-y", "-s", folder)["matched"] == 0
    assert report("--keep-last", "0", "-n", "-s", folder)["matched"] == 10


def test_the_report(folder: Path) -> None:
    size = document(folder, "s1", age=2 * DAY).stat().st_size
    document(folder, "s2", age=HOUR)
    document(folder, "future", age=-400 * DAY)
    found = report(*OLD, "-n", "-s", folder)
    assert found | {"seconds": 0, "matched_bytes": 0} == {
        "store": str(folder),
        "dry_run": True,
        "scanned": 3,
        "matched": 2,
        "matched_bytes": 0,
        "deleted": 0,
        "archived": 0,
        "freed_bytes": 0,
        "skipped": [{"key": "future", "reason": "its age is uncertain: messages[0].timestamp lies in the future"}],
        "failed": [],
        "seconds": 0,
        "keys": ["s1"],
        "reasons": {"s1": "last updated 2 d ago"},
    }
    done = report(*OLD, "-y", "-s", folder)
    assert (done["deleted"], done["freed_bytes"], done["dry_run"]) == (1, size, False)
    assert "keys" not in done
    assert run("gc", *OLD, "-n", "-o", "ids", "-s", folder).stdout == ""


DRY = """\
KEY     MSGS   SIZE  REASON
oldest     2  290 B  last updated 10 d ago
s1         1  191 B  last updated 2 d ago
"""


def test_golden_output(folder: Path) -> None:
    document(folder, "oldest", age=10 * DAY)
    document(folder, "s1", age=2 * DAY, messages=[message("assistant", "x", now_ms() - 2 * DAY)])
    log(folder, "waiting", entry("a", None), age=MINUTE)
    (folder / "bad.json").write_bytes(b"{")
    set_age(folder / "bad.json", 5 * DAY)
    done = run("gc", *OLD, "-n", "-s", folder)
    assert done.stdout == DRY
    assert done.stderr.splitlines() == [
        "skipped bad: damaged (--include-damaged removes it)",
        "would delete 2 sessions, 3 messages, 481 B, 1 skipped, 4 looked at",
    ]
    refused = run("gc", *OLD, "-s", folder)
    assert refused.returncode == 2
    assert refused.stderr.startswith("sessionctl: this would delete 2 sessions, 481 B, last active before 20")
    assert "--yes" in refused.stderr
    done = run("gc", *OLD, "-y", "-v", "-s", folder)
    assert done.stdout == "deleted oldest  10 d  290 B\ndeleted s1  2 d  191 B\n"
    line = f"gc store={folder} scanned=4 matched=3 deleted=2 archived=0 skipped=1(damaged:1) failed=0 freed_bytes=481"
    assert line in done.stderr.splitlines()[-1]
    assert names(folder) == ["bad.json", "waiting.jsonl"]
    nothing = run("gc", *OLD, "-y", "-s", folder)
    assert (nothing.returncode, nothing.stdout) == (0, "")


def test_no_rule_is_a_usage_error(folder: Path) -> None:
    document(folder, "old", age=99 * DAY)
    done = run("gc", "-y", "-s", folder)
    assert done.returncode == 2
    assert "--older-than" in done.stderr
    assert names(folder) == ["old.json"]


# --- what is protected ---


def test_protected_sessions(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / ".checkpoints" / "checkpoints"
    place.mkdir(parents=True)
    checkpoint = {"id": "c", "closed": False, "sessionId": "paused", "outstanding": {"p": {"toolUseId": "t1"}}}
    (place / "c.json").write_text(json.dumps(checkpoint))
    log(folder, "paused", entry("a", None), entry("b", "a", "assistant", [call("t1")]), age=5 * DAY)
    document(folder, "seconds", createdAt=now_ms() // 1000, updatedAt=now_ms() // 1000, messages=[])
    document(folder, "future", age=-400 * DAY)
    document(folder, "text times", createdAt="2024-01-01T00:00:00", updatedAt="2024-01-01T00:00:00", messages=[])
    document(folder, "one odd time", age=9 * DAY, metadata={"lastActivityAt": "yesterday"})
    (folder / "damaged.json").write_bytes(b'{"id": "damaged"')
    document(folder, "just now", age=5 * SECOND)
    for name in ("seconds", "future", "text times", "damaged"):
        set_age(folder / f"{name}.json", 9 * DAY)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    found = report("--older-than", "1s", "-y", "-s", folder)
    why = reasons(found)
    assert re.fullmatch(r"changed \d+ s ago", why.pop("just now"))
    assert why == {
        "paused": "awaiting approval",
        "seconds": "its age is uncertain: updatedAt is not in ms",
        "future": "its age is uncertain: messages[0].timestamp lies in the future",
        "text times": "its age is uncertain: updatedAt is no time in ms",
        "one odd time": "its age is uncertain: metadata.lastActivityAt is no time in ms",
        "damaged": "damaged (--include-damaged removes it)",
    }
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert report("--older-than", "1s", "--include-damaged", "--min-idle", "1s", "-y", "-s", folder)["deleted"] == 2
    assert report("--older-than", "1s", "--force", "-y", "-s", folder)["failed"] == []
    assert names(folder) == [], "where no time is plausible, the file's own counts"


def test_a_log_of_the_year_1970_has_no_age(folder: Path) -> None:
    log(folder, "s1")
    os.utime(folder / "s1.jsonl", (0, 0))
    (row,) = json.loads(run("list", "-o", "json", "-s", folder).stdout)
    assert (row["updated_at"], row["last_activity_at"], row["age_source"]) == (None, None, "none")
    assert report("--older-than", "24h", "--idle", "24h", "-y", "-s", folder)["deleted"] == 0
    done = run("delete", "s1", "-y", "-s", folder)
    assert done.returncode == 6 and "its age is unknown" in done.stderr
    assert run("delete", "s1", "-y", "--force", "-s", folder).returncode == 0


def test_a_key_of_another_type_in_redis_is_no_failure(redis: Server) -> None:
    redis.client().hset("seepient:session:odd", "a", "b")
    for more in ((), ("--force", "--include-damaged")):
        found = report(*OLD, "-y", *more, "-s", redis.url())
        assert (found["deleted"], found["failed"]) == (0, [])
        assert found["skipped"][0]["key"] == "odd"
        assert found["skipped"][0]["reason"].startswith("is of type hash")
        assert report(*OLD, "-y", *more, "other*", "-s", redis.url())["skipped"] == []
    assert redis.client().hgetall("seepient:session:odd") == {b"a": b"b"}


def test_a_locked_session_stays(folder: Path) -> None:
    document(folder, "s1", age=2 * DAY)
    document(folder, "s2", age=2 * DAY)
    with FolderStore(folder) as store, store.lock(Ref("s1", "document"), 0):
        found = report(*OLD, "-y", "-s", folder)
        assert reasons(found)["s1"].startswith("locked by ")
        assert found["deleted"] == 1
        assert next(iter(store.holders())).key == "s1"
    assert names(folder) == ["s1.json"]


def test_a_locked_session_is_waited_for_where_that_was_asked(folder: Path) -> None:
    for key in ("s1", "s2"):
        document(folder, key, age=2 * DAY)
    with FolderStore(folder) as store, store.lock(Ref("s1", "document"), 0):
        lease = store.lock(Ref("s2", "document"), 0)
        threading.Timer(1.5, lease.release).start()
        found = report(*OLD, "-y", "--lock-wait", "5s", "-v", "-s", folder)
        assert (found["keys"], list(reasons(found))) == (["s2"], ["s1"])
        assert "is locked by " in reasons(found)["s1"]
        assert 5 <= found["seconds"] < 9
    assert names(folder) == ["s1.json"]


def test_one_at_a_time(folder: Path) -> None:
    document(folder, "s1", age=2 * DAY)
    with FolderStore(folder) as store, store.lock_store("gc"):
        done = run("gc", *OLD, "-y", "-s", folder)
        assert done.returncode == 75
        assert "locked by" in done.stderr
        assert run("gc", *OLD, "-n", "-s", folder).returncode == 0, "looking is free"
    assert names(folder) == ["s1.json"]


@pytest.mark.parametrize(("most", "code"), [("2", 2), ("3", 0), ("50%", 2), ("60%", 0), ("0", 2), ("100%", 0)])
def test_too_many_at_once(folder: Path, most: str, code: int) -> None:
    for number in range(3):
        document(folder, f"old{number}", age=9 * DAY)
    for number in range(2):
        document(folder, f"new{number}", age=HOUR)
    done = run("gc", *OLD, "--max-delete", most, "-y", "-s", folder)
    assert done.returncode == code
    assert len(names(folder)) == (5 if code else 2)
    assert not code or "3 of 5 sessions would be deleted" in done.stderr


@pytest.mark.parametrize("most", ["-1", "x", "101%", "", "5.5", "1e3", "%"])
def test_bad_limits(folder: Path, most: str) -> None:
    document(folder, "old", age=9 * DAY)
    assert run("gc", *OLD, f"--max-delete={most}", "-y", "-s", folder).returncode == 2
    assert names(folder) == ["old.json"]


def test_temporary_files_go_with_their_session_only(folder: Path) -> None:
    document(folder, "old", age=9 * DAY)
    (folder / "old.json.tmp.1750000000000").write_bytes(b"{")
    (folder / "old.json.tmp.1750000000000.abc").write_bytes(b"{}")
    (folder / "older.json.tmp.1750000000000").write_bytes(b"{}")
    report(*OLD, "-y", "-s", folder)
    assert names(folder) == ["older.json.tmp.1750000000000"]


@pytest.mark.parametrize("archive", ["./archive", "sqlite:///archive.db"])
def test_temporary_files_are_archived_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torn = "old.json.tmp.1750000000000"
    document(folder, "old", age=9 * DAY)
    (folder / torn).write_bytes(b"{")
    (folder / f"{torn}.abc").write_bytes(b"")
    dry = run("gc", *OLD, "-n", "--archive", archive, "-s", folder)
    assert f"the temporary file {torn} would go with old; a copy goes to the archive\n" in dry.stderr
    assert "left alone" not in dry.stderr
    done = run("delete", "old", "-y", "--archive", archive, "-s", folder)
    assert (done.returncode, names(folder)) == (0, [])
    assert f"the temporary file {torn} went with old; a copy is in the archive\n" in done.stderr
    assert f"the temporary file {torn}.abc went with old\n" in done.stderr
    if archive == "./archive":
        assert (tmp_path / "archive" / torn).read_bytes() == b"{"
    else:
        assert run("show", torn, "--raw", "-s", archive).stdout == "{"


def test_another_temporary_file_in_the_archive_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    for place, content in ((folder, b"{"), (archive, b"[")):
        (place / "old.json.tmp.1750000000000").write_bytes(content)
    document(folder, "old", age=9 * DAY)
    found = report(*OLD, "-y", "--archive", archive, "-s", folder, code=7)
    assert "is not the same" in found["failed"][0]["error"]
    assert names(folder) == ["old.json", "old.json.tmp.1750000000000"]
    assert (archive / "old.json.tmp.1750000000000").read_bytes() == b"["


# --- the question at a terminal ---


@pytest.mark.parametrize(("answer", "left"), [("n\n", ["s1.json"]), ("\n", ["s1.json"]), ("y\n", [])])
def test_the_question(folder: Path, answer: str, left: list[str]) -> None:
    document(folder, "s1", age=2 * DAY)
    with Terminal("gc", *OLD, "-s", folder) as screen:
        screen.expect("Delete 1 session")
        assert "last updated 2 d ago" in screen.plain
        assert names(folder) == [".sessionctl", "s1.json"]
        screen.send(answer)
        assert screen.wait() == 0
    assert names(folder) == left


def test_ctrl_c_at_the_question(folder: Path) -> None:
    document(folder, "s1", age=2 * DAY)
    with Terminal("gc", *OLD, "-s", folder) as screen:
        screen.expect("Delete 1 session")
        screen.read(0.2)  # a signal right before a read begins is noticed by Python only after the read
        screen.send("\x03")
        assert screen.wait() == 130
    assert "Traceback" not in screen.plain
    assert names(folder) == ["s1.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_during_the_work(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    """It ends between two sessions, says what was done, and leaves no lock behind."""
    for index in range(1500):
        (folder / f"s{index}.jsonl").write_bytes(b'{"id":"a","message":{"role":"user","content":"x"}}\n')
        set_age(folder / f"s{index}.jsonl", 2 * DAY)
    process = subprocess.Popen(
        [*COMMAND, "gc", *OLD, "-y", "-o", "json", "-s", folder, "--metrics", tmp_path / "gc.prom"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    while len(list(folder.iterdir())) > 1490:
        time.sleep(0.005)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    found = json.loads(output)
    left = names(folder)
    assert 0 < found["deleted"] == 1500 - len(left)
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert all(name.endswith(".jsonl") for name in left)
    assert "exit_code" in (told := (tmp_path / "gc.prom").read_text()) and " 130\n" in told


# --- archives ---


def test_an_archive_gets_a_copy_first(folder: Path, tmp_path: Path) -> None:
    payloads = {p.name: p.read_bytes() for p in (document(folder, "a:b", age=9 * DAY), log(folder, "l", age=9 * DAY))}
    at = (folder / "l.jsonl").stat().st_mtime_ns // 1_000_000
    done = report(*OLD, "-y", "--archive", tmp_path / "archive", "-s", folder)
    assert (done["deleted"], done["archived"]) == (2, 2)
    assert names(folder) == []
    assert {p.name: p.read_bytes() for p in (tmp_path / "archive").iterdir()} == payloads
    assert (tmp_path / "archive" / "l.jsonl").stat().st_mtime_ns // 1_000_000 == at
    assert (tmp_path / "archive").stat().st_mode & 0o777 == 0o700


def test_the_same_copy_may_be_there_already(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "s1.json").write_bytes(document(folder, "s1", age=9 * DAY).read_bytes())
    log(folder, "grown", *TALK, age=9 * DAY)
    log(archive, "grown", TALK[0], age=10 * DAY)
    whole = (folder / "grown.jsonl").read_bytes()
    assert report(*OLD, "-y", "--archive", archive, "-s", folder)["deleted"] == 2
    assert (archive / "grown.jsonl").read_bytes() == whole
    assert names(archive) == ["grown.jsonl", "s1.json"]


def test_another_session_in_the_archive_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "s1.json").write_bytes(b"another")
    document(folder, "s1", age=9 * DAY)
    document(folder, "s2", age=9 * DAY)
    found = report(*OLD, "-y", "--archive", archive, "-s", folder, code=8)
    assert found["deleted"] == 1
    assert [failure["key"] for failure in found["failed"]] == ["s1"]
    assert "archive holds another session" in found["failed"][0]["error"]
    assert (archive / "s1.json").read_bytes() == b"another"
    assert names(folder) == ["s1.json"]


@pytest.mark.parametrize("alias", ["{0}", "documents:{0}", "{0}/../sessions", "{1}/alias", "file:{0}/."])
def test_an_archive_that_is_the_store_itself(folder: Path, tmp_path: Path, alias: str) -> None:
    (tmp_path / "alias").symlink_to(folder)
    document(folder, "s1", age=9 * DAY)
    done = run("gc", *OLD, "-y", "--archive", alias.format(folder, tmp_path), "-s", folder)
    assert done.returncode == 2
    assert "the archive is the store itself" in done.stderr
    assert names(folder) == ["s1.json"]


def test_an_archive_whose_keys_can_be_the_stores_own(redis: Server) -> None:
    client = redis.client()
    client.rpush("session-log:s1", "{}")
    wide, narrow = redis.url(), redis.url() + "?documents=seepient:session:archive:&logs=archive:"
    for store, archive in ((wide, narrow), (narrow, wide)):
        done = run("gc", *OLD, "-y", "--archive", archive, "-s", store)
        assert done.returncode == 2
        assert "the archive overlaps the store" in done.stderr
    assert client.keys() == [b"session-log:s1"]


@pytest.mark.parametrize("archive", ["nosuch:x", "nosuchname", ""])
def test_an_archive_that_does_not_exist(folder: Path, archive: str) -> None:
    document(folder, "s1", age=9 * DAY)
    assert run("gc", *OLD, "-y", "--archive", archive, "-s", folder).returncode == 2
    assert names(folder) == ["s1.json"]


def test_an_archive_that_cannot_hold_the_kind(folder: Path, tmp_path: Path) -> None:
    document(folder, "s1", age=9 * DAY)
    log(folder, "s2", age=9 * DAY)
    found = report(*OLD, "-y", "--archive", f"logs:{tmp_path / 'a'}", "-s", folder, code=8)
    assert [failure["key"] for failure in found["failed"]] == ["s1"]
    assert names(folder) == ["s1.json"]


# --- races: a writer at work between judging and removing ---


def replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp.1.w")
    temporary.write_bytes(content)
    temporary.replace(path)


def reactivated(path: Path) -> None:
    """The writer saves the session again, now."""
    value = json.loads(path.read_bytes())
    value["updatedAt"] = now_ms()
    replace(path, json.dumps(value).encode())


CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": reactivated,
    "replaced with old times": lambda path: replace(path, path.read_bytes()),
    "written in place": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "touched": lambda path: path.touch(),
    "deleted": lambda path: path.unlink(),
    "deleted and made anew": lambda path: (payload := path.read_bytes(), path.unlink(), path.write_bytes(payload)),
}
MOMENTS = ("lock", "get", "put", "remove")


class Watched(FolderStore):
    """A folder in which somebody acts right before, or right after, a method is called."""

    act: Callable[[], object] | None = None
    at = ""

    def _now(self, method: str) -> None:
        if self.act is not None and self.at == method:
            act, self.act = self.act, None
            act()

    def lock(self, *arguments: Any) -> Any:
        self._now("lock")
        return super().lock(*arguments)

    def get(self, *arguments: Any) -> Any:
        self._now("get")
        return super().get(*arguments)

    def put(self, *arguments: Any, **more: Any) -> Any:
        self._now("put")
        return super().put(*arguments, **more)

    def remove(self, *arguments: Any) -> None:
        self._now("remove")
        super().remove(*arguments)


def collect(store: Store, archive: Store | None = None) -> gc.Outcome:
    """What the command does, without the command."""
    rules, guard = gc.Rules(older_than=DAY), gc.Protection()
    plan = gc.plan_gc(store, rules, Filter(), guard, now_ms())
    outcome = gc.Outcome(skipped=list(plan.skipped))

    def recheck(summary: Summary, at: int) -> str | None:
        return "no longer expired" if gc.expired(summary, rules, at) is None else gc.protection(summary, guard, at)

    gc.apply(store, plan, outcome, now=now_ms, recheck=recheck, archive=archive)
    return outcome


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_meanwhile_stays(folder: Path, tmp_path: Path, change: str, moment: str) -> None:
    path = document(folder, "s1", age=9 * DAY)
    other = document(folder, "s2", age=9 * DAY)
    set_age(path, 9 * DAY)
    seen = []

    def act() -> None:
        CHANGES[change](path)
        seen.append(path.read_bytes() if path.exists() else None)

    with Watched(folder) as store, Watched(tmp_path / "archive") as archive:
        watched = archive if moment == "put" else store
        watched.act, watched.at = act, moment
        outcome = collect(store, archive)
    assert seen, "the writer was at work"
    assert [action.ref.key for action in outcome.deleted] == ["s2"]
    assert [skip.ref.key for skip in outcome.skipped] == ["s1"]
    assert outcome.failed == []
    assert (path.read_bytes() if path.exists() else None) == seen[0]
    assert not other.exists()
    assert set(names(folder)) <= {"s1.json"}


def test_a_log_that_grows_meanwhile_stays(folder: Path) -> None:
    path = log(folder, "s1", age=9 * DAY)
    before = path.read_bytes()
    more = json.dumps(entry("e3", "e2")).encode() + b"\n"

    def act() -> None:
        with path.open("ab") as file:
            file.write(more)

    for moment in ("lock", "get", "remove"):
        path.write_bytes(before)
        set_age(path, 9 * DAY)
        with Watched(folder) as store:
            store.act, store.at = act, moment
            outcome = collect(store)
        assert ([s.ref.key for s in outcome.skipped], outcome.deleted) == (["s1"], [])
        assert path.read_bytes() == before + more


def test_a_writer_that_is_never_still(folder: Path) -> None:
    """A real writer process saves sessions all the time while gc runs: none that it touched last is lost."""
    for number in range(40):
        document(folder, f"s{number}", age=9 * DAY)
    script = (
        "import json, sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\nprint('on', flush=True)\n"
        "for number in range(0, 40, 2):\n"
        "    path = folder / f's{number}.json'; at = int(time.time() * 1000)\n"
        "    temporary = folder / f's{number}.json.tmp.{at}'\n"
        "    temporary.write_text(json.dumps({'id': f's{number}', 'messages': [], 'createdAt': at, 'updatedAt': at}))\n"
        "    temporary.replace(path); time.sleep(0.001)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with FolderStore(folder) as store:
            collect(store)
    kept = {name for name in names(folder) if name.endswith(".json")}
    assert kept >= {f"s{number}.json" for number in range(0, 40, 2)}
    with FolderStore(folder) as store:
        collect(store)
    assert names(folder) == sorted(f"s{number}.json" for number in range(0, 40, 2))


def test_an_archive_that_lies_is_not_believed(folder: Path, tmp_path: Path) -> None:
    document(folder, "s1", age=9 * DAY)

    class Liar(FolderStore):
        def put(self, ref: Ref, payload: bytes, **more: Any) -> Stamp:
            return super().put(ref, payload[:-1], **more)

    with FolderStore(folder) as store, Liar(tmp_path / "archive") as archive:
        outcome = collect(store, archive)
    assert (outcome.deleted, outcome.archived) == ([], [])
    assert "not the same" in outcome.failed[0].error
    assert names(folder) == ["s1.json"]


# --- and more ---


def test_a_dry_run_leaves_no_trace(tmp_path: Path) -> None:
    before = state(FIXTURES)
    for folder in (
        "seepient/sessions",
        "seepient-damaged/sessions",
        "loopengine/.sessions",
        "loopengine-damaged/.sessions",
    ):
        for rules in (OLD, ("--ttl", "1h"), ("--keep-last", "1")):
            run(
                "gc",
                *rules,
                "-n",
                "-s",
                FIXTURES / folder,
                "--archive",
                tmp_path / "archive",
                env=environment(tmp_path),
            )
    assert state(FIXTURES) == before
    assert names(tmp_path) == []


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    done = run("gc", *OLD, "-y", "-s", tmp_path / "missing")
    assert done.returncode == 7
    assert names(tmp_path) == []


def test_thousands_are_looked_at_by_their_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young document is told by its last bytes: no other byte is read."""
    for number in range(5):
        document(folder, f"s{number}", age=HOUR, messages=[message("user", "x" * 500_000)])
    read = 0
    real = os.pread

    def counted(*arguments: Any) -> bytes:
        nonlocal read
        data = real(*arguments)
        read += len(data)
        return data

    def refused(*arguments: Any) -> Iterator[bytes]:
        raise AssertionError("the whole file was read")

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "read", refused)
    with FolderStore(folder) as store:
        plan = gc.plan_gc(store, gc.Rules(older_than=DAY), Filter(), gc.Protection(), now_ms())
    assert (plan.scanned, plan.actions) == (5, ())
    assert 0 < read <= 5 * 4096


def test_removing_with_any_version_is_not_what_gc_does(folder: Path) -> None:
    """The plan names the version of each session, and the store holds gc to it."""
    path = document(folder, "s1", age=9 * DAY)
    with FolderStore(folder) as store:
        plan = gc.plan_gc(store, gc.Rules(older_than=DAY), Filter(), gc.Protection(), now_ms())
        assert plan.actions[0].stamp == store.stamp(Ref("s1", "document"))
        replace(path, path.read_bytes())
        outcome = gc.Outcome()
        gc.apply(store, plan, outcome, now=now_ms, recheck=lambda summary, at: None)
        assert outcome.deleted == []
        store.remove(Ref("s1", "document"), ANY)
