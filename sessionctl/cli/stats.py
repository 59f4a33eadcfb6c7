"""``sessionctl stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..durations import iso, size
from ..errors import SomeFailed
from ..ops.select import Summary, survey
from ..ops.stats import Count, Stats, gather
from .complete import keys
from .options import Common, Filters, now_ms, takes, warn_of_emptiness
from .output import Output, ascii_only, plain_table, plural, safe_line
from .progress import progress
from .rows import STATUS_STYLES, age, row, short_key

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

app = typer.Typer(add_completion=False)
NAMED = 10
"""Names of a group that are shown; the rest is summed up."""
BAR = 20
"""Width of the longest bar without a terminal, in cells."""
EIGHTHS = " ▏▎▍▌▋▊▉"
MIDDLE, LARGE = 110, 170
"""Columns of a terminal from which sections stand beside each other, by two and by three."""
TITLES = {"status": "STATUS", "kind": "KIND", "owner": "OWNER", "tenant": "TENANT", "agent": "AGENT", "model": "MODEL"}


class Section(NamedTuple):
    """A table of the report: its title, its lines (name, sessions, bytes, share of the longest bar), whether it counts
    a few named things or makes a histogram."""

    title: str
    lines: list[tuple[str, int, int, float]]
    style: str


@app.command(epilog="Examples:\n\n  sessionctl stats\n\n  sessionctl stats --kind document -o json")
@takes
def stats(
    common: Annotated[Common, ("table", "json")],
    filters: Filters,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN", help="Only these keys or ids, with * ? [...].", show_default=False, autocompletion=keys
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Not active since: 24h, 2026-01-31, …", rich_help_panel="Which sessions"),
    ] = None,
) -> None:
    """Count sessions and bytes by status, kind, owner, tenant, agent and model, with ages and sizes as bars.

    The ten largest and the ten oldest sessions are named.
    """
    out = common.out()
    now = now_ms()
    chosen = filters.build(now, tuple(patterns or ()), older_than)
    with common.open(reading=True) as store, progress("looking", None, quiet=common.quiet) as tick:

        def ticked() -> Any:
            for summary in survey(store, now, kinds=filters.kinds):
                tick()
                if chosen.allows(summary):
                    yield summary

        found = gather(ticked(), now)
        url = store.url
        warn_of_emptiness(out, store, found.total.sessions)
    if out.format == "json":
        out.value(as_json(found, url, now))
    elif not found.total.sessions:
        out.note(f"no such sessions in {url}")
    elif out.is_terminal:
        _styled(out, found, url, now)
    else:
        _plain(out, found, url, now)
    if found.unreadable:
        raise SomeFailed(f"{plural(found.unreadable, 'session')} could not be read")


def as_json(found: Stats, store: str, now: int) -> dict[str, Any]:
    """The figures as the object that ``-o json`` prints."""

    def counts(some: list[Count]) -> list[dict[str, Any]]:
        return [{"name": c.name, "sessions": c.sessions, "bytes": c.bytes} for c in some]

    return {
        "store": store,
        "at": iso(now),
        "sessions": found.total.sessions,
        "messages": found.messages,
        "bytes": found.total.bytes,
        "unreadable": found.unreadable,
        **{f"by_{name}": counts(group) for name, group in found.groups.items()},
        "ages": counts(found.ages),
        "sizes": counts(found.sizes),
        "largest": [row(summary) for summary in found.largest],
        "oldest": [row(summary) for summary in found.oldest],
    }


def headline(found: Stats, store: str) -> str:
    """The totals in one line."""
    total = found.total
    return f"{plural(total.sessions, 'session')}, {plural(found.messages, 'message')}, {size(total.bytes)} in {store}"


def sections(found: Stats) -> list[Section]:
    """The groups that say anything, and the histograms."""
    made = [
        Section(TITLES[name], _lines(_cut(group), dashes=True), name)
        for name, group in found.groups.items()
        if name in ("status", "kind") or any(count.name is not None for count in group)
    ]
    made[2:2] = [
        Section("LAST ACTIVE", _lines(found.ages), "age"),
        Section("SIZE", _lines(found.sizes), "size"),
    ]
    return made


def _cut(group: list[Count]) -> list[Count]:
    rest = group[NAMED:]
    if len(rest) < 2:
        return group
    others = Count(f"{len(rest)} others", sum(c.sessions for c in rest), sum(c.bytes for c in rest))
    return [*group[:NAMED], others]


def _lines(counts: list[Count], *, dashes: bool = False) -> list[tuple[str, int, int, float]]:
    longest = max((count.sessions for count in counts), default=0) or 1
    return [
        (
            "(none)" if count.name is None else short_key(f"{count.name}:")[:-1] if dashes else count.name,
            count.sessions,
            count.bytes,
            count.sessions / longest,
        )
        for count in counts
    ]


def bar(share: float, width: int, *, plain: bool) -> str:
    """A bar of at most ``width`` cells; whatever is not nothing is to be seen."""
    if plain:
        return "#" * (max(1, round(share * width)) if share else 0)
    eighths = max(1, round(share * width * 8)) if share else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _top(summaries: list[Summary], now: int, *, full: bool) -> list[tuple[str, str, str, str]]:
    return [
        (
            safe_line(summary.ref.key) if full else short_key(summary.ref.key),
            summary.status,
            age(summary, now),
            size(summary.stamp.size),
        )
        for summary in summaries
    ]


def _plain(out: Output, found: Stats, store: str, now: int) -> None:
    plain = ascii_only()
    out.print(safe_line(headline(found, store)))
    for section in sections(found):
        out.print()
        rows = [
            (name, f"{count:,}", size(total), bar(share, BAR, plain=plain))
            for name, count, total, share in section.lines
        ]
        for line in plain_table((section.title, "SESSIONS", "BYTES", ""), rows, (1, 2)):
            out.print(line)
    for title, top in (("LARGEST", found.largest), ("OLDEST", found.oldest)):
        out.print()
        for line in plain_table((title, "STATUS", "AGE", "SIZE"), _top(top, now, full=True), (2, 3)):
            out.print(line)


def _styled(out: Output, found: Stats, store: str, now: int) -> None:
    """At a terminal: sections beside each other as far as there is room, bars in colour."""
    from rich.cells import cell_len
    from rich.text import Text

    console = out.console()
    plain = ascii_only()
    abreast = 1 if console.width < MIDDLE else 2 if console.width < LARGE else 3
    room = (console.width - 4 * (abreast - 1)) // abreast

    shown = sections(found)
    longest = min(max(cell_len(line[0]) for section in shown for line in section.lines), room // 3)
    width = max(6, room - longest - 24)

    def table(section: Section) -> Table:
        made = _table((section.title, "SESSIONS", "BYTES"), room)
        made.add_column("", no_wrap=True, width=width)
        for name, count, total, share in section.lines:
            colour = STATUS_STYLES.get(name, "cyan") if section.style == "status" else "cyan"
            made.add_row(
                Text(name, "dim" if name == "(none)" else ""),
                Text(f"{count:,}", "" if count else "dim"),
                Text(size(total), "" if count else "dim"),
                Text(bar(share, width, plain=plain), colour),
            )
        return made

    def top(title: str, summaries: list[Summary], room: int) -> Table:
        made = _table((title, "AGE", "SIZE"), room)
        made.add_column("STATUS", no_wrap=True)
        for key, status, old, large in _top(summaries, now, full=False):
            made.add_row(Text(key), Text(old), Text(large), Text(status, STATUS_STYLES[status]))
        return made

    console.print(Text(safe_line(headline(found, store)), "bold"))
    console.print()
    console.print(_beside([table(section) for section in shown], abreast, room))
    abreast = min(abreast, 2)
    room = (console.width - 4 * (abreast - 1)) // abreast
    tops = [top("LARGEST", found.largest, room), top("OLDEST", found.oldest, room)]
    console.print(_beside(tops, abreast, room))


def _table(head: tuple[str, str, str], width: int) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", width=width, show_edge=False)
    made.add_column(head[0], overflow="ellipsis", no_wrap=True, ratio=1)
    made.add_column(head[1], justify="right", no_wrap=True)
    made.add_column(head[2], justify="right", no_wrap=True)
    return made


def _beside(tables: list[Table], abreast: int, width: int) -> Group:
    """Tables in so many columns, each column filled from the top, all about equally high."""
    from rich.console import Group
    from rich.table import Table

    columns: list[list[Any]] = [[] for _ in range(abreast)]
    heights = [0] * abreast
    for table in tables:
        shortest = heights.index(min(heights))
        columns[shortest] += [table, ""]
        heights[shortest] += table.row_count + 2
    grid = Table.grid(padding=(0, 4, 0, 0))
    for _ in columns:
        grid.add_column(width=width)
    grid.add_row(*(Group(*column) for column in columns))
    return Group(grid)
