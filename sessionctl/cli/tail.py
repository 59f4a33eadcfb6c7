"""``sessionctl tail``."""

from __future__ import annotations

import select
import shlex
import sys
import time
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ..durations import iso, parse_duration, parse_moment
from ..errors import InvalidDuration, SomeFailed, StoreError, StoreNotFound, UsageError
from ..model import Message, Ref
from ..ops import cursor as cursors
from ..ops import keep
from ..ops.follow import Follower, News, in_order, stamps
from ..ops.watch import looks
from ..stores.base import Store
from .complete import keys
from .ids import named
from .options import STORE, Common, now_ms, takes
from .output import Output, indented, plural, safe_line, to_json
from .rows import middle_cut, short_key
from .transcript import Line, message_object, standalone

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(add_completion=False)
LAST = 10
"""Messages that are shown unless told otherwise."""
FOLLOWING = "Following"
_BASE = ("cyan", "green", "yellow", "magenta", "blue", "red")
COLOURS = (*_BASE, *(f"bright_{name}" for name in _BASE))
SAVE_EVERY = 1.0
"""Seconds between two writings of a cursor of more than MANY sessions; a smaller one is written at once."""
MANY = 200
DAY = 86_400_000


@app.command(
    epilog="Examples:\n\n  sessionctl tail user-alice-session -n 3\n\n"
    "  sessionctl tail --since 7d --cursor ./tail.cursor -o jsonl"
)
@takes
def tail(
    common: Annotated[Common, ("table", "json", "jsonl")],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Key, id, or a start of one. Default: all sessions.",
            show_default=False,
            autocompletion=keys,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("-n", "--last", min=0, help=f"The last N messages ({LAST}).", rich_help_panel=FOLLOWING),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Messages since 24h, 2026-01-31, …", rich_help_panel=FOLLOWING)
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.", rich_help_panel=FOLLOWING)
    ] = False,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="FILE", help="Go on where the last call ended.", rich_help_panel=FOLLOWING),
    ] = None,
    poll: Annotated[
        str | None,
        typer.Option(
            "--poll", help="Look so often (1s), where the system tells of no changes.", rich_help_panel=FOLLOWING
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Cut no text.", rich_help_panel=STORE)] = False,
) -> None:
    """Print the last messages of sessions, and with -f what is added to them.

    Without ids it is about all sessions, also those that appear later. Deleted, replaced, shortened and half-written
    files are survived, and so is a server that goes away for a while.
    """
    out = common.out()
    if follow and out.format == "json":
        raise UsageError("-o json ends with a bracket and -f never ends", hint="use -o jsonl with -f")
    now = now_ms()
    moment = parse_moment(since, now) if since is not None else None
    pace = _pace(poll) if poll is not None else None
    if cursor is not None:
        keep.check_place(cursor, "--cursor")
    with common.open(reading=True) as store:
        known = cursors.load(cursor, keep.identity(store)) if cursor is not None else None
        refs = frozenset(named(store, ids).refs) if ids else None
        follower = Follower(store, known)
        printer = Printer(out, several=refs is None or len(refs) > 1, full=full)
        kept = Kept(cursor, keep.identity(store), follower)
        try:
            try:
                if known is None:
                    news = _start(follower, refs, last, moment, everything=follow or cursor is not None)
                else:
                    news = list(follower.look(refs))
            except StoreNotFound as error:
                if not follow or refs is not None:
                    raise
                out.note(f"{error}; waiting for it")
                news = []
            overall = last if last is not None else LAST if known is None and moment is None else None
            printer.say(news, moment, overall if refs is None else None)
            kept.save()
            if follow:
                _follow(store, follower, printer, kept, refs, pace)
        finally:
            kept.save(at_once=True)
        printer.end()
        if refs is not None and follower.unreadable:
            unread = [safe_line(ref.key) for ref in follower.unreadable]
            raise SomeFailed(
                f"{plural(len(unread), 'session')} could not be read: {', '.join(unread[:3])}",
                hint=f"sessionctl show -s {shlex.quote(store.url)} {shlex.quote(unread[0])} tells why",
            )


def _pace(text: str) -> float:
    """``--poll`` in seconds."""
    pace = parse_duration(text, wait=True) / 1000
    if not pace:
        raise InvalidDuration(f"{text!r} between two looks")
    return pace


def _start(
    follower: Follower, refs: frozenset[Ref] | None, last: int | None, moment: int | None, *, everything: bool
) -> list[News]:
    """The last messages; with ``everything`` also the position of the sessions that are not shown."""
    found = stamps(follower.store, refs)
    count = last if last is not None else LAST
    if refs is not None:
        shown = found
    elif moment is not None:
        shown = [pair for pair in found if pair[1].changed_at is None or pair[1].changed_at >= moment]
    else:
        shown = found[:count]  # no other session can hold one of the newest ``count`` messages
    others = found[len(shown) :] if moment is None else [pair for pair in found if pair not in set(shown)]
    if everything:
        for _ in follower.start(reversed(others), 0):
            pass
    news: list[News] = []
    for pair in reversed(shown):
        # A message's own time says whether it is meant; a log has none, so that there the number decides.
        wanted = None if moment is not None and last is None and pair[0].kind == "document" else count
        news.extend(follower.start([pair], wanted))
    return news


def _follow(
    store: Store,
    follower: Follower,
    printer: Printer,
    kept: Kept,
    refs: frozenset[Ref] | None,
    pace: float | None,
) -> None:
    lost = False
    while True:
        for look in looks(store, refs, follower.active, pace):
            stop_if_unread()
            try:
                news = list(follower.look(look)) if look is None or look else []
            except StoreError as error:
                if not lost and (follower.known() or not isinstance(error, StoreNotFound)):
                    printer.out.note(f"{error}; trying again")
                lost = True
                time.sleep(1)
                break  # begin anew: with a look at everything, and with no idea of what a look costs
            if lost and (look is None or look):
                printer.out.note(f"{store.url} answers again")
                lost = False
            printer.say(news)
            kept.save(changed=bool(news))


def stop_if_unread() -> None:
    """Raise BrokenPipeError if standard output is a pipe that nobody reads any more; otherwise told only by a write."""
    if not hasattr(select, "poll") or sys.stdout.isatty():
        return
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


class Kept:
    """The cursor file, if there is one: written after what it stands for has been printed."""

    def __init__(self, path: str | None, store: str, follower: Follower) -> None:
        self.path = path
        self.store = store
        self.follower = follower
        self.changed = False
        self.saved_at = 0.0

    def save(self, *, changed: bool = True, at_once: bool = False) -> None:
        """Write it if something has changed, a large one not too often."""
        self.changed = (self.changed or changed) and self.path is not None
        if at_once and not changed and not self.changed:
            return
        due = time.monotonic() - self.saved_at >= SAVE_EVERY or len(self.follower.positions) <= MANY
        if self.path is not None and self.changed and (due or at_once):
            cursors.save(self.path, self.store, self.follower.positions)
            self.saved_at = time.monotonic()
            self.changed = False


class Printer:
    """Prints news: lines for people, each led by its session where there are several, or an object a message."""

    def __init__(self, out: Output, *, several: bool, full: bool) -> None:
        self.out = out
        self.several = several
        self.full = full
        self.count = 0
        self.console: Console | None = None
        if out.format == "table" and out.is_terminal:
            self.console = out.console()

    def say(self, news: Iterable[News], since: int | None = None, most: int | None = None) -> None:
        """Print messages in the order of their times, flushed; notes go to stderr."""
        news = list(news)
        for item in news:
            for note in item.notes:
                self.out.note(f"{item.ref.key} {note}")
        messages = in_order(news, since)
        for ref, message in messages if most is None else messages[len(messages) - min(most, len(messages)) :]:
            if self.out.format == "table":
                self._lines(ref, message)
            else:
                value: dict[str, object] = {"key": ref.key, "kind": ref.kind}
                value |= message_object(message, [call.result is not None for call in message.tool_calls])
                self._value(value)
            self.count += 1
        sys.stdout.flush()

    def _value(self, value: dict[str, object]) -> None:
        if self.out.format == "jsonl":
            self.out.value(value)
            sys.stdout.flush()
        else:
            sys.stdout.write(("," if self.count else "[") + "\n" + indented(to_json(value, indent=2)))

    def end(self) -> None:
        if self.out.format == "json":
            self.out.print("\n]" if self.count else "[]")

    def _lines(self, ref: Ref, message: Message) -> None:
        head, *lines = standalone(message, self.full)
        if self.several:
            # The first line goes beside who says it, so that a message of one line takes one.
            head = head._replace(text=f"{clock(message.at, now_ms())}{safe_line(message.role) or '(no role)'}")
            first = [lines.pop(0)] if lines and lines[0].indent == 2 else []
        else:
            first = []
            if self.count:
                self.out.print()
        if self.console is None:
            lead = f"{safe_line(ref.key)}  " if self.several else ""
            self.out.print(lead + "  ".join([head.text, *(line.text for line in first)]))
            for line in lines:
                self.out.print(lead + " " * line.indent + line.text)
        else:
            self._coloured(self.console, ref, head, first, lines)

    def _coloured(self, console: Console, ref: Ref, head: Line, first: list[Line], lines: list[Line]) -> None:
        """At a terminal: each line, also one that had to be folded, is led by its session in its own colour."""
        from rich.text import Text

        lead = Text()
        if self.several:
            name = middle_cut(short_key(ref.key), max(16, console.width // 3))
            lead = Text(f"{name}  ", COLOURS[zlib.crc32(ref.key.encode("utf-8", "surrogatepass")) % len(COLOURS)])
        opening = Text(head.text, head.style)
        for line in first:
            opening = Text.assemble(opening, "  ", (line.text, line.style))
        for indent, text in [(0, opening), *((line.indent, Text(line.text, line.style)) for line in lines)]:
            room = max(20, console.width - lead.cell_len - indent)
            text.overflow = "fold"
            for number, part in enumerate(text.wrap(console, room - 2 if indent == 0 else room) or [text]):
                margin = indent if number == 0 or indent else 2
                console.print(Text.assemble(lead, " " * margin, part), soft_wrap=True)


def clock(at: int | None, now: int) -> str:
    """When a message was written, short: the time within the last day, else the date; with a space behind it."""
    written = iso(at)
    if at is None or written is None:
        return ""
    return f"{written[11:19] if abs(now - at) < DAY else written[:10]} "
