"""``sessionctl repair``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..config import hide_secrets
from ..durations import parse_duration
from ..errors import SessionInUse, SomeFailed
from ..history import SEVERITY
from ..ops.mend import STRATEGIES, Options, Outcome, Strategy
from ..ops.repair import Backup, Report, check, diff_lines, lost, repair
from .complete import keys, words
from .ids import named
from .options import SAFETY, Common, choice, default_store, now_ms, takes, wait_seconds, warn_of_emptiness
from .output import Output, plural, safe_line
from .progress import Bar, Step, progress, stop_between
from .removal import open_copies, tell_missing
from .rows import STATUS_STYLES

app = typer.Typer(add_completion=False)
FINDINGS_LEFT = 5
WHAT = "What is mended"
_SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_ALIKE = 5
"""Findings of one code in one session that get a line each; more are folded into one."""
_LONGEST = 400
"""Characters of one line at a terminal."""


@app.command(
    epilog="Examples:\n\n  sessionctl repair interrupted-one --dry-run\n\n"
    "  sessionctl repair --only unresolved-tool-call --fix"
)
@takes
def repair_sessions(
    common: Annotated[Common, ("table", "json", "jsonl", "ids")],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Keys, ids, or starts of them; - reads stdin.", show_default=False, autocompletion=keys
        ),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended, after a backup.", rich_help_panel=WHAT)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show as a diff what --fix would change.", rich_help_panel=WHAT)
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="CODE", help="Only this finding.", rich_help_panel=WHAT, autocompletion=words(*SEVERITY)
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip", metavar="CODE", help="Not this finding.", rich_help_panel=WHAT, autocompletion=words(*SEVERITY)
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="WAY",
            help="For calls without a result: results (add one that says the tool did not run), note (besides, a "
            "user's note at the end), truncate (take out an unfinished turn at the end).",
            rich_help_panel=WHAT,
            autocompletion=words(*STRATEGIES),
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

    An error is what a model API or the agent refuses, a warning what may be amiss, an info what is only worth knowing.

    Without ids the whole store is checked. Nothing is written without --fix, and nothing without a verified backup.
    """
    out = common.out()
    fix = fix and not dry_run
    options = Options(
        only=frozenset(choice("finding", code, tuple(SEVERITY)) for code in only or ()),
        skip=frozenset(choice("finding", code, tuple(SEVERITY)) for code in skip or ()),
        strategy=_strategy(strategy),
        drop_drafts=drop_drafts,
        force=force,
    )
    idle, wait = parse_duration(min_idle, wait=True), wait_seconds(lock_wait)
    tally = _Tally(out, mending=fix or dry_run)
    name = default_store(common.store)
    with common.open(reading=True) as store:
        kept = open_copies(backup, store, "backup") if fix and backup is not None else None
        keep = Backup(kept, now=now_ms()) if fix else None
        found = named(store, ids, also=lost(store)) if ids else None
        refs = found.refs if found else None
        with progress("checking", None, quiet=common.quiet) as tick, stop_between(tick) as step:
            if fix or dry_run:
                reports = repair(
                    store,
                    now_ms,
                    keep,
                    refs,
                    options=options,
                    min_idle=idle,
                    lock_wait=wait,
                    protect=common.settings(store).protect,
                    stopping=lambda: step.asked,
                )
            else:
                reports = check(store, now_ms(), refs, options=options)
            try:
                tally.tell(_stepping((_narrowed(report, options) for report in reports), step), tick)
            except KeyboardInterrupt:
                tally.summary(keep, name, interrupted=True)
                raise
        tally.summary(keep, name)
        warn_of_emptiness(out, store, tally.checked if found is None else 1)
        if found:
            tell_missing(out, found.missing)
    code = tally.exit_code(exit_zero)
    raise typer.Exit(SomeFailed.exit_code if found and found.missing and not code else code)


def _strategy(text: str) -> Strategy:
    choice("strategy", text, STRATEGIES)
    return next(strategy for strategy in STRATEGIES if strategy == text)


def _narrowed(report: Report, options: Options) -> Report:
    """A report with only the findings that ``--only`` and ``--skip`` leave."""
    from dataclasses import replace

    wanted = tuple(o for o in report.outcomes if options.wants(o.finding.code))
    return report if len(wanted) == len(report.outcomes) else replace(report, outcomes=wanted)


