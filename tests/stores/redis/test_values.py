"""What is made of the server's answers, and the commands that ask for them, without a server."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from sessionctl.model import Ref
from sessionctl.stores.base import BIG, TAIL, Want
from sessionctl.stores.redis.commands import IN_FLIGHT, LONGEST_IDLE, idle_time, portions, rpushes
from sessionctl.stores.redis.values import Size, clock_of, glue, join, record_of, split

LOG = Ref("a", "log")
DOCUMENT = Ref("a", "document")


@given(st.binary(min_size=1, max_size=40) | st.text("a\n", min_size=1).map(str.encode))
def test_any_payload_comes_back_from_its_items(payload: bytes) -> None:
    items = split(payload, LOG)
    assert join(items) == payload
    assert all(b"\n" not in item for item in items[:-1])
    assert b"\n" not in items[-1][1:]


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_what_is_appended_goes_on_with_the_last_line(payload: bytes, lines: bytes) -> None:
    items, more = split(payload, LOG), split(lines, LOG)
    if items[-1].startswith(b"\n"):
        items[-1:] = [glue(items[-1], more.pop(0))]
    assert join([*items, *more]) == payload + lines


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=3000))
def test_no_piece_of_a_log_is_more_than_a_server_takes(items: list[bytes]) -> None:
    pushes = rpushes(b"key", items)
    assert [item for _, _, *pushed in pushes for item in pushed] == items
    assert all(len(pushed) <= 1000 for _, _, *pushed in pushes)


def test_portions_are_bounded_and_leave_none_out() -> None:
    sizes = {Ref(f"s{n}", "document"): Size(n << 15, None, "none", None) for n in range(200)}
    found = list(portions(sizes))
    assert [ref for portion in found for ref in portion] == list(sizes)
    for portion in found:
        assert len(portion) == 1 or sum(min(sizes[ref].size, BIG) for ref in portion) <= IN_FLIGHT


@given(st.binary(min_size=1, max_size=TAIL + 3), st.binary(min_size=1, max_size=TAIL + 3))
def test_knowing_less_of_a_session_is_knowing_the_front_part_of_its_version(one: bytes, other: bytes) -> None:
    size = Size(len(one), None, "none", None)
    whole = record_of(DOCUMENT, size, one, Want.WHOLE, digests=True).stamp.version
    end = record_of(DOCUMENT, size, one[-TAIL:], Want.TAIL, digests=True).stamp.version
    assert whole[: len(end)] == end
    changed = record_of(DOCUMENT, Size(len(other), None, "none", None), other, Want.WHOLE, digests=True).stamp.version
    assert (changed == whole) == (one == other)


def test_idle_times_count_back_from_the_servers_own_clock() -> None:
    second = time.time_ns() // 1_000_000_000
    for behind in (0, 1):
        info = b"lru_clock:%d\r\n" % ((second - behind) % (1 << 24))
        assert abs(clock_of(info) // 1000 - (second - behind)) <= 1
    for unknown in (b"", b"lru_clock:%d" % ((second + 5000) % (1 << 24)), RuntimeError()):
        assert abs(clock_of(unknown) // 1000 - second) <= 1
    assert idle_time(second * 1000, second * 1000 - 1) == 1
    assert idle_time(second * 1000, second * 1000 + 5000) == 0
    assert idle_time(second * 1000, 0) == LONGEST_IDLE
