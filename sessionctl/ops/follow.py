"""Following sessions: what is new in a session since a position, and the reading of it.

What is new is told purely (``new_from``, ``read_document``, ``read_entries``), from a position and what is stored now;
``Follower`` reads the stores. A document is known again by the ids of its last messages, since it is rewritten whole; a
log by how far it was read and by the bytes before that place, since it grows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from ..codec.documents import parse_document
from ..codec.logs import Line, lines_of, parent_of, read_line
from ..codec.messages import message_of
from ..errors import SessionNotFound, StoreError
from ..model import KINDS, Message, Ref, Stamp
from ..stores.base import Store, Want

KEEP = 16
"""Messages by which a session is known again."""
CHECKED = 256
"""Bytes before the place up to which a log was read that must be as they were."""
END = 1 << 16
"""Bytes of a log's end that are looked at first."""
MOST_ACTIVE = 50
"""Sessions that are taken to be active: those that changed last."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a session was read: the marks of its last messages, the oldest first; of a log also the bytes read, and
    a digest of the last of them."""

    last: tuple[str, ...] = ()
    offset: int = 0
    check: str = ""


class News(NamedTuple):
    """What a look at a session brought: new messages in their order, and notes for people.

    ``changed_at`` (ms, or None) stands for the messages that carry no time.
    """

    ref: Ref
    messages: tuple[Message, ...]
    notes: tuple[str, ...] = ()
    changed_at: int | None = None


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def mark(message: Message) -> str:
    """What a message is known by: its id, else its role and text."""
    named = f"#{message.id}" if message.id else f"{message.role}\n{message.text}"
    return digest(named.encode("utf-8", "surrogatepass"))


def new_from(last: Sequence[str], found: Sequence[str]) -> list[int] | None:
    """The indexes in ``found`` that come after the last message known, where ``last`` are the marks of those known.

    A message known that is gone (a dropped draft, a shortened history) is passed over for the one before it. None if
    no message known is there any more: it is another conversation.
    """
    if not last:
        return list(range(len(found)))
    places: dict[str, list[int]] = {}
    for index, name in enumerate(found):
        places.setdefault(name, []).append(index)
    for end in range(len(last), 0, -1):
        candidates = places.get(last[end - 1])
        if candidates:
            at = max(candidates, key=lambda index: (_agreement(last[:end], found[: index + 1]), -index))
            known = set(last[end:])
            return [index for index in range(at + 1, len(found)) if found[index] not in known]
    return None


def _agreement(one: Sequence[str], other: Sequence[str]) -> int:
    """How many marks at the end of two sequences are the same."""
    count = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            break
        count += 1
    return count


class Reading(NamedTuple):
    """What was read: the position after it, the new messages, whether it is another conversation, and how much damage
    was passed over."""

    position: Position
    messages: tuple[Message, ...]
    replaced: bool = False
    damage: int = 0


def read_document(position: Position | None, payload: bytes) -> Reading | None:
    """What is new in a document; None if it cannot be read (a writer may be at work on it)."""
    document, _ = parse_document(payload)
    if document is None:
        return None
    messages = [message_of(value) for value in document["messages"]]
    marks = [mark(message) for message in messages]
    new = new_from(position.last if position else (), marks)
    chosen = messages if new is None else [messages[index] for index in new]
    return Reading(Position(tuple(marks[-KEEP:])), tuple(chosen), replaced=new is None)


def read_document_end(store: Store, ref: Ref, size: int, count: int) -> Reading | None:
    """The last messages of a document, at least ``count``, reading no more of it than that takes.

    JSON.stringify begins a message with a line that no text can hold. From there to the end exactly one list and one
    object are closed, and ``createdAt`` follows the list: it is that of the messages. None for any other document.
    """
    span = END
    while span < size:
        data = store.rest(ref, size - span)
        start = data.find(b"\n    {\n")
        document, _ = parse_document(b'{"messages": [' + data[start:]) if start >= 0 else (None, [])
        if document is not None and list(document)[1:2] == ["createdAt"] and len(document["messages"]) >= count:
            messages = [message_of(value) for value in document["messages"]]
            return Reading(Position(tuple(map(mark, messages[-KEEP:]))), tuple(messages))
        span *= 8
    return None


