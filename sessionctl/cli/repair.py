"""``sessionctl repair``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..durations import parse_duration
from ..errors import SessionInUse, SomeFailed, UsageError
from ..history import SEVERITY
from ..model import Finding, Ref
from ..ops.mend import STRATEGIES, Options, Strategy
from ..ops.repair import Backup, Report, check, diff_lines, lost, repair
from ..stores.base import Store
from .ids import named
from .options import SAFETY, Common, choice, now_ms, takes, wait_seconds
from .output import Output, plural, safe_line
from .progress import progress, stop_between
from .removal import tell_missing
from .rows import STATUS_STYLES

app = typer.Typer()
FINDINGS_LEFT = 5
WHAT = "What is mended"
_SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}


@app.command(
    epilog="Examples:\n\n  sessionctl repair interrupted-one --dry-run\n\n"
    "  sessionctl repair --only unresolved-tool-call --fix"
)
@takes
def repair_sessions(
    common: Common,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Keys, ids, or starts of them; - reads stdin.", show_default=False),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended, after a backup.", rich_help_panel=WHAT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show as a diff what --fix would change.", rich_help_panel=WHAT)
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CODE", help="Only this finding.", rich_help_panel=WHAT)
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="CODE", help="Not this finding.", rich_help_panel=WHAT)
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="For calls without a result: results (add one that says the tool did not run), note (besides, a "
            "user's note at the end), truncate (take out an unfinished turn at the end).",
            rich_help_panel=WHAT,
        ),
    ] = "results",
    drop_drafts: Annotated[
        bool,
        typer.Option("--drop-drafts", help="Also remove a last message nobody answered.", rich_help_panel=WHAT),
    ] = False,
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup", help="Store for the untouched sessions. Default: a new folder.", rich_help_panel=SAFETY
        ),
    ] = None,
    min_idle: Annotated[
        str, typer.Option("--min-idle", help="Leave alone what changed within this time.", rich_help_panel=SAFETY)
    ] = "60s",
    lock_wait: Annotated[
        str, typer.Option("--lock-wait", help="How long to wait for a locked session.", rich_help_panel=SAFETY)
    ] = "15s",
    force: Annotated[
        bool, typer.Option("--force", help="Also what is in use or of uncertain age.", rich_help_panel=SAFETY)
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="End with 0 in spite of findings.", rich_help_panel=SAFETY)
    ] = False,
) -> None:
    """Find what a model API or the agent itself would refuse, and mend it with --fix.

    Without ids the whole store is checked. Nothing is written without --fix, and nothing without a verified backup.
    """
    out = common.out("table", "json", "jsonl", "ids")
    if fix and dry_run:
        raise UsageError("--fix and --dry-run exclude each other")
    options = Options(
        only=frozenset(choice("finding", code, tuple(SEVERITY)) for code in only or ()),
        skip=frozenset(choice("finding", code, tuple(SEVERITY)) for code in skip or ()),
        strategy=_strategy(strategy),
        drop_drafts=drop_drafts,
        force=force,
    )
    idle, wait = parse_duration(min_idle, zero=True), wait_seconds(lock_wait)
    tally = _Tally(out, mending=fix or dry_run)
    with common.open() as store:
        found = named(store, ids, also=lost(store)) if ids else None
        refs = found.refs if found else None
        keep = _backup(backup) if fix else None
        with progress("checking", None, quiet=common.quiet) as tick, stop_between(tick) as step:
            try:
                reports = _reports(store, refs, keep, options, idle, wait, mending=fix or dry_run)
                tally.tell(_stepping(reports, step))
            except KeyboardInterrupt:
                tally.summary(keep, interrupted=True)
                raise
        tally.summary(keep)
        if found:
            tell_missing(out, found.missing)
    code = tally.exit_code(exit_zero)
    raise typer.Exit(SomeFailed.exit_code if found and found.missing and not code else code)


def _strategy(text: str) -> Strategy:
    choice("strategy", text, STRATEGIES)
    return next(strategy for strategy in STRATEGIES if strategy == text)


def _backup(named_store: str | None) -> Backup:
    from ..stores import open_store

    return Backup(open_store(named_store) if named_store else None, now=now_ms())


def _reports(
    store: Store,
    refs: list[Ref] | None,
    keep: Backup | None,
    options: Options,
    idle: int,
    wait: float,
    *,
    mending: bool,
) -> Iterator[Report]:
    if mending:
        reports = repair(store, now_ms, keep, refs, options=options, min_idle=idle, lock_wait=wait)
    else:
        reports = check(store, now_ms(), refs)
    return (_narrowed(report, options) for report in reports)


def _narrowed(report: Report, options: Options) -> Report:
    """A report with only the findings that ``--only`` and ``--skip`` leave."""
    from dataclasses import replace

    wanted = tuple(o for o in report.outcomes if options.wants(o.finding.code))
    return report if len(wanted) == len(report.outcomes) else replace(report, outcomes=wanted)


def _stepping(reports: Iterator[Report], step: Any) -> Iterator[Report]:
    for report in reports:
        yield report
        step()


class _Tally:
    """Prints reports as they come and counts them."""

    def __init__(self, out: Output, *, mending: bool) -> None:
        self.out, self.mending = out, mending
        self.checked = self.with_findings = self.fixed = self.fixable = self.errors_left = 0
        self.failed = self.skipped = 0

    def tell(self, reports: Iterator[Report]) -> None:
        counted = map(self._count, reports)
        if self.out.format == "table":
            for report in counted:
                self._print(report)
        elif self.out.format == "ids":
            self.out.rows(({"key": r.ref.key} for r in counted if r.outcomes), ("key",))
        else:
            self.out.rows(map(as_object, counted), ())

    def _count(self, report: Report) -> Report:
        self.checked += 1
        self.with_findings += bool(report.outcomes)
        self.fixed += sum(o.fixed for o in report.outcomes)
        self.fixable += sum(o.finding.fixable and not o.fixed for o in report.outcomes)
        self.failed += bool(report.error)
        self.skipped += bool(report.skipped)
        self.errors_left += report.left and not report.skipped and not report.error
        if self.out.format != "table" and (report.error or report.skipped):
            self.out.note(f"{report.ref.key}: {report.error or report.skipped}")
        return report

    def _print(self, report: Report) -> None:
        if not report.outcomes and not report.error:
            return
        self._line(safe_line(report.ref.key), "bold", f"  {report.status}", STATUS_STYLES[report.status])
        for outcome in report.outcomes:
            found = outcome.finding
            mark = "fixed" if outcome.fixed and report.before is None else "would be fixed" if outcome.fixed else ""
            if not mark:
                mark = outcome.reason if self.mending else _remedy(found)
            said = f" {found.code}  {found.where}: {found.message}" + (f"  [{mark}]" if mark else "")
            self._line(f"  {found.severity:7}", _SEVERITY_STYLES[found.severity], safe_line(said), "")
        for change in report.changes:
            self._line("  ", "", safe_line(f"→ {change}"), "green")
        if report.before is not None and report.after is not None:
            for line in diff_lines(report.before, report.after):
                style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
                self._line("    ", "", safe_line(line), style)
        if report.backup:
            self._line("  ", "", safe_line(f"backup in {report.backup}"), "dim")
        if report.skipped or report.error:
            said = f"left alone: {report.skipped}" if report.skipped else f"failed: {report.error}"
            self._line("  ", "", safe_line(said), "yellow")

    def _line(self, first: str, first_style: str, rest: str, style: str) -> None:
        if not self.out.is_terminal:
            self.out.print(first + rest)
            return
        from rich.text import Text

        text = Text(overflow="fold")
        text.append(first, first_style)
        text.append(rest, style)
        self.out.console().print(text)

    def summary(self, keep: Backup | None, *, interrupted: bool = False) -> None:
        """The totals, on stderr."""
        parts = [f"{plural(self.checked, 'session')} checked", f"{self.with_findings} with findings"]
        if self.mending:
            parts.append(f"{plural(self.fixed, 'finding')} {'fixed' if keep else 'would be fixed'}")
        elif self.fixable:
            parts.append(f"--fix mends {plural(self.fixable, 'finding')}")
        for count, word in ((self.skipped, "left alone"), (self.failed, "failed")):
            if count:
                parts.append(f"{count} {word}")
        self.out.note(("interrupted: " if interrupted else "") + ", ".join(parts))
        if keep is not None and keep.place is not None:
            self.out.note(f"untouched copies are in {keep.place}")

    def exit_code(self, exit_zero: bool) -> int:
        """8 where a repair failed, 5 where errors are left, 6 where a session was left alone for being in use."""
        if self.failed:
            return SomeFailed.exit_code
        if self.errors_left and not exit_zero:
            return FINDINGS_LEFT
        return SessionInUse.exit_code if self.skipped else 0


def _remedy(found: Finding) -> str:
    """How a finding can be mended, in a few words."""
    if found.code == "draft":
        return "--drop-drafts --fix removes it"
    return "--fix mends it" if found.fixable else ""


def as_object(report: Report) -> dict[str, Any]:
    """A report as the object that ``repair -o json`` prints."""
    value: dict[str, Any] = {
        "key": report.ref.key,
        "kind": report.ref.kind,
        "status": report.status,
        "findings": [
            {
                "code": o.finding.code,
                "severity": o.finding.severity,
                "where": o.finding.where,
                "message": o.finding.message,
                "fixable": o.finding.fixable,
                "fixed": o.fixed and report.before is None,
            }
            for o in report.outcomes
        ],
        "backup": report.backup,
    }
    if report.skipped or report.error:
        value["reason"] = report.skipped or report.error
    return value
