"""Checking and mending the sessions of a store: the careful hands for what ``mend`` decides (FORMATS.md section 4).

Each session is locked, read anew, judged anew, backed up, and written only if it is still the version that was read.
Whatever stands against one session becomes part of its report and stops no other.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

from .. import codec
from ..durations import ago, iso
from ..errors import (
    LockLost,
    SessionChanged,
    SessionctlError,
    SessionInUse,
    SessionLocked,
    SessionNotFound,
    SomeFailed,
    WriteFailed,
)
from ..history import finding
from ..locks import Holder
from ..model import Finding, Outline, Record, Ref, Status, Stray
from ..stores.base import Store, Want
from .gc import MIN_IDLE, Protection, Reason, archive_copy, archive_stray, protection
from .mend import Options, Outcome, Repair, mend
from .parallel import by_parts
from .patience import lock_patiently
from .select import Context, summarise

LEFTOVER = 3_600_000
"""ms: a temporary file older than this has no writer any more (FORMATS.md section 4, stray-temporary-file)."""
NO_EXPIRY = "no expiry"
"""How a store marks the holder of a lock that never ends by itself."""
_ALONE = "; the session itself is not there"
_DIFF_LIMIT = 4000
"""Lines up to which a diff is looked for thoroughly; beyond that the time would grow with their square."""

_RUN, _AHEAD = 3, 100
"""Beyond it: how many lines must agree, and how far ahead they are looked for."""

_UNENDED = "\\ no newline at the end"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one session and what was done.

    ``status`` is that after the repair (a dry run: as it is, and ``becomes`` what it would be). ``outcomes`` pairs
    each finding with what became of it (a dry run: would). ``backup`` names the store that holds the untouched payload,
    where one was made. ``skipped`` says why the session was left alone, ``error`` what failed; ``exit_code`` stands for
    either. A dry run that would mend something sets ``before`` and ``after``; they are the same where only temporary
    files would go.
    """

    ref: Ref
    status: Status
    outcomes: tuple[Outcome, ...] = ()
    backup: str | None = None
    changes: tuple[str, ...] = ()
    skipped: str = ""
    error: str = ""
    exit_code: int = 0
    before: bytes | None = None
    after: bytes | None = None
    becomes: Status | None = None

    @property
    def left(self) -> bool:
        """Whether a finding of severity error is still there; after a dry run all are."""
        dry = self.before is not None
        return any(o.finding.severity == "error" and (dry or not o.fixed) for o in self.outcomes)


class Backup:
    """Where untouched payloads go: a store, by default a dated folder (mode 0700) that the first of them makes.

    ``place`` names it once something is in it; ``sessions`` counts those in it, not the temporary files.
    """

    def __init__(self, store: Store | None = None, *, now: int, root: Path | None = None) -> None:
        self._store, self._now, self._root = store, now, root
        self.place: str | None = None
        self.sessions = 0

    def keep(self, record: Record) -> str:
        """Put a payload there and read it back; returns the place. Raises SessionctlError: then nothing may change."""
        try:
            if self._store is None:
                self._store = self._make()
            archive_copy(self._store, record)
        except SessionctlError as error:
            raise WriteFailed(f"no backup, so nothing was changed: {error}") from error
        self.place = self._store.url
        self.sessions += 1
        return self.place

    def keep_stray(self, store: Store, stray: Stray) -> str:
        """Put the bytes of a temporary file there, under its own name; else as ``keep``."""
        try:
            if self._store is None:
                self._store = self._make()
            archive_stray(store, stray, self._store)
        except SessionctlError as error:
            raise WriteFailed(f"no backup, so nothing was changed: {error}") from error
        self.place = self._store.url
        return self.place

    def _make(self) -> Store:
        from ..stores.files import make_folders
        from ..stores.folder import FolderStore

        root = self._root
        if root is None:
            from platformdirs import user_state_path

            root = user_state_path("sessionctl") / "backups"
        stamp = re.sub(r"[-:]|\.\d+", "", iso(self._now) or "")
        folder = root / f"{stamp}-{secrets.token_hex(3)}"
        try:
            make_folders(folder)
        except OSError as error:
            raise WriteFailed(f"cannot make {str(folder)!r}: {error.strerror or error}") from error
        return FolderStore(folder)