def read_entries(data: bytes, *, first: bool) -> tuple[list[Message], int, int]:
    """The messages of whole lines, how many bytes they take, and how many lines were damaged.

    A last line that is not ended is left for later, unless it is a whole entry already. ``first``: ``data`` is the
    start of the log.
    """
    messages: list[Message] = []
    damaged = used = 0
    *lines, tail = data.split(b"\n")
    for number, raw in enumerate(lines, 1 if first else 2):
        used += len(raw) + 1
        if raw.strip():
            pieces, damage = read_line(Line(number, 0, raw))
            messages += [message_of(p.value["message"], fallback_id=p.value["id"]) for p in pieces]
            damaged += not pieces and bool(damage)
    if tail.endswith(b"}"):
        pieces, damage = read_line(Line(2, 0, tail, ended=False))
        if pieces and not damage:
            messages += [message_of(p.value["message"], fallback_id=p.value["id"]) for p in pieces]
            used += len(tail)
    return messages, used, damaged


def _log_position(position: Position | None, messages: Sequence[Message], offset: int, before: bytes) -> Position:
    known = position.last if position else ()
    return Position((*known, *map(mark, messages))[-KEEP:], offset, digest(before[-CHECKED:]))


def read_log(store: Store, ref: Ref, position: Position | None) -> Reading:
    """What is new in a log: what was appended, or, where it was rewritten, the messages not known before it."""
    if position is not None and position.offset:
        start = max(0, position.offset - CHECKED)
        data = store.rest(ref, start)
        length = position.offset - start
        if digest(data[:length]) == position.check:
            messages, used, damaged = read_entries(data[length:], first=False)
            before = data[: length + used]
            return Reading(
                _log_position(position, messages, position.offset + used, before), tuple(messages), damage=damaged
            )
    data = store.rest(ref, 0)
    messages, used, damaged = read_entries(data, first=True)
    known = position.last if position else ()
    new = new_from(known, [mark(message) for message in messages])
    chosen = messages if new is None else [messages[index] for index in new]
    rewritten = bool(position is not None and position.offset)
    return Reading(_log_position(None, messages, used, data[:used]), tuple(chosen), rewritten, damaged)


def read_log_end(store: Store, ref: Ref, size: int, count: int) -> Reading:
    """The last messages of a log, at least ``count`` where it has so many, reading no more of it than that takes."""
    span = END
    while True:
        start = max(0, size - span)
        data = store.rest(ref, start)
        skipped = data.find(b"\n") + 1 if start else 0
        if not start or skipped:
            messages, used, damaged = read_entries(data[skipped:], first=not start)
            if not start or len(messages) >= max(count, 1):
                offset = start + skipped + used
                return Reading(
                    _log_position(None, messages, offset, data[: skipped + used]), tuple(messages), damage=damaged
                )
        span *= 8


def last_messages(store: Store, ref: Ref, size: int, count: int) -> tuple[Message, ...] | None:
    """The end of a history, ``count`` messages or more, that shows every result with its call.

    None where reading the end is not enough to know that: the whole must be read.
    """
    if ref.kind == "document":
        reading = read_document_end(store, ref, size, count + KEEP)
        found = None if reading is None else reading.messages
    else:
        found = _end_of_chain(store, ref, size, count + KEEP)
    if found is None:
        return None
    start = next((index for index, message in enumerate(found) if not message.tool_results), len(found))
    messages = found[start:]
    called: set[str] = set()
    for message in messages:
        if any(result.call_id not in called for result in message.tool_results):
            return None
        called.update(call.id for call in message.tool_calls)
    return messages if len(messages) >= count else None


def _end_of_chain(store: Store, ref: Ref, size: int, count: int) -> tuple[Message, ...] | None:
    """The last messages of a log that ends in ``count`` whole entries of which each follows the one before."""
    span = END
    while span < size:
        data = store.rest(ref, size - span)
        messages: list[Message] = []
        before: str | None = None
        for line in lines_of([data[data.find(b"\n") + 1 :]]):
            pieces, damage = read_line(line)
            if damage or len(pieces) != 1 or (before is not None and parent_of(pieces[0].value) != before):
                return None
            before = pieces[0].value["id"]
            messages.append(message_of(pieces[0].value["message"], fallback_id=before))
        if len(messages) >= count:
            return tuple(messages)
        span *= 8
    return None


