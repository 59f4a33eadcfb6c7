"""Logs (FORMATS.md section 2): lines, entries, and what is wrong with a line."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from ..history import Soundness, Turn, chain, damage_place, entry_place, finding, repeats
from ..model import Call, Damage, Entry, Finding, Outline, Result, Step
from .documents import SPOKEN
from .messages import MADE_UP, content_text, step_of
from .text import BOM, ODD, NotPlain, has_lone_surrogate, loads, not_json, one_line, refuse_constant

_MAX_TRIES = 1000
"""How many places of one bad line are tried as the start of an entry."""
_ENTRY_START = re.compile(rb'\{\s*"(?:id|parentId|parent_id|message)"\s*:')


class _Object(msgspec.Struct, gc=False):
    """Any object of JSON, passed over."""


class _Part(msgspec.Struct, gc=False):
    """A block of a tool result."""

    text: str | msgspec.UnsetType = msgspec.UNSET


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str | msgspec.UnsetType = msgspec.UNSET
    id: str | None = None
    name: str | None = None
    input: _Object | None = None
    tool_use_id: str | None = None
    content: str | list[_Part] | None = None


class _LogMessage(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]
    tool_calls: None = None
    toolCalls: None = None
    tool_call_id: None = None
    toolCallId: None = None


class _Entry(msgspec.Struct, gc=False):
    id: str
    message: _LogMessage
    parentId: str | msgspec.UnsetType | None = msgspec.UNSET
    parent_id: str | msgspec.UnsetType | None = msgspec.UNSET


_PLAIN = {role: Step(role) for role in SPOKEN}  # of messages that are nothing but text
_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_lines = msgspec.json.Decoder(_Entry).decode_lines


class Line(NamedTuple):
    """One line of a log: its bytes without the newline, where they start, and whether the newline was there."""

    number: int
    start: int
    raw: bytes
    ended: bool = True


class Piece(NamedTuple):
    """A part of a line that is one whole entry: its place in the payload and what it says."""

    start: int
    end: int
    line: int
    raw: bytes
    value: dict[str, Any]


def lines_of(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Split a log at ``\\n`` alone, on bytes; memory is bounded by the longest line."""
    number, start, rest = 1, 0, [b""]
    for chunk in chunks:
        parts = chunk.split(b"\n")
        rest.append(parts[0])
        if len(parts) == 1:
            continue
        parts[0] = b"".join(rest)
        rest = [parts.pop()]
        for raw in parts:
            yield Line(number, start, raw)
            number += 1
            start += len(raw) + 1
    tail = b"".join(rest)
    if tail:
        yield Line(number, start, tail, ended=False)


def is_entry(value: object) -> bool:
    """Whether a decoded line is an entry: an object with a text id, a message object, a parent (text or null)."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and isinstance(value.get("message"), dict)
        and all(value.get(k) is None or isinstance(value[k], str) for k in ("parentId", "parent_id"))
    )


def parent_of(value: dict[str, Any]) -> str | None:
    """An entry's parent in either spelling (FORMATS.md section 2)."""
    parent = value["parentId"] if "parentId" in value else value.get("parent_id")
    return parent if isinstance(parent, str) else None


def read_line(line: Line) -> tuple[list[Piece], list[Damage]]:
    """The whole entries of one line, and what else is wrong with it.

    A line that is not one entry is searched for whole entries: a torn append has the next one glued onto it.
    """
    raw, start, damage = line.raw, line.start, []
    if line.number == 1 and raw.startswith(BOM):
        damage.append(_damage("byte-order-mark", "a byte order mark stands before the first entry", line))
        raw, start = raw[len(BOM) :], start + len(BOM)
    if raw.endswith(b"\r"):
        raw = raw[:-1]
        damage.append(_damage("blank-or-crlf-line", "the line ends in \\r\\n", line))
    if not raw.strip():
        if line.ended or raw:
            damage.append(_damage("blank-or-crlf-line", "the line is blank", line))
        return [], damage[:1]
    nul = b"\0" in raw
    if nul:
        damage.append(_damage("nul-bytes", f"{raw.count(0)} NUL bytes", line))
        left = raw.lstrip(b"\0")
        raw, start = left.rstrip(b"\0"), start + len(raw) - len(left)
        if not raw:
            return [], damage
    cause: tuple[str, str]
    try:
        value = loads(raw.decode())
        if is_entry(value):
            return [Piece(start, start + len(raw), line.number, raw, value)], damage
        cause = ("not-a-session", "the line is JSON, but not an entry")
    except UnicodeDecodeError as error:
        cause = ("invalid-utf8", f"not UTF-8 at byte {error.start} of the line")
    except ValueError as error:
        cause = ("invalid-json", not_json(error))
    pieces = _whole_entries(raw, start, line.number)
    if pieces:
        number = "a whole entry and more" if len(pieces) == 1 else f"{len(pieces)} whole entries"
        damage.append(_damage("glued-line", f"{number} on one line", line))
    elif not line.ended and cause[0] != "not-a-session":
        damage.append(_damage("torn-tail", "the last line is incomplete", line))
    elif not nul or cause[0] == "not-a-session":
        damage.append(_damage(*cause, line))
    return pieces, damage


