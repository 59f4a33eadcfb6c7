"""Copying between stores: what is decided, what is written, and what must never be lost."""

from __future__ import annotations

import os
import pickle
import stat
import time
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import Server
from terminal import FIXTURES

from sessionctl.errors import LockLost, SessionctlError, StoreBusy, StoreError, UnsupportedKind, UsageError, WriteFailed
from sessionctl.keys import file_name, folded
from sessionctl.model import KINDS, Kind, Record, Ref, Stamp
from sessionctl.ops import copying
from sessionctl.ops import migrate as ops
from sessionctl.ops.gc import Failure, Protection, Skip
from sessionctl.ops.select import Filter
from sessionctl.stores import memory, open_store
from sessionctl.stores.base import ANY, BIG, Put, Store, Want
from sessionctl.stores.folder import FolderStore
from sessionctl.stores.memory import MemoryStore

THEN = 1_750_000_000_000
FOLDERS = (
    FIXTURES / "seepient" / "sessions",
    FIXTURES / "seepient-damaged" / "sessions",
    FIXTURES / "loopengine" / ".sessions",
    FIXTURES / "loopengine-damaged" / ".sessions",
)
GUARDED = ops.Options(on_conflict="overwrite", lock_wait=0)
EMPTY = "empty"
"""The one fixture that Redis cannot hold: a log without an entry."""


def now() -> int:
    return time.time_ns() // 1_000_000


def document(key: str, text: str = "hi", at: int = THEN) -> bytes:
    return (
        f'{{"id": "{key}", "messages": [{{"id": "m1", "role": "user", "content": "{text}", "timestamp": {at}}}], '
        f'"createdAt": {at}, "updatedAt": {at}, "new": 1.50}}'
    ).encode()


def entry(number: int, text: str = "hi") -> bytes:
    parent = "null" if number == 1 else f'"e{number - 1}"'
    role = "user" if number % 2 else "assistant"
    return f'{{"id":"e{number}","parentId":{parent},"message":{{"role":"{role}","content":"{text}"}}}}\n'.encode()


def doc(key: str) -> Ref:
    return Ref(key, "document")


def log(key: str) -> Ref:
    return Ref(key, "log")


def fill(store: Store, *puts: tuple[Ref, bytes], changed_at: int | None = THEN) -> Store:
    for ref, payload in puts:
        store.put(ref, payload, expect=ANY, changed_at=changed_at)
    return store


def contents(store: Store) -> dict[Ref, bytes]:
    if not store.exists():
        return {}
    return {record.ref: store.get(record.ref).payload or b"" for record in store.records(Want.NAMES)}


def copy(source: Store, target: Store, options: ops.Options | None = None, **more: Any) -> ops.Outcome:
    outcome = ops.Outcome()
    refs = more.pop("refs", None) or ops.choose(source, Filter(), now()).refs
    ops.migrate(source, target, refs, options or ops.Options(lock_wait=0), outcome, now=now, **more)
    return outcome


def reasons(skips: Sequence[Any]) -> dict[str, str]:
    return {skip.ref.key: skip[1] for skip in skips}


# --- choosing, and sharing the work -----------------------------------------------------------------------------------


def test_what_a_process_of_the_crew_did_is_told_whole() -> None:
    done = ops.Outcome(
        copied=[ops.Copy(doc("a"), 12), ops.Copy(log("\udcff"), 1 << 40)],
        replaced={doc("a"): Stamp((1, b"x"), 12, THEN, "mtime", 5)},
        identical=[doc("b")],
        skipped=[Skip(doc("c"), "why")],
        conflicts=[Skip(log("c"), "why not")],
        failed=[Failure(doc("d"), "how", 8)],
        damaged=[Skip(doc("e"), "what")],
        lost_ttl=[doc("f")],
        lost_age=[log("g")],
        deleted=[doc("h")],
        verified=2,
    )
    assert all(getattr(done, name) for name in done.__struct_fields__)
    assert pickle.loads(pickle.dumps(done)) == done
    assert type(pickle.loads(pickle.dumps(done)).copied[0].ref) is Ref


class Mover(FolderStore):
    """Once it is read, another folder takes the place of ``target``."""

    def __init__(self, path: Path, target: Path) -> None:
        super().__init__(path)
        self.target = target

    def records(self, *wanted: Any) -> Iterator[Record]:
        if not (self.target.parent / "moved").exists():
            self.target.rename(self.target.parent / "moved")
            self.target.mkdir()
        yield from super().records(*wanted)


@pytest.mark.parametrize("crew", [False, True])
def test_only_the_place_that_was_locked_is_written_to(tmp_path: Path, *, crew: bool) -> None:
    target, moved, refs = tmp_path / "t", tmp_path / "moved", [doc("a"), doc("b")]
    fill(open_store(f"{tmp_path}/s"), *((ref, document(ref.key)) for ref in refs))
    target.mkdir()
    source = Mover(tmp_path / "s", target)
    if crew:
        job = ops.Job(slice(None), frozenset(), ops.Options(), None, FolderStore(target).place())
        (done, count), _ = ops._copy_part(source, FolderStore(target), refs, now, job, lambda: False)
        assert (count, [made.ref for made in done.copied]) == (2, refs)
    else:
        copy(source, FolderStore(target), refs=refs)
    assert list(target.iterdir()) == []
    assert sorted(path.name for path in moved.iterdir()) == ["a.json", "b.json"]


