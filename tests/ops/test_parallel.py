"""Reading a folder with several processes: nothing is missed or told twice, errors arrive, nobody is left behind."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessionctl.errors import StoreError
from sessionctl.ops.gc import Protection, Rules, plan_gc
from sessionctl.ops.parallel import Crew, by_parts
from sessionctl.ops.repair import check
from sessionctl.ops.select import Filter, listing
from sessionctl.stores import folder as folders
from sessionctl.stores.base import Store, Want
from sessionctl.stores.folder import FolderStore

from ..stored import DAY, HOUR, document, entry, log, message, now_ms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderStore]:
    """A folder of 60 sessions that three processes read, whatever machine this is."""
    monkeypatch.setattr(folders, "SHARED_FROM", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    # The process of the tests may have threads that other tests left; those that start from here on count.
    others, count = threading.active_count() - 1, threading.active_count
    monkeypatch.setattr(threading, "active_count", lambda: count() - others)
    for number in range(25):
        document(tmp_path, f"d{number:02}", age=number * HOUR, principalId=f"u{number % 3}")
        log(tmp_path, f"l{number:02}", age=number * HOUR)
    for number in range(5):
        document(tmp_path, f"draft{number}", messages=[message("user", "hi")])
        log(tmp_path, f"torn{number}", entry("e1", None), b'{"id": "e2", "par')
    (tmp_path / os.fsdecode(b"odd\xff.json")).write_bytes(b"no json")
    (tmp_path / "lost.json.tmp.1700000000000").write_bytes(b"{}")
    with FolderStore(tmp_path) as store:
        yield store


def processes(part: Store) -> Iterator[int]:
    yield os.getpid()


def test_each_session_is_in_one_part(store: FolderStore) -> None:
    parts = store.parts(3)
    assert len(parts) == 3
    found = [record.ref for part in parts for record in part.records(Want.NAMES)]
    assert sorted(found) == sorted(record.ref for record in store.records(Want.NAMES))
    assert len(store.parts(1)) == 1


def test_several_processes_give_what_one_gives(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = now_ms()
    rules = (Rules(older_than=DAY // 2), Rules(keep_last=2), Rules(ttl=HOUR, idle=DAY))

    def everything() -> list[object]:
        return [
            listing(store, now, Filter(), lambda s: (s.key, s.status, s.codes)),
            listing(store, now, Filter(), lambda s: s.key, by="size", reverse=True, limit=7),
            *(plan_gc(store, rule, Filter(), Protection(include_damaged=False), now) for rule in rules),
            sorted(check(store, now), key=lambda report: report.ref),
        ]

    assert len(set(by_parts(store, processes))) == 3
    several = everything()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert set(by_parts(store, processes)) == {os.getpid()}
    assert several == everything()


def test_a_process_with_threads_does_not_fork(store: FolderStore) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert set(by_parts(store, processes)) == {os.getpid()}
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("forks", [0, 1])
def test_where_no_more_processes_are_to_be_had_one_does_it(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, forks: int
) -> None:
    made: list[int] = []
    fork = os.fork

    def refused() -> int:
        if len(made) == forks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        made.append(pid := fork())
        return pid

    monkeypatch.setattr(os, "fork", refused)
    assert set(by_parts(store, processes)) == {os.getpid()}
    for pid in made:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_error_is_raised_where_the_items_are_collected(store: FolderStore) -> None:
    def fails(part: Store) -> Iterator[int]:
        yield 1
        raise StoreError("the disk is gone", hint="look for it")

    with pytest.raises(StoreError, match=r"^the disk is gone$") as caught:
        list(by_parts(store, fails))
    assert caught.value.hint == "look for it"


def test_a_killed_process_is_an_error(store: FolderStore) -> None:
    mine = os.getpid()

    def dies(part: Store) -> Iterator[int]:
        if os.getpid() != mine:
            os.kill(os.getpid(), signal.SIGKILL)
        yield 1

    with pytest.raises(StoreError, match="ended from outside"):
        list(by_parts(store, dies))


def test_who_stops_collecting_leaves_no_process_behind(store: FolderStore) -> None:
    def endless(part: Store) -> Iterator[int]:
        while True:
            yield os.getpid()

    items = by_parts(store, endless)
    seen = {next(items) for _ in range(2000)}
    start = time.monotonic()
    items.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 5
    for process in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


# --- a crew -----------------------------------------------------------------------------------------------------------


def counting(job: int, stopping: Callable[[], bool]) -> Iterator[int]:
    for number in range(job):
        time.sleep(0.001)
        yield number
    if job == 13:
        raise StoreError("unlucky")


def test_a_crew_sends_what_comes_of_each_job() -> None:
    with Crew([counting, counting, counting]) as crew:
        crew.start([3, 1])  # one has nothing to do
        assert sorted(crew.results()) == [0, 0, 1, 2]
        assert list(crew.results()) == []


def test_a_crew_that_gets_no_job_ends() -> None:
    with Crew([counting, counting]) as crew:
        assert len(crew) == 2
    assert not [process for process in crew._processes if process.is_alive()]


def test_a_failure_stops_the_others_and_is_raised_when_all_is_told() -> None:
    seen = []
    with Crew([counting, counting]) as crew:
        crew.start([13, 100_000])
        with pytest.raises(StoreError, match="unlucky"):
            for number in crew.results():
                seen.append(number)
    assert seen.count(12) >= 1 and len(seen) < 10_000


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("early", [True, False])
def test_a_process_that_is_killed_stops_the_others(which: int, early: bool) -> None:
    seen = []
    with Crew([counting, counting]) as crew:
        victim = crew._processes[which]
        if early:
            victim.kill()
            victim.join()
        crew.start([100_000, 100_000])
        with pytest.raises(StoreError, match="ended from outside"):
            for number in crew.results():
                seen.append(number)
                if number == 5:
                    victim.kill()
    assert len(seen) < 10_000


def slow(job: int, stopping: Callable[[], bool]) -> Iterator[int]:
    """An item of many actions."""
    done = 0
    while done < job and not stopping():
        time.sleep(0.01)
        done += 1
    yield done


def test_a_crew_is_asked_to_stop_within_an_item_and_tells_what_it_did() -> None:
    start = time.monotonic()
    with Crew([slow, slow]) as crew:
        crew.start([100_000, 100_000])
        told = list(crew.results(lambda: time.monotonic() - start > 0.5))
    assert len(told) == 2 and all(0 < done < 1000 for done in told)
    assert time.monotonic() - start < 10


def test_a_crew_stops_between_two_items() -> None:
    seen = []
    with Crew([counting]) as crew:
        crew.start([100_000])
        for number in crew.results():
            seen.append(number)
            if number == 5:
                crew.stop()
    assert seen == list(range(len(seen))) and 6 <= len(seen) < 10_000
