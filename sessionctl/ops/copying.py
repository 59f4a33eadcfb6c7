"""Copying sessions in batches: each written all or nothing, read back, and looked at once more at its source.

Every write is guarded by the version at the target that it was decided for, so a run can end at any point: the next one
finds what is there and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from .. import codec
from ..errors import SessionChanged, SessionctlError, SessionLocked, SessionNotFound, StoreError, WriteFailed
from ..keys import quoted
from ..model import Kind, Record, Ref, Stamp
from ..stores.base import Put, Store, Want
from .gc import Failure, Protection, Skip, protection
from .patience import lock_patiently
from .select import Context, summarise
from .settle import RESOLUTION, Action, Mode, Relation, clashes, relation, same_version, settle

BATCH_BYTES = 8 << 20
"""Bytes of payload that are in hand at a time; a larger one is dealt with alone."""
BATCH_COUNT = 500
"""Sessions that are in hand at a time."""
REMOVE_COUNT = 50
"""The same where each is removed under its lock: what is held by others takes long, and is not told before the rest."""
TRIES = 4
"""How often a session is copied that changes while it is copied."""


class Options(msgspec.Struct, frozen=True):
    """How to copy. ``ttl`` (ms, None: no end) is the life of every copy unless ``keep_ttl``; ``lock_wait`` in seconds.

    ``guard`` is what keeps a session at the source from removal, where ``delete_source`` asks for it.
    """

    on_conflict: Mode = "skip"
    verify: bool = True
    delete_source: bool = False
    keep_ttl: bool = True
    ttl: int | None = None
    lock_wait: float = 15
    guard: Protection = Protection(wait_for_locks=True)


class Copy(NamedTuple):
    """A session that was (in a dry run: would be) copied; ``size`` is in bytes."""

    ref: Ref
    size: int


class Outcome(msgspec.Struct):
    """What was really done. ``identical`` sessions were there already, byte for byte.

    ``replaced`` are the versions at the target that gave way to copies; ``verified`` counts the copies that were read
    back. ``damaged`` says which sessions were copied that are damaged, ``lost_ttl`` which ones now live for ever
    because the target keeps no end of life, ``lost_age`` which logs have another age than at the source.
    """

    copied: list[Copy] = []
    replaced: dict[Ref, Stamp] = {}
    identical: list[Ref] = []
    skipped: list[Skip] = []
    conflicts: list[Skip] = []
    failed: list[Failure] = []
    damaged: list[Skip] = []
    lost_ttl: list[Ref] = []
    lost_age: list[Ref] = []
    deleted: list[Ref] = []
    verified: int = 0

    @property
    def bytes(self) -> int:
        return sum(copy.size for copy in self.copied)

    @property
    def told(self) -> set[Ref]:
        """The sessions of which it says what became of them."""
        parts = (self.copied, self.skipped, self.conflicts, self.failed)
        return {item.ref for part in parts for item in part}.union(self.identical)

    def add(self, other: Outcome) -> None:
        """Take over what was done elsewhere."""
        for name in self.__struct_fields__:
            mine, its = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                mine.extend(its)
            elif isinstance(mine, dict):
                mine.update(its)
            else:
                setattr(self, name, mine + its)

    def __reduce__(self) -> tuple[Callable[..., Outcome], tuple[object, ...]]:
        """For pickle: copies, which are many, as plain tuples, since those with names take ten times as long."""
        copied, *rest = (getattr(self, name) for name in self.__struct_fields__)
        return _outcome, ([(*ref, size) for ref, size in copied], *rest)

    def sort(self) -> None:
        """By key, whoever did it."""
        for name in self.__struct_fields__:
            if isinstance(mine := getattr(self, name), list):
                mine.sort()


def _outcome(copied: Iterable[tuple[str, Kind, int]], *rest: Any) -> Outcome:
    """What ``Outcome.__reduce__`` took apart."""
    return Outcome([Copy(Ref(key, kind), size) for key, kind, size in copied], *rest)


class Run:
    """One pass over the sessions, in batches."""

    def __init__(
        self,
        source: Store,
        target: Store,
        options: Options,
        outcome: Outcome,
        now: Callable[[], int],
        shown: Mapping[Ref, Stamp] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        *,
        dry: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self.outcome = outcome
        self._now = now
        self._shown = shown
        self._stopping = stopping
        self._dry = dry
        self._context: Context | None = None
        self._ages: dict[Ref, int] = {}  # of those sessions of a batch whose stamps do not tell
        self._all_new = False  # whether the target held nothing of the last batch
        self._read_at = 0  # since when (ms) the remaining lives that the source told have run
        self._errors: dict[Ref, StoreError] = {}  # what the target said when it could not write

    def batches(self, refs: Sequence[Ref], check: Callable[[], None]) -> Iterator[int]:
        """Copy them (what ``admit`` gave) in batches, each after a ``check``; yields how many sessions it had."""
        missing = dict.fromkeys(refs)
        count = REMOVE_COUNT if self._options.delete_source else BATCH_COUNT
        for start in range(0, len(refs), count):
            some = refs[start : start + count]
            self._ages = self._source.ages(some)  # first of all: on old servers reading changes them
            self._read_at = self._now()
            for batch in batches(self._source.records(Want.WHOLE, some)):
                if self._stopping():
                    return
                for record in batch:
                    del missing[record.ref]
                check()
                self._copy(batch)
                yield len(batch)
        self.outcome.skipped.extend(Skip(ref, "gone meanwhile") for ref in missing)

    def admit(self, refs: Sequence[Ref]) -> list[Ref]:
        """Those that the target can hold beside each other."""
        names: dict[Ref, Hashable] = {}
        for ref in dict.fromkeys(refs):
            try:
                self._target.check_key(ref)
                names[ref] = self._target.name_of(ref)
            except SessionctlError as error:
                self._fail(ref, error)
        clashing = clashes(names)
        for ref, other in clashing.items():
            self.outcome.conflicts.append(Skip(ref, f"it would become one with {quoted(other.key)} at the target"))
        return [ref for ref in names if ref not in clashing]

    def _fail(self, ref: Ref, error: SessionctlError) -> None:
        self.outcome.failed.append(Failure(ref, str(error), error.exit_code))

    def _copy(self, batch: list[Record]) -> None:
        """Copy a batch; what changes meanwhile, here or there, is looked at again."""
        ours: dict[Ref, _Ours] = {}
        for again in range(TRIES):
            changed = self._try(batch, ours, look=again > 0 or not self._all_new)
            if self._stopping():
                batch = [record for record in batch if record.ref in ours and record.ref in changed]
                break
            if not changed:
                return
            self._read_at = self._now()
            batch = list(self._source.records(Want.WHOLE, changed))
            for ref in sorted(set(changed).difference(record.ref for record in batch)):
                said = "gone meanwhile" + ("; the copy is of an earlier moment" if ref in ours else "")
                self.outcome.skipped.append(Skip(ref, said))
        for record in batch:
            if record.ref in ours:
                said = "changed" if self._stopping() else "kept changing"
                said += " while it was copied; the copy is of an earlier moment"
                self.outcome.failed.append(Failure(record.ref, said))
            else:
                self.outcome.conflicts.append(Skip(record.ref, "something else keeps taking its place at the target"))

    def _try(self, batch: list[Record], ours: dict[Ref, _Ours], *, look: bool) -> list[Ref]:
        """One try; gives back the sessions to try again. ``ours`` is what we wrote at the target.

        Without ``look`` they are taken to be new there: what is not is refused by the store and looked at next time.
        """
        here = {record.ref: record for record in map(self._whole, batch) if record is not None}
        found = self._found(here, ours) if look or self._dry else {}
        self._all_new = not found
        copies: dict[Ref, Copy] = {}
        gave_way: dict[Ref, Stamp] = {}
        puts: list[Put] = []
        for ref, record in here.items():
            there = found.get(ref)
            if there is None or there.action == "replace":
                payload = _payload(record)
                try:
                    self._target.check_payload(ref, payload)
                except SessionctlError as error:
                    self._fail(ref, error)
                    continue
                expect = None if there is None else there.stamp
                copies[ref] = Copy(ref, len(payload))
                if expect is not None and ref not in ours:
                    gave_way[ref] = expect
                puts.append(Put(ref, payload, expect, self._age(record), self._ttl(record)))
            elif there.action == "identical":
                self.outcome.identical.append(ref)
            else:
                kept = self.outcome.skipped if there.action == "skip" else self.outcome.conflicts
                kept.append(Skip(ref, there.reason))
        if self._dry:
            self.outcome.copied.extend(copies.values())
            self.outcome.replaced.update(gave_way)
            self._note_damage(here[ref] for ref in copies)
            self._remove_all(here, copies, found)
            return []
        again = self._write(puts, ours)
        self._all_new = self._all_new and not again
        self.outcome.replaced.update((ref, stamp) for ref, stamp in gave_way.items() if ref in ours)
        written = {put.ref: put.payload for put in puts if put.ref in ours and put.ref not in again}
        good = list(self._verified(written, ours) if self._options.verify else written)
        for now in self._source.records(Want.NAMES, good) if good else ():
            if not same_version(now.stamp, here[now.ref].stamp):
                again.append(now.ref)
        done = [ref for ref in good if ref not in again]
        self.outcome.copied.extend(copies[ref] for ref in done)
        self.outcome.verified += len(done) if self._options.verify else 0
        self._note_damage(here[ref] for ref in done)
        self._remove_all(here, done, found)
        return again

    def _remove_all(self, here: Mapping[Ref, Record], made: Iterable[Ref], found: Mapping[Ref, _There]) -> None:
        """Remove from the source, where asked, what was copied now and what was there already."""
        if not self._options.delete_source:
            return
        copies: dict[Ref, Stamp | None] = dict.fromkeys(made)
        copies |= {ref: there.stamp for ref, there in found.items() if there.action == "identical"}
        for ref, copy in copies.items():
            if self._stopping():
                return
            if self._dry:
                self._would_remove(here[ref], copy)
            else:
                self._remove(here[ref], copy)

    def _whole(self, record: Record) -> Record | None:
        """The record with its payload; None, and told, if it cannot be read."""
        if record.error is None and record.payload is None:
            try:
                return record._replace(payload=b"".join(self._source.chunks(record.ref)))
            except SessionNotFound:
                self.outcome.skipped.append(Skip(record.ref, "gone meanwhile"))
                return None
            except StoreError as error:
                record = record._replace(error=str(error))
        if record.error is not None:
            self.outcome.failed.append(Failure(record.ref, f"cannot be read: {record.error}"))
            return None
        return record

    def _found(self, here: Mapping[Ref, Record], ours: Mapping[Ref, _Ours]) -> dict[Ref, _There]:
        """What the target holds of these already, one payload in hand at a time."""
        if not here or not self._target.exists():
            return {}
        return {
            there.ref: self._judge(here[there.ref], there, ours.get(there.ref))
            for there in self._target.records(Want.WHOLE, tuple(here))
        }

    def _judge(self, here: Record, there: Record, ours: _Ours | None) -> _There:
        related: Relation = "other"
        is_ours = False
        if there.code:
            return _There("conflict", there.stamp, f"the target holds what is no session: {there.error}")
        if there.error is None:
            try:
                related = relation(_payload(here), self._pieces(there))
                is_ours = ours is not None and relation(ours.payload, self._pieces(there)) == "same"
            except SessionctlError as error:
                there = there._replace(error=str(error))
        if related == "same" and ours is None:
            return _There("identical", there.stamp)
        if is_ours:
            return _There("replace", there.stamp)
        context = Context(self._now(), {}, {}, {})
        action, reason = settle(
            self._options.on_conflict,
            summarise(self._source, here, context),
            summarise(self._target, there, context),
            related,
        )
        if action == "replace" and self._shown is not None:
            shown = self._shown.get(there.ref)
            if shown is None or not same_version(shown, there.stamp):
                return _There("conflict", there.stamp, "it changed at the target after it was shown")
        return _There(action, there.stamp, reason)

    def _pieces(self, there: Record) -> Iterable[bytes]:
        return self._target.chunks(there.ref) if there.payload is None else (there.payload,)

    def _age(self, record: Record) -> int | None:
        """When the session was last changed: by its store, else by the times in the document."""
        at = record.stamp.changed_at
        if at is None:
            at = self._ages.get(record.ref)
        if at is None and record.ref.kind == "document":
            outline = codec.outline(record.ref, _payload(record), self._now())
            times = (outline.updated_at, outline.active_at, outline.newest_message_at)
            at = max((time for time in times if time is not None), default=None)
        return at

    def _ttl(self, record: Record) -> int | None:
        """The life of the copy, in ms, as of now."""
        if not self._options.keep_ttl:
            return self._options.ttl
        left = record.stamp.ttl_ms
        return None if left is None else max(1, left - (self._now() - self._read_at))

    def _write(self, puts: list[Put], ours: dict[Ref, _Ours]) -> list[Ref]:
        """Write them, each all or nothing; gives back those to look at again.

        Their place at the target changed meanwhile, or they could not be written, and a second look may tell why.
        Raises StoreError if the store is lost.
        """
        again: list[Ref] = []
        new = [put for put in puts if put.expect is None]
        old = [put for put in puts if put.expect is not None]
        written = zip(new, self._target.put_many(new), strict=True)
        for put, result in chain(written, ((put, self._replace(put)) for put in old)):
            if isinstance(result, Stamp):
                self._note_losses(put, result, again=put.ref in ours)
                ends = None if put.ttl_ms is None else self._now() + put.ttl_ms
                ours[put.ref] = _Ours(result, put.payload, ends)
            elif isinstance(result, SessionChanged):
                again.append(put.ref)
            elif isinstance(result, StoreError) and not isinstance(result, WriteFailed):
                self._target.exists()  # raises if it is lost
                if put.ref in self._errors:
                    self._fail(put.ref, result)
                else:
                    self._errors[put.ref] = result
                    again.append(put.ref)
            else:
                self._fail(put.ref, result)
        return again

    def _note_losses(self, put: Put, made: Stamp, *, again: bool) -> None:
        """What the store did not keep of a copy, going by its stamp."""
        if again:
            return
        if put.ttl_ms is not None and made.ttl_ms is None:
            self.outcome.lost_ttl.append(put.ref)
        if put.ref.kind == "log" and put.changed_at is not None:
            at = made.changed_at
            if at is None or abs(at - put.changed_at) > 2 * RESOLUTION:
                self.outcome.lost_age.append(put.ref)

    def _replace(self, put: Put) -> Stamp | SessionctlError:
        """Put a session in another's place, under its lock; nothing once the run is to stop."""
        try:
            if self._stopping():
                raise SessionChanged(f"{quoted(put.ref.key)} was not looked at again")
            with lock_patiently(self._target, put.ref, self._options.lock_wait, self._stopping) as lease:
                lease.check()
                return next(self._target.put_many([put]))
        except SessionctlError as error:
            return error

    def _verified(self, written: Mapping[Ref, bytes], ours: dict[Ref, _Ours]) -> list[Ref]:
        """Read back what was written. What is not the same is said, and removed if nobody has touched it since.

        What cannot be read is no reason to remove it: it may be all right.
        """
        good = list(self._target.same(written)) if written else []
        for ref in written.keys() - set(good):
            try:
                record = self._target.get(ref)
            except SessionctlError as error:
                ends = ours[ref].ends
                if isinstance(error, SessionNotFound) and ends is not None and ends <= self._now():
                    self.outcome.skipped.append(Skip(ref, "its life ended meanwhile"))
                    continue
                record = Record(ref, ours[ref].stamp, error=str(error))
            if record.error is not None:
                self.outcome.failed.append(Failure(ref, f"the copy could not be read back: {record.error}"))
                continue
            if record.payload == written[ref]:  # out of reach for a moment
                good.append(ref)
                continue
            self.outcome.failed.append(Failure(ref, "the target gave back something else than was written"))
            if record.stamp.version == ours[ref].stamp.version:  # else it is somebody else's by now
                with suppress(SessionChanged, SessionNotFound):
                    self._target.remove(ref, record.stamp)
        return good

    def _note_damage(self, records: Iterable[Record]) -> None:
        for record in records:
            for damage in codec.damage(record.ref, _payload(record), self._now())[:1]:
                self.outcome.damaged.append(Skip(record.ref, damage.message))

    def _remove(self, record: Record, copy: Stamp | None) -> None:
        """Remove a session from the source after its copy was seen, if it is still the version that was copied.

        ``copy`` is the stamp of one that was there already. Raises StoreError if the source is lost.
        """
        ref = record.ref
        try:
            with lock_patiently(self._source, ref, self._options.lock_wait, self._stopping) as lease:
                if self._stopping():  # the wait for the lock may have been long
                    return
                kept = self._kept(record, copy, ours=True)
                if kept is not None:
                    self.outcome.skipped.append(Skip(ref, f"not removed from the source: {kept}"))
                    return
                lease.check()
                self._source.remove(ref, record.stamp)
                self.outcome.deleted.append(ref)
        except (SessionLocked, SessionChanged) as error:
            self.outcome.skipped.append(Skip(ref, f"not removed from the source: {error}"))
        except SessionNotFound:
            self.outcome.skipped.append(Skip(ref, "removed from the source by somebody else"))
        except SessionctlError as error:
            self.outcome.failed.append(Failure(ref, f"not removed from the source: {error}", error.exit_code))
            if isinstance(error, StoreError):
                self._source.exists()  # raises if it is lost

    def _would_remove(self, record: Record, copy: Stamp | None) -> None:
        kept = self._kept(record, copy, ours=False)
        if kept is None:
            self.outcome.deleted.append(record.ref)
        else:
            self.outcome.skipped.append(Skip(record.ref, f"would stay at the source: {kept}"))

    def _kept(self, record: Record, copy: Stamp | None, *, ours: bool) -> str | None:
        """Why a session stays at the source; ``ours``: its lock is."""
        if copy is not None and self._ends_before(copy, record):
            return "the copy that was there already ends sooner"
        context, moment = self._context, self._now()
        if context is None:
            context = self._context = Context.of(self._source, moment)
        holders = {} if ours else context.holders
        summary = summarise(self._source, record, context._replace(now=moment, holders=holders))
        kept: str | None = protection(summary, self._options.guard, moment)
        if kept is None and record.ref in context.strays:
            kept = "a temporary file lies beside it (sessionctl repair)"
        return kept

    def _ends_before(self, copy: Stamp, record: Record) -> bool:
        """Whether a copy lives less long than one made now would, unless a short life is what was asked for."""
        if copy.ttl_ms is None or (not self._options.keep_ttl and self._options.ttl is not None):
            return False
        life = self._ttl(record)
        return life is None or copy.ttl_ms < life - 2 * RESOLUTION


class _Ours(NamedTuple):
    """What was written at the target for a session; the stamp need not tell it from another of the same size."""

    stamp: Stamp
    payload: bytes
    ends: int | None
    """When its life ends (ms), None where it has no end."""


class _There(NamedTuple):
    """What is at the target under a session's key, and what that means."""

    action: Action
    stamp: Stamp
    reason: str = ""


def _payload(record: Record) -> bytes:
    assert record.payload is not None
    return record.payload


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Some records at a time, at most BATCH_COUNT and BATCH_BYTES; one that is larger than a record's limit alone."""
    batch: list[Record] = []
    total = 0
    for record in records:
        large = record.payload is None and record.error is None
        more = len(record.payload or b"")
        if batch and (large or total + more > BATCH_BYTES or len(batch) >= BATCH_COUNT):
            yield batch
            batch, total = [], 0
        batch.append(record)
        total += BATCH_BYTES if large else more
    if batch:
        yield batch
