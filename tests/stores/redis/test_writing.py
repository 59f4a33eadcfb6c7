"""Writing: all or nothing, guarded, and byte for byte; what the server refuses changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionctl.errors import InvalidKey, SessionChanged, SessionNotFound, StoreError, UnsupportedKind, WriteFailed
from sessionctl.model import KINDS, Ref, Stamp
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Put, Store, Want
from sessionctl.stores.redis.servers import Answer, Command, Link

from ...servers import Server, lossy_front, server

LOG = Ref("a", "log")
DOCUMENT = Ref("a", "document")


@pytest.fixture
def store(redis: Server) -> Iterator[Store]:
    with open_store(redis.url()) as made:
        yield made


def now() -> int:
    return time.time_ns() // 1_000_000


# --- how a log lies in a list ---------------------------------------------------------------------------------------


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=5))
def test_appending_goes_on_with_the_bytes(store: Store, pieces: list[bytes]) -> None:
    expected = b""
    store.put(LOG, pieces[0], expect=ANY)
    expected = pieces[0]
    for number, piece in enumerate(pieces[1:]):
        store.append(LOG, piece, expect=ANY if number % 2 else store.stamp(LOG))
        expected += piece
    assert store.get(LOG).payload == expected


def test_entries_are_items(redis: Server, store: Store) -> None:
    """What agents read: one item per entry, also after a torn line was gone on with."""
    items = lambda: redis.client().lrange("session-log:a", 0, -1)  # noqa: E731
    store.put(LOG, b'{"id":1}\n{"id":2}\n', expect=None)
    assert items() == [b'{"id":1}', b'{"id":2}']
    store.append(LOG, b'{"id":3}\n', expect=ANY)
    assert items()[2:] == [b'{"id":3}']
    store.put(LOG, b'{"id":1}\n{"id":2}', expect=ANY)
    assert items() == [b'{"id":1}', b'\n{"id":2}']
    store.append(LOG, b'\n{"id":3}\n', expect=ANY)
    assert items() == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    redis.client().rpush("session-log:a", "x\ny")
    assert store.get(LOG).payload == b'{"id":1}\n{"id":2}\n{"id":3}\nx\ny\n'


def test_an_empty_log_is_refused(store: Store) -> None:
    for expect in (None, ANY):
        with pytest.raises(WriteFailed, match="empty log"):
            store.put(LOG, b"", expect=expect)
    (error,) = store.put_many([Put(LOG, b"", changed_at=1)])
    assert isinstance(error, WriteFailed)
    assert store.stamp(LOG) is None
    assert store.put(DOCUMENT, b"", expect=None).size == 0


def test_a_document_cannot_be_appended_to(store: Store) -> None:
    store.put(DOCUMENT, b"{}", expect=None)
    with pytest.raises(UnsupportedKind):
        store.append(DOCUMENT, b"{}\n", expect=ANY)


def test_a_reader_never_sees_half_a_log(redis: Server, store: Store) -> None:
    payloads = [b"".join(b"%d:%d\n" % (n, i) for i in range(3000)) for n in range(2)]
    store.put(LOG, payloads[0], expect=None)
    stop = threading.Event()

    def rewrite() -> None:
        with open_store(redis.url()) as mine:
            number = 0
            while not stop.is_set():
                number += 1
                mine.put(LOG, payloads[number % 2], expect=ANY, changed_at=now() - 1000 if number % 3 else None)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(60):
            assert store.get(LOG).payload in payloads
    finally:
        stop.set()
        thread.join()
    assert redis.client().keys("*") == [b"session-log:a"]


def test_a_changed_log_is_not_written_though_it_changes_again_and_again(redis: Server, store: Store) -> None:
    """Agents that append while we replace lose no entry: the replacement is refused or comes before."""
    lines = [b'{"n":%d}' % number for number in range(400)]

    def agent() -> None:
        client = redis.client()
        for line in lines:
            client.rpush("session-log:a", line)

    store.put(LOG, b'{"n":"first"}\n', expect=None)
    thread = threading.Thread(target=agent)
    thread.start()
    quiet = mended = False
    while not (quiet and mended):
        quiet = not thread.is_alive()
        record = store.get(LOG)
        assert record.payload is not None
        try:
            store.put(LOG, record.payload.replace(b'"first"', b'"mended"'), expect=record.stamp)
            mended = True
        except SessionChanged:
            assert not quiet
    thread.join()
    first, *found, end = (store.get(LOG).payload or b"").split(b"\n")
    assert (first, end) == (b'{"n":"mended"}', b"")
    assert found == lines


# --- lives and ages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed_at", [None, 0])
def test_the_life_that_is_asked_for(store: Store, changed_at: int | None) -> None:
    at = None if changed_at is None else now() - 60_000
    for ref in (LOG, DOCUMENT):
        for ttl in (50_000, None, 70_000):
            stamp = store.put(ref, b"x\n", expect=ANY, changed_at=at, ttl_ms=ttl)
            found = store.get(ref).stamp
            assert stamp.ttl_ms == ttl
            if ttl is None:
                assert found.ttl_ms is None
            else:
                assert found.ttl_ms is not None and ttl - 5000 < found.ttl_ms <= ttl
    store.put(LOG, b"x\n", expect=ANY, ttl_ms=-5)
    time.sleep(0.01)
    assert store.stamp(LOG) is None


def test_the_age_is_not_kept_where_we_may_not_restore(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser("half", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-restore"])
    client.acl_setuser("less", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-dump", "-info"])
    with open_store(redis.url(login="less:pw@")) as store:
        stamp = store.put(LOG, b"x\n", expect=None, changed_at=now() - 3_600_000, ttl_ms=90_000)
        assert stamp.changed_at and now() - stamp.changed_at < 2500  # the stamp tells the truth
        assert store.get(LOG).payload == b"x\n"
        assert store.backdate(LOG, stamp, 1) == stamp
        assert store.place() == open_store(redis.url(login="less:pw@")).place()
    with open_store(redis.url(login="half:pw@")) as store, pytest.raises(StoreError, match=r"NOPERM.*RESTORE"):
        store.put(Ref("b", "log"), b"x\n", expect=None, changed_at=now() - 3_600_000)
    assert client.keys("*") == [b"session-log:a"]


# --- many at once ---------------------------------------------------------------------------------------------------


def begins_with(whole: Stamp, part: Stamp) -> bool:
    """Whether the second stamp's version is the front part of the first one's."""
    return bool(part.version) and whole.version[: len(part.version)] == part.version


def test_many_are_written_as_put_would(redis: Server, store: Store) -> None:
    client = redis.client()
    client.set("seepient:session:there", "old")
    client.hset("session-log:hash", "f", "v")
    hour_ago = now() - 3_600_000
    old = store.stamp(Ref("there", "document"))
    puts = [
        Put(Ref("new", "document"), b"{}", ttl_ms=60_000),
        Put(Ref("there", "document"), b"new"),
        Put(Ref("there", "document"), b"newer", expect=old),
        Put(Ref("new", "log"), b"1\n2", changed_at=hour_ago, ttl_ms=50_000),
        Put(Ref("plain", "log"), b"1\n"),
        Put(Ref("hash", "log"), b"1\n", changed_at=hour_ago),
        Put(Ref("a\0b", "log"), b"1\n"),
        Put(Ref("gone", "document"), b"1", expect=old),
    ]
    new, refused, replaced, log, plain, hash_, key, gone = store.put_many(puts)
    assert isinstance(new, Stamp) and begins_with(store.get(Ref("new", "document")).stamp, new)
    assert new[1:] == (2, None, "none", 60_000)
    assert [type(error) for error in (refused, hash_, key, gone)] == [
        SessionChanged, StoreError, InvalidKey, SessionChanged
    ]  # fmt: skip
    assert client.get("seepient:session:there") == b"newer"
    assert isinstance(replaced, Stamp) and isinstance(log, Stamp) and isinstance(plain, Stamp)
    found = store.get(Ref("new", "log"))
    assert found.payload == b"1\n2" and begins_with(found.stamp, log)
    assert found.stamp.changed_at == log.changed_at and abs((log.changed_at or 0) - hour_ago) <= 1000
    assert found.stamp.ttl_ms and 40_000 < found.stamp.ttl_ms <= 50_000
    assert plain.changed_at and abs(plain.changed_at - now()) < 2500
    assert client.type("session-log:hash") == b"hash"
    assert len(client.keys("*")) == 5


def test_ages_and_bytes_survive_there_and_back_for_many(store: Store) -> None:
    start = now()
    puts = [
        Put(Ref(f"s{n}", kind), b"%d\n" % n * (n % 7 + 1), changed_at=start - n * 7_777, ttl_ms=(n + 1) * 100_000)
        for n in range(1500)
        for kind in KINDS
    ]
    stamps = list(store.put_many(puts))
    found = {record.ref: record for record in store.records(Want.WHOLE)}
    for put, stamp in zip(puts, stamps, strict=True):
        assert isinstance(stamp, Stamp)
        record = found[put.ref]
        assert record.payload == put.payload and begins_with(record.stamp, stamp)
        assert put.ttl_ms and record.stamp.ttl_ms and 0 <= put.ttl_ms - record.stamp.ttl_ms < 20_000
        if put.ref.kind == "log":
            assert record.stamp.changed_at and put.changed_at
            assert abs(record.stamp.changed_at - put.changed_at) <= 1000


# --- refusals -------------------------------------------------------------------------------------------------------


def test_out_of_memory_leaves_nothing_by_halves(redis: Server, store: Store) -> None:
    client = redis.client()
    store.put(LOG, b"old\n", expect=None)
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 1000)
    for changed_at in (None, now() - 5000):
        with pytest.raises(WriteFailed, match=r"OOM .*maxmemory"):
            store.put(LOG, b"x\n" * 5000, expect=ANY, changed_at=changed_at)
        with pytest.raises(WriteFailed, match="OOM"):
            store.put(DOCUMENT, b"x" * 5000, expect=None)
    with pytest.raises(WriteFailed, match="OOM"):
        store.append(LOG, b"y\n", expect=ANY)
    for result in store.put_many([Put(DOCUMENT, b"x" * 500), Put(Ref("b", "log"), b"x\n", changed_at=1)]):
        assert isinstance(result, WriteFailed)
    assert client.keys("*") == [b"session-log:a"]
    assert store.get(LOG).payload == b"old\n"
    store.remove(LOG, ANY)  # room can still be made


def aged(redis: Server, key: str) -> float:
    """Seconds since the key was used."""
    return float(redis.client().object("idletime", f"seepient:session:{key}"))


def test_new_documents_go_together_with_age_and_life(redis: Server, store: Store) -> None:
    store.put(Ref("there", "document"), b"{}", expect=None)
    hour_ago = now() - 3_600_000
    names = ["a", "b", "there", "c", "a"]
    lives = [60_000 if key == "b" else None for key in names]
    puts = [Put(Ref(key, "document"), b"%d" % n, None, hour_ago, lives[n]) for n, key in enumerate(names)]
    a, b, there, c, again = store.put_many(puts)
    assert [result for result in (a, b, c) if not isinstance(result, Stamp)] == []
    assert isinstance(there, SessionChanged)
    assert isinstance(again, SessionChanged)
    assert all(3599 <= aged(redis, key) <= 3602 for key in "abc")
    assert aged(redis, "there") < 60
    client = redis.client()
    assert client.mget("seepient:session:a", "seepient:session:b", "seepient:session:c") == [b"0", b"1", b"3"]
    assert client.get("seepient:session:there") == b"{}"
    assert 50_000 < client.pttl("seepient:session:b") <= 60_000
    assert client.pttl("seepient:session:a") == -1
    assert client.dbsize() == 4


def test_who_takes_a_key_meanwhile_keeps_it(redis: Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer comes between the look and the writing of many."""
    really = Link.transact

    def late(link: Link, commands: Sequence[Command]) -> list[Answer] | None:
        redis.client().set("seepient:session:5", "theirs", nx=True)
        return really(link, commands)

    monkeypatch.setattr(Link, "transact", late)
    hour_ago = now() - 3_600_000
    results = list(store.put_many([Put(Ref(str(n), "document"), b"ours", None, hour_ago) for n in range(10)]))
    assert [isinstance(result, SessionChanged) for result in results] == [n == 5 for n in range(10)]
    assert all(3599 <= aged(redis, str(n)) <= 3602 for n in range(10) if n != 5)
    client = redis.client()
    assert [client.get(f"seepient:session:{n}") for n in (4, 5, 6)] == [b"ours", b"theirs", b"ours"]


