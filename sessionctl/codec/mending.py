"""The edits that a repair is made of, from bytes to bytes, for both kinds (FORMATS.md section 4). All are pure.

What the history is to look like comes as a ``Layout``; how a document or a log has to change for it is decided here,
so that every byte which the change does not concern stays as it was. For a log that means: whole lines stay, and only
parents are set anew, so that chain reconstruction with topology repair gives the wanted history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, NamedTuple

from ..model import Entry, Outline
from .documents import parse_document
from .logs import lines_of, read_line
from .splice import Edit, Style, apply, dumps, items, member, members, rearrange, set_member, style_of
from .text import BOM, OLDEST, loads

NewId = Callable[[], str]


class Part(NamedTuple):
    """A new message made of some blocks of an old one."""

    step: int
    blocks: tuple[int, ...]


class Fresh(NamedTuple):
    """A new message, without the id and the time that a document's message has beside it."""

    message: dict[str, Any]


Item = int | Part | Fresh


class Layout(NamedTuple):
    """A history as it is to become: steps of the old one by number, parts of them, and new messages, in their order.

    ``moved`` are the steps that do not keep their place, ``taken`` the blocks that leave a step which stays.
    """

    order: Sequence[Item]
    moved: Collection[int] = ()
    taken: Mapping[int, Collection[int]] = {}


class Cleaned(NamedTuple):
    """A payload after its bytes were put right; ``removed`` are the bytes that no entry holds, ``codes`` what went."""

    payload: bytes
    codes: frozenset[str] = frozenset()
    removed: tuple[bytes, ...] = ()


# --- bytes ------------------------------------------------------------------------------------------------------------


def clean_document(payload: bytes, codes: Collection[str]) -> Cleaned:
    """A document without its byte order mark; nothing else of a document's bytes can be put right."""
    if "byte-order-mark" in codes and payload.startswith(BOM) and parse_document(payload)[0] is not None:
        return Cleaned(payload[len(BOM) :], frozenset({"byte-order-mark"}), (BOM,))
    return Cleaned(payload)


def clean_log(payload: bytes, codes: Collection[str]) -> Cleaned:
    """A log in which each whole entry has its own line, as far as ``codes`` allows; unchanged where no entry is whole.

    Only lines with one of these faults change; a line that has another one as well stays as it is.
    """
    out: list[bytes] = []
    removed: list[bytes] = []
    fixed: set[str] = set()
    entries = 0
    for line in lines_of([payload]):
        pieces, damage = read_line(line)
        entries += len(pieces)
        found = {d.code for d in damage}
        if not damage and not line.ended and "missing-final-newline" in codes:
            found.add("missing-final-newline")
        if not found or not found <= set(codes):
            out += [line.raw, b"\n" if line.ended else b""]
            continue
        fixed |= found
        at = line.start
        for piece in pieces:
            removed.append(line.raw[at - line.start : piece.start - line.start])
            out += [piece.raw, b"\n"]
            at = piece.end
        removed.append(line.raw[at - line.start :])
    if not entries or not fixed:
        return Cleaned(payload)
    return Cleaned(b"".join(out), frozenset(fixed), tuple(r for r in removed if r.strip()))


def cut_cycle(payload: bytes, outline: Outline) -> bytes | None:
    """A log whose cycle is cut: the entry that closes it has no parent any more. None where there is no cycle."""
    start = next((d.offset for d in outline.damage if d.code == "parent-cycle"), None)
    for entry in outline.entries if start is not None else ():
        if entry.start == start:
            text = with_parent(payload[entry.start : entry.end].decode(), None)
            return payload[: entry.start] + text.encode() + payload[entry.end :]
    return None


def drop_repeats(payload: bytes, outline: Outline, *, keep_last: bool = False) -> tuple[bytes, tuple[bytes, ...]]:
    """A log without the entries that repeat another one byte for byte, and these; the first stays, or the last."""
    lines = _lines(payload, outline)
    numbers = range(len(lines))
    kept: dict[tuple[str, str], int] = {}
    for number in reversed(numbers) if keep_last else numbers:
        kept.setdefault((outline.entries[number].id, lines[number]), number)
    staying = set(kept.values())
    removed = tuple(lines[n].encode() for n in numbers if n not in staying)
    return _joined([lines[n] for n in numbers if n in staying]), removed


def _lines(payload: bytes, outline: Outline) -> list[str]:
    """The lines of a log in which each line is one entry. Raises ValueError for any other."""
    lines = payload.decode().split("\n")
    if not lines[-1]:
        lines.pop()
    if len(lines) != len(outline.entries):
        raise ValueError("a line is not one entry")
    return lines


