"""``sessionctl gc``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Annotated

import typer

from ..config import hide_secrets
from ..durations import parse_duration
from ..errors import SessionctlError, TooMany, UsageError
from ..ops import gc as ops
from ..ops import keep, metrics, plans
from ..ops.select import Summary
from .complete import keys
from .defaults import given
from .options import (
    SAFETY,
    Common,
    Filters,
    Safety,
    default_store,
    now_ms,
    pattern_hint,
    takes,
    wait_seconds,
    warn_of_emptiness,
)
from .output import Output
from .progress import progress
from .removal import FORMATS, Report, archived, carry_out, cutoff

app = typer.Typer(add_completion=False)
RULES = "What is expired (any rule suffices)"
BATCH = "Plans and metrics"
RULE_NAMES = ops.Rules.__struct_fields__


@app.command(
    epilog="Examples:\n\n  sessionctl gc --older-than 30d --dry-run\n\n"
    "  sessionctl gc --ttl 24h --idle 30m --archive ./old --yes"
)
@takes
def gc(
    *,
    context: typer.Context,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN", help="Only these keys or ids, with * ? [...].", show_default=False, autocompletion=keys
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Not updated for this time.", rich_help_panel=RULES),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Created longer ago than this.", rich_help_panel=RULES)
    ] = None,
    idle: Annotated[
        str | None, typer.Option("--idle", help="No activity for this time.", rich_help_panel=RULES)
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option(
            "--keep-last",
            min=0,
            help="All but the newest N of each owner, however young: a rule of its own.",
            rich_help_panel=RULES,
        ),
    ] = None,
    filters: Filters,
    safety: Safety,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=0, help="Delete at most so many, the oldest first.", rich_help_panel=SAFETY),
    ] = None,
    max_delete: Annotated[
        str | None,
        typer.Option("--max-delete", help="If more than N, or P%, would go, delete nothing.", rich_help_panel=SAFETY),
    ] = None,
    include_damaged: Annotated[
        bool, typer.Option("--include-damaged", help="Also damaged sessions.", rich_help_panel=SAFETY)
    ] = False,
    lock_wait: Annotated[
        str, typer.Option("--lock-wait", help="How long to wait for a locked session.", rich_help_panel=SAFETY)
    ] = "0s",
    save_plan: Annotated[
        str | None,
        typer.Option(
            "--save-plan", metavar="FILE", help="Write what would be deleted; delete nothing.", rich_help_panel=BATCH
        ),
    ] = None,
    plan_file: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Delete what this plan lists and is still as it was listed, nothing else.",
            rich_help_panel=BATCH,
        ),
    ] = None,
    metrics_file: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="FILE", help="Write what was done in Prometheus's text format.", rich_help_panel=BATCH
        ),
    ] = None,
    common: Annotated[Common, FORMATS],
) -> None:
    """Remove the sessions that a rule calls expired.

    Locked and active sessions, those awaiting approval, damaged ones and those of uncertain age are kept.
    """
    out = common.out()
    if given(context, *RULE_NAMES):
        # A rule that was asked for is not widened by one that stands in the configuration.
        older_than = older_than if given(context, "older_than") else None
        ttl = ttl if given(context, "ttl") else None
        idle = idle if given(context, "idle") else None
        keep_last = keep_last if given(context, "keep_last") else None
    rules = ops.Rules(_span(older_than), _span(ttl), _span(idle), keep_last)
    if plan_file is not None:
        others = [*RULE_NAMES, "patterns", "limit", "save_plan", *(field.name for field in fields(filters))]
        if given(context, *others):
            raise UsageError("--plan deletes what the plan lists: rules, filters and --limit do not go with it")
        rules = ops.Rules()
    elif not rules:
        raise UsageError("gc needs a rule: --older-than, --ttl, --idle or --keep-last", hint="such as --older-than 30d")
    if save_plan is not None and given(context, "archive"):
        raise UsageError(
            "--save-plan does not go with --archive: a plan says what is deleted, not where copies go",
            hint="name the archive when the plan is carried out: gc --plan FILE --archive STORE --yes",
        )
    if keep_last is not None and any(span is not None for span in (older_than, ttl, idle)):
        out.note(
            f"note: --keep-last {keep_last} is a rule of its own: all but the newest {keep_last} of each owner go, "
            "also those that no other rule calls expired"
        )
    for option, path in (("--save-plan", save_plan), ("--metrics", metrics_file)):
        if path is not None:
            keep.check_place(path, option)
    most = _most(max_delete)
    if plan_file is not None and most is not None and most[1]:
        raise UsageError("--max-delete takes a number, not a percentage, with --plan")
    run = _Run(common, out, dry_run=safety.dry_run or save_plan is not None, metrics=metrics_file)
    safety = replace(safety, dry_run=run.dry_run)
    chosen = filters.build(run.now, tuple(patterns or ()))
    min_idle = parse_duration(safety.min_idle, wait=True)
    wait = wait_seconds(lock_wait)
    with run.measured(), common.open() as store:
        run.store = store.url
        settings = common.settings(store)
        safety = archived(safety, settings)
        guard = ops.Protection(min_idle, include_damaged, settings.protect, force=safety.force, wait_for_locks=wait > 0)
        acting = not safety.dry_run and (safety.yes or out.can_ask) and store.exists()
        with store.lock_store("gc") if acting else nullcontext():
            if plan_file is not None:
                plan = ops.review(store, plans.load(plan_file, store, run.now), guard, run.now)
            else:
                with progress("looking", None, quiet=common.quiet) as tick:
                    plan = ops.plan_gc(store, rules, chosen, guard, run.now, limit=limit, tick=tick)
            report = run.begin(plan)
            warn_of_emptiness(out, store, plan.scanned)
            _check_most(plan, most, max_delete)
            if safety.dry_run or common.verbose:
                going = {stray.name for action in plan.actions for stray in action.strays}
                for stray in store.strays():
                    if stray.name not in going:
                        out.note(f"left alone: {stray.name} {stray.note}")
            if not plan.actions and not plan.skipped and (hint := pattern_hint(patterns or ())):
                out.note(hint)
            surplus = {a.ref for a in plan.actions if rules.keep_last is not None}

            def recheck(summary: Summary, at: int) -> str | None:
                if rules and ops.expired(summary, rules, at) is None and summary.ref not in surplus:
                    return ops.Reason("changed", "no longer expired")
                return ops.protection(summary, guard, at)

            spans = [span for span in (rules.older_than, rules.idle) if span is not None]
            run.code = carry_out(report, store, common, safety, recheck, what=cutoff(run.now, spans), lock_wait=wait)
            if save_plan is not None:
                plans.save(save_plan, store, plan)
                out.note(f"the plan is in {save_plan}; carry it out with --plan")
    raise typer.Exit(run.code)


class _Run:
    """One run of gc: when it began, what came of it, and its metrics, which are written however it ends."""

    def __init__(self, common: Common, out: Output, *, dry_run: bool, metrics: str | None) -> None:
        self.started = time.monotonic()
        self.now = now_ms()
        self.out = out
        self.dry_run = dry_run
        self.metrics = None if dry_run else metrics
        self.store = default_store(common.store)
        self.report: Report | None = None
        self.code = 0

    def begin(self, plan: ops.Plan) -> Report:
        """The report on what is to be done, told as a log line where nobody looks on."""
        log_as = None if sys.stderr.isatty() else "gc"
        self.report = Report(self.out, plan, dry_run=self.dry_run, started=self.started, log_as=log_as)
        return self.report

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Write the metrics at the end; a failure is one of the things they tell."""
        try:
            yield
        except SessionctlError as error:
            self.code = error.exit_code
            raise
        except (KeyboardInterrupt, typer.Abort):
            self.code = 130
            if self.report is None:
                self.out.note("interrupted: nothing was deleted")
            raise
        finally:
            if self.metrics is not None:
                metrics.write(
                    self.metrics,
                    hide_secrets(self.store),
                    self.report.plan if self.report else None,
                    self.report.outcome if self.report else None,
                    code=self.code,
                    seconds=time.monotonic() - self.started,
                    now=now_ms(),
                )


def _span(text: str | None) -> int | None:
    return None if text is None else parse_duration(text)


def _most(text: str | None) -> tuple[int, bool] | None:
    """``--max-delete``: a number, and whether it is a percentage."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})(%?)", text)
    if match is None or (match[2] and int(match[1]) > 100):
        raise UsageError(f"not a number or percentage: {text!r}", hint="write --max-delete 100 or --max-delete 20%")
    return int(match[1]), bool(match[2])


def _check_most(plan: ops.Plan, most: tuple[int, bool] | None, text: str | None) -> None:
    if most is None:
        return
    number, percent = most
    allowed = plan.scanned * number / 100 if percent else number
    if len(plan.actions) > allowed:
        raise TooMany(
            f"{len(plan.actions)} of {plan.scanned} sessions would be deleted, --max-delete {text} allows "
            f"{int(allowed)}: nothing was deleted",
            hint="look with --dry-run, then raise --max-delete",
        )
