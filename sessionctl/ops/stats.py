"""Figures of a store: how many sessions and bytes, by what, how old and how large."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from .select import Summary

TOP = 10
"""Sessions that are named as the largest and the oldest."""

HOUR, DAY = 3_600_000, 86_400_000
AGES: tuple[tuple[str, int], ...] = (
    ("in the future", 0),
    ("under 1 h", HOUR),
    ("1 h to 1 d", DAY),
    ("1 d to 7 d", 7 * DAY),
    ("7 d to 30 d", 30 * DAY),
    ("30 d to 90 d", 90 * DAY),
    ("90 d to 1 y", 365 * DAY),
    ("over 1 y", 1 << 62),
)
"""The bins of ages: name, and the ms since the last activity below which a session falls into it."""
SIZES: tuple[tuple[str, int], ...] = (
    ("under 1 KB", 1000),
    ("1 to 10 KB", 10_000),
    ("10 to 100 KB", 100_000),
    ("100 KB to 1 MB", 1_000_000),
    ("1 to 10 MB", 10_000_000),
    ("over 10 MB", 1 << 62),
)
"""The bins of sizes, in bytes."""
UNKNOWN = "unknown"

GROUPS: dict[str, Callable[[Summary], str | None]] = {
    "status": lambda s: s.status,
    "kind": lambda s: s.ref.kind,
    "owner": lambda s: s.owner,
    "tenant": lambda s: s.tenant,
    "agent": lambda s: s.agent,
    "model": lambda s: s.outline.model,
}
"""By what sessions are counted."""


class Count(msgspec.Struct):
    """Sessions and their bytes. ``name`` is None for those that have no such property."""

    name: str | None
    sessions: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.sessions += 1
        self.bytes += size


class Stats(msgspec.Struct):
    """The figures. ``groups`` come with the most sessions first, ``ages`` and ``sizes`` in their own order."""

    total: Count
    messages: int
    unreadable: int
    groups: dict[str, list[Count]]
    ages: list[Count]
    sizes: list[Count]
    largest: list[Summary]
    oldest: list[Summary]


def gather(summaries: Iterable[Summary], now: int) -> Stats:
    """Count sessions, each looked at once. ``now`` is in ms."""
    total, messages, unreadable = Count(None), 0, 0
    groups: dict[str, dict[str | None, Count]] = {name: {} for name in GROUPS}
    ages, sizes = _bins(AGES), _bins(SIZES)
    unknown = Count(UNKNOWN)
    largest: list[tuple[int, str, str, Summary]] = []
    oldest: list[tuple[int, str, str, Summary]] = []
    for summary in summaries:
        size = summary.stamp.size
        total.add(size)
        messages += summary.messages or 0
        unreadable += summary.error is not None
        for name, of in GROUPS.items():
            value = of(summary)
            group = groups[name].get(value)
            if group is None:
                group = groups[name][value] = Count(value)
            group.add(size)
        at = summary.last_activity_at
        age_bin = unknown if at is None else ages[_bin(AGES, now - at)]
        age_bin.add(size)
        sizes[_bin(SIZES, size)].add(size)
        _keep(largest, size, summary)
        if at is not None:
            _keep(oldest, -at, summary)
    return Stats(
        total,
        messages,
        unreadable,
        {name: sorted(found.values(), key=_most_first) for name, found in groups.items()},
        [count for count in (*ages, unknown) if count.sessions or count not in (ages[0], unknown)],
        sizes,
        [entry[-1] for entry in sorted(largest, key=lambda e: e[:3], reverse=True)],
        [entry[-1] for entry in sorted(oldest, key=lambda e: e[:3], reverse=True)],
    )


def _bins(bounds: tuple[tuple[str, int], ...]) -> list[Count]:
    assert all(a[1] < b[1] for a, b in pairwise(bounds))
    return [Count(name) for name, _ in bounds]


def _bin(bounds: tuple[tuple[str, int], ...], value: int) -> int:
    return next(index for index, (_, below) in enumerate(bounds) if value < below)


def _most_first(count: Count) -> tuple[int, int, str]:
    return -count.sessions, -count.bytes, count.name or ""


def _keep(heap: list[tuple[int, str, str, Summary]], rank: int, summary: Summary) -> None:
    """Keep the TOP entries of the highest rank; key and kind break ties, so that the answer is always the same."""
    entry = (rank, summary.ref.key, summary.ref.kind, summary)
    if len(heap) < TOP:
        heapq.heappush(heap, entry)
    elif entry[:3] > heap[0][:3]:
        heapq.heapreplace(heap, entry)
