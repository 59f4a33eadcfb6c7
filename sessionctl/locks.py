"""Exclusive access to a session: in this process, and across processes on one file system.

(The lock that agents share through Redis is LoopEngine's own and lives with the Redis store, in ``RedisLease``.)
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from .errors import LockLost, SessionLocked, WriteFailed
from .keys import digest

POLL = 0.05
"""Seconds between two tries for a lock (FORMATS.md section 2: every 50 ms)."""


class Holder(NamedTuple):
    """Who holds a lock, as far as the lock tells. ``since`` and ``until`` are in ms, None: unknown, or no end."""

    who: str
    since: int | None = None
    until: int | None = None
    note: str = ""

    def sentence(self, now: int) -> str:
        """``locked by host:pid for 12 s, 18 s left``."""
        parts = [f"locked by {self.who}"]
        if self.since is not None:
            parts.append(f"for {max(0, now - self.since) / 1000:.0f} s")
        if self.until is not None:
            parts.append(f"{max(0, self.until - now) / 1000:.0f} s left")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)


class Lease:
    """A lock that is held. A context manager; ``check`` raises LockLost when it is no longer ours."""

    def check(self) -> None:
        """Raise LockLost if the lock has ended without us."""

    def release(self) -> None:
        """Give the lock back. Never raises for a lock that is already gone."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class _Table:
    """Mutexes by name, kept only while somebody holds or awaits one (no entry per name for ever)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def acquire(self, name: Hashable, wait: float) -> bool:
        with self._guard:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
        got = False
        try:
            got = lock.acquire(timeout=wait) if wait > 0 else lock.acquire(blocking=False)
        finally:
            if not got:
                self._leave(name)
        return got

    def release(self, name: Hashable) -> None:
        self._locks[name][0].release()
        self._leave(name)

    def _leave(self, name: Hashable) -> None:
        with self._guard:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)


IN_PROCESS = _Table()
"""All in-process locks; names are (store, key) pairs. Released by any thread, so that an event loop may hold one."""


class LocalLease(Lease):
    """A lock inside this process only; raises SessionLocked when it is not free within ``wait`` seconds."""

    def __init__(self, name: Hashable, wait: float, what: str) -> None:
        self._name = name
        self._held = IN_PROCESS.acquire(name, wait)
        if not self._held:
            raise SessionLocked(f"{what} is locked by this process")

    def release(self) -> None:
        if self._held:
            self._held = False
            IN_PROCESS.release(self._name)


class FileLease(Lease):
    """A lock across the processes that use a folder: a file lock under ``.sessionctl/``, and a note of who holds it.

    The file lock ends with its process, however that ends. The note lets readers tell without touching the lock; a note
    of a dead process on this host counts for nothing.
    """

    def __init__(self, folder: Path, name: str, what: str, wait: float) -> None:
        from filelock import FileLock, Timeout

        deadline = time.monotonic() + wait
        self._local = LocalLease((str(folder), name), wait, what)
        self._lock_path = lock_path(folder, name)
        self._mark: tuple[int, int] | None = None
        self._file = FileLock(self._lock_path, thread_local=False, poll_interval=POLL, mode=0o600)
        try:
            self._acquire(folder, deadline)
            self._write_note(name)
        except Timeout:
            self._local.release()
            holder = file_holder(folder, name)
            said = holder.sentence(time.time_ns() // 1_000_000) if holder else "locked by another process"
            raise SessionLocked(f"{what} is {said}") from None
        except OSError as error:
            self._give_up()
            raise WriteFailed(f"cannot lock {what}: {error.strerror or error} ({folder})") from error
        except BaseException:
            self._give_up()
            raise

    def _acquire(self, folder: Path, deadline: float) -> None:
        while True:
            try:
                self._make_folder()
                self._file.acquire(timeout=max(0.0, deadline - time.monotonic()))
                self._mark = self._found()
                return
            except (FileNotFoundError, FileExistsError):
                # Whoever releases the last lock removes the empty folder for locks, at any moment: make it again.
                locks = self._lock_path.parent
                if not folder.is_dir() or (locks.exists() and not locks.is_dir()):
                    raise

    def _found(self) -> tuple[int, int] | None:
        """What lies at the path now: another folder with another's lock may have been moved there."""
        try:
            status = os.stat(self._lock_path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _give_up(self) -> None:
        self._file.release()
        self._local.release()

    def _make_folder(self) -> None:
        for folder in (self._lock_path.parent.parent, self._lock_path.parent):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if folder.is_symlink():  # it could lead anywhere
                raise OSError(errno.ELOOP, f"{folder.name} is a link")

    def _write_note(self, name: str) -> None:
        note = {"name": name, "pid": os.getpid(), "host": _host(), "since": time.time_ns() // 1_000_000}
        # A lock without its note still locks: on a full disk, sessions must be removable.
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(_note_path(self._lock_path), flags, 0o600)
            try:
                os.write(descriptor, json.dumps(note).encode())
            finally:
                os.close(descriptor)

    def check(self) -> None:
        if not self._file.is_locked or self._mark is None or self._found() != self._mark:
            raise LockLost("the lock file is gone; nothing more is written under it")

    def release(self) -> None:
        if not self._file.is_locked:
            return
        if self._found() == self._mark:
            # Unlinked while it is held: whoever gets hold of the old inode sees that it has no name and tries again.
            for path in (_note_path(self._lock_path), self._lock_path):
                with suppress(OSError):
                    path.unlink()
        self._file.release()
        for folder in (self._lock_path.parent, self._lock_path.parent.parent):
            with suppress(OSError):
                folder.rmdir()
        self._local.release()


def lock_path(folder: Path, name: str) -> Path:
    """Where the lock of a name lies. The name is hashed: no text from outside becomes a path."""
    return folder / ".sessionctl" / "locks" / f"{digest(name.encode(errors='surrogatepass'))}.lock"


def sweep(folder: Path) -> None:
    """Remove the locks that processes left in a folder when they were killed; each is taken before it is removed."""
    from filelock import FileLock, Timeout

    for path in {left.with_suffix(".lock") for left in (folder / ".sessionctl" / "locks").glob("*")}:
        if _read_note(_note_path(path)) is not None:
            continue
        lock = FileLock(path, thread_local=False, mode=0o600)
        with suppress(OSError, Timeout):
            lock.acquire(timeout=0)
            try:
                for left in (_note_path(path), path):
                    left.unlink(missing_ok=True)
            finally:
                lock.release()


def _note_path(lock: Path) -> Path:
    return lock.with_suffix(".json")


def file_holder(folder: Path, name: str) -> Holder | None:
    """Who holds a folder's lock of this name, from the note alone: reading never takes a lock."""
    holder = _read_note(_note_path(lock_path(folder, name)))
    return holder and holder._replace(note="")


def held_names(folder: Path) -> dict[str, Holder]:
    """All names of a folder that are locked now, with their holders."""
    found: dict[str, Holder] = {}
    with suppress(OSError):
        for note in (folder / ".sessionctl" / "locks").glob("*.json"):
            holder = _read_note(note)
            if holder is not None:
                found[holder.note] = holder._replace(note="")
    return found


def _read_note(path: Path) -> Holder | None:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            note = json.loads(file.read(_NOTE_LIMIT))
        name, pid, host, since = str(note["name"]), int(note["pid"]), str(note["host"]), int(note["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if pid <= 0 or (host == _host() and (not _alive(pid) or _began_after(pid, since))):
        return None
    return Holder(f"{host}:{pid}", since, None, name)


_NOTE_LIMIT = 8192
"""Bytes: more is no note of ours."""


@lru_cache(maxsize=1)
def process_space() -> str:
    """Names the boot and the space of process ids that this process lives in; empty where the system does not tell.

    Only of a process of the same space can be told whether it is alive: two containers may share a host's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return digest(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode())[:8]
    except OSError:
        return ""


def _host() -> str:
    import socket  # commands that only read do without

    return socket.gethostname()


def is_dead(host: str, space: str, pid: int) -> bool:
    """Whether this process certainly does not live any more."""
    return bool(space) and space == process_space() and host == _host() and not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


_SKEW = 60_000
"""ms by which a clock may have been set since a note was written."""


def _began_after(pid: int, since: int) -> bool:
    """Whether the process of this id is younger than ``since`` (ms): another one that was given the number again."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False  # the system does not tell
    return time.time_ns() // 1_000_000 - age * 1000 > since + _SKEW