def _damage(code: str, message: str, line: Line) -> Damage:
    return Damage(code, message, line.number, line.start, line.raw)


def _whole_entries(raw: bytes, start: int, number: int) -> list[Piece]:
    decoder = json.JSONDecoder(parse_constant=refuse_constant, parse_int=float)
    pieces: list[Piece] = []
    # One character a byte, so that places in the text are places in the bytes.
    text = raw.decode("latin-1")
    position = tries = 0
    while tries < _MAX_TRIES and (match := _ENTRY_START.search(raw, position)):
        try:
            _, end = decoder.raw_decode(text, match.start())
            value = loads(raw[match.start() : end].decode())
        except (ValueError, RecursionError):
            value = None
        if is_entry(value):
            pieces.append(Piece(start + match.start(), start + end, number, raw[match.start() : end], value))
            position = end
        else:
            position = match.start() + 1
            tries += 1
    return pieces


def _fast_step(message: _LogMessage) -> tuple[Step, str | None]:
    """The step of a log message as the writers write it, and a user's text; NotPlain for any other."""
    role, content = message.role, message.content
    if isinstance(content, str):
        if not content:
            raise NotPlain
        return _PLAIN[role], content if role == "user" else None
    calls: list[Call] = []
    results: list[Result] = []
    text: str | None = None
    others = 0
    for index, block in enumerate(content):
        if block.type == "tool_use":
            calls.append(Call(block.id or "", block.name or "", bool(block.id and block.name and block.input)))
            others += 1
        elif block.type == "tool_result":
            if block.tool_use_id is None:
                raise NotPlain
            results.append(Result(block.tool_use_id, index, _is_made_up(block.content)))
        else:
            others += 1
            if block.type == "text":
                text = _only_text(block, role, text)
    if not others and not results:
        raise NotPlain
    return Step(role, tuple(calls), tuple(results), bool(results) and not others), text


def _only_text(block: _Block, role: str, before: str | None) -> str | None:
    """The text of a message with one text block, if a user wrote it; NotPlain for no text, and for a second one."""
    if not block.text or (role == "user" and before is not None):
        raise NotPlain
    return block.text if role == "user" else None


def _is_made_up(content: str | list[_Part] | None) -> bool:
    if isinstance(content, list):
        content = "\n".join([part.text for part in content if part.text is not msgspec.UNSET])
    return content is not None and content.startswith(MADE_UP)


def _fast_entry(line: Line) -> tuple[str, str | None, Step, str | None]:
    """An entry as the writers write it: id, parent, step and a user's text; raises one of ODD for any other."""
    raw = line.raw
    if not line.ended or raw[:1] != b"{" or raw[-1:] != b"}":
        raise NotPlain
    entry = _decode_entry(raw)
    if not raw.isascii():
        raw.decode()
    if has_lone_surrogate(raw):
        raise NotPlain
    step, text = _fast_step(entry.message)
    return entry.id, _fast_parent(entry), step, text


def _fast_parent(entry: _Entry) -> str | None:
    parent = entry.parentId
    if parent is msgspec.UNSET:
        parent = entry.parent_id
    elif entry.parent_id is not msgspec.UNSET:
        raise NotPlain
    return None if parent is msgspec.UNSET else parent


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of ``chunks``, cut after newlines; raises NotPlain if the last line has none."""
    rest: list[bytes] = []
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        rest.append(chunk[:cut] if cut else chunk)
        if cut:
            yield b"".join(rest)
            rest = [chunk[cut:]]
    if any(rest):
        raise NotPlain


def _entries(block: bytes) -> list[_Entry]:
    """The entries of whole lines, one each; raises one of ODD where that is not so."""
    count = block.count(b"\n")
    if block[:1] != b"{" or block[-2:-1] != b"}" or block.count(b"}\n{") != count - 1 or has_lone_surrogate(block):
        raise NotPlain
    if not block.isascii():
        block.decode()
    entries = _decode_lines(block)
    if len(entries) != count:
        raise NotPlain
    return entries


def sound_log(chunks: Iterable[bytes]) -> Outline:
    """The outline of a log of which each entry follows the one before and no message has any fault.

    Memory does not follow its texts. Raises one of ODD for any other log.
    """
    history = Soundness()
    title: str | None = None
    last = ""
    for entries, start in _in_a_row(chunks):
        turns: list[Turn] = []
        for entry in entries:
            turn, text = _turn(entry.message)
            turns.append(turn)
            if title is None and text is not None:
                title = one_line(text)
        if not history.follows(turns):
            raise NotPlain
        last = entry_place(entries[-1].id, history.count, start)
    status = history.status()
    if status is None:
        raise NotPlain
    return Outline("log", steps=(), title=title, unread=history.count, sound=status, last=last)


def brief_log(chunks: Iterable[bytes]) -> Outline:
    """The outline of a log of which each entry follows the one before, all ``unread``; raises one of ODD for others."""
    return Outline("log", steps=(), unread=sum(len(entries) for entries, _ in _in_a_row(chunks)))


def _in_a_row(chunks: Iterable[bytes]) -> Iterator[tuple[list[_Entry], int]]:
    """The entries of a log, some at a time, and where the last of them starts (in bytes).

    Raises one of ODD at one that does not follow the one before.
    """
    names = array("q")
    before: str | None = None
    end = 0
    for block in _blocks(chunks):
        entries = _entries(block)
        for entry in entries:
            if _fast_parent(entry) != before:
                raise NotPlain
            before = entry.id
        names.extend([hash(entry.id) for entry in entries])
        yield entries, end + block.rfind(b"\n", 0, -1) + 1
        end += len(block)
    if not names or repeats(names):
        raise NotPlain


def _turn(message: _LogMessage) -> tuple[Turn, str | None]:
    """A message as soundness sees it, and a user's text; raises NotPlain for one that has a fault."""
    role, content = message.role, message.content
    if isinstance(content, str):
        if not content:
            raise NotPlain
        return SPOKEN[role], content if role == "user" else None
    calls: list[str] = []
    results: list[str] = []
    text: str | None = None
    for block in content:
        kind, name = block.type, block.id
        if kind == "tool_use":
            if not (name and block.name and block.input):
                raise NotPlain
            calls.append(name)
        elif kind == "tool_result":
            if block.tool_use_id is None:
                raise NotPlain
            results.append(block.tool_use_id)
        elif kind == "text":
            text = _only_text(block, role, text)
    if not content or (results and (len(results) < len(content) or role == "system")):
        raise NotPlain
    return (role, calls, results), text


