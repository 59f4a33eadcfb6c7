"""The contract of a store: keys, kinds, payload bytes, ages, locks and versions. A store never looks inside a payload.

A new store implements the abstract methods below and runs the contract tests (``tests/contract.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Self

from ..errors import SessionctlError, SessionNotFound, WriteFailed
from ..keys import quoted
from ..locks import Holder, Lease
from ..model import KINDS, Kind, Record, Ref, Stamp, Stray


class Want(Enum):
    """How much of each payload ``Store.records`` is to read."""

    NAMES = "names"
    TAIL = "tail"
    WHOLE = "whole"


class Any_(Enum):
    """The type of ANY."""

    ANY = "any"


ANY: Final = Any_.ANY
"""``expect=ANY``: write whatever is there now."""

LINK: Final = "is a link"
"""The note of a stray that is a symbolic link; ``remove_stray`` removes the link, never what it points to."""

TAIL = 2048
"""Bytes of a payload's end that ``Want.TAIL`` gives; a store gives the whole where that costs no more."""

BIG = 4 << 20
"""Bytes above which ``records`` leaves a payload to ``chunks``, so that memory stays bounded."""


class Put(NamedTuple):
    """One session to be written by ``Store.put_many``; the fields are the arguments of ``Store.put``."""

    ref: Ref
    payload: bytes
    expect: Stamp | Any_ | None = None
    changed_at: int | None = None
    ttl_ms: int | None = None


