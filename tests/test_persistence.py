"""Seepient's contract: exact bytes, exact merge rules, owners that fail closed, and the factory."""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionctl.codec.stringify import js_dumps
from sessionctl.errors import (
    InvalidKey,
    OwnershipMismatch,
    SessionChanged,
    SessionDamaged,
    SessionLocked,
    UnknownStore,
    UsageError,
)
from sessionctl.model import Ref, Stamp
from sessionctl.persistence import (
    FIELDS,
    UNCHECKED,
    PersistenceBackend,
    StoreBackend,
    Unchecked,
    check_backend,
    check_owner,
    create_persistence_backend,
    merge,
    register_backend,
)
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Store
from sessionctl.stores.folder import FolderStore
from sessionctl.stores.memory import MemoryStore

from . import postgres
from .servers import Server, server
from .workers import run_all, save_often

NOW = 1_796_000_000_000
FIXTURES = Path(__file__).parent / "data" / "fixtures"
HELLO = {"id": "m1", "role": "user", "content": "hello", "timestamp": NOW}


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(params=["folder", "memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        url = postgres.server().new_database()
    elif request.param == "redis":
        url = request.getfixturevalue("redis_server").url(f"/0?documents=t{uuid.uuid4().hex}:")
    else:
        url = {"folder": f"documents:{tmp_path}/s", "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db"}[
            request.param
        ]
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def clock() -> list[int]:
    return [NOW]


@pytest.fixture
def backend(store: Store, clock: list[int]) -> StoreBackend:
    return StoreBackend(store, clock=lambda: clock[0])


def stored(backend: StoreBackend, key: str = "s1") -> str:
    payload = backend.store.get(Ref(key, "document")).payload
    assert payload is not None
    return payload.decode()


def put(backend: StoreBackend, text: str | bytes, key: str = "s1") -> None:
    payload = text if isinstance(text, bytes) else text.encode()
    backend.store.put(Ref(key, "document"), payload, expect=ANY)


# --- saving -----------------------------------------------------------------------------------------------------------


def test_a_first_save_writes_the_bytes_of_the_original(backend: StoreBackend) -> None:
    backend.save(
        "s1",
        {
            "metadata": {"title": "T"},
            "messages": [{**HELLO, "content": "é 😀 \u2028 \ud800", "x": [1.0, 1e21, -0.0, 1.5e-7], "e": [], "o": {}}],
            "provider": "openai",
            "model": None,
            "createdAt": 1,
        },
    )
    assert stored(backend) == (
        '{\n  "id": "s1",\n  "messages": [\n    {\n      "id": "m1",\n      "role": "user",\n'
        '      "content": "é 😀 \u2028 \\ud800",\n      "timestamp": 1796000000000,\n'
        '      "x": [\n        1,\n        1e+21,\n        0,\n        1.5e-7\n      ],\n'
        '      "e": [],\n      "o": {}\n    }\n  ],\n'
        '  "createdAt": 1796000000000,\n  "updatedAt": 1796000000000,\n'
        '  "provider": "openai",\n  "metadata": {\n    "title": "T"\n  }\n}'
    )


def test_the_merge_rules(backend: StoreBackend, clock: list[int]) -> None:
    full = {"provider": "p", "providerAccount": "a", "model": "m", "principalId": "o", "metadata": {"a": 1, "b": 2}}
    backend.save("s1", {"messages": [HELLO], **full})
    clock[0] += 5000
    backend.save("s1", {"messages": [], "provider": None, "model": "m2", "createdAt": 7, "updatedAt": 7})
    found = backend.load("s1")
    assert found == {
        "id": "s1",
        "messages": [],
        "createdAt": NOW,
        "updatedAt": NOW + 5000,
        **full,
        "model": "m2",
    }
    assert list(found) == list(FIELDS)
    backend.save("s1", {"metadata": {"c": 3}})
    assert backend.load("s1") == {**found, "metadata": {"c": 3}}  # replaced whole, messages kept


def test_a_composite_key_keeps_the_plain_id_inside(backend: StoreBackend) -> None:
    key = "a" * 64 + ":shared"
    backend.save(key, {"messages": []})
    backend.save("b" * 64 + ":shared", {"messages": [HELLO]})
    assert backend.load(key) == {"id": "shared", "messages": [], "createdAt": NOW, "updatedAt": NOW}
    assert backend.list() == ["a" * 64 + ":shared", "b" * 64 + ":shared"]


UNKNOWN = (
    '{"zz":1.0,"id":"s1", "messages":[{"id":"m1","role":"user","content":"\\u00e9","big":12345678901234567890,'
    '"f":1.50e2} ,{"role":"assistant","content":"x"}],\n "createdAt":1.5E12,"updatedAt":3,"nested":{"a":[-0,1E400],'
    '"a":"\\ud800"}, "metadata":{"x":2.0}}'
)


def test_unknown_fields_and_number_spellings_keep_their_bytes(backend: StoreBackend) -> None:
    put(backend, UNKNOWN)
    loaded = backend.load("s1")
    assert loaded is not None
    backend.save("s1", loaded)
    assert stored(backend) == UNKNOWN.replace('"updatedAt":3', f'"updatedAt":{NOW}')
    loaded["messages"] = [*loaded["messages"], HELLO]
    backend.save("s1", loaded)
    after = stored(backend)
    assert after.startswith(UNKNOWN[: UNKNOWN.index('],\n "createdAt"')]) and '"content":"hello"' in after
    assert json.loads(after)["messages"][2] == HELLO
    backend.save("s1", {"messages": loaded["messages"][1:], "zz": 2})
    final = stored(backend)
    assert final.startswith('{"zz":2,"id":"s1", "messages":[{"role":"assistant","content":"x"}')
    assert '"nested":{"a":[-0,1E400],"a":"\\ud800"}' in final


def test_a_field_that_is_new_takes_its_place(backend: StoreBackend) -> None:
    put(backend, js_dumps({"id": "s1", "messages": [], "createdAt": 1, "updatedAt": 2, "metadata": {}, "x": 1}, 2))
    backend.save("s1", {"messages": [], "principalId": "p", "provider": "q", "y": 2})
    expected = {"id": "s1", "messages": [], "createdAt": 1, "updatedAt": NOW, "provider": "q", "principalId": "p"}
    assert stored(backend) == js_dumps({**expected, "metadata": {}, "x": 1, "y": 2}, 2)


texts = st.text(max_size=6)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=6)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}, optional={"x": values}),
    max_size=4,
)
datas = st.fixed_dictionaries(
    {"messages": messages},
    optional={"provider": texts, "model": texts, "metadata": st.dictionaries(texts, values, max_size=3)},
)


