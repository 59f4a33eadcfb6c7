"""``sessionctl list``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import typer

from ..errors import SomeFailed, UsageError
from ..ops.select import SORTS, Summary, Tally, listing
from ..stores.base import Store
from .complete import keys, words
from .options import STORE, Common, Filters, NoPager, choice, inner_folder, now_ms, pattern_hint, takes
from .output import Output, plain_table, plural
from .pager import paged
from .rows import COLUMNS, STATUS_STYLES, cells, middle_cut, problems, row, short_key

app = typer.Typer(add_completion=False)
AT_A_TERMINAL = 50
"""Rows that a terminal shows unless told otherwise."""
MOST_STYLED = 2000
"""Rows that are worth colours; more are written plainly, which is much faster."""
MOST_NOTES = 5
GAP = 2
"""Cells between two columns at a terminal."""
MIN_KEY, MIN_NOTE = 12, 16
"""Cells that a key and a note keep as long as there is room."""
HEAD = ("KEY", "STATUS", "MSGS", "AGE", "SIZE", "NOTE")
RIGHT = (2, 3, 4)


@app.command(
    epilog="Examples:\n\n  sessionctl list --status interrupted --older-than 1h\n\n  sessionctl list -o ids | head -n 3"
)
@takes
def list_sessions(
    common: Common,
    filters: Filters,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATTERN", help="Keys or ids, with * ? [...].", show_default=False, autocompletion=keys),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Not active since: 24h, 2026-01-31, …", rich_help_panel="Which sessions"),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="FIELD",
            help=f"{', '.join(SORTS)}.",
            rich_help_panel=STORE,
            autocompletion=words(*SORTS),
        ),
    ] = "activity",
    reverse: Annotated[
        bool, typer.Option("-r", "--reverse", help="The other way round.", rich_help_panel=STORE)
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", help="At most so many.", min=0, rich_help_panel=STORE)] = None,
    all_: Annotated[
        bool, typer.Option("-a", "--all", help="All rows; a terminal shows 50 unless told.", rich_help_panel=STORE)
    ] = False,
    no_pager: NoPager = False,
) -> None:
    """List sessions, the newest first, with their status and what is wrong with them.

    draft: the user wrote last; interrupted: a tool call has no result;
    awaiting-approval: a person has to allow it; broken: a model API would
    refuse it; damaged: not all can be read; empty: no messages; else ok.
    """
    out = common.out()
    now = now_ms()
    chosen = filters.build(now, tuple(patterns or ()), older_than)
    choice("sort", sort, tuple(SORTS))
    if all_ and limit is not None:
        raise UsageError("--all and --limit exclude each other")
    with common.open(reading=True) as store:
        show: partial[Any] = partial(_cells, now) if out.format == "table" else partial(_text, out)
        shown, tally = listing(
            store,
            now,
            chosen,
            show,
            kinds=filters.kinds,
            by=sort,
            reverse=reverse,
            limit=_limit(out, limit, all_),
        )
        with paged(out, wanted=not no_pager):
            if out.format == "table":
                _table(out, shown)
            else:
                out.rendered(shown, COLUMNS)
        _say(out, tally, len(shown), store, advise=limit is None)
        if out.format == "table" and tally.all and not tally.kept and (hint := pattern_hint(chosen.patterns)):
            out.note(hint)
    if tally.unreadable:
        raise SomeFailed(
            f"{plural(len(tally.unreadable), 'session')} could not be read: "
            + ", ".join(f"{key} ({why})" for key, why in tally.unreadable[:3])
        )


def _limit(out: Output, limit: int | None, all_: bool) -> int | None:
    if limit is None and out.format == "table" and out.is_terminal and not all_:
        return AT_A_TERMINAL
    return limit


class _Cells(NamedTuple):
    """A row of the table, and whether something is wrong with its session."""

    cells: tuple[str, ...]
    bad: bool


def _text(out: Output, summary: Summary) -> str:
    return out.render(row(summary), COLUMNS)


def _cells(now: int, summary: Summary) -> _Cells:
    return _Cells(cells(summary, now, full_key=True), bool(problems(summary)))


def _table(out: Output, rows: list[_Cells]) -> None:
    if not rows:
        return
    if not out.is_terminal or len(rows) > MOST_STYLED:
        for line in plain_table(HEAD, (row.cells for row in rows), RIGHT):
            out.print(line)
        return
    from rich.table import Table
    from rich.text import Text

    console = out.console()
    shown = [_Cells((short_key(key), *rest), bad) for (key, *rest), bad in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    widths = _widths([HEAD, *(row.cells for row in shown)], console.width)
    for index, (name, width) in enumerate(zip(HEAD, widths, strict=False)):
        justify: Literal["left", "right"] = "right" if index in RIGHT else "left"
        table.add_column(name, width=width, justify=justify, overflow="ellipsis", no_wrap=True)
    for (key, status, *rest, note), bad in shown:
        styled = [Text(middle_cut(key, widths[0])), Text(status, STATUS_STYLES[status]), *map(Text, rest)]
        table.add_row(*[*styled, Text(note, "yellow" if bad else "dim")][: len(widths)])
    console.print(table)


def _widths(rows: Iterable[Sequence[str]], space: int) -> list[int]:
    """How wide each column is. Only key and note give way: the note first, down to nothing, then the key."""
    from rich.cells import cell_len

    key, *fixed, note = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    left = space - sum(fixed) - GAP * len(fixed)
    key = max(MIN_KEY, min(key, left - GAP - min(note, MIN_NOTE)))
    room = left - GAP - key
    if room < len(HEAD[-1]):
        return [max(1, min(key, left)), *fixed]
    return [key, *fixed, min(note, room)]


def _say(out: Output, seen: Tally, shown: int, store: Store, *, advise: bool) -> None:
    """The count, and all that is worth a word, on stderr. ``advise``: say how to see all."""
    strays = [f"{s.name} {s.note}" for s in store.strays()]
    for stray in strays[:MOST_NOTES]:
        out.note(f"note: {stray}")
    if len(strays) > MOST_NOTES:
        out.note(f"note: and {len(strays) - MOST_NOTES} more things that are not sessions")
    if out.format != "table":
        return
    if not seen.all:
        inner = inner_folder(store)
        other = (
            "name another store with --store or SESSIONCTL_STORE"
            if inner is None
            else f"there are some with --store {inner}"
        )
        out.note(f"no sessions in {store.url} ({other})")
        return
    parts = [f"{shown:,} of {seen.kept:,} sessions" if shown < seen.kept else f"{plural(seen.kept, 'session')}"]
    if seen.kept < seen.all:
        parts.append(f"{seen.all} in the store")
    if seen.damaged:
        parts.append(f"{seen.damaged} damaged")
    if seen.unreadable:
        parts.append(f"{len(seen.unreadable)} unreadable")
    more = " (--all shows all)" if shown < seen.kept and advise else ""
    out.note(", ".join(parts) + more)
