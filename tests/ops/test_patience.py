"""Waiting for a lock: for as long as was allowed, no longer once the work is to end."""

from __future__ import annotations

import threading
import time

import pytest

from sessionctl.errors import SessionLocked
from sessionctl.model import Ref
from sessionctl.ops.patience import TURN, lock_patiently
from sessionctl.stores.memory import MemoryStore

REF = Ref("s", "log")


def took(store: MemoryStore, wait: float, ends_after: float) -> float:
    """Seconds until it is given up."""
    began = time.monotonic()
    with pytest.raises(SessionLocked, match="'s' is locked"):
        lock_patiently(store, REF, wait, lambda: time.monotonic() - began >= ends_after)
    return time.monotonic() - began


def test_how_long_is_waited() -> None:
    with MemoryStore() as store, store.lock(REF, 0):
        assert took(store, 0, 99) < TURN
        assert 0.1 <= took(store, 0.1, 99) < 0.1 + TURN
        assert 3 * TURN <= took(store, 3 * TURN, 99) < 4 * TURN
        assert took(store, 60, 0) < 2 * TURN
        assert took(store, 60, 2 * TURN) < 4 * TURN


def test_what_becomes_free_is_taken_even_while_the_work_is_to_end() -> None:
    with MemoryStore() as store:
        lease = store.lock(REF, 0)
        threading.Timer(2 * TURN, lease.release).start()
        with lock_patiently(store, REF, 60, lambda: False) as taken:
            taken.check()
        with lock_patiently(store, REF, 0, lambda: True), pytest.raises(SessionLocked):
            store.lock(REF, 0)
        store.lock(REF, 0).release()