def lost(store: Store) -> list[Ref]:
    """The sessions of which a temporary file is there, perhaps nothing else; ``check`` and ``repair`` take them too."""
    return list(dict.fromkeys(s.ref for s in store.strays() if s.ref is not None and s.code)) if store.exists() else []


def check(
    store: Store, now: int, refs: Iterable[Ref] | None = None, *, options: Options | None = None
) -> Iterator[Report]:
    """Report on every session of a store, or on those of ``refs``; changes nothing.

    ``now`` is in ms. Findings are fixable if a repair with these ``options`` could mend them.
    """
    refs = None if refs is None else list(refs)
    context = Context.of(store, now, refs)
    yield from _found(store, context, refs, options or Options())


def repair(
    store: Store,
    clock: Callable[[], int],
    backup: Backup | None,
    refs: Iterable[Ref] | None = None,
    *,
    options: Options | None = None,
    min_idle: int = MIN_IDLE,
    lock_wait: float = 15.0,
    protect: Sequence[str] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Report on every session of a store, or on those of ``refs``, and mend what can be mended.

    ``clock`` tells the time in ms, ``min_idle`` is in ms, ``lock_wait`` in seconds; ``protect`` are patterns of keys
    that are never touched. Without a ``backup`` it is a dry run: nothing is locked or written, and the reports hold
    what would be. Which sessions need mending is settled before the first is changed. Once ``stopping`` says so,
    nothing more is looked at, and no lock is waited for.
    """
    refs = None if refs is None else list(refs)
    context = Context.of(store, clock(), refs)
    options = options or Options()
    guard = Protection(min_idle, patterns=tuple(protect), force=options.force, wait_for_locks=True)
    hands = _Hands(store, clock, backup, options, guard, lock_wait, context, stopping)
    pending: list[Report] = []
    for report in _found(store, context, refs, options):
        if stopping():
            return
        if not report.error and any(o.finding.fixable and options.wants(o.finding.code) for o in report.outcomes):
            pending.append(report)
        else:
            yield report
    yield from map(hands.mend, pending)


def _found(store: Store, context: Context, refs: Sequence[Ref] | None, options: Options) -> Iterator[Report]:
    """The findings of each session, also those that concern its store; then of those with a temporary file alone."""
    seen: set[Ref] = set()
    if store.exists() or not context.strays:
        by_name = refs is not None
        for report in (
            _examined(store, context, refs) if by_name else by_parts(store, lambda part: _examined(part, context))
        ):
            seen.add(report.ref)
            yield replace(report, outcomes=tuple(o._replace(finding=options.seen(o.finding)) for o in report.outcomes))
    for ref, strays in context.strays.items():
        if ref not in seen and (refs is None or ref in refs):
            yield Report(ref, "damaged", tuple(Outcome(_stray_finding(s, _ALONE)) for s in strays))


def _examined(store: Store, context: Context, refs: Sequence[Ref] | None = None) -> Iterator[Report]:
    for record in store.records(Want.WHOLE, refs):
        summary = summarise(store, record, context)
        findings = summary.verdict.findings
        if summary.holder is not None and _never_ends(summary.holder):
            said = summary.holder.sentence(context.now)
            findings = (*findings, finding("stale-lock", "lock", said, fixable=True))
        error = "" if summary.error is None or record.code else summary.error
        report = Report(record.ref, summary.status, tuple(map(Outcome, findings)), error=error)
        yield replace(report, exit_code=SomeFailed.exit_code) if error else report


def _stray_finding(stray: Stray, more: str = "") -> Finding:
    return finding(stray.code, stray.name, f"{stray.note}{more}", fixable=True)


def _never_ends(holder: Holder) -> bool:
    return holder.until is None and NO_EXPIRY in holder.note


class _Hands:
    """Acts on one session after the other."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        backup: Backup | None,
        options: Options,
        guard: Protection,
        lock_wait: float,
        context: Context,
        stopping: Callable[[], bool],
    ) -> None:
        self.store, self.clock, self.backup, self.options = store, clock, backup, options
        self.guard, self.lock_wait, self.context, self.stopping = guard, lock_wait, context, stopping

    def mend(self, report: Report) -> Report:
        """Mend the session of a report and say what came of it. Raises nothing that concerns this session alone."""
        try:
            if self.backup is None:
                return self._mended(report, lambda: None)
            unlocked = False
            if self.options.wants("stale-lock") and any(o.finding.code == "stale-lock" for o in report.outcomes):
                reason = self._reason(report.ref)
                if reason is not None:
                    return _left_alone(report, reason)
                unlocked = self.store.break_lock(report.ref)
            with lock_patiently(self.store, report.ref, self.lock_wait, self.stopping) as lease:
                done = self._mended(report, lease.check)
            return replace(done, outcomes=tuple(_settled(o, unlocked) for o in done.outcomes))
        except (SessionLocked, SessionChanged, LockLost) as error:
            return replace(report, skipped=str(error), exit_code=error.exit_code)
        except SessionNotFound:
            return replace(report, outcomes=(), skipped="gone meanwhile")
        except SessionctlError as error:
            return replace(report, error=str(error), exit_code=SomeFailed.exit_code)

    def _reason(self, ref: Ref) -> Reason | None:
        """Why a session as it is stored now is not to be touched."""
        for record in self.store.records(Want.WHOLE, [ref]):
            return self._protection(record, self.clock())
        return None

    def _protection(self, record: Record, now: int) -> Reason | None:
        context = self.context._replace(now=now, holders={})
        return protection(summarise(self.store, record, context), self.guard, now)

    def _mended(self, report: Report, still_held: Callable[[], None]) -> Report:
        ref = report.ref
        now = self.clock()
        record = self._record(ref)
        reason = self._protection(record, now) if record is not None else None
        left = () if reason else self.context.strays.get(ref, ())
        leftovers, recovered, gone = self._strays(ref, record, left, now)
        if gone:
            report = replace(report, backup=self.backup.place if self.backup else None, changes=gone)
        if recovered is not None:
            record = recovered[1]
        if record is None or record.payload is None:
            return replace(report, outcomes=tuple(leftovers))
        plan = mend(ref, record.payload, now, self.options, self.context.approvals.get(ref.key, frozenset()))
        if plan.awaits:
            reason = reason or Reason("awaiting-approval", "awaiting approval")
        if reason is not None and (plan.awaits or plan.after is not None or ref in self.context.strays):
            return _left_alone(report, reason)
        done = self._write(report, record, plan, recovered, leftovers, still_held)
        done = replace(done, changes=(*done.changes, *gone))
        if self.backup is None and done.before is None and any(o.fixed for o in done.outcomes):
            done = replace(done, before=record.payload, after=record.payload)
        return done

    def _record(self, ref: Ref) -> Record | None:
        try:
            record = self.store.get(ref)
        except SessionNotFound:
            return None
        if record.error is not None:
            raise WriteFailed(f"cannot read it: {record.error}")
        return record

    def _write(
        self,
        report: Report,
        record: Record,
        plan: Repair,
        recovered: tuple[Stray, Record] | None,
        leftovers: list[Outcome],
        still_held: Callable[[], None],
    ) -> Report:
        ref = report.ref
        others = [o for o in report.outcomes if o.finding.code in _OF_THE_STORE]
        done = replace(report, status=plan.status, outcomes=(*plan.outcomes, *leftovers, *others), changes=plan.changes)
        stored = self._record(ref) if recovered is not None else record
        payload = plan.after if plan.after is not None else record.payload
        assert payload is not None
        if recovered is not None:
            done = replace(done, changes=(f"recovered from {recovered[0].name}", *plan.changes))
        elif plan.after is None:
            return done
        if self.backup is None:
            before = stored.payload if stored else b""
            return replace(done, status=report.status, becomes=plan.status, before=before, after=payload)
        if stored is not None:
            done = replace(done, backup=self.backup.keep(stored))
        still_held()
        expect = stored.stamp if stored else None
        if plan.appended is not None and recovered is None:
            stamp = self.store.append(ref, plan.appended, expect=expect)
            if record.stamp.changed_at is not None:
                self.store.backdate(ref, stamp, record.stamp.changed_at)
        else:
            ttl = stored.stamp.ttl_ms if stored else None
            stamp = self.store.put(ref, payload, expect=expect, changed_at=record.stamp.changed_at, ttl_ms=ttl)
        self._verify(ref, stored, payload)
        if recovered is not None:
            if plan.after is not None:  # mended: its own bytes are nowhere else
                done = replace(done, backup=self.backup.keep_stray(self.store, recovered[0]))
            self.store.remove_stray(recovered[0])
        return done

    def _verify(self, ref: Ref, before: Record | None, payload: bytes) -> None:
        """Read back what was written; put the old payload back if it is not there, unless somebody else has written."""
        now = self.store.get(ref)
        if now.payload is not None and (
            now.payload == payload or (ref.kind == "log" and now.payload.startswith(payload))
        ):
            return
        if before is not None and before.payload is not None:
            self.store.put(
                ref, before.payload, expect=now.stamp, changed_at=before.stamp.changed_at, ttl_ms=before.stamp.ttl_ms
            )
        raise WriteFailed("what was read back is not what was written; the session is as it was before")

    # --- temporary files ----------------------------------------------------------------------------------------------

    def _strays(
        self, ref: Ref, record: Record | None, strays: Sequence[Stray], now: int
    ) -> tuple[list[Outcome], tuple[Stray, Record] | None, tuple[str, ...]]:
        """Deal with the temporary files that writers of this session left; the newest whole one may hold it.

        Gives what became of each finding, the one that holds the session, and the others that were removed, in words.
        """
        outcomes: list[Outcome] = []
        gone: list[str] = []
        recovered: tuple[Stray, Record] | None = None
        for stray in sorted(strays, key=lambda s: -(s.stamp.changed_at or 0) if s.stamp else 0):
            found = _stray_finding(stray, "" if record else _ALONE)
            if not self.options.wants(stray.code):
                outcomes.append(Outcome(found))
                continue
            age = now - (stray.stamp.changed_at or now) if stray.stamp else 0
            if recovered is None and age >= self.guard.min_idle:
                payload = self.store.read_stray(stray)
                if stray.stamp is not None and _holds_newer(ref, payload, record, now):
                    recovered = stray, Record(ref, stray.stamp, payload)
                    outcomes.append(Outcome(found, True))
                    continue
            if age < LEFTOVER:
                outcomes.append(Outcome(found, reason=f"it is {ago(age)} old; its writer may still be at work"))
            else:
                what = _what_is_left(ref, self.store.read_stray(stray), now)
                copied = "" if what == "empty" else "; a copy goes into the backup"
                if self.backup is not None:
                    if copied:
                        copied = f"; a copy is in {self.backup.keep_stray(self.store, stray)}"
                    self.store.remove_stray(stray)
                gone.append(f"removed the {what} temporary file {stray.name}{copied}")
                outcomes.append(Outcome(found, True))
        return outcomes, recovered, tuple(gone)


