"""Locks inside a process and across the processes that use a folder."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sessionctl.errors import LockLost, SessionLocked, StoreError, WriteFailed
from sessionctl.locks import IN_PROCESS, FileLease, Holder, LocalLease, file_holder, held_names, lock_path

HOLD = """
import sys, time
from pathlib import Path
from sessionctl.locks import FileLease
lease = FileLease(Path(sys.argv[1]), sys.argv[2], "it", float(sys.argv[3]))
print("held", flush=True)
sys.stdin.readline()
lease.release()
"""


def holder(folder: Path, name: str = "n", wait: float = 0) -> subprocess.Popen[str]:
    """Another process that takes the lock and keeps it until its standard input ends."""
    arguments = [sys.executable, "-c", HOLD, str(folder), name, str(wait)]
    process = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_sentences() -> None:
    assert Holder("h:1").sentence(1000) == "locked by h:1"
    assert Holder("h:1", 1000, 61_000).sentence(13_000) == "locked by h:1, for 12 s, 48 s left"
    assert Holder("h:1", 9000, 1000, "no expiry").sentence(5000) == "locked by h:1, for 0 s, 0 s left, no expiry"


def test_a_lock_in_the_process() -> None:
    before = len(IN_PROCESS)
    with LocalLease("x", 0, "it") as lease:
        lease.check()
        with pytest.raises(SessionLocked, match="it is locked by this process"):
            LocalLease("x", 0, "it")
        with pytest.raises(SessionLocked):
            LocalLease("x", 0.05, "it")
        LocalLease("y", 0, "it").release()
    lease.release()
    LocalLease("x", 0, "it").release()
    assert len(IN_PROCESS) == before


def test_threads_take_turns() -> None:
    before, inside, most = len(IN_PROCESS), 0, 0

    def work() -> None:
        nonlocal inside, most
        with LocalLease("turns", 10, "it"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.002)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, len(IN_PROCESS)) == (1, before)


def test_another_process_is_excluded_and_named(tmp_path: Path) -> None:
    other = holder(tmp_path)
    try:
        with pytest.raises(SessionLocked, match=f"it is locked by {socket.gethostname()}:{other.pid}, for 0 s$"):
            FileLease(tmp_path, "n", "it", 0)
        found = held_names(tmp_path)
        assert set(found) == {"n"}
        assert found["n"].who == f"{socket.gethostname()}:{other.pid}"
        assert file_holder(tmp_path, "n") is not None
        assert file_holder(tmp_path, "other") is None
    finally:
        other.communicate("\n")
    with FileLease(tmp_path, "n", "it", 0) as lease:
        lease.check()
    assert held_names(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_waited_for_across_processes(tmp_path: Path) -> None:
    other = holder(tmp_path)
    assert other.stdin is not None
    threading.Timer(0.2, other.stdin.close).start()
    with FileLease(tmp_path, "n", "it", 10):
        pass
    other.wait()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    other = holder(tmp_path)
    other.kill()
    other.communicate()
    assert held_names(tmp_path) == {}
    FileLease(tmp_path, "n", "it", 0).release()
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_process_still_holds_its_lock(tmp_path: Path) -> None:
    other = holder(tmp_path)
    other.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(SessionLocked):
            FileLease(tmp_path, "n", "it", 0.1)
    finally:
        other.send_signal(signal.SIGCONT)
        other.communicate("\n")


def test_many_processes_one_at_a_time(tmp_path: Path) -> None:
    """Each adds one to a number in a file, reading and writing it under the lock."""
    number = tmp_path / "number"
    number.write_text("0")
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom sessionctl.locks import FileLease\n"
        "folder = Path(sys.argv[1])\nfor _ in range(15):\n"
        "    with FileLease(folder, 'n', 'it', 30):\n"
        "        n = int((folder / 'number').read_text()); time.sleep(0.001)\n"
        "        (folder / 'number').write_text(str(n + 1))\n"
    )
    several = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    assert number.read_text() == "45"
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_a_lock_whose_file_is_gone_is_lost(tmp_path: Path) -> None:
    with FileLease(tmp_path, "n", "it", 0) as lease:
        lock_path(tmp_path, "n").unlink()
        with pytest.raises(LockLost):
            lease.check()


def test_a_lock_in_whose_place_another_was_moved_is_lost_and_leaves_that_alone(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    with FileLease(theirs, "n", "it", 0):
        lease = FileLease(mine, "n", "it", 0)
        mine.rename(tmp_path / "away")
        theirs.rename(mine)
        with pytest.raises(LockLost):
            lease.check()
        lease.release()
        assert lock_path(mine, "n").exists()
        mine.rename(theirs)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a\0b", "\ud800", "x" * 10_000])
def test_no_name_becomes_a_path(tmp_path: Path, name: str) -> None:
    path = lock_path(tmp_path, name)
    assert path.parent == tmp_path / ".sessionctl" / "locks"
    FileLease(tmp_path, name, "it", 0).release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", [".sessionctl", ".sessionctl/locks"])
def test_a_lock_folder_that_is_a_link_is_refused(tmp_path: Path, which: str) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    (folder / which).parent.mkdir(parents=True)
    (folder / which).symlink_to(elsewhere)
    with pytest.raises(WriteFailed, match="is a link"):
        FileLease(folder, "n", "it", 0)
    assert list(elsewhere.iterdir()) == []
    assert len(IN_PROCESS) == 0


def test_notes_of_others(tmp_path: Path) -> None:
    """What lies among the notes is read without hanging and believed only where it is a note of somebody alive."""
    place = tmp_path / ".sessionctl" / "locks"
    place.mkdir(parents=True)
    note = {"name": "log:k", "pid": os.getpid(), "host": socket.gethostname(), "since": time.time_ns() // 1_000_000}
    (place / "a.json").write_text(json.dumps(note))
    if sys.platform == "linux":  # a process that began after the lock was taken has the number of one that is gone
        (place / "again.json").write_text(json.dumps(note | {"name": "again", "since": 1}))
    (place / "dead.json").write_text(json.dumps(note | {"name": "dead", "pid": 2**22 + 1}))
    (place / "far.json").write_text(json.dumps(note | {"name": "far", "host": "elsewhere", "pid": 2**22 + 1}))
    (place / "odd.json").write_text("[1]")
    (place / "torn.json").write_text('{"name"')
    (place / "list.json").write_text(json.dumps(note | {"pid": []}))
    (place / "huge.json").write_text(json.dumps(note | {"pid": 10**30}))
    (place / "negative.json").write_text(json.dumps(note | {"pid": -1}))
    (place / "link.json").symlink_to(place / "a.json")
    os.mkfifo(place / "pipe.json")
    assert set(held_names(tmp_path)) == {"log:k", "far"}


def test_a_full_disk_takes_the_note_but_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def full(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".json") and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", full)
    with FileLease(tmp_path, "n", "it", 0):
        assert file_holder(tmp_path, "n") is None
        other = subprocess.run(
            [sys.executable, "-c", HOLD, str(tmp_path), "n", "0"], input="\n", capture_output=True, text=True
        )
        assert "SessionLocked: it is locked by another process" in other.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StoreError, match="cannot lock it: Permission denied"):
        FileLease(tmp_path, "n", "it", 0)
    assert len(IN_PROCESS) == 0


def test_a_lease_may_be_released_by_another_thread(tmp_path: Path) -> None:
    lease = FileLease(tmp_path, "n", "it", 0)
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    FileLease(tmp_path, "n", "it", 0).release()
