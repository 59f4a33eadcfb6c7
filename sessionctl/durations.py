"""Durations and moments as people write them, to ms."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache

from .errors import InvalidDuration, InvalidMoment
from .keys import quoted

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d{1,12})(ms|s|m|h|d|w)")
_DURATION = re.compile(r"(\d{1,12}(ms|s|m|h|d|w))+\Z")
_EPOCH = date(1970, 1, 1).toordinal()
LONGEST = 100 * 365 * 86_400_000
"""ms: a hundred years. A longer duration is a slip of the hand."""


def parse_duration(text: str, *, wait: bool = False) -> int:
    """``90s 30m 24h 7d 2w 1h30m`` in ms; raises InvalidDuration, also for zero.

    Each unit stands once, the larger before the smaller. ``m`` is minutes. A ``wait`` may also be zero or in ``ms``,
    which no rule may: one that deletes must not be a letter away from minutes.
    """
    if wait and text == "0":
        return 0
    parts = _PART.findall(text) if text.isascii() and _DURATION.match(text) else []
    units = [_UNITS[unit] for _, unit in parts]
    total = sum(int(number) * _UNITS[unit] for number, unit in parts)
    disordered = units != sorted(set(units), reverse=True)
    if not parts or disordered or total > LONGEST or not (wait or (total and 1 not in units)):
        raise InvalidDuration(quoted(text))
    return total


def parse_moment(text: str, now: int) -> int:
    """A moment in ISO 8601 (local time without a zone), or a duration before ``now``; in ms. Raises InvalidMoment."""
    try:
        return now - parse_duration(text)
    except InvalidDuration:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidMoment(quoted(text)) from None


def iso(ms: int | None) -> str | None:
    """ms since the epoch as ISO 8601 in UTC with milliseconds."""
    if ms is None:
        return None
    day, rest = divmod(ms, 86_400_000)
    minute, rest = divmod(rest, 60_000)
    return f"{_day(day)}T{_minute(minute)}:{rest // 1000:02d}.{rest % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _day(number: int) -> str:
    """The date of a day, counted from the epoch."""
    return date.fromordinal(_EPOCH + number).isoformat()


@lru_cache(maxsize=1440)
def _minute(number: int) -> str:
    """Hour and minute of a minute of the day."""
    return f"{number // 60:02d}:{number % 60:02d}"


def ago(ms: int) -> str:
    """A span of time for people, in its largest unit: ``12 s``, ``5 min``, ``3 h``, ``8 d``."""
    seconds = abs(ms) // 1000
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86_400} d"


def size(count: int) -> str:
    """A number of bytes for people: ``512 B``, ``1.4 KB``, ``3.2 MB``."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError
