"""The commands that read and write sessions in Redis. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import InvalidKey
from ...keys import quoted
from ...model import Ref
from ..base import BIG, TAIL, Put, Want
from .lease import LOCKS
from .servers import Command
from .values import Size

IN_FLIGHT = 8 << 20
"""Bytes of payloads asked for, or written, in one go."""

MANY = 4096
"""Items of a list above which its size is found out before it is read."""

LONGEST_IDLE = 180 * 86_400
"""Seconds. The server counts idle time modulo 194 days; a greater age would come out as a small one."""

CLOCK: Command = ("INFO", "server")
ITEM = 1024  # a guess at the bytes of a list's item, to bound a batch before anything is read


def reading(key: bytes, ref: Ref, size: int, want: Want) -> Command | None:
    """The command that reads as much as is wanted; None where nothing is to be read in one go."""
    if ref.kind == "document":
        if want is not Want.WHOLE:  # for NAMES too: the version is to tell a rewritten document of the same size
            return ("GETRANGE", key, -TAIL, -1)
        return ("GET", key) if size <= BIG else None
    if want is Want.NAMES:
        return None
    if want is Want.TAIL:
        return ("LRANGE", key, -16, -1)
    return ("LRANGE", key, 0, -1) if size <= MANY else None


def portions(sizes: dict[Ref, Size]) -> Iterator[list[Ref]]:
    """The refs in portions of about IN_FLIGHT bytes."""
    portion: list[Ref] = []
    total = 0
    for ref, size in sizes.items():
        expected = min(size.size, BIG) if ref.kind == "document" else min(size.size, MANY) * ITEM
        if portion and total + expected > IN_FLIGHT:
            yield portion
            portion, total = [], 0
        portion.append(ref)
        total += expected
    if portion:
        yield portion


def up_to(items: Iterator[tuple[Ref, bytes]], limit: int) -> Iterator[tuple[Ref, bytes]]:
    """The next items until their payloads are ``limit`` bytes or more."""
    for item in items:
        yield item
        limit -= len(item[1])
        if limit <= 0:
            return


def set_(key: bytes, payload: bytes, ttl_ms: int | None) -> Command:
    return ("SET", key, payload) if ttl_ms is None else ("SET", key, payload, "PX", max(1, ttl_ms))


_MAKE_AGED = b"""
if redis.call('EXISTS', KEYS[1]) == 1 then return false end
local made = redis.pcall('RESTORE', KEYS[1], ARGV[2], ARGV[4], 'IDLETIME', ARGV[3])
if made.ok then
  made = redis.pcall('SET', KEYS[1], ARGV[1], 'KEEPTTL')
  if made.err then redis.call('DEL', KEYS[1]) end
elseif ARGV[2] == '0' then
  made = redis.call('SET', KEYS[1], ARGV[1])
else
  made = redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return made
"""
"""SET NX with an idle time in one step. Where RESTORE is not allowed the idle time is left out."""
EMPTY = bytes.fromhex("00000600cb7634c0fa2a9e49")
"""DUMP of an empty string, in a version that every server takes."""


def make_aged(key: bytes, put: Put, idle: int) -> Command:
    ttl_ms = 0 if put.ttl_ms is None else max(1, put.ttl_ms)
    return ("EVAL", _MAKE_AGED, 1, key, put.payload, ttl_ms, idle, EMPTY)


def rpushes(key: bytes, items: Sequence[bytes]) -> list[Command]:
    """RPUSH in pieces that no server refuses for their number of arguments or their size."""
    commands: list[Command] = []
    piece: list[bytes] = []
    size = 0
    for item in items:
        if piece and (len(piece) == 1000 or size + len(item) > 1 << 20):
            commands.append(("RPUSH", key, *piece))
            piece, size = [], 0
        piece.append(item)
        size += len(item)
    return [*commands, ("RPUSH", key, *piece)] if piece else commands


def pexpire(key: bytes, ttl_ms: int | None) -> list[Command]:
    return [] if ttl_ms is None else [("PEXPIRE", key, max(1, ttl_ms))]


def restore(key: bytes, dump: bytes, idle: int, ttl_ms: int | None, *more: str) -> Command:
    return ("RESTORE", key, 0 if ttl_ms is None else max(1, ttl_ms), dump, *more, "IDLETIME", idle)


def idle_time(clock: int, changed_at: int) -> int:
    """Idle time (s) of what was last used at ``changed_at`` (ms), rounded up: until it is set, the clock may go on."""
    return min(max(0, clock // 1000 - changed_at // 1000), LONGEST_IDLE)


def lock_key(ref: Ref) -> bytes:
    try:
        return LOCKS + ref.key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidKey(f"{quoted(ref.key)} is not text that a key can be made of") from None
