"""SQL stores over real SQLite files and a real PostgreSQL server: the contract, and what is special there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.codec import read
from sessionctl.codec.rows import split_document, time_growth, with_time
from sessionctl.errors import (
    LockLost,
    SessionChanged,
    SessionLocked,
    SessionNotFound,
    StoreError,
    StoreNotFound,
    UnknownStore,
    UnsupportedKind,
    WriteFailed,
)
from sessionctl.model import Ref, Stamp
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, BIG, TAIL, Put, Store, Want
from tests import postgres
from tests.contract import ENTRY, SECOND, THEN, StoreContract

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000_000
OURS = FIXTURES / "seepient" / "sessions" / "user-alice-session.json"
NEWER = '[{"id":"m1","role":"user","content":"from the app ✓","timestamp":1795000000000}]'


def make_sqlite_store(folder: Path) -> Store:
    """A store in a file that does not exist yet."""
    return open_store(f"sqlite:///{folder / 'sessions.db'}")


def make_postgres_store() -> Store:
    """A store in a new, empty database."""
    return open_store(postgres.server().new_database())


class TestSqlite(StoreContract):
    keeps_ttl = True

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'sessions.db'}"

    def open(self, place: str) -> Store:
        return open_store(place)


class TestPostgres(StoreContract):
    keeps_ttl = True

    @pytest.fixture
    def place(self) -> str:
        return postgres.server().new_database()

    def open(self, place: str) -> Store:
        return open_store(place)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    return f"sqlite:///{tmp_path / 'sessions.db'}" if request.param == "sqlite" else postgres.server().new_database()


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with open_store(place) as store:
        yield store


class Application:
    """A program that follows Seepient's documentation: it knows ``id``, ``messages`` and ``updated_at`` only."""

    def __init__(self, place: str) -> None:
        if place.startswith("sqlite"):
            self.connection: Any = sqlite3.connect(place.removeprefix("sqlite:///"), isolation_level=None)
            self.mark, self.now = "?", "CURRENT_TIMESTAMP"
        else:
            self.connection = psycopg.connect(place, autocommit=True)
            self.mark, self.now = "%s", "NOW()"

    def make_table(self, messages: str = "TEXT NOT NULL", updated_at: str = "TIMESTAMP") -> None:
        self.run(f"CREATE TABLE sessions (id TEXT PRIMARY KEY, messages {messages}, updated_at {updated_at})")

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.replace("?", self.mark), values)
        return list(cursor.fetchall()) if cursor.description else []

    def save(self, key: str, messages: str) -> None:
        self.run(
            f"INSERT INTO sessions (id, messages, updated_at) VALUES (?, ?, {self.now}) "
            "ON CONFLICT (id) DO UPDATE SET messages = excluded.messages, updated_at = excluded.updated_at",
            key,
            messages,
        )

    def load(self, key: str) -> Any:
        rows = self.run("SELECT messages, updated_at FROM sessions WHERE id = ?", key)
        return json.loads(rows[0][0]) if rows and rows[0][0] is not None else None

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def all_fixtures() -> dict[Ref, bytes]:
    found = {}
    for path in sorted(FIXTURES.rglob("*")):
        if path.is_file() and path.parent.name in ("sessions", ".sessions"):
            key = f"{path.parents[1].name}:{path.name}"
            found[Ref(key, "log" if path.suffix == ".jsonl" else "document")] = path.read_bytes()
    return found


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_every_fixture_comes_back_as_it_was(store: Store, place: str) -> None:
    fixtures = all_fixtures()
    assert len(fixtures) > 40
    stamps = list(store.put_many([Put(ref, payload, None, THEN) for ref, payload in fixtures.items()]))
    with open_store(place) as again:
        records = {record.ref: record for record in again.records()}
        assert {ref: record.payload for ref, record in records.items()} == fixtures
        assert [record.stamp for record in map(records.__getitem__, fixtures)] == stamps
        assert {record.ref: record.stamp.size for record in again.records(Want.NAMES)} == {
            ref: len(payload) for ref, payload in fixtures.items()
        }
        for record in again.records(Want.TAIL):
            assert record.payload == fixtures[record.ref][-TAIL:]
            assert record.whole is (len(fixtures[record.ref]) <= TAIL)
        for ref, payload in fixtures.items():
            assert b"".join(again.chunks(ref)) == payload


