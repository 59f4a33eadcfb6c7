"""Sessions in memory, for tests and examples. ``memory:NAME`` is shared inside the process, ``memory:`` is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Iterator

from ..errors import SessionChanged, SessionLocked, SessionNotFound, StoreBusy
from ..keys import check_key, quoted
from ..locks import IN_PROCESS, Holder, Lease, LocalLease
from ..model import KINDS, Kind, Record, Ref, Stamp
from .base import BIG, TAIL, Any_, Store, Want


class MemoryStore(Store):
    """A store that ends with the process. Its locks hold between threads."""

    def __init__(self, name: str = "") -> None:
        self.url = f"memory:{name}"
        self._payloads: dict[Ref, tuple[bytes, Stamp]] = {}
        self._version = 0
        self._guard = threading.RLock()

    def place(self) -> Hashable:
        return id(self)

    def exists(self) -> bool:
        return True

    def records(
        self, want: Want = Want.WHOLE, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
    ) -> Iterator[Record]:
        wanted = frozenset(kinds)
        for ref in dict.fromkeys(refs) if refs is not None else tuple(self._payloads):
            found = self._live(ref)
            if found is None or ref.kind not in wanted:
                continue
            payload, stamp = found
            if want is Want.NAMES or (want is Want.WHOLE and stamp.size > BIG):
                yield Record(ref, stamp)
            elif want is Want.TAIL and stamp.size > TAIL:
                yield Record(ref, stamp, payload[-TAIL:], whole=False)
            else:
                yield Record(ref, stamp, payload)

    def _live(self, ref: Ref) -> tuple[bytes, Stamp] | None:
        found = self._payloads.get(ref)
        if found is None or found[1].ttl_ms is None:
            return found
        payload, stamp = found
        left = int(stamp.ttl_ms or 0) - time.time_ns() // 1_000_000  # kept as the moment of the end
        return (payload, stamp._replace(ttl_ms=left)) if left > 0 else None

    def chunks(self, ref: Ref) -> Iterator[bytes]:
        found = self._live(ref)
        if found is None:
            raise SessionNotFound(quoted(ref.key))
        yield found[0]

    def stamp(self, ref: Ref) -> Stamp | None:
        found = self._live(ref)
        return found[1] if found else None

    def put(
        self,
        ref: Ref,
        payload: bytes,
        *,
        expect: Stamp | Any_ | None,
        changed_at: int | None = None,
        ttl_ms: int | None = None,
    ) -> Stamp:
        check_key(ref.key)
        with self._guard:
            self._check(ref, expect)
            now = time.time_ns() // 1_000_000
            self._version += 1
            end = None if ttl_ms is None else now + ttl_ms
            stamp = Stamp((self._version,), len(payload), now if changed_at is None else changed_at, "mtime", end)
            self._payloads[ref] = (payload, stamp)
            return stamp._replace(ttl_ms=ttl_ms)

    def append(self, ref: Ref, lines: bytes, *, expect: Stamp | Any_ | None) -> Stamp:
        with self._guard:
            found = self._live(ref)
            before, ttl = (found[0], found[1].ttl_ms) if found else (b"", None)
            return self.put(ref, before + lines, expect=expect, ttl_ms=ttl)

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        with self._guard:
            found = self._live(ref)
            if found is None or found[1].version != expect.version:
                return expect
            payload, stamp = self._payloads[ref]
            self._payloads[ref] = (payload, stamp._replace(changed_at=changed_at))
            return expect._replace(changed_at=changed_at)

    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        with self._guard:
            if self._live(ref) is None:
                raise SessionNotFound(quoted(ref.key))
            self._check(ref, expect)
            del self._payloads[ref]

    def _check(self, ref: Ref, expect: Stamp | Any_ | None) -> None:
        if isinstance(expect, Any_):
            return
        found = self._live(ref)
        if (found[1].version if found else None) != (expect.version if expect else None):
            raise SessionChanged(quoted(ref.key))

    def holders(self, refs: Iterable[Ref] | None = None) -> dict[Ref, Holder]:
        asked = self._payloads if refs is None else refs
        return {ref: Holder("this process") for ref in asked if (id(self), ref) in IN_PROCESS}

    def lock(self, ref: Ref, wait: float) -> Lease:
        return LocalLease((id(self), ref), wait, quoted(ref.key))

    def lock_store(self, name: str) -> Lease:
        try:
            return LocalLease((id(self), name), 0, f"this store ({self.url})")
        except SessionLocked as error:
            raise StoreBusy(str(error)) from None


_shared: dict[str, MemoryStore] = {}


def open_memory(url: str) -> MemoryStore:
    """``memory:`` (a new store) or ``memory:NAME`` (one for the process)."""
    name = url.partition(":")[2]
    if not name:
        return MemoryStore()
    return _shared.setdefault(name, MemoryStore(name))
