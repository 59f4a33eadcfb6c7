"""Sessions in Redis or Valkey: documents are strings, logs are lists (FORMATS.md sections 1 and 2)."""

from __future__ import annotations

import re
import secrets
import time
import zlib
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

from redis import exceptions as failed

from ...codec.checkpoints import belongings
from ...errors import (
    InvalidKey,
    SessionChanged,
    SessionctlError,
    SessionLocked,
    SessionNotFound,
    StoreBusy,
    StoreError,
    UnsupportedKind,
    WriteFailed,
)
from ...keys import quoted
from ...locks import Holder, Lease
from ...model import KINDS, AgeSource, Kind, Record, Ref, Stamp
from ..base import BIG, TAIL, Any_, Put, Store, Want
from .address import Address
from .commands import (
    CLOCK,
    EMPTY,
    IN_FLIGHT,
    ITEM,
    LONGEST_IDLE,
    MANY,
    idle_time,
    lock_key,
    make_aged,
    pexpire,
    portions,
    reading,
    restore,
    rpushes,
    set_,
    up_to,
)
from .lease import LOCKS, RedisLease, holder_of
from .servers import HOPELESS, LOST, MOVED, Answer, Command, Link, Servers
from .values import (
    EMPTY_LOG,
    TYPES,
    UNKNOWN,
    Read,
    Size,
    clock_of,
    dumped,
    glue,
    is_wrong_type,
    join,
    lru_clock,
    other_type,
    read_of,
    record_of,
    split,
    stamp_of,
    version_of,
)
from .wording import missing_right, told

STORE_LOCKS = b"sessionctl-lock:"
"""Prefix of the store's own locks (``gc``, ``migrate``)."""

CHECKPOINTS = b"checkpoint:"
PENDING = b"checkpoint-pending-index:"

COUNT = 5000
"""Keys that one SCAN looks at: about a millisecond of the server."""

BATCH = 500
"""Sessions asked for in one go."""

WORTH_SHARING = 4000
"""Keys of a server from which on several processes read it faster than one."""

CHECKPOINTS_FRESH = 1.0
"""Seconds for which a look at all checkpoints serves removals, so that many of them do not cost a scan each."""

_RESERVED = (LOCKS, STORE_LOCKS, CHECKPOINTS, PENDING, b"sessionctl-new:")
_NO_AGE: tuple[int | None, AgeSource] = (None, "none")
_TICKS = 4  # tries for an answer within one second of the server's clock


class _Seen(NamedTuple):
    """What a transaction saw under its watch; ``version`` and ``payload`` only where the payload had to be read.

    Of a log: how many items it has, and those that were read: all, or the last.
    """

    there: bool
    version: tuple[object, ...] = ()
    payload: bytes | None = None
    length: int = 0
    items: Sequence[bytes] = ()