class Store(ABC):
    """A place where sessions are kept. A context manager; made by ``open_store``.

    ``url`` names it in output and holds no secret. ``kinds`` are those it can hold. Methods raise StoreError (exit code
    7) when the store cannot be reached, and leave it unchanged whenever they raise.
    """

    url: str
    kinds: tuple[Kind, ...] = KINDS

    def place(self) -> Hashable:
        """What tells the place that the URL names now from others: two that are equal hold the same sessions."""
        return self.url

    def overlaps(self, other: Store, kinds: Iterable[Kind] = KINDS) -> bool:
        """Whether what is written to one, of these kinds, may be a session of the other."""
        return self.place() == other.place()

    def scope(self) -> Hashable:
        """What ``lock_store`` keeps others away from: stores of one scope share those locks."""
        return self.place()

    def pin(self) -> None:
        """Read and write, from now on, only the very place that the URL names at this moment, if one is there."""

    # --- reading: takes no lock, changes nothing --------------------------------------------------------------------

    @abstractmethod
    def exists(self) -> bool:
        """Whether the place is there (a folder, a reachable server). False means empty, and made by the first write."""

    @abstractmethod
    def records(
        self, want: Want = Want.WHOLE, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
    ) -> Iterator[Record]:
        """Every session (or those of ``refs`` that exist), each once, in no order.

        One that cannot be read comes with ``error`` set; one that vanishes meanwhile is left out. A payload larger than
        BIG comes as None with no error: read it by ``chunks``. Raises StoreNotFound where there is no store.
        """

    def contents(self, kinds: Iterable[Kind] = KINDS) -> Iterator[Record]:
        """``records`` for those who only look: its stamps may not tell two versions apart, where that takes time."""
        return self.records(Want.WHOLE, kinds=kinds)

    def names(self, kinds: Iterable[Kind] = KINDS) -> Iterator[Ref]:
        """What every session is called, each once, in no order; nothing is told of those that are gone by now."""
        return (record.ref for record in self.records(Want.NAMES, kinds=kinds))

    def parts(self, count: int) -> Sequence[Store]:
        """This store for at most ``count`` processes: ``records`` of each part gives other sessions, all give all.

        Only the store itself where it cannot be shared out or holds too little for that to pay. The processes must be
        forked from this one.
        """
        return [self]

    def again(self) -> Store | None:
        """This store opened anew, for use in a process that is forked from this one; None where it cannot be."""
        return None

    def strays(self) -> Iterator[Stray]:
        """What else lies in the store: temporary files, links, sub-folders."""
        return iter(())

    def read_stray(self, stray: Stray) -> bytes:
        """The bytes of a temporary file. Raises StoreError."""
        raise NotImplementedError

    @abstractmethod
    def chunks(self, ref: Ref) -> Iterator[bytes]:
        """The whole payload piece by piece. Raises SessionNotFound, or StoreError when it cannot be read."""

    def rest(self, ref: Ref, start: int) -> bytes:
        """The payload's bytes from ``start`` on, none where it is shorter. Raises as ``chunks`` does."""
        return b"".join(self.chunks(ref))[start:]

    def get(self, ref: Ref, want: Want = Want.WHOLE) -> Record:
        """One session, whole whatever its size. Raises SessionNotFound, or StoreError when it cannot be read."""
        for record in self.records(want, [ref]):
            if record.error is None and record.payload is None and want is Want.WHOLE:
                record = record._replace(payload=b"".join(self.chunks(ref)))
            return record
        raise SessionNotFound(quoted(ref.key))

    def ages(self, refs: Sequence[Ref]) -> dict[Ref, int]:
        """The ages (ms, as ``Stamp.changed_at``) of those sessions whose stamps do not tell though the store knows.

        Where reading counts as use they must be asked for before anything else is.
        """
        return {}

    def same(self, payloads: Mapping[Ref, bytes]) -> Iterator[Ref]:
        """Those of these sessions that are here with exactly this payload, read anew."""
        for record in self.records(Want.WHOLE, tuple(payloads)):
            if record.error is not None:
                continue
            payload, at, equal = payloads[record.ref], 0, True
            for chunk in (record.payload,) if record.payload is not None else self.chunks(record.ref):
                equal = equal and payload[at : at + len(chunk)] == chunk
                at += len(chunk)
            if equal and at == len(payload):
                yield record.ref

    def caution(self) -> str | None:
        """What to know before reading from this store, in one line; None where reading leaves no trace."""
        return None

    def check_key(self, ref: Ref) -> None:
        """Raise InvalidKey if this store can never hold a session of that key."""

    def check_payload(self, ref: Ref, payload: bytes) -> None:
        """Raise UnsupportedKind if this store can hold no such payload."""

    def name_of(self, ref: Ref) -> Hashable:
        """What the session is called in here: of two whose names are equal, one at most can be kept."""
        return ref

    @abstractmethod
    def stamp(self, ref: Ref) -> Stamp | None:
        """The session's version now, None if it does not exist."""

    def checkpoints(self) -> Iterator[bytes]:
        """The content of every stored checkpoint (FORMATS.md section 2, Pending approvals)."""
        return iter(())

    def holders(self, refs: Iterable[Ref] | None = None) -> dict[Ref, Holder]:
        """Who holds which session's lock now; told without taking a lock. ``refs`` narrows the question."""
        return {}

    # --- writing ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def put(
        self,
        ref: Ref,
        payload: bytes,
        *,
        expect: Stamp | Any_ | None,
        changed_at: int | None = None,
        ttl_ms: int | None = None,
    ) -> Stamp:
        """Write a whole session, all or nothing, and return its stamp.

        ``expect`` is the stamp it must still have, None if it must not exist, ANY for whatever; else SessionChanged.
        ``changed_at`` (ms) becomes the payload's age and ``ttl_ms`` its remaining life, where the store keeps them;
        ``ttl_ms=None`` writes a payload that does not expire.
        """

    def put_many(self, items: Sequence[Put]) -> Iterator[Stamp | SessionctlError]:
        """``put`` each item; yields for each, in order, its stamp or the error that ``put`` would have raised.

        The stamp's version may be the front part only of what ``put`` gives, where the rest takes time to make.
        A store that can write several at once, each still all or nothing, does so here.
        """
        for item in items:
            try:
                yield self.put(*item[:2], expect=item.expect, changed_at=item.changed_at, ttl_ms=item.ttl_ms)
            except SessionctlError as error:
                yield error

    @abstractmethod
    def append(self, ref: Ref, lines: bytes, *, expect: Stamp | Any_ | None) -> Stamp:
        """Append whole lines (each ending in ``\\n``) to a log, in one write, durably; ``expect`` as for ``put``."""

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        """Give a session back the age (ms) that it had before an append, if it is still ``expect``; returns its stamp.

        Does nothing where the store cannot do that.
        """
        return expect

    @abstractmethod
    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        """Remove a session and its leftovers if it is still the version ``expect``.

        Raises SessionChanged (it is another version), SessionNotFound (it is gone).
        """

    def remove_stray(self, stray: Stray) -> None:
        """Remove something that is not a session, if it is still as it was seen. Raises SessionChanged."""
        raise NotImplementedError

    def keep_stray(self, stray: Stray, payload: bytes) -> None:
        """Keep the bytes of another store's temporary file, under its name; what is there already must be the same.

        A store without files keeps them as a session of that name. Raises WriteFailed.
        """
        assert stray.ref is not None
        ref = Ref(stray.name, stray.ref.kind)
        if self.exists() and self.stamp(ref) is not None:
            if self.get(ref).payload != payload:
                raise WriteFailed(f"another {quoted(ref.key)} is kept there already")
            return
        self.put(ref, payload, expect=None, changed_at=stray.stamp.changed_at if stray.stamp else None)
        if self.get(ref).payload != payload:
            raise WriteFailed(f"the copy of {quoted(ref.key)} is not the same")

    @abstractmethod
    def lock(self, ref: Ref, wait: float) -> Lease:
        """Take the exclusive lock, waiting up to ``wait`` seconds. Raises SessionLocked, naming the holder."""

    def break_lock(self, ref: Ref) -> bool:
        """Remove the session's lock if it is one that never ends by itself; False if there is none such.

        Only stores whose ``holders`` say so ("no expiry") have such locks.
        """
        return False

    @abstractmethod
    def lock_store(self, name: str) -> Lease:
        """Take the store's own lock of that name (``gc`` or ``migrate``) at once. Raises StoreBusy."""

    def close(self) -> None:
        """Give back what the store holds open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
