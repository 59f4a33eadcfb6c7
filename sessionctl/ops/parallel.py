"""Reading a large folder with several processors: each process reads, decodes and judges its part of the sessions."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StoreError
from ..stores.base import Store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

_BATCH = 256
"""Items that are sent at once."""
_MOST = 8
"""Processes; more would wait for the one that collects what they find."""


def by_parts(store: Store, work: Callable[[Store], Iterable[T]]) -> Iterator[T]:
    """What ``work`` yields for a store, in no order; where that pays, from several processes, each with a part of it.

    ``work`` must do nothing but read: a process that is not needed any more is killed. Its items are pickled; what it
    raises is raised here. Only where a fork is safe: on Linux, in a process without other threads.
    """
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    parts = store.parts(min(len(os.sched_getaffinity(0)), _MOST)) if can_fork else [store]
    if len(parts) == 1:
        yield from work(store)
    else:
        yield from _collected([(part, work) for part in parts])


def _collected(jobs: list[tuple[Store, Callable[[Store], Iterable[T]]]]) -> Iterator[T]:
    from multiprocessing import get_context
    from multiprocessing.connection import wait

    fork = get_context("fork")
    waiting: list[Any] = []
    processes = []
    try:
        for part, work in jobs:
            reader, writer = fork.Pipe(duplex=False)
            process = fork.Process(target=_send, args=(writer, part, work), daemon=True)
            process.start()
            writer.close()
            waiting.append(reader)
            processes.append(process)
        while waiting:
            for ready in wait(waiting):
                items, is_last = _received(ready)
                yield from items
                if is_last:
                    waiting.remove(ready)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _received(reader: Any) -> tuple[list[Any], bool]:
    try:
        items, is_last, error = reader.recv()
    except EOFError:
        raise StoreError("a process that read a part of the store was ended from outside") from None
    if error is not None:
        raise error
    return items, is_last


def _send(writer: Connection, part: Store, work: Callable[[Store], Iterable[T]]) -> None:
    """The forked process: it sends batches of items, the last of them marked, or the error that ended its work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that collects is told, too, and decides
    batch: list[T] = []
    try:
        for item in work(part):
            batch.append(item)
            if len(batch) == _BATCH:
                writer.send((batch, False, None))
                batch = []
        writer.send((batch, True, None))
    except BrokenPipeError:
        pass  # nobody collects any more
    except Exception as error:  # noqa: BLE001 - it is raised again where the items are collected
        writer.send(([], True, error))