class Follower:
    """Reads what is new in the sessions of a store. ``positions`` goes in as what was known, and is kept up to date."""

    def __init__(self, store: Store, positions: dict[Ref, Position] | None = None) -> None:
        self.store = store
        self.positions: dict[Ref, Position] = dict(positions or {})
        self._seen: dict[Ref, Stamp] = {}
        self._unreadable: dict[Ref, bool] = {}
        self._active: dict[Ref, None] = {}

    def known(self) -> Collection[Ref]:
        """The sessions that were there at the last look."""
        return self._seen.keys()

    def active(self) -> Collection[Ref]:
        """The sessions that changed last."""
        return list(self._active)

    def _saw(self, ref: Ref, stamp: Stamp) -> None:
        self._seen[ref] = stamp
        self._active.pop(ref, None)
        self._active[ref] = None
        if len(self._active) > MOST_ACTIVE:
            del self._active[next(iter(self._active))]

    @property
    def unreadable(self) -> list[Ref]:
        """The sessions that could not be read when they were last looked at."""
        return sorted(self._unreadable)

    def start(self, stamps: Iterable[tuple[Ref, Stamp]], count: int | None) -> Iterator[News]:
        """The last ``count`` messages (None: all) of sessions; what comes after them is news from now on."""
        for ref, stamp in stamps:
            self._saw(ref, stamp)
            reading = self._read(ref, None, stamp, count)
            if reading is None:
                self._unreadable[ref] = True
                yield News(ref, (), (_UNREADABLE,))
            else:
                self.positions[ref] = reading.position
                keep = len(reading.messages) if count is None else min(count, len(reading.messages))
                last = reading.messages[len(reading.messages) - keep :]
                yield News(ref, last, _passed_over(reading), stamp.changed_at)

    def look(self, refs: Collection[Ref] | None = None) -> Iterator[News]:
        """What is new in every session, or in these. Asks for stamps first and reads only what has changed."""
        found: dict[Ref, Stamp] = {}
        for record in self.store.records(Want.NAMES, refs):
            found[record.ref] = record.stamp
        for ref, stamp in found.items():
            before = self._seen.get(ref)
            if before is None or before.version != stamp.version or self._unreadable.get(ref) is False:
                news = self._news(ref, stamp)
                if news is not None:
                    yield news
        gone = [r for r in (self._seen if refs is None else refs) if r in self._seen and r not in found]
        for ref in gone:
            del self._seen[ref]
            self._active.pop(ref, None)
            yield News(ref, (), ("was deleted",))

    def _news(self, ref: Ref, stamp: Stamp) -> News | None:
        position = self.positions.get(ref)
        try:
            reading = self._read(ref, position, stamp, None)
        except SessionNotFound:
            return None  # gone since; the next look says so
        before = self._seen.get(ref)
        self._saw(ref, stamp)
        if reading is None:
            # Once is a writer at work; the same bytes at a second look are damage, which is said once.
            same = before is not None and before.version == stamp.version
            self._unreadable[ref] = same
            return News(ref, (), (_UNREADABLE,)) if same else None
        self._unreadable.pop(ref, None)
        self.positions[ref] = reading.position
        notes = [*(("was replaced or cut",) if reading.replaced else ()), *_passed_over(reading)]
        if not reading.messages and not notes:
            return None
        return News(ref, reading.messages, tuple(notes), stamp.changed_at)

    def _read(self, ref: Ref, position: Position | None, stamp: Stamp, count: int | None) -> Reading | None:
        try:
            if ref.kind == "log":
                if position is None and count is not None:
                    return read_log_end(self.store, ref, stamp.size, count)
                return read_log(self.store, ref, position)
            if position is None and count is not None:
                reading = read_document_end(self.store, ref, stamp.size, max(count, KEEP))
                if reading is not None:
                    return reading
            record = self.store.get(ref)
        except StoreError:
            if self.store.stamp(ref) is None:
                raise SessionNotFound(repr(ref.key)) from None
            return None
        return None if record.error is not None else read_document(position, record.payload or b"")


_UNREADABLE = "cannot be read as a session"


def _passed_over(reading: Reading) -> tuple[str, ...]:
    return (f"{reading.damage} damaged line{'s' if reading.damage > 1 else ''} passed over",) if reading.damage else ()


def stamps(store: Store, refs: Iterable[Ref] | None = None) -> list[tuple[Ref, Stamp]]:
    """The sessions of a store, or those of ``refs`` that exist, the one changed last first."""
    found = [(record.ref, record.stamp) for record in store.records(Want.NAMES, refs, KINDS)]
    found.sort(key=lambda pair: (pair[1].changed_at or 0, pair[0]), reverse=True)
    return found


def in_order(news: Iterable[News], since: int | None = None) -> list[tuple[Ref, Message]]:
    """The messages of several sessions in the order of their times, those before ``since`` (ms) left out.

    Messages of one session keep their order; one without a time has that of the message before it, or, at the start,
    that of its session's last change.
    """
    found: list[tuple[int, Ref, Message]] = []
    for item in news:
        at = 0 if any(message.at is not None for message in item.messages) else item.changed_at or 0
        for message in item.messages:
            at = max(at, message.at or 0)
            if since is None or (message.at if message.at is not None else item.changed_at or 0) >= since:
                found.append((at, item.ref, message))
    found.sort(key=lambda entry: entry[0])
    return [(ref, message) for _, ref, message in found]