def test_a_process_whose_target_is_another_by_now_writes_nothing(tmp_path: Path) -> None:
    fill(open_store(f"{tmp_path}/s"), (doc("a"), document("a")))
    (tmp_path / "t").mkdir()
    (tmp_path / "u").mkdir()
    job = ops.Job(slice(None), frozenset(), ops.Options(), None, FolderStore(tmp_path / "u").place())
    with pytest.raises(LockLost):
        list(
            ops._copy_part(
                FolderStore(tmp_path / "s"), FolderStore(tmp_path / "t"), [doc("a")], now, job, lambda: False
            )
        )
    assert list((tmp_path / "t").iterdir()) == []


def test_a_store_is_no_target_of_its_own(tmp_path: Path) -> None:
    fill(open_store(f"{tmp_path}/s"), (doc("a"), document("a")))
    (tmp_path / "link").symlink_to(tmp_path / "s")
    for name in (f"{tmp_path}/s", f"{tmp_path}/link", f"documents:{tmp_path}/x/../s"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match="same store"):
            ops.check_places(open_store(f"{tmp_path}/s"), open_store(name))
    ops.check_places(open_store(f"{tmp_path}/s"), open_store(f"{tmp_path}/other"))
    ops.check_places(MemoryStore(), MemoryStore())


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("documents=session:&logs=l:", "documents=session:zz:&logs=m:", {"log"}),
        ("documents=session:zz:", "documents=session:", set()),
        ("documents=d:&logs=l:", "documents=e:&logs=l:", {"document"}),
        ("documents=d:&logs=l:", "documents=l:x:&logs=d:x:", {"document", "log"}),
        ("documents=d:&logs=l:", "documents=l:&logs=m:", {"document", "log"}),
    ],
)
def test_prefixes_that_contain_each_other_are_no_source_and_target(
    redis: Server, one: str, other: str, apart: set[Kind]
) -> None:
    """A copy could take the place of what is not read yet."""
    with open_store(redis.url(f"/0?{one}")) as source, open_store(redis.url(f"/0?{other}")) as target:
        with pytest.raises(UsageError, match="overlap") as raised:
            ops.check_places(source, target)
        assert raised.value.hint and ("--kind" in raised.value.hint) == bool(apart)
        for kind in KINDS:
            if kind in apart:
                ops.check_places(source, target, [kind])
            else:
                with pytest.raises(UsageError, match="overlap"):
                    ops.check_places(source, target, [kind])


@pytest.mark.parametrize("place", ["/1?documents=session:", "/0?documents=sessions:&logs=other:"])
def test_stores_of_one_server_that_are_apart_may_be_source_and_target(redis: Server, place: str) -> None:
    with open_store(redis.url("/0?documents=session:&logs=l:")) as source, open_store(redis.url(place)) as target:
        ops.check_places(source, target)
        ops.check_places(source, MemoryStore())


def test_a_target_that_holds_other_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedKind, match="no logs"):
        ops.check_kinds(open_store(f"documents:{tmp_path}"), [doc("a"), log("b")])
    ops.check_kinds(open_store(f"documents:{tmp_path}"), [doc("a")])


# --- copying ----------------------------------------------------------------------------------------------------------


def test_bytes_kinds_ages_and_modes(tmp_path: Path) -> None:
    source = fill(open_store(f"{tmp_path}/s"), (doc("a"), document("a")), (log("a"), entry(1)), (log("é:x"), b"NaN\n{"))
    os.chmod(tmp_path / "s" / "a.json", 0o644)
    old = os.umask(0)
    try:
        target = open_store(f"{tmp_path}/deep/t")
        outcome = copy(source, target)
    finally:
        os.umask(old)
    assert contents(target) == contents(source)
    assert (len(outcome.copied), outcome.verified, outcome.bytes) == (3, 3, sum(map(len, contents(source).values())))
    assert reasons(outcome.damaged) == {"é:x": outcome.damaged[0].reason}
    for name in ("a.json", "a.jsonl", "é:x.jsonl"):
        status = (tmp_path / "deep" / "t" / name).stat()
        assert (status.st_mtime, stat.S_IMODE(status.st_mode)) == (THEN / 1000, 0o600)
    assert stat.S_IMODE((tmp_path / "deep" / "t").stat().st_mode) == 0o700
    assert ops.leftovers(target) == []


def test_a_second_run_copies_nothing() -> None:
    source, target = fill(MemoryStore(), (doc("a"), document("a")), (log("b"), entry(1))), MemoryStore()
    copy(source, target)
    stamps = {ref: target.stamp(ref) for ref in contents(target)}
    again = copy(source, target)
    assert (again.copied, len(again.identical), again.verified) == ([], 2, 0)
    assert {ref: target.stamp(ref) for ref in contents(target)} == stamps


def test_what_was_left_out_before_is_copied_by_the_next_run() -> None:
    source = fill(MemoryStore(), *((doc(f"s{i}"), document(f"s{i}")) for i in range(20)))
    target = fill(MemoryStore(), *((doc(f"s{i}"), document(f"s{i}")) for i in range(7)))
    outcome = copy(source, target)
    assert (len(outcome.copied), len(outcome.identical)) == (13, 7)
    assert contents(target) == contents(source)