def _stepping(reports: Iterator[Report], step: Step) -> Iterator[Report]:
    for report in reports:
        yield report
        step()
    step(0)


class _Tally:
    """Prints reports as they come and counts them."""

    def __init__(self, out: Output, *, mending: bool) -> None:
        self.out, self.mending = out, mending
        self.checked = self.with_findings = self.fixed = self.fixable = self.errors_left = 0
        self.failed = self.skipped = self.in_use = 0

    def tell(self, reports: Iterator[Report], bar: Bar) -> None:
        counted = map(self._count, reports)
        if self.out.format == "table":
            for report in self._in_order(r for r in counted if r.outcomes or r.error or r.skipped):
                with bar.hidden():
                    self._print(report)
        elif self.out.format == "ids":
            self.out.rows(({"key": r.ref.key} for r in self._in_order(r for r in counted if r.outcomes)), ("key",))
        else:
            self.out.rows(map(as_object, counted), ())

    def _in_order(self, reports: Iterator[Report]) -> Iterator[Report]:
        """By key where nothing is changed; else as they come, since they tell what is done and may hold payloads."""
        if self.mending:
            yield from reports
            return
        found: list[Report] = []
        try:
            found.extend(reports)
        finally:  # also what was found before an interruption
            yield from sorted(found, key=lambda report: report.ref)

    def _count(self, report: Report) -> Report:
        self.checked += 1
        self.with_findings += bool(report.outcomes)
        self.fixed += sum(o.fixed for o in report.outcomes)
        self.fixable += sum(o.finding.fixable and not o.fixed for o in report.outcomes)
        self.failed += bool(report.error)
        self.skipped += bool(report.skipped)
        self.in_use += report.exit_code == SessionInUse.exit_code
        self.errors_left += report.left and not report.exit_code
        if self.out.format != "table" and (report.error or report.skipped):
            self.out.note(f"{report.ref.key}: {report.error or report.skipped}")
        return report

    def _print(self, report: Report) -> None:
        would = f" → {report.becomes}" if report.becomes not in (None, report.status) else ""
        status = f"  {report.status}{would}"
        self._line(safe_line(report.ref.key), "bold", status, STATUS_STYLES[report.status], hang=2)
        for outcome, mark, more in self._folded(report):
            found = outcome.finding
            said = f"{found.code}  {found.where}: {found.message}"
            said = self._cut(said) + (f", and {more:,} more" if more else "") + (f"  [{mark}]" if mark else "")
            self._line(f"  {found.severity:7} ", _SEVERITY_STYLES[found.severity], said, "")
        shown = len(report.changes) if self.out.verbose else _ALIKE
        for change in report.changes[:shown]:
            self._line("  → ", "green", self._cut(change), "green")
        if report.changes[shown:]:
            self._line("  → ", "green", f"… and {plural(len(report.changes) - shown, 'change')} more", "green")
        if report.before is not None and report.after is not None:
            for line in diff_lines(report.before, report.after):
                style = _DIFF_STYLES.get(line[:1], "dim")
                self._line(f"    {line[:1]}", style, self._cut(line[1:]), style)
        if report.skipped or report.error:
            said = f"left alone: {report.skipped}" if report.skipped else f"failed: {report.error}"
            self._line("  ", "", safe_line(said), "yellow")

    def _folded(self, report: Report) -> Iterator[tuple[Outcome, str, int]]:
        """The findings to be shown with what became of them; of many alike the first, and how many more there are."""
        alike: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in report.outcomes:
            alike.setdefault((outcome.finding.code, self._mark(report, outcome)), []).append(outcome)
        for (_, mark), outcomes in alike.items():
            if len(outcomes) > _ALIKE and not self.out.verbose:
                yield outcomes[0], mark, len(outcomes) - 1
            else:
                yield from ((outcome, mark, 0) for outcome in outcomes)

    def _mark(self, report: Report, outcome: Outcome) -> str:
        """What became of a finding, or else the next step."""
        found = outcome.finding
        if outcome.fixed:
            return "fixed" if report.before is None else "would be fixed"
        if outcome.reason:
            return safe_line(outcome.reason)
        if found.fixable:
            return "" if self.mending else "--fix mends it"
        return NEXT_STEP.get(found.code, "") if (found.code, found.severity) != ("empty-file", "info") else ""

    def _cut(self, text: str) -> str:
        """A line for output; at a terminal what is very long is cut, unless all was asked for."""
        if self.out.is_terminal and not self.out.verbose and len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}… ({len(text):,} characters; -v shows all)"
        return safe_line(text)

    def _line(self, first: str, first_style: str, rest: str, style: str, *, hang: int = 0) -> None:
        """One line in two styles; at a terminal what is too wide goes on below ``rest``, or ``hang`` columns in."""
        if not self.out.is_terminal:
            self.out.print((first + rest).rstrip())
            return
        from rich.text import Text

        console = self.out.console()
        text = Text.assemble((first, first_style), (rest, style))
        indent = hang or len(first)
        head, *more = text.wrap(console, console.width, overflow="fold")
        console.print(head)
        if more:
            left = text[len(head.plain) + (text.plain[len(head.plain)] == " ") :]
            for line in left.wrap(console, max(console.width - indent, 20), overflow="fold"):
                console.print(Text(" " * indent).append_text(line))

    def summary(self, keep: Backup | None, store: str, *, interrupted: bool = False) -> None:
        """The totals, on stderr, and how to take the repair back; ``store`` is the one that was mended, as named."""
        found = f"{self.with_findings:,} with findings" if self.with_findings else "no findings"
        parts = [f"{plural(self.checked, 'session')} checked", found]
        if self.fixed:
            parts.append(f"{plural(self.fixed, 'finding')} {'fixed' if keep else 'would be fixed'}")
        elif self.mending and not (self.skipped or self.failed):
            parts.append("nothing to do")
        elif not self.mending and self.fixable:
            parts.append(f"--fix mends {plural(self.fixable, 'finding')}")
        for count, word in ((self.skipped, "left alone"), (self.failed, "failed")):
            if count:
                parts.append(f"{count:,} {word}")
        self.out.note(("interrupted: " if interrupted else "") + ", ".join(parts))
        if keep is not None and keep.place is not None and not keep.sessions:
            self.out.note(f"copies of the removed temporary files are in {keep.place}")
        elif keep is not None and keep.place is not None:
            self.out.note(f"untouched copies are in {keep.place}; this puts them back:")
            places = f"{shlex.quote(keep.place)} {shlex.quote(hide_secrets(store))}"
            self.out.note(f"  sessionctl migrate {places} --on-conflict overwrite")

    def exit_code(self, exit_zero: bool) -> int:
        """8 where a repair failed, 5 where errors are left, 6 where a session was left alone for being in use."""
        if self.failed:
            return SomeFailed.exit_code
        if self.errors_left and not exit_zero:
            return FINDINGS_LEFT
        return SessionInUse.exit_code if self.in_use else 0


