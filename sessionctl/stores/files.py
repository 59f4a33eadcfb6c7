"""The few ways in which files are read and written: by folder descriptor, never through a link, all or nothing."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from ..errors import SessionChanged, StoreError, WriteFailed
from ..keys import NAME_LIMIT, digest
from ..model import Stamp

READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RETRIES = 5
"""How often a refused rename is tried again: virus scanners and indexers hold a file for a moment."""
_CHUNK = 1 << 20


def stamp_of(status: os.stat_result) -> Stamp:
    """A file's stamp: inode, size and mtime in ns are its version, the mtime is its age."""
    return Stamp(
        (status.st_ino, status.st_size, status.st_mtime_ns), status.st_size, status.st_mtime_ns // 1_000_000, "mtime"
    )


def reason(error: OSError) -> str:
    """An OSError as a few words, without paths."""
    return (error.strerror or str(error)).lower() if error.errno != errno.ELOOP else "is a link"


def stamp_at(folder: int, name: str) -> Stamp | None:
    """The stamp of a regular file, None if it does not exist. Raises StoreError for anything else of that name."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot look at {name!r}: {reason(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{name!r} is not a regular file")
    return stamp_of(status)


@contextmanager
def directory(path: str | os.PathLike[str]) -> Iterator[int]:
    """A descriptor of a folder that is not a link. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Make a folder and what is missing above it, each for its owner alone, durably. Raises OSError."""
    missing = takewhile(lambda folder: not os.path.lexists(folder), (path, *path.parents))
    for folder in reversed(list(missing)):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        with suppress(OSError), directory(folder.parent) as above:
            sync_folder(above)


def chunks_at(folder: int, name: str, start: int = 0) -> Iterator[bytes]:
    """A file's bytes from ``start`` on, piece by piece. Raises OSError."""
    descriptor = os.open(name, READ, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        os.lseek(descriptor, start, os.SEEK_SET)
        while chunk := os.read(descriptor, _CHUNK):
            yield chunk
    finally:
        os.close(descriptor)


REMOVED: Final = "removed-"
"""How the last part of a temporary file's name begins where the file is a session that was being removed."""


def temporary_name(name: str, mark: str = "") -> str:
    """A name in the writers' own form for temporary files, so that every reader knows it for one.

    A name too long for that is replaced by its hash, behind a dot.
    """
    suffix = f".tmp.{time.time_ns() // 1_000_000}.{mark}{os.urandom(4).hex()}"
    if len(os.fsencode(name + suffix)) > NAME_LIMIT:
        name = "." + digest(os.fsencode(name))
    return name + suffix


def replace_at(
    folder: int,
    name: str,
    payload: bytes,
    expect: Stamp | None,
    *,
    check: bool,
    changed_at: int | None,
    mode: int = 0o600,
) -> Stamp:
    """Write a whole file through a temporary one in the same folder: old or new, never a part.

    With ``check`` the file must still be ``expect`` (None: not exist) right before the rename. Mode and owner of a file
    that is replaced are kept, a new one has ``mode``. Raises SessionChanged, WriteFailed; no temporary file stays.
    """
    temporary = temporary_name(name)
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise WriteFailed(f"cannot look at {name!r}: {reason(error)}") from error
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise WriteFailed(f"{name!r} is not a regular file")
    if check and (stamp_of(old).version if old else None) != (expect.version if expect else None):
        raise SessionChanged(repr(name))
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder
        )
    except OSError as error:
        raise WriteFailed(f"cannot write {name!r}: {reason(error)}") from error
    try:
        try:
            _write_all(descriptor, payload)
            if old is not None:
                if os.geteuid() == 0 and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            if changed_at is not None:
                os.utime(descriptor, ns=(changed_at * 1_000_000, changed_at * 1_000_000))
            os.fsync(descriptor)
            made = stamp_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        _move(folder, temporary, name, expect, check=check)
    except OSError as error:
        _discard(folder, temporary)
        raise WriteFailed(f"cannot write {name!r}: {reason(error)}") from error
    except BaseException:
        _discard(folder, temporary)
        raise
    sync_folder(folder)
    return made