@settings(max_examples=150, deadline=None)
@given(datas, st.lists(datas, max_size=3), st.dictionaries(texts.map(lambda t: "?" + t), values, max_size=2))
def test_any_history_of_saves_gives_the_bytes_of_the_last_state(
    first: dict[str, Any], later: list[dict[str, Any]], unknown: dict[str, Any]
) -> None:
    """Editing the stored text and writing the whole anew, as the original does, come to the same bytes."""
    state = {"id": "s1", **first, **unknown, "createdAt": 1, "updatedAt": 1}
    text = merge("s1", None, {**first, **unknown}, 1)
    for now, data in enumerate(later, 2):
        state |= {**data, "updatedAt": now}
        text = merge("s1", text, data, now)
    known = {field: state[field] for field in FIELDS if field in state}
    assert text == js_dumps({**known, **state}, 2)


@pytest.mark.parametrize("name", ["seepient"])
def test_a_save_of_what_was_loaded_changes_nothing_but_the_time(name: str) -> None:
    read = 0
    for path in sorted((FIXTURES / name / "sessions").glob("*.json")):
        before = path.read_text(encoding="utf-8")
        document = json.loads(before)
        after = merge(path.stem, before, {**document, "messages": document["messages"]}, document["updatedAt"])
        assert after == before, path.name
        read += 1
    assert read > 10


def test_a_clock_that_is_set_back_is_believed(backend: StoreBackend, clock: list[int]) -> None:
    backend.save("s1", {"messages": []})
    clock[0] -= 60_000
    backend.save("s1", {"messages": []})
    found = backend.load("s1")
    assert found is not None and found["updatedAt"] == NOW - 60_000 and found["createdAt"] == NOW


