"""Waiting for a session's lock, in turns so short that a wish to end is heeded."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import SessionLocked
from ..locks import Lease
from ..model import Ref
from ..stores.base import Store

TURN = 0.25
"""Seconds of one turn."""


def lock_patiently(store: Store, ref: Ref, wait: float, stopping: Callable[[], bool]) -> Lease:
    """Take a session's lock, waiting up to ``wait`` seconds, no longer once ``stopping`` says so.

    Raises SessionLocked, naming the holder, and whatever else ``Store.lock`` raises.
    """
    deadline = time.monotonic() + wait
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return store.lock(ref, min(TURN, left))
        except SessionLocked:
            if left <= TURN or stopping():
                raise