def test_a_full_server_takes_none_of_many(redis: Server, store: Store) -> None:
    client = redis.client()
    client.config_set("maxmemory", 1)
    try:
        puts = [Put(Ref(str(n), "document"), b"x" * 2000, None, now() - 3_600_000) for n in range(5)]
        assert [type(result) for result in store.put_many(puts)] == [WriteFailed] * 5
    finally:
        client.config_set("maxmemory", 0)
    assert client.dbsize() == 0


def test_new_documents_keep_their_age_where_writing_counts_as_use(redis: Server) -> None:
    commands = ["+@all", "-client|no-touch"]
    redis.client().acl_setuser("old", enabled=True, passwords=["+pw"], keys=["*"], commands=commands)
    with open_store(redis.url(login="old:pw@")) as store:
        puts = [Put(Ref(key, "document"), b"{}", None, now() - 3_600_000) for key in "ab"]
        assert all(isinstance(made, Stamp) for made in store.put_many(puts))
    assert all(3599 <= aged(redis, key) <= 3602 for key in "ab")


def test_an_earlier_put_of_a_key_does_not_get_the_stamp_of_a_later_one(redis: Server, store: Store) -> None:
    old = store.put(DOCUMENT, b"old", expect=None)
    store.remove(DOCUMENT, old)
    first, second = store.put_many([Put(DOCUMENT, b"x", old), Put(DOCUMENT, b"y", None)])
    assert isinstance(first, SessionChanged)
    assert isinstance(second, Stamp)
    assert redis.client().get("seepient:session:a") == b"y"


