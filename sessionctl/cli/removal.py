"""What ``gc`` and ``delete`` share: show the plan, ask, carry it out, say what was done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from ..config import hide_secrets
from ..durations import ago, iso, size
from ..errors import NeedsConfirmation, SessionctlError, SomeFailed, StoreError, UsageError
from ..keys import quoted
from ..ops import gc as ops
from ..ops.select import Summary
from ..stores.base import Store
from .options import Common, Safety, now_ms
from .output import Output, plain_table, plural, safe_line
from .progress import progress, stop_between
from .rows import short_key

if TYPE_CHECKING:
    from ..config import StoreConfig

FORMATS = ("table", "json", "jsonl", "ids")
FEW = 5
"""Skipped sessions up to which a log names each."""


class Report:
    """One run of a removing command: its plan, what came of it, and how it is told.

    ``log_as``: the run is told in one line for a log, which begins with this name; None: for people. ``missing`` are
    the ids of standard input that name nothing.
    """

    def __init__(
        self,
        out: Output,
        plan: ops.Plan,
        *,
        dry_run: bool,
        started: float,
        log_as: str | None = None,
        missing: Sequence[tuple[str, SessionctlError]] = (),
    ) -> None:
        self.out = out
        self.plan = plan
        self.dry_run = dry_run
        self.started = started
        self.log_as = log_as
        self.missing = missing
        self.copied = ""
        self.outcome = ops.Outcome(skipped=list(plan.skipped), failed=list(plan.unreadable))

    def as_json(self) -> dict[str, Any]:
        """The object of DESIGN.md."""
        outcome = self.outcome
        value: dict[str, Any] = {
            "store": self.plan.store,
            "dry_run": self.dry_run,
            "scanned": self.plan.scanned,
            "matched": len(self.plan.actions) + len(self.plan.skipped),
            "matched_bytes": self.plan.bytes,
            "deleted": len(outcome.deleted),
            "archived": len(outcome.archived),
            "freed_bytes": outcome.freed,
            "skipped": [{"key": s.ref.key, "reason": s.reason} for s in outcome.skipped],
            "failed": failures(outcome.failed, self.missing),
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.out.verbose or self.dry_run:
            done = self.plan.actions if self.dry_run else outcome.deleted
            value["keys"] = [action.ref.key for action in done]
            value["reasons"] = {action.ref.key: action.reason for action in done}
        return value

    def show_plan(self) -> None:
        """Each session with the reason, as a table."""
        if not self.plan.actions:
            return
        wide = not self.out.is_terminal
        rows = (
            (
                safe_line(a.ref.key) if wide else short_key(a.ref.key),
                "–" if a.messages is None else str(a.messages),
                size(a.stamp.size),
                safe_line(a.reason),
            )
            for a in self.plan.actions
        )
        for line in plain_table(("KEY", "MSGS", "SIZE", "REASON"), rows, (1, 2)):
            self.out.print(line)

    def totals(self) -> str:
        """``2 sessions, 5 messages, 1.2 KB`` of what is planned or, after the act, of what was done."""
        actions = self.plan.actions if self.dry_run else self.outcome.deleted
        messages = sum(a.messages or 0 for a in actions)
        total = sum(a.stamp.size for a in actions)
        return f"{plural(len(actions), 'session')}, {plural(messages, 'message')}, {size(total)}"

    def say(self) -> None:
        """The result, in the wanted format, and a line for people."""
        out = self.out
        if out.format in ("json", "jsonl"):
            out.value(self.as_json())
        elif out.format == "ids":
            done = self.plan.actions if self.dry_run else self.outcome.deleted
            out.rows(({"key": a.ref.key} for a in done), ("key",))
        elif self.dry_run:
            self.show_plan()
        elif self.log_as is None or out.verbose:
            for action in self.outcome.deleted:
                at = action.last_activity_at
                span = "age unknown" if at is None else ago(self.plan.made_at - at)
                out.print(f"deleted {safe_line(action.ref.key)}  {span}  {size(action.stamp.size)}")
        self._say_rest()

    def _say_rest(self) -> None:
        out, outcome = self.out, self.outcome
        if self.log_as is not None and not self.dry_run:
            self._log(self.log_as)
            return
        if out.format == "table" or out.verbose:
            for skip in outcome.skipped:
                out.note(f"skipped {skip.ref.key}: {skip.reason}")
            self._say_strays()
        for failure in outcome.failed:
            out.note(f"failed {failure.ref.key}: {failure.error}")
        verb = "would delete" if self.dry_run else "deleted"
        line = f"{verb} {self.totals()}"
        if outcome.archived:
            line += f", {len(outcome.archived)} archived"
        for name, count in (("skipped", len(outcome.skipped)), ("failed", len(outcome.failed))):
            line += f", {count} {name}" if count else ""
        out.note(f"{line}, {self.plan.scanned:,} looked at")

    def _say_strays(self) -> None:
        """The temporary files that go with their sessions."""
        goes = "would go" if self.dry_run else "went"
        for action in self.plan.actions if self.dry_run else self.outcome.deleted:
            for stray in () if action.is_link else action.strays:
                copied = self.copied if stray.stamp is None or stray.stamp.size else ""
                self.out.note(f"the temporary file {stray.name} {goes} with {action.ref.key}{copied}")

    def _log(self, name: str) -> None:
        """The run in one line, failures and a few skips in one each: what ends up in a log or in a mail of cron."""
        out, outcome = self.out, self.outcome
        for failure in outcome.failed:
            out.note(f"{name}: failed {failure.ref.key}: {failure.error}")
        for skip in outcome.skipped if out.verbose or len(outcome.skipped) <= FEW else ():
            out.note(f"{name}: skipped {skip.ref.key}: {skip.reason}")
        reasons = Counter(getattr(skip.reason, "code", "other") for skip in outcome.skipped)
        kinds = ",".join(f"{reason}:{count}" for reason, count in sorted(reasons.items()))
        store = self.plan.store if " " not in self.plan.store else f'"{self.plan.store}"'
        out.note(
            f"{iso(now_ms())} {name} store={store} scanned={self.plan.scanned} "
            f"matched={len(self.plan.actions) + len(self.plan.skipped)} deleted={len(outcome.deleted)} "
            f"archived={len(outcome.archived)} skipped={len(outcome.skipped)}{f'({kinds})' if kinds else ''} "
            f"failed={len(outcome.failed)} freed_bytes={outcome.freed} "
            f"seconds={time.monotonic() - self.started:.3f}"
        )


def archived(safety: Safety, settings: StoreConfig) -> Safety:
    """``safety`` with the archive that is configured for the store, unless another is named.

    Raises UnknownStore for what names none: before anything is locked or looked at.
    """
    safety = safety if safety.archive is not None else replace(safety, archive=settings.archive)
    if safety.archive is not None:
        from ..stores import open_store

        open_store(safety.archive).close()
    return safety


def carry_out(
    report: Report,
    store: Store,
    common: Common,
    safety: Safety,
    recheck: Callable[[Summary, int], str | None],
    *,
    what: str,
    lock_wait: float,
) -> int:
    """Ask, act and tell; the exit code. With ``--dry-run`` or nothing to do, only tell."""
    plan = report.plan
    archive = open_copies(safety.archive, store, "archive") if safety.archive is not None else None
    if archive is not None:
        report.copied = "; a copy goes to the archive" if safety.dry_run else "; a copy is in the archive"
    if safety.dry_run or not plan.actions:
        report.say()
        return exit_code(report.outcome)
    confirm(report, safety, what)
    code: int | None = None
    lost: StoreError | None = None
    with progress("deleting", len(plan.actions), quiet=common.quiet) as tick, stop_between(tick) as step:
        try:
            ops.apply(
                store,
                plan,
                report.outcome,
                now=now_ms,
                recheck=recheck,
                archive=archive,
                lock_wait=lock_wait,
                locks=not safety.force,
                tick=step,
                stopping=lambda: step.asked,
            )
        except KeyboardInterrupt:
            code = 130
        except StoreError as error:
            lost = error
        finally:
            if archive is not None:
                archive.close()
    report.say()
    if lost is not None:
        raise lost
    if code == 130:
        left = len(plan.actions) - len(report.outcome.deleted)
        report.out.note(f"interrupted: {plural(left, 'session')} {'was' if left == 1 else 'were'} not deleted")
        raise KeyboardInterrupt
    return exit_code(report.outcome)


def open_copies(named: str, store: Store, what: str) -> Store:
    """The store that copies go to; UsageError where they could be sessions of the store that they are copies of."""
    from ..stores import open_store

    copies = open_store(named)
    if copies.place() == store.place():
        raise UsageError(f"the {what} is the store itself: nothing would be kept")
    if copies.overlaps(store):
        raise UsageError(f"the {what} overlaps the store: a key of the one can be a key of the other")
    return copies


def confirm(report: Report, safety: Safety, what: str) -> None:
    """Show the plan and ask at a terminal; elsewhere ``--yes`` is needed, else NeedsConfirmation is raised."""
    if safety.yes:
        return
    plan = report.plan
    summary = f"{plural(len(plan.actions), 'session')}, {size(plan.bytes)}{what}"
    if not report.out.can_ask:
        raise NeedsConfirmation(
            f"this would delete {summary}; it needs --yes when there is no terminal",
            hint="look first with --dry-run",
        )
    report.show_plan()
    for skip in plan.skipped:
        report.out.note(f"kept {skip.ref.key}: {skip.reason}")
    where = f" (a copy goes to {safe_line(hide_secrets(safety.archive))})" if safety.archive else ""
    if not typer.confirm(f"Delete {summary}{where}?", err=True):
        report.out.note("nothing was deleted")
        raise typer.Exit(0)


def exit_code(outcome: ops.Outcome) -> int:
    """8 where sessions failed and others were done; the failure's own code where it is the only one."""
    if not outcome.failed:
        return 0
    codes = {failure.exit_code for failure in outcome.failed}
    return codes.pop() if len(codes) == 1 and not outcome.deleted else SomeFailed.exit_code


def failures(failed: Iterable[ops.Failure], missing: Iterable[tuple[str, SessionctlError]]) -> list[dict[str, str]]:
    """What could not be dealt with, and ids of standard input that name nothing, as DESIGN.md's ``failed``."""
    return [
        *({"key": failure.ref.key, "error": failure.error} for failure in failed),
        *({"key": text, "error": str(error)} for text, error in missing),
    ]


def tell_missing(out: Output, missing: list[tuple[str, SessionctlError]]) -> None:
    """Say which ids of standard input name nothing."""
    for text, error in missing:
        said = str(error)
        out.note(said if quoted(text) in said else f"{quoted(text)}: {said}")
    if any("  " in text.strip() for text, _ in missing):
        out.note("these look like lines of a table; list -o ids prints one key a line")


def cutoff(made_at: int, spans: list[int]) -> str:
    """The exact moment before which sessions are expired."""
    return f", last active before {iso(made_at - min(spans))}" if spans else ""