def _left_alone(report: Report, reason: Reason) -> Report:
    """A protected session: to be left in peace by configuration is no failure, to be in use is one for now."""
    code = 0 if reason.code == "protected" else SessionInUse.exit_code
    return replace(report, skipped=reason, exit_code=code)


_OF_THE_STORE = ("stale-lock", "wrong-type-key")


def _settled(outcome: Outcome, unlocked: bool) -> Outcome:
    return outcome._replace(fixed=True) if unlocked and outcome.finding.code == "stale-lock" else outcome


def _holds_newer(ref: Ref, payload: bytes, record: Record | None, now: int) -> bool:
    """Whether a temporary file holds the whole session, and a newer one than what is stored."""
    left = codec.outline(ref, payload, now)
    if left.steps is None or left.damage or any(n.code == "id-mismatch" for n in left.notes):
        return False
    if record is None or record.payload is None:
        return True
    if ref.kind == "log":
        return False  # appends do not go through temporary files
    stored = codec.outline(ref, record.payload, now)
    return stored.steps is None or _time(stored) < _time(left)


def _what_is_left(ref: Ref, payload: bytes, now: int) -> str:
    """What a temporary file is that holds no newer session, in a word."""
    if not payload:
        return "empty"
    left = codec.outline(ref, payload, now)
    return "torn" if left.steps is None or left.damage else "superseded"


