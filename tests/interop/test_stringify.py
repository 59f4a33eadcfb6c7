"""js_dumps against the real JSON.stringify of Node, and the numbers that must keep their text."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionctl.codec.stringify import SpelledNumber, js_dumps, spelled_loads

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
SCRIPT = Path(__file__).with_name("stringify.js")


def node(values: list[Any], indent: int) -> list[str]:
    """What Node writes for values that are handed to it as JSON."""
    lines = "".join(json.dumps(value) + "\n" for value in values)
    done = subprocess.run(
        ["node", str(SCRIPT), str(indent)], input=lines.encode(), capture_output=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


NUMBERS = [
    0.0, -0.0, 1.0, -1.0, 0.1, 1e21, -1e21, 1e20, 999999999999999900000.0, 1.5e-7, 1e-7, 1e-6, 0.00000123, 5e-324,
    1.7976931348623157e308, 123456789.125, 1e22, 1e16, 9007199254740993.0, 2.5e25, 1 / 3, 100.0,
    0, -7, 2**53, 1767225600000,
]  # fmt: skip
TEXTS = [
    "", "é", "😀", "\u2028\u2029", "\x00\x1f\x7f\x80", '"\\/\b\f\n\r\t', "\ud800", "\udfff x",
    "\ude00\ud83d", "\ud83d\ude00",
]  # fmt: skip
SHAPES = [[], {}, [[]], [{}], {"a": []}, {"b": {"c": [1, [2, {}], None, True, False]}, "a": "z"}, {"": {"ключ": 1}}]


@needs_node
@pytest.mark.parametrize("indent", [0, 2])
def test_the_bytes_are_those_of_node(indent: int) -> None:
    values = [*NUMBERS, *TEXTS, *SHAPES, {"all": [NUMBERS, TEXTS, SHAPES]}]
    assert [js_dumps(value, indent) for value in values] == node(values, indent)


finite = (
    st.integers(0, 2**64 - 1)
    .map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
    .filter(lambda x: x - x == 0)
)
ordinary = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(), max_size=20)
key = st.text(st.characters(), max_size=8).filter(lambda k: not k.isdigit() and k != "__proto__")
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | ordinary | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(key, inner, max_size=4),
    max_leaves=20,
)


@needs_node
@settings(max_examples=8, deadline=None)
@given(st.lists(finite | ordinary, min_size=300, max_size=400), st.lists(anything, min_size=20, max_size=40))
def test_any_value_is_written_as_node_writes_it(floats: list[float], values: list[Any]) -> None:
    assert [js_dumps(value, 2) for value in [*floats, *values]] == node([*floats, *values], 2)


@given(finite)
def test_a_float_survives(number: float) -> None:
    assert json.loads(js_dumps(number)) == number


@given(anything)
def test_any_value_survives(value: Any) -> None:
    # A whole number from 2**53 on is written with the digits that tell it from others, not all: read it as a float.
    assert json.loads(js_dumps(value), parse_int=float) == value
    assert js_dumps(spelled_loads(js_dumps(value))) == js_dumps(value)


@pytest.mark.parametrize(
    "spelled", ["1.0", "-0", "-0.0", "1E5", "1e5", "0.10", "1e400", "123456789012345678901234567890", "7"]
)
def test_a_number_keeps_the_text_it_was_read_with(spelled: str) -> None:
    assert js_dumps(spelled_loads(f'{{"a": [{spelled}]}}')) == f'{{"a":[{spelled}]}}'


def test_a_number_that_would_be_written_the_same_stays_an_ordinary_one() -> None:
    plain, spelled = spelled_loads("[1.5, 1.50]")
    assert type(plain) is float and type(spelled) is SpelledNumber and plain == spelled


@pytest.mark.parametrize("value", [{1: 2}, {"a": {3}}, b"x", object()])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        js_dumps(value)


def test_what_is_no_number_in_json_is_refused() -> None:
    for value in (float("nan"), float("inf"), [-float("inf")]):
        with pytest.raises(ValueError, match="not JSON"):
            js_dumps(value)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        js_dumps(deep)
