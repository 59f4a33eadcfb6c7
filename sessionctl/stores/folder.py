"""Sessions as files in a folder: ``*.json`` documents and ``*.jsonl`` logs (FORMATS.md sections 1 and 2).

One class serves both kinds, since a folder can hold both and every rule about files is the same for them.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import (
    InvalidKey,
    SessionChanged,
    SessionLocked,
    SessionNotFound,
    StoreBusy,
    StoreError,
    StoreNotFound,
    UnsupportedKind,
    UsageError,
    WriteFailed,
)
from ..keys import SUFFIXES, file_name, folded, quoted
from ..locks import FileLease, Holder, Lease, held_names, sweep
from ..model import KINDS, Kind, Record, Ref, Stamp, Stray
from .base import BIG, LINK, TAIL, Any_, Store, Want
from .files import (
    READ,
    REMOVED,
    append_at,
    backdate_at,
    chunks_at,
    directory,
    make_folders,
    reason,
    remove_at,
    remove_link_at,
    replace_at,
    stamp_at,
    stamp_of,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    ScandirIterator = AbstractContextManager[Iterator[os.DirEntry[str]]]

_TEMPORARY = re.compile(r"(?P<name>.+)(?P<suffix>\.jsonl?)(\.tmp\.\d+(\.[^.]*)?)+\Z", re.DOTALL)
SHARED_FROM = 2000
"""Files in a folder from which on several processes read it faster than one."""
READ_AHEAD = 64 << 10
"""Bytes of a file that are read as fast as its end alone, since the system fetches as many anyway."""
_LEFT = "is a temporary file that its writer left"
_HASHED_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp\.\d+\.(removed-)?[0-9a-f]{8}\Z")


class FolderStore(Store):
    """The sessions of one folder. Nothing below it is looked into, and nothing outside it is touched.

    ``kinds`` limits it to documents or logs. The folder is made, mode 0700, by the first write.
    """

    def __init__(self, path: str | os.PathLike[str], kinds: tuple[Kind, ...] = KINDS) -> None:
        self.path = Path(path)
        self.kinds = kinds
        self.url = f"{kinds[0]}s:{self.path}" if len(kinds) == 1 else str(self.path)
        self._descriptor: int | None = None
        self._part, self._parts = 0, 1

    def place(self) -> Hashable:
        """Device and inode, whatever the folder is called; its path while there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return str(self.path.absolute())
        return status.st_dev, status.st_ino

    def pin(self) -> None:
        with suppress(StoreNotFound):
            self._folder()

    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def _folder(self, *, make: bool = False) -> int:
        """The folder's descriptor: all files are named relative to it, so that it cannot be swapped meanwhile."""
        if self._descriptor is None:
            if make:
                self._make()
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise StoreNotFound(
                    f"no session folder at {quoted(str(self.path), 300)}",
                    hint="name another with --store or SESSIONCTL_STORE",
                ) from None
            except NotADirectoryError:
                raise StoreError(f"{quoted(str(self.path), 300)} is not a folder") from None
            except OSError as error:
                raise StoreError(f"cannot open {quoted(str(self.path), 300)}: {reason(error)}") from error
        return self._descriptor

    def _make(self) -> None:
        try:
            make_folders(self.path)  # whatever else is there is told when it is opened
        except OSError as error:
            raise WriteFailed(f"cannot make {quoted(str(self.path), 300)}: {reason(error)}") from error

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def records(
        self, want: Want = Want.WHOLE, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
    ) -> Iterator[Record]:
        folder = self._folder()
        wanted = frozenset(self.kinds) & frozenset(kinds)
        for name, ref in self._named(refs, wanted) if refs is not None else self._found(wanted):
            record = _load(folder, name, ref, want)
            if record is not None:
                yield record

    def names(self, kinds: Iterable[Kind] = KINDS) -> Iterator[Ref]:
        return (ref for _, ref in self._found(frozenset(self.kinds) & frozenset(kinds)))

    def _named(self, refs: Iterable[Ref], kinds: Collection[Kind]) -> Iterator[tuple[str, Ref]]:
        folder = self._folder()
        for ref in dict.fromkeys(refs):
            if ref.kind not in kinds:
                continue
            try:
                name = file_name(ref.key, ref.kind, new=False)
            except InvalidKey:
                continue
            if _is_exact(folder, name):
                yield name, ref

    def _found(self, kinds: Collection[Kind]) -> Iterator[tuple[str, Ref]]:
        part, parts = self._part, self._parts
        suffixes = tuple(SUFFIXES[kind] for kind in kinds)
        with self._scan() as entries:
            for entry in entries:
                name = entry.name
                if not name.endswith(suffixes) or (parts > 1 and hash(name) % parts != part):
                    continue
                ref = ref_of(name)
                if ref is not None and entry.is_file(follow_symlinks=False):
                    yield name, ref

    def _scan(self) -> ScandirIterator:
        try:
            return os.scandir(self._folder())
        except OSError as error:
            raise StoreError(f"cannot list {quoted(str(self.path), 300)}: {reason(error)}") from error

    def parts(self, count: int) -> Sequence[Store]:
        with self._scan() as entries:
            if count < 2 or sum(1 for _ in islice(entries, SHARED_FROM)) < SHARED_FROM:
                return [self]
        return [self._shared(part, count) for part in range(count)]

    def again(self) -> FolderStore:
        return self._shared(0, 1) if self._descriptor is not None else FolderStore(self.path, self.kinds)

    def _shared(self, part: int, parts: int) -> FolderStore:
        """The names whose hash falls to ``part``: equal in all processes that were forked from this one."""
        store = FolderStore(self.path, self.kinds)
        store._part, store._parts = part, parts
        # Opened anew: processes that share a descriptor also share its place in the list of names.
        try:
            store._descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder())
        except OSError as error:
            raise StoreError(f"cannot open {quoted(str(self.path), 300)}: {reason(error)}") from error
        return store

    def strays(self) -> Iterator[Stray]:
        folder = self._folder()
        sessions = tuple(SUFFIXES.values())
        with self._scan() as entries:
            for entry in entries:
                name = entry.name
                if name.endswith(sessions) and entry.is_file(follow_symlinks=False):
                    continue
                ref = ref_of(name)
                if ref is not None:
                    if ref.kind in self.kinds:
                        yield Stray(name, _what(entry), ref)
                elif match := _TEMPORARY.match(name):
                    kind: Kind = "document" if match["suffix"] == ".json" else "log"
                    stamp = _stamp_or_none(folder, name)
                    if kind in self.kinds and stamp is not None:
                        removed = name.rpartition(".")[2].startswith(REMOVED)
                        note = "is a session whose removal was cut short" if removed else _LEFT
                        ref = Ref(match["name"], kind)
                        yield Stray(name, note, ref, "stray-temporary-file", stamp, removed)
                elif _HASHED_TEMPORARY.match(name):
                    yield Stray(name, "is a temporary file that sessionctl left", stamp=_stamp_or_none(folder, name))
                elif entry.is_dir(follow_symlinks=False) and name[0] != ".":
                    yield Stray(name, "is a sub-folder")

    def chunks(self, ref: Ref) -> Iterator[bytes]:
        name = self._name(ref)
        folder = self._folder()
        try:
            yield from chunks_at(folder, name)
        except FileNotFoundError:
            raise SessionNotFound(quoted(ref.key)) from None
        except OSError as error:
            raise StoreError(f"cannot read {quoted(ref.key)}: {reason(error)}") from error

    def rest(self, ref: Ref, start: int) -> bytes:
        try:
            return b"".join(chunks_at(self._folder(), self._name(ref), start))
        except FileNotFoundError:
            raise SessionNotFound(quoted(ref.key)) from None
        except OSError as error:
            raise StoreError(f"cannot read {quoted(ref.key)}: {reason(error)}") from error

    def read_stray(self, stray: Stray) -> bytes:
        """The bytes of a temporary file. Raises StoreError."""
        try:
            return b"".join(chunks_at(self._folder(), stray.name))
        except OSError as error:
            raise StoreError(f"cannot read {stray.name!r}: {reason(error)}") from error

    def check_key(self, ref: Ref) -> None:
        file_name(ref.key, ref.kind, new=False)

    def name_of(self, ref: Ref) -> Hashable:
        """The file's name, as a disk that folds case or Unicode forms compares it where this is such a disk."""
        name = file_name(ref.key, ref.kind, new=False)
        return folded(name) if _FOLDS_NAMES or self._folds() else name

    def _folds(self) -> bool:
        """Whether the disk was seen to fold case: only where our own sub-folder is there, as under a lock."""
        return os.path.isdir(self.path / ".sessionctl") and os.path.isdir(self.path / ".SESSIONCTL")

    def _new_name(self, ref: Ref) -> str:
        if ref.kind not in self.kinds:
            raise UnsupportedKind(f"{self.url} holds no {ref.kind}s")
        return file_name(ref.key, ref.kind)

    def _name(self, ref: Ref) -> str:
        if ref.kind not in self.kinds:
            raise SessionNotFound(quoted(ref.key))
        try:
            return file_name(ref.key, ref.kind, new=False)
        except InvalidKey:
            raise SessionNotFound(quoted(ref.key)) from None

    def stamp(self, ref: Ref) -> Stamp | None:
        for record in self.records(Want.NAMES, [ref], [ref.kind]):
            if record.error is not None:
                raise StoreError(f"cannot look at {quoted(ref.key)}: {record.error}")
            return record.stamp
        return None

    def checkpoints(self) -> Iterator[bytes]:
        """The checkpoints beside a folder of logs: ``../.checkpoints/checkpoints/*.json``."""
        if "log" not in self.kinds:
            return
        place = Path(os.path.abspath(self.path)).parent / ".checkpoints" / "checkpoints"
        with suppress(OSError), directory(place) as folder:
            for name in sorted(os.listdir(folder)):
                if name.endswith(".json"):
                    with suppress(OSError):
                        yield b"".join(chunks_at(folder, name))

    def holders(self, refs: Iterable[Ref] | None = None) -> dict[Ref, Holder]:
        held = held_names(self.path)
        found: dict[Ref, Holder] = {}
        for name, holder in held.items():
            kind, _, key = name.partition(":")
            for known in KINDS:
                if kind == known:
                    found[Ref(key, known)] = holder
        return found if refs is None else {ref: found[ref] for ref in refs if ref in found}

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        ref: Ref,
        payload: bytes,
        *,
        expect: Stamp | Any_ | None,
        changed_at: int | None = None,
        ttl_ms: int | None = None,
    ) -> Stamp:
        name = self._new_name(ref)
        check = not isinstance(expect, Any_)
        known = None if isinstance(expect, Any_) else expect
        return replace_at(self._folder(make=True), name, payload, known, check=check, changed_at=changed_at)

    def append(self, ref: Ref, lines: bytes, *, expect: Stamp | Any_ | None) -> Stamp:
        name = self._new_name(ref)
        check = not isinstance(expect, Any_)
        known = None if isinstance(expect, Any_) else expect
        return append_at(self._folder(make=True), name, lines, known, check=check)

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        return backdate_at(self._folder(), self._name(ref), expect, changed_at)

    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        folder, name = self._folder(), self._name(ref)
        found = stamp_at(folder, name)
        if found is None or not _is_exact(folder, name):
            raise SessionNotFound(quoted(ref.key))
        try:
            remove_at(folder, name, found if isinstance(expect, Any_) else expect)
        except FileNotFoundError:
            raise SessionNotFound(quoted(ref.key)) from None
        except SessionChanged:
            raise SessionChanged(quoted(ref.key)) from None

    def remove_stray(self, stray: Stray) -> None:
        """Remove a temporary file if it is as it was seen, or a link (never what it points to)."""
        folder = self._folder()
        if stray.stamp is not None:
            with suppress(FileNotFoundError):
                remove_at(folder, stray.name, stray.stamp)
        elif stray.note == LINK:
            remove_link_at(folder, stray.name)
        else:
            raise StoreError(f"{stray.name!r} {stray.note}; remove it by other means")

    def keep_stray(self, stray: Stray, payload: bytes) -> None:
        """Keep it as a temporary file, so that ``repair`` knows what it is."""
        if "/" in stray.name or not _TEMPORARY.match(stray.name):
            raise UnsupportedKind(f"{stray.name!r} is not the name of a temporary file")
        folder, at = self._folder(make=True), stray.stamp.changed_at if stray.stamp else None
        with suppress(SessionChanged):  # one is there: whether it is the same is seen next
            replace_at(folder, stray.name, payload, None, check=True, changed_at=at)
        if self.read_stray(stray) != payload:
            raise WriteFailed(f"{stray.name!r} is not the same at {quoted(str(self.path), 300)}")

    def _lease(self, name: str, what: str, wait: float) -> Lease:
        """A lock, which is named by path: the path must lead to the folder that is open, before and after."""
        opened = os.fstat(self._folder(make=True))
        self._check_place(opened)
        lease = FileLease(self.path, name, what, wait)
        try:
            self._check_place(opened)
        except StoreError:
            lease.release()
            raise
        return lease

    def _check_place(self, opened: os.stat_result) -> None:
        if self.place() != (opened.st_dev, opened.st_ino):
            raise StoreError(f"another folder was put in the place of {quoted(str(self.path), 300)}")

    def lock(self, ref: Ref, wait: float) -> Lease:
        # Logs whose keys make one file (a/b and a_b) are one session: they share its lock.
        key = file_name(ref.key, ref.kind, new=False).removesuffix(SUFFIXES[ref.kind])
        return self._lease(f"{ref.kind}:{key}", quoted(ref.key), wait)

    def lock_store(self, name: str) -> Lease:
        try:
            lease = self._lease(f"store:{name}", f"this store ({self.url})", 0)
        except SessionLocked as error:
            raise StoreBusy(str(error)) from None
        sweep(self.path)
        return lease