class LogReader:
    """Collects the entries of a log line by line. Only skeletons are kept: memory does not follow the texts."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.damage: list[Damage] = []
        self.notes: list[Finding] = []
        self.title: str | None = None
        self.same: set[int] = set()
        self._seen: dict[str, int] = {}
        self._surrogate = False

    def feed(self, line: Line) -> None:
        try:
            name, parent, step, text = _fast_entry(line)
        except ODD:
            self.take(line)
            return
        raw = line.raw
        entry = Entry(name, parent, step, line.start, line.start + len(raw), line.number)
        self._add(entry, hash(raw), one_line(text) if text is not None and self.title is None else None)

    def take(self, line: Line) -> list[Piece]:
        """``feed`` in the tolerant way, which decodes all; gives back the entries that it found."""
        pieces, damage = read_line(line)
        self.damage.extend(d._replace(raw=b"") for d in damage)
        if not line.ended and not damage:
            self.notes.append(
                finding(
                    "missing-final-newline",
                    damage_place(line.number, line.start + len(line.raw)),
                    "the last line has no newline; the next append would be glued onto it",
                    fixable=True,
                )
            )
        if not self._surrogate and has_lone_surrogate(line.raw):
            self._surrogate = True
            self.notes.append(
                finding(
                    "lone-surrogate",
                    damage_place(line.number, line.start),
                    "half a surrogate pair stands in a text",
                )
            )
        for piece in pieces:
            value = piece.value
            message = value["message"]
            if "parentId" in value and "parent_id" in value and value["parentId"] != value["parent_id"]:
                self.notes.append(
                    finding(
                        "conflicting-entry",
                        damage_place(piece.line, piece.start),
                        "parentId and parent_id differ",
                    )
                )
            text = one_line(content_text(message.get("content"))) if message.get("role") == "user" else None
            self._add(
                Entry(value["id"], parent_of(value), step_of(message), piece.start, piece.end, piece.line),
                hash(piece.raw),
                text,
            )
        return pieces

    def _add(self, entry: Entry, digest: int, text: str | None) -> None:
        index = len(self.entries)
        self.entries.append(entry)
        if self.title is None and text:
            self.title = text
        if entry.id not in self._seen:
            self._seen[entry.id] = digest
        elif self._seen[entry.id] == digest:
            self.same.add(index)

    def outline(self, size: int) -> Outline:
        """What was read, with the history that the chain gives."""
        notes, damage, order = self.notes, self.damage, None
        if not size:
            notes.append(Finding("empty-file", "info", "file", "the log is empty"))
        if self.entries:
            rebuilt = chain(self.entries, self.same)
            notes.extend(rebuilt.notes)
            order = rebuilt.order
            if rebuilt.cycle is not None:
                first = self.entries[rebuilt.cycle]
                damage.append(
                    Damage(
                        "parent-cycle",
                        f"the parents form a cycle; entry {first.id} closes it",
                        first.line,
                        first.start,
                    )
                )
        elif not size:
            order = ()
        return Outline(
            "log",
            steps=None if order is None else tuple(self.entries[i].step for i in order),
            damage=tuple(damage),
            notes=tuple(notes),
            title=self.title,
            entries=tuple(self.entries),
            order=order or (),
        )
