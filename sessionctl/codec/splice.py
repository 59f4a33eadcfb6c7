"""Edits of JSON text that leave every other character as it was.

Only the places of values are looked up; nothing is serialised again, so escapes, number spellings, repeated keys, key
order and white space survive. Where a key is repeated the last one is meant, as ``JSON.parse`` takes it. All functions
are pure and linear in the text, and raise ValueError for text that is not JSON of the shape they need.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

from .text import refuse_constant

_SPACE = re.compile(r"[ \t\n\r]*")
_LONE = re.compile("[\ud800-\udfff]")
_scan = json.JSONDecoder(parse_constant=refuse_constant, parse_int=float).scan_once  # type: ignore[attr-defined]
# (An int of thousands of digits takes time that grows with the square of its length, a float does not.)


class Span(NamedTuple):
    """A value's place in a text: ``text[start:end]``."""

    start: int
    end: int


class Member(NamedTuple):
    """One ``"key": value`` of an object. ``start`` is where the key's quote stands, ``end`` where the value ends."""

    key: str
    start: int
    value: Span

    @property
    def end(self) -> int:
        return self.value.end


class Style(NamedTuple):
    """How a text is laid out: the indent of one level (None: all on one line), its ``:`` and ``,`` with their spaces.

    ``ascii``: what is not ASCII is escaped, as Python's writer does.
    """

    indent: str | None = None
    colon: str = ":"
    comma: str = ","
    newline: str = "\n"
    ascii: bool = False


_COMPACT = Style()


class Edit(NamedTuple):
    """Put ``text`` in the place of what stands from ``start`` to ``end``."""

    start: int
    end: int
    text: str


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; their places are those of the text as it was, and must not overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at:
            raise ValueError("two edits overlap")
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def members(text: str, at: int = 0) -> list[Member]:
    """The members of the object that begins at ``at`` (white space before it is passed over), in their order."""
    at = _skip(text, _expect(text, _skip(text, at), "{"))
    found: list[Member] = []
    if text[at : at + 1] == "}":
        return found
    while True:
        _expect(text, at, '"')
        key, end = scanstring(text, at + 1, True)
        value = _value(text, _skip(text, _expect(text, _skip(text, end), ":")))
        found.append(Member(key, at, value))
        at = _skip(text, value.end)
        if text[at : at + 1] == "}":
            return found
        at = _skip(text, _expect(text, at, ","))


def items(text: str, at: int = 0) -> list[Span]:
    """The items of the array that begins at ``at``."""
    at = _skip(text, _expect(text, _skip(text, at), "["))
    found: list[Span] = []
    if text[at : at + 1] == "]":
        return found
    while True:
        found.append(_value(text, at))
        at = _skip(text, found[-1].end)
        if text[at : at + 1] == "]":
            return found
        at = _skip(text, _expect(text, at, ","))


def member(text: str, key: str, at: int = 0) -> Member | None:
    """The member of that key which counts: the last one."""
    return next((m for m in reversed(members(text, at)) if m.key == key), None)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise ValueError(f"no {mark!r} at {at}")
    return at + 1


