"""``sessionctl show``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from .. import codec
from ..errors import SessionDamaged, SomeFailed, StoreError, UsageError
from ..model import Record, Session
from ..ops.follow import last_messages
from ..ops.select import Context, Summary, glimpse, summarise
from ..stores.base import Store, Want
from .complete import keys
from .ids import named
from .options import STORE, Common, NoPager, now_ms, takes
from .output import Output, safe
from .pager import paged
from .removal import tell_missing
from .rows import row
from .transcript import ending, markdown, message_objects, transcript

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples:\n\n  sessionctl show interrupted-one\n\n  sessionctl show user-alice-session --last 2 -o json"
)
@takes
def show(
    common: Annotated[Common, ("table", "json", "jsonl")],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Key, id, or a start of one; - reads them from stdin.",
            show_default=False,
            autocompletion=keys,
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=0, help="Only the last N messages.", rich_help_panel=STORE)
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Cut no text.", rich_help_panel=STORE)] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Also the branches of a log.", rich_help_panel=STORE)] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The stored bytes, exactly.", rich_help_panel=STORE)] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown.", rich_help_panel=STORE)] = False,
    no_pager: NoPager = False,
) -> None:
    """Print the transcript of sessions, with tool calls and their results folded in their place."""
    out = common.out()
    if not ids:
        raise UsageError("name the sessions to show", hint="sessionctl list shows them; - reads ids from stdin")
    if raw and (as_markdown or tree or last is not None or out.format != "table"):
        raise UsageError("--raw prints the bytes as they are and goes with no other form of output")
    if as_markdown and out.format != "table":
        raise UsageError(f"--markdown and -o {out.format} are two forms of output: choose one")
    now = now_ms()
    code = 0
    objects: list[dict[str, Any]] = []
    with common.open(reading=True) as store, paged(out, wanted=not no_pager):
        found = named(store, ids)
        if raw:
            for ref in found.refs:
                _raw(out, store, ref)
        else:
            context = Context.of(store, now, found.refs)
            for number, record in enumerate(store.records(Want.WHOLE, found.refs)):
                if record.error is not None:
                    out.note(f"cannot read {record.ref.key}: {record.error}")
                    code = StoreError.exit_code if len(found.refs) == 1 else SomeFailed.exit_code
                    continue
                if number and out.format == "table" and not as_markdown:
                    out.print()
                if record.payload is None:
                    for_people = out.format == "table" and not (as_markdown or tree)
                    if last and for_people and _show_end(out, store, record, last, full=full, now=now):
                        continue
                session, summary = _read(store, record, context, last)
                if summary.status == "damaged" and not code:
                    code = SessionDamaged.exit_code
                if out.format != "table":
                    value = row(summary) | {"messages": message_objects(session, summary, last, tree)}
                    if out.format == "jsonl":
                        out.value(value)
                    objects.append(value)
                elif as_markdown:
                    out.print(safe(markdown(session, summary, last)))
                else:
                    transcript(out, session, summary, last=last, full=full, tree=tree, now=now)
                _say_damage(out, session, summary)
        if out.format == "json":
            out.value(objects)
    tell_missing(out, found.missing)
    if found.missing and not code:
        code = SomeFailed.exit_code
    raise typer.Exit(code)


def _read(store: Store, record: Record, context: Context, last: int | None) -> tuple[Session, Summary]:
    """A session to be shown; of a large one without any fault no more than the end, if no more is wanted."""
    ref = record.ref
    if record.payload is None and last:
        summary = summarise(store, record, context)
        messages = last_messages(store, ref, record.stamp.size, last) if summary.outline.sound else None
        if messages is not None:
            return Session(ref, summary.outline, messages), summary
    if record.payload is None:
        record = store.get(ref)
    return codec.read(ref, record.payload or b"", context.now), summarise(store, record, context)


def _show_end(out: Output, store: Store, record: Record, last: int, *, full: bool, now: int) -> bool:
    """Show the last messages of a large session without reading the others, if that can be told from its end."""
    messages = last_messages(store, record.ref, record.stamp.size, last)
    if messages is None:
        return False
    ending(out, messages, glimpse(record, messages[-1].at, now), last=last, full=full, now=now)
    return True


def _raw(out: Output, store: Store, ref: Any) -> None:
    """The stored bytes; at a terminal with every control character made visible."""
    for chunk in store.chunks(ref):
        if out.is_terminal:
            sys.stdout.write(safe(chunk.decode("utf-8", "backslashreplace")))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(chunk)


def _say_damage(out: Output, session: Session, summary: Summary) -> None:
    for damage in summary.verdict.findings:
        if damage.severity == "error" or damage.code in ("missing-parent", "missing-final-newline"):
            out.note(f"{session.ref.key}: {damage.where}: {damage.message} ({damage.code})")
