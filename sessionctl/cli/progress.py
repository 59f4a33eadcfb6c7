"""Progress on stderr at a terminal, and Ctrl-C between two actions."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(text: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A bar that the yielded function moves on by one; nothing without a terminal, or for what is soon over."""
    if quiet or not sys.stderr.isatty() or (total is not None and total < 20):
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    from .output import make_console

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()] if total else [MofNCompleteColumn()]
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def stop_between(tick: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Let Ctrl-C end the work at the next call of the yielded function, between two actions; a second one at once."""
    asked = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def step() -> None:
        tick()
        if asked:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not the main thread: there is no Ctrl-C to catch
        yield step
        return
    try:
        yield step
    finally:
        signal.signal(signal.SIGINT, before)