_BACK = "restore it from a backup, or remove it with sessionctl delete"
_BY_HAND = "correct it by hand; show --raw prints what is stored"
NEXT_STEP = {
    "duplicate-tool-call-id": "where an API refuses it, give one of the calls and its result another id by hand",
    "duplicate-tool-result": "the two results differ; take out the wrong one by hand",
    "malformed-tool-call": _BY_HAND,
    "empty-text": "where an API refuses it, take it out by hand",
    "missing-content": "where an API refuses it, add an empty text by hand",
    "draft": "--fix --drop-drafts removes it",
    "torn-tail": _BACK,
    "invalid-json": _BACK,
    "not-a-session": _BACK,
    "empty-file": _BACK,
    "nul-bytes": _BACK,
    "invalid-utf8": _BACK,
    "byte-order-mark": _BACK,
    "missing-parent": "the history begins there; show --tree prints what lies before",
    "several-roots": "show --tree prints what is not in the history",
    "conflicting-entry": _BY_HAND,
    "id-mismatch": "rename the session, or correct the id in it by hand",
    "bad-timestamp": _BY_HAND,
    "timestamp-in-seconds": "multiply it by 1000 by hand",
    "no-owner": "add the owner's id by hand if somebody is to resume it",
    "lone-surrogate": "where an API refuses it, replace it by hand",
    "stray-temporary-file": "remove the file by hand if nobody misses it",
    "wrong-type-key": "another program's key? rename or remove it with that program, or name another prefix",
}
"""What a person can do about a finding that no repair mends, by its code."""


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
