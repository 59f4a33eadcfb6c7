"""``sessionctl migrate``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from .. import codec
from ..durations import parse_duration, size
from ..errors import NeedsConfirmation, SessionctlError, SomeFailed, StoreError, UsageError
from ..model import Ref, Stamp
from ..ops import migrate as ops
from ..ops.gc import Protection, Skip
from ..stores import open_store
from ..stores.base import Store
from .complete import keys, words
from .ids import Named, named
from .options import FILTER, SAFETY, STORE, Filters, choice, now_ms, settings_of, takes, wait_seconds, warn_of_emptiness
from .output import Output, plain_table, plural, safe_line
from .progress import progress, stop_between
from .removal import failures, tell_missing
from .rows import short_key

app = typer.Typer(add_completion=False)
FORMATS = ("table", "json", "jsonl")
COPIES = "How to copy"
MOST_NOTES = 10
MOST_NAMED = 5


@app.command(
    epilog="Examples:\n\n  sessionctl migrate ~/.seepient/sessions redis://localhost/0 --dry-run\n\n"
    "  sessionctl migrate .sessions redis://localhost/0 --on-conflict newer --delete-source --yes"
)
@takes
def migrate(
    filters: Filters,
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Folder, URL or configured name to copy from.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="Where to copy to; a folder (./NAME) is made if it is not there.", show_default=False
        ),
    ],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Only these sessions; - reads them from stdin.", show_default=False, autocompletion=keys
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Not active since: 24h, 2026-01-31, …", rich_help_panel=FILTER),
    ] = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict",
            metavar="WAY",
            help="For another version at the target: skip (and report it), newer (the later activity wins), overwrite, "
            "or fail (before anything is written).",
            rich_help_panel=COPIES,
            autocompletion=words(*ops.MODES),
        ),
    ] = "skip",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read each copy back and compare.", rich_help_panel=COPIES)
    ] = True,
    ttl: Annotated[
        str,
        typer.Option("--ttl", help="Remaining life of the copies: keep, none, or a duration.", rich_help_panel=COPIES),
    ] = "keep",
    delete_source: Annotated[
        bool,
        typer.Option(
            "--delete-source",
            help="Remove from the source what was copied, verified and not changed since.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show what would be done; do nothing.", rich_help_panel=SAFETY)
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Do not ask (needed without a terminal).", rich_help_panel=SAFETY)
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Remove from the source also what is in use or of uncertain age.", rich_help_panel=SAFETY
        ),
    ] = False,
    min_idle: Annotated[
        str,
        typer.Option("--min-idle", help="Keep at the source what changed within this time.", rich_help_panel=SAFETY),
    ] = "60s",
    lock_wait: Annotated[
        str, typer.Option("--lock-wait", help="How long to wait for a locked session.", rich_help_panel=SAFETY)
    ] = "15s",
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", help="table, json or jsonl.", rich_help_panel=STORE, autocompletion=words(*FORMATS)
        ),
    ] = "table",
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Name every session that was copied.", rich_help_panel=STORE)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Say nothing but errors on stderr.", rich_help_panel=STORE)
    ] = False,
) -> None:
    """Copy sessions from one store to another: payloads byte for byte, with their ages and remaining lives.

    It can be interrupted and run again at any time: what is at the target already is not copied twice.
    """
    started, now = time.monotonic(), now_ms()
    out = Output(choice("output", output, FORMATS), verbose=verbose, quiet=quiet)
    chosen_by = filters.build(now, (), older_than)
    if delete_source and not verify:
        raise UsageError("--delete-source removes only what was verified", hint="leave --no-verify out")
    mode = next(mode for mode in ops.MODES if mode == choice("way to treat conflicts", on_conflict, ops.MODES))
    life = None if ttl in ("keep", "none") else parse_duration(ttl)
    idle, wait = parse_duration(min_idle, wait=True), wait_seconds(lock_wait)
    with open_store(source) as origin, open_store(target) as goal:
        guard = Protection(idle, patterns=settings_of(source, origin).protect, force=force, wait_for_locks=True)
        options = ops.Options(mode, verify, delete_source, ttl == "keep", life, wait, guard)
        ops.check_places(origin, goal, filters.kinds)
        found = named(origin, ids, filters.kinds) if ids else Named([], [])
        with progress("looking", None, quiet=quiet) as tick:
            chosen = ops.choose(origin, chosen_by, now, found.refs if ids else None, tick)
        warn_of_emptiness(out, origin, chosen.scanned if not ids else 1)
        ops.check_kinds(goal, chosen.refs)
        lost = () if ids else ops.lost_mains(origin, filters.kinds)
        report = _Report(
            out, origin, goal, chosen, started, found.missing, dry_run=dry_run, lost=lost, ttl_asked=ttl != "keep"
        )
        if not dry_run and not yes and not out.can_ask and (mode == "overwrite" or delete_source):
            raise NeedsConfirmation(
                f"this would {_deed(mode, delete_source)}; it needs --yes when there is no terminal",
                hint="look first with --dry-run",
            )
        if dry_run:
            report.outcome = _compare(report, options, quiet=quiet)
        elif chosen.refs:
            with (
                ops.crew_of(origin, goal, chosen.refs, now=now_ms) as crew,
                _store_locks(origin, goal, delete_source=delete_source) as check,
            ):
                shown = None
                if not yes and (mode == "overwrite" or delete_source):
                    shown = _confirm(report, options, quiet=quiet)
                _carry_out(report, options, shown, check, crew, quiet=quiet)
        report.say()
    tell_missing(out, found.missing)
    raise typer.Exit(report.exit_code() or (SomeFailed.exit_code if found.missing else 0))


def _deed(mode: str, delete_source: bool) -> str:
    parts = ["overwrite other versions at the target"] if mode == "overwrite" else []
    return " and ".join([*parts, "remove sessions from the source"] if delete_source else parts)


class _Report:
    """One run: what was chosen (``missing`` are ids that name nothing), what came of it, and how it is told.

    ``lost`` are the keys of which the source holds but a temporary file; ``ttl_asked``: ``--ttl`` was given.
    """

    def __init__(
        self,
        out: Output,
        source: Store,
        target: Store,
        chosen: ops.Chosen,
        started: float,
        missing: Sequence[tuple[str, SessionctlError]],
        *,
        dry_run: bool,
        lost: Sequence[str] = (),
        ttl_asked: bool = False,
    ) -> None:
        self.out = out
        self.source = source
        self.target = target
        self.chosen = chosen
        self.started = started
        self.missing = missing
        self.dry_run = dry_run
        self.lost = lost
        self.ttl_asked = ttl_asked
        self.outcome = ops.Outcome()

    def exit_code(self) -> int:
        """8 where a session is not at the target as it is at the source, 7 where that is all there is to say."""
        outcome = self.outcome
        codes = {failure.exit_code for failure in outcome.failed}
        if codes == {StoreError.exit_code} and not (outcome.copied or outcome.identical or outcome.conflicts):
            return StoreError.exit_code
        return SomeFailed.exit_code if outcome.failed or outcome.conflicts else 0

    def as_json(self) -> dict[str, Any]:
        """The object of DESIGN.md, and what was overwritten or is damaged."""
        outcome = self.outcome
        value: dict[str, Any] = {
            "source": self.source.url,
            "target": self.target.url,
            "dry_run": self.dry_run,
            "scanned": self.chosen.scanned,
            "copied": len(outcome.copied),
            "overwritten": len(outcome.replaced),
            "identical": len(outcome.identical),
            "skipped": _reasons(outcome.skipped),
            "conflicts": _reasons(outcome.conflicts),
            "failed": failures(outcome.failed, self.missing),
            "damaged": _reasons(outcome.damaged),
            "verified": outcome.verified,
            "deleted_from_source": len(outcome.deleted),
            "bytes": outcome.bytes,
            "seconds": round(time.monotonic() - self.started, 3),
        }
        if self.out.verbose or self.dry_run:
            value["keys"] = [copy.ref.key for copy in outcome.copied]
        return value

    def say(self, *, hints: bool = True) -> None:
        """The result, in the wanted format, and what people want to know on stderr; ``hints`` ask the stores again."""
        out, outcome = self.out, self.outcome
        if out.format != "table":
            out.value(self.as_json())
        elif self.dry_run or out.verbose:
            self.show()
        if out.format == "table" or out.verbose:
            self._notes("conflict", outcome.conflicts)
            self._notes("skipped", outcome.skipped)
            self._notes("damaged, copied as it is:", outcome.damaged)
        for failure in outcome.failed:
            out.note(f"failed {failure.ref.key}: {failure.error}")
        if hints:
            self._hints()
        out.note(self.summary())

    def _notes(self, what: str, skips: list[Skip]) -> None:
        most = len(skips) if self.out.verbose or not self.out.can_ask else MOST_NOTES
        for skip in skips[:most]:
            self.out.note(f"{what} {skip.ref.key}: {skip.reason}")
        if len(skips) > most:
            self.out.note(f"{what} and {len(skips) - most} more (-v names them all)")

    def _hints(self) -> None:
        """What the copies do not hold, and what an earlier run left behind."""
        out, outcome = self.out, self.outcome
        if outcome.lost_ttl:
            out.note(f"{plural(len(outcome.lost_ttl), 'session')} will not expire: the target keeps no TTL")
        if outcome.lost_age:
            out.note(f"{plural(len(outcome.lost_age), 'log')} could not be given the age they had: the target's limit")
        if outcome.copied and not self.dry_run:
            waiting = codec.approvals(self.source.checkpoints()) if "log" in self.source.kinds else {}
            paused = [copy.ref.key for copy in outcome.copied if copy.ref.kind == "log" and copy.ref.key in waiting]
            if paused:
                them = "it" if len(paused) == 1 else "them"
                out.note(
                    f"{plural(len(paused), 'copied session')} had an open checkpoint, which is not copied: "
                    f"{_few(paused)}; at the target nothing protects {them} as awaiting approval"
                )
        if self.ttl_asked and outcome.identical:
            out.note(f"--ttl was not applied to {plural(len(outcome.identical), 'session')}, there already")
        for key in self.lost:
            out.note(f"{key} is at the source only as a temporary file, not copied (sessionctl repair recovers it)")
        for name in ops.leftovers(self.target)[:MOST_NOTES]:
            out.note(f"the target holds {name}, which an interrupted write left (sessionctl repair)")

    def summary(self) -> str:
        """``copied 3 sessions, 1.2 KB, all verified; 3 looked at``."""
        outcome = self.outcome
        verb = "would copy" if self.dry_run else "copied"
        what = f"{plural(len(outcome.copied), 'session')}, {size(outcome.bytes)}" if outcome.copied else "nothing"
        line = f"{verb} {what}"
        if outcome.copied and not self.dry_run:
            verified = outcome.verified == len(outcome.copied)
            line += ", all verified" if verified else ", not verified"
        if outcome.replaced:
            line += f", {len(outcome.replaced):,} of them over another version"
        for count, name in (
            (len(outcome.identical), "there already"),
            (len(outcome.skipped), "skipped"),
            (len(outcome.conflicts), "in conflict"),
            (len(outcome.failed), "failed"),
            (len(outcome.deleted), f"{'to be ' if self.dry_run else ''}removed from the source"),
        ):
            line += f", {count:,} {name}" if count else ""
        return f"{line}; {self.chosen.scanned:,} looked at"

    def show(self) -> None:
        """What is copied, as a table."""
        outcome = self.outcome
        if not outcome.copied:
            return
        wide = not self.out.is_terminal
        removed = frozenset(outcome.deleted)
        rows = (
            (
                safe_line(copy.ref.key) if wide else short_key(copy.ref.key),
                size(copy.size),
                ("overwrite" if copy.ref in outcome.replaced else "copy") + (", remove" if copy.ref in removed else ""),
            )
            for copy in outcome.copied
        )
        for line in plain_table(("KEY", "SIZE", "ACTION"), rows, (1,)):
            self.out.print(line)


def _few(keys: list[str]) -> str:
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    return ", ".join(keys[:MOST_NAMED]) + more


def _reasons(skips: list[Skip]) -> list[dict[str, str]]:
    return [{"key": skip.ref.key, "reason": skip.reason} for skip in skips]


@contextmanager
def _store_locks(source: Store, target: Store, *, delete_source: bool) -> Iterator[Callable[[], None]]:
    """Keep other runs of gc and migrate away from what is written to. Raises StoreBusy.

    Two stores that are one place under two names cannot both be locked: nothing is ever removed as its own copy.
    """
    with ExitStack() as stack:
        leases = [stack.enter_context(target.lock_store("gc"))]
        if delete_source and source.scope() != target.scope():
            leases.append(stack.enter_context(source.lock_store("gc")))

        def check() -> None:
            for lease in leases:
                lease.check()

        yield check


def _compare(report: _Report, options: ops.Options, *, quiet: bool) -> ops.Outcome:
    refs = report.chosen.refs
    with progress("comparing", len(refs), quiet=quiet) as tick:
        return ops.compare(report.source, report.target, refs, options, now=now_ms, tick=tick)


def _confirm(report: _Report, options: ops.Options, *, quiet: bool) -> dict[Ref, Stamp]:
    """Show what would be done and ask; gives back the versions at the target that may be overwritten."""
    outcome = _compare(report, options, quiet=quiet)
    replaced, gone = len(outcome.replaced), len(outcome.copied) + len(outcome.identical)
    questions = [f"overwrite {plural(replaced, 'session')} at the target"] if replaced else []
    if options.delete_source and gone:
        questions.append(f"remove {plural(gone, 'session')} from the source once verified")
    if questions:
        shown = _Report(report.out, report.source, report.target, report.chosen, report.started, (), dry_run=True)
        shown.outcome = outcome
        shown.show()
        report.out.note(shown.summary())
        asked = " and ".join(questions)
        if not typer.confirm(f"{asked[0].upper()}{asked[1:]}?", err=True):
            report.out.note("nothing was done")
            raise typer.Exit(0)
    return outcome.replaced


def _carry_out(
    report: _Report,
    options: ops.Options,
    shown: dict[Ref, Stamp] | None,
    check: Callable[[], None],
    crew: ops.MigrateCrew | None,
    *,
    quiet: bool,
) -> None:
    """Copy; when it is interrupted, or a store or its lock is lost, what was done until then is told."""
    refs = report.chosen.refs
    with progress("copying", len(refs), quiet=quiet) as tick, stop_between(tick) as step:
        try:
            ops.migrate(
                report.source,
                report.target,
                refs,
                options,
                report.outcome,
                now=now_ms,
                shown=shown,
                check=check,
                tick=step,
                stopping=lambda: step.asked,
                crew=crew,
            )
            return
        except (KeyboardInterrupt, SessionctlError) as error:
            failure: KeyboardInterrupt | SessionctlError = error
    if isinstance(failure, KeyboardInterrupt):
        report.say()
        left = plural(len(refs) - len(report.outcome.told), "session")
        report.out.note(f"interrupted: {left} left; run it again for the rest")
    else:
        report.say(hints=False)
    raise failure
