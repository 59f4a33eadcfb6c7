"""Documents (FORMATS.md section 1): the fast way for what Seepient writes, the tolerant way for everything else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from ..history import Soundness, Turn, finding
from ..model import Damage, Finding, Outline, Step
from .messages import content_text, step_of, text_or_none
from .text import BOM, OLDEST, NotPlain, has_lone_surrogate, loads, not_json, one_line

SKEW = 60_000
"""ms by which clocks of two machines may differ before a time is called "in the future"."""


class _Object(msgspec.Struct, gc=False):
    """Any object of JSON, passed over."""


class _Call(msgspec.Struct, gc=False):
    id: str
    name: str
    arguments: _Object
    result: str | None = None


class _Message(msgspec.Struct, gc=False):
    role: Literal["user", "assistant", "system", "tool"]
    content: str
    timestamp: int
    toolCalls: list[_Call] | None = None
    toolCallId: str | None = None
    tool_calls: None = None
    tool_call_id: None = None


class _Metadata(msgspec.Struct, gc=False):
    apiKeyHash: str | None = None
    lastActivityAt: int | None = None
    title: str | None = None


class _Document(msgspec.Struct, gc=False):
    id: str
    messages: list[_Message]
    createdAt: int
    updatedAt: int
    provider: str | None = None
    model: str | None = None
    principalId: str | msgspec.UnsetType = msgspec.UNSET
    metadata: _Metadata | None = None


class _Moment(msgspec.Struct, gc=False):
    timestamp: int


class _Moments(msgspec.Struct, gc=False):
    id: str
    messages: list[_Moment]
    createdAt: int
    updatedAt: int
    provider: str | None = None
    model: str | None = None
    principalId: str | msgspec.UnsetType = msgspec.UNSET
    metadata: _Metadata | None = None


class _Skeleton(msgspec.Struct, gc=False):
    messages: list[_Object]


_decode = msgspec.json.Decoder(_Document).decode
_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_skeleton = msgspec.json.Decoder(_Skeleton).decode
_decode_moments = msgspec.json.Decoder(_Moments).decode
SPOKEN: dict[str, Turn] = {role: (role, (), ()) for role in ("user", "assistant", "system")}
"""The turns of messages that are nothing but text."""


class _Sound:
    """Takes messages exactly as Seepient writes them; raises NotPlain for any other, and for any fault."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.title: str | None = None
        self.history = Soundness()

    def add(self, messages: list[_Message]) -> None:
        turns: list[Turn] = []
        title = self.title
        for message in messages:
            role, calls, call_id = message.role, message.toolCalls, message.toolCallId
            if role == "tool":
                if call_id is None or calls is not None:
                    raise NotPlain
                turns.append((role, (), (call_id,)))
            elif call_id is not None:
                raise NotPlain
            elif calls is None:
                if not message.content:
                    raise NotPlain
                turns.append(SPOKEN[role])
                if title is None and role == "user":
                    title = one_line(message.content)
            else:
                ids = [call.id for call in calls if call.id and call.name]
                if not ids or len(ids) < len(calls) or role == "user":
                    raise NotPlain
                turns.append((role, ids, [call.id for call in calls if call.result is not None]))
        if not self.history.follows(turns):
            raise NotPlain
        self.title = title
        self.times += [message.timestamp for message in messages]

    def outline(self, document: _Document, now: int) -> Outline:
        status, count = self.history.status(), self.history.count
        if status is None:
            raise NotPlain
        return _plain_outline(document, now, self.times, self.title, status, f"messages[{count - 1}]")


def sound_document(payload: bytes, now: int) -> Outline:
    """The outline of a document exactly as Seepient writes it, of which no message has any fault.

    Raises one of ODD for any other.
    """
    document = _decode(_utf8(payload))
    found = _Sound()
    found.add(document.messages)
    return found.outline(document, now)


def brief_document(payload: bytes, now: int) -> Outline:
    """The outline of a document without its history: ages and owner. Raises as ``sound_document``, also for damage."""
    document = _decode_moments(_utf8(payload))
    times = [message.timestamp for message in document.messages]
    return _plain_outline(document, now, times)


