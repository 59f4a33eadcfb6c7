"""The ways to a server: database, socket, TLS, users, Sentinel, Cluster; and what is said where there is no way."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import exceptions as failed

from sessionctl.errors import SessionctlError, StoreError
from sessionctl.model import KINDS, Ref, Stamp
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Put, Store, Want
from sessionctl.stores.redis import RedisStore
from sessionctl.stores.redis.servers import Answer, Command, Servers

from ... import servers
from ...servers import Certificates, Server

REF = Ref("a", "document")
SECRET = "hunter2"


def refused(url: str, match: str) -> StoreError:
    """The error that reading from there ends with, within seconds, and without any secret."""
    started = time.monotonic()
    with open_store(url) as store, pytest.raises(StoreError, match=match) as raised:
        list(store.records())
    assert time.monotonic() - started < 9
    told = "".join(traceback.format_exception(raised.value))
    assert SECRET not in f"{told} {raised.value.hint} {store!r} {store.url}"
    assert "\n" not in str(raised.value)
    return raised.value


def fills_and_empties(store: Store) -> None:
    for kind in KINDS:
        stamp = store.put(Ref("a", kind), b"{}\n", expect=None, changed_at=1_700_000_000_000, ttl_ms=90_000)
        assert store.get(Ref("a", kind)).stamp.version == stamp.version
    store.append(Ref("a", "log"), b"{}\n", expect=ANY)
    with store.lock(REF, 0) as lease:
        lease.check()
    assert len(list(store.records())) == 2
    for kind in KINDS:
        store.remove(Ref("a", kind), ANY)


def test_the_database_of_the_url(redis: Server) -> None:
    with open_store(redis.url("/3")) as store:
        store.put(REF, b"{}", expect=None)
    assert redis.client(db=3).exists("seepient:session:a")
    assert not redis.client().exists("seepient:session:a")
    refused(redis.url("/99"), "DB index is out of range")


def test_a_socket(redis: Server, tmp_path: Path) -> None:
    with open_store(f"unix://{redis.socket}?db=2") as store:
        fills_and_empties(store)
        store.put(REF, b"{}", expect=None)
    assert redis.client(db=2).exists("seepient:session:a")
    refused(f"unix://{tmp_path}/no.sock", f"there is no socket at '{tmp_path}/no.sock'")


def test_bare_redis(redis: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis.url("/4"))
    with open_store("redis:") as store:
        store.put(REF, b"{}", expect=None)
    assert redis.client(db=4).exists("seepient:session:a")


# --- users ----------------------------------------------------------------------------------------------------------


def test_a_user_with_a_password(redis: Server) -> None:
    redis.client().acl_setuser("ops", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all", "-keys"])
    with open_store(redis.url(login=f"ops:{SECRET}@")) as store:
        fills_and_empties(store)
        assert SECRET not in repr(store) and SECRET not in repr(vars(store)["_address"])
    refused(redis.url(login=f"ops:{SECRET}wrong@"), "refused the user name or password")
    refused(redis.url(login=f"nobody:{SECRET}@"), "refused the user name or password")


def test_a_server_with_a_password() -> None:
    with servers.server(f"requirepass {SECRET}") as made:
        error = refused(made.url(), "asks for a password")
        assert error.hint and "REDIS_URL" in error.hint
        with open_store(made.url(login=f":{SECRET}@")) as store:
            assert list(store.records()) == []


def test_reading_needs_no_more_than_rights_to_read(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser(
        "ro", enabled=True, passwords=["+pw"], keys=["seepient:*", "session-log:*"],
        commands=["+@read", "+@connection", "-keys"],
    )  # fmt: skip
    client.set("seepient:session:a", "{}")
    client.rpush("session-log:a", "{}")
    client.set("session-lock:a", "agent", px=9999)
    client.set("checkpoint:1", "{}")
    with open_store(redis.url(login="ro:pw@")) as store:
        for want in Want:
            assert len(list(store.records(want))) == 2
        assert not store.reading_counts_as_use  # type: ignore[attr-defined]
        assert list(store.checkpoints()) == []
        assert store.holders([REF]) == {}
        for write in (lambda: store.remove(REF, ANY), lambda: store.put(REF, b"x", expect=ANY)):
            with pytest.raises(StoreError, match="NOPERM: the user may not run WATCH") as raised:
                write()
            assert raised.value.hint == "grant it: ACL SETUSER … +watch"
        for result in store.put_many([Put(Ref("new", "document"), b"x")]):
            assert isinstance(result, SessionctlError)
    assert client.dbsize() == 4


def test_keys_without_a_right_are_told_one_by_one(redis: Server) -> None:
    client = redis.client()
    client.acl_setuser("part", enabled=True, passwords=["+pw"], keys=["seepient:session:mine*"], commands=["+@all"])
    client.acl_setuser("scan", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-scan"])
    client.acl_setuser("get", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-get"])
    client.set("seepient:session:mine", "{}")
    client.set("seepient:session:yours", "{}")
    client.rpush("session-log:yours", "{}")
    with open_store(redis.url(login="part:pw@")) as store:
        found = {record.ref: record for record in store.records()}
    assert found[Ref("mine", "document")].payload == b"{}"
    for kind in KINDS:
        assert found[Ref("yours", kind)].error == "no right to this key (NOPERM)"
    refused(redis.url(login="scan:pw@"), "NOPERM: the user may not run SCAN")
    refused(redis.url(login="get:pw@"), "NOPERM: the user may not run GET")


# --- what is said ---------------------------------------------------------------------------------------------------


def test_nobody_there() -> None:
    port = servers.free_port()
    error = refused(f"redis://ops:{SECRET}@127.0.0.1:{port}/0", f"Redis at 127.0.0.1:{port}: connection refused")
    assert error.exit_code == 7 and error.hint
    refused(f"redis://ops:{SECRET}@no-such-host.invalid/0", "no-such-host.invalid:6379: the host is not known")


def test_a_replica_is_read_and_not_written() -> None:
    with servers.server() as primary, servers.server(f"replicaof 127.0.0.1 {primary.port}") as replica:
        with open_store(primary.url()) as store:
            store.put(REF, b"{}", expect=None)
        servers.until(lambda: replica.client().exists("seepient:session:a"), "replication")
        with open_store(replica.url()) as store:
            assert store.get(REF).payload == b"{}"
            for write in (lambda: store.put(REF, b"x", expect=ANY), lambda: store.lock(REF, 0)):
                with pytest.raises(StoreError, match="READONLY"):
                    write()


def test_a_server_that_is_loading() -> None:
    with servers.server() as made:
        for number in range(2000):
            made.client().set(f"pad:{number}", "x")
        made.client().save()
        made.stop()
        again = Server(made.folder, "key-load-delay 1500", "loading-process-events-interval-bytes 1024")
        try:
            error = refused(again.url(), "LOADING")
            assert error.hint == "try again in a moment"
        finally:
            again.stop()


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(redis: Server, certificates: Certificates) -> Iterator[str]:
    with servers.tls_front(redis, certificates) as port:
        yield f"rediss://ops:{SECRET}@127.0.0.1:{port}/0"


def test_tls(redis: Server, certificates: Certificates, tls: str) -> None:
    redis.client().acl_setuser("ops", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], commands=["+@all"])
    for options in (f"ssl_ca_certs={certificates.ca}", "ssl_cert_reqs=none"):
        with open_store(f"{tls}?{options}") as store:
            fills_and_empties(store)
    error = refused(tls, "the TLS certificate was not accepted")
    assert error.hint and "ssl_ca_certs=FILE" in error.hint
    refused(f"{tls}?ssl_ca_certs={certificates.other_ca}", "the TLS certificate was not accepted")
    refused(f"{tls}?ssl_ca_certs={certificates.ca.parent}/none.pem", "none.pem|No such file")


def test_tls_with_a_certificate_of_the_client(redis: Server, certificates: Certificates) -> None:
    with servers.tls_front(redis, certificates, client_needed=True) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.ca}"
        with open_store(f"{url}&ssl_certfile={certificates.client}&ssl_keyfile={certificates.client_key}") as store:
            fills_and_empties(store)
        refused(url, f"127.0.0.1:{port}")


def test_tls_and_plain_mixed_up(redis: Server, tls: str) -> None:
    refused(f"rediss://:{SECRET}@127.0.0.1:{redis.port}/0", f"127.0.0.1:{redis.port}")
    refused(tls.replace("rediss:", "redis:"), "127.0.0.1")


# --- Sentinel -------------------------------------------------------------------------------------------------------


def test_sentinel_leads_to_the_primary_of_the_moment() -> None:
    with servers.sentinel_pair() as (primary, replica, sentinel):
        url = f"redis+sentinel://127.0.0.1:{servers.free_port()},127.0.0.1:{sentinel.port}/mymaster/1"
        with open_store(url) as store:
            fills_and_empties(store)
            store.put(REF, b"{}", expect=None)
            assert primary.client(db=1).exists("seepient:session:a")
            servers.until(lambda: replica.client(db=1).exists("seepient:session:a"), "replication")
            primary.stop()
            servers.until(lambda: replica.client().info("replication")["role"] == "master", "a failover")
            servers.until(lambda: sentinel.client().sentinel_masters()["mymaster"]["port"] == replica.port, "its news")
            assert store.get(REF).payload == b"{}"
            store.put(REF, b"{}x", expect=ANY)
            assert replica.client(db=1).get("seepient:session:a") == b"{}x"
        refused(f"redis+sentinel://127.0.0.1:{sentinel.port}/other", "knows a reachable primary called 'other'")
    refused(f"redis+sentinel://:{SECRET}@127.0.0.1:{sentinel.port}/mymaster", "no Sentinel at")


# --- Cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(nodes: list[Server]) -> Iterator[RedisStore]:
    for node in nodes:
        node.client().flushall()
    with open_store(f"redis+cluster://127.0.0.1:{nodes[1].port}") as made:
        assert isinstance(made, RedisStore)
        yield made


def test_all_primaries_are_listed_and_written(nodes: list[Server], store: RedisStore) -> None:
    refs = [Ref(f"s{number}", kind) for number in range(60) for kind in KINDS]
    hour_ago = time.time_ns() // 1_000_000 - 3_600_000
    results = list(store.put_many([Put(ref, b"{}\n", changed_at=hour_ago) for ref in refs]))
    assert all(isinstance(result, Stamp) for result in results)
    assert all(node.client().dbsize() > 10 for node in nodes)
    for want in Want:
        assert sorted(record.ref for record in store.records(want)) == sorted(refs)
    for ref in refs[:20]:
        with store.lock(ref, 0) as lease:
            lease.check()
            stamp = store.stamp(ref)
            assert stamp is not None
            if ref.kind == "log":
                stamp = store.append(ref, b"{}\n", expect=stamp)
            store.remove(ref, stamp)
    assert len(list(store.records(Want.NAMES))) == len(refs) - 20
    assert sum(node.client().dbsize() for node in nodes) == len(refs) - 20


@pytest.mark.parametrize("key", ["plain", "{tag}x", "{}x", "a}b", "a}b{", "}{", "{a}{b}", "{{a}}", "x{", "naïve}ü"])
def test_keys_with_braces(nodes: list[Server], store: RedisStore, key: str) -> None:
    hour_ago = time.time_ns() // 1_000_000 - 3_600_000
    stamp = store.put(Ref(key, "log"), b"1\n2", expect=None, changed_at=hour_ago)
    assert stamp.changed_at and abs(stamp.changed_at - hour_ago) <= 1000
    assert store.get(Ref(key, "log")).payload == b"1\n2"
    assert sum(node.client().dbsize() for node in nodes) == 1


def test_no_answer_is_lost_with_the_node_that_a_slot_moves_to(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hop after an ASK fails once; the question is asked again."""
    refs = [Ref(f"s{number}", "document") for number in range(20)]
    for ref in refs:
        store.put(ref, b"{}", expect=None)
    really = Servers._follow
    failures = [failed.ConnectionError("refused"), failed.ConnectionError("refused")]

    def follow(servers: Servers, answer: Answer, command: Command) -> Answer:
        if failures:
            raise failures.pop()
        return really(servers, answer, command)

    monkeypatch.setattr(Servers, "_follow", follow)
    assert sorted(store.same(dict.fromkeys(refs, b"{}"))) == sorted(refs)
    assert not failures


