"""A document as the columns of a table row: its messages apart from all else, and the same bytes back.

An application that follows Seepient's documentation reads and writes the messages and the time of the last change only
(FORMATS.md section 1, SQL). Kept as a hole in the rest of the payload, both are always the newest that anybody wrote,
and what the application does not know of (owner, metadata, unknown fields) stays as it was.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from .text import refuse_constant

LATEST = 253_402_300_799_999
"""ms: the end of the year 9999, the latest moment that databases and Python both know."""

_decode = json.JSONDecoder(parse_constant=refuse_constant).raw_decode
_space = re.compile(r"[ \t\n\r]*").match


class Split(NamedTuple):
    """A document cut in three: ``head + messages + tail`` are its bytes.

    ``time_length`` bytes of ``head + tail`` at ``time_at`` spell its ``updatedAt``; none do where it has no such field,
    and ``time_at`` is where it would go. ``updated_at`` is its value if that is a moment in ms.
    """

    head: bytes
    messages: str
    tail: bytes
    time_at: int
    time_length: int
    updated_at: int | None


def split_document(payload: bytes) -> Split | None:
    """Cut a document in three; None for bytes that are no JSON object with a list of messages."""
    try:
        text = payload.decode()
        members, end = _members(text)
        start, stop, messages = members["messages"]
    except (ValueError, KeyError, RecursionError):
        return None
    if not isinstance(messages, list):
        return None
    time_start, time_stop, time = members.get("updatedAt", (end, end, None))
    head, tail = text[:start].encode(), text[stop:].encode()
    before = text[:time_start] if time_start < start else text[:start] + text[stop:time_start]
    known = isinstance(time, int) and not isinstance(time, bool) and 0 <= time <= LATEST
    return Split(
        head,
        text[start:stop],
        tail,
        len(before.encode()),
        len(text[time_start:time_stop].encode()),
        time if known else None,
    )


def with_time(head: bytes, tail: bytes, time_at: int, time_length: int, updated_at: int) -> tuple[bytes, bytes]:
    """``head`` and ``tail`` of a Split with another ``updatedAt`` (ms)."""
    text = _time_text(time_length, updated_at)
    if time_at < len(head):
        return head[:time_at] + text + head[time_at + time_length :], tail
    at = time_at - len(head)
    return head, tail[:at] + text + tail[at + time_length :]


def time_growth(time_length: int, updated_at: int) -> int:
    """Bytes by which ``with_time`` makes a document longer."""
    return len(_time_text(time_length, updated_at)) - time_length


def _time_text(time_length: int, updated_at: int) -> bytes:
    return b"%d" % updated_at if time_length else b',"updatedAt":%d' % updated_at


def bare_frame(key: str, updated_at: int | None) -> tuple[bytes, bytes]:
    """What stands before and after the messages of a document of which nothing else is known."""
    head = f'{{"id":{json.dumps(key)},"messages":'.encode()
    return head, b"}" if updated_at is None else b',"updatedAt":%d}' % updated_at


def _members(text: str) -> tuple[dict[str, tuple[int, int, Any]], int]:
    """The members of a JSON object: start, end and value of each (the last of repeated ones), and where it closes.

    Raises ValueError for any other text.
    """
    members: dict[str, tuple[int, int, Any]] = {}
    at = _token(text, 1 if text.startswith("\ufeff") else 0, "{")
    while True:
        key, at = _decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a member has no name")
        start = _token(text, at, ":")
        value, stop = _decode(text, start)
        members[key] = (start, stop, value)
        at = _skip(text, stop)
        if text[at : at + 1] == "}":
            break
        at = _token(text, at, ",")
    if _skip(text, at + 1) != len(text):
        raise ValueError("something follows the object")
    return members, at


def _token(text: str, at: int, token: str) -> int:
    """The place after ``token`` and the white space around it."""
    at = _skip(text, at)
    if text[at : at + 1] != token:
        raise ValueError(f"{token} is missing")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _space(text, at)
    return match.end() if match else at