def test_batches_are_bounded_and_large_payloads_stand_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BATCH_BYTES", 5000)
    large = document("large", "x" * (BIG + 1))
    source = fill(MemoryStore(), *((doc(f"s{i}"), document(f"s{i}", "x" * 1000)) for i in range(30)))
    fill(source, (doc("large"), large))
    sizes = [[len(r.payload or b"") for r in batch] for batch in copying.batches(source.records(Want.WHOLE))]
    assert all(sum(batch) <= 5000 for batch in sizes) and len(sizes) > 6
    assert [0] in sizes, "the large one alone, not yet read"
    target = MemoryStore()
    assert copy(source, target).verified == 31
    assert contents(target) == contents(source)
    assert len(copy(source, target).identical) == 31
    fill(target, (doc("large"), large[:-1] + b" "))
    assert list(reasons(copy(source, target).conflicts)) == ["large"]


def test_ttl_is_kept_dropped_or_set() -> None:
    source = MemoryStore()
    source.put(doc("a"), document("a"), expect=None, ttl_ms=60_000)
    fill(source, (doc("b"), document("b")))

    def lives(options: ops.Options) -> list[int | None]:
        target = MemoryStore()
        assert copy(source, target, options).lost_ttl == []
        return [(target.stamp(doc(key)) or Stamp((), 0)).ttl_ms for key in "ab"]

    kept, none = lives(ops.Options())
    assert kept is not None and 59_000 <= kept <= 60_000 and none is None
    assert lives(ops.Options(keep_ttl=False)) == [None, None]
    for life in lives(ops.Options(keep_ttl=False, ttl=5000)):
        assert life is not None and 4000 < life <= 5000


class Clock:
    """A time for a store and a run, in ms, that stands still unless it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = now()
        monkeypatch.setattr(memory, "time", self)

    def __call__(self) -> int:
        return self.now

    def time_ns(self) -> int:
        return self.now * 1_000_000


class Slow(MemoryStore):
    """Reading back what it was given takes half a minute."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def same(self, expected: Any) -> Iterator[Ref]:
        self.clock.now += 30_000
        return super().same(expected)


class AtOnce(MemoryStore):
    """Asks for the lives of all that are wanted first, as Redis does."""

    def records(self, *wanted: Any, **more: Any) -> Iterator[Record]:
        yield from list(super().records(*wanted, **more))


def test_copies_end_when_their_originals_do_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    source, target, outcome = AtOnce(), Slow(clock), ops.Outcome()
    end, refs = clock.now + 3_600_000, [doc(f"s{i:02}") for i in range(12)]
    for ref in refs:
        source.put(ref, document(ref.key), expect=None, ttl_ms=3_600_000)
    monkeypatch.setattr(copying, "BATCH_COUNT", 6)
    monkeypatch.setattr(copying, "BATCH_BYTES", 2 * len(document("s00")))
    ops.migrate(source, target, refs, ops.Options(), outcome, now=clock)
    assert len(outcome.copied) == 12 and clock.now == end - 3_600_000 + 6 * 30_000
    assert {clock.now + (record.stamp.ttl_ms or 0) for record in target.records()} == {end}


def test_a_copy_whose_life_ends_before_it_is_read_back_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    source, target, outcome = MemoryStore(), Slow(clock), ops.Outcome()
    source.put(doc("short"), document("short"), expect=None, ttl_ms=20_000)
    source.put(doc("long"), document("long"), expect=None, ttl_ms=60_000)
    options = ops.Options(delete_source=True, guard=Protection(0))
    ops.migrate(source, target, [doc("long"), doc("short")], options, outcome, now=clock)
    assert (outcome.failed, outcome.deleted) == ([], [doc("long")])
    assert reasons(outcome.skipped) == {"short": "its life ended meanwhile"}


def test_a_target_without_ttl_is_said(tmp_path: Path) -> None:
    source = MemoryStore()
    source.put(doc("a"), document("a"), expect=None, ttl_ms=60_000)
    assert copy(source, open_store(f"{tmp_path}/t")).lost_ttl == [doc("a")]


def test_unreadable_sessions_fail_and_the_others_go_on(tmp_path: Path) -> None:
    source = fill(open_store(f"{tmp_path}/s"), (doc("a"), document("a")), (doc("b"), document("b")))
    (tmp_path / "s" / "a.json").unlink()
    os.mkfifo(tmp_path / "s" / "a.json")
    target = MemoryStore()
    outcome = copy(source, target, refs=[doc("a"), doc("b"), doc("gone")])
    assert list(contents(target)) == [doc("b")]
    assert reasons(outcome.skipped)["gone"] == "gone meanwhile"


def test_keys_that_the_target_cannot_hold_fail_and_the_others_go_on(tmp_path: Path) -> None:
    bad = [doc("x" * 300), doc("../up"), doc("a/b"), log("con"), log("line\nbreak")]
    source = fill(MemoryStore(), *((ref, document("x") if ref.kind == "document" else entry(1)) for ref in bad))
    fill(source, (doc("good"), document("good")))
    target = open_store(f"{tmp_path}/t")
    outcome = copy(source, target)
    assert list(contents(target)) == [doc("good")]
    assert {failure.ref for failure in outcome.failed} == set(bad)
    assert all("not a valid session id" in failure.error for failure in outcome.failed)
    assert os.listdir(tmp_path) == ["t"]


# --- conflicts --------------------------------------------------------------------------------------------------------


def conflicting() -> tuple[MemoryStore, MemoryStore]:
    """Five sessions: newer here, newer there, of one age, damaged there, and one that is at the source only."""
    source, target = MemoryStore(), MemoryStore()
    fill(source, (doc("here"), document("here", at=THEN + 5000)), (doc("there"), document("there", at=THEN)))
    fill(source, (doc("even"), document("even", "one")), (doc("broken"), document("broken")))
    fill(source, (doc("new"), document("new")))
    fill(target, (doc("here"), document("here", at=THEN)), (doc("there"), document("there", at=THEN + 5000)))
    fill(target, (doc("even"), document("even", "two")), (doc("broken"), b'{"id":"broken","messages":[{"id":'))
    return source, target


