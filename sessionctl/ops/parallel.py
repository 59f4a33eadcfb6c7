"""Work on a large store with several processors: each process reads, or copies, its part of the sessions."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ..errors import StoreError
from ..stores.base import Store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

J = TypeVar("J")
T = TypeVar("T")

_BATCH = 256
"""Items that are sent at once."""
_NOTICE = 0.2
"""Seconds until a wish to stop is passed on."""
_MOST = 8
"""Processes; more would wait for the one that collects what they find."""


def processes() -> int:
    """How many processes may share work; 1 where a fork is not safe."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST)


def by_parts(store: Store, work: Callable[[Store], Iterable[T]]) -> Iterator[T]:
    """What ``work`` yields for a store, in no order; where that pays, from several processes, each with a part of it.

    ``work`` must do nothing but read: a process that is not needed any more is killed. Its items are pickled; what it
    raises is raised here. Only where a fork is safe: on Linux, in a process without other threads.
    """
    count = processes()
    parts = store.parts(count) if count > 1 else [store]
    if len(parts) > 1:
        with suppress(ForkRefused), Crew[None, list[T]]([partial(_some, work, part) for part in parts]) as crew:
            crew.start([None] * len(parts))
            for items in crew.results():
                yield from items
            return
    yield from work(store)


def _some(
    work: Callable[[Store], Iterable[T]], part: Store, _: None, _stopping: Callable[[], bool]
) -> Iterator[list[T]]:
    items = iter(work(part))
    while batch := list(islice(items, _BATCH)):
        yield batch


class ForkRefused(Exception):
    """The system gives us no more processes."""


class Crew(Generic[J, T]):
    """Processes that wait for a job each, and send what ``work`` yields for it one by one.

    ``work`` is given the job, and a function that tells whether to end: for those whose items take long.
    They are forked at once, before their jobs are known, so that nothing which is opened or locked later is theirs.
    A context manager; at its end they are gone. One whose parent has died ends after the item that it is at. Raises
    ForkRefused.
    """

    def __init__(self, works: Sequence[Callable[[J, Callable[[], bool]], Iterator[T]]]) -> None:
        from multiprocessing import get_context

        fork = get_context("fork")
        sys.stdout.flush()  # what is buffered must not be written by two
        self._ends: list[Any] = []
        self._working: list[Any] = []
        self._processes: list[Any] = []
        for work in works:
            try:
                ours, theirs = fork.Pipe()
                self._ends.append(ours)
                process = fork.Process(target=_serve, args=(theirs, self._ends, work), daemon=True)
                process.start()
            except OSError as error:
                self.__exit__()
                raise ForkRefused from error
            theirs.close()  # before the next fork: held by another process it would hide that this one is dead
            self._processes.append(process)

    def start(self, jobs: Iterable[J]) -> None:
        """Give each process a job."""
        for end, job in zip(self._ends, jobs, strict=False):
            self._working.append(end)
            with suppress(OSError):  # of one that is dead, which the results tell
                end.send(job)

    def results(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[T]:
        """What the processes send, as it comes, until all are done.

        All are stopped when ``stopping`` says so, or when one fails; when they are, its error is raised.
        """
        from multiprocessing.connection import wait

        failed: Exception | None = None
        stopped = False
        while self._working:
            if not stopped and stopping():
                stopped = True
                self.stop()
            for ready in wait(self._working, _NOTICE):
                item, is_last, error = _answer(ready)
                if is_last:
                    self._working.remove(ready)
                else:
                    yield item
                if error is not None:
                    failed = failed or error
                    self.stop()
        if failed is not None:
            raise failed

    def stop(self) -> None:
        """Ask all to end as soon as they can."""
        for end in self._working:
            with suppress(OSError):
                end.send(None)

    def __len__(self) -> int:
        return len(self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()
            process.join()


def _answer(end: Any) -> tuple[Any, bool, Exception | None]:
    try:
        answer: tuple[Any, bool, Exception | None] = end.recv()
    except (EOFError, ConnectionError):
        return (
            None,
            True,
            StoreError("a process that did a part of the work was ended from outside before it told all"),
        )
    return answer


def _serve(
    end: Connection,
    others: Sequence[Connection],
    work: Callable[[J, Callable[[], bool]], Iterator[T]],
) -> None:
    """A process of a crew."""
    stopping = end.poll  # true once the parent asks us to stop, and when it has died

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent is told, too, and stops us
    gc.freeze()  # what was there before is the parent's: looking through it would only copy its pages
    for other in others:
        other.close()  # or the end of the parent would not be seen
    try:
        job = end.recv()
        for item in work(job, stopping):
            end.send((item, False, None))
            if stopping():
                break
        end.send((None, True, None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody waits for us any more
    except Exception as error:  # noqa: BLE001 - it is raised again by the parent
        with suppress(OSError):
            end.send((None, True, error))
