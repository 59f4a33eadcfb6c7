"""What Redis holds of a session, and the records, stamps and payloads that are made of its answers. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from redis import exceptions as failed

from ...errors import WriteFailed
from ...keys import digest, quoted
from ...model import AgeSource, Kind, Record, Ref, Stamp
from ..base import BIG, TAIL, Want
from .servers import Answer

TYPES: dict[Kind, str] = {"document": "string", "log": "list"}

UNKNOWN = -1
"""The size of a log that must not even be looked at."""

EMPTY_LOG = "is an empty log, and Redis holds no empty lists"


class Size(NamedTuple):
    """What is known of a session before its payload is read. ``size`` is in bytes (documents) or items (logs).

    It is UNKNOWN for a log that must not even be looked at.
    """

    size: int
    changed_at: int | None
    source: AgeSource
    ttl_ms: int | None


class Read(NamedTuple):
    """What was read: the length (bytes of a document, items of a log), the end (TAIL bytes, the last item), or all."""

    length: int
    end: bytes | None = None
    payload: bytes | None = None


def version_of(kind: Kind, read: Read) -> tuple[object, ...]:
    """As much of the version as what was read can tell; what knows less is the front part of what knows more."""
    version: tuple[object, ...] = (TYPES[kind],)
    if read.length != UNKNOWN:
        version += (read.length,)
    if read.end is not None:
        version += (digest(read.end),)
        if read.payload is not None:
            version += (digest(read.payload),)
    return version


def stamp_of(ref: Ref, size: Size, read: Read) -> Stamp:
    length = len(read.payload) if read.payload is not None else read.length if ref.kind == "document" else 0
    return Stamp(version_of(ref.kind, read), length, size.changed_at, size.source, size.ttl_ms)


def read_of(ref: Ref, answer: Answer) -> Read:
    """The answer to GET or to an LRANGE of all items."""
    if ref.kind == "document":
        return Read(len(answer), answer[-TAIL:], answer)
    return Read(len(answer), answer[-1], join(answer))


def record_of(ref: Ref, size: Size, answer: Answer, want: Want, *, digests: bool) -> Record:
    """The record of what GET, GETRANGE or LRANGE answered."""
    if want is Want.WHOLE and not digests:
        payload = answer if ref.kind == "document" else join(answer)
        stamp = Stamp((TYPES[ref.kind],), len(payload), size.changed_at, size.source, size.ttl_ms)
        return Record(ref, stamp, payload if len(payload) <= BIG else None)
    if want is Want.WHOLE:
        read = read_of(ref, answer)
        payload = read.payload if read.payload is not None and len(read.payload) <= BIG else None
        return Record(ref, stamp_of(ref, size, read), payload)
    if ref.kind == "document":
        whole = size.size <= TAIL
        read = read_of(ref, answer) if whole else Read(size.size, answer)
        if want is Want.NAMES:
            return Record(ref, stamp_of(ref, size, read))
        return Record(ref, stamp_of(ref, size, read), answer, whole=whole)
    read = read_of(ref, answer)
    assert read.payload is not None
    known = read if len(answer) == size.size else Read(size.size, answer[-1])
    whole = known is read and len(read.payload) <= TAIL
    return Record(ref, stamp_of(ref, size, known), read.payload[-TAIL:], whole=whole)


# --- payloads --------------------------------------------------------------------------------------------------------


def join(items: Sequence[bytes]) -> bytes:
    """The payload of a log: items, each followed by ``\\n``; a last one that begins with ``\\n`` is a line without."""
    if not items:
        return b""
    if items[-1].startswith(b"\n"):
        return b"".join([item + b"\n" for item in items[:-1]]) + items[-1][1:]
    return b"\n".join(items) + b"\n"


def split(payload: bytes, ref: Ref) -> list[bytes]:
    """The items that a log's payload is stored as. Raises WriteFailed for an empty one, which Redis cannot hold."""
    if not payload:
        raise WriteFailed(f"{quoted(ref.key)} {EMPTY_LOG}")
    items = payload.split(b"\n")
    last = items.pop()
    if last:
        items.append(b"\n" + last)
    return items


def glue(torn: bytes, line: bytes) -> bytes:
    """What is appended to an unterminated line goes on with it, as in a file."""
    return b"\n" + torn[1:] + line[1:] if line.startswith(b"\n") else torn[1:] + line


# --- answers ---------------------------------------------------------------------------------------------------------


def clock_of(info: Answer) -> int:
    """The moment (ms) from which idle times count back: the second that the server's own coarse clock is at.

    That clock (24 bits of a Unix time, ``lru_clock`` in INFO) is up to 100 ms behind; the present time serves where it
    is not told, or where the server's idea of time is quite another.
    """
    now = time.time_ns() // 1_000_000
    told_clock = lru_clock(info)
    if told_clock is None:
        return now
    behind = (now // 1000 - told_clock + 2) % (1 << 24) - 2
    return now if behind > 2 else (now // 1000 - behind) * 1000


def lru_clock(info: Answer) -> int | None:
    found = re.search(rb"lru_clock:(\d+)", info) if isinstance(info, bytes) else None
    return int(found[1]) if found else None


def dumped(done: Sequence[Answer] | None) -> bytes:
    """DUMP's answer among those of a transaction that ends with DUMP and UNLINK."""
    assert done is not None
    dump = done[-2]
    assert isinstance(dump, bytes)
    return dump


def is_wrong_type(answer: Answer) -> bool:
    return isinstance(answer, failed.ResponseError) and str(answer).startswith("WRONGTYPE")


def other_type(ref: Ref, type_: str) -> str:
    return f"is of type {type_}, not {TYPES[ref.kind]}: it is no {ref.kind} and stays as it is"
