"""JSON as the writers write it and ``JSON.parse`` takes it, and text cut for one line."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

OLDEST = 100_000_000_000
"""ms: an earlier time (March 1973) is no time in ms; one above a hundredth of it is taken for seconds."""
PREVIEW = 120
"""Characters kept of a title made from the first user message."""
MOST_DIGITS = 640
"""Digits of an int that Python takes, however it is set up."""

_SURROGATE = re.compile(
    rb"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


BOM = b"\xef\xbb\xbf"


class NotPlain(Exception):
    """The fast way does not cover this payload."""


ODD = (NotPlain, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What the fast ways raise for a payload that they do not cover."""


def refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")


def loads(data: bytes | str) -> Any:
    """JSON as ``JSON.parse`` takes it: no NaN, lone surrogates allowed, the last of repeated keys counts.

    Raises ValueError, also for text nested too deeply to be read.
    """
    try:
        return json.loads(data, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # an int of more digits than Python takes, or a constant, which is refused again
        return json.loads(data, parse_constant=refuse_constant, parse_int=_number)


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def not_json(error: ValueError) -> str:
    """What ``loads`` objects to, for people."""
    if not isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    cause = error.msg.removesuffix(" at").removesuffix(" starting")
    return f"not JSON: {cause[:1].lower()}{cause[1:]}"


def has_lone_surrogate(raw: bytes) -> bool:
    """Whether JSON text holds the escape of half a surrogate pair (several JSON libraries refuse it)."""
    return b"\\u" in raw and any(len(match[0]) == 6 and match[0][1:2] == b"u" for match in _SURROGATE.finditer(raw))


def one_line(text: str) -> str | None:
    """The first characters of a text on one line; None where there are none."""
    start = text[:PREVIEW]
    if start.isprintable() and "  " not in start and start[:1] != " " != start[-1:]:
        return start or None
    return " ".join(text[: 4 * PREVIEW].split())[:PREVIEW] or None