ODD_LOGS = [b"", b"\n", b"\n\n\n", b"x", b"a\r\nb\rc\x0bd\x1ce\n", b"\x00\xff\n\xfe", b"y" * (3 << 20) + b"\nz"]


@pytest.mark.parametrize("payload", ODD_LOGS, ids=range(len(ODD_LOGS)))
def test_odd_logs(store: Store, payload: bytes) -> None:
    ref = Ref("odd", "log")
    stamp = store.put(ref, payload, expect=None)
    assert store.get(ref).payload == payload
    assert store.stamp(ref) == stamp
    store.append(ref, ENTRY, expect=stamp)
    assert store.get(ref).payload == payload + ENTRY
    (record,) = store.records(Want.TAIL)
    assert record.payload == (payload + ENTRY)[-TAIL:]


def test_an_append_is_glued_onto_a_torn_line_as_in_a_file(store: Store) -> None:
    ref = Ref("torn", "log")
    store.put(ref, ENTRY + b'{"id":"to', expect=None)
    store.append(ref, SECOND, expect=ANY)
    assert store.get(ref).payload == ENTRY + b'{"id":"to' + SECOND


def test_one_row_for_each_line(store: Store, place: str) -> None:
    store.put(Ref("k", "log"), ENTRY, expect=None)
    store.append(Ref("k", "log"), SECOND * 2, expect=ANY)
    with Application(place) as app:
        rows = app.run("SELECT session_id, line FROM session_entries ORDER BY session_id, position")
    assert [(key, bytes(line)) for key, line in rows] == [("k", ENTRY), ("k", SECOND), ("k", SECOND)]


def test_replacing_a_log_leaves_no_old_line(store: Store, place: str) -> None:
    ref = Ref("k", "log")
    store.put(ref, ENTRY * 5, expect=None)
    store.put(ref, SECOND, expect=ANY)
    store.remove(ref, ANY)
    with Application(place) as app:
        assert app.run("SELECT count(*) FROM session_entries") == [(0,)]


MEMBERS = st.dictionaries(
    st.sampled_from(["id", "createdAt", "updatedAt", "metadata", "é", "x"]),
    st.one_of(st.integers(0, 2**60), st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), st.none()),
)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "messages", "updatedAt"]), st.text(max_size=5)))


@given(MEMBERS, MESSAGES, st.sampled_from([None, 2]), st.booleans(), st.booleans(), st.integers(0, NOW))
def test_a_split_document_is_whole_again(
    before: dict[str, object], messages: list[object], indent: int | None, ascii_: bool, last: bool, time: int
) -> None:
    value = {**before, "messages": messages} if last else {"messages": messages, **before}
    payload = json.dumps(value, indent=indent, ensure_ascii=ascii_).encode()
    split = split_document(payload)
    assert split is not None
    assert split.head + split.messages.encode() + split.tail == payload
    assert json.loads(split.messages) == messages
    head, tail = with_time(split.head, split.tail, split.time_at, split.time_length, time)
    changed = head + split.messages.encode() + tail
    assert json.loads(changed) == {**value, "updatedAt": time}
    assert len(changed) == len(payload) + time_growth(split.time_length, time)


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"{}", b'{"messages":{}}', b'{"messages":[]', b'{"messages":[]} x', b'{"messages":[NaN]}',
     b'{"messages":[\xff]}', b'{"messages":["\x00"]}', b'{"messages":[],}', b"[" * 100_000, b'{"messages":[' * 50_000],
)  # fmt: skip
def test_what_is_no_document_is_not_split(payload: bytes) -> None:
    assert split_document(payload) is None


# --- a table shared with an application -------------------------------------------------------------------------------


def test_an_application_reads_what_we_put(store: Store, place: str) -> None:
    payload = OURS.read_bytes()
    store.put(Ref("a", "document"), payload, expect=None)
    with Application(place) as app:
        assert app.load("a") == json.loads(payload)["messages"]
        if place.startswith("sqlite"):
            ((moment,),) = app.run("SELECT strftime('%s', updated_at) FROM sessions")
        else:
            ((moment,),) = app.run("SELECT extract(epoch FROM updated_at) FROM sessions")
    assert int(moment) == json.loads(payload)["updatedAt"] // 1000


