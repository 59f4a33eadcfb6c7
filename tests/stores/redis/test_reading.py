"""Reading: complete, each key once, in bounded portions, and without a trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from sessionctl.errors import InvalidKey, SessionNotFound, StoreError
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, BIG, Store, Want
from sessionctl.stores.redis import RedisStore, commands
from sessionctl.stores.redis import store as module

from ...servers import Server

DOCUMENT = b'{"id":"a","messages":[]}'


@pytest.fixture
def store(redis: Server) -> Iterator[Store]:
    with open_store(redis.url()) as made:
        yield made


def keys(store: Store, want: Want = Want.NAMES) -> list[str]:
    return sorted(record.ref.key for record in store.records(want))


def calls(server: Server) -> dict[str, int]:
    stats = server.client().info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def test_reading_leaves_no_trace(redis: Server, store: Store) -> None:
    client = redis.client()
    client.set("seepient:session:a", DOCUMENT, px=100_000)
    for key in ("log", "long"):
        client.rpush(f"session-log:{key}", *[b"{}"] * (3 if key == "log" else commands.MANY + 1))
    client.pexpire("session-log:log", 90_000)
    client.set("session-lock:a", "holder", px=50_000)
    client.set("checkpoint:c", b"{}")
    time.sleep(1.2)
    names = client.keys("*")
    before = {
        name: (client.dump(name), client.object("idletime", name)) for name in names if client.client_no_touch("ON")
    }
    client.config_resetstat()
    for want in Want:
        assert keys(store, want) == ["a", "log", "long"]
    for ref in (Ref("a", "document"), Ref("log", "log"), Ref("long", "log")):
        store.get(ref)
        store.stamp(ref)
        list(store.chunks(ref))
    assert len(store.holders()) == 1
    assert list(store.checkpoints()) == [b"{}"]
    assert list(store.strays()) == []
    assert store.exists()
    used = set(calls(redis))
    assert used <= {
        *("auth", "hello", "client|no-touch", "client|setinfo", "select", "scan", "strlen", "pttl", "get", "getrange"),
        *("llen", "lrange", "object|idletime", "info", "exists", "ping", "config|resetstat"),
    }
    assert "keys" not in used
    client.client_no_touch("ON")
    for name, (dump, idle) in before.items():
        assert client.dump(name) == dump
        assert client.object("idletime", name) >= idle > 0
    assert 90_000 < client.pttl("seepient:session:a") <= 100_000
    assert 40_000 < client.pttl("session-lock:a") <= 50_000


def test_the_age_of_a_log_is_its_idle_time(redis: Server, store: Store) -> None:
    redis.client().rpush("session-log:a", "{}")
    time.sleep(2.1)
    stamps = [store.get(Ref("a", "log"), want).stamp for want in (*Want, *Want)]
    now = time.time() * 1000
    assert {stamp.source for stamp in stamps} == {"idle"}
    assert len({stamp.changed_at for stamp in stamps}) == 1
    assert all(stamp.changed_at and 1000 < now - stamp.changed_at < 3500 for stamp in stamps)


def test_an_append_is_use_and_can_be_undone_as_such(store: Store) -> None:
    ref = Ref("a", "log")
    hour_ago = time.time_ns() // 1_000_000 - 3_600_000
    stamp = store.put(ref, b"1\n", expect=None, changed_at=hour_ago, ttl_ms=60_000)
    stamp = store.append(ref, b"2\n", expect=stamp)
    assert stamp.changed_at and abs(stamp.changed_at - time.time() * 1000) < 2500
    assert store.get(ref).stamp.changed_at == stamp.changed_at
    stamp = store.backdate(ref, stamp, hour_ago)
    assert stamp.changed_at and abs(stamp.changed_at - hour_ago) <= 1000
    found = store.get(ref)
    assert (found.payload, found.stamp.version, found.stamp.changed_at) == (b"1\n2\n", stamp.version, stamp.changed_at)
    assert found.stamp.ttl_ms and 50_000 < found.stamp.ttl_ms <= 60_000
    old = stamp
    store.append(ref, b"3\n", expect=ANY)
    assert store.backdate(ref, old, hour_ago) == old
    assert abs((store.get(ref).stamp.changed_at or 0) - time.time() * 1000) < 2500


def test_one_connection_serves_all_questions(redis: Server, store: Store) -> None:
    ref = Ref("a", "document")
    store.put(ref, b"{}", expect=None)
    store.get(ref)
    count = lambda: redis.client().info("stats")["total_connections_received"]  # noqa: E731
    before = count()
    own = count() - before
    for _ in range(10):
        assert store.get(ref).payload == b"{}" and store.stamp(ref) is not None
    assert count() - before == 2 * own
    for number in range(5):
        store.put(Ref(str(number), "document"), b"{}", expect=None)
    for record in store.records():  # left half way: its connection is given up, the next is as good
        assert record.payload == b"{}"
        break
    assert len(list(store.records())) == 6


def test_the_age_is_unknown_under_lfu(redis: Server, store: Store) -> None:
    redis.client().config_set("maxmemory-policy", "allkeys-lfu")
    ref = Ref("a", "log")
    stamp = store.put(ref, b"1\n", expect=None, changed_at=1_750_000_000_000)
    assert (stamp.changed_at, stamp.source) == (None, "none")
    for want in Want:
        assert store.get(ref, want).stamp[2:4] == (None, "none")


def test_a_server_that_counts_reading_as_use(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser("old", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-client|no-touch"])
    client.rpush("session-log:a", "{}")
    new = open_store(redis.url())
    assert isinstance(new, RedisStore)
    assert not new.reading_counts_as_use
    time.sleep(2.1)
    with open_store(redis.url(login="old:pw@")) as store:
        assert store.reading_counts_as_use  # type: ignore[attr-defined]
        for _ in range(2):  # names alone are no use
            (record,) = store.records(Want.NAMES)
            assert record.stamp.changed_at and time.time() * 1000 - record.stamp.changed_at > 1000
        first = store.get(Ref("a", "log")).stamp.changed_at  # asked before the payload is read
        assert first == record.stamp.changed_at
        again = store.get(Ref("a", "log")).stamp.changed_at
        assert again and again > first


def test_foreign_keys_are_reported_and_left_alone(redis: Server, store: Store) -> None:
    client = redis.client()
    client.hset("seepient:session:h", "f", "v")
    client.rpush("seepient:session:l", "x")
    client.set("session-log:s", "x")
    client.set("seepient:session:ok", DOCUMENT)
    dumps = {key: client.dump(key) for key in client.keys("*")}
    for want in Want:
        found = {record.ref: record for record in store.records(want)}
        assert len(found) == 4
        assert found[Ref("h", "document")].error == (
            "is of type hash, not string: it is no document and stays as it is"
        )
        assert {r.code for r in found.values() if r.error} == {"wrong-type-key"}
    for ref in (Ref("h", "document"), Ref("l", "document"), Ref("s", "log")):
        assert store.get(ref).error
        with pytest.raises(StoreError, match="is of type"):
            store.stamp(ref)
        with pytest.raises(StoreError, match="is of type"):
            list(store.chunks(ref))
        for expect in (ANY, None):
            with pytest.raises(StoreError, match="is of type"):
                store.put(ref, b"x\n", expect=expect)
        with pytest.raises(StoreError, match="is of type"):
            store.remove(ref, ANY)
    with pytest.raises(StoreError, match="is of type"):
        store.append(Ref("s", "log"), b"x\n", expect=ANY)
    assert {key: client.dump(key) for key in client.keys("*")} == dumps


def test_each_key_once_while_the_table_grows(redis: Server, store: Store) -> None:
    client = redis.client()
    for number in range(2000):
        client.set(f"seepient:session:s{number}", b"{}")
    stop = threading.Event()

    def grow() -> None:
        number = 0
        while not stop.is_set():
            pipe = client.pipeline(transaction=False)
            for name in range(number, number + 500):
                pipe.set(f"pad:{name}", "x")
            pipe.execute()
            number += 500
            if number > 20_000:
                client.unlink(*[f"pad:{n}" for n in range(number)])
                number = 0

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(5):
            found = [record.ref.key for record in store.records(Want.NAMES)]
            assert len(found) == len(set(found)) == 2000
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("prefix", ["a*b?[c]^-\\d:", "", "session-log:x:", "[a-z]:"])
def test_a_prefix_is_no_pattern(redis: Server, prefix: str) -> None:
    client = redis.client()
    for key in ("aXbYc:1", "a:1", "session-lock:x", "checkpoint:y", "checkpoint-pending-index:z", "sessionctl-lock:gc"):
        client.set(key, DOCUMENT)
    from urllib.parse import quote

    with open_store(redis.url(f"/0?documents={quote(prefix)}")) as store:
        store.put(Ref("mine", "document"), DOCUMENT, expect=None)
        store.put(Ref("log", "log"), b"{}\n", expect=None)
        expected = ["log", "mine"] if prefix else ["aXbYc:1", "a:1", "log", "mine"]
        assert keys(store) == sorted(expected)
        assert client.get(prefix + "mine") == DOCUMENT


@pytest.mark.parametrize(
    ("documents", "logs", "document", "stands"),
    [
        ("d:", "l:", "l:x", True),
        ("", "l:", "l:x", False),
        ("", "l:", "l:", True),
        ("", "l:", "checkpoint:x", False),
        ("", "l:", "d", True),
        ("s:", "s:l:", "l:x", False),
        ("s:", "s:l:", "l", True),
        ("s:l:", "s:", "l:x", True),
        ("checkpoint", "l:", ":x", False),
        ("checkpoint", "l:", "s", True),
        ("checkpoint:", "l:", "x", True),
    ],
)
def test_a_key_belongs_to_the_longest_prefix(
    redis: Server, documents: str, logs: str, document: str, *, stands: bool
) -> None:
    ref = Ref(document, "document")
    redis.client().set(documents + document, DOCUMENT)
    with open_store(redis.url(f"/0?documents={documents}&logs={logs}")) as store:
        assert (ref in list(store.names())) is stands
        assert (ref in [record.ref for record in store.records(Want.NAMES, [ref])]) is stands
        with nullcontext() if stands else pytest.raises(InvalidKey):
            store.check_key(ref)


def test_keys_that_are_no_text_survive(redis: Server, store: Store) -> None:
    name = b"seepient:session:\xff\xfe\n"
    redis.client().set(name, DOCUMENT)
    (record,) = store.records()
    assert record.payload == DOCUMENT
    store.remove(record.ref, record.stamp)
    assert redis.client().keys("*") == []


def test_what_expires_meanwhile_is_left_out(redis: Server, store: Store) -> None:
    client = redis.client()
    for number in range(3000):
        client.set(f"seepient:session:s{number}", DOCUMENT, px=5 + number % 60)
        client.rpush(f"session-log:s{number}", "{}")
        client.pexpire(f"session-log:s{number}", 5 + number % 60)
    for want in (*Want, *Want):
        for record in store.records(want):
            assert record.error is None
    for number in range(200):
        client.set("seepient:session:x", DOCUMENT, px=1)
        try:
            assert store.get(Ref("x", "document")).payload == DOCUMENT
        except SessionNotFound:
            pass
        assert number >= 0


def test_what_changes_its_type_meanwhile_is_judged_again(redis: Server, store: Store) -> None:
    client = redis.client()
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            pipe = client.pipeline()
            pipe.delete("session-log:x").hset("session-log:x", "f", "v").execute()
            pipe.delete("session-log:x").rpush("session-log:x", "{}").execute()

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        seen = set()
        for number in range(300):
            for record in store.records((Want.NAMES, Want.WHOLE)[number % 2]):
                seen.add(record.code)
                assert record.code == "wrong-type-key" or record.error is None
        assert seen <= {"", "wrong-type-key"}
    finally:
        stop.set()
        thread.join()


def test_sizes_of_all_sorts(redis: Server, store: Store) -> None:
    client = redis.client()
    client.set("seepient:session:empty", b"")
    client.set("seepient:session:big", b"x" * (BIG + 1))
    client.rpush("session-log:many", *[b"%d" % number for number in range(commands.MANY + 10)])
    client.rpush("session-log:huge", *[b"x" * 1100] * (commands.MANY + 10))
    found = {record.ref.key: record for record in store.records()}
    assert (found["empty"].payload, found["empty"].stamp.size) == (b"", 0)
    assert found["big"].payload is None
    assert store.get(Ref("big", "document")).payload == b"x" * (BIG + 1)
    many = b"".join(b"%d\n" % number for number in range(commands.MANY + 10))
    assert (found["many"].payload, found["many"].stamp.size) == (many, len(many))
    assert (found["huge"].payload, found["huge"].error) == (None, None)
    whole = store.get(Ref("huge", "log"))
    assert whole.payload == (b"x" * 1100 + b"\n") * (commands.MANY + 10)
    store.remove(whole.ref, whole.stamp)


def test_payloads_come_in_bounded_portions(redis: Server, store: Store) -> None:
    client = redis.client()
    for number in range(40):
        client.set(f"seepient:session:s{number}", b"x" * (1 << 20))
    sizes = []
    stream = store._servers.stream  # type: ignore[attr-defined]

    def watching(keyed: list[tuple[bytes, tuple[object, ...]]]) -> Iterator[tuple[int, bytes]]:
        sizes.append(0)
        for index, answer in stream(keyed):
            sizes[-1] += len(answer) if isinstance(answer, bytes) else 0
            yield index, answer

    store._servers.stream = watching  # type: ignore[attr-defined]
    assert sum(len(record.payload or b"") for record in store.records()) == sum(sizes) == 40 << 20
    assert max(sizes) <= commands.IN_FLIGHT


def test_parts_share_out_all_keys(redis: Server, store: Store) -> None:
    assert list(store.parts(3)) == [store]
    pipe = redis.client().pipeline()
    for number in range(module.WORTH_SHARING):
        pipe.set(f"seepient:session:s{number}", b"{}")
    pipe.execute()
    found = [keys(part) for part in store.parts(3)]
    assert len(found) == 3 and all(found)
    assert sorted(key for part in found for key in part) == keys(store)


def test_versions_that_know_less_are_the_front_of_those_that_know_more(store: Store) -> None:
    for kind, payload in (("document", b"x" * 5000), ("log", b"x\n" * 50)):
        ref = Ref("a", kind)  # type: ignore[arg-type]
        whole = store.put(ref, payload, expect=None).version
        for want in Want:
            version = store.get(ref, want).stamp.version
            assert version == whole[: len(version)]
            assert len(version) == (2 if (kind, want) == ("log", Want.NAMES) else 3 if want is not Want.WHOLE else 4)


def test_one_server_by_any_name(redis: Server) -> None:
    names = [redis.url(), redis.url().replace("127.0.0.1", "localhost"), f"unix://{redis.socket}"]
    places = {open_store(name).place() for name in names}
    assert len(places) == 1
    assert open_store(redis.url("/1")).place() not in places
    assert open_store(redis.url("/0?logs=l:")).place() not in places
