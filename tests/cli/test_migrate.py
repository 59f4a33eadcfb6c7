"""``sessionctl migrate``: what is asked, said and counted, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from terminal import COMMAND, DOCUMENTS, LOGS, Terminal, environment, run

from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import Store, Want

THEN = 1_750_000_000_000
KILLS = int(os.environ.get("SESSIONCTL_TEST_KILLS", "20"))
"""How many migrations are killed; more are for a long night."""
SHARED = 2400
"""Sessions that several processes copy."""

needs_two = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="only several processors of Linux share work"
)


def document(key: str, text: str = "hi", at: int = THEN) -> bytes:
    return (
        f'{{"id": "{key}", "messages": [{{"id": "m1", "role": "user", "content": "{text}", "timestamp": {at}}}], '
        f'"createdAt": {at}, "updatedAt": {at}}}'
    ).encode()


def entry(number: int) -> bytes:
    parent = "null" if number == 1 else f'"e{number - 1}"'
    role = "user" if number % 2 else "assistant"
    return f'{{"id":"e{number}","parentId":{parent},"message":{{"role":"{role}","content":"hi"}}}}\n'.encode()


def make(folder: Path, *keys: str, text: str = "hi", at: int = THEN) -> Path:
    folder.mkdir(exist_ok=True)
    for key in keys:
        (folder / f"{key}.json").write_bytes(document(key, text, at))
    return folder


def payloads(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def found(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    done = run("migrate", *arguments, "-o", "json")
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_object_and_the_summary(tmp_path: Path) -> None:
    code, value = found(DOCUMENTS, tmp_path / "t")
    count = len(payloads(DOCUMENTS))
    seconds = value.pop("seconds")
    assert code == 0 and 0 <= seconds < 30
    assert value == {
        "source": str(DOCUMENTS),
        "target": str(tmp_path / "t"),
        "dry_run": False,
        "scanned": count,
        "copied": count,
        "overwritten": 0,
        "identical": 0,
        "skipped": [],
        "conflicts": [],
        "failed": [],
        "damaged": [],
        "verified": count,
        "deleted_from_source": 0,
        "bytes": sum(map(len, payloads(DOCUMENTS).values())),
    }
    assert payloads(tmp_path / "t") == payloads(DOCUMENTS)
    again = run("migrate", DOCUMENTS, tmp_path / "t")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == f"copied nothing, {count} there already; {count} looked at\n"


def test_a_dry_run_shows_all_and_makes_nothing(tmp_path: Path) -> None:
    done = run("migrate", LOGS, tmp_path / "t", "--dry-run")
    assert done.returncode == 0 and os.listdir(tmp_path) == []
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == sorted(n[:-6] for n in payloads(LOGS))
    code, value = found(LOGS, tmp_path / "t", "-n")
    assert (code, value["dry_run"], value["verified"], len(value["keys"])) == (0, True, 0, value["copied"])


def test_ids_and_filters_narrow(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "alpha-1", "alpha-2", "beta")
    (source / "gamma.jsonl").write_bytes(entry(1))
    _, value = found(source, tmp_path / "t1", "beta", "alpha-1", "-v")
    assert value["keys"] == ["alpha-1", "beta"]
    _, value = found(source, tmp_path / "t2", "--kind", "log", "-v")
    assert value["keys"] == ["gamma"]
    _, value = found(source, tmp_path / "t3", "--older-than", "30d", "--kind", "document", "-v")
    assert value["keys"] == ["alpha-1", "alpha-2", "beta"]
    assert found(source, tmp_path / "t4", "--newer-than", "30d", "-v")[1]["keys"] == ["gamma"]
    assert run("migrate", source, tmp_path / "t5", "alpha").returncode == 4
    assert run("migrate", source, tmp_path / "t5", "nobody").returncode == 3
    done = run("migrate", source, tmp_path / "t6", "-", stdin=b"beta\nnobody\n")
    assert done.returncode == 8 and "nobody" in done.stderr and list(payloads(tmp_path / "t6")) == ["beta.json"]
    done = run("migrate", source, tmp_path / "t7", "-", "-o", "json", stdin=b"beta\nnobody\n")
    assert json.loads(done.stdout)["failed"] == [{"key": "nobody", "error": "no such session: 'nobody'"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delete-source", "--no-verify", "--yes"], "only what was verified"),
        (["--on-conflict", "owerwrite"], "did you mean overwrite?"),
        (["--ttl", "5"], "not a duration"),
        (["--delete-source"], "remove sessions from the source; it needs --yes"),
        (["--on-conflict", "overwrite"], "overwrite other versions at the target; it needs --yes"),
    ],
)
def test_usage_errors_do_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    source = make(tmp_path / "s", "a")
    done = run("migrate", source, tmp_path / "t", *arguments)
    assert done.returncode == 2 and said in done.stderr
    assert os.listdir(tmp_path) == ["s"] and list(payloads(source)) == ["a.json"]


def test_places_and_kinds_that_cannot_be(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "a")
    (source / "b.jsonl").write_bytes(entry(1))
    assert run("migrate", source, f"documents:{source}/../s").returncode == 2
    done = run("migrate", source, f"documents:{tmp_path}/t")
    assert done.returncode == 2 and "holds no logs" in done.stderr and not (tmp_path / "t").exists()
    assert run("migrate", source, f"documents:{tmp_path}/t", "--kind", "document").returncode == 0
    assert run("migrate", tmp_path / "none", tmp_path / "t").returncode == 7


def test_stores_that_share_keys_are_refused_and_nothing_is_changed(tmp_path: Path, redis: Server) -> None:
    whole = redis.url()
    run("migrate", make(tmp_path / "s", "a", "zz:b", "zz:zz:c"), whole)
    inner = f"{whole}?documents=seepient:session:zz:"
    client = redis.client()
    before = {key: client.get(key) for key in client.scan_iter()}
    assert len(before) == 3
    for source, target in ((whole, inner), (inner, whole)):
        for more in (["--on-conflict", "overwrite", "--yes"], ["--delete-source", "--yes"], ["--dry-run"]):
            done = run("migrate", source, target, *more)
            assert done.returncode == 2 and "source and target overlap" in done.stderr
            assert "another database has room for the copies" in done.stderr
    assert {key: client.get(key) for key in client.scan_iter()} == before
    apart = f"{whole}?documents=other:"
    done = run("migrate", whole, apart)
    assert done.returncode == 2 and "copy the others only: --kind document" in done.stderr
    assert found(whole, apart, "--kind", "document")[1]["copied"] == 3


def test_two_places_of_one_database_share_one_lock(tmp_path: Path, redis: Server) -> None:
    source, target = redis.url(), f"{redis.url()}?documents=other:&logs=other-log:"
    run("migrate", make(tmp_path / "s", "a", "b"), source)
    code, value = found(source, target, "--delete-source", "--yes")
    assert (code, value["copied"], value["deleted_from_source"]) == (0, 2, 2)
    assert sorted(redis.client().scan_iter()) == [b"other:a", b"other:b"]


def test_conflicts_are_exit_8_and_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    source, target = make(tmp_path / "s", "a", "b"), make(tmp_path / "t", "a", text="other")
    code, value = found(source, target)
    assert code == 8 and [c["key"] for c in value["conflicts"]] == ["a"] and value["copied"] == 1
    assert (target / "a.json").read_bytes() == document("a", "other")
    (target / "b.json").unlink()
    code, value = found(source, target, "--on-conflict", "fail")
    assert (code, value["copied"], list(payloads(target))) == (8, 0, ["a.json"])
    code, value = found(source, target, "--on-conflict", "overwrite", "--yes")
    assert (code, value["copied"], value["overwritten"]) == (0, 2, 1)
    assert payloads(target) == payloads(source)


def test_what_was_written_after_a_migration_is_taken_by_newer(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "a")
    found(source, tmp_path / "t")
    make(source, "a", text="later", at=THEN + 9000)
    assert found(source, tmp_path / "t", "--on-conflict", "newer")[0] == 0
    assert b"later" in (tmp_path / "t" / "a.json").read_bytes()


def test_the_question_at_a_terminal(tmp_path: Path) -> None:
    source, target = make(tmp_path / "s", "a", "b"), make(tmp_path / "t", "a", text="other")
    arguments = ("migrate", source, target, "--on-conflict", "overwrite", "--delete-source")
    with Terminal(*arguments, size=(120, 24)) as screen:
        screen.expect("Overwrite 1 session at the target and remove 2 sessions from the source once verified?")
        assert "overwrite" in screen.plain
        screen.send("n\n")
        assert screen.wait() == 0
    assert payloads(target) == {"a.json": document("a", "other")} and len(payloads(source)) == 2
    with Terminal(*arguments, size=(120, 24)) as screen:
        screen.expect("once verified?")
        screen.send("y\n")
        assert screen.wait() == 0
    assert payloads(source) == {}
    assert payloads(target) == {"a.json": document("a"), "b.json": document("b")}


def test_a_dry_run_tells_what_would_be_removed_from_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    for name in ("new", "there"):
        (source / f"{name}.json").write_bytes(document(name))
    (source / "young.json").write_bytes(document("young", at=time.time_ns() // 1_000_000))
    run("migrate", source, target, "there")
    before = payloads(source)
    arguments = (source, target, "--delete-source")
    code, value = found(*arguments, "--dry-run")
    assert (code, value["copied"], value["identical"], value["deleted_from_source"]) == (0, 2, 1, 2)
    (kept,) = value["skipped"]
    assert kept["key"] == "young" and kept["reason"].startswith("would stay at the source: changed ")
    done = run("migrate", *arguments, "--dry-run")
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["ACTION", "remove", "copy"]
    assert ", 1 there already, 1 skipped, 2 to be removed from the source; 3 looked at" in done.stderr
    assert payloads(source) == before and sorted(payloads(target)) == ["there.json"]
    code, value = found(*arguments, "--yes")
    assert (code, value["deleted_from_source"], [skip["key"] for skip in value["skipped"]]) == (0, 2, ["young"])
    assert sorted(payloads(source)) == ["young.json"]


def test_delete_source_keeps_what_is_in_use(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "old")
    make(source, "young", at=time.time_ns() // 1_000_000 - 5000)
    code, value = found(source, tmp_path / "t", "--delete-source", "--yes")
    assert (code, value["copied"], value["deleted_from_source"]) == (0, 2, 1)
    assert value["skipped"] == [{"key": "young", "reason": value["skipped"][0]["reason"]}]
    assert list(payloads(source)) == ["young.json"] and len(payloads(tmp_path / "t")) == 2
    assert found(source, tmp_path / "t", "--delete-source", "--yes", "--force")[1]["deleted_from_source"] == 1


def test_two_runs_never_meet(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "a")
    with open_store(f"{tmp_path}/t") as target, target.lock_store("gc"):
        done = run("migrate", source, tmp_path / "t")
        assert done.returncode == 75 and payloads(tmp_path / "t") == {}
        assert run("migrate", source, tmp_path / "t", "--dry-run").returncode == 0
    with open_store(source) as held, held.lock_store("gc"):
        assert run("migrate", source, tmp_path / "t").returncode == 0, "reading needs no lock"
        assert run("migrate", source, tmp_path / "t", "--delete-source", "--yes").returncode == 75


def test_temporary_files_of_a_killed_run_are_named(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "a")
    stray = make(tmp_path / "t", "b") / "a.json.tmp.1796000005000.0a1b2c3d"
    stray.write_bytes(document("a")[:20])
    done = run("migrate", source, tmp_path / "t")
    assert done.returncode == 0 and stray.name in done.stderr


def test_an_open_checkpoint_is_said(tmp_path: Path) -> None:
    done = run("migrate", LOGS, tmp_path / "t")
    assert done.returncode == 0 and "1 copied session had an open checkpoint" in done.stderr
    (paused,) = (path.stem for path in LOGS.glob("*awaiting*.jsonl"))
    assert f"not copied: {paused}; at the target nothing protects it as awaiting approval" in done.stderr


def test_a_session_that_is_but_a_temporary_file_is_told(tmp_path: Path) -> None:
    source = make(tmp_path / "s", "a", "b")
    (source / "a.json").rename(source / "a.json.tmp.1750000000000")
    (source / "b.json.tmp.1750000000000").write_bytes(b"{")
    for more in ((), ("--dry-run",), ("--kind", "document")):
        done = run("migrate", source, tmp_path / "t", *more)
        said = "a is at the source only as a temporary file, not copied (sessionctl repair recovers it)\n"
        assert done.stderr.count("only as a temporary file") == 1 and said in done.stderr
    assert "temporary" not in run("migrate", source, tmp_path / "t", "--kind", "log").stderr


def test_a_ttl_that_is_not_applied_is_told(tmp_path: Path, redis: Server) -> None:
    source = make(tmp_path / "s", "a")
    said = "--ttl was not applied to 1 session, there already"
    assert said not in run("migrate", source, redis.url(), "--ttl", "1h").stderr
    assert said in run("migrate", source, redis.url(), "--ttl", "5h").stderr
    assert said not in run("migrate", source, redis.url()).stderr


def test_what_the_target_can_never_hold_fails_also_in_the_preview(tmp_path: Path, redis: Server) -> None:
    source = tmp_path / "s"
    source.mkdir()
    (source / "empty.jsonl").write_bytes(b"")
    for extra in (["--dry-run"], [], ["empty"]):
        code, value = found(source, redis.url(), *extra)
        assert (code, value["copied"]) == (8, 0)
        (failure,) = value["failed"]
        assert failure["key"] == "empty" and "Redis holds no empty lists" in failure["error"]


def test_a_new_folder_wants_a_slash(tmp_path: Path) -> None:
    done = run("migrate", make(tmp_path / "s", "a"), "newdir")
    assert done.returncode == 2 and "for a new folder write ./newdir" in done.stderr


def test_no_secret_of_a_url_is_shown(redis: Server, tmp_path: Path) -> None:
    redis.client().execute_command("ACL", "SETUSER", "mover", "on", ">hunter2", "~*", "+@all")
    source = make(tmp_path / "s", "a")
    url = redis.url(login="mover:hunter2@")
    for arguments in ((source, url), (url, tmp_path / "t", "-o", "json"), (url, url), (url, source, "nobody")):
        done = run("migrate", *arguments)
        assert "hunter2" not in done.stdout + done.stderr
    assert payloads(tmp_path / "t") == {"a.json": document("a")}


def test_a_server_that_is_not_there_is_exit_7(tmp_path: Path, redis: Server) -> None:
    source = make(tmp_path / "s", "a")
    done = run("migrate", source, "redis://127.0.0.1:1/0", "-o", "json")
    assert done.returncode == 7 and json.loads(done.stderr)["error"]["code"] == "store"
    assert run("migrate", "redis://127.0.0.1:1/0", source).returncode == 7


# --- interrupted ------------------------------------------------------------------------------------------------------


def many(folder: Path, count: int) -> Path:
    """As many documents and logs."""
    folder.mkdir()
    for i in range(count // 2):
        (folder / f"s{i}.json").write_bytes(document(f"s{i}", "x" * (50 * (i % 90))))
        (folder / f"s{i}.jsonl").write_bytes(b"".join(entry(n) for n in range(1, 2 + i % 30)))
    return folder


def contents(store: Store) -> dict[Ref, bytes]:
    if not store.exists():
        return {}
    return {r.ref: r.payload for r in store.records(Want.WHOLE) if r.payload is not None}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("count", [1000, SHARED])
def test_ctrl_c_says_what_is_done_and_a_second_run_does_the_rest(
    tmp_path: Path, count: int, number: signal.Signals
) -> None:
    """Also where a supervisor asks every process to end."""
    source = many(tmp_path / "s", count)
    process = subprocess.Popen(
        [*COMMAND, "migrate", str(source), str(tmp_path / "t"), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 20
    while time.monotonic() < end and not list((tmp_path / "t").glob("*.json")):
        time.sleep(0.005)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    value = json.loads(out)
    assert process.returncode == 130 and "left; run it again" in err
    assert 0 < value["copied"] < count and value["verified"] == value["copied"]
    assert f"interrupted: {count - value['copied']:,} sessions left" in err
    with open_store(source) as here, open_store(tmp_path / "t") as there:
        expected = contents(here)
        assert contents(there).items() <= expected.items() and len(contents(there)) == value["copied"]
        code, rest = found(source, tmp_path / "t")
        assert (code, rest["copied"], rest["identical"]) == (0, count - value["copied"], value["copied"])
        assert contents(there) == expected


def held(tmp_path: Path, redis: Server, count: int) -> str:
    """A Redis source of documents, old ones, of which every fifth is locked by an agent."""
    for key in (source := make(tmp_path / "s", *(f"s{i}" for i in range(count)))).iterdir():
        if key.stem.endswith(("0", "5")):
            redis.client().set(f"session-lock:{key.stem}", "agent", px=600_000)
    assert found(source, redis.url())[1]["copied"] == count
    return redis.url()


def moving(source: str, target: Path, wait: str) -> subprocess.Popen[str]:
    """A migration out of Redis that has removed some of its source."""
    process = subprocess.Popen(
        [*COMMAND, "migrate", source, str(target), "--delete-source", "--yes", "--lock-wait", wait, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        start_new_session=True,
    )
    with open_store(source) as store:
        count = len(list(store.names()))
        while process.poll() is None and len(list(store.names())) == count:
            time.sleep(0.01)
    return process


@pytest.mark.parametrize("count", [300, SHARED])
def test_ctrl_c_is_heard_among_locked_sessions_and_what_was_removed_is_told(
    tmp_path: Path, redis: Server, count: int
) -> None:
    source, target = held(tmp_path, redis, count), tmp_path / "t"
    process = moving(source, target, "15s")
    asked = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 5, "no lock is waited for any more"
    assert process.returncode == 130 and "left; run it again" in err
    value = json.loads(out)
    with open_store(source) as here, open_store(target) as there:
        left, arrived = contents(here), contents(there)
        assert 0 < value["deleted_from_source"] == count - len(left)
        assert value["copied"] == len(arrived) == value["verified"]
        assert len(left.keys() | arrived.keys()) == count


@needs_two
def test_nothing_is_removed_once_the_parent_is_killed(tmp_path: Path, redis: Server) -> None:
    source = held(tmp_path, redis, SHARED)
    process = moving(source, tmp_path / "t", "3s")
    others = workers(process)
    assert len(others) > 1
    process.kill()
    process.wait()
    end = time.monotonic() + 8
    while not all(map(has_ended, others)):
        assert time.monotonic() < end, "the rest of a batch has ten locks, three seconds each"
        time.sleep(0.01)
    process.communicate()
    with open_store(source) as here, open_store(tmp_path / "t") as there:
        left, arrived = contents(here), contents(there)
        assert len(left) > SHARED // 2 and len(left.keys() | arrived.keys()) == SHARED


def begun(source: Path, redis: Server) -> subprocess.Popen[str]:
    """A migration to Redis by several processes that has begun to write."""
    process = subprocess.Popen(
        [*COMMAND, "migrate", str(source), redis.url(), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    while process.poll() is None and redis.client().dbsize() < 2:  # one is the lock
        time.sleep(0.001)
    return process


def workers(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@needs_two
def test_several_processes_copy_what_one_would(tmp_path: Path, redis: Server) -> None:
    source = many(tmp_path / "s", SHARED)
    process = begun(source, redis)
    assert process.poll() is not None or len(workers(process)) > 1
    value = json.loads(process.communicate(timeout=60)[0])
    assert (process.returncode, value["copied"], value["verified"]) == (0, SHARED, SHARED)
    with open_store(source) as here, open_store(redis.url()) as there:
        assert contents(there) == contents(here)
    code, value = found(redis.url(), tmp_path / "back", "-v")
    assert (code, value["copied"], value["keys"]) == (0, SHARED, sorted(value["keys"]))
    with open_store(source) as here, open_store(tmp_path / "back") as there:
        assert contents(there) == contents(here)


@needs_two
def test_a_process_that_is_killed_is_told_of_and_a_second_run_does_the_rest(tmp_path: Path, redis: Server) -> None:
    source = many(tmp_path / "s", SHARED)
    process = begun(source, redis)
    os.kill(workers(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7 and "was ended from outside" in err
    assert 0 <= json.loads(out)["copied"] < SHARED
    code, value = found(source, redis.url())
    assert (code, value["copied"] + value["identical"]) == (0, SHARED)


@pytest.mark.parametrize("count", [1000, SHARED])
def test_a_target_that_is_moved_away_ends_it_and_what_was_done_is_told(tmp_path: Path, count: int) -> None:
    """The lock of the target went with it."""
    source, target, moved = many(tmp_path / "s", count), tmp_path / "t", tmp_path / "moved"
    process = subprocess.Popen(
        [*COMMAND, "migrate", str(source), str(target), "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    end = time.monotonic() + 20
    while time.monotonic() < end and not list(target.glob("*.json")):
        time.sleep(0.002)
    target.rename(moved)
    target.mkdir()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 6 and '"lock-lost"' in err
    assert list(target.iterdir()) == []
    assert json.loads(out)["copied"] == len(list(moved.glob("*.json*"))) < count


@needs_two
def test_no_process_outlives_the_one_that_is_killed(tmp_path: Path, redis: Server) -> None:
    source = many(tmp_path / "s", SHARED)
    process = begun(source, redis)
    others = workers(process)
    process.kill()
    process.communicate()
    end = time.monotonic() + 10
    while not all(map(has_ended, others)):
        assert time.monotonic() < end
        time.sleep(0.01)
    _let_locks_end(redis)
    code, value = found(source, redis.url())
    assert (code, value["copied"] + value["identical"]) == (0, SHARED)


@pytest.mark.parametrize("way", ["to-folder", "to-redis", "to-redis-and-delete"])
def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path: Path, redis: Server, way: str) -> None:
    """Each run is killed at a moment of chance after it has begun to write."""
    source = many(tmp_path / "s", 400)
    chance = random.Random(20261130)
    extra = ["--delete-source", "--yes", "--force"] if way == "to-redis-and-delete" else []
    with open_store(source) as here:
        expected = contents(here)
    for _ in range(-(-KILLS // 3)):
        target = tmp_path / f"t{chance.random()}" if way == "to-folder" else redis.url()
        process = subprocess.Popen(
            [*COMMAND, "migrate", str(source), str(target), "-q", *extra], env=environment(), start_new_session=True
        )
        while process.poll() is None and not (
            Path(target).is_dir() if way == "to-folder" else redis.client().dbsize() > 0
        ):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.4))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _let_locks_end(redis)
        with open_store(source) as here, open_store(target) as there:
            left, arrived = contents(here), contents(there)
            assert arrived.items() <= expected.items(), "whole sessions only, as they were"
            assert left.items() <= expected.items() and left.keys() | arrived.keys() == expected.keys(), (
                "nothing is lost"
            )
        if way == "to-redis":
            assert found(source, target)[1]["copied"] == len(expected) - len(arrived)
            redis.client().flushall()
    code, value = found(source, target, *extra)
    assert (code, value["failed"], value["conflicts"]) == (0, [], [])
    with open_store(source) as here, open_store(target) as there:
        assert contents(there) == expected
        assert contents(here) == ({} if extra else expected)
    if way != "to-folder":
        assert {key.split(b":")[0] for key in redis.client().scan_iter()} <= {b"seepient", b"session-log"}


def _let_locks_end(redis: Server) -> None:
    """The locks that a killed run held in Redis end by themselves within 30 s; the test does not wait for that."""
    for pattern in ("sessionctl-lock:*", "session-lock:*"):
        for key in redis.client().scan_iter(pattern):
            assert 0 < redis.client().pttl(key) <= 30_000
            redis.client().delete(key)