def test_skip_reports_and_leaves_what_is_there() -> None:
    source, target = conflicting()
    before = contents(target)
    outcome = copy(source, target)
    assert set(reasons(outcome.conflicts)) == {"here", "there", "even", "broken"}
    assert "damaged" in reasons(outcome.conflicts)["broken"]
    assert contents(target) == before | {doc("new"): document("new")}


def test_newer_replaces_what_is_older_and_nothing_that_it_cannot_judge() -> None:
    source, target = conflicting()
    before = contents(target)
    outcome = copy(source, target, ops.Options(on_conflict="newer", lock_wait=0))
    assert set(reasons(outcome.conflicts)) == {"even", "broken"}
    assert set(reasons(outcome.skipped)) == {"there"}
    assert list(outcome.replaced) == [doc("here")]
    assert contents(target) == before | {ref: contents(source)[ref] for ref in (doc("here"), doc("new"))}


def test_newer_tells_a_longer_log_whatever_the_clocks_say() -> None:
    source, target = MemoryStore(), MemoryStore()
    for store, key, lines, age in (
        (source, "grown", 3, 0), (target, "grown", 2, 9000), (source, "behind", 1, 9000), (target, "behind", 2, 0),
    ):  # fmt: skip
        fill(store, (log(key), b"".join(map(entry, range(1, lines + 1)))), changed_at=THEN + age)
    fill(source, (log("fork"), entry(1) + entry(2, "x")), changed_at=THEN + 900)
    fill(target, (log("fork"), entry(1) + entry(2, "y")), changed_at=THEN)
    outcome = copy(source, target, ops.Options(on_conflict="newer", lock_wait=0))
    assert list(outcome.replaced) == [log("grown")]
    assert set(reasons(outcome.skipped)) == {"behind"}
    assert set(reasons(outcome.conflicts)) == {"fork"}, "their ages are too near to each other"


def test_overwrite_replaces_every_other_version_under_the_lock() -> None:
    source, target = conflicting()
    with target.lock(doc("even"), 0):
        outcome = copy(source, target, GUARDED)
    assert [failure.ref for failure in outcome.failed] == [doc("even")] and "locked" in outcome.failed[0].error
    assert set(outcome.replaced) == {doc("here"), doc("there"), doc("broken")}
    assert contents(target) == contents(source) | {doc("even"): document("even", "two")}
    copy(source, target, GUARDED)
    assert contents(target) == contents(source)


def test_fail_writes_nothing_if_there_is_one_conflict() -> None:
    source, target = conflicting()
    before = contents(target)
    outcome = copy(source, target, ops.Options(on_conflict="fail"))
    assert len(outcome.conflicts) == 4 and not outcome.copied and contents(target) == before
    outcome = copy(source, target, ops.Options(on_conflict="fail"), refs=[doc("new")])
    assert len(outcome.copied) == 1 and doc("new") in contents(target)


def test_only_what_was_shown_is_overwritten() -> None:
    source, target = conflicting()
    shown = ops.compare(source, target, sorted(contents(source)), GUARDED, now=now).replaced
    assert set(shown) == {doc("here"), doc("there"), doc("even"), doc("broken")}
    fill(target, (doc("even"), document("even", "just written")), (doc("new"), document("new", "by an agent")))
    outcome = copy(source, target, GUARDED, shown=shown)
    assert set(reasons(outcome.conflicts)) == {"even", "new"}
    assert contents(target)[doc("even")] == document("even", "just written")
    assert contents(target)[doc("new")] == document("new", "by an agent")


def test_comparing_writes_nothing(tmp_path: Path) -> None:
    source, target = fill(MemoryStore(), (doc("a"), document("a"))), open_store(f"{tmp_path}/t")
    found = ops.compare(source, target, [doc("a")], ops.Options(), now=now)
    assert (len(found.copied), found.bytes, found.verified) == (1, len(document("a")), 0)
    assert os.listdir(tmp_path) == []


class Folding(MemoryStore):
    """A store that, like a disk of macOS or Windows, knows one session under all spellings of its name."""

    def name_of(self, ref: Ref) -> Hashable:
        return folded(file_name(ref.key, ref.kind))


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("my-bot", "My-Bot", "document"),
        ("stra\u00dfe", "STRASSE", "log"),
        ("\ud14c\uc2a4", "\u1110\u1166\u1109\u1173", "document"),
        ("a/b", "a_b", "log"),
        ("a\\b", "a/b", "log"),
    ],
)
def test_two_keys_that_would_become_one_are_a_conflict(one: str, other: str, kind: Kind) -> None:
    payload = document("x") if kind == "document" else entry(1)
    source = fill(MemoryStore(), (Ref(one, kind), payload), (Ref(other, kind), payload + b" "), (log("c"), entry(1)))
    target = Folding()
    outcome = copy(source, target, ops.Options(on_conflict="overwrite", delete_source=True, guard=Protection(0)))
    assert set(reasons(outcome.conflicts)) == {one, other}
    assert list(contents(target)) == [log("c")]
    assert set(contents(source)) == {Ref(one, kind), Ref(other, kind)}


