"""What other processes do in tests of concurrency; small, so that they start fast."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sessionctl import Conversations, SessionManager, TooManySessions, create_persistence_backend, open_store


def run_all(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    """Call ``work`` once for each arguments, each in a process of its own, all at once; all must end well."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=args) for args in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def take_turns(url: str, process: int, threads: int, turns: int, keys: int, marks: str) -> None:
    """Turns of two messages from many threads; a mark, made and removed in each, shows that it is alone on its key."""
    talks = Conversations(open_store(url), lock_wait=300)

    def run(thread: int) -> None:
        for number in range(thread, turns, threads):
            key = f"k{(number + process) % keys}"
            mark = f"{marks}/{key}"
            with talks.session(key) as turn:
                descriptor = os.open(mark, os.O_CREAT | os.O_EXCL)  # fails where two turns overlap
                turn.append({"role": "user", "content": f"{process}/{number}"})
                turn.append({"role": "assistant", "content": f"{process}/{number}!"})
                os.close(descriptor)
                os.unlink(mark)

    with ThreadPoolExecutor(threads) as pool:
        for result in [pool.submit(run, thread) for thread in range(threads)]:
            result.result()


def save_often(path: str, field: str, times: int) -> None:
    """Saves that each set one field of the session ``s1``."""
    backend = create_persistence_backend({"type": "file", "path": path})
    for number in range(times):
        backend.save("s1", {field: number})


def create_sessions(path: str, api_key: str, times: int) -> None:
    """Sessions of one owner, until there are too many."""
    manager = SessionManager(create_persistence_backend({"type": "file", "path": path}))
    for _ in range(times):
        try:
            manager.create(api_key)
        except TooManySessions:
            return