def _move(folder: int, temporary: str, name: str, expect: Stamp | None, *, check: bool) -> None:
    if check and expect is None:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise SessionChanged(repr(name)) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
        else:
            _discard(folder, temporary)  # it is written: a second name that stays is a leftover, no failure
            return
    if check:
        now = stamp_at(folder, name)
        if (now.version if now else None) != (expect.version if expect else None):
            raise SessionChanged(repr(name))
    for attempt in range(_RETRIES):
        try:
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        except PermissionError:
            if attempt == _RETRIES - 1:
                raise
            time.sleep(0.02 * 2**attempt)


def append_at(folder: int, name: str, lines: bytes, expect: Stamp | None, *, check: bool) -> Stamp:
    """Append to a file in one write, made if missing, and wait until it is on disk.

    A write that falls short is taken back, unless somebody has appended after it. Raises SessionChanged, WriteFailed.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    if not check or expect is None:
        flags |= os.O_CREAT
    if check and expect is None:
        flags |= os.O_EXCL
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    except (FileExistsError, FileNotFoundError):
        raise SessionChanged(repr(name)) from None
    except OSError as error:
        raise WriteFailed(f"cannot write {name!r}: {reason(error)}") from error
    try:
        before = os.fstat(descriptor)
        if check and expect is not None and stamp_of(before).version != expect.version:
            raise SessionChanged(repr(name))
        written = 0
        try:
            written = os.write(descriptor, lines)
            if written < len(lines):
                raise OSError(errno.ENOSPC, "the write fell short")
            os.fsync(descriptor)
            if not before.st_size:
                sync_folder(folder)
        except OSError as error:
            if os.fstat(descriptor).st_size == before.st_size + written:
                with suppress(OSError):
                    os.ftruncate(descriptor, before.st_size)
                    os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise WriteFailed(f"cannot write {name!r}: {reason(error)}") from error
        return stamp_of(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def backdate_at(folder: int, name: str, expect: Stamp, changed_at: int) -> Stamp:
    """Set a file's mtime (ms) if it is still ``expect``, and return its stamp; ``expect`` where that cannot be done."""
    with suppress(OSError):
        descriptor = os.open(name, READ, dir_fd=folder)
        try:
            if stamp_of(os.fstat(descriptor)).version == expect.version:
                os.utime(descriptor, ns=(changed_at * 1_000_000, changed_at * 1_000_000))
                return stamp_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
    return expect


def remove_at(folder: int, name: str, expect: Stamp) -> None:
    """Remove a file if it is still ``expect``, looked at after it has been put where no writer can reach it by name.

    Raises FileNotFoundError, SessionChanged (it is back in its place then), WriteFailed.
    """
    aside = temporary_name(name, REMOVED)
    found = stamp_at(folder, name)
    if found is None:
        raise FileNotFoundError(name)
    if found.version != expect.version:
        raise SessionChanged(repr(name))
    try:
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WriteFailed(f"cannot remove {name!r}: {reason(error)}") from error
    try:
        moved = stamp_at(folder, aside)
    except StoreError:
        _put_back(folder, aside, name)
        raise
    if moved is None or moved.version != expect.version:
        _put_back(folder, aside, name)
        raise SessionChanged(repr(name))
    try:
        os.unlink(aside, dir_fd=folder)
    except OSError as error:
        _put_back(folder, aside, name)
        raise WriteFailed(f"cannot remove {name!r}: {reason(error)}") from error


def remove_link_at(folder: int, name: str) -> None:
    """Remove a symbolic link, never what it points to. Raises SessionChanged (it is no link any more), WriteFailed."""
    try:
        if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise SessionChanged(f"{name!r} is no link any more")
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        raise SessionChanged(f"{name!r} is gone") from None
    except OSError as error:
        raise WriteFailed(f"cannot remove {name!r}: {reason(error)}") from error


def _put_back(folder: int, aside: str, name: str) -> None:
    """Give a file its name back, unless another has it by now. Raises WriteFailed: it stays where it is."""
    try:
        try:
            os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # no hard links here
            if stamp_at(folder, name) is not None:
                raise FileExistsError from None
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            _discard(folder, aside)
    except FileExistsError:
        raise WriteFailed(
            f"{name!r} was written twice while it was removed; the older of the two is kept as {aside!r}"
        ) from None
    except (OSError, StoreError) as error:
        said = reason(error) if isinstance(error, OSError) else error
        raise WriteFailed(f"{name!r} could not be put back, it is kept as {aside!r}: {said}") from error


def _write_all(descriptor: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[os.write(descriptor, view) :]


def _discard(folder: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Make renames in a folder durable, where the file system can."""
    with suppress(OSError):
        os.fsync(folder)