@pytest.mark.parametrize("missing", ["watch", "mset", "multi", "exec", "pexpire"])
def test_new_documents_keep_their_age_where_a_right_is_missing(redis: Server, missing: str) -> None:
    redis.client().acl_setuser("half", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", f"-{missing}"])
    with open_store(redis.url(login="half:pw@")) as store:
        puts = [Put(Ref(key, "document"), b"{}", None, now() - 3_600_000, 60_000) for key in "ab"]
        assert all(isinstance(made, Stamp) for made in store.put_many(puts))
    assert all(3599 <= aged(redis, key) <= 3602 for key in "ab")
    assert redis.client().pttl("seepient:session:b") > 50_000


def test_new_documents_go_without_age_where_there_is_no_restore() -> None:
    with server('rename-command RESTORE ""') as lacking, open_store(lacking.url()) as store:
        puts = [Put(Ref(key, "document"), b"{}", None, now() - 3_600_000, 60_000) for key in "ab"]
        assert all(isinstance(made, Stamp) for made in store.put_many(puts))
        assert lacking.client().pttl("seepient:session:b") > 50_000


def test_new_documents_go_without_age_where_we_may_not_restore(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser("half", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-restore"])
    with open_store(redis.url(login="half:pw@")) as store:
        (made,) = store.put_many([Put(DOCUMENT, b"{}", None, now() - 3_600_000, 60_000)])
        assert isinstance(made, Stamp)
    assert client.get("seepient:session:a") == b"{}"
    assert 50_000 < client.pttl("seepient:session:a") <= 60_000


@pytest.mark.parametrize("missing", ["rpush", "unlink", "multi", "exec", "watch"])
def test_a_missing_right_is_named_and_nothing_happens(redis: Server, missing: str) -> None:
    client = redis.client()
    client.acl_setuser("half", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", f"-{missing}"])
    client.rpush("session-log:a", "1", "2")
    with open_store(redis.url(login="half:pw@")) as store:
        for write in (
            lambda: store.put(LOG, b"3\n", expect=store.stamp(LOG)),
            lambda: store.append(LOG, b"3\n", expect=ANY) if missing != "unlink" else store.remove(LOG, ANY),
        ):
            with pytest.raises(StoreError, match=f"NOPERM: the user may not run {missing.upper()}"):
                write()
        assert store.get(LOG).payload == b"1\n2\n"
    assert client.keys("*") == [b"session-log:a"]


def test_a_value_too_big_for_the_server(redis: Server, store: Store) -> None:
    redis.client().config_set("proto-max-bulk-len", 1 << 20)
    big, small = Put(Ref("big", "document"), b"x" * 3_000_000), Put(Ref("small", "document"), b"x")
    refused, fine = store.put_many([big, small])
    assert isinstance(refused, WriteFailed) and "3.0 MB" in str(refused)
    assert isinstance(fine, Stamp)
    with pytest.raises(WriteFailed, match=r"3\.0 MB"):
        store.put(big.ref, big.payload, expect=None)
    assert redis.client().keys("*") == [b"seepient:session:small"]


@pytest.mark.parametrize("guarded", [True, False])
def test_a_lost_connection_is_looked_after(redis: Server, store: Store, guarded: bool) -> None:
    """Clients are cut off all the while; every write either happened once or says that it did not."""
    stop = threading.Event()

    def cut() -> None:
        client = redis.client()
        while not stop.wait(0.02):
            client.client_kill_filter(_type="normal", skipme=True)

    thread = threading.Thread(target=cut)
    thread.start()
    told = 0
    try:
        for number in range(40):
            try:
                store.append(LOG, b"%d\n" % number, expect=store.stamp(LOG) if guarded else ANY)
            except StoreError:
                told += 1
    finally:
        stop.set()
        thread.join()
    lines = (store.get(LOG).payload or b"").split()
    assert len(lines) == len(set(lines)) >= 40 - told
    assert lines == sorted(lines, key=int)


@pytest.mark.parametrize("start", [b"1\n", b"1\ntorn"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_write_whose_answer_is_lost_happens_once(redis: Server, store: Store, start: bytes, guarded: bool) -> None:
    with lossy_front(redis, b"EXEC", 4) as port, open_store(f"redis://127.0.0.1:{port}") as lossy:
        put = lossy.put(LOG, start, expect=None)
        assert put.version == store.get(LOG).stamp.version
        stamp = lossy.append(LOG, b"2\n3\n", expect=put if guarded else ANY)
        assert store.get(LOG).payload == start + b"2\n3\n"
        assert stamp.version == store.get(LOG).stamp.version
        lossy.remove(LOG, stamp)
        assert store.stamp(LOG) is None
        lossy.put(DOCUMENT, b"{}", expect=None)
        assert store.get(DOCUMENT).payload == b"{}"


def test_many_writes_whose_answers_are_lost(redis: Server, store: Store) -> None:
    with lossy_front(redis, b"SET", 1) as port, open_store(f"redis://127.0.0.1:{port}") as lossy:
        results = list(lossy.put_many([Put(Ref(f"s{number}", "document"), b"%d" % number) for number in range(9)]))
    assert all(isinstance(result, Stamp) for result in results)
    assert sorted(record.payload or b"" for record in store.records()) == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("word", [b"WATCH", b"MULTI", b"EXEC"])
def test_many_with_ages_whose_answers_are_lost(redis: Server, word: bytes) -> None:
    """After WATCH and MULTI nothing is written yet, as if the process had died there; after EXEC all is."""
    puts = [Put(Ref(f"s{n}", "document"), b"%d" % n, None, now() - 3_600_000, 60_000) for n in range(9)]
    with lossy_front(redis, word, 1) as port, open_store(f"redis://127.0.0.1:{port}") as lossy:
        assert all(isinstance(result, Stamp) for result in lossy.put_many(puts))
    client = redis.client()
    assert all(
        3599 <= aged(redis, f"s{n}") <= 3603 and client.pttl(f"seepient:session:s{n}") > 50_000 for n in range(9)
    )
    assert sorted(client.keys("*")) == sorted(b"seepient:session:s%d" % n for n in range(9))
    assert client.mget(*(f"seepient:session:s{n}" for n in range(9))) == [b"%d" % n for n in range(9)]


@pytest.mark.parametrize("word", [b"WATCH", b"MULTI"])
def test_a_process_that_dies_before_the_end_of_many_leaves_nothing(redis: Server, word: bytes) -> None:
    """Its connection ends for good, and with it the transaction."""
    puts = [Put(Ref(f"s{n}", "document"), b"%d" % n, None, now() - 3_600_000) for n in range(9)]
    with lossy_front(redis, word, 1000) as port, open_store(f"redis://127.0.0.1:{port}") as lossy:
        assert not any(isinstance(result, Stamp) for result in lossy.put_many(puts))
    assert redis.client().keys("*") == []


def test_a_lock_whose_answer_is_lost_is_ours(redis: Server) -> None:
    with lossy_front(redis, b"SET", 1) as port, open_store(f"redis://127.0.0.1:{port}") as lossy:
        with lossy.lock(LOG, 0) as lease:
            lease.check()
        assert redis.client().keys("*") == []


def test_a_server_that_dies_meanwhile_and_comes_back() -> None:
    with server() as made, open_store(made.url()) as store:
        store.put(DOCUMENT, b"{}", expect=None)
        port = made.port
        made.stop()
        started = time.monotonic()
        for ask in (lambda: list(store.records()), lambda: store.put(DOCUMENT, b"x", expect=ANY)):
            with pytest.raises(StoreError, match=f"127.0.0.1:{port}: connection refused"):
                ask()
        assert time.monotonic() - started < 10
        again = Server(made.folder / "again", port=port)
        try:
            assert store.put(DOCUMENT, b"x", expect=None)
        finally:
            again.stop()


# --- removal --------------------------------------------------------------------------------------------------------


def test_checkpoints_go_with_their_log(redis: Server, store: Store) -> None:
    client = redis.client()
    client.rpush("session-log:a", "{}")
    client.rpush("session-log:b", "{}")
    client.set("seepient:session:a", "{}")
    client.set("checkpoint:1", '{"id":"1","closed":false,"sessionId":"a","outstanding":{"p1":{},"p2":{}}}')
    client.set("checkpoint:2", '{"id":"2","closed":true,"sessionId":"b","outstanding":{"p3":{}}}')
    client.set("checkpoint:3", "not json")
    client.rpush("checkpoint:4", "x")
    for pending, checkpoint in (("p1", "1"), ("p2", "another"), ("p3", "2")):
        client.set(f"checkpoint-pending-index:{pending}", checkpoint)
    store.remove(DOCUMENT, ANY)
    assert client.exists("checkpoint:1")
    with pytest.raises(SessionChanged):
        store.remove(LOG, Stamp(("list", 7), 1))
    assert client.exists("checkpoint:1", "session-log:a") == 2
    store.remove(LOG, ANY)
    assert sorted(client.keys("*")) == [
        b"checkpoint-pending-index:p2", b"checkpoint-pending-index:p3", b"checkpoint:2", b"checkpoint:3",
        b"checkpoint:4", b"session-log:b",
    ]  # fmt: skip
    with pytest.raises(SessionNotFound):
        store.remove(LOG, ANY)


def test_removal_without_a_right_to_checkpoints(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser(
        "ops", enabled=True, passwords=["+pw"], keys=["session-log:*", "session-lock:*"], commands=["+@all"]
    )
    client.rpush("session-log:a", "{}")
    client.set("checkpoint:1", '{"id":"1","closed":true,"sessionId":"a","outstanding":{}}')
    with open_store(redis.url(login="ops:pw@")) as store:
        store.remove(LOG, ANY)
    assert client.keys("*") == [b"checkpoint:1"]
