"""Removing sessions: which ones a rule calls expired, which are protected, and the removal itself.

Deciding is pure (``expired``, ``protection``, ``surplus``); a plan lists what was decided with the version of each
session it was decided for; ``apply`` acts one session at a time and skips what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, Self

import msgspec

from .. import codec
from ..durations import ago, iso
from ..errors import (
    SessionChanged,
    SessionctlError,
    SessionLocked,
    SessionNotFound,
    SomeFailed,
    StoreError,
    WriteFailed,
)
from ..model import Record, Ref, Stamp, Stray
from ..stores.base import LINK, TAIL, Store, Want
from .parallel import by_parts
from .patience import lock_patiently
from .select import Context, Filter, Summary, summarise, summarise_briefly

MIN_IDLE = 60_000
"""ms: a session that changed within this time is taken to be in use."""
_BATCH = 500
_ANOTHER = "it is not as it was when the plan was made"


class Rules(msgspec.Struct, frozen=True):
    """What makes a session expired; either rule suffices. Spans are in ms; ``keep_last`` counts per owner."""

    older_than: int | None = None
    ttl: int | None = None
    idle: int | None = None
    keep_last: int | None = None

    def __bool__(self) -> bool:
        return any(v is not None for v in (self.older_than, self.ttl, self.idle, self.keep_last))

    @property
    def by_age_only(self) -> bool:
        return self.ttl is None and self.keep_last is None


class Protection(msgspec.Struct, frozen=True):
    """What keeps sessions from removal. ``min_idle`` is in ms, ``patterns`` are keys that are never touched.

    ``wait_for_locks``: a lock held now is no reason yet, since it will be waited for.
    """

    min_idle: int = MIN_IDLE
    include_damaged: bool = True
    patterns: tuple[str, ...] = ()
    force: bool = False
    wait_for_locks: bool = False


def expired(summary: Summary, rules: Rules, now: int) -> str | None:
    """Why a session is expired by age, for people; None if not (FORMATS.md section 1, Limits; end of section 4)."""
    active, created = summary.last_activity_at, summary.outline.created_at
    if active is not None:
        if rules.older_than is not None and now - active > rules.older_than:
            return f"last updated {ago(now - active)} ago"
        if rules.idle is not None and now - active > rules.idle:
            return f"idle for {ago(now - active)}"
    if rules.ttl is not None and created is not None and now - created > rules.ttl:
        return f"created {ago(now - created)} ago"
    return None


def surplus(sessions: Iterable[tuple[Ref, str | None, int | None]], keep: int) -> set[Ref]:
    """The sessions beyond the newest ``keep`` of each owner (logs: of each tenant); those of unknown age do not count.

    Of each session its name, its owner and its last activity (ms).
    """
    groups: dict[tuple[str, str | None], list[tuple[int, Ref]]] = {}
    for ref, owner, at in sessions:
        if at is not None:
            groups.setdefault((ref.kind, owner), []).append((at, ref))
    return {ref for group in groups.values() for _, ref in sorted(group, reverse=True)[keep:]}


class Reason(str):
    """Why a session is left alone, for people; ``code`` names the kind of reason, for programs that count."""

    code: str

    def __new__(cls, code: str, text: str) -> Self:
        made = super().__new__(cls, text)
        made.code = code
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return self.code, str(self)


def _unread(summary: Summary) -> Reason | None:
    """Why nothing is known of a session. Another program's key is no session, and none that failed."""
    if summary.error is None:
        return None
    if "wrong-type-key" in summary.codes:
        return Reason("foreign", summary.error)
    return Reason("unreadable", f"cannot be read: {summary.error}")