def _what(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return LINK
    return "is a folder" if entry.is_dir(follow_symlinks=False) else "is not a regular file"


def ref_of(name: str) -> Ref | None:
    """The session that a file's name stands for."""
    if name.endswith(".json") and name != ".json":
        return Ref(name[:-5], "document")
    return Ref(name[:-6], "log") if name.endswith(".jsonl") and name != ".jsonl" else None


def _stamp_or_none(folder: int, name: str) -> Stamp | None:
    try:
        return stamp_at(folder, name)
    except StoreError:
        return None


_FOLDS_NAMES = sys.platform in ("darwin", "win32")


def _is_exact(folder: int, name: str) -> bool:
    """Whether a file that is found by this name has it, and not another that a disk takes for the same (see folded)."""
    return not _FOLDS_NAMES or name in os.listdir(folder)


def _load(folder: int, name: str, ref: Ref, want: Want) -> Record | None:
    """Open, look, read, close; for the name alone only look. None for a file that is gone or is no regular file."""
    try:
        if want is Want.NAMES:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return Record(ref, stamp_of(status)) if stat.S_ISREG(status.st_mode) else None
        descriptor = os.open(name, READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return Record(ref, Stamp((), 0), error=reason(error))
        return Record(ref, stamp_of(status), error=reason(error)) if stat.S_ISREG(status.st_mode) else None
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        stamp = Stamp((status.st_ino, size, status.st_mtime_ns), size, status.st_mtime_ns // 1_000_000, "mtime")
        if not stat.S_ISREG(status.st_mode):
            return None
        if want is Want.TAIL and size > READ_AHEAD:
            return Record(ref, stamp, os.pread(descriptor, TAIL, size - TAIL), whole=False)
        if size > BIG:
            return Record(ref, stamp)
        payload = os.read(descriptor, size + 1)
        while len(payload) < size and (more := os.read(descriptor, size - len(payload) + 1)):
            payload += more
        if len(payload) != size:
            # It grew or shrank under our hands: look again, so that stamp and payload belong together.
            os.lseek(descriptor, 0, os.SEEK_SET)
            status = os.fstat(descriptor)
            payload = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))
            stamp = stamp_of(status)
        return Record(ref, stamp, payload)
    except OSError as error:
        return Record(ref, Stamp((), 0), error=reason(error))
    finally:
        os.close(descriptor)


def _path(url: str) -> Path:
    """The folder that ``scheme:PATH`` names; ``~`` is the home folder."""
    text = url.partition(":")[2]
    if text.startswith("//"):
        text = "/" + text.lstrip("/")
    if not text:
        raise UsageError(f"{quoted(url)} names no folder")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{quoted(url)}: no home folder is known by that name") from None


def open_file(url: str) -> FolderStore:
    """``file:PATH``: whatever the folder holds."""
    return FolderStore(_path(url))


def open_documents(url: str) -> FolderStore:
    """``documents:PATH``: documents only."""
    return FolderStore(_path(url), ("document",))


def open_logs(url: str) -> FolderStore:
    """``logs:PATH``: logs only."""
    return FolderStore(_path(url), ("log",))
