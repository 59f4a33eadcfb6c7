"""``sessionctl gc``."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from typing import Annotated

import typer

from ..durations import parse_duration
from ..errors import TooMany, UsageError
from ..ops import gc as ops
from ..ops.select import Summary
from .defaults import given
from .options import SAFETY, Common, Filters, Safety, now_ms, takes, wait_seconds
from .progress import progress
from .removal import FORMATS, Report, archived, carry_out, cutoff

app = typer.Typer(add_completion=False)
RULES = "What is expired (either rule suffices)"


@app.command(
    epilog="Examples:\n\n  sessionctl gc --older-than 30d --dry-run\n\n"
    "  sessionctl gc --ttl 24h --idle 30m --archive ./old --yes"
)
@takes
def gc(
    context: typer.Context,
    common: Common,
    filters: Filters,
    safety: Safety,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Only these keys or ids, with * ? [...].", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Not updated for this time.", rich_help_panel=RULES)
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="Created longer ago than this.", rich_help_panel=RULES)
    ] = None,
    idle: Annotated[
        str | None, typer.Option("--idle", help="No activity for this time.", rich_help_panel=RULES)
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=0, help="All but the newest N of each owner.", rich_help_panel=RULES),
    ] = None,
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
) -> None:
    """Remove the sessions that a rule calls expired.

    Locked and active sessions, those awaiting approval, damaged ones and those of uncertain age are kept.
    """
    started, now = time.monotonic(), now_ms()
    out = common.out(*FORMATS)
    if given(context, *ops.Rules.__struct_fields__):
        # A rule that was asked for is not widened by one that stands in the configuration.
        older_than = older_than if given(context, "older_than") else None
        ttl = ttl if given(context, "ttl") else None
        idle = idle if given(context, "idle") else None
        keep_last = keep_last if given(context, "keep_last") else None
    rules = ops.Rules(_span(older_than), _span(ttl), _span(idle), keep_last)
    if not rules:
        raise UsageError("gc needs a rule: --older-than, --ttl, --idle or --keep-last", hint="such as --older-than 30d")
    chosen = filters.build(now, tuple(patterns or ()))
    min_idle = parse_duration(safety.min_idle, zero=True)
    wait = wait_seconds(lock_wait)
    most = _most(max_delete)
    with common.open() as store:
        settings = common.settings(store)
        safety = archived(safety, settings)
        guard = ops.Protection(min_idle, include_damaged, settings.protect, force=safety.force)
        acting = not safety.dry_run and (safety.yes or out.can_ask) and store.exists()
        with store.lock_store("gc") if acting else nullcontext():
            with progress("looking", None, quiet=common.quiet) as tick:
                plan = ops.plan_gc(store, rules, chosen, guard, now, limit=limit, tick=tick)
            _check_most(plan, most, max_delete)
            report = Report(out, plan, dry_run=safety.dry_run, started=started)
            if safety.dry_run or common.verbose:
                for stray in store.strays():
                    out.note(f"left alone: {stray.name} {stray.note}")
            surplus = {a.ref for a in plan.actions if rules.keep_last is not None}

            def recheck(summary: Summary, at: int) -> str | None:
                if ops.expired(summary, rules, at) is None and summary.ref not in surplus:
                    return "no longer expired"
                return ops.protection(summary, guard, at)

            spans = [span for span in (rules.older_than, rules.idle) if span is not None]
            code = carry_out(report, store, common, safety, recheck, what=cutoff(now, spans), lock_wait=wait)
    raise typer.Exit(code)


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