def test_what_an_application_writes_is_part_of_our_document(store: Store, place: str) -> None:
    ref, payload = Ref("a", "document"), OURS.read_bytes()
    before = store.put(ref, payload, expect=None, changed_at=THEN, ttl_ms=60_000)
    with Application(place) as app:
        app.save("a", NEWER)
    record = store.get(ref)
    assert record.payload is not None
    document, original = json.loads(record.payload), json.loads(payload)
    assert document["messages"] == json.loads(NEWER)
    assert {**document, "messages": 0, "updatedAt": 0} == {**original, "messages": 0, "updatedAt": 0}
    assert abs(document["updatedAt"] - time.time() * 1000) < 60_000
    assert record.stamp.changed_at == document["updatedAt"]
    assert record.stamp.size == len(record.payload)
    assert record.stamp.ttl_ms is None
    assert store.stamp(ref) == record.stamp
    assert [r.stamp for r in store.records(Want.NAMES)] == [record.stamp]
    assert b"".join(store.chunks(ref)) == record.payload
    assert [r.payload for r in store.records(Want.TAIL)] == [record.payload[-TAIL:]]
    for write in (lambda: store.put(ref, payload, expect=before), lambda: store.remove(ref, before)):
        with pytest.raises(SessionChanged):
            write()
    store.put(ref, payload, expect=record.stamp)
    assert store.get(ref).payload == payload


def test_an_application_adds_the_time_that_a_document_lacks(store: Store, place: str) -> None:
    ref = Ref("a", "document")
    store.put(ref, b'{"messages": [], "id": "a" }\n', expect=None)
    with Application(place) as app:
        app.save("a", NEWER)
    record = store.get(ref)
    assert record.payload is not None
    assert set(json.loads(record.payload)) == {"id", "messages", "updatedAt"}
    assert record.stamp.size == len(record.payload)