def _value(text: str, at: int) -> Span:
    try:
        end: int = _scan(text, at)[1]
    except StopIteration as stop:
        raise ValueError(f"no JSON value at {stop.value}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return Span(at, end)


def style_of(text: str, at: int = 0) -> Style:
    """How the object that begins at ``at`` is laid out, told by its first two members."""
    start = _expect(text, _skip(text, at), "{")
    first = _skip(text, start)
    lead = text[start:first]
    if text[first : first + 1] != '"':
        return Style()
    key_end = scanstring(text, first + 1, True)[1]
    value = _skip(text, _expect(text, _skip(text, key_end), ":"))
    colon = text[key_end:value]
    if "\n" in lead:
        newline = "\r\n" if "\r\n" in lead else "\n"
        return Style(lead[lead.rindex("\n") + 1 :], colon, ",", newline)
    after = _skip(text, _value(text, value).end)
    comma = text[after : _skip(text, after + 1)] if text[after : after + 1] == "," else ("," if colon == ":" else ", ")
    return Style(None, colon, comma, ascii=colon == ": ")


def dumps(value: object, style: Style = _COMPACT, level: int = 0) -> str:
    """A new value as JSON text in a style, for a place ``level`` levels deep. Text stays as it is but for what cannot
    be written as UTF-8: half a surrogate pair is escaped, as ``JSON.stringify`` does."""
    comma = style.comma if style.indent is None else ","
    text = json.dumps(value, ensure_ascii=style.ascii, indent=style.indent, separators=(comma, style.colon))
    text = _LONE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    if style.indent is not None:
        text = text.replace("\n", style.newline + style.indent * level)
    return text


def rearrange(text: str, at: int, order: Sequence[int | str], style: Style = _COMPACT, level: int = 0) -> Edit:
    """The edit that gives the array at ``at`` the items ``order``: indexes of items it has, and new items as JSON text.

    Each old item keeps its text, and the white space before it unless it becomes the first. ``level`` is how deep the
    array itself stands, which matters where it had no item to tell the layout by.
    """
    start = _skip(text, at)
    old = items(text, start)
    whole = _value(text, start)
    if not order:
        return Edit(start, whole.end, "[]")
    if old:
        lead, tail = text[start + 1 : old[0].start], text[old[-1].end : whole.end - 1]
        between = [text[a.end : b.start] for a, b in itertools.pairwise(old)]
    else:
        between = []
        lead = tail = ""
        if style.indent is not None:
            lead, tail = (style.newline + style.indent * deep for deep in (level + 1, level))
    usual = between[0] if between else "," + lead if lead or style.indent is not None else style.comma
    parts = ["[", lead]
    for place, item in enumerate(order):
        if place:
            parts.append(between[item - 1] if isinstance(item, int) and item > 0 else usual)
        parts.append(item if isinstance(item, str) else text[old[item].start : old[item].end])
    return Edit(start, whole.end, "".join([*parts, tail, "]"]))


def set_member(text: str, key: str, value: str, at: int = 0, before: str | None = None) -> str:
    """The text with ``key`` of the object at ``at`` set to the JSON text ``value``.

    A key that is there keeps its place (the last one is set where it is repeated); a new one goes before the key
    ``before``, else to the end.
    """
    found = members(text, at)
    same = [m for m in found if m.key == key]
    if same:
        return apply(text, [Edit(*same[-1].value, value)])
    style = style_of(text, at)
    pair = dumps(key) + style.colon + value
    start = _skip(text, at)
    if not found:
        return apply(text, [Edit(start, _value(text, start).end, "{" + pair + "}")])
    lead = text[start + 1 : found[0].start]
    gap = text[found[0].end : found[1].start] if len(found) > 1 else "," + lead if lead else style.comma
    following = next((m for m in found if m.key == before), None) if before is not None else None
    if following is not None:
        return apply(text, [Edit(following.start, following.start, pair + gap)])
    return apply(text, [Edit(found[-1].end, found[-1].end, gap + pair)])


def remove_member(text: str, key: str, at: int = 0) -> str:
    """The text without ``key`` in the object at ``at``, however often it stands there."""
    found = members(text, at)
    kept = [i for i, m in enumerate(found) if m.key != key]
    if len(kept) == len(found):
        return text
    start = _skip(text, at)
    if not kept:
        return apply(text, [Edit(start, _value(text, start).end, "{}")])
    edits = [Edit(found[0].start, found[kept[0]].start, "")] if kept[0] else []
    # A member that goes takes the comma before it along.
    edits += [Edit(found[i - 1].end, m.end, "") for i, m in enumerate(found) if m.key == key and i > kept[0]]
    return apply(text, edits)