def test_slashes_that_collide_in_a_folder(tmp_path: Path) -> None:
    source = fill(MemoryStore(), (log("a/b"), entry(1)), (log("a_b"), entry(1, "x")), (log("My"), entry(1)))
    fill(source, (log("my"), entry(1, "y")), (log("c/d"), entry(1, "z")))
    target = open_store(f"{tmp_path}/t")
    outcome = copy(source, target)
    assert set(reasons(outcome.conflicts)) == {"a/b", "a_b"}
    assert sorted(os.listdir(tmp_path / "t")) == ["My.jsonl", "c_d.jsonl", "my.jsonl"], "this disk tells case apart"
    assert len(copy(source, target).identical) == 3, "c/d is found under its name"


# --- change while it is copied ----------------------------------------------------------------------------------------


class Restless(MemoryStore):
    """A store one of whose sessions is written to each time after it was read, ``times`` times."""

    def __init__(self, ref: Ref, times: int) -> None:
        super().__init__()
        self.ref = ref
        self.times = times
        self.written = 0

    def records(self, want: Want = Want.WHOLE, *rest: Any, **more: Any) -> Iterator[Any]:
        found = list(super().records(want, *rest, **more))
        if want is Want.WHOLE and any(r.ref == self.ref for r in found) and self.written < self.times:
            self.written += 1
            self.append(self.ref, entry(self.written + 1), expect=ANY)
        yield from found


def test_a_source_that_changes_is_copied_again() -> None:
    source = Restless(log("a"), 2)
    fill(source, (log("a"), entry(1)), (log("b"), entry(1)))
    target = MemoryStore()
    outcome = copy(source, target)
    assert source.written == 2 and not outcome.failed and outcome.replaced == {}
    assert contents(target) == contents(source)
    assert sorted(c.ref.key for c in outcome.copied) == ["a", "b"] and outcome.verified == 2


def test_a_source_that_never_rests_is_reported_and_kept() -> None:
    source = Restless(log("a"), 10**6)
    fill(source, (log("a"), entry(1)), (log("b"), entry(1)))
    target = MemoryStore()
    outcome = copy(source, target, ops.Options(delete_source=True, guard=Protection(0)))
    assert [failure.ref for failure in outcome.failed] == [log("a")]
    assert "kept changing" in outcome.failed[0].error
    assert [c.ref for c in outcome.copied] == [log("b")] == outcome.deleted
    payload = contents(source)[log("a")]
    assert payload.startswith(contents(target)[log("a")]), "a whole earlier state, not a mixture"


class Vanishing(Restless):
    """One of its sessions is written to after it was read, and is gone when that is looked at again."""

    def records(self, want: Want = Want.WHOLE, *rest: Any, **more: Any) -> Iterator[Any]:
        if want is Want.WHOLE and self.written:
            self.remove(self.ref, ANY)
        yield from super().records(want, *rest, **more)


def test_a_session_that_is_gone_at_the_second_look_is_told() -> None:
    source = Vanishing(log("a"), 1)
    fill(source, (log("a"), entry(1)), (log("b"), entry(1)))
    target = MemoryStore()
    outcome = copy(source, target)
    assert reasons(outcome.skipped) == {"a": "gone meanwhile; the copy is of an earlier moment"}
    assert [c.ref for c in outcome.copied] == [log("b")] and outcome.told == {log("a"), log("b")}
    assert contents(target)[log("a")] == entry(1)


def test_a_conflict_is_not_hidden_by_a_source_that_is_gone_meanwhile() -> None:
    class Fleeting(MemoryStore):
        def records(self, want: Want = Want.WHOLE, *rest: Any, **more: Any) -> Iterator[Any]:
            found = list(super().records(want, *rest, **more))
            if want is Want.WHOLE:
                self._payloads.pop(doc("taken"), None)
            yield from found

    source, target = fill(Fleeting(), (doc("taken"), document("taken")), (doc("b"), document("b"))), Crowded()
    outcome = copy(source, target)
    assert reasons(outcome.skipped) == {"taken": "gone meanwhile"} and outcome.told == {doc("taken"), doc("b")}


class Crowded(MemoryStore):
    """A target where somebody else makes the session right before we do."""

    def put_many(self, items: Sequence[Put]) -> Iterator[Stamp | SessionctlError]:
        for item in items:
            if item.ref.key == "taken" and item.expect is None:
                fill(self, (item.ref, document("taken", "theirs")))
        return super().put_many(items)


def test_what_appears_at_the_target_meanwhile_is_not_overwritten() -> None:
    source, target = fill(MemoryStore(), (doc("taken"), document("taken")), (doc("b"), document("b"))), Crowded()
    outcome = copy(source, target)
    assert set(reasons(outcome.conflicts)) == {"taken"} and [c.ref for c in outcome.copied] == [doc("b")]
    assert contents(target)[doc("taken")] == document("taken", "theirs")


class Lossy(MemoryStore):
    """A target that keeps something else than it was given."""

    def put(self, ref: Ref, payload: bytes, **more: Any) -> Stamp:
        return super().put(ref, payload.replace(b"1.50", b"1.5"), **more)


def test_a_copy_that_is_not_the_same_fails_and_is_taken_back() -> None:
    source, target = fill(MemoryStore(), (doc("a"), document("a")), (log("b"), entry(1))), Lossy()
    outcome = copy(source, target, ops.Options(delete_source=True, guard=Protection(0)))
    assert [failure.ref for failure in outcome.failed] == [doc("a")]
    assert list(contents(target)) == [log("b")] and list(contents(source)) == [doc("a")]
    assert copy(source, target, ops.Options(verify=False)).verified == 0
    assert doc("a") in contents(target), "unverified copies are taken on trust"


