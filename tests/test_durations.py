"""Durations, moments, spans and sizes."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.durations import LONGEST, ago, iso, parse_duration, parse_moment, size
from sessionctl.errors import InvalidDuration, InvalidMoment

NOW = 1_796_000_000_000
HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000), ("30m", 1_800_000), ("24h", 24 * HOUR), ("7d", 168 * HOUR), ("2w", 336 * HOUR),
        ("1h30m", 5_400_000), ("1d12h", 36 * HOUR), ("1w1d1h1m1s", 694_861_000), 
        ("007d", 168 * HOUR),
    ],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "24", "1x", "-3h", "0d", "", "0", "h", "1.5h", "24H", "1y2z", "12x", "1 h", " 1h", "1h ", "30m1h", "1h1h", "١h",
        "1h\n", "+1h", "1e3s", "99999999999999s", "101000d", "0h0m", "ten", "1h30", "h1",
    ],
)  # fmt: skip
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidDuration, match="write 90s, 30m, 24h, 7d, 2w or 1h30m"):
        parse_duration(text)


def test_zero_where_it_is_allowed() -> None:
    assert parse_duration("0", wait=True) == parse_duration("0s", wait=True) == 0
    with pytest.raises(InvalidDuration):
        parse_duration("-1s", wait=True)


def test_a_wait_may_be_short_but_no_rule_may() -> None:
    assert parse_duration("1s250ms", wait=True) == 1250
    for slip in ("30ms", "1s500ms"):
        with pytest.raises(InvalidDuration):
            parse_duration(slip)


def test_the_longest() -> None:
    assert parse_duration(f"{LONGEST // 86_400_000}d") == LONGEST
    with pytest.raises(InvalidDuration):
        parse_duration(f"{LONGEST // 86_400_000}d1s")


@given(st.lists(st.integers(0, 999), min_size=5, max_size=5).filter(any))
def test_durations_add_up(numbers: list[int]) -> None:
    units = {"w": 604_800_000, "d": 86_400_000, "h": HOUR, "m": 60_000, "s": 1000}
    text = "".join(f"{number}{unit}" for number, unit in zip(numbers, units, strict=True))
    assert parse_duration(text) == sum(n * ms for n, ms in zip(numbers, units.values(), strict=True))


@given(st.text())
def test_any_text_gives_a_positive_span_or_the_right_error(text: str) -> None:
    try:
        assert 0 < parse_duration(text) <= LONGEST
    except InvalidDuration as error:
        assert str(error).isprintable()


def test_moments() -> None:
    assert parse_moment("2026-01-31T12:00:00Z", NOW) == 1_769_860_800_000
    assert parse_moment("2026-01-31T13:00:00.250+01:00", NOW) == 1_769_860_800_250
    assert parse_moment("24h", NOW) == NOW - 24 * HOUR


def test_a_moment_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_moment("2026-01-31", NOW) == 1_769_785_200_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "1750000000000", "-1h", "2026", "0001-01-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(InvalidMoment, match="90s, 30m, 24h, 7d, 2w or 1h30m") as caught:
        parse_moment(text, NOW)
    assert caught.value.exit_code == 2


def test_times_for_json() -> None:
    assert iso(None) is None
    assert iso(1_750_000_000_007) == "2025-06-15T15:06:40.007Z"
    assert iso(-1) == "1969-12-31T23:59:59.999Z"


@given(st.datetimes())
def test_iso_is_what_the_clock_says(moment: datetime) -> None:
    epoch, step = datetime(1970, 1, 1), timedelta(milliseconds=1)
    ms = (moment - epoch) // step
    told = datetime.fromisoformat(str(iso(ms)))
    assert told.utcoffset() == timedelta(0)
    assert told.replace(tzinfo=None) == epoch + ms * step


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 s"), (59_999, "59 s"), (60_000, "1 min"), (HOUR - 1, "59 min"), (HOUR, "1 h"), (24 * HOUR, "1 d"),
     (-5000, "5 s"), (4000 * HOUR, "166 d")],
)  # fmt: skip
def test_spans_for_people(ms: int, text: str) -> None:
    assert ago(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (1430, "1.4 KB"), (123_456, "123 KB"), (3_200_000, "3.2 MB"),
     (5_000_000_000_000, "5000 GB"), (999_950, "1000 KB"), (9_999_999, "10.0 MB")],
)  # fmt: skip
def test_sizes_for_people(count: int, text: str) -> None:
    assert size(count) == text
