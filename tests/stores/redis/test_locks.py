"""The lock that agents take: theirs to the byte, fair in here, loud when it is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sessionctl.errors import LockLost, SessionLocked, StoreBusy, StoreError
from sessionctl.locks import IN_PROCESS
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Store
from sessionctl.stores.redis import lease

from ...servers import Server, server, until

REF = Ref("a", "log")
KEY = "session-lock:a"


@pytest.fixture
def store(redis: Server) -> Iterator[Store]:
    with open_store(redis.url()) as made:
        yield made


def test_it_is_the_lock_of_the_agents(redis: Server, store: Store) -> None:
    client = redis.client()
    with client.monitor() as monitor:
        held = store.lock(REF, 0)
        value = client.get(KEY)
        assert 29_000 < client.pttl(KEY) <= 30_000
        assert not client.set(KEY, "agent", px=30_000, nx=True)
        held.check()
        held.release()
        client.echo("over")
        seen = []
        for said in monitor.listen():
            if said["command"].startswith("ECHO"):
                break
            if said["client_type"] != "lua" and KEY in said["command"]:
                seen.append(said["command"].split()[0])
    assert seen == ["SET", "GET", "PTTL", "GET", "PTTL", "SET", "GET", "EVAL"]
    assert value.startswith(b"sessionctl@") and len(value.rpartition(b":")[2]) == 32
    assert not client.exists(KEY)
    held.release()


def test_every_lock_has_its_own_value(redis: Server, store: Store) -> None:
    values = set()
    for _ in range(5):
        with store.lock(REF, 0):
            values.add(redis.client().get(KEY))
    assert len(values) == 5


def test_a_foreign_lock_is_waited_for_and_never_written_to(redis: Server, store: Store) -> None:
    client = redis.client()
    client.set(KEY, "agent-token\x1b[31m", px=60_000)
    with pytest.raises(SessionLocked) as raised:
        store.lock(REF, 0.3)
    said = str(raised.value)
    assert "agent-token\\x1b[31m" in said and "s left (longer than the wait of 0.3 s)" in said
    cli = f"redis-cli -h 127.0.0.1 -p {redis.port} -n 0"
    assert raised.value.hint == f"if its holder is gone: {cli} del session-lock:a"
    assert client.get(KEY) == b"agent-token\x1b[31m"
    assert 55_000 < client.pttl(KEY) < 60_000
    with pytest.raises(SessionLocked) as raised:
        store.lock(REF, 0)
    assert "longer than" not in str(raised.value)
    (holder,) = store.holders([REF]).values()
    assert holder.until and 50_000 < holder.until - time.time() * 1000 <= 60_000
    assert not store.break_lock(REF)
    assert len(IN_PROCESS) == 0


def test_a_lock_that_expires_is_taken(redis: Server, store: Store) -> None:
    redis.client().set(KEY, "agent", px=300)
    started = time.monotonic()
    with store.lock(REF, 5):
        assert 0.25 < time.monotonic() - started < 2


def test_a_lock_without_expiry(redis: Server, store: Store) -> None:
    client = redis.client()
    client.set(KEY, "stale")
    client.rpush("session-log:a", "{}")
    with pytest.raises(SessionLocked, match="locked by 'stale', no expiry"):
        store.lock(REF, 0.1)
    assert store.holders()[REF].note == "no expiry"
    assert store.break_lock(REF)
    assert not store.break_lock(REF)
    store.lock(REF, 0).release()
    client.rpush(KEY, "x")
    assert store.holders([REF])[REF].who == "a key of another type"
    with pytest.raises(SessionLocked, match="another type"):
        store.lock(REF, 0)
    assert client.type(KEY) == b"list"


def test_odd_keys_in_the_hint(redis: Server, store: Store) -> None:
    redis.client().set("session-lock:it's $(x)", "agent")
    with pytest.raises(SessionLocked) as raised:
        store.lock(Ref("it's $(x)", "log"), 0)
    assert raised.value.hint and raised.value.hint.endswith(""" -n 0 del 'session-lock:it'"'"'s $(x)'""")


def test_it_is_renewed(redis: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW", 0.1)
    monkeypatch.setattr(lease, "LIFE", 400)
    with store.lock(REF, 0) as held:
        for _ in range(6):
            time.sleep(0.15)
            held.check()
            assert redis.client().pttl(KEY) > 100
    time.sleep(0.2)
    assert not redis.client().exists(KEY)


@pytest.mark.parametrize("how", ["taken", "removed", "noticed by the renewal"])
def test_a_lock_that_is_lost_is_told(redis: Server, store: Store, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    client = redis.client()
    monkeypatch.setattr(lease, "RENEW", 0.05)
    held = store.lock(REF, 0)
    if how == "taken":
        client.set(KEY, "agent", px=30_000)
    else:
        client.delete(KEY)
    if how.startswith("noticed"):
        time.sleep(0.3)
        client.set(KEY, "agent", px=30_000)
    with pytest.raises(LockLost, match="'a' was lost: it was taken away or removed"):
        held.check()
    held.release()
    assert client.get(KEY) == (None if how == "removed" else b"agent")


def test_a_lock_whose_server_dies_ends_by_our_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW", 0.05)
    monkeypatch.setattr(lease, "LIFE", 300)
    with server() as made, open_store(made.url()) as store:
        held = store.lock(REF, 0)
        made.stop()
        time.sleep(0.5)
        with pytest.raises(LockLost, match=r"expired|renewed"):
            held.check()
        held.release()
        assert len(IN_PROCESS) == 0
        with pytest.raises(StoreError):
            store.lock(REF, 0)
        assert len(IN_PROCESS) == 0


def test_a_user_who_may_not_lock(redis: Server) -> None:
    redis.client().acl_setuser("ro", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@read", "+@connection"])
    with (
        open_store(redis.url(login="ro:pw@")) as store,
        pytest.raises(StoreError, match="NOPERM: the user may not run SET"),
    ):
        store.lock(REF, 1)
    assert redis.client().keys("*") == []
    assert len(IN_PROCESS) == 0


def test_threads_exclude_each_other(redis: Server, store: Store) -> None:
    inside = []
    overlaps = 0

    def turn(number: int) -> None:
        nonlocal overlaps
        with store.lock(REF, 20):
            overlaps += len(inside)
            inside.append(number)
            time.sleep(0.003)
            inside.pop()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(turn, range(40)))
    assert overlaps == 0
    assert len(IN_PROCESS) == 0
    until(lambda: all(thread.name != "sessionctl-lock" for thread in threading.enumerate()), "the end of all renewals")


def _count(url: str, turns: int) -> None:
    with open_store(url) as store:
        for _ in range(turns):
            with store.lock(REF, 30):
                value = int(store.get(Ref("count", "document")).payload or b"0")
                store.put(Ref("count", "document"), b"%d" % (value + 1), expect=ANY)


def test_processes_exclude_each_other(redis: Server, store: Store) -> None:
    store.put(Ref("count", "document"), b"0", expect=None)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_count, args=(redis.url(), 15)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert store.get(Ref("count", "document")).payload == b"45"


def test_the_locks_of_the_store(redis: Server, store: Store) -> None:
    with store.lock_store("gc"):
        assert redis.client().exists("sessionctl-lock:gc")
        with open_store(redis.url().replace("127.0.0.1", "localhost")) as other:
            with pytest.raises(
                StoreBusy, match=r"this store \(redis://localhost.*\) is locked by 'sessionctl@"
            ) as raised:
                other.lock_store("gc")
            assert (
                raised.value.hint
                and f"redis-cli -h localhost -p {redis.port} -n 0 del sessionctl-lock:gc" in raised.value.hint
            )
        assert [record.ref for record in store.records()] == []
    assert redis.client().keys("*") == []


def _die_with_locks(url: str) -> None:
    store = open_store(url)
    store.lock(REF, 0)
    store.lock_store("gc")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_dead_process_of_this_machine_left_is_taken_at_once(redis: Server, store: Store) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_with_locks, args=(redis.url(),))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    client = redis.client()
    assert client.pttl(KEY) > 20_000
    with store.lock(REF, 0), store.lock_store("gc"):
        pass
    assert not client.exists(KEY)


def test_what_may_live_elsewhere_is_waited_for(redis: Server, store: Store) -> None:
    client = redis.client()
    with store.lock(REF, 0):
        mine = client.get(KEY).decode()
    head, pid, space, token = mine.rsplit(":", 3)
    for other in (
        f"{head}:{pid}:{space}:{token}",
        f"{head}:999999999:00000000:{token}",
        f"{head}x:999999999:{space}:{token}",
    ):
        client.set(KEY, other, px=60_000)
        with pytest.raises(SessionLocked):
            store.lock(REF, 0)
        assert client.get(KEY).decode() == other
