"""Copying sessions from one store to another, payloads byte for byte: the whole of it, by one process or several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import NamedTuple

from ..errors import LockLost, UnsupportedKind, UsageError
from ..model import KINDS, Kind, Ref, Stamp
from ..stores.base import Store
from .copying import Copy, Options, Outcome, Run
from .parallel import Crew, ForkRefused, processes
from .select import Filter, survey
from .settle import MODES, Mode

WORTH_SHARING = 2000
"""Sessions from which on several processes copy them faster than one."""


# --- choosing -------------------------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """The sessions to copy, and how many were looked at."""

    refs: tuple[Ref, ...]
    scanned: int


def choose(
    source: Store,
    filter_: Filter,
    now: int,
    refs: Sequence[Ref] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Chosen:
    """The sessions of ``source`` (or of ``refs``) that the filter means; payloads are read only where it needs them."""
    found: list[Ref] = []
    scanned = 0
    if filter_.by_name_only:
        for ref in source.names() if refs is None else dict.fromkeys(refs):
            scanned += 1
            tick()
            if filter_.allows_key(ref):
                found.append(ref)
    else:
        for summary in survey(source, now, refs):
            scanned += 1
            tick()
            if filter_.allows(summary):
                found.append(summary.ref)
    return Chosen(tuple(sorted(found)), scanned)


def check_places(source: Store, target: Store, kinds: Sequence[Kind] = KINDS) -> None:
    """Raise UsageError for a target whose sessions of these kinds would be sessions of the source, too.

    A copy could take the place of what was not read yet.
    """
    if source.place() == target.place():
        raise UsageError("source and target are the same store")
    if source.overlaps(target, kinds):
        apart = [kind for kind in kinds if not source.overlaps(target, (kind,))]
        hint = f"copy the others only: --kind {apart[0]}" if apart else "another database has room for the copies"
        raise UsageError("source and target overlap: a key of the one can be a key of the other", hint=hint)


def check_kinds(target: Store, refs: Iterable[Ref]) -> None:
    """Raise UnsupportedKind for a target that cannot hold sessions of these kinds."""
    for kind in sorted({ref.kind for ref in refs}):
        if kind not in target.kinds:
            raise UnsupportedKind(
                f"{target.url} holds no {kind}s", hint=f"copy the others only: --kind {target.kinds[0]}"
            )


def leftovers(target: Store) -> list[str]:
    """The temporary files at the target, which interrupted writes left behind."""
    return sorted(stray.name for stray in target.strays() if stray.stamp is not None) if target.exists() else []


def lost_mains(source: Store, kinds: Iterable[Kind]) -> list[str]:
    """The keys of sessions of which only a temporary file is left at the source."""
    if not source.exists():
        return []
    refs = {stray.ref for stray in source.strays() if stray.ref is not None and stray.code and stray.ref.kind in kinds}
    return sorted(ref.key for ref in refs if source.stamp(ref) is None)


# --- acting ---------------------------------------------------------------------------------------------------------


def migrate(
    source: Store,
    target: Store,
    refs: Sequence[Ref],
    options: Options,
    outcome: Outcome,
    *,
    now: Callable[[], int],
    shown: Mapping[Ref, Stamp] | None = None,
    check: Callable[[], None] = lambda: None,
    tick: Callable[[int], None] = lambda count: None,
    stopping: Callable[[], bool] = lambda: False,
    crew: MigrateCrew | None = None,
) -> None:
    """Copy these sessions, writing into ``outcome`` as it goes; may be stopped in ``tick``, told how many were.

    Once ``stopping`` says so, nothing more is begun that can wait, and ``tick`` is called as soon as all is told.

    ``shown`` (from ``compare``) are the versions at the target that may be replaced; others that differ are conflicts
    then. ``check`` raises when the stores' own locks are lost. Raises StoreError when a store is lost; what was done by
    then is in ``outcome``. Mode ``fail``: writes nothing if there is a conflict. ``crew`` (from ``crew_of``) shares
    the work.
    """
    target.pin()
    check()  # so it is the place that was locked
    if options.on_conflict == "fail":
        looked = compare(source, target, refs, options, now=now)
        if looked.conflicts:
            outcome.conflicts.extend(looked.conflicts)
            return
    run = Run(source, target, options, outcome, now, shown, stopping)
    todo = run.admit(refs)
    if crew is None:
        for count in run.batches(todo, check):
            tick(count)
        tick(0)
        return
    refused = frozenset(refs).difference(todo) if len(todo) < len(refs) else frozenset()
    place = target.place()
    crew.start(Job(slice(part, None, len(crew)), refused, options, shown, place) for part in range(len(crew)))
    try:
        for part, count in crew.results(stopping):
            outcome.add(part)
            check()
            tick(count)
        tick(0)
    except BaseException:
        crew.stop()
        for part, _ in crew.results():
            outcome.add(part)
        raise
    finally:
        outcome.sort()


class Job(NamedTuple):
    """What one process of a crew is to copy: its ``part`` of the sessions that are left without the ``refused``.

    ``place`` is ``Store.place`` of the target, which may have been moved.
    """

    part: slice
    refused: frozenset[Ref]
    options: Options
    shown: Mapping[Ref, Stamp] | None
    place: Hashable


MigrateCrew = Crew[Job, tuple[Outcome, int]]


@contextmanager
def crew_of(
    source: Store, target: Store, refs: Sequence[Ref], *, now: Callable[[], int]
) -> Iterator[MigrateCrew | None]:
    """Processes that share the copying of these sessions; None where one does it as fast, or is all we may have.

    To be called before any lock is taken; ``migrate`` is to be given the same sessions.
    """
    size = processes() if len(refs) >= WORTH_SHARING else 1
    size += size > 1  # they wait for the stores in turn
    pairs = [(source.again(), target.again()) for _ in range(size if size > 1 else 0)]
    works = [partial(_copy_part, mine, its, refs, now) for mine, its in pairs if mine is not None and its is not None]
    try:
        crew = Crew[Job, tuple[Outcome, int]](works) if works else None
    except ForkRefused:
        crew = None
    for store in filter(None, chain.from_iterable(pairs)):
        store.close()
    with crew or nullcontext():
        yield crew


def _copy_part(
    source: Store,
    target: Store,
    refs: Sequence[Ref],
    now: Callable[[], int],
    job: Job,
    stopping: Callable[[], bool],
) -> Iterator[tuple[Outcome, int]]:
    """The work of one process: what came of each batch, and of how many sessions it was."""
    run = Run(source, target, job.options, Outcome(), now, job.shown, stopping)
    target.pin()
    if target.place() != job.place:
        raise LockLost("the target is not the one that was locked; nothing was written under it")
    try:
        for count in run.batches([ref for ref in refs if ref not in job.refused][job.part], lambda: None):
            done, run.outcome = run.outcome, Outcome()
            yield done, count
    except Exception:
        yield run.outcome, 0
        raise
    yield run.outcome, 0


def compare(
    source: Store,
    target: Store,
    refs: Sequence[Ref],
    options: Options,
    *,
    now: Callable[[], int],
    tick: Callable[[int], None] = lambda count: None,
) -> Outcome:
    """What ``migrate`` would do, as the outcome that it would have; reads both stores and writes nothing."""
    outcome = Outcome()
    run = Run(source, target, options, outcome, now, dry=True)
    for count in run.batches(run.admit(refs), lambda: None):
        tick(count)
    return outcome


__all__ = [
    "MODES",
    "Chosen",
    "Copy",
    "Mode",
    "Options",
    "Outcome",
    "check_kinds",
    "check_places",
    "choose",
    "compare",
    "crew_of",
    "leftovers",
    "lost_mains",
    "migrate",
]
