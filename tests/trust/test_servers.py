"""A Redis that dies, fails over, is full, read-only or slow while gc or migrate is at work: nothing by halves."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server, free_port, sentinel_pair, until
from tests.stored import DAY, document, message
from tests.terminal import COMMAND, environment

COUNT = 60
TEXT = "x" * 240_000
"""So large that not all fit into one batch."""


class Flaky:
    """A server that keeps what it was told on disk, and what can happen to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.start()

    def start(self) -> None:
        self.server = Server(self.folder, "appendonly yes", "appendfsync no", port=self.port)
        self.client = self.server.client()

    def killed(self) -> Callable[[], None]:
        self.server.stop()
        return self.start

    def restarted(self) -> Callable[[], None]:
        self.server.stop()
        self.start()
        return lambda: None

    def full(self) -> Callable[[], None]:
        self.client.config_set("maxmemory", 1)
        return lambda: self.client.config_set("maxmemory", 0)  # type: ignore[return-value]

    def read_only(self) -> Callable[[], None]:
        self.client.replicaof("127.0.0.1", str(free_port()))
        return lambda: self.client.replicaof("NO", "ONE")  # type: ignore[return-value]

    def slow(self) -> Callable[[], None]:
        self.client.client_pause(1500, all=True)
        return lambda: None


FAULTS = ["killed", "restarted", "full", "read_only", "slow"]
TELLS = {
    "killed": ("refused", "connection", "answer"),
    "restarted": ("connection", "lost", "refused", "loading", "lock"),
    "full": ("memory", "OOM"),
    "read_only": ("READONLY", "read-only"),
    "failed_over": ("READONLY", "read-only", "connection", "lost", "lock"),
}


@pytest.fixture
def flaky() -> Iterator[Flaky]:
    folder = Path(tempfile.mkdtemp(prefix="sessionctl-flaky-"))
    made = Flaky(folder)
    yield made
    made.server.stop()
    shutil.rmtree(folder, ignore_errors=True)


def sessions(folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    for number in range(COUNT):
        document(folder, f"s{number}", age=9 * DAY, messages=[message("user", TEXT)])
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in folder.glob("*.json")}


def stored(client: Any) -> dict[str, bytes]:
    prefix = b"seepient:session:"
    return {key[len(prefix) :].decode(): client.get(key) for key in client.keys(prefix + b"*")}


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment())


def end(process: subprocess.Popen[str], fault: str) -> None:
    """It ends by itself, with an exit code and words that say what is the matter."""
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 6, 7, 8), err
    assert "Traceback" not in err
    if process.returncode:
        assert fault in TELLS and any(word in out + err for word in TELLS[fault]), err


def again(client: Any, done: Callable[[], bool], *arguments: str | Path) -> None:
    """A second run completes. Locks that the first could not give back end by themselves; here at once."""
    for lock in client.scan_iter("*lock:*"):
        assert 0 < client.pttl(lock) <= 30_000
        client.delete(lock)
    process = start(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert done(), err


@pytest.mark.parametrize("fault", FAULTS)
def test_migrate(flaky: Flaky, tmp_path: Path, fault: str) -> None:
    source = tmp_path / "source"
    before = sessions(source)
    arguments = ("migrate", source, flaky.server.url(), "--delete-source", "-y")
    process = start(*arguments)
    until(lambda: flaky.client.dbsize() >= 8 or process.poll() is not None, "the first copies")  # type: ignore[operator]
    undo = getattr(flaky, fault)()
    end(process, fault)
    undo()
    there, here = stored(flaky.client), files(source)
    assert there.keys() | here.keys() == before.keys(), "a session is lost"
    assert all(payload == before[key] for key, payload in (*there.items(), *here.items()))
    again(flaky.client, lambda: (stored(flaky.client), files(source)) == (before, {}), *arguments)


@pytest.mark.parametrize("fault", FAULTS)
def test_gc(flaky: Flaky, tmp_path: Path, fault: str) -> None:
    before = sessions(tmp_path / "source")
    for key, payload in before.items():
        flaky.client.set(f"seepient:session:{key}", payload)
    archive = tmp_path / "archive"
    arguments = ("gc", "--older-than", "1d", "-y", "-s", flaky.server.url(), "--archive", archive, "--lock-wait", "15s")
    process = start(*arguments)
    until(lambda: archive.exists() or process.poll() is not None, "the first copies")
    undo = getattr(flaky, fault)()
    end(process, fault)
    undo()
    there, kept = stored(flaky.client), files(archive)
    assert there.keys() | kept.keys() == before.keys(), "a session is lost"
    assert all(payload == before[key] for key, payload in (*there.items(), *kept.items()))
    again(flaky.client, lambda: (stored(flaky.client), files(archive)) == ({}, before), *arguments)


@contextmanager
def failing_over() -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """A store behind a Sentinel, the client of its primary, and what makes the replica the primary and gives that."""
    with sentinel_pair() as (primary, replica, sentinel):

        def fail_over() -> Any:
            sentinel.client().execute_command("SENTINEL", "FAILOVER", "mymaster")
            until(lambda: replica.client().info("replication")["role"] == "master", "the failover")
            until(lambda: primary.client().info("replication")["role"] == "slave", "the end of the old primary")
            until(lambda: sentinel.client().sentinel_masters()["mymaster"]["port"] == replica.port, "its news")
            return replica.client()

        yield f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster", primary.client(), fail_over


def test_migrate_through_a_failover(tmp_path: Path) -> None:
    """What the old primary had not passed on is lost to the new one, and is copied by the second run."""
    before = sessions(tmp_path / "source")
    with failing_over() as (url, client, fail_over):
        arguments = ("migrate", tmp_path / "source", url)
        process = start(*arguments)
        until(lambda: client.dbsize() >= 8 or process.poll() is not None, "the first copies")
        process.send_signal(signal.SIGSTOP)  # or it might be done before the failover is
        primary = fail_over()
        process.send_signal(signal.SIGCONT)
        end(process, "failed_over")
        assert stored(primary).items() <= before.items()
        again(primary, lambda: stored(primary) == before, *arguments)
    assert files(tmp_path / "source") == before


def test_gc_through_a_failover(tmp_path: Path) -> None:
    """What was removed may be there again; nothing is gone that is not in the archive."""
    before = sessions(tmp_path / "source")
    with failing_over() as (url, client, fail_over):
        for key, payload in before.items():
            client.set(f"seepient:session:{key}", payload)
        client.wait(1, 10_000)
        archive = tmp_path / "archive"
        arguments = ("gc", "--older-than", "1d", "-y", "-s", url, "--archive", archive, "--lock-wait", "15s")
        process = start(*arguments)
        until(lambda: archive.exists() or process.poll() is not None, "the first copies")
        process.send_signal(signal.SIGSTOP)  # or it might be done before the failover is
        primary = fail_over()
        process.send_signal(signal.SIGCONT)
        end(process, "failed_over")
        there, kept = stored(primary), files(archive)
        assert there.keys() | kept.keys() == before.keys(), "a session is lost"
        assert all(payload == before[key] for key, payload in (*there.items(), *kept.items()))
        again(primary, lambda: (stored(primary), files(archive)) == ({}, before), *arguments)
