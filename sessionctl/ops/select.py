"""Summaries of sessions, and choosing among them: by filter, by order, by id."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from .. import codec
from ..errors import AmbiguousId, SessionctlError, SessionNotFound
from ..history import Verdict, finding, judge
from ..keys import SessionKey, check_lookup, is_pattern, matches, own_id, quoted, split_composite
from ..locks import Holder
from ..model import KINDS, AgeSource, Finding, Kind, Outline, Record, Ref, Stamp, Status, Stray
from ..stores.base import Store, Want
from .parallel import by_parts

T = TypeVar("T")

SHORTEST_START = 4
"""Characters of an id that may stand for the whole."""
MOST_COMPARED = 2000
"""Names among which one is looked for that was meant."""


class Summary(msgspec.Struct, frozen=True):
    """All that is known of one session without its texts: what a row shows and what rules decide by.

    Times are in ms since the epoch or None. ``error`` says why it could not be read.
    """

    ref: Ref
    stamp: Stamp
    outline: Outline
    verdict: Verdict
    owner: str | None
    tenant: str | None
    environment: str | None
    agent: str | None
    updated_at: int | None
    last_activity_at: int | None
    age_source: AgeSource
    holder: Holder | None = None
    error: str | None = None

    @property
    def key(self) -> str:
        return self.ref.key

    @property
    def status(self) -> Status:
        return self.verdict.status

    @property
    def messages(self) -> int | None:
        return None if self.outline.steps is None else len(self.outline.steps) + self.outline.unread

    @property
    def codes(self) -> list[str]:
        """The finding codes, each once, in order."""
        return sorted({f.code for f in self.verdict.findings})

    @property
    def id(self) -> str:
        """The id that people know it by: a document's own, else what follows the key's prefix (see ``own_id``)."""
        return self.outline.id or own_id(self.ref)


class Context(NamedTuple):
    """What several sessions share while they are summarised: the time, locks, approvals and strays of their store."""

    now: int
    approvals: dict[str, frozenset[str]]
    holders: dict[Ref, Holder]
    strays: dict[Ref, list[Stray]]

    @classmethod
    def of(cls, store: Store, now: int, refs: Iterable[Ref] | None = None) -> Context:
        """Ask the store once for all that is not in the payloads."""
        strays: dict[Ref, list[Stray]] = {}
        for stray in store.strays():
            if stray.ref is not None and stray.code:
                strays.setdefault(stray.ref, []).append(stray)
        named = codec.approvals(store.checkpoints()) if "log" in store.kinds else {}
        return cls(now, named, store.holders(refs), strays)


def survey(
    store: Store, now: int, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
) -> Iterator[Summary]:
    """Summarise every session of a store, or those of ``refs`` that exist. Reads each payload once; changes nothing."""
    refs = None if refs is None else list(refs)
    context = Context.of(store, now, refs)
    for record in store.records(Want.WHOLE, refs, kinds):
        yield summarise(store, record, context)


def summarise(store: Store, record: Record, context: Context) -> Summary:
    """The summary of one record; a payload too large for the record is read piece by piece."""
    ref, now = record.ref, context.now
    error = record.error
    if error is not None:
        outline = Outline(ref.kind)
    elif record.payload is not None:
        outline = codec.summary(ref, record.payload, now)
    else:
        try:
            outline = codec.summary_of_chunks(ref, lambda: store.chunks(ref), now)
        except SessionctlError as failed:
            outline, error = Outline(ref.kind), str(failed)
    verdict = judge(outline, context.approvals.get(ref.key, ()) if context.approvals else ())
    extra: list[Finding] = []
    if record.code:
        extra.append(finding(record.code, "key", error or ""))
    for stray in context.strays.get(ref, ()) if context.strays else ():
        extra.append(finding(stray.code, stray.name, stray.note, fixable=True))
    if extra:
        verdict = verdict._replace(findings=(*verdict.findings, *extra))
    return _with_ages(ref, record.stamp, outline, verdict, context.holders.get(ref), error)


def summarise_briefly(store: Store, record: Record, context: Context) -> Summary:
    """``summarise`` for rules that ask for age and damage alone: the status of what is not damaged may be any.

    Takes half the time of a full look, which those still get that are odd or awaited.
    """
    ref = record.ref
    found = None
    if record.payload is not None and ref.key not in context.approvals:
        found = codec.brief(ref, record.payload, context.now)
    if found is None:
        return summarise(store, record, context)
    return _with_ages(ref, record.stamp, found, _UNJUDGED, context.holders.get(ref), record.error)


_UNJUDGED = Verdict("ok", (), (), ())


def _with_ages(
    ref: Ref, stamp: Stamp, outline: Outline, verdict: Verdict, holder: Holder | None, error: str | None
) -> Summary:
    """FORMATS.md: a document's age is the newest plausible time in it, its mtime only where there is none; a log's age
    is its store's. No time is plausible that is not positive: images and archives set mtimes to zero."""
    updated, active, source = outline.updated_at, None, stamp.source
    changed = stamp.changed_at if stamp.changed_at is not None and stamp.changed_at > 0 else None
    own = [t for t in (outline.updated_at, outline.active_at) if t is not None]
    if own:
        active, source = max(own), "document"
    if outline.newest_message_at is not None and (active is None or outline.newest_message_at > active):
        active, source = outline.newest_message_at, "message"
    if active is None:
        active, source = changed, "none" if changed is None else source
    if updated is None and ref.kind == "log":
        updated = changed
    prefix, tenant, environment, agent = None, None, None, None
    if ref.kind == "document":
        prefix = split_composite(ref.key)[0]
    elif parsed := SessionKey.parse(ref.key):
        tenant, environment, agent, _ = parsed
    return Summary(
        ref,
        stamp,
        outline,
        verdict,
        outline.owner or prefix,
        tenant,
        environment,
        agent,
        updated,
        active,
        source,
        holder,
        error,
    )


