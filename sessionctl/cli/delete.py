"""``sessionctl delete``."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..durations import parse_duration
from ..errors import SessionInUse, SomeFailed, UsageError
from ..ops import gc as ops
from ..ops.repair import lost
from ..ops.select import Context, Summary, summarise
from ..stores.base import Want
from .complete import keys
from .ids import named
from .options import SAFETY, Common, Safety, now_ms, takes, wait_seconds
from .removal import FORMATS, Report, archived, carry_out, tell_missing

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples:\n\n  sessionctl delete user-alice-session --dry-run\n\n"
    "  sessionctl list --status empty -o ids | sessionctl delete - --yes"
)
@takes
def delete(
    common: Annotated[Common, FORMATS],
    safety: Safety,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Key, id, or start of one; - reads them from stdin.",
            show_default=False,
            autocompletion=keys,
        ),
    ] = None,
    lock_wait: Annotated[
        str, typer.Option("--lock-wait", help="How long to wait for a locked session.", rich_help_panel=SAFETY)
    ] = "15s",
) -> None:
    """Remove the named sessions.

    Locked and active sessions, those awaiting approval and those of uncertain age are kept, unless --force is given.
    """
    started, now = time.monotonic(), now_ms()
    out = common.out()
    if not ids:
        raise UsageError("name the sessions to delete", hint="sessionctl list shows them; - reads ids from stdin")
    min_idle = parse_duration(safety.min_idle, wait=True)
    wait = wait_seconds(lock_wait)
    with common.open() as store:
        settings = common.settings(store)
        safety = archived(safety, settings)
        guard = ops.Protection(min_idle, patterns=settings.protect, force=safety.force, wait_for_locks=True)
        links = [action for text in dict.fromkeys(ids) for action in ops.link_actions(store, text)]
        others = [text for text in ids if all(text != link.ref.key for link in links)]
        found = named(store, others, also=lost(store))
        context = Context.of(store, now, found.refs)
        summaries = [summarise(store, record, context) for record in store.records(Want.WHOLE, found.refs)]
        left = [summarise(store, record, context) for record in ops.left_behind(store, context, found.refs)]
        plan = ops.plan_delete(summaries, guard, now, context, store.url, len(found.refs) + len(links), links, left)
        report = Report(out, plan, dry_run=safety.dry_run, started=started, missing=found.missing)

        def recheck(summary: Summary, at: int) -> str | None:
            return ops.protection(summary, guard, at)

        code = carry_out(report, store, common, safety, recheck, what="", lock_wait=wait)
    tell_missing(out, found.missing)
    if not code and found.missing:
        code = SomeFailed.exit_code
    if not code and report.outcome.skipped:
        code = SessionInUse.exit_code
        forced = sum(getattr(skip.reason, "code", "") in ops.FORCED for skip in report.outcome.skipped)
        if out.format == "table" and forced:
            which = "it" if len(report.outcome.skipped) == 1 else f"{forced} of them"
            out.note(f"--force deletes {which} all the same")
    raise typer.Exit(code)