BAD_DATA: list[Any] = [
    None,
    [],
    {},
    {"messages": "x"},
    {"messages": ["x"]},
    {"messages": [{"content": "no role"}]},
    {"messages": [], "metadata": []},
    {"messages": [], "provider": 7},
    {"messages": [], "principalId": ["x"]},
    {"messages": [{"role": "user", "content": float("nan")}]},
    {"messages": [{"role": "user", "content": {1}}]},
    {"messages": [], "metadata": {1: 2}},
]


@pytest.mark.parametrize("bad", BAD_DATA)
def test_what_is_no_session_is_not_saved(bad: Any) -> None:
    backend = StoreBackend(MemoryStore())
    with pytest.raises(UsageError):
        backend.save("s1", bad)
    assert backend.list() == []


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "a b", "x" * 257, "é", "a\n", ".hidden"])
def test_ids_are_validated(backend: StoreBackend, bad: str) -> None:
    for call in (lambda: backend.save(bad, {"messages": []}), lambda: backend.load(bad), lambda: backend.delete(bad)):
        with pytest.raises(InvalidKey):
            call()


# --- loading ----------------------------------------------------------------------------------------------------------


def test_what_is_absent_is_none_and_may_be_deleted(backend: StoreBackend) -> None:
    assert backend.load("s1") is None and backend.list() == []
    backend.delete("s1")
    backend.save("s1", {"messages": []})
    backend.delete("s1")
    backend.delete("s1")
    assert backend.load("s1") is None and backend.list() == []


DAMAGED = [b"", b"{", b"[]", b"null", b'{"id":"s1"}', b'{"messages":{}}', b'{"messages":["x"]}', b"\0\0"]


@pytest.mark.parametrize("bad", [*DAMAGED, b'\xef\xbb\xbf{"messages":[]}', b'{"messages":["\xff"]}'])
def test_damage_is_not_absence_and_is_never_overwritten(backend: StoreBackend, bad: bytes) -> None:
    put(backend, bad)
    for call in (
        lambda: backend.load("s1"),
        lambda: backend.load("s1", principal_id="p"),
        lambda: backend.save("s1", {"messages": []}),
    ):
        with pytest.raises(SessionDamaged):
            call()
    assert backend.store.get(Ref("s1", "document")).payload == bad
    assert backend.list() == ["s1"]
    backend.delete("s1")
    assert backend.list() == []


def test_ownership_fails_closed(backend: StoreBackend) -> None:
    backend.save("mine", {"messages": [HELLO], "principalId": "ann"})
    backend.save("nobodys", {"messages": []})
    put(backend, '{"id":"odd","messages":[],"principalId":["ann"]}', "odd")
    put(backend, '{"id":"empty","messages":[],"principalId":""}', "empty")
    found = backend.load("mine", principal_id="ann")
    assert found is not None and found["messages"] == [HELLO]
    refused = [("mine", p) for p in ("bob", "Ann", "ann ", "", None)]
    refused += [(key, p) for key in ("nobodys", "odd", "empty") for p in ("ann", "", None)]
    for key, principal in refused:
        with pytest.raises(OwnershipMismatch) as caught:
            backend.load(key, principal_id=principal)
        assert caught.value.code == "SESSION_OWNERSHIP_MISMATCH" and "ann" not in str(caught.value)
    assert backend.load("absent", principal_id="ann") is None
    assert backend.load("nobodys") is not None
    backend.save("mine", {"messages": []})
    assert backend.load("mine", principal_id="ann") is not None  # a save without an owner keeps it


# --- at the same time -------------------------------------------------------------------------------------------------


def test_a_save_waits_for_the_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionctl.persistence.LOCK_WAIT", 0.05)
    backend = StoreBackend(store)
    backend.save("s1", {"messages": []})
    with store.lock(Ref("s1", "document"), 0):
        for call in (lambda: backend.save("s1", {"messages": []}), lambda: backend.delete("s1")):
            with pytest.raises(SessionLocked):
                call()
        assert backend.load("s1") is not None
    with backend.lock("s1"):
        backend.save("s1", {"messages": [HELLO]})
        with pytest.raises(SessionLocked), backend.lock("s1", 0):
            pass
    backend.delete("s1")