def glimpse(record: Record, newest: int | None, now: int) -> Summary:
    """The summary of a session of which the end alone was read; ``newest`` is the time (ms) of its last message."""
    plausible = newest is not None and newest <= now
    outline = Outline(record.ref.kind, newest_message_at=newest if plausible else None)
    return _with_ages(record.ref, record.stamp, outline, _UNJUDGED, None, None)


class Filter(msgspec.Struct, frozen=True):
    """Which sessions are meant; a field left alone allows all. ``before`` and ``after`` are ms (last activity)."""

    patterns: tuple[str, ...] = ()
    statuses: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    before: int | None = None
    after: int | None = None
    provider: str | None = None
    model: str | None = None
    owner: str | None = None
    tenant: str | None = None
    environment: str | None = None
    agent: str | None = None
    locked: bool | None = None

    @property
    def by_name_only(self) -> bool:
        """Whether the key alone decides."""
        return self == Filter(patterns=self.patterns, kinds=self.kinds)

    def allows(self, summary: Summary) -> bool:
        """Whether this session is meant. A session of unknown age is neither older nor newer than anything."""
        at = summary.last_activity_at
        return (
            (not self.kinds or summary.ref.kind in self.kinds)
            and (not self.statuses or summary.status in self.statuses)
            and (self.before is None or (at is not None and at < self.before))
            and (self.after is None or (at is not None and at >= self.after))
            and (self.locked is None or (summary.holder is not None) is self.locked)
            and _fits(self.provider, summary.outline.provider)
            and _fits(self.model, summary.outline.model)
            and _fits(self.owner, summary.owner)
            and _fits(self.tenant, summary.tenant)
            and _fits(self.environment, summary.environment)
            and _fits(self.agent, summary.agent)
            and self.allows_key(summary.ref, summary.outline.id)
        )

    def allows_key(self, ref: Ref, inner_id: str | None = None) -> bool:
        """Whether key (or inner id) and kind are meant."""
        if self.kinds and ref.kind not in self.kinds:
            return False
        return (
            not self.patterns
            or matches(ref.key, self.patterns)
            or matches(own_id(ref), self.patterns)
            or (inner_id is not None and matches(inner_id, self.patterns))
        )


def _fits(pattern: str | None, value: str | None) -> bool:
    """Names are compared as a whole; shell patterns are allowed."""
    return pattern is None or (value is not None and (value == pattern or matches(value, (pattern,))))


SORTS: dict[str, Any] = {
    "activity": lambda s: s.last_activity_at,
    "created": lambda s: s.outline.created_at,
    "updated": lambda s: s.updated_at,
    "size": lambda s: s.stamp.size,
    "messages": lambda s: s.messages,
    "key": lambda s: s.ref.key,
    "status": lambda s: s.status,
}
"""What a list can be sorted by. Times, sizes and counts come largest first, names in alphabetical order."""

_ALPHABETICAL = ("key", "status")


class Tally(msgspec.Struct):
    """How many sessions a listing saw, how many of them are in it, and which could not be read (key and why)."""

    all: int = 0
    kept: int = 0
    damaged: int = 0
    unreadable: list[tuple[str, str]] = []

    def through(self, summaries: Iterable[Summary], chosen: Filter) -> Iterator[Summary]:
        """Those that are chosen, while all are counted."""
        for summary in summaries:
            self.all += 1
            if summary.error is not None and not summary.verdict.findings:  # else the row says what lies there
                self.unreadable.append((summary.key, summary.error))
            if chosen.allows(summary):
                self.kept += 1
                self.damaged += summary.status == "damaged" and summary.error is None
                yield summary

    def add(self, other: Tally) -> None:
        self.all += other.all
        self.kept += other.kept
        self.damaged += other.damaged
        self.unreadable += other.unreadable


