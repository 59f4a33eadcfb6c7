"""A document as the columns of a table row: its messages apart from all else, and the same bytes back.

An application that follows Seepient's documentation reads and writes the messages and the time of the last change only
(FORMATS.md section 1, SQL). Kept as a hole in the rest of the payload, both are always the newest that anybody wrote,
and what the application does not know of (owner, metadata, unknown fields) stays as it was.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from .splice import members

LATEST = 253_402_300_799_999
"""ms: the end of the year 9999, the latest moment that databases and Python both know."""

_moment = re.compile(r"(?:0|[1-9][0-9]{0,14})\Z").match


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
        found = members(text, 1 if text.startswith("\ufeff") else 0)
    except ValueError:
        return None
    spans = {member.key: member.value for member in found}  # of a repeated key, the last one counts
    if "messages" not in spans or text[found[-1].end :].strip(" \t\n\r") != "}":
        return None
    start, stop = spans["messages"]
    if text[start] != "[":
        return None
    close = text.rindex("}")
    time_start, time_stop = spans.get("updatedAt", (close, close))
    before = text[:time_start] if time_start < start else text[:start] + text[stop:time_start]
    time = text[time_start:time_stop]
    return Split(
        text[:start].encode(),
        text[start:stop],
        text[stop:].encode(),
        len(before.encode()),
        len(time.encode()),
        int(time) if _moment(time) and int(time) <= LATEST else None,
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