class Meddling(MemoryStore):
    """A store where a writer that takes no lock comes in between, as a running server does."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def put(self, ref: Ref, payload: bytes, *, expect: Any, **rest: Any) -> Stamp:
        if isinstance(expect, Stamp) and self.times:
            self.times -= 1
            super().put(ref, b'{"id":"s1","messages":[],"theirs":1}', expect=ANY)
        return super().put(ref, payload, expect=expect, **rest)


def test_a_writer_without_the_lock_is_merged_with_not_overwritten() -> None:
    backend = StoreBackend(Meddling(2), clock=lambda: NOW)
    backend.save("s1", {"messages": [HELLO]})
    backend.save("s1", {"model": "m"})
    assert backend.load("s1") == {"id": "s1", "messages": [], "theirs": 1, "updatedAt": NOW, "model": "m"}
    backend = StoreBackend(Meddling(100))
    backend.save("s1", {"messages": [HELLO]})
    with pytest.raises(SessionChanged):
        backend.save("s1", {"model": "m"})


def test_saves_of_many_processes_and_threads_lose_nothing(tmp_path: Path) -> None:
    backend = StoreBackend(FolderStore(tmp_path, ("document",)))
    backend.save("s1", {"messages": []})
    threads = [threading.Thread(target=save_often, args=(str(tmp_path), f"t{n}", 25)) for n in range(4)]
    for thread in threads:
        thread.start()
    run_all(save_often, [(str(tmp_path), f"p{n}", 25) for n in range(3)])
    for thread in threads:
        thread.join()
    found = backend.load("s1")
    assert found is not None
    assert {k: v for k, v in found.items() if v == 24} == dict.fromkeys(["t0", "t1", "t2", "t3", "p0", "p1", "p2"], 24)


# --- the life of a session --------------------------------------------------------------------------------------------


def test_a_save_keeps_the_life_that_a_session_has_or_gives_the_one_it_is_told() -> None:
    store = MemoryStore()
    ref = Ref("s1", "document")
    store.put(ref, b'{"id":"s1","messages":[]}', expect=None, ttl_ms=60_000)
    StoreBackend(store).save("s1", {"messages": []})
    kept = store.stamp(ref)
    assert kept is not None and kept.ttl_ms is not None and 50_000 < kept.ttl_ms <= 60_000
    StoreBackend(store, ttl=3600).save("s1", {"messages": []})
    given = store.stamp(ref)
    assert given is not None and given.ttl_ms is not None and 3_590_000 < given.ttl_ms <= 3_600_000
    StoreBackend(store).save("s2", {"messages": []})
    endless = store.stamp(Ref("s2", "document"))
    assert endless is not None and endless.ttl_ms is None


# --- the factory ------------------------------------------------------------------------------------------------------


class Mine:
    """A third party's backend."""

    __persistence_backend__: Literal[True] = True

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def save(self, session_id: str, data: Mapping[str, Any]) -> None:
        self.kept[session_id] = dict(data)

    def load(self, session_id: str, *, principal_id: str | Unchecked | None = UNCHECKED) -> dict[str, Any] | None:
        found = self.kept.get(session_id)
        check_owner(found or {}, principal_id)
        return found

    def delete(self, session_id: str) -> None:
        self.kept.pop(session_id, None)

    def list(self) -> list[str]:
        return [*self.kept]


class Unbranded:
    def save(self, session_id: str, data: Mapping[str, Any]) -> None: ...
    def load(self, session_id: str, *, principal_id: str | Unchecked | None = UNCHECKED) -> None: ...
    def delete(self, session_id: str) -> None: ...
    def list(self) -> list[str]:
        return []