def listing(
    store: Store,
    now: int,
    chosen: Filter,
    render: Callable[[Summary], T],
    *,
    kinds: Iterable[Kind] = KINDS,
    by: str = "activity",
    reverse: bool = False,
    limit: int | None = None,
) -> tuple[list[T], Tally]:
    """What ``render`` (pure) makes of each chosen session, sorted (see SORTS), and the tally. ``now`` is in ms.

    Memory follows what is rendered, not the sessions; ``limit`` bounds it.
    """
    context = Context.of(store, now)
    value = SORTS[by]
    largest_first = (by not in _ALPHABETICAL) is not reverse

    def rank(summary: Summary) -> tuple[Any, ...]:
        known = value(summary)
        # Whatever the direction, those without the value come last.
        return (known is not None) is largest_first, known, summary.key, summary.ref.kind

    def look(part: Store) -> Iterator[tuple[Any, T] | Tally]:
        tally = Tally()
        summaries = (summarise(part, record, context) for record in part.contents(kinds))
        ranked = ((rank(summary), summary) for summary in tally.through(summaries, chosen))
        for place, summary in ranked if limit is None else _sorted(ranked, largest_first, limit):
            yield place, render(summary)
        yield tally

    total = Tally()

    def rows() -> Iterator[tuple[Any, T]]:
        for found in by_parts(store, look):
            if isinstance(found, Tally):
                total.add(found)
            else:
                yield found

    return [row for _, row in _sorted(rows(), largest_first, limit)], total


def _sorted(ranked: Iterable[tuple[Any, T]], largest_first: bool, limit: int | None) -> list[tuple[Any, T]]:
    if limit is None:
        return sorted(ranked, key=itemgetter(0), reverse=largest_first)
    import heapq

    # At least one, or they would not even be looked at, and counted.
    return (heapq.nlargest if largest_first else heapq.nsmallest)(max(limit, 1), ranked, key=itemgetter(0))[:limit]


def resolve(store: Store, text: str, kinds: Sequence[Kind] = KINDS) -> list[Ref]:
    """The session that an ID names: its full key, else its id (a document's own, a log's raw one), else an unambiguous
    start of either.

    A folder may hold a document and a log of one key: both are meant. Raises InvalidKey, SessionNotFound, AmbiguousId.
    """
    return exactly(store, text, kinds) or _search(store, text, kinds)


def exactly(store: Store, key: str, kinds: Sequence[Kind] = KINDS) -> list[Ref]:
    """The sessions of this very key, none if there is none. Raises InvalidKey for what can be no key of this store."""
    check_lookup(key)
    exact = [Ref(key, kind) for kind in kinds if kind in store.kinds]
    failed: SessionctlError | None = None
    for ref in list(exact):
        try:
            store.check_key(ref)
        except SessionctlError as error:
            exact.remove(ref)
            failed = error
    if not exact and failed is not None:
        raise failed
    return [record.ref for record in store.records(Want.NAMES, exact)]


def _search(store: Store, text: str, kinds: Sequence[Kind]) -> list[Ref]:
    """Look through all keys, the ids in them, and all documents' own ids."""
    by_id: dict[str, list[Ref]] = {}
    by_start: dict[str, list[Ref]] = {}
    same_letters: str | None = None
    names: set[str] = set()
    folded = unicodedata.normalize("NFC", text)
    for ref in store.names(kinds):
        key = ref.key
        suffix = own_id(ref)
        if len(names) < MOST_COMPARED:
            names.update((key, suffix))
        if suffix == text:
            by_id.setdefault(key, []).append(ref)
        elif key.startswith(text) or suffix.startswith(text):
            by_start.setdefault(key, []).append(ref)
        if not key.isascii() and unicodedata.normalize("NFC", key) == folded:
            same_letters = key
    if not by_id and "document" in kinds and "document" in store.kinds:
        for record in store.records(Want.WHOLE, kinds=("document",)):
            if record.payload is None or record.ref.key in by_start:
                continue
            inner = codec.quick_id(record.payload)
            if inner == text:
                by_id.setdefault(record.ref.key, []).append(record.ref)
            elif inner is not None and inner.startswith(text):
                by_start.setdefault(record.ref.key, []).append(record.ref)
    if not by_id and len(text) >= SHORTEST_START:
        by_id = by_start
    if len(by_id) == 1:
        return next(iter(by_id.values()))
    if by_id:
        some = ", ".join(quoted(key) for key in sorted(by_id)[:3])
        raise AmbiguousId(
            f"{len(by_id)} sessions are called {quoted(text)} or start so: {some}" + (", …" if len(by_id) > 3 else ""),
            hint="give the full key",
        )
    listed = f"sessionctl list -s {shlex.quote(store.url)}"
    if is_pattern(text):
        pattern = shlex.quote(text)
        hint = f"an id is no pattern; for all that fit: {listed} -o ids {pattern} | sessionctl … -"
    elif same_letters is not None:
        hint = "a session with the same letters in another Unicode form exists"
    elif by_start:
        hint = f"a start of an id needs at least {SHORTEST_START} characters"
    else:
        from difflib import get_close_matches

        near = get_close_matches(text, names, 1, 0.8)
        hint = f"did you mean {quoted(near[0])}?" if near else f"list them with: {listed}"
    raise SessionNotFound(quoted(text), hint=hint)