def test_rows_of_an_application_are_documents(place: str) -> None:
    with Application(place) as app, open_store(place) as store:
        app.make_table()
        assert store.exists()
        app.save("theirs", NEWER)
        app.save("empty", "[]")
        app.save("bad", "not json")
        app.save("long", json.dumps([{"role": "user", "content": "é" * (BIG // 2)}]))
        names = {record.ref.key: record.stamp for record in store.records(Want.NAMES)}
        found = {record.ref.key: record for record in store.records()}
        assert set(found) == {"theirs", "empty", "bad", "long"}
        assert found["long"].payload is None
        for key, record in found.items():
            payload = store.get(record.ref).payload
            assert payload is not None
            assert names[key] == record.stamp
            assert record.stamp.size == len(payload)
            assert record.stamp.changed_at is not None
            assert abs(record.stamp.changed_at - time.time() * 1000) < 60_000
        session = read(found["theirs"].ref, found["theirs"].payload or b"", NOW)
        assert [message.text for message in session.messages] == ["from the app ✓"]
        assert (session.outline.id, session.outline.updated_at) == ("theirs", found["theirs"].stamp.changed_at)
        assert [d.code for d in read(found["bad"].ref, found["bad"].payload or b"", NOW).outline.damage] == [
            "invalid-json"
        ]
        columns = app.run("SELECT * FROM sessions WHERE 1 = 0")
        assert columns == []
        with pytest.raises(SessionChanged):
            store.remove(Ref("theirs", "document"), Stamp((None, 0, 0), 0))
        store.remove(Ref("theirs", "document"), found["theirs"].stamp)
        with pytest.raises(SessionNotFound):
            store.remove(Ref("theirs", "document"), ANY)
        assert len(app.run("SELECT * FROM sessions")[0]) == 3  # neither reading nor removing has extended the table


def test_our_writes_extend_the_table_of_an_application(place: str) -> None:
    payload = OURS.read_bytes()
    with Application(place) as app, open_store(place) as store, open_store(place) as reader:
        app.make_table()
        app.save("theirs", NEWER)
        before = reader.get(Ref("theirs", "document"))
        store.put(Ref("ours", "document"), payload, expect=None)
        assert reader.get(Ref("ours", "document")).payload == payload
        assert reader.get(Ref("theirs", "document")) == before
        app.save("ours", NEWER)
        app.save("third", NEWER)
        changed = json.loads(reader.get(Ref("ours", "document")).payload or b"")
        assert (changed["messages"], changed["principalId"]) == (json.loads(NEWER), json.loads(payload)["principalId"])
        assert app.load("theirs") == app.load("third") == json.loads(NEWER)
        # Text that is no document has no messages, which this table asks for.
        with pytest.raises(WriteFailed):
            store.put(Ref("damaged", "document"), b"{", expect=None)


def test_an_application_takes_over_a_damaged_payload(store: Store, place: str) -> None:
    ref = Ref("a", "document")
    store.put(ref, b"\x00not json", expect=None)
    with Application(place) as app:
        assert app.load("a") is None
        app.save("a", NEWER)
    payload = store.get(ref).payload
    assert json.loads(payload or b"")["messages"] == json.loads(NEWER)


def test_insert_or_replace_by_an_application(tmp_path: Path) -> None:
    with make_sqlite_store(tmp_path) as store, Application(f"sqlite:///{tmp_path / 'sessions.db'}") as app:
        store.put(Ref("a", "document"), OURS.read_bytes(), expect=None)
        app.run("INSERT OR REPLACE INTO sessions (id, messages, updated_at) VALUES (?, ?, ?)", "a", NEWER, 1.75e9)
        record = store.get(Ref("a", "document"))
        assert json.loads(record.payload or b"") == {
            "id": "a",
            "messages": json.loads(NEWER),
            "updatedAt": 1_750_000_000_000,
        }


@pytest.mark.parametrize(
    ("stored", "ms"),
    [
        (1_750_000_000_123, 1_750_000_000_123),
        (1_750_000_000, 1_750_000_000_000),
        ("2025-06-15 15:06:40", 1_750_000_000_000),
        ("2025-06-15T15:06:40.123Z", 1_750_000_000_123),
        ("2025-06-15T17:06:40+02:00", 1_750_000_000_000),
        ("yesterday", None),
        (None, None),
        (b"\xff", None),
        (-5, None),
    ],
)
def test_moments_that_applications_put_into_sqlite(tmp_path: Path, stored: object, ms: int | None) -> None:
    with make_sqlite_store(tmp_path) as store, Application(f"sqlite:///{tmp_path / 'sessions.db'}") as app:
        app.make_table()
        app.run("INSERT INTO sessions VALUES (?, ?, ?)", "a", "[]", stored)
        record = store.get(Ref("a", "document"))
        assert record.stamp.changed_at == ms
        assert json.loads(record.payload or b"").get("updatedAt") == ms
        assert record.stamp.size == len(record.payload or b"")


@pytest.mark.parametrize("updated_at", ["TIMESTAMP", "TIMESTAMPTZ"])
@pytest.mark.parametrize("ms", [1_730_611_800_000, 1_730_615_400_000, 0, 253_402_300_799_999])
def test_bytes_and_moments_survive_any_time_zone(updated_at: str, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of the first two are 01:30 on the night when clocks go back in New York, where the server is."""
    place = postgres.server().new_database()
    payload = b'{"id":"a","messages":[],"updatedAt":%d}' % ms
    with Application(place) as app:
        app.make_table(updated_at=updated_at)
    with open_store(place) as store:
        store.put(Ref("a", "document"), payload, expect=None)
        assert store.get(Ref("a", "document")).payload == payload
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    with open_store(place) as store:
        assert store.get(Ref("a", "document")).payload == payload


def test_endless_moments_in_postgresql() -> None:
    with make_postgres_store() as store:
        store.put(Ref("a", "document"), b'{"messages":[]}', expect=None)
        with Application(str(store_url(store))) as app:
            app.run("UPDATE sessions SET updated_at = 'infinity'")
        assert store.get(Ref("a", "document")).payload == b'{"messages":[]}'


def store_url(store: Store) -> str:
    return store.url.replace("***", postgres.PASSWORD)


def test_a_table_with_jsonb_is_read_and_not_written() -> None:
    place = postgres.server().new_database()
    with Application(place) as app, open_store(place) as store:
        app.make_table("JSONB", "BIGINT")
        app.run("INSERT INTO sessions VALUES (?, ?, ?)", "a", NEWER, 1_750_000_000_000)
        document = json.loads(store.get(Ref("a", "document")).payload or b"")
        assert document == {"id": "a", "messages": json.loads(NEWER), "updatedAt": 1_750_000_000_000}
        with pytest.raises(WriteFailed, match="its column messages is jsonb"):
            store.put(Ref("b", "document"), OURS.read_bytes(), expect=None)
        store.put(Ref("b", "log"), ENTRY, expect=None)
        assert store.get(Ref("a", "document")).payload is not None


def test_some_other_table_of_that_name(place: str) -> None:
    with Application(place) as app, open_store(place) as store:
        app.run("CREATE TABLE sessions (id TEXT PRIMARY KEY, data TEXT)")
        for use in (
            store.exists,
            lambda: list(store.records()),
            lambda: store.put(Ref("a", "log"), ENTRY, expect=None),
        ):
            with pytest.raises(StoreError, match="no column 'messages'"):
                use()


def test_ids_that_are_no_text() -> None:
    place = postgres.server().new_database()
    with Application(place) as app, open_store(place) as store:
        app.run("CREATE TABLE sessions (id UUID PRIMARY KEY, messages TEXT, updated_at TIMESTAMP)")
        with pytest.raises(StoreError, match="of type uuid"):
            store.exists()


def test_a_database_of_another_encoding() -> None:
    url = postgres.server().new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with open_store(url) as store, pytest.raises(StoreError, match="LATIN1"):
        store.put(Ref("a", "log"), ENTRY, expect=None)


# --- schema -----------------------------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(store: Store, place: str) -> None:
    store.put(Ref("a", "log"), ENTRY, expect=None)
    with Application(place) as app:
        app.run("UPDATE sessionctl_meta SET value = '2'")
    with open_store(place) as again:
        for use in (
            again.exists,
            lambda: list(again.records()),
            lambda: again.put(Ref("b", "log"), ENTRY, expect=None),
        ):
            with pytest.raises(StoreError, match=r"schema version '2'.* knows version 1"):
                use()


def test_many_make_the_tables_at_once(place: str) -> None:
    barrier, errors = threading.Barrier(6), []

    def write(number: int) -> None:
        with open_store(place) as mine:
            barrier.wait()
            try:
                mine.put(Ref(f"k{number}", "document"), OURS.read_bytes(), expect=None)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with open_store(place) as store:
        assert len(list(store.records())) == 6


def test_a_write_that_is_refused_makes_no_table(store: Store) -> None:
    with pytest.raises(SessionChanged):
        store.put(Ref("a", "log"), ENTRY, expect=Stamp((1, 1), 1))
    assert not store.exists()


def test_more_than_a_page(store: Store) -> None:
    refs = [Ref(f"{number % 7}-{number}", kind) for number in range(603) for kind in ("document", "log")]
    done = list(store.put_many([Put(ref, b'{"messages":[]}' if ref.kind == "document" else ENTRY) for ref in refs]))
    assert all(isinstance(stamp, Stamp) for stamp in done)
    for want in Want:
        assert sorted(record.ref for record in store.records(want)) == sorted(refs)
    assert sorted(record.ref for record in store.records(Want.WHOLE, refs[:1100])) == sorted(refs[:1100])


def test_put_many_tells_each_error(store: Store) -> None:
    store.put(Ref("there", "log"), ENTRY, expect=None)
    done = list(store.put_many([Put(Ref(key, "log"), SECOND) for key in ("a", "there", "", "b")]))
    assert [type(stamp).__name__ for stamp in done] == ["Stamp", "SessionChanged", "InvalidKey", "Stamp"]
    assert {record.ref.key: record.payload for record in store.records()} == {"a": SECOND, "there": ENTRY, "b": SECOND}


def test_a_reader_may_write_while_it_reads(store: Store) -> None:
    list(store.put_many([Put(Ref(f"{number:04}", "log"), ENTRY) for number in range(520)]))
    seen = 0
    for seen, record in enumerate(store.records(), 1):
        if seen % 20 == 0:
            store.remove(record.ref, record.stamp)
    assert seen == 520
    assert len(list(store.records(Want.NAMES))) == 520 - 26


def test_a_reader_in_pieces_holds_up_no_writer(store: Store) -> None:
    ref = Ref("big", "log")
    payload = ENTRY * (2 * BIG // len(ENTRY))
    store.put(ref, payload, expect=None)
    pieces = store.chunks(ref)
    first = next(pieces)
    store.append(ref, SECOND, expect=ANY)
    assert first + b"".join(pieces) == payload
    for kind in ("log", "document"):
        ref = Ref("big", kind)
        big = b'{"messages":["' + b"x" * (2 * BIG) + b'"]}'
        store.put(ref, big, expect=ANY)
        pieces = store.chunks(ref)
        next(pieces), next(pieces)
        store.put(ref, big.replace(b"x", b"y"), expect=ANY)
        with pytest.raises(StoreError, match="changed while it was read"):
            list(pieces)


def test_what_has_expired_is_removed_by_the_next_writer(store: Store, place: str) -> None:
    for kind in ("document", "log"):
        store.put(Ref("old", kind), OURS.read_bytes(), expect=None, ttl_ms=1)
        store.put(Ref("shared", kind), OURS.read_bytes(), expect=None, ttl_ms=1)
    with Application(place) as app:
        app.save("shared", NEWER)  # what an application writes does not end
        time.sleep(0.01)
        assert [record.ref for record in store.records()] == [Ref("shared", "document")]
        with pytest.raises(SessionNotFound):
            store.remove(Ref("old", "log"), ANY)
        with open_store(place) as other:
            other.put(Ref("new", "log"), ENTRY, expect=None)
        assert app.run("SELECT id FROM sessions") == [("shared",)]
        assert app.run("SELECT id FROM session_logs") == [("new",)]
        assert app.run("SELECT DISTINCT session_id FROM session_entries") == [("new",)]


def test_only_logs_are_appended_to(store: Store) -> None:
    with pytest.raises(UnsupportedKind):
        store.append(Ref("a", "document"), ENTRY, expect=ANY)


# --- processes --------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY
url, name = sys.argv[1:]
with open_store(url) as store:
    for number in range(15):
        with store.lock(Ref("counter", "document"), 30) as lease:
            found = store.stamp(Ref("counter", "document"))
            record = store.get(Ref("counter", "document"))
            lease.check()
            store.put(Ref("counter", "document"), b"%d" % (int(record.payload) + 1), expect=record.stamp)
        store.append(Ref("shared", "log"), f"{name}-{number}\\n".encode(), expect=ANY)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_two_processes_lose_nothing(store: Store, place: str) -> None:
    store.put(Ref("counter", "document"), b"0", expect=None)
    writers = [start(WRITER, place, name) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert store.get(Ref("counter", "document")).payload == b"30"
    lines = (store.get(Ref("shared", "log")).payload or b"").decode().splitlines()
    for name in "ab":
        assert [line for line in lines if line[0] == name] == [f"{name}-{number}" for number in range(15)]


DYING = """
import os, signal, sys
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import Put
with open_store(sys.argv[1]) as store:
    with store._working() as work:
        if sys.argv[1].startswith("sqlite"):
            work.connection.exec_driver_sql("PRAGMA cache_size = 2")  # so that the file itself is written to
        store._logs.write(work, [Put(Ref("k", "log"), b"new\\n" * 20000)], 0, frozenset("k"))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_death_in_a_transaction_leaves_what_was(store: Store, place: str) -> None:
    store.put(Ref("k", "log"), ENTRY, expect=None)
    assert start(DYING, place).wait(60) == -signal.SIGKILL
    assert store.get(Ref("k", "log")).payload == ENTRY
    store.append(Ref("k", "log"), SECOND, expect=ANY)
    assert store.get(Ref("k", "log")).payload == ENTRY + SECOND


HOLDER = """
import sys, time
from sessionctl.model import Ref
from sessionctl.stores import open_store
with open_store(sys.argv[1]) as store, store.lock(Ref("k", "log"), 0):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_of_another_process(store: Store, place: str) -> None:
    store.put(Ref("k", "log"), ENTRY, expect=None)
    holder = start(HOLDER, place)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        (held,) = store.holders().values()
        assert held.who.endswith(f":{holder.pid}")
        assert held.since is not None
        assert abs(held.since - time.time() * 1000) < 60_000
        with pytest.raises(SessionLocked, match=rf"'k' is locked by \S+:{holder.pid}, for \d+ s"):
            store.lock(Ref("k", "log"), 0)
    finally:
        holder.kill()
        holder.wait()
    store.lock(Ref("k", "log"), 5).release()


def test_a_lost_connection_is_a_lost_lock() -> None:
    with make_postgres_store() as store, Application(store_url(store)) as app:
        with store.lock(Ref("k", "log"), 0) as lease:
            lease.check()
            app.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            with pytest.raises(LockLost):
                lease.check()
        store.put(Ref("k", "log"), ENTRY, expect=None)  # connections are made anew
        with store.lock(Ref("k", "log"), 0) as lease:
            lease.check()


def test_a_lock_of_some_other_program() -> None:
    from sessionctl.stores.sql.postgres import lock_number

    with make_postgres_store() as store, Application(store_url(store)) as app:
        app.run(f"SELECT pg_advisory_lock({lock_number('log:k')})")
        with pytest.raises(SessionLocked, match=rf"{postgres.USER} \(server process \d+\)"):
            store.lock(Ref("k", "log"), 0)


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_database_that_another_program_locks(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionctl.stores.sql.database.Database.patience", 1)
    with open_store(place) as store, Application(place) as app:
        stamp = store.put(Ref("k", "log"), ENTRY, expect=None)
        app.run("BEGIN EXCLUSIVE" if place.startswith("sqlite") else "BEGIN")
        app.run("UPDATE session_logs SET size = size")
        started = time.monotonic()
        with pytest.raises(WriteFailed, match="another program has locked it"):
            store.append(Ref("k", "log"), SECOND, expect=ANY)
        assert 0.9 < time.monotonic() - started < 10
        timer = threading.Timer(0.3, lambda: None)
        timer.start()
        app.run("ROLLBACK")
        store.append(Ref("k", "log"), SECOND, expect=stamp)
        timer.cancel()


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_reading_makes_no_file(tmp_path: Path, mode: str) -> None:
    with make_sqlite_store(tmp_path) as store:
        with pytest.raises(StoreNotFound):
            list(store.records())
        assert not store.exists()
        assert store.holders() == {}
        assert listing(tmp_path) == []
        store.put(Ref("k", "log"), ENTRY, expect=None)
        assert (tmp_path / "sessions.db").stat().st_mode & 0o777 == 0o600
        with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        before = (tmp_path / "sessions.db").read_bytes()
        assert store.get(Ref("k", "log")).payload == ENTRY
        assert store.stamp(Ref("k", "log")) is not None
        assert listing(tmp_path) == ["sessions.db"]
        assert (tmp_path / "sessions.db").read_bytes() == before


def test_a_database_in_wal_mode_that_is_in_use(tmp_path: Path) -> None:
    with make_sqlite_store(tmp_path) as store, Application(f"sqlite:///{tmp_path / 'sessions.db'}") as app:
        app.run("PRAGMA journal_mode = wal")
        app.make_table()
        app.save("a", NEWER)
        assert [record.ref.key for record in store.records()] == ["a"]
        app.save("b", NEWER)  # in the WAL only
        assert [record.ref.key for record in store.records()] == ["a", "b"]
        store.put(Ref("c", "document"), OURS.read_bytes(), expect=None)
        assert [row[0] for row in app.run("SELECT id FROM sessions ORDER BY id")] == ["a", "b", "c"]


def test_reading_ends_no_lock_of_this_process(tmp_path: Path) -> None:
    """To close any descriptor of a file ends all POSIX locks that its process holds on it."""
    other = f"import sqlite3; sqlite3.connect({str(tmp_path / 'sessions.db')!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with make_sqlite_store(tmp_path) as store:
        store.put(Ref("k", "log"), ENTRY, expect=None)
        with Application(f"sqlite:///{tmp_path / 'sessions.db'}") as app:
            app.run("BEGIN IMMEDIATE")
            for _ in range(3):
                with make_sqlite_store(tmp_path) as reader:
                    assert reader.get(Ref("k", "log")).payload == ENTRY
            tried = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
            assert "database is locked" in tried.stderr


@pytest.mark.parametrize("action", ["read", "write"])
def test_what_is_no_database(tmp_path: Path, action: str) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at" * 5)
    (tmp_path / "folder.db").mkdir()
    for name, said in (("text.db", "is not an SQLite database"), ("folder.db", "is not a regular file")):
        with open_store(f"sqlite:///{tmp_path / name}") as store, pytest.raises(StoreError, match=said):
            store.exists() if action == "read" else store.put(Ref("k", "log"), ENTRY, expect=None)
    assert (tmp_path / "text.db").read_text().startswith("not a database")


def test_a_damaged_database(tmp_path: Path) -> None:
    with make_sqlite_store(tmp_path) as store:
        store.put(Ref("k", "log"), ENTRY * 2000, expect=None)
        path = tmp_path / "sessions.db"
        path.write_bytes(path.read_bytes()[:100] + os.urandom(path.stat().st_size - 100))
        with pytest.raises(StoreError, match="damaged"):
            store.get(Ref("k", "log"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with make_sqlite_store(tmp_path / "none") as store:
        assert not store.exists()
        for use in (lambda: store.put(Ref("k", "log"), ENTRY, expect=None), lambda: store.lock(Ref("k", "log"), 0)):
            with pytest.raises(WriteFailed, match="there is no folder"):
                use()
    assert listing(tmp_path) == []


def test_a_database_that_may_only_be_read(tmp_path: Path) -> None:
    with make_sqlite_store(tmp_path) as store, open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        store.put(Ref("k", "log"), ENTRY, expect=None)
        (tmp_path / "sessions.db").chmod(0o444)
        with unprivileged(tmp_path, 0o555):
            assert store.get(Ref("k", "log")).payload == ENTRY
            for write in (
                lambda: store.append(Ref("k", "log"), SECOND, expect=ANY),
                lambda: store.remove(Ref("k", "log"), ANY),
                lambda: other.put(Ref("k", "log"), ENTRY, expect=None),
                lambda: store.lock(Ref("k", "log"), 0),
            ):
                with pytest.raises(WriteFailed, match=r"(?i)may not be written|permission denied"):
                    write()
        assert store.get(Ref("k", "log")).payload == ENTRY


def test_a_database_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "closed.db").touch(0)
    closed = open_store(f"sqlite:///{tmp_path / 'closed.db'}")
    with closed, unprivileged(tmp_path, 0o555), pytest.raises(StoreError, match="permission denied"):
        closed.exists()
    with make_sqlite_store(tmp_path / "inner") as store:
        (tmp_path / "inner").mkdir()
        with unprivileged(tmp_path / "inner", 0o000), pytest.raises(StoreError, match="permission denied"):
            store.exists()


@contextlib.contextmanager
def unprivileged(folder: Path, mode: int) -> Iterator[None]:
    """A folder of that mode, as a user to whom modes apply."""
    changed = [(folder, folder.stat().st_mode)]
    folder.chmod(mode)
    root = os.geteuid() == 0
    if root:
        for parent in folder.parents:
            changed.append((parent, parent.stat().st_mode))
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o755)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, before in changed:
            path.chmod(before)


def test_no_password_is_ever_said() -> None:
    server = postgres.server()
    for url in (
        server.url("postgres", "wr0ng-secret"),
        server.url("no_such_database"),
        "postgresql://u:wr0ng-secret@127.0.0.1:1/x",
        "postgresql://u@127.0.0.1:1/x?password=wr0ng-secret",
    ):
        with open_store(url) as store:
            with pytest.raises(StoreError) as caught:
                store.exists()
            for text in (store.url, repr(store), str(caught.value), repr(caught.value.__cause__)):
                assert "secret" not in text and postgres.PASSWORD not in text
                assert "\n" not in text
    with pytest.raises(UnknownStore) as unknown:
        open_store("postgresql://u:secret@host:port/x")
    assert "secret" not in str(unknown.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:", "sqlite:///", "sqlite:///:memory:", "sqlite:///x.db?mode=rw"])
def test_what_names_no_database_file(url: str) -> None:
    with pytest.raises(UnknownStore):
        open_store(url)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c%41"
    folder.mkdir()
    with make_sqlite_store(folder) as store:
        store.put(Ref("k", "log"), ENTRY, expect=None)
        assert store.get(Ref("k", "log")).payload == ENTRY
    assert listing(folder) == ["sessions.db"]


def test_a_link_names_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "sessions.db")
    with make_sqlite_store(tmp_path) as store, open_store(f"sqlite:///{tmp_path / 'link.db'}") as link:
        store.put(Ref("k", "log"), ENTRY, expect=None)
        with store.lock(Ref("k", "log"), 0), pytest.raises(SessionLocked):
            link.lock(Ref("k", "log"), 0)
        assert link.place() == store.place()


@pytest.mark.parametrize("package", ["sqlalchemy", "psycopg"])
def test_a_missing_extra_is_named(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sessionctl.errors import StoreError\nfrom sessionctl.stores import open_store\n"
        "try: open_store('postgresql://h/d')\n"
        "except StoreError as error: print(error, error.hint)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "is not installed" in said
    assert "pip install 'sessionctl[sql]'" in said


def test_what_is_stored_can_be_asked_for_by_sql(store: Store, place: str) -> None:
    store.put(Ref("k", "log"), ENTRY, expect=None, changed_at=THEN)
    driver = place if place.startswith("sqlite") else place.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(driver)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT size, changed_at FROM session_logs")).one() == (len(ENTRY), THEN)
    engine.dispose()
