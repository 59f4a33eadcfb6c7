"""JSON text exactly as ``JSON.stringify`` writes it, and numbers that keep the text they were read with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring
from typing import Any

from .text import MOST_DIGITS, refuse_constant

_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_PLAIN_POINTS = range(-5, 22)
"""Places of the decimal point where JavaScript writes no exponent: ECMA-262, Number::toString, steps 6 to 10."""


class SpelledNumber(float):
    """A number whose stored text is not the one that would be written for it (``1.0``, ``1E5``, ``-0``)."""

    text: str

    def __new__(cls, text: str) -> SpelledNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type[SpelledNumber], tuple[str]]:
        return SpelledNumber, (self.text,)


def spelled_loads(text: str) -> Any:
    """JSON as ``JSON.parse`` takes it, with every number written again by ``js_dumps`` as it stands in ``text``.

    Raises ValueError, also for text nested too deeply to be read.
    """
    try:
        return json.loads(text, parse_float=_read_float, parse_int=_read_int, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read_float(text: str) -> float:
    number = float(text)
    return number if _is_finite(number) and js_number(number) == text else SpelledNumber(text)


def _read_int(text: str) -> int | float:
    return int(text) if text != "-0" and len(text) <= MOST_DIGITS else SpelledNumber(text)


def _is_finite(number: float) -> bool:
    return number - number == 0


def js_number(number: float) -> str:
    """A float as JavaScript writes it: ``1e+21``, ``1.5e-7``, ``1`` for 1.0, ``0`` for -0.0. Raises ValueError."""
    if not _is_finite(number):
        raise ValueError(f"{number} is not JSON")
    if number == 0:
        return "0"
    mantissa, _, exponent = f"{float.__repr__(abs(number))}e0".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent.partition("e")[0])  # digits before the decimal point
    digits = digits.rstrip("0")
    sign = "-" if number < 0 else ""
    if point not in _PLAIN_POINTS:
        shown = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{shown}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return sign + digits.ljust(point, "0")
    return f"{sign}{digits[:point]}.{digits[point:]}"


def js_dumps(value: Any, indent: int | str = 0, level: int = 0) -> str:
    """``JSON.stringify(value, null, indent)``, to the byte; ``level`` is how deep the value itself will stand.

    Whole numbers of Python are written with all their digits, also those that JavaScript would round, and keys keep
    their order, also those that look like numbers. Raises TypeError for what JSON cannot hold, ValueError for NaN,
    infinities and structures nested too deeply.
    """
    step = " " * indent if isinstance(indent, int) else indent
    try:
        text = "".join(_write(value, step, step and "\n" + step * level))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _SURROGATES.sub(_write_surrogate, text)


def _write_surrogate(match: re.Match[str]) -> str:
    found = match[0]
    if len(found) == 2:
        return found.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    return f"\\u{ord(found):04x}"


def _write(value: Any, step: str, margin: str) -> Iterator[str]:
    """The pieces of the text; ``margin`` is a newline and the indentation so far, or nothing."""
    if isinstance(value, str):
        yield encode_basestring(value)
    elif value is None:
        yield "null"
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, int):
        yield int.__repr__(value)
    elif isinstance(value, SpelledNumber):
        yield value.text
    elif isinstance(value, float):
        yield js_number(value)
    elif isinstance(value, Mapping):
        opening = "{"
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of a JSON object is text, not {type(key).__name__}")
            yield f"{opening}{margin}{step}{encode_basestring(key)}:{' ' if step else ''}"
            yield from _write(item, step, margin and margin + step)
            opening = ","
        yield "{}" if opening == "{" else margin + "}"
    elif isinstance(value, (list, tuple)):
        opening = "["
        for item in value:
            yield f"{opening}{margin}{step}"
            yield from _write(item, step, margin and margin + step)
            opening = ","
        yield "[]" if opening == "[" else margin + "]"
    else:
        raise TypeError(f"{type(value).__name__} is not JSON")