class RedisStore(Store):
    """Documents and logs of one Redis or Valkey server, Sentinel service or Cluster.

    - A log's payload is its list's items, each followed by ``\\n``. A last line without ``\\n`` is kept as an item that
      begins with ``\\n`` (white space to a JSON reader, and no line can hold it), so that it comes back byte for byte.
      An item that holds a raw newline elsewhere reads as two lines. An empty log cannot be stored: Redis has no empty
      lists, and to an agent an absent one is the same.
    - ``Stamp.version`` is type, size (logs: number of items), a digest of the end and a digest of all. Where less was
      read it is the front part of that, and a write compares, under WATCH, as much as the expected version tells.
      ``Stamp.size`` of a log that was not read whole is 0: the server does not say.
    - A log's age is the server's idle time; a document's is in its content. Nothing here touches idle times, unless
      ``reading_counts_as_use``.
    - A key of another type is reported and never written to, whatever ``expect`` says.
    """

    def __init__(self, address: Address, part: tuple[int, int] = (0, 1)) -> None:
        """``part``: of how many parts of the store this is which, from 0."""
        self.url = str(address)
        self._address = address
        self._part = part
        self._looks_free: bool | None = None
        self._servers = Servers(address)
        self._prefixes: dict[Kind, bytes] = {"document": address.documents.encode(), "log": address.logs.encode()}
        # The longest prefix first, each with the other things' longer ones.
        self._told_by = sorted(
            (
                (kind, prefix, tuple(other for other in _RESERVED if len(other) > len(prefix)))
                for kind, prefix in self._prefixes.items()
            ),
            key=lambda known: -len(known[1]),
        )
        # What a longer prefix of something else can make of a key with this prefix.
        self._longer: dict[Kind, tuple[bytes, ...]] = {
            kind: tuple(
                other
                for other in (*self._prefixes.values(), *_RESERVED)
                if other != prefix and other.startswith(prefix)
            )
            for kind, prefix in self._prefixes.items()
        }
        self._checkpoints: tuple[float, dict[str, list[tuple[bytes, tuple[str, ...]]]]] = (float("-inf"), {})

    @property
    def reading_counts_as_use(self) -> bool:
        """Whether the server counts our reading as use of a key: it lacks CLIENT NO-TOUCH (before Redis 7.2)."""
        self.exists()
        return self._servers.reading_counts_as_use

    def caution(self) -> str | None:
        if not self.reading_counts_as_use:
            return None
        return f"{self.url} has no CLIENT NO-TOUCH (Redis 7.2): reading a log counts as use of it; gc reads none"

    def close(self) -> None:
        self._servers.close()

    # --- keys -------------------------------------------------------------------------------------------------------

    def _key(self, ref: Ref) -> bytes:
        try:
            return self._prefixes[ref.kind] + ref.key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidKey(f"{quoted(ref.key)} is not text that a key can be made of") from None

    def _kind(self, key: bytes) -> Kind | None:
        """What a key holds, by the longest prefix that fits; None for locks and checkpoints."""
        for kind, prefix, others in self._told_by:
            if key.startswith(prefix) and len(key) > len(prefix):
                return None if key.startswith(others) else kind
        return None

    def _is(self, key: bytes, kind: Kind) -> bool:
        """Whether a key that has the prefix of that kind, and more, is one."""
        return not key.startswith(self._longer[kind]) or self._kind(key) == kind

    def _ref(self, key: bytes) -> Ref | None:
        """The session that a key stands for."""
        kind = self._kind(key)
        return None if kind is None else Ref(key[len(self._prefixes[kind]) :].decode("utf-8", "surrogateescape"), kind)

    def check_key(self, ref: Ref) -> None:
        self._checked(ref)

    def _checked(self, ref: Ref) -> bytes:
        """The key, if it stands for this session alone; raises InvalidKey for any other."""
        key = self._key(ref)
        if b"\0" in key:
            raise InvalidKey(f"{quoted(ref.key)} holds a NUL")
        if not ref.key or not self._is(key, ref.kind):
            raise InvalidKey(f"{quoted(ref.key)} cannot be told from other keys of this store")
        return key

    def check_payload(self, ref: Ref, payload: bytes) -> None:
        if ref.kind == "log" and not payload:
            raise UnsupportedKind(f"{quoted(ref.key)} {EMPTY_LOG}")

    def place(self) -> Hashable:
        return self.scope(), *self._prefixes.values()

    def overlaps(self, other: Store, kinds: Iterable[Kind] = KINDS) -> bool:
        """Prefixes that contain each other name keys of both."""
        if not isinstance(other, RedisStore) or self.scope() != other.scope():
            return False
        wanted = tuple(kinds)
        mine, its = ([store._prefixes[kind] for kind in wanted] for store in (self, other))
        return any(one.startswith(two) or two.startswith(one) for one in mine for two in its)

    def scope(self) -> Hashable:
        """The server's own name for itself, where we may ask it, and the database."""
        with told(self._address):
            if self._address.way == "cluster":
                server: Hashable = self._servers.again(self._servers.names)
            else:
                (info,) = self._servers.ask([(b"", CLOCK)])
                run = re.search(rb"run_id:(\w+)", info) if isinstance(info, bytes) else None
                server = run[1] if run else (self._address.way, self._address.servers)
        return server, self._address.db

    # --- reading ----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """True where the server answers; raises StoreError where it does not."""
        with told(self._address):
            self._servers.ping()
        return True

    def records(
        self, want: Want = Want.WHOLE, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
    ) -> Iterator[Record]:
        wanted = tuple(kind for kind in KINDS if kind in frozenset(kinds))
        found = self._found(wanted) if refs is None else self._named(refs, wanted)
        while batch := list(islice(found, BATCH)):
            yield from self._load(batch, want)

    def contents(self, kinds: Iterable[Kind] = KINDS) -> Iterator[Record]:
        """Without the digests in ``Stamp.version``."""
        found = self.names(kinds)
        while batch := list(islice(found, BATCH)):
            yield from self._load(batch, Want.WHOLE, digests=False)

    def names(self, kinds: Iterable[Kind] = KINDS) -> Iterator[Ref]:
        return self._found(tuple(kind for kind in KINDS if kind in frozenset(kinds)))

    def parts(self, count: int) -> Sequence[Store]:
        with told(self._address):
            sizes = [self._servers.size(server) for server in self._servers.again(self._servers.primaries)]
        if sum(sizes) < WORTH_SHARING:
            return [self]
        return [RedisStore(self._address, (part, count)) for part in range(count)]

    def again(self) -> RedisStore:
        return RedisStore(self._address)

    def _named(self, refs: Iterable[Ref], kinds: Sequence[Kind]) -> Iterator[Ref]:
        for ref in dict.fromkeys(refs):
            with suppress(InvalidKey):
                if ref.kind in kinds and ref.key and self._is(self._key(ref), ref.kind):
                    yield ref

    def _found(self, kinds: Sequence[Kind]) -> Iterator[Ref]:
        part, count = self._part
        for kind in kinds:
            length = len(self._prefixes[kind])
            for key in self._scan(self._prefixes[kind]):
                if (count == 1 or zlib.crc32(key) % count == part) and len(key) > length and self._is(key, kind):
                    yield Ref(key[length:].decode("utf-8", "surrogateescape"), kind)

    def _scan(self, prefix: bytes) -> Iterator[bytes]:
        """Every key with the prefix, once. A scan that loses its server starts again: cursors are the server's own."""
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in prefix) + b"*"
        seen: set[bytes] = set()
        with told(self._address):
            servers = self._servers.again(self._servers.primaries)
        for server in servers:
            keys = self._servers.scan(server, pattern, COUNT)
            while True:
                with told(self._address):
                    page = next(keys, None)
                if page is None:
                    break
                for key in page:
                    if key not in seen:
                        seen.add(key)
                        yield key

    def _load(self, refs: Sequence[Ref], want: Want, *, digests: bool = True) -> Iterator[Record]:
        """The records of a batch: sizes and ages first, then payloads in bounded portions."""
        left = refs
        for _ in range(3):  # a key that changes its type meanwhile is judged again
            sizes: dict[Ref, Size] = {}
            again: list[Ref] = []
            for ref, size in self._sizes(left, want):
                if isinstance(size, Record):
                    yield size
                elif size is None:
                    again.append(ref)
                else:
                    sizes[ref] = size
            for portion in portions(sizes):
                yield from self._payloads(portion, sizes, want, again, digests=digests)
            if not again:
                return
            left = yield from self._of_other_type(again)

    def _may_look(self) -> bool:
        """Whether commands do not count as use of a key (as on old servers they do)."""
        if self._looks_free is None:
            self._looks_free = not self.reading_counts_as_use
        return self._looks_free

    def _sizes(self, refs: Sequence[Ref], want: Want) -> Iterator[tuple[Ref, Size | Record | None]]:
        """Size, age and TTL of each; None for a key of another type, nothing for one that is gone."""
        logs = [self._key(ref) for ref in refs if ref.kind == "log"]
        ages = iter(self._ages(logs))  # first of all: on old servers the other questions reset them
        look = "LLEN" if want is not Want.NAMES or (logs and self._may_look()) else "TYPE"
        asked: list[tuple[bytes, Command]] = []
        for ref in refs:
            key = self._key(ref)
            asked += ((key, (look if ref.kind == "log" else "STRLEN", key)), (key, ("PTTL", key)))
        with told(self._address):
            answers = iter(self._servers.ask(asked))
        for ref in refs:
            age, source = next(ages) if ref.kind == "log" else _NO_AGE
            size, left = next(answers), next(answers)
            bad = size if isinstance(size, Exception) else left
            if is_wrong_type(bad) or (isinstance(size, bytes) and size not in (b"list", b"none")):
                yield ref, None
            elif isinstance(bad, Exception):
                yield ref, Record(ref, Stamp((), 0), error=self._unreadable(bad))
            elif left != -2 and (size or ref.kind == "document"):
                if isinstance(size, bytes):  # TYPE's answer
                    size = UNKNOWN
                yield ref, Size(size, age, source, None if left < 0 else left)

    def _unreadable(self, error: Exception) -> str:
        """Why one key cannot be read. A right that is missing for all keys is the store's error, and raised."""
        if isinstance(error, failed.NoPermissionError) and missing_right(error) is None:
            return "no right to this key (NOPERM)"
        with told(self._address):
            raise error

    def _of_other_type(self, refs: Sequence[Ref]) -> Generator[Record, None, list[Ref]]:
        """Records for those that have another type; returns those that have the right one by now."""
        keys = [self._key(ref) for ref in refs]
        with told(self._address):
            types = self._servers.ask([(key, ("TYPE", key)) for key in keys])
        left = []
        for ref, answer in zip(refs, types, strict=True):
            if isinstance(answer, Exception):
                yield Record(ref, Stamp((), 0), error=self._unreadable(answer))
            elif (type_ := answer.decode()) == TYPES[ref.kind]:
                left.append(ref)
            elif type_ != "none":
                yield Record(ref, Stamp((), 0), error=other_type(ref, type_), code="wrong-type-key")
        return left

    def _payloads(
        self, refs: Sequence[Ref], sizes: dict[Ref, Size], want: Want, again: list[Ref], *, digests: bool
    ) -> Iterator[Record]:
        asked: list[tuple[bytes, Command]] = []
        asking: list[Ref] = []
        for ref in refs:
            key, size = self._key(ref), sizes[ref]
            command = reading(key, ref, size.size, want)
            if command:
                asked.append((key, command))
                asking.append(ref)
            else:
                answer = self._long_log(key) if want is Want.WHOLE and ref.kind == "log" else None
                if answer is None:
                    yield Record(ref, stamp_of(ref, size, Read(size.size)))
                elif record := self._answered(ref, size, answer, want, again, digests=digests):
                    yield record
        for index, answer in self._stream(asked):
            ref = asking[index]
            if record := self._answered(ref, sizes[ref], answer, want, again, digests=digests):
                yield record

    def _answered(
        self, ref: Ref, size: Size, answer: Answer, want: Want, again: list[Ref], *, digests: bool
    ) -> Record | None:
        """The record that an answer gives; None, and kept for ``again``, where the key has another type; else gone."""
        if isinstance(answer, Exception):
            if not is_wrong_type(answer):
                return Record(ref, Stamp((), 0), error=self._unreadable(answer))
            again.append(ref)
        elif answer or (answer == b"" and size.size == 0):
            return record_of(ref, size, answer, want, digests=digests)
        return None

    def _stream(self, asked: Sequence[tuple[bytes, Command]]) -> Iterator[tuple[int, Answer]]:
        """The answers, one in memory at a time, each with the number of its question."""
        with told(self._address):
            yield from self._servers.stream(asked)

    def _long_log(self, key: bytes) -> Answer:
        """The items of a long log unless it is BIG: weighed in pieces, then read in one, so that it is of one time."""
        total = 0
        with told(self._address):
            for start in range(0, 1 << 62, MANY):
                items = self._servers.one(key, "LRANGE", key, start, start + MANY - 1)
                total += sum(map(len, items)) + len(items)
                if total > BIG:
                    return None
                if len(items) < MANY:
                    break
            return self._servers.one(key, "LRANGE", key, 0, -1) or None

    def get(self, ref: Ref, want: Want = Want.WHOLE) -> Record:
        for record in self.records(want, [ref]):
            if want is Want.WHOLE and record.payload is None and record.error is None:
                stamp = record.stamp
                read = self._whole(ref)
                stamp = stamp_of(ref, Size(0, stamp.changed_at, stamp.source, stamp.ttl_ms), read)
                return Record(ref, stamp, read.payload)
            return record
        raise SessionNotFound(quoted(ref.key))

    def _whole(self, ref: Ref) -> Read:
        """The payload in one answer, whatever its size: only so it is all of one time."""
        key = self._key(ref)
        with told(self._address):
            command = ("GET", key) if ref.kind == "document" else ("LRANGE", key, 0, -1)
            (answer,) = self._servers.ask([(key, command)])
            if is_wrong_type(answer):
                type_ = self._servers.one(key, "TYPE", key).decode()
                raise StoreError(f"{quoted(ref.key)} {other_type(ref, type_)}")
            if isinstance(answer, Exception):
                raise answer
        if answer is None or answer == []:
            raise SessionNotFound(quoted(ref.key))
        return read_of(ref, answer)

    def chunks(self, ref: Ref) -> Iterator[bytes]:
        payload = self._whole(ref).payload or b""
        for start in range(0, len(payload), 1 << 20):
            yield payload[start : start + (1 << 20)]

    def stamp(self, ref: Ref) -> Stamp | None:
        try:
            record = self.get(ref)
        except SessionNotFound:
            return None
        if record.error is not None:
            raise StoreError(f"{quoted(ref.key)} {record.error}")
        return record.stamp

    # --- locks and what else lies there -----------------------------------------------------------------------------

    def checkpoints(self) -> Iterator[bytes]:
        return (payload for _, payload in self._values(CHECKPOINTS))

    def _values(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of every string with the prefix that may be read."""
        keys = self._scan(prefix)
        while batch := list(islice(keys, BATCH)):
            with told(self._address):
                answers = self._servers.ask([(key, ("GET", key)) for key in batch])
            for key, answer in zip(batch, answers, strict=True):
                if isinstance(answer, bytes):
                    yield key, answer

    def ages(self, refs: Sequence[Ref]) -> dict[Ref, int]:
        """The idle times of documents, which their stamps leave out since a document's own times come first."""
        documents = [ref for ref in refs if ref.kind == "document"]
        found = zip(documents, self._ages([self._key(ref) for ref in documents]), strict=True)
        oldest = (time.time_ns() // 1_000_000_000 - LONGEST_IDLE) * 1000
        return {ref: at for ref, (at, _) in found if at is not None and at > oldest}

    def same(self, payloads: Mapping[Ref, bytes]) -> Iterator[Ref]:
        """By GET and LRANGE alone, in portions of bounded size."""
        left = iter(payloads.items())
        while portion := list(up_to(left, IN_FLIGHT)):
            asked: list[tuple[bytes, Command]] = []
            for ref, _ in portion:
                key = self._key(ref)
                asked.append((key, ("GET", key) if ref.kind == "document" else ("LRANGE", key, 0, -1)))
            for index, answer in self._stream(asked):
                ref, payload = portion[index]
                if payload == (join(answer) if isinstance(answer, list) else answer):
                    yield ref

    def holders(self, refs: Iterable[Ref] | None = None) -> dict[Ref, Holder]:
        """By GET and PTTL of the locks' keys. A lock without an expiry says so in its note."""
        pairs = self._locked() if refs is None else ((lock_key(ref), ref) for ref in dict.fromkeys(refs))
        found: dict[Ref, Holder] = {}
        while batch := list(islice(pairs, BATCH)):
            asked: list[tuple[bytes, Command]] = []
            for key, _ in batch:
                asked += ((key, ("GET", key)), (key, ("PTTL", key)))
            with told(self._address):
                answers = iter(self._servers.ask(asked))
            for _, ref in batch:
                value, left = next(answers), next(answers)
                if not isinstance(value, failed.NoPermissionError) and (holder := holder_of(value, left)):
                    found[ref] = holder
        return found

    def _locked(self) -> Iterator[tuple[bytes, Ref]]:
        """The sessions that are there and have a lock, each with the lock's key."""
        locks = self._scan(LOCKS)
        while batch := list(islice(locks, BATCH)):
            names = [(lock, lock[len(LOCKS) :].decode("utf-8", "surrogateescape")) for lock in batch]
            pairs = [(lock, Ref(name, kind)) for lock, name in names for kind in KINDS]
            with told(self._address):
                there = self._servers.ask([(key, ("EXISTS", key)) for _, ref in pairs for key in [self._key(ref)]])
            yield from (pair for pair, answer in zip(pairs, there, strict=True) if answer == 1)

    def break_lock(self, ref: Ref) -> bool:
        key = lock_key(ref)
        with told(self._address), self._servers.link(key) as link:
            (left,) = link.watch([key], ("PTTL", key))
            return left == -1 and link.transact([("UNLINK", key)]) is not None

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
        return self._put(Put(ref, payload, expect, changed_at, ttl_ms), unsure=False)

    def _put(self, put: Put, *, unsure: bool) -> Stamp:
        """``unsure``: an earlier try may have written it."""
        ref, payload, expect, changed_at, ttl_ms = put
        self.check_key(ref)
        key = self._key(ref)
        dump = None if changed_at is None else self._dump(put)
        steps: list[Command]
        if dump is not None and changed_at is not None:
            steps = [restore(key, dump, idle_time(self._clock_at(key), changed_at), ttl_ms, "REPLACE")]
        elif ref.kind == "document":
            steps = [set_(key, payload, ttl_ms)]
        else:
            steps = [("UNLINK", key), *rpushes(key, split(payload, ref)), *pexpire(key, ttl_ms)]
        self._guarded(
            ref, expect, lambda link, seen: steps, lambda seen: seen.payload == payload, len(payload), unsure=unsure
        )
        (stamp,) = self._stamped([put], digests=True)
        return stamp

    def _stamped(self, written: Sequence[Put], *, digests: bool) -> list[Stamp]:
        """The stamps of what was just written, with the ages that the server now tells."""
        keys = [self._key(put.ref) for put in written if put.ref.kind == "log"]
        ages = iter(self._ages(keys))
        stamps = []
        for put in written:
            if put.ref.kind == "document":
                age, length, end = _NO_AGE, len(put.payload), put.payload[-TAIL:]
            else:
                items = split(put.payload, put.ref)
                age, length, end = next(ages), len(items), items[-1]
            read = Read(length, end, put.payload) if digests else Read(length)
            stamps.append(Stamp(version_of(put.ref.kind, read), len(put.payload), *age, put.ttl_ms))
        return stamps

    def _ages(self, keys: Sequence[bytes]) -> list[tuple[int | None, AgeSource]]:
        """Since when (ms) each has not been used. Asked again if the server's clock went on meanwhile."""
        if not keys:
            return []
        questions: list[tuple[bytes, Command]] = [(key, ("OBJECT", "IDLETIME", key)) for key in keys]
        clock = (keys[0], CLOCK)
        for _ in range(_TICKS):
            with told(self._address):
                before, *idles, after = self._servers.ask([clock, *questions, clock])
            if lru_clock(before) == lru_clock(after):
                break
        at = clock_of(after)
        return [(at - idle * 1000, "idle") if isinstance(idle, int) else _NO_AGE for idle in idles]

    def _clock_at(self, key: bytes) -> int:
        with told(self._address):
            (info,) = self._servers.ask([(key, CLOCK)])
        return clock_of(info)

    def _dump(self, put: Put) -> bytes | None:
        """The value as DUMP gives it, made by the server under a name that exists only inside one transaction.

        None where the server or our rights do not allow it: the age is not kept then, as the stamp will say.
        """
        with told(self._address):
            for pause in self._servers.tries():
                (done,) = self._servers.transactions([self._dumping(put)])
                if not isinstance(done, (*LOST, *MOVED)):
                    break
                pause()
                self._servers.refresh()
            if isinstance(done, (failed.NoPermissionError, *LOST)) or "unknown command" in str(done).lower():
                return None  # what lost the connection may be the size of the value: the write itself tells
            if isinstance(done, Exception):
                raise done
        return dumped(done)

    def _dumping(self, put: Put) -> tuple[bytes, list[Command]]:
        key = self._key(put.ref)
        new = self._servers.beside(key, secrets.token_hex(8))
        is_log = put.ref.kind == "log"
        writes = rpushes(new, split(put.payload, put.ref)) if is_log else [set_(new, put.payload, None)]
        return key, [*writes, ("DUMP", new), ("UNLINK", new)]

    def append(self, ref: Ref, lines: bytes, *, expect: Stamp | Any_ | None) -> Stamp:
        if ref.kind != "log":
            raise UnsupportedKind(f"{quoted(ref.key)} is a document: it cannot be appended to")
        self.check_key(ref)
        key = self._key(ref)
        items = split(lines, ref)
        before = _Seen(False)
        new: list[bytes] = items

        def steps(link: Link, seen: _Seen) -> list[Command]:
            nonlocal before, new
            before, new = seen, items
            pushes = rpushes(key, items)
            if seen.items and seen.items[-1].startswith(b"\n"):
                new = [glue(seen.items[-1], items[0]), *items[1:]]
                pushes = [("LSET", key, -1, new[0]), *rpushes(key, new[1:])]
            # Under NO-TOUCH nothing but TOUCH counts as use, not even a write.
            return [*pushes, ("TOUCH", key), ("LRANGE", key, -1, -1), ("LLEN", key), ("PTTL", key)]

        def done(seen: _Seen) -> bool:
            start = before.length - (new is not items)  # a torn last item was gone on with
            return list(seen.items[start : start + len(new)]) == new

        answers = self._guarded(ref, expect, steps, done, len(lines))
        if answers is None:
            found = self.stamp(ref)
            if found is None:
                raise SessionChanged(quoted(ref.key))
            return found
        (last,), length, left = answers[-3:]
        whole = None if isinstance(expect, Any_) else (before.payload or b"") + lines
        (age,) = self._ages([key])
        return stamp_of(ref, Size(0, *age, left if left >= 0 else None), Read(length, last, whole))

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        """Give a log its idle time back, where DUMP and RESTORE are allowed. A document's age is in its content."""
        if ref.kind != "log" or expect.source != "idle":
            return expect
        key = self._key(ref)

        def steps(link: Link, seen: _Seen) -> list[Command]:
            dump, left = link.ask(("DUMP", key), ("PTTL", key))
            return [
                restore(key, dump, idle_time(self._clock_at(key), changed_at), left if left >= 0 else None, "REPLACE")
            ]

        try:
            self._guarded(ref, expect, steps, lambda seen: False, 0)
        except (StoreError, SessionChanged):
            return expect
        ((changed, source),) = self._ages([key])
        return expect._replace(changed_at=changed, source=source)

    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        """Remove a session; with a log go its checkpoints and their pending index (FORMATS.md section 2)."""
        key = self._key(ref)
        if self._kind(key) != ref.kind:
            raise SessionNotFound(quoted(ref.key))
        leftovers = self._belongings(ref.key) if ref.kind == "log" else []

        def steps(link: Link, seen: _Seen) -> list[Command]:
            return [("UNLINK", key)]

        self._guarded(ref, expect, steps, lambda seen: not seen.there, 0, gone=SessionNotFound)
        for checkpoint, pending in leftovers:
            self._remove_checkpoint(ref, checkpoint, pending)

    def _belongings(self, session: str) -> list[tuple[bytes, tuple[str, ...]]]:
        """The checkpoints of a session: their keys and pending ids."""
        looked, found = self._checkpoints
        if time.monotonic() - looked > CHECKPOINTS_FRESH:
            found = {}
            for key, payload in self._values(CHECKPOINTS):
                belongs = belongings(payload)
                if belongs is not None:
                    found.setdefault(belongs[0], []).append((key, belongs[1]))
            self._checkpoints = time.monotonic(), found
        return found.get(session, [])

    def _remove_checkpoint(self, ref: Ref, checkpoint: bytes, pending: Sequence[str]) -> None:
        own_id = checkpoint[len(CHECKPOINTS) :]
        try:
            with told(self._address):
                for name in pending:
                    index = PENDING + name.encode("utf-8", "surrogatepass")
                    if self._servers.ask([(index, ("GET", index))]) == [own_id]:
                        self._servers.one(index, "UNLINK", index)
                self._servers.one(checkpoint, "UNLINK", checkpoint)
        except StoreError as error:
            raise StoreError(
                f"{quoted(ref.key)} is removed, but not its checkpoint: {error}", hint=error.hint
            ) from None

    def _guarded(
        self,
        ref: Ref,
        expect: Stamp | Any_ | None,
        steps: Callable[[Link, _Seen], Sequence[Command]],
        done: Callable[[_Seen], bool],
        size: int,
        *,
        unsure: bool = False,
        gone: type[SessionctlError] | None = None,
    ) -> list[Answer] | None:
        """WATCH the key, look whether it is what ``expect`` says, and carry out ``steps`` in one MULTI.

        A write whose connection was lost may have happened: then it is looked at again, ``done`` tells whether it did,
        and only if it did not is it written again. Returns EXEC's answers, None where that second look sufficed.
        ``gone`` is raised where there is nothing.
        """
        key = self._key(ref)
        last: Exception = SessionChanged(quoted(ref.key))
        with told(self._address):
            for pause in self._servers.tries():
                wrote = False
                try:
                    with self._servers.link(key) as link:
                        seen = _look(link, key, ref, whole=unsure or isinstance(expect, Stamp))
                        if unsure and done(seen):
                            return None
                        if gone is not None and not seen.there:
                            raise gone(quoted(ref.key))
                        _compare(ref, expect, seen)
                        todo = steps(link, seen)
                        wrote = True
                        answers = link.transact(todo)
                        if answers is not None:
                            return answers
                except HOPELESS:
                    raise
                except LOST as error:
                    if wrote and unsure and size > ITEM:
                        raise WriteFailed(
                            f"the value of {quoted(ref.key)}, {size / 1_000_000:.1f} MB, was refused by the server: "
                            "it closed the connection twice",
                            hint="proto-max-bulk-len and client-query-buffer-limit bound what it takes",
                        ) from None
                    unsure = unsure or wrote
                    last = error
                except MOVED as error:
                    last = error
                pause()
                self._servers.refresh()
            raise last

    # --- many at once -----------------------------------------------------------------------------------------------

    def put_many(self, items: Sequence[Put]) -> Iterator[Stamp | SessionctlError]:
        """As the contract says. What must not exist yet is written in batches, which the server guards."""
        portion: list[Put] = []
        size = 0
        for item in items:
            portion.append(item)
            size += len(item.payload)
            if size > IN_FLIGHT or len(portion) == BATCH:
                yield from self._put_portion(portion)
                portion, size = [], 0
        yield from self._put_portion(portion)

    def _put_portion(self, items: Sequence[Put]) -> Iterator[Stamp | SessionctlError]:
        with told(self._address):
            new = {item.ref: item for item in reversed(items) if item.expect is None}  # of two for one key the first
            answers = self._put_at_once(new.values())
        done = [item for item in new.values() if answers.get(item.ref) == b"OK"]
        stamps = dict(zip((item.ref for item in done), self._stamped(done, digests=False), strict=True))
        for item in items:
            tried = new.get(item.ref) is item
            if tried and (stamp := stamps.pop(item.ref, None)) is not None:
                yield stamp
                continue
            try:
                yield self._put(item, unsure=tried and isinstance(answers.get(item.ref), LOST))
            except SessionctlError as error:
                yield error

    def _put_at_once(self, items: Iterable[Put]) -> dict[Ref, Answer]:
        """What the server answers to those new ones that can be written without a look at each."""
        asked: list[tuple[bytes, Command]] = []
        written: list[Ref] = []
        aged: list[tuple[bytes, Put]] = []
        logs: list[tuple[bytes, Put]] = []
        for item in items:
            try:
                key = self._checked(item.ref)
            except InvalidKey:
                continue
            if item.ref.kind == "log":
                if item.changed_at is not None and item.payload:
                    logs.append((key, item))
            elif item.changed_at is None:
                asked.append((key, (*set_(key, item.payload, item.ttl_ms), "NX")))
                written.append(item.ref)
            elif self._may_look():  # else MSET would be use, too
                aged.append((key, item))
        if logs:
            dumps = self._servers.transactions([self._dumping(item) for _, item in logs])
            clock = self._clock_at(logs[0][0])
            for (key, item), done in zip(logs, dumps, strict=True):
                if isinstance(done, list) and item.changed_at is not None:
                    asked.append((key, restore(key, dumped(done), idle_time(clock, item.changed_at), item.ttl_ms)))
                    written.append(item.ref)
        answers = dict(zip(written, self._servers.once(asked), strict=True))
        made = self._make_aged(aged) if aged else []
        return answers | dict(zip((item.ref for _, item in aged), made, strict=True))

    def _make_aged(self, pairs: Sequence[tuple[bytes, Put]]) -> Sequence[Answer]:
        """Write new documents with their idle times; the answers are b"OK" for those that were written.

        Empty strings are made of that age, then filled, which leaves their age alone: of all in one transaction, else
        of each by a script. That is so in a Cluster, where the keys of a transaction must share a slot, where one of
        them is there already, and where a right or a command is missing.
        """
        clock = self._clock_at(pairs[0][0])
        aged = [(key, item, idle_time(clock, item.changed_at or 0)) for key, item in pairs]
        if self._address.way != "cluster":
            made = [restore(key, EMPTY, idle, None) for key, _, idle in aged]
            filled: Command = ("MSET", *chain.from_iterable((key, item.payload) for key, item in pairs))
            ends = [step for key, item in pairs for step in pexpire(key, item.ttl_ms)]
            done = self._servers.make([key for key, _ in pairs], [*made, filled, *ends])
            if isinstance(done, (list, *LOST)):
                return [done[len(made)] if isinstance(done, list) else done] * len(pairs)
        return self._servers.once([(key, make_aged(key, item, idle)) for key, item, idle in aged])

    def lock(self, ref: Ref, wait: float) -> Lease:
        """The lock that agents take: it guards the document and the log of a key alike."""
        return RedisLease(self._servers, lock_key(ref), quoted(ref.key), wait)

    def lock_store(self, name: str) -> Lease:
        try:
            return RedisLease(self._servers, STORE_LOCKS + name.encode(), f"this store ({self.url})", 0)
        except SessionLocked as error:
            raise StoreBusy(str(error), hint=error.hint) from None


# --- under watch -----------------------------------------------------------------------------------------------------


def _look(link: Link, key: bytes, ref: Ref, *, whole: bool) -> _Seen:
    """Watch a key and see what is there. Raises StoreError for a key of another type."""
    if ref.kind == "log":
        reads: list[Command] = [("LRANGE", key, 0 if whole else -1, -1), ("LLEN", key)]
    else:
        reads = [("GET", key) if whole else ("STRLEN", key)]
    type_, found, *lengths = link.watch([key], ("TYPE", key), *reads)
    if isinstance(type_, Exception):
        raise type_
    if type_ == b"none":
        return _Seen(False)
    if type_.decode() != TYPES[ref.kind]:
        raise StoreError(f"{quoted(ref.key)} {other_type(ref, type_.decode())}")
    for answer in (found, *lengths):
        if isinstance(answer, Exception):
            raise answer
    if found is None or found == []:
        return _Seen(False)  # expired between the two
    items, length = (found, lengths[0]) if ref.kind == "log" else ((), 0)
    if not whole:
        return _Seen(True, length=length, items=items)
    read = read_of(ref, found)
    return _Seen(True, version_of(ref.kind, read), read.payload, length, items)


def _compare(ref: Ref, expect: Stamp | Any_ | None, seen: _Seen) -> None:
    """Raise SessionChanged unless what was seen is what was expected, as far as the expected version tells."""
    if isinstance(expect, Any_):
        return
    if expect is None:
        if seen.there:
            raise SessionChanged(f"{quoted(ref.key)} exists")
    elif not seen.there:
        raise SessionChanged(f"{quoted(ref.key)} is gone")
    elif not expect.version or seen.version[: len(expect.version)] != tuple(expect.version):
        raise SessionChanged(quoted(ref.key))