def check_document(payload: bytes) -> None:
    """Return for a document without damage; raises one of ODD for most that have some, and for a few others."""
    _decode_skeleton(_utf8(payload))


def sound_chunks(chunks: Iterable[bytes], now: int) -> Outline:
    """``sound_document`` in memory that does not follow the texts, for one spelled as JSON.stringify spells it.

    It is cut between two messages, where a line ends that no text can hold. What the cuts leave is decoded piece by
    piece, and so are the fields around them: together that is the whole document, and valid JSON if every piece is.
    """
    pieces = iter(chunks)
    rest = next(pieces, b"")
    head = _head(rest)
    if head is None:
        raise NotPlain
    found = _Sound()
    rest = rest[head.end() :]
    for chunk in pieces:
        rest += chunk
        cut = rest.rfind(_BETWEEN)
        if cut >= 0:
            found.add(_decode_messages(_utf8(b"[" + rest[: cut + _FIRST] + b"]")))
            rest = rest[cut + _FIRST + 1 :]
        elif len(rest) > _LONGEST:
            raise NotPlain
    last = rest.find(b"\n  ]")
    tail = rest[last:]
    if last < 0 or _messages(tail):
        raise NotPlain
    found.add(_decode_messages(_utf8(b"[" + rest[:last] + b"]")))
    return found.outline(_decode(_utf8(head[0] + tail)), now)


_head = re.compile(rb'\{\n  "id": "[^"\\\x00-\x1f]*",\n  "messages": \[').match
_messages = re.compile(rb'"messages"|\\u00[67]').search
"""A second list of messages, or the escape of a letter, in which its name could hide."""
_BETWEEN = b"\n    },\n    {"
_FIRST = len(b"\n    }")
_LONGEST = 32 << 20
"""Bytes of a message from which on a document is not read piece by piece."""


def _utf8(payload: bytes) -> bytes:
    """``payload`` if it is UTF-8 also where the decoder passes over it; raises UnicodeDecodeError."""
    if not payload.isascii():
        payload.decode()
    return payload


def _plain_outline(
    document: _Document | _Moments,
    now: int,
    times: Sequence[int],
    title: str | None = None,
    sound: Literal["draft", "ok"] | None = None,
    last: str = "",
) -> Outline:
    """The outline, its messages ``unread``, where every time can be believed; raises NotPlain for any other."""
    newest = max(times, default=0)
    if newest > now or (times and min(times) < OLDEST):
        raise NotPlain
    if not (OLDEST <= document.createdAt <= now and OLDEST <= document.updatedAt <= now):
        raise NotPlain
    metadata = document.metadata
    active = metadata.lastActivityAt if metadata else None
    if active is not None and not OLDEST <= active <= now:
        raise NotPlain
    owner = metadata.apiKeyHash if metadata else None
    if document.principalId is not msgspec.UNSET:
        if not document.principalId:
            raise NotPlain
        owner = document.principalId
    return Outline(
        "document",
        document.id or None,
        (),
        created_at=document.createdAt,
        updated_at=document.updatedAt,
        active_at=active,
        newest_message_at=newest or None,
        provider=document.provider or None,
        model=document.model or None,
        owner=owner or None,
        title=(metadata.title if metadata and metadata.title else title),
        unread=len(times),
        sound=sound,
        last=last,
    )


