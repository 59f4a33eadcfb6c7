"""What every store must do. A store joins with a subclass of ``StoreContract`` that says how it is opened.

class TestFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return str(tmp_path / "sessions")

    def open(self, place):
        return open_store(place)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from sessionctl.errors import (
    InvalidKey,
    SessionChanged,
    SessionLocked,
    SessionNotFound,
    StoreBusy,
    StoreNotFound,
    UnsupportedKind,
)
from sessionctl.model import KINDS, Kind, Ref, Stamp
from sessionctl.stores.base import ANY, BIG, TAIL, Store, Want

ENTRY = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"hi"}}\n'
SECOND = b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":"hello"}}\n'
DOCUMENT = b'{\n  "id": "a",\n  "messages": [],\n  "createdAt": 1750000000000,\n  "updatedAt": 1750000000000\n}'
THEN = 1_750_000_000_000
ODD_KEYS = (
    "job[1]", "a*b?", "with space", " lead", "-dash", ".dot", "..", "line:U123", "a:b:c:d:e", "%41", "naïve",
    "\ud14c\uc2a4\ud2b8", "e\u0301", "'\"`$(id)", "\u202egpj", "👩‍💻", "k" * 200,
)  # fmt: skip


class StoreContract:
    """The contract as tests. Class attributes say what a store can do; everything else holds for all."""

    kinds: tuple[Kind, ...] = KINDS
    keeps_age = True
    """Whether ``changed_at`` of a ``put`` becomes the payload's age."""
    keeps_ttl = False
    """Whether ``ttl_ms`` of a ``put`` becomes the payload's remaining life."""
    exists_from_the_start = False
    """Whether the store is there before the first write."""
    payloads: ClassVar[dict[Kind, tuple[bytes, bytes]]] = {
        "document": (DOCUMENT, DOCUMENT.replace(b"[]", b'[{"role":"user","content":"x"}]')),
        "log": (ENTRY, ENTRY + SECOND),
    }
    """Two payloads of each kind that this store must give back as they are."""

    def open(self, place: Any) -> Store:
        """Open the store anew, as another process would."""
        raise NotImplementedError

    @pytest.fixture
    def place(self) -> Any:
        """What ``open`` needs; a place of its own for each test."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, place: Any) -> Iterator[Store]:
        with self.open(place) as store:
            yield store

    @pytest.fixture(params=KINDS)
    def ref(self, request: pytest.FixtureRequest) -> Ref:
        if request.param not in self.kinds:
            pytest.skip(f"holds no {request.param}s")
        return Ref("some-key", request.param)

    def one(self, ref: Ref) -> bytes:
        return self.payloads[ref.kind][0]

    def two(self, ref: Ref) -> bytes:
        return self.payloads[ref.kind][1]

    # --- before there is anything -----------------------------------------------------------------------------------

    def test_nothing_is_made_by_opening_or_reading(self, place: Any) -> None:
        with self.open(place) as store:
            assert store.exists() is self.exists_from_the_start
            if self.exists_from_the_start:
                assert list(store.records()) == []
            else:
                with pytest.raises(StoreNotFound):
                    list(store.records())
            assert store.holders() == {}
        with self.open(place) as store:
            assert store.exists() is self.exists_from_the_start

    def test_the_first_write_makes_the_store(self, store: Store, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        assert store.exists()
        assert [record.ref for record in store.records()] == [ref]

    def test_absence(self, store: Store, ref: Ref) -> None:
        other = Ref("other", ref.kind)
        store.put(other, self.one(ref), expect=None)
        assert store.stamp(ref) is None
        assert list(store.records(Want.WHOLE, [ref])) == []
        with pytest.raises(SessionNotFound):
            store.get(ref)
        with pytest.raises(SessionNotFound):
            list(store.chunks(ref))
        for expect in (ANY, Stamp(("no such version",), 1)):
            with pytest.raises(SessionNotFound):
                store.remove(ref, expect)
        assert [record.ref for record in store.records()] == [other]

    def test_a_store_says_which_kinds_it_holds(self, store: Store) -> None:
        assert store.kinds == self.kinds
        for kind in KINDS:
            if kind not in self.kinds:
                with pytest.raises(UnsupportedKind):
                    store.put(Ref("k", kind), self.payloads[kind][0], expect=None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def test_what_was_put_is_what_is_got(self, store: Store, place: Any, ref: Ref) -> None:
        stamp = store.put(ref, self.one(ref), expect=None)
        with self.open(place) as again:
            record = again.get(ref)
        assert record.payload == self.one(ref)
        assert (record.ref, record.whole, record.error) == (ref, True, None)
        assert record.stamp.version == stamp.version
        assert record.stamp.size == stamp.size == len(self.one(ref))
        assert store.stamp(ref) == record.stamp
        assert b"".join(store.chunks(ref)) == self.one(ref)

    def test_records_gives_each_session_once(self, store: Store) -> None:
        refs = {Ref(f"key-{number}", kind) for number in range(30) for kind in self.kinds}
        for ref in refs:
            store.put(ref, self.one(ref), expect=None)
        found = list(store.records())
        assert len(found) == len(refs)
        assert {record.ref for record in found} == refs
        assert all(record.payload == self.one(record.ref) for record in found)
        for kind in self.kinds:
            assert {r.ref for r in store.records(Want.NAMES, kinds=(kind,))} == {r for r in refs if r.kind == kind}
            assert sorted(store.names((kind,))) == sorted(r for r in refs if r.kind == kind)
        assert sorted(store.names()) == sorted(refs)

    def test_records_of_some_refs(self, store: Store, ref: Ref) -> None:
        for key in ("a", "b", "c"):
            store.put(Ref(key, ref.kind), self.one(ref), expect=None)
        asked = [Ref(key, ref.kind) for key in ("c", "missing", "a", "a")]
        assert sorted(record.ref.key for record in store.records(Want.WHOLE, asked)) == ["a", "c"]

    def test_one_key_may_name_a_document_and_a_log(self, store: Store) -> None:
        if self.kinds != KINDS:
            pytest.skip("holds one kind")
        refs = [Ref("both", kind) for kind in KINDS]
        for ref in refs:
            store.put(ref, self.one(ref), expect=None)
        store.remove(refs[0], ANY)
        assert store.stamp(refs[0]) is None
        assert store.get(refs[1]).payload == self.one(refs[1])

    def test_names_read_no_payload(self, store: Store, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        (record,) = store.records(Want.NAMES)
        assert record.payload is None
        assert record.error is None

    def test_the_tail(self, store: Store, ref: Ref) -> None:
        long = self.big(ref, TAIL + 500)
        store.put(ref, long, expect=None)
        store.put(Ref("short", ref.kind), self.one(ref), expect=None)
        found = {record.ref.key: record for record in store.records(Want.TAIL)}
        assert (found["short"].payload, found["short"].whole) == (self.one(ref), True)
        record = found[ref.key]
        assert record.payload is not None
        assert record.payload == (long if record.whole else long[-TAIL:])
        assert record.stamp.size == len(long)

    def test_a_big_payload_comes_in_pieces(self, store: Store, ref: Ref) -> None:
        big = self.big(ref, BIG + 1)
        store.put(ref, big, expect=None)
        (record,) = store.records()
        assert (record.payload, record.error) == (None, None)
        assert record.stamp.size == len(big)
        assert b"".join(store.chunks(ref)) == big
        assert store.get(ref).payload == big

    def big(self, ref: Ref, size: int) -> bytes:
        """A payload of at least ``size`` bytes."""
        if ref.kind == "document":
            head, tail = b'{"id":"a","messages":[{"role":"user","content":"', b'"}],"createdAt":1,"updatedAt":2}'
            return head + b"x" * size + tail
        return ENTRY.replace(b"hi", b"x" * (size // 2)) + SECOND.replace(b"hello", b"y" * (size // 2))

    def test_empty_and_odd_bytes(self, store: Store) -> None:
        if "document" not in self.kinds or self.payloads["document"][0] is not DOCUMENT:
            pytest.skip("keeps no bytes as they are")
        payloads = [b"\x00\xff\xfe", b"\xef\xbb\xbf{}", b'{"a": 1.0, "b": 1e2, "a": 2}\r\n', bytes(range(256))]
        for number, payload in enumerate(payloads):
            store.put(Ref(f"k{number}", "document"), payload, expect=None)
        for number, payload in enumerate(payloads):
            assert store.get(Ref(f"k{number}", "document")).payload == payload

    # --- keys -------------------------------------------------------------------------------------------------------

    def test_odd_keys(self, store: Store) -> None:
        kept = []
        for key in ODD_KEYS:
            ref = Ref(key, self.kinds[0])
            store.put(ref, self.one(ref), expect=None)
            kept.append(ref)
        assert sorted(record.ref for record in store.records(Want.NAMES)) == sorted(kept)
        for ref in kept:
            store.check_key(ref)
            assert store.get(ref).payload == self.one(ref)
            store.remove(ref, ANY)
        assert list(store.records(Want.NAMES)) == []

    def test_a_key_is_no_pattern_and_no_prefix(self, store: Store, ref: Ref) -> None:
        for key in ("a*", "abc", "a", "a[b]c", "A"):
            store.put(Ref(key, ref.kind), self.one(ref), expect=None)
        store.remove(Ref("a*", ref.kind), ANY)
        store.remove(Ref("a[b]c", ref.kind), ANY)
        for missing in ("a?", "ab", "*"):
            assert store.stamp(Ref(missing, ref.kind)) is None
        assert sorted(record.ref.key for record in store.records(Want.NAMES)) == ["A", "a", "abc"]

    def test_refused_keys_change_nothing(self, store: Store, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        for key in ("", "a\0b"):
            with pytest.raises(InvalidKey):
                store.put(Ref(key, ref.kind), self.one(ref), expect=ANY)
        assert [record.ref for record in store.records(Want.NAMES)] == [ref]

    # --- writing: what is expected ----------------------------------------------------------------------------------

    def test_put_expects_what_it_says(self, store: Store, ref: Ref) -> None:
        first = store.put(ref, self.one(ref), expect=None)
        with pytest.raises(SessionChanged):
            store.put(ref, self.two(ref), expect=None)
        assert store.get(ref).payload == self.one(ref)
        second = store.put(ref, self.two(ref), expect=first)
        assert second.version != first.version
        with pytest.raises(SessionChanged):
            store.put(ref, self.one(ref), expect=first)
        assert store.get(ref).payload == self.two(ref)
        store.put(ref, self.one(ref), expect=ANY)
        assert store.get(ref).payload == self.one(ref)

    def test_put_does_not_bring_back_what_is_gone(self, store: Store, ref: Ref) -> None:
        stamp = store.put(ref, self.one(ref), expect=None)
        store.remove(ref, stamp)
        with pytest.raises(SessionChanged):
            store.put(ref, self.two(ref), expect=stamp)
        assert store.stamp(ref) is None

    def test_remove_expects_what_it_says(self, store: Store, ref: Ref) -> None:
        first = store.put(ref, self.one(ref), expect=None)
        second = store.put(ref, self.two(ref), expect=first)
        with pytest.raises(SessionChanged):
            store.remove(ref, first)
        assert store.get(ref).payload == self.two(ref)
        store.remove(ref, second)
        assert store.stamp(ref) is None

    def test_append(self, store: Store) -> None:
        if "log" not in self.kinds:
            pytest.skip("holds no logs")
        ref = Ref("some-key", "log")
        first = store.append(ref, ENTRY, expect=None)
        with pytest.raises(SessionChanged):
            store.append(ref, SECOND, expect=None)
        second = store.append(ref, SECOND, expect=first)
        assert second.version != first.version
        with pytest.raises(SessionChanged):
            store.append(ref, SECOND, expect=first)
        with pytest.raises(SessionChanged):
            store.remove(ref, first)
        assert store.get(ref).payload == ENTRY + SECOND
        store.append(ref, ENTRY, expect=ANY)
        assert store.get(ref).payload == ENTRY + SECOND + ENTRY

    def test_append_does_not_bring_back_what_is_gone(self, store: Store) -> None:
        if "log" not in self.kinds:
            pytest.skip("holds no logs")
        ref = Ref("some-key", "log")
        stamp = store.put(ref, ENTRY, expect=None)
        store.remove(ref, stamp)
        with pytest.raises(SessionChanged):
            store.append(ref, SECOND, expect=stamp)
        assert store.stamp(ref) is None

    def test_writers_that_expect_the_same_version(self, place: Any, ref: Ref) -> None:
        with self.open(place) as store:
            start = store.put(ref, self.one(ref), expect=None)
        gate = threading.Barrier(4)

        def write(number: int) -> bool:
            with self.open(place) as mine:
                gate.wait()
                try:
                    mine.put(ref, self.two(ref), expect=start)
                except SessionChanged:
                    return False
                return True

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(write, range(4)))
        with self.open(place) as store:
            assert any(won)
            assert store.get(ref).payload == self.two(ref)

    def test_many_appends_and_none_is_lost(self, place: Any) -> None:
        if "log" not in self.kinds:
            pytest.skip("holds no logs")
        ref = Ref("some-key", "log")
        lines = [ENTRY.replace(b"e1", b"e%03d" % number) for number in range(24)]

        def write(some: list[bytes]) -> None:
            with self.open(place) as mine:
                for line in some:
                    mine.append(ref, line, expect=ANY)

        with self.open(place) as store:
            store.put(ref, ENTRY, expect=None)
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(write, (lines[:8], lines[8:16], lines[16:])))
            payload = store.get(ref).payload
        assert payload is not None
        assert sorted(payload.splitlines(True)) == sorted([ENTRY, *lines])

    # --- ages and lives ---------------------------------------------------------------------------------------------

    def test_the_age_is_kept(self, store: Store, ref: Ref) -> None:
        stamp = store.put(ref, self.one(ref), expect=None, changed_at=THEN)
        assert stamp == store.stamp(ref)
        if self.keeps_age:
            assert stamp.changed_at == THEN
            assert next(iter(store.records(Want.NAMES))).stamp.changed_at == THEN
        elif stamp.changed_at is not None:
            assert abs(stamp.changed_at - time.time() * 1000) < 60_000

    def test_a_new_payload_is_new(self, store: Store, ref: Ref) -> None:
        at = store.put(ref, self.one(ref), expect=None).changed_at
        assert at is None or abs(at - time.time() * 1000) < 60_000

    def test_reading_changes_no_stamp(self, store: Store, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None, changed_at=THEN)
        before = store.stamp(ref)
        for want in Want:
            list(store.records(want))
        store.get(ref)
        list(store.chunks(ref))
        list(store.strays())
        list(store.checkpoints())
        store.holders([ref])
        assert store.stamp(ref) == before

    def test_the_remaining_life(self, store: Store, ref: Ref) -> None:
        put = store.put(ref, self.one(ref), expect=None, ttl_ms=300_000)
        stamp = store.stamp(ref)
        assert stamp is not None
        if not self.keeps_ttl:
            assert put.ttl_ms is stamp.ttl_ms is None
            return
        assert stamp.ttl_ms is not None
        assert 290_000 < stamp.ttl_ms <= 300_000
        store.put(ref, self.two(ref), expect=ANY)
        again = store.stamp(ref)
        assert again is not None
        assert again.ttl_ms is None

    def test_an_append_keeps_the_remaining_life(self, store: Store) -> None:
        if not self.keeps_ttl or "log" not in self.kinds:
            pytest.skip("keeps no life")
        ref = Ref("some-key", "log")
        store.put(ref, ENTRY, expect=None, ttl_ms=300_000)
        stamp = store.append(ref, SECOND, expect=ANY)
        assert stamp.ttl_ms is not None
        assert 290_000 < stamp.ttl_ms <= 300_000

    def test_the_end_of_life(self, store: Store, ref: Ref) -> None:
        if not self.keeps_ttl:
            pytest.skip("keeps no life")
        store.put(ref, self.one(ref), expect=None, ttl_ms=30)
        time.sleep(0.06)
        assert store.stamp(ref) is None
        assert list(store.records()) == []
        store.put(ref, self.two(ref), expect=None)
        assert store.get(ref).payload == self.two(ref)

    def test_backdating(self, store: Store, ref: Ref) -> None:
        stamp = store.put(ref, self.one(ref), expect=None)
        made = store.backdate(ref, stamp, THEN)
        now = store.stamp(ref)
        assert now is not None
        assert made.version == now.version
        assert store.get(ref).payload == self.one(ref)
        store.remove(ref, made)

    # --- locks ------------------------------------------------------------------------------------------------------

    def test_a_lock_excludes(self, store: Store, place: Any, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        with self.open(place) as other:
            with store.lock(ref, 0) as lease:
                lease.check()
                with pytest.raises(SessionLocked):
                    other.lock(ref, 0)
                started = time.monotonic()
                with pytest.raises(SessionLocked):
                    other.lock(ref, 0.2)
                assert 0.15 < time.monotonic() - started < 5
            other.lock(ref, 0).release()

    def test_a_lock_is_waited_for(self, store: Store, place: Any, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        lease = store.lock(ref, 0)
        timer = threading.Timer(0.2, lease.release)
        timer.start()
        with self.open(place) as other, other.lock(ref, 10):
            timer.join()

    def test_a_lock_says_who_holds_it(self, store: Store, place: Any, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        free = Ref("free", ref.kind)
        store.put(free, self.one(ref), expect=None)
        with self.open(place) as other:
            with store.lock(ref, 0):
                holders = other.holders()
                assert set(holders) == {ref}
                assert holders[ref].sentence(int(time.time() * 1000)).startswith("locked by ")
                assert set(other.holders([ref, free])) == {ref}
                assert other.holders([free]) == {}
            assert other.holders() == {}

    def test_locks_of_other_sessions_are_free(self, store: Store, ref: Ref) -> None:
        with store.lock(ref, 0), store.lock(Ref("another", ref.kind), 0):
            pass
        if self.kinds == KINDS:
            with store.lock(Ref("both", "document"), 0), store.lock(Ref("both", "log"), 0):
                pass

    def test_a_lock_leaves_nothing_behind(self, store: Store, ref: Ref) -> None:
        store.put(ref, self.one(ref), expect=None)
        for _ in range(3):
            store.lock(ref, 0).release()
        assert [record.ref for record in store.records(Want.NAMES)] == [ref]
        assert list(store.strays()) == []
        assert store.holders() == {}

    def test_releasing_twice_harms_nobody(self, store: Store, place: Any, ref: Ref) -> None:
        lease = store.lock(ref, 0)
        lease.release()
        with self.open(place) as other, other.lock(ref, 0) as theirs:
            lease.release()
            theirs.check()
            with pytest.raises(SessionLocked):
                store.lock(ref, 0)

    def test_the_lock_of_the_store(self, store: Store, place: Any) -> None:
        with self.open(place) as other:
            with store.lock_store("gc"):
                with pytest.raises(StoreBusy):
                    other.lock_store("gc")
                other.lock_store("migrate").release()
            other.lock_store("gc").release()

    # --- the store as a value ---------------------------------------------------------------------------------------

    def test_two_of_one_place_are_told_apart_from_others(self, store: Store, place: Any) -> None:
        with self.open(place) as again:
            assert store.place() == again.place()

    def test_closing_twice(self, place: Any) -> None:
        store = self.open(place)
        store.close()
        store.close()

    def test_its_name(self, store: Store) -> None:
        assert store.url
        assert store.url in repr(store)
