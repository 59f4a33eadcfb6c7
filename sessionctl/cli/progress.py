"""Progress on stderr at a terminal, and an end between two actions when one is asked for."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVERY = 0.1
"""Seconds between two drawings."""
STOPS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
"""What asks for an end: Ctrl-C, a supervisor, a terminal that is closed."""


class Bar:
    """Calling it moves the bar on. ``hidden``: the bar is out of the way while lines are printed."""

    def __call__(self, count: int = 1) -> None:
        """So many more are done."""

    @contextmanager
    def hidden(self) -> Iterator[None]:
        yield


class Step:
    """To be called after so many actions: it moves the bar on, and ends the work if that was ``asked`` for."""

    def __init__(self, tick: Bar) -> None:
        self._tick = tick
        self.asked = False

    def __call__(self, count: int = 1) -> None:
        self._tick(count)
        if self.asked:
            raise KeyboardInterrupt


class _Shown(Bar):
    """Drawn in passing: a thread that draws would keep large stores from being read by several processes."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task
        self._drawn = 0.0

    def __call__(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)
        if (now := time.monotonic()) - self._drawn > EVERY:
            self._drawn = now
            self._bar.refresh()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


@contextmanager
def progress(text: str, total: int | None, *, quiet: bool = False) -> Iterator[Bar]:
    """A bar on stderr; one that shows nothing without a terminal, or for what is soon over."""
    if quiet or not sys.stderr.isatty() or (total is not None and total < 20):
        yield Bar()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    from .output import make_console

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()] if total else [MofNCompleteColumn()]
    with Progress(*columns, console=make_console(stderr=True), transient=True, auto_refresh=False) as bar:
        yield _Shown(bar, bar.add_task(text, total=total))


@contextmanager
def stop_between(tick: Bar) -> Iterator[Step]:
    """Let a signal end the work at the next call of the yielded object, between two actions; a second one at once."""
    step = Step(tick)

    def on_signal(number: int, frame: object) -> None:
        if step.asked:
            raise KeyboardInterrupt
        step.asked = True

    before = {}
    # Other threads cannot catch any; what is ignored (as under nohup) stays so.
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.getsignal(n) for n in STOPS if signal.getsignal(n) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield step
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