def _time(outline: Outline) -> int:
    return max(outline.updated_at or 0, outline.active_at or 0, outline.newest_message_at or 0)


# --- showing a change -------------------------------------------------------------------------------------------------


def diff_lines(before: bytes, after: bytes, context: int = 2) -> Iterator[str]:
    """The difference of two payloads as lines of a unified diff, without their ends. Linear for large ones.

    What is not UTF-8 shows as ``\\xNN``. A document on one line is shown with a line for each of its objects.
    """
    old, new = _shown(before), _shown(after)
    if before.endswith(b"\n") is not after.endswith(b"\n"):
        (new if before.endswith(b"\n") else old).append(_UNENDED)
    start = 0
    shortest = min(len(old), len(new))
    while start < shortest and old[start] == new[start]:
        start += 1
    end = 0
    while end < shortest - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if max(len(old), len(new)) - start - end <= _DIFF_LIMIT:
        low, high = max(0, start - context), max(0, end - context)
        # Line numbers are those of the cut-out part moved back to where it stands.
        for line in unified_diff(old[low : len(old) - high], new[low : len(new) - high], n=context, lineterm=""):
            if not line.startswith(("---", "+++")) or not line[3:].isspace():
                yield _moved(line, low) if line.startswith("@@") else line
        return
    yield f"@@ -{start + 1} +{start + 1} @@"
    yield from _rough_diff(old[start : len(old) - end], new[start : len(new) - end])