def parse_document(payload: bytes) -> tuple[dict[str, Any] | None, list[Damage]]:
    """A document's object and what is wrong with its bytes; the object is None where it cannot be read."""
    damage: list[Damage] = []
    if payload.startswith(BOM):
        damage.append(Damage("byte-order-mark", "a byte order mark stands before the JSON", offset=0))
        payload = payload[len(BOM) :]
    if not payload.strip():
        return None, [*damage, Damage("empty-file", "the file is empty", offset=0)]
    if b"\0" in payload:
        offset = payload.index(b"\0")
        return None, [*damage, Damage("nul-bytes", f"{payload.count(0)} NUL bytes", offset=offset)]
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return None, [*damage, Damage("invalid-utf8", f"not UTF-8: {error.reason}", offset=error.start)]
    try:
        value = loads(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        return None, [*damage, Damage("invalid-json", not_json(error), offset=offset)]
    except ValueError as error:
        return None, [*damage, Damage("invalid-json", not_json(error))]
    if not isinstance(value, dict):
        return None, [*damage, Damage("not-a-session", "the JSON is not an object")]
    if not isinstance(value.get("messages"), list):
        return None, [*damage, Damage("not-a-session", "'messages' is not a list")]
    return value, damage


def slow_document(payload: bytes, now: int) -> tuple[Outline, dict[str, Any] | None]:
    document, damage = parse_document(payload)
    if document is None:
        return Outline("document", damage=tuple(damage)), None
    notes: list[Finding] = []
    steps: list[Step] = []
    title: str | None = None
    newest = 0
    absurd: list[str] = []
    for index, message in enumerate(document["messages"]):
        if not isinstance(message, dict):
            damage.append(Damage("not-a-session", f"messages[{index}] is not an object"))
            steps.append(Step(""))
            continue
        step = step_of(message)
        steps.append(step)
        if title is None and step.role == "user" and not step.results:
            title = one_line(content_text(message.get("content")))
        if message.get("timestamp") is not None:
            at = _time(f"messages[{index}].timestamp", message["timestamp"], now, notes, absurd)
            newest = max(newest, at or 0)
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    created = _time("createdAt", document.get("createdAt"), now, notes, [])
    updated = _time("updatedAt", document.get("updatedAt"), now, notes, absurd)
    active = None
    if metadata.get("lastActivityAt") is not None:
        active = _time("metadata.lastActivityAt", metadata["lastActivityAt"], now, notes, absurd)
    if has_lone_surrogate(payload):
        notes.append(finding("lone-surrogate", "file", "half a surrogate pair stands in a text"))
    owner = text_or_none(document.get("principalId")) or text_or_none(metadata.get("apiKeyHash"))
    if "principalId" in document and not owner:
        notes.append(finding("no-owner", "principalId", "the owner is empty; nobody can resume the session"))
    return Outline(
        "document",
        text_or_none(document.get("id")),
        tuple(steps),
        tuple(damage),
        tuple(notes),
        created_at=created,
        updated_at=updated,
        active_at=active,
        newest_message_at=newest or None,
        absurd_time=absurd[0] if absurd else None,
        provider=text_or_none(document.get("provider")),
        model=text_or_none(document.get("model")),
        owner=owner,
        title=text_or_none(metadata.get("title")) or title,
    ), document


def _time(name: str, value: object, now: int, notes: list[Finding], absurd: list[str]) -> int | None:
    """A time field in ms, None where it is none; oddities go to ``notes``, what cannot be right to ``absurd``."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if OLDEST <= value <= now + SKEW:
            return min(int(value), now)
        if OLDEST / 100 <= value < OLDEST:
            notes.append(finding("timestamp-in-seconds", name, f"looks like seconds, not ms: {value}"))
            absurd.append(f"{name} is not in ms")
        elif value > now:
            notes.append(finding("bad-timestamp", name, f"lies in the future: {value}"))
            absurd.append(f"{name} lies in the future")
        else:
            notes.append(finding("bad-timestamp", name, f"no time in ms: {value}"))
            absurd.append(f"{name} is no time in ms")
        return None
    notes.append(finding("bad-timestamp", name, f"no number of ms: {json.dumps(value)[:40]}"))
    absurd.append(f"{name} is no time in ms")
    return _spelled_time(value, now) if isinstance(value, str) else None


def _spelled_time(value: str, now: int) -> int | None:
    """A time that somebody wrote as text (digits, or ISO 8601 with a zone): good for sorting, never for deleting."""
    try:
        ms = int(value) if value.isdigit() else round(_aware(value).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
    return ms if OLDEST <= ms <= now else None


def _aware(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment.astimezone(UTC)