def _joined(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


# --- messages ---------------------------------------------------------------------------------------------------------


def decoded_messages(payload: bytes, outline: Outline) -> Callable[[int], dict[str, Any]]:
    """A function that gives the message of a step of the history, decoded."""
    if outline.kind == "log":

        def from_log(step: int) -> dict[str, Any]:
            entry = outline.entries[outline.order[step]]
            message: dict[str, Any] = loads(payload[entry.start : entry.end].decode())["message"]
            return message

        return from_log
    document, _ = parse_document(payload)
    messages: list[dict[str, Any]] = document["messages"] if document else []
    return messages.__getitem__


def laid_out(payload: bytes, outline: Outline, layout: Layout, now: int, new_id: NewId) -> bytes:
    """The payload with the history that ``layout`` says. Raises ValueError where its bytes do not allow that."""
    if outline.kind == "log":
        return _log(payload, outline, layout, new_id)
    return _document(payload, layout, now, new_id)


def _blocks(text: str, at: int) -> list[str]:
    """The blocks of a message's content, each as its text."""
    content = member(text, "content", at)
    if content is None:
        raise ValueError("the message has no content")
    return [text[span.start : span.end] for span in items(text, content.value.start)]


def _without(text: str, at: int, taken: Collection[int]) -> Edit:
    """The edit that takes blocks out of the message at ``at``."""
    content = member(text, "content", at)
    if content is None:
        raise ValueError("the message has no content")
    number = len(items(text, content.value.start))
    return rearrange(text, content.value.start, [i for i in range(number) if i not in taken])


def _with_blocks(message: str, blocks: Sequence[str], at: int, style: Style, level: int) -> str:
    """The message at ``at`` of a new text, its content (an empty array) filled with blocks."""
    content = member(message, "content", at)
    assert content is not None
    return apply(message, [rearrange(message, content.value.start, blocks, style, level)])


def _document(payload: bytes, layout: Layout, now: int, new_id: NewId) -> bytes:
    text = payload.decode()
    style = style_of(text)
    list_ = member(text, "messages")
    assert list_ is not None
    spans = items(text, list_.value.start)
    order: list[int | str] = []
    updated = _time_at(text, "updatedAt", 0, now)
    before: int | None = None
    for item in layout.order:
        if isinstance(item, int):
            order.append(item)
            before = item
            continue
        message = item.message if isinstance(item, Fresh) else {"role": "user", "content": []}
        # The time of the message before it, else ``updatedAt``: a repair makes no session younger.
        at = None if before is None else _time_at(text, "timestamp", spans[before].start, now)
        at = updated if at is None else at
        whole = {"id": new_id(), **message, **({} if at is None else {"timestamp": at})}
        made = dumps(whole, style, 2)
        if isinstance(item, Part):
            blocks = _blocks(text, spans[item.step].start)
            made = _with_blocks(made, [blocks[b] for b in item.blocks], 0, style, 3)
        order.append(made)
    edits = [_without(text, spans[step].start, taken) for step, taken in layout.taken.items()]
    if edits:
        text = apply(text, edits)
        list_ = member(text, "messages")
        assert list_ is not None
    return apply(text, [rearrange(text, list_.value.start, order, style, 1)]).encode()


def _time_at(text: str, key: str, at: int, now: int) -> int | None:
    """A plausible time in ms that the object at ``at`` holds under ``key``."""
    place = member(text, key, at)
    value = None if place is None else loads(text[place.value.start : place.value.end])
    return value if isinstance(value, int) and OLDEST <= value <= now else None


# --- the tree of a log ------------------------------------------------------------------------------------------------


def with_parent(line: str, parent: str | None, spelling: str = "parentId", style: Style | None = None) -> str:
    """An entry with another parent, in the spelling that it has (``spelling`` where it has none)."""
    style = style_of(line) if style is None else style
    have = {m.key for m in members(line)} & {"parentId", "parent_id"}
    for key in sorted(have) or [spelling]:
        line = set_member(line, key, dumps(parent, style), before="message")
    return line


@dataclass(slots=True)
class _Node:
    """One entry of the wanted history. ``place`` is its line, None for a new one; ``key`` sorts the lines anew."""

    id: str
    line: str
    parent: str | None = None
    place: int | None = None
    loose: bool = False
    on_path: bool = False
    key: tuple[int, int] = (-1, 0)


def _path(entries: Sequence[Entry]) -> set[int]:
    """The entries from the leaf to the root. The parents must not form a cycle."""
    by_id = {entry.id: index for index, entry in enumerate(entries)}
    found: set[int] = set()
    at: int | None = len(entries) - 1
    while at is not None:
        found.add(at)
        parent = entries[at].parent
        at = None if parent is None else by_id.get(parent)
    return found


def _log(payload: bytes, outline: Outline, layout: Layout, new_id: NewId) -> bytes:
    lines = _lines(payload, outline)
    entries, order = outline.entries, outline.order
    style = style_of(lines[-1])
    keys = [m.key for m in members(lines[-1])]
    spelling = "parent_id" if "parent_id" in keys and "parentId" not in keys else "parentId"
    path = _path(entries)

    def node(item: Item) -> _Node:
        if not isinstance(item, int):
            return _new_node(item)
        index = order[item]
        line = lines[index]
        if taken := layout.taken.get(item):
            line = apply(line, [_without(line, _message_at(line), taken)])
        loose = item in layout.moved
        entry = entries[index]
        return _Node(entry.id, line, entry.parent, index, loose, index in path and not loose)

    def _new_node(item: Part | Fresh) -> _Node:
        message = item.message if isinstance(item, Fresh) else {"role": "user", "content": []}
        made = _Node(new_id(), "", loose=True)
        made.line = dumps({"id": made.id, spelling: None, "message": message}, style)
        if isinstance(item, Part):
            source = lines[order[item.step]]
            blocks = _blocks(source, _message_at(source))
            made.line = _with_blocks(made.line, [blocks[b] for b in item.blocks], _message_at(made.line), style, 0)
        return made

    trunk: list[_Node] = []
    twigs: list[list[_Node]] = []
    for made in map(node, layout.order):
        if not trunk or made.on_path:
            trunk.append(made)
            twigs.append([])
        else:
            twigs[-1].append(made)
    if not trunk:
        raise ValueError("a log cannot be without entries")
    # What is added to the end goes on from the leaf: that is an append, and no older line changes.
    tail: list[_Node] = []
    while twigs[-1] and twigs[-1][-1].loose:
        tail.append(twigs[-1].pop())
    trunk += reversed(tail)
    twigs += [[] for _ in tail]

    _sort(trunk, twigs, len(lines), set(map(id, tail)))
    for number, (made, others) in enumerate(zip(trunk, twigs, strict=True)):
        if number:
            _link(made, trunk[number - 1].id, spelling, style)
        elif not order or made.place != order[0]:
            _link(made, None, spelling, style)
        for other in others:
            _link(other, made.id, spelling, style)

    kept = [*trunk, *(other for others in twigs for other in others)]
    kept += _bystanders(entries, lines, order, trunk, kept, spelling, style)
    return _joined([made.line for made in sorted(kept, key=lambda made: made.key)])


def _message_at(line: str) -> int:
    message = member(line, "message")
    assert message is not None
    return message.value.start


def _link(made: _Node, parent: str | None, spelling: str, style: Style) -> None:
    if made.parent != parent:
        made.line = with_parent(made.line, parent, spelling, style if made.place is None else None)


def _sort(trunk: Sequence[_Node], twigs: Sequence[Sequence[_Node]], size: int, tail: Collection[int]) -> None:
    """Give each line its place: siblings in their order, the leaf last, everything else where it was."""
    ticket = count(1)
    for made, others in zip(trunk, twigs, strict=True):
        if id(made) in tail:
            made.key = (size, next(ticket))
        elif made.place is not None and not made.loose:
            made.key = (made.place, 0)
        else:
            made.key = (-1, next(ticket))
        last: tuple[int, int] | None = None
        following = next((other.place for other in others if other.place is not None and not other.loose), None)
        for other in others:
            if other.place is not None and not other.loose and (last is None or (other.place, 0) > last):
                other.key = (other.place, 0)
            elif last is not None:
                other.key = (last[0], next(ticket))
            else:
                base = made.key[0] if following is None else min(made.key[0], following - 1)
                other.key = (base, next(ticket))
            last = other.key
    leaf = trunk[-1]
    if leaf.key < (size - 1, 0):
        leaf.key = (size, next(ticket))


def _bystanders(
    entries: Sequence[Entry],
    lines: Sequence[str],
    order: Sequence[int],
    trunk: Sequence[_Node],
    kept: Sequence[_Node],
    spelling: str,
    style: Style,
) -> list[_Node]:
    """The entries outside the history. One that an edit would bring into it, or leave without its parent, becomes a
    root of its own: given-up branches stay given up, and no parent is named that is not there."""
    following = {made.id: after.id for made, after in pairwise(trunk)}
    following.setdefault(trunk[-1].id, "")
    in_history = set(order)
    here = {made.id for made in kept}
    gone = {entries[i].id for i in order} - here - {e.id for i, e in enumerate(entries) if i not in in_history}
    found: list[_Node] = []
    for index, entry in enumerate(entries):
        if index in in_history:
            continue
        made = _Node(entry.id, lines[index], entry.parent, index, key=(index, 0))
        if entry.parent is not None and (
            entry.parent in gone or (entry.parent in following and following[entry.parent] != entry.id)
        ):
            _link(made, None, spelling, style)
        found.append(made)
    return found
