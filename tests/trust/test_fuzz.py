"""Fuzzing, the short run: every seed and every input that ever broke something, and mutations of them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trust.fuzz import TARGETS, attempt, seeds

EXAMPLES = 3000 if os.environ.get("SESSIONCTL_TRUST") == "full" else 60
HANGS = 10
"""Seconds that no input may take."""
PIECES = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\\ud800",
]


@st.composite
def mutated(draw: Any, target: str) -> bytes:
    """A seed with some of it cut out, doubled, moved, or replaced."""
    data = draw(st.sampled_from(seeds(target) or [b""]))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        new = draw(st.sampled_from(PIECES) | st.binary(max_size=6) | st.just(data[start:end] * 2))
        data = data[:start] + new + data[end:]
    return data


@pytest.fixture(autouse=True)
def no_hang() -> Any:
    def stop(*_: Any) -> None:
        raise AssertionError(f"it took more than {HANGS} s")

    old = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def timed(target: str, data: bytes) -> None:
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    attempt(target, data)
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds(target: str) -> None:
    found = seeds(target)
    assert found
    for data in found:
        timed(target, data)


@pytest.mark.parametrize("target", TARGETS)
def test_mutations(target: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(mutated(target) | st.binary(max_size=60))
    def run(data: bytes) -> None:
        timed(target, data)

    run()