class Failing(MemoryStore):
    """A target that refuses one session, cannot write another, and is lost at a third."""

    lost = False

    def put(self, ref: Ref, payload: bytes, **more: Any) -> Stamp:
        if ref.key == "refused":
            raise WriteFailed("value of 3.0 MB refused by the server")
        if ref.key in ("s5", "odd"):
            self.lost = ref.key == "s5"
            raise StoreError("the server is gone")
        return super().put(ref, payload, **more)

    def exists(self) -> bool:
        if self.lost:
            raise StoreError("the server is gone")
        return True


def test_a_refused_session_fails_and_a_lost_store_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BATCH_COUNT", 2)
    source = fill(MemoryStore(), (doc("refused"), document("refused")), (doc("odd"), document("odd")))
    fill(source, *((doc(f"s{i}"), document(f"s{i}")) for i in range(9)))
    target, outcome = Failing(), ops.Outcome()
    with pytest.raises(StoreError, match="gone"):
        ops.migrate(source, target, sorted(contents(source)), ops.Options(), outcome, now=now)
    assert {failure.ref for failure in outcome.failed} == {doc("odd"), doc("refused")}
    target.lost = False
    assert {c.ref for c in outcome.copied} <= set(contents(target)) and 3 <= len(outcome.copied) <= 5


# --- deleting at the source -------------------------------------------------------------------------------------------