def test_the_built_in_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = create_persistence_backend({"type": "file", "path": tmp_path / "a"})
    backend.save("s1", {"messages": []})
    assert [p.name for p in (tmp_path / "a").glob("*.json")] == ["s1.json"]
    assert isinstance(backend, PersistenceBackend) and backend.list() == ["s1"]
    monkeypatch.setenv("SEEPIENT_SESSION_DIR", str(tmp_path / "b"))
    create_persistence_backend({"type": "file"}).save("s2", {"messages": []})
    assert (tmp_path / "b" / "s2.json").exists()
    one, two = create_persistence_backend({"type": "memory"}), create_persistence_backend({"type": "memory"})
    one.save("s1", {"messages": []})
    assert one.list() == ["s1"] and two.list() == []


def test_redis_keeps_a_session_for_a_day_from_each_save(redis_server: Server) -> None:
    backend = create_persistence_backend({"type": "redis", "url": redis_server.url("/1")})
    client = redis_server.client(db=1)
    backend.save("s1", {"messages": []})
    client.expire("seepient:session:s1", 10)
    backend.save("s1", {"messages": [HELLO]})
    assert client.ttl("seepient:session:s1") in (86_399, 86_400) and backend.list() == ["s1"]
    create_persistence_backend({"type": "redis", "url": redis_server.url("/1"), "ttl": None}).save(
        "s2", {"messages": []}
    )
    assert client.ttl("seepient:session:s2") == -1


def test_sql_is_a_backend_too(tmp_path: Path) -> None:
    backend = create_persistence_backend({"type": "sql", "url": f"sqlite:///{tmp_path}/s.db"})
    backend.save("s1", {"messages": [HELLO]})
    found = backend.load("s1")
    assert found is not None and found["messages"] == [HELLO]


def test_a_registered_backend_gets_its_whole_configuration() -> None:
    seen: list[Mapping[str, Any]] = []

    def factory(config: Mapping[str, Any]) -> PersistenceBackend:
        seen.append(config)
        return Mine()

    register_backend("mine", factory)
    backend = create_persistence_backend({"type": "mine", "shards": 3})
    assert isinstance(backend, Mine) and seen == [{"type": "mine", "shards": 3}]
    assert create_persistence_backend(backend) is backend


def test_an_object_without_the_brand_is_refused() -> None:
    register_backend("unbranded", lambda config: Unbranded())  # type: ignore[arg-type, return-value]
    for call in (
        lambda: check_backend(Unbranded()),
        lambda: create_persistence_backend(Unbranded()),  # type: ignore[arg-type]
        lambda: create_persistence_backend({"type": "unbranded"}),
    ):
        with pytest.raises(UsageError, match="not a persistence backend"):
            call()


SLIPS: list[dict[str, Any]] = [
    {},
    {"type": "files"},
    {"type": "file", "pth": "x"},
    {"type": "memory", "path": "x"},
    {"type": "sql"},
    {"type": "redis", "urls": "x"},
]


@pytest.mark.parametrize("bad", SLIPS)
def test_a_slip_in_the_configuration_is_named(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        create_persistence_backend(bad)
    with pytest.raises(UnknownStore):
        create_persistence_backend({"type": "sql", "url": "mysqll://x"})


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_reads_and_writes_the_same_documents(tmp_path: Path) -> None:
    """See tests/interop: a document goes back and forth between Seepient's own way of saving and ours."""
    from subprocess import run

    script = Path(__file__).parent / "interop" / "documents.js"
    backend = StoreBackend(FolderStore(tmp_path, ("document",)))
    run(["node", str(script), str(tmp_path), "s1"], check=True, timeout=60)
    by_node = (tmp_path / "s1.json").read_text(encoding="utf-8")
    document = json.loads(by_node)
    assert merge("s1", by_node, document, document["updatedAt"]) == by_node
    backend.save("s1", {"messages": [*document["messages"], HELLO], "metadata": {"n": [1e21, 1.5e-7, -0.0, 1.0]}})
    ours = (tmp_path / "s1.json").read_text(encoding="utf-8")
    run(["node", str(script), str(tmp_path), "s1"], check=True, timeout=60)
    theirs = (tmp_path / "s1.json").read_text(encoding="utf-8")
    mended = merge("s1", ours, {"messages": json.loads(theirs)["messages"]}, json.loads(theirs)["updatedAt"])
    assert mended == theirs
    assert len(json.loads(theirs)["messages"]) == len(document["messages"]) * 2 + 1
