"""The cursor file of ``tail``: how far each session was read, kept between calls."""

from __future__ import annotations

import msgspec

from ..errors import UsageError
from ..keys import MAX_LOOKUP, quoted
from ..model import Kind, Ref
from . import keep
from .follow import KEEP, Position

FORMAT = "sessionctl-cursor-1"
OPTION = "--cursor"


class _Place(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    kind: Kind
    at: Position


class _Cursor(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    store: str
    sessions: list[_Place]


def load(path: str, store: str) -> dict[Ref, Position] | None:
    """The positions in a cursor file, None where there is no file yet.

    Raises UsageError for a file that is no cursor (it is never overwritten) or that belongs to another store.
    """
    data = keep.read(path, OPTION)
    if data is None:
        return None
    cursor = keep.decode(data, _Cursor)
    if cursor is None or cursor.format != FORMAT or any(_is_odd(place) for place in cursor.sessions):
        raise _not_ours(path)
    if cursor.store != store:
        raise UsageError(
            f"{quoted(path, 300)} is the cursor of another store: {quoted(cursor.store, 200)}",
            hint="use one cursor file for each store",
        )
    return {Ref(place.key, place.kind): place.at for place in cursor.sessions}


def save(path: str, store: str, positions: dict[Ref, Position]) -> None:
    """Write the cursor file. Raises WriteFailed."""
    sessions = [_Place(ref.key, ref.kind, at) for ref, at in positions.items()]
    keep.write(path, keep.encode(_Cursor(FORMAT, store, sessions)))


def _not_ours(path: str) -> UsageError:
    return UsageError(
        f"{quoted(path, 300)} is not a cursor that sessionctl wrote", hint="name another file, or remove it"
    )


def _is_odd(place: _Place) -> bool:
    return (
        not 0 < len(place.key) <= MAX_LOOKUP
        or len(place.at.last) > KEEP
        or any(len(mark) > 16 for mark in (*place.at.last, place.at.check))
        or not 0 <= place.at.offset < 1 << 53
    )