def protection(summary: Summary, rule: Protection, now: int) -> Reason | None:
    """Why a session must not be touched, for people; None if it may be (DESIGN.md, Protected)."""
    from ..keys import matches

    if rule.patterns and matches(summary.key, rule.patterns):
        return Reason("protected", "protected by the configuration")
    if rule.force:
        return None
    if (unread := _unread(summary)) is not None:
        return unread
    if summary.holder is not None and not rule.wait_for_locks:
        return Reason("locked", summary.holder.sentence(now))
    if summary.status == "awaiting-approval":
        return Reason("awaiting-approval", "awaiting approval")
    if summary.status == "damaged" and not rule.include_damaged:
        return Reason("damaged", "damaged (--include-damaged removes it)")
    if summary.outline.absurd_time is not None:
        return Reason("uncertain-age", f"its age is uncertain: {summary.outline.absurd_time}")
    if summary.last_activity_at is None:
        return Reason("uncertain-age", "its age is unknown")
    if summary.last_activity_at > now:
        return Reason("uncertain-age", "its time lies in the future")
    if rule.min_idle and now - summary.last_activity_at < rule.min_idle:
        return Reason("in-use", f"changed {ago(now - summary.last_activity_at)} ago")
    return None


FORCED = frozenset({"locked", "awaiting-approval", "damaged", "uncertain-age", "in-use"})
"""The kinds of reasons (``Reason.code``) that ``force`` overrides."""


class Action(NamedTuple):
    """One session to be removed, as it was when that was decided. Times are in ms.

    ``strays`` go with it; of one that ``is_link`` there is nothing else: what a link points to is never touched. Of one
    that ``is_left`` there is but a temporary file, the first of ``strays``: a writer, or a removal, that died.
    """

    ref: Ref
    stamp: Stamp
    reason: str
    messages: int | None
    last_activity_at: int | None
    strays: tuple[Stray, ...] = ()
    is_link: bool = False
    is_left: bool = False


class Skip(NamedTuple):
    """A session that a rule meant but that is left alone, and why (a ``Reason`` where its kind is known)."""

    ref: Ref
    reason: str


class Failure(NamedTuple):
    """A session that could not be dealt with, why, and the exit code that stands for it."""

    ref: Ref
    error: str
    exit_code: int = SomeFailed.exit_code