def _shown(payload: bytes) -> list[str]:
    text = payload.decode(errors="backslashreplace")
    if "\n" not in text.rstrip("\n"):
        text = re.sub(r"([}\]],) ?(?=[{\"])", r"\1\n", text)
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _moved(header: str, by: int) -> str:
    return re.sub(r"([-+])(\d+)", lambda m: f"{m[1]}{int(m[2]) + by}", header)


def _rough_diff(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """What goes and what comes, in order, found by looking a little ahead; a line that moves far shows as both."""
    going, coming = Counter(old), Counter(new)
    i = j = 0

    def goes(number: int) -> Iterator[str]:
        nonlocal i
        for line in old[i : i + number]:
            going[line] -= 1
            yield f"-{line}"
        i += number

    def comes(number: int) -> Iterator[str]:
        nonlocal j
        for line in new[j : j + number]:
            coming[line] -= 1
            yield f"+{line}"
        j += number

    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            going[old[i]] -= 1
            coming[new[j]] -= 1
            i, j = i + 1, j + 1
        elif ahead := _ahead(new, j, old[i : i + _RUN]):
            yield from comes(ahead)
        elif ahead := _ahead(old, i, new[j : j + _RUN]):
            yield from goes(ahead)
        elif coming[old[i]] <= 0 or going[new[j]] > 0:
            yield from goes(1)
        else:
            yield from comes(1)
    yield from goes(len(old) - i)
    yield from comes(len(new) - j)


def _ahead(lines: Sequence[str], at: int, run: Sequence[str]) -> int:
    """How far after ``at`` a run of lines stands, 0 if it is not near."""
    for place in range(at + 1, min(at + _AHEAD, len(lines))):
        if lines[place] == run[0] and lines[place : place + len(run)] == run:
            return place - at
    return 0