def test_only_what_is_verified_unused_and_unchanged_is_removed_from_the_source(tmp_path: Path) -> None:
    source, target = open_store(f"{tmp_path}/s"), MemoryStore()
    fill(source, *((doc(key), document(key)) for key in ("a", "b", "busy", "vip-1", "young", "differs", "draft")))
    fill(
        source, (doc("young"), document("young", at=now() - 1000)), (doc("absurd"), document("absurd", at=THEN // 1000))
    )
    fill(target, (doc("differs"), document("differs", "other")), (doc("b"), document("b")))
    (tmp_path / "s" / "draft.json.tmp.1750000000000").write_bytes(document("draft", "newer"))
    options = ops.Options(delete_source=True, lock_wait=0, guard=Protection(patterns=("vip-*",), wait_for_locks=True))
    with open_store(f"{tmp_path}/s").lock(doc("busy"), 0):
        outcome = copy(source, target, options)
    assert sorted(ref.key for ref in outcome.deleted) == ["a", "b"], "b was there already, byte for byte"
    assert set(reasons(outcome.skipped)) == {"busy", "vip-1", "young", "absurd", "draft"}
    assert set(reasons(outcome.conflicts)) == {"differs"}
    assert {ref.key for ref in contents(source)} == {"busy", "vip-1", "young", "absurd", "draft", "differs"}
    forced = copy(source, target, ops.Options(delete_source=True, guard=Protection(patterns=("vip-*",), force=True)))
    assert {ref.key for ref in forced.deleted} == {"busy", "young", "absurd"}


def test_a_source_that_changes_after_it_was_verified_is_kept() -> None:
    class Late(MemoryStore):
        def lock(self, ref: Ref, wait: float) -> Any:
            self.append(ref, entry(2), expect=ANY)
            return super().lock(ref, wait)

    source, target = fill(Late(), (log("a"), entry(1))), MemoryStore()
    outcome = copy(source, target, ops.Options(delete_source=True, guard=Protection(0)))
    assert outcome.deleted == [] and "changed meanwhile" in reasons(outcome.skipped)["a"]
    assert contents(source)[log("a")] == entry(1) + entry(2)


def test_one_place_under_two_names_cannot_be_locked_twice(tmp_path: Path) -> None:
    store, same = FolderStore(tmp_path / "s"), FolderStore(tmp_path / "x" / ".." / "s")
    (tmp_path / "x").mkdir()
    with store.lock_store("gc"), pytest.raises(StoreBusy), same.lock_store("gc"):
        pass


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    ("mine", "its", "options", "stays"),
    [
        (None, 20_000, ops.Options(), True),
        (None, 20_000, ops.Options(keep_ttl=False), True),
        (60_000, 20_000, ops.Options(keep_ttl=False), True),
        (60_000, 20_000, ops.Options(), True),
        (20_000, 60_000, ops.Options(), False),
        (60_000, 59_500, ops.Options(), False),
        (60_000, None, ops.Options(), False),
        (None, None, ops.Options(), False),
        (None, 20_000, ops.Options(keep_ttl=False, ttl=3_600_000), False),
    ],
)
def test_what_a_copy_that_ends_sooner_would_lose_stays_at_the_source(
    mine: int | None, its: int | None, options: ops.Options, *, stays: bool, dry: bool
) -> None:
    source, target = MemoryStore(), MemoryStore()
    source.put(doc("a"), document("a"), expect=None, ttl_ms=mine)
    target.put(doc("a"), document("a"), expect=None, ttl_ms=its)
    options = msgspec.structs.replace(options, delete_source=True, guard=Protection(0))
    if dry:
        outcome = ops.compare(source, target, [doc("a")], options, now=now)
    else:
        outcome = copy(source, target, options)
        assert (contents(source) == {}) is not stays
    said = "would stay at the source" if dry else "not removed from the source"
    assert outcome.identical == [doc("a")] and outcome.deleted == ([] if stays else [doc("a")])
    assert reasons(outcome.skipped) == ({"a": f"{said}: the copy that was there already ends sooner"} if stays else {})


def test_a_source_that_is_lost_while_it_is_cleared_ends_the_run() -> None:
    class Dying(MemoryStore):
        dead = False

        def lock(self, ref: Ref, wait: float) -> Any:
            self.dead = True
            return super().lock(ref, wait)

        def remove(self, ref: Ref, expect: Any) -> None:
            raise StoreError("the server is gone")

        def exists(self) -> bool:
            if self.dead:
                raise StoreError("the server is gone")
            return True

    source = fill(Dying(), *((doc(f"s{i}"), document(f"s{i}")) for i in range(9)))
    target, outcome = MemoryStore(), ops.Outcome()
    with pytest.raises(StoreError, match="gone"):
        ops.migrate(
            source,
            target,
            sorted(contents(source)),
            ops.Options(delete_source=True, guard=Protection(0)),
            outcome,
            now=now,
        )
    assert (len(outcome.copied), outcome.deleted, len(outcome.failed)) == (9, [], 1)


# --- stopping ---------------------------------------------------------------------------------------------------------


class Wish:
    """Says that a run is to stop from the moment that ``now`` is set; then nothing but its end may follow."""

    def __init__(self) -> None:
        self.now = False

    def __call__(self) -> bool:
        return self.now

    def tick(self, count: int) -> None:
        if self.now:
            raise KeyboardInterrupt


def stopped(source: Store, target: Store, options: ops.Options, wish: Wish, refs: Sequence[Ref] = ()) -> ops.Outcome:
    outcome = ops.Outcome()
    refs = refs or sorted(contents(source))
    with pytest.raises(KeyboardInterrupt):
        ops.migrate(source, target, refs, options, outcome, now=now, stopping=wish, tick=wish.tick)
    return outcome


def test_a_wish_to_stop_is_heard_between_two_removals() -> None:
    wish = Wish()

    class Third(MemoryStore):
        def remove(self, ref: Ref, expect: Any) -> None:
            super().remove(ref, expect)
            wish.now = len(self._payloads) == 6

    source, target = fill(Third(), *((doc(f"s{i}"), document(f"s{i}")) for i in range(9))), MemoryStore()
    outcome = stopped(source, target, ops.Options(delete_source=True, guard=Protection(0)), wish)
    assert (len(outcome.copied), len(outcome.deleted), len(contents(source))) == (9, 3, 6)
    assert not contents(source).keys() & set(outcome.deleted)


def test_what_waited_for_its_lock_meanwhile_is_not_removed() -> None:
    wish = Wish()

    class Queued(MemoryStore):
        def lock(self, ref: Ref, wait: float) -> Any:
            wish.now = True
            return super().lock(ref, wait)

    source, target = fill(Queued(), (doc("a"), document("a"))), MemoryStore()
    outcome = stopped(source, target, ops.Options(delete_source=True, guard=Protection(0)), wish)
    assert (outcome.deleted, outcome.skipped, len(outcome.copied)) == ([], [], 1) and doc("a") in contents(source)


@pytest.mark.parametrize(("method", "turn"), [("same", 1), ("records", 2)])
def test_stopped_between_two_tries_a_copy_is_neither_taken_back_nor_called_whole(
    method: str, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the wish comes while the first try is verified, or while the second looks at the target."""
    wish, turns, source, target = Wish(), count(1), Restless(log("a"), 1), MemoryStore()
    asked = getattr(target, method)

    def ask(*arguments: Any) -> Any:
        wish.now = next(turns) == turn
        return asked(*arguments)

    monkeypatch.setattr(target, method, ask)
    fill(source, (log("a"), entry(1)), (log("b"), entry(1)))
    outcome = stopped(source, target, ops.Options(), wish, [log("a"), log("b")])
    said = "changed while it was copied; the copy is of an earlier moment"
    assert outcome.failed == [Failure(log("a"), said)] and source.written == 1
    assert [c.ref for c in outcome.copied] == [log("b")]
    assert contents(target) == {log("a"): entry(1), log("b"): entry(1)}


def test_once_stopped_nothing_more_is_overwritten() -> None:
    wish = Wish()

    class Other(MemoryStore):
        def records(self, *rest: Any, **more: Any) -> Iterator[Any]:
            yield from super().records(*rest, **more)
            wish.now = True

    source, target = fill(MemoryStore(), (doc("a"), document("a"))), fill(Other(), (doc("a"), document("a", "old")))
    wish.now = False
    outcome = stopped(source, target, GUARDED, wish)
    assert outcome.told == set() and contents(target)[doc("a")] == document("a", "old")


# --- Redis ------------------------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, tuple[bytes, float]]:
    return {
        entry.name: (Path(entry.path).read_bytes(), entry.stat().st_mtime)
        for entry in os.scandir(folder)
        if entry.is_file() and entry.name.endswith((".json", ".jsonl"))
    }


def collect(folder: Path, names: Sequence[Path] = FOLDERS) -> Path:
    """All fixtures in one folder, each with an age of its own."""
    folder.mkdir()
    for number, path in enumerate(sorted(p for place in names for p in place.iterdir())):
        made = folder / path.name
        made.write_bytes(path.read_bytes())
        os.utime(made, (time.time() - 86_400 - 1000 * number,) * 2)
    return folder


def same_files(one: Path, other: Path, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    here, there = files(one), files(other)
    assert here.keys() - but == there.keys()
    for name, (payload, at) in there.items():
        assert here[name][0] == payload, name
        assert abs(here[name][1] - at) <= 1, name


def test_every_fixture_goes_to_redis_and_back(tmp_path: Path, redis: Server) -> None:
    start = collect(tmp_path / "start")
    with open_store(start) as source, open_store(redis.url()) as middle, open_store(f"{tmp_path}/end") as end:
        there = copy(source, middle)
        assert [(failure.ref.key, "empty log" in failure.error) for failure in there.failed] == [(EMPTY, True)]
        assert there.verified == len(there.copied) == len(files(start)) - 1
        back = copy(middle, end)
        assert back.verified == len(back.copied) == len(there.copied)
        assert copy(source, middle).copied == [] == copy(middle, end).copied
    same_files(start, tmp_path / "end", {f"{EMPTY}.jsonl"})


def test_two_thousand_sessions_go_to_redis_and_back(tmp_path: Path, redis: Server) -> None:
    folder = tmp_path / "start"
    folder.mkdir()
    for i in range(1000):
        (folder / f"d{i}.json").write_bytes(document(f"d{i}", "x" * (i % 700), THEN + i))
        (folder / f"acme:production:bot:{i}.jsonl").write_bytes(
            b"".join(entry(n, f"t{i}") for n in range(1, 2 + i % 9))
        )
        for name in (f"d{i}.json", f"acme:production:bot:{i}.jsonl"):
            os.utime(folder / name, (time.time() - 100_000 - 37 * i,) * 2)
    with open_store(folder) as source, open_store(redis.url()) as middle, open_store(f"{tmp_path}/end") as end:
        assert copy(source, middle).verified == 2000
        assert redis.client().dbsize() == 2000
        assert copy(middle, end).verified == 2000
    same_files(folder, tmp_path / "end")


def test_ttls_of_redis_are_kept_within_a_second(redis: Server) -> None:
    client = redis.client()
    client.set("seepient:session:a", document("a"), px=90_000)
    client.rpush("session-log:b", entry(1)[:-1])
    client.pexpire("session-log:b", 45_000)
    client.set("seepient:session:c", document("c"))
    with open_store(redis.url("/0")) as source, open_store(redis.url("/1")) as target:
        assert copy(source, target).verified == 3
    other = redis.client(db=1)
    try:
        for key, left in (("seepient:session:a", 90_000), ("session-log:b", 45_000)):
            assert left - 1000 < other.pttl(key) <= left and abs(other.pttl(key) - client.pttl(key)) < 1000
        assert other.pttl("seepient:session:c") == -1
    finally:
        other.flushdb()


@pytest.mark.parametrize("denied", [("-eval",), ("-restore", "-dump"), ("-eval", "-restore", "-dump")])
def test_without_the_right_to_set_ages_all_else_is_kept(redis: Server, denied: tuple[str, ...]) -> None:
    redis.client().execute_command("ACL", "SETUSER", "mover", "on", ">x", "~*", "+@all", *denied)
    source = fill(MemoryStore(), (log("b"), entry(1)))
    source.put(doc("a"), document("a"), expect=None, changed_at=THEN, ttl_ms=60_000)
    with open_store(redis.url(login="mover:x@")) as target:
        outcome = copy(source, target)
        assert (outcome.verified, outcome.failed) == (2, [])
        assert contents(target) == contents(source)
    assert 58_000 < redis.client().pttl("seepient:session:a") <= 60_000


def test_what_is_no_session_at_the_target_is_never_touched(redis: Server) -> None:
    redis.client().hset("seepient:session:a", "data", "x")
    redis.client().set("session-log:b", "text")
    source = fill(MemoryStore(), (doc("a"), document("a")), (log("b"), entry(1)), (doc("c"), document("c")))
    with open_store(redis.url()) as target:
        for options in (ops.Options(), GUARDED):
            outcome = copy(source, target, options)
            assert set(reasons(outcome.conflicts)) == {"a", "b"} and "of type hash" in reasons(outcome.conflicts)["a"]
    assert redis.client().hgetall("seepient:session:a") == {b"data": b"x"}
    assert redis.client().get("session-log:b") == b"text"
    assert redis.client().exists("seepient:session:c") == 1


def test_a_server_without_memory_and_then_with_it(redis: Server) -> None:
    source = fill(MemoryStore(), *((doc(f"s{i}"), document(f"s{i}", "x" * 400_000)) for i in range(8)))
    redis.client().config_set("maxmemory", redis.client().info("memory")["used_memory"] + 1_000_000)
    with open_store(redis.url()) as target:
        outcome = copy(source, target, ops.Options(delete_source=True, guard=Protection(0)))
        assert outcome.failed and all("OOM" in failure.error for failure in outcome.failed)
        assert {ref.key for ref in outcome.deleted} == {c.ref.key for c in outcome.copied}
        assert contents(source).keys() | contents(target).keys() == {doc(f"s{i}") for i in range(8)}
        redis.client().config_set("maxmemory", 0)
        copy(source, target)
        assert len(contents(target)) == 8


def test_a_value_that_the_server_refuses_stops_no_other(redis: Server) -> None:
    redis.client().config_set("proto-max-bulk-len", 1 << 20)
    source = fill(MemoryStore(), (doc("s1"), document("s1", "x" * 3_000_000)), (doc("s2"), document("s2")))
    with open_store(redis.url()) as target:
        outcome = copy(source, target)
        assert list(contents(target)) == [doc("s2")]
    assert [failure.ref for failure in outcome.failed] == [doc("s1")] and "refused by the server" in outcome.failed[
        0
    ].error