class Plan(msgspec.Struct, frozen=True):
    """What is to be removed from a store, decided at ``made_at`` (ms). ``scanned`` counts all sessions looked at."""

    store: str
    made_at: int
    scanned: int
    actions: tuple[Action, ...]
    skipped: tuple[Skip, ...] = ()
    unreadable: tuple[Failure, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(action.stamp.size for action in self.actions)


def plan_gc(
    store: Store,
    rules: Rules,
    filter_: Filter,
    guard: Protection,
    now: int,
    *,
    limit: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Plan:
    """Decide what gc removes. Reads no more of a session than is needed to see that it is young; takes no lock."""
    context = Context.of(store, now)
    look_at = summarise if filter_.statuses else summarise_briefly

    def look(part: Store) -> Iterator[_Candidate | Failure | None]:
        for record in _candidates(part, rules, filter_, now):
            yield None if record is None else _judged(look_at(part, record, context), context, rules, filter_, guard)

    candidates: list[_Candidate] = []
    unreadable: list[Failure] = []
    scanned = 0
    for found in by_parts(store, look):
        scanned += 1
        tick()
        if isinstance(found, Failure):
            unreadable.append(found)
        elif found is not None:
            candidates.append(found)
    for left in left_behind(store, context, removed=True) if rules.by_age_only else ():
        judged = _judged(summarise(store, left, context), context, rules, filter_, guard)
        if isinstance(judged, _Candidate) and judged.action.reason:
            candidates.append(judged._replace(action=judged.action._replace(is_left=True)))
    extra: set[Ref] = set()
    if rules.keep_last is not None:
        extra = surplus(((c.action.ref, c.owner, c.action.last_activity_at) for c in candidates), rules.keep_last)
    actions: list[Action] = []
    skipped: list[Skip] = []
    for action, kept, _, uncertain in candidates:
        if not action.reason and action.ref in extra:
            action = action._replace(reason=f"not among the newest {rules.keep_last} of its owner")
        if kept is None and action.reason:
            actions.append(action)
        elif kept is not None and (action.reason or uncertain):
            skipped.append(Skip(action.ref, kept))
    actions.sort(key=lambda a: (a.last_activity_at or 0, a.ref))
    return Plan(store.url, now, scanned, tuple(actions[:limit]), tuple(sorted(skipped)), tuple(sorted(unreadable)))


class _Candidate(NamedTuple):
    """A session that may have to go; ``action`` has no reason where no age rule gives one. ``kept``: why it stays."""

    action: Action
    kept: str | None
    owner: str | None
    uncertain: bool


def _judged(
    summary: Summary, context: Context, rules: Rules, filter_: Filter, guard: Protection
) -> _Candidate | Failure | None:
    unread = _unread(summary)
    if unread is not None:
        if unread.code == "unreadable":
            return Failure(summary.ref, str(unread))
        return _Candidate(action_for(summary, "", context), unread, None, True) if filter_.allows(summary) else None
    if not filter_.allows(summary):
        return None
    why = expired(summary, rules, context.now)
    uncertain = summary.outline.absurd_time is not None
    if why is None and not uncertain and rules.keep_last is None:
        return None
    action = action_for(summary, why or "", context)
    return _Candidate(action, protection(summary, guard, context.now), summary.owner or summary.tenant, uncertain)


def _candidates(store: Store, rules: Rules, filter_: Filter, now: int) -> Iterator[Record | None]:
    """Each session that a rule may mean, whole; None for every other."""
    by_name_only = filter_.by_name_only
    pending: list[Ref] = []
    for record in _headers(store, rules):
        if record.error is None and (
            (by_name_only and not filter_.allows_key(record.ref)) or _is_young(record, rules, now)
        ):
            yield None
        elif record.whole and (record.payload is not None or record.error is not None):
            yield record
        else:
            pending.append(record.ref)
            if len(pending) == _BATCH:
                yield from store.records(Want.WHOLE, pending)
                pending.clear()
    yield from store.records(Want.WHOLE, pending)


def _headers(store: Store, rules: Rules) -> Iterator[Record]:
    """As little of each session as may settle its age: the end of a document, of a log only what the store knows."""
    if not rules.by_age_only:
        yield from store.records(Want.WHOLE)
        return
    if "document" in store.kinds:
        yield from store.records(Want.TAIL, kinds=("document",))
    if "log" in store.kinds:
        yield from store.records(Want.NAMES, kinds=("log",))


def _is_young(record: Record, rules: Rules, now: int) -> bool:
    """Whether the header alone shows that no age rule can apply."""
    if not rules.by_age_only:
        return False
    newest = record.stamp.changed_at
    if record.ref.kind == "document":
        newest = codec.tail_times(record.payload[-TAIL:], now) if record.payload else None
    if newest is None or newest > now:
        return False
    spans = [span for span in (rules.older_than, rules.idle) if span is not None]
    return bool(spans) and now - newest <= min(spans)


def plan_delete(
    summaries: Iterable[Summary],
    guard: Protection,
    now: int,
    context: Context,
    store: str,
    scanned: int,
    links: Iterable[Action] = (),
    left: Iterable[Summary] = (),
) -> Plan:
    """Decide on the removal of named sessions; ``links`` are those that lie where a session of that name would.

    Of those in ``left`` there is but a temporary file (``left_behind``).
    """
    actions: list[Action] = list(links)
    skipped: list[Skip] = []
    unreadable: list[Failure] = []
    for is_left, group in ((False, summaries), (True, left)):
        for summary in group:
            kept = protection(summary, guard, now)
            if kept is not None and kept.code == "unreadable":
                unreadable.append(Failure(summary.ref, str(kept)))
            elif kept is not None:
                skipped.append(Skip(summary.ref, kept))
            else:
                actions.append(action_for(summary, "named", context)._replace(is_left=is_left))
    return Plan(store, now, scanned, tuple(actions), tuple(skipped), tuple(unreadable))


def review(store: Store, plan: Plan, guard: Protection, now: int) -> Plan:
    """A plan that was made before, as it would be carried out now.

    What it lists that is another version by now, gone or protected is skipped, as ``apply`` would skip it.
    """
    if not plan.actions:
        return plan
    context = Context.of(store, now)
    actions = {action.ref: action for action in plan.actions}
    why: dict[Ref, str | None] = dict.fromkeys(actions, Reason("gone", "gone meanwhile"))
    unreadable: list[Failure] = []
    left = [ref for ref, action in actions.items() if action.is_left]
    for record in chain(store.records(Want.WHOLE, list(actions)), left_behind(store, context, left)):
        ref = record.ref
        if record.error is not None:
            unreadable.append(Failure(ref, record.error))
            del actions[ref]
        elif not same_version(record.stamp, actions[ref].stamp):
            why[ref] = Reason(SessionChanged.code, f"changed meanwhile: {_ANOTHER}")
        else:
            why[ref] = protection(summarise(store, record, context), guard, now)
    return msgspec.structs.replace(
        plan,
        actions=tuple(action for ref, action in actions.items() if why[ref] is None),
        skipped=(*plan.skipped, *(Skip(ref, kept) for ref in actions if (kept := why[ref]) is not None)),
        unreadable=(*plan.unreadable, *unreadable),
    )


def action_for(summary: Summary, why: str, context: Context) -> Action:
    """The action that removes a session, with its temporary files."""
    strays = tuple(context.strays.get(summary.ref, ()))
    return Action(summary.ref, summary.stamp, why, summary.messages, summary.last_activity_at, strays)


def left_behind(
    store: Store, context: Context, refs: Iterable[Ref] | None = None, *, removed: bool = False
) -> Iterator[Record]:
    """The sessions of which only a temporary file is left, as the newest of each shows them.

    With ``removed`` only those that a removal was about to remove when it was killed: what a dying writer left may be
    the only copy of a session, and is for ``repair`` to recover, never for a rule to remove.
    """
    wanted = context.strays if refs is None else [ref for ref in refs if ref in context.strays]
    for ref in wanted:
        strays = context.strays[ref]
        strays.sort(key=lambda stray: stray.stamp.changed_at or 0 if stray.stamp else 0, reverse=True)
        newest = strays[0]
        if removed and not newest.is_removed:
            continue
        if newest.stamp is not None and store.stamp(ref) is None:
            try:
                yield Record(ref, newest.stamp, store.read_stray(newest))
            except StoreError as error:
                yield Record(ref, newest.stamp, error=str(error))


def link_actions(store: Store, key: str) -> list[Action]:
    """The removal of the links that lie where sessions of this key would lie."""
    return [
        Action(stray.ref, Stamp((), 0), "named; only the link goes", None, None, (stray,), is_link=True)
        for stray in store.strays()
        if stray.note == LINK and stray.ref is not None and stray.ref.key == key
    ]


class Outcome(msgspec.Struct):
    """What was really done. ``freed`` is in bytes."""

    deleted: list[Action] = []
    archived: list[Ref] = []
    skipped: list[Skip] = []
    failed: list[Failure] = []
    freed: int = 0


def apply(
    store: Store,
    plan: Plan,
    outcome: Outcome,
    *,
    now: Callable[[], int],
    recheck: Callable[[Summary, int], str | None],
    archive: Store | None = None,
    lock_wait: float = 0,
    locks: bool = True,
    tick: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out a plan, one session after the other, writing into ``outcome`` as it goes.

    Each session is locked, read again and judged again by ``recheck`` (a reason to keep it, or None); it is removed
    only if it is the version that was planned, and, with ``archive``, only after its copy there was read back. May be
    stopped in ``tick``; once ``stopping`` says so, no lock is waited for any more. Raises StoreError when a store is
    lost; what was done by then is in ``outcome``.
    """
    context = Context.of(store, now()) if plan.actions else None
    for action in plan.actions:
        assert context is not None
        try:
            if locks:
                with lock_patiently(store, action.ref, lock_wait, stopping) as lease:
                    _remove(store, action, outcome, now, recheck, archive, context, lease.check)
            else:
                _remove(store, action, outcome, now, recheck, archive, context, lambda: None)
        except (SessionLocked, SessionChanged) as error:
            outcome.skipped.append(Skip(action.ref, Reason(error.code, str(error))))
        except SessionNotFound:
            outcome.skipped.append(Skip(action.ref, Reason("gone", "gone meanwhile")))
        except SessionctlError as error:
            outcome.failed.append(Failure(action.ref, str(error), error.exit_code))
            if isinstance(error, StoreError):
                for place in (store, archive) if archive is not None else (store,):
                    place.exists()
        tick()


def _remove(
    store: Store,
    action: Action,
    outcome: Outcome,
    now: Callable[[], int],
    recheck: Callable[[Summary, int], str | None],
    archive: Store | None,
    context: Context,
    check: Callable[[], None],
) -> None:
    ref = action.ref
    if action.is_link:
        for stray in action.strays:
            store.remove_stray(stray)
        outcome.deleted.append(action)
        return
    record = next(left_behind(store, context, [ref]), None) if action.is_left else store.get(ref)
    if record is None:
        raise SessionChanged(_ANOTHER)
    if record.error is not None:
        outcome.failed.append(Failure(ref, record.error))
        return
    if not same_version(record.stamp, action.stamp):
        raise SessionChanged(_ANOTHER)
    moment = now()
    summary = summarise(store, record, context._replace(now=moment, holders={}))
    kept = recheck(summary, moment)
    if kept is not None:
        outcome.skipped.append(Skip(ref, kept))
        return
    assert record.payload is not None
    if archive is not None:
        archive_copy(archive, record)
        for stray in action.strays:
            archive_stray(store, stray, archive, record.payload)
        outcome.archived.append(ref)
    check()
    if not action.is_left:
        store.remove(ref, record.stamp)
    outcome.deleted.append(action)
    outcome.freed += record.stamp.size
    for stray in action.strays:
        try:
            store.remove_stray(stray)
        except SessionctlError as error:
            outcome.failed.append(Failure(ref, f"its temporary file is left: {error}"))


def same_version(now: Stamp, planned: Stamp) -> bool:
    """Whether a session is still the version that a plan names; a version may know more than the plan's did."""
    return now.version[: len(planned.version)] == planned.version


def archive_copy(archive: Store, record: Record) -> None:
    """Copy a payload into an archive and read it back. Raises whatever stands against it; then nothing may be removed.

    A copy that is there already is kept; an older one that the new payload begins with is replaced.
    """
    ref, payload = record.ref, record.payload
    assert payload is not None
    there = archive.get(ref) if archive.exists() and archive.stamp(ref) is not None else None
    if there is not None and there.payload == payload:
        return
    if there is not None and (there.payload is None or not payload.startswith(there.payload)):
        raise WriteFailed(
            f"the archive holds another session of this key (of {iso(there.stamp.changed_at) or 'unknown age'})"
        )
    try:
        archive.put(ref, payload, expect=there.stamp if there else None, changed_at=record.stamp.changed_at)
        copy = archive.get(ref)
    except (SessionChanged, SessionNotFound) as error:
        raise WriteFailed(f"the archive changed meanwhile: {error}") from error
    if copy.payload != payload:
        raise WriteFailed("the copy in the archive is not the same")


def archive_stray(store: Store, stray: Stray, archive: Store, known: bytes | None = None) -> None:
    """Copy the bytes of a temporary file into an archive, unless they are ``known``, as what is kept already.

    Raises whatever stands against it; then nothing may be removed.
    """
    payload = store.read_stray(stray)
    if payload and payload != known:
        archive.keep_stray(stray, payload)


__all__ = [
    "FORCED",
    "Action",
    "Failure",
    "Outcome",
    "Plan",
    "Protection",
    "Reason",
    "Rules",
    "Skip",
    "apply",
    "archive_copy",
    "archive_stray",
    "expired",
    "left_behind",
    "link_actions",
    "plan_delete",
    "plan_gc",
    "protection",
    "review",
    "surplus",
]