def test_checkpoints_of_any_slot(nodes: list[Server], store: RedisStore) -> None:
    store.put(Ref("a", "log"), b"{}\n", expect=None)
    from redis.cluster import RedisCluster

    cluster = RedisCluster(port=nodes[0].port, host="127.0.0.1", protocol=2)
    for number in range(6):
        said = f'{{"id":"{number}","closed":true,"sessionId":"a","outstanding":{{"p{number}":{{}}}}}}'
        cluster.set(f"checkpoint:{number}", said)
        cluster.set(f"checkpoint-pending-index:p{number}", str(number))
    assert len(list(store.checkpoints())) == 6
    store.remove(Ref("a", "log"), ANY)
    cluster.close()
    assert sum(node.client().dbsize() for node in nodes) == 0


def test_a_slot_that_moves_meanwhile(nodes: list[Server], store: RedisStore) -> None:
    from redis.crc import key_slot

    store.put(REF, b"{}", expect=None)
    slot = key_slot(b"seepient:session:a")
    clients = [node.client() for node in nodes]
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    owner = next(n for n, client in enumerate(clients) if client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot))
    to = (owner + 1) % 3
    clients[to].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[owner])
    clients[owner].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
    clients[owner].execute_command("MIGRATE", "127.0.0.1", nodes[to].port, "seepient:session:a", 0, 5000)
    assert store.get(REF).payload == b"{}"  # asked of the next node
    assert [record.ref for record in store.records()] == [REF]
    with pytest.raises(StoreError, match="being moved"):
        store.put(REF, b"x", expect=ANY)
    for client in (clients[to], clients[owner], clients[(to + 1) % 3]):
        client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to])
    assert store.get(REF).payload == b"{}"  # MOVED
    store.put(REF, b"x", expect=ANY)
    assert store.get(REF).payload == b"x"


def test_cluster_and_single_server_mixed_up(redis: Server, nodes: list[Server]) -> None:
    refused(f"redis+cluster://:{SECRET}@127.0.0.1:{servers.free_port()}", "connection refused")
    refused(f"redis+cluster://127.0.0.1:{redis.port}", "is not a Redis Cluster")
    with open_store(nodes[0].url()) as store:
        for number in range(6):
            try:
                store.get(Ref(f"s{number}", "document"))
            except StoreError as error:
                assert "node of a Redis Cluster" in str(error)
                assert error.hint == f"write redis+cluster://127.0.0.1:{nodes[0].port}"
                break
            except SessionctlError:
                continue
        else:
            pytest.fail("no key of another node")


def test_a_cluster_that_lost_a_node_gives_no_partial_list() -> None:
    with servers.cluster() as nodes, open_store(f"redis+cluster://127.0.0.1:{nodes[0].port}") as store:
        for number in range(12):
            store.put(Ref(f"s{number}", "document"), b"{}", expect=None)
        nodes[2].stop()
        with pytest.raises(StoreError, match=rf"127.0.0.1:{nodes[2].port}: connection refused|CLUSTERDOWN|slots"):
            list(store.records())
