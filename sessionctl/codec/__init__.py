"""Payload bytes to the model: the only parser of stored sessions (FORMATS.md sections 1 and 2).

``summary`` and ``brief`` read what a row or a rule needs and are made to be fast: typed decoding of the few fields that
matter, straight from the bytes. Whatever has a fault, or is not exactly as the writers write it, takes the tolerant way
through ``json``, ``outline``, which must give the same answer (a test holds that). ``read`` decodes everything, for
people and programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from ..history import finding
from ..keys import split_composite
from ..model import Damage, Outline, Ref, Session
from .checkpoints import approvals
from .documents import brief_document, check_document, parse_document, slow_document, sound_chunks, sound_document
from .logs import LogReader, brief_log, lines_of, sound_log
from .messages import message_of
from .text import ODD, OLDEST

__all__ = [
    "approvals",
    "brief",
    "damage",
    "outline",
    "outline_log",
    "parse_document",
    "quick_id",
    "read",
    "summary",
    "summary_of_chunks",
    "tail_times",
]

_FIRST_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\\x00-\x1f\x80-\xff]*)"\s*,\s*"messages"')
_TAIL_TIME = re.compile(rb'"(?:updatedAt|lastActivityAt)"\s*:\s*(\d{12,14})\s*[,}]')


def outline(ref: Ref, payload: bytes, now: int) -> Outline:
    """What a row, a status or a rule needs of a payload. ``now`` is in ms; times after it are not believed.

    Never raises for what is stored: damage is part of the answer.
    """
    if ref.kind == "log":
        return outline_log([payload], now)
    return _named(ref, slow_document(payload, now)[0])


def _named(ref: Ref, found: Outline) -> Outline:
    """With a note where a document's own id is not the one it is stored under."""
    if ref.kind == "log" or found.steps is None or found.id in (ref.key, split_composite(ref.key)[1]):
        return found
    said = "no text" if found.id is None else repr(found.id[:80])
    note = finding("id-mismatch", "id", f"the id inside is {said}")
    return msgspec.structs.replace(found, notes=(*found.notes, note))


def brief(ref: Ref, payload: bytes, now: int) -> Outline | None:
    """The outline of what is not damaged, its messages ``unread``; None where that takes a full look."""
    try:
        return brief_document(payload, now) if ref.kind == "document" else brief_log([payload])
    except ODD:
        return None


def damage(ref: Ref, payload: bytes, now: int) -> tuple[Damage, ...]:
    """What is wrong with a payload's bytes; where nothing is, that takes a quarter of ``outline``'s time."""
    try:
        if ref.kind == "document":
            check_document(payload)
        else:
            brief_log([payload])
        return ()
    except ODD:
        return outline(ref, payload, now).damage


def outline_log(chunks: Iterable[bytes], now: int) -> Outline:
    """The outline of a log read piece by piece, in memory that does not follow the size of its texts."""
    reader = LogReader()
    size = 0
    for line in lines_of(chunks):
        size += len(line.raw) + 1
        reader.feed(line)
    return reader.outline(size)


def summary(ref: Ref, payload: bytes, now: int) -> Outline:
    """``outline``; where no message has any fault they are only counted, which takes half the time."""
    try:
        found = _named(ref, sound_document(payload, now) if ref.kind == "document" else sound_log([payload]))
    except ODD:
        return outline(ref, payload, now)
    return found


def summary_of_chunks(ref: Ref, chunks: Callable[[], Iterable[bytes]], now: int) -> Outline:
    """``summary`` of a payload read piece by piece; where no message has any fault the memory does not follow the size.

    ``chunks`` begins to read anew whenever it is called.
    """
    try:
        found = sound_log(chunks()) if ref.kind == "log" else sound_chunks(chunks(), now)
    except ODD:
        return outline_log(chunks(), now) if ref.kind == "log" else outline(ref, b"".join(chunks()), now)
    return _named(ref, found)


def quick_id(payload: bytes) -> str | None:
    """A document's own id, without reading the rest where it stands first, as the writers put it."""
    match = _FIRST_ID.match(payload)
    if match:
        return match[1].decode()
    document, _ = parse_document(payload)
    inner = document.get("id") if document else None
    return inner if isinstance(inner, str) else None


def read(ref: Ref, payload: bytes, now: int) -> Session:
    """The whole session, decoded. Never raises for what is stored: damage is part of the outline.

    Messages of a log that are not part of its history are in ``others``, and all are where there is no history.
    """
    if ref.kind == "document":
        found, document = slow_document(payload, now)
        messages = tuple(message_of(m) for m in document["messages"]) if document else ()
        return Session(ref, _named(ref, found), messages)
    reader = LogReader()
    decoded = [
        message_of(piece.value["message"], fallback_id=piece.value["id"])
        for line in lines_of([payload])
        for piece in reader.take(line)
    ]
    found = reader.outline(len(payload))
    branches = _branches(found)
    return Session(
        ref,
        found,
        tuple(decoded[i] for i in found.order),
        tuple(replace(decoded[i], branch=branch) for i, branch in branches.items()),
    )


def _branches(found: Outline) -> dict[int, int]:
    """The entries outside the history, each with the number of its branch (from 1): a child goes on its parent's."""
    inside = set(found.order)
    numbers: dict[int, int] = {}
    by_id: dict[str, int] = {}
    count = 0
    for index, entry in enumerate(found.entries):
        if index in inside:
            continue
        if entry.parent in by_id:
            numbers[index] = by_id[entry.parent]
        else:
            count += 1
            numbers[index] = count
        by_id[entry.id] = numbers[index]
    return numbers


def tail_times(tail: bytes, now: int) -> int | None:
    """The newest plausible time (ms) that the end of a document names, None where the end does not tell.

    Good for showing that a document is young without reading it all; never enough to call it old.
    """
    newest = 0
    for match in _TAIL_TIME.finditer(tail):
        at = int(match[1])
        if OLDEST <= at <= now and at > newest:
            newest = at
    return newest or None
