"""Seepient's server rules, on a clock that the tests move."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from sessionctl.errors import (
    InvalidKey,
    SessionInUse,
    SessionLocked,
    SessionNotFound,
    StoreError,
    TooManySessions,
    UsageError,
)
from sessionctl.limits import SessionManager, is_expired, owner_hash, without_draft
from sessionctl.model import Ref
from sessionctl.persistence import UNCHECKED, PersistenceBackend, StoreBackend, Unchecked
from sessionctl.stores.base import ANY
from sessionctl.stores.folder import FolderStore
from sessionctl.stores.memory import MemoryStore

from .workers import create_sessions, run_all

NOW = 1_796_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE
ANN, BOB = "sk-ann", "sk-bob"


class Plain:
    """A third party's backend, with no lock of its own."""

    __persistence_backend__: Literal[True] = True

    def __init__(self) -> None:
        self.inner = StoreBackend(MemoryStore())

    def save(self, session_id: str, data: Mapping[str, Any]) -> None:
        self.inner.save(session_id, data)

    def load(self, session_id: str, *, principal_id: str | Unchecked | None = UNCHECKED) -> dict[str, Any] | None:
        return self.inner.load(session_id, principal_id=principal_id)

    def delete(self, session_id: str) -> None:
        self.inner.delete(session_id)

    def list(self) -> list[str]:
        return self.inner.list()


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["folder", "memory", "sqlite", "plain"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[SessionManager]:
    backend: PersistenceBackend
    if request.param == "folder":
        backend = StoreBackend(FolderStore(tmp_path / "s", ("document",)), clock=clock)
    elif request.param == "memory":
        backend = StoreBackend(MemoryStore(), clock=clock)
    elif request.param == "plain":
        backend = plain = Plain()
        plain.inner.clock = clock
    else:
        sql = pytest.importorskip("sessionctl.stores.sql")
        backend = StoreBackend(sql.open_sql(f"sqlite:///{tmp_path}/s.db"), clock=clock)
    yield SessionManager(backend, clock=clock)


def say(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def texts(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages]


# --- one session ------------------------------------------------------------------------------------------------------


def test_a_session_is_made_under_its_owner(manager: SessionManager) -> None:
    made = manager.create(ANN, "s1", provider="openai", model="m", metadata={"title": "T"})
    owner = hashlib.sha256(ANN.encode()).hexdigest()
    assert manager.backend.list() == [f"{owner}:s1"]
    assert made == {
        "id": "s1",
        "messages": [],
        "createdAt": NOW,
        "updatedAt": NOW,
        "provider": "openai",
        "model": "m",
        "metadata": {"title": "T", "apiKeyHash": owner, "lastActivityAt": NOW},
    }
    assert manager.get(ANN, "s1") == made
    fresh = manager.create(ANN)
    assert len(fresh["id"]) == 36 and {s["id"] for s in manager.list(ANN)} == {"s1", fresh["id"]}


def test_messages_count_as_activity(manager: SessionManager, clock: Clock) -> None:
    manager.create(ANN, "s1", metadata={"title": "T"})
    for minute in range(1, 5):
        clock.now = NOW + minute * 25 * MINUTE
        manager.add_message(ANN, "s1", say(str(minute)))
    found = manager.get(ANN, "s1")
    assert found is not None and texts(found["messages"]) == ["1", "2", "3", "4"]
    assert found["metadata"]["lastActivityAt"] == clock.now and found["metadata"]["title"] == "T"
    assert found["createdAt"] == NOW


def test_two_owners_may_use_one_id(manager: SessionManager) -> None:
    manager.create(ANN, "s1")
    manager.create(BOB, "s1")
    manager.add_message(ANN, "s1", say("ann's"))
    bobs = manager.get(BOB, "s1")
    assert bobs is not None and bobs["messages"] == []
    assert manager.delete(BOB, "s1")
    anns = manager.get(ANN, "s1")
    assert anns is not None and texts(anns["messages"]) == ["ann's"]


def test_an_id_is_not_used_twice(manager: SessionManager, clock: Clock) -> None:
    manager.create(ANN, "s1")
    manager.add_message(ANN, "s1", say("old"))
    with pytest.raises(UsageError):
        manager.create(ANN, "s1")
    clock.now += 25 * HOUR
    made = manager.create(ANN, "s1")  # the old one is expired: nothing of it comes back
    assert made["messages"] == [] and made["createdAt"] == clock.now


@pytest.mark.parametrize("bad", ["", "a:b", "../x", "x" * 129])
def test_ids_of_clients_are_validated(manager: SessionManager, bad: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: manager.create(ANN, bad),
        lambda: manager.get(ANN, bad),
        lambda: manager.delete(ANN, bad),
        lambda: manager.add_message(ANN, bad, say("x")),
    ]
    for call in calls:
        with pytest.raises(InvalidKey):
            call()


def test_an_object_without_the_brand_is_refused() -> None:
    with pytest.raises(UsageError):
        SessionManager(object())  # type: ignore[arg-type]


# --- a foreign probe --------------------------------------------------------------------------------------------------


def test_a_foreign_probe_learns_nothing_and_changes_nothing(manager: SessionManager, clock: Clock) -> None:
    manager.create(ANN, "s1")
    clock.now += 31 * MINUTE  # expired: the original's probe would delete it
    before = manager.backend.load(f"{owner_hash(ANN)}:s1")
    said = set()
    for session_id in ("s1", "absent"):
        assert manager.get(BOB, session_id) is None
        assert manager.delete(BOB, session_id) is False
        with pytest.raises(SessionNotFound) as adding:
            manager.add_message(BOB, session_id, say("x"))
        with pytest.raises(SessionNotFound) as turning, manager.turn(BOB, session_id):
            pass
        said |= {str(caught.value).replace(session_id, "ID") for caught in (adding, turning)}
    assert len(said) == 1
    assert manager.list(BOB) == []
    assert manager.backend.load(f"{owner_hash(ANN)}:s1") == before


def test_a_session_whose_metadata_names_another_owner_is_absent(manager: SessionManager) -> None:
    manager.create(ANN, "s1")
    key = f"{owner_hash(ANN)}:s1"
    manager.backend.save(key, {"metadata": {"apiKeyHash": owner_hash(BOB), "lastActivityAt": NOW}})
    assert manager.get(ANN, "s1") is None and not manager.delete(ANN, "s1") and manager.get(BOB, "s1") is None


# --- expiry -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "after", "expired"),
    [
        ({"createdAt": NOW, "updatedAt": NOW}, 30 * MINUTE, False),
        ({"createdAt": NOW, "updatedAt": NOW}, 30 * MINUTE + 1, True),
        ({"createdAt": NOW, "updatedAt": NOW + 24 * HOUR}, 24 * HOUR, False),
        ({"createdAt": NOW, "updatedAt": NOW + 24 * HOUR}, 24 * HOUR + 1, True),
        ({"createdAt": NOW, "updatedAt": NOW, "metadata": {"lastActivityAt": NOW + HOUR}}, HOUR, False),
        ({"createdAt": NOW, "updatedAt": NOW + HOUR, "metadata": {"lastActivityAt": NOW}}, HOUR, True),
        ({"createdAt": NOW, "updatedAt": NOW + HOUR, "metadata": {"lastActivityAt": "x"}}, HOUR, False),
        ({"createdAt": "x", "updatedAt": True, "metadata": []}, 1000 * HOUR, False),
        ({}, 1000 * HOUR, False),
    ],
)
def test_either_limit_expires_a_session(session: dict[str, Any], after: int, expired: bool) -> None:
    assert is_expired(session, NOW + after) is expired


def test_what_is_expired_is_absent_to_its_owner_too_until_it_is_swept(manager: SessionManager, clock: Clock) -> None:
    manager.create(ANN, "s1")
    clock.now += 31 * MINUTE
    assert manager.get(ANN, "s1") is None and manager.list(ANN) == []
    with pytest.raises(SessionNotFound):
        manager.add_message(ANN, "s1", say("x"))
    assert manager.sweep() == [f"{owner_hash(ANN)}:s1"]
    assert manager.backend.list() == [] and manager.sweep() == []


def test_a_sweep_leaves_what_is_not_a_servers(manager: SessionManager, clock: Clock) -> None:
    manager.backend.save("sdk", {"messages": [], "principalId": "sdk-user"})
    manager.backend.save("0123456789abcdef:old", {"messages": []})
    manager.create(ANN, "s1")
    clock.now += 25 * HOUR
    manager.create(ANN, "s2")
    assert sorted(manager.sweep()) == ["0123456789abcdef:old", f"{owner_hash(ANN)}:s1"]
    assert manager.backend.list() == sorted([f"{owner_hash(ANN)}:s2", "sdk"])


def test_a_damaged_session_stops_nothing(clock: Clock) -> None:
    store = MemoryStore()
    manager = SessionManager(StoreBackend(store, clock=clock), clock=clock)
    key = f"{owner_hash(ANN)}:bad"
    store.put(Ref(key, "document"), b"{", expect=ANY)
    manager.create(ANN, "s1")
    assert [s["id"] for s in manager.list(ANN)] == ["s1"]
    clock.now += 25 * HOUR
    assert manager.sweep() == [f"{owner_hash(ANN)}:s1"] and manager.backend.list() == [key]


# --- the cap ----------------------------------------------------------------------------------------------------------


def test_an_owner_has_at_most_so_many_live_sessions(manager: SessionManager, clock: Clock) -> None:
    for n in range(5):
        manager.create(ANN, f"s{n}")
    with pytest.raises(TooManySessions):
        manager.create(ANN)
    manager.create(BOB)
    manager.delete(ANN, "s0")
    manager.create(ANN, "s5")
    clock.now += 31 * MINUTE
    manager.create(ANN, "s6")  # the expired ones do not count
    assert [s["id"] for s in manager.list(ANN)] == ["s6"]


def test_the_cap_holds_when_many_are_made_at_once(manager: SessionManager) -> None:
    def create(_: int) -> bool:
        try:
            manager.create(ANN)
        except TooManySessions:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        made = list(pool.map(create, range(24)))
    assert made.count(True) == 5 and len(manager.backend.list()) == 5


def test_the_cap_holds_across_processes(tmp_path: Path) -> None:
    run_all(create_sessions, [(str(tmp_path), ANN, 4)] * 3)
    assert len(list(tmp_path.glob("*.json"))) == 5


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_protects_from_expiry_and_deletion(manager: SessionManager, clock: Clock) -> None:
    manager.create(ANN, "s1")
    with manager.turn(ANN, "s1") as turn:
        clock.now += 25 * HOUR
        assert manager.get(ANN, "s1") is not None and len(manager.list(ANN)) == 1
        assert manager.sweep() == []
        with pytest.raises(SessionInUse):
            manager.delete(ANN, "s1")
        turn.add_message(say("still here", "assistant"))
        manager.add_message(ANN, "s1", say("beside it", "assistant"))
        assert texts(turn.messages) == ["still here", "beside it"]
    found = manager.backend.load(f"{owner_hash(ANN)}:s1")
    assert found is not None and texts(found["messages"]) == ["still here", "beside it"]
    assert manager.get(ANN, "s1") is None  # 24 h have passed, and the turn is over
    assert len(manager.sweep()) == 1
    with pytest.raises(UsageError, match="over"):
        turn.add_message(say("late"))


def test_a_turn_of_another_manager_protects_as_well(tmp_path: Path, clock: Clock) -> None:
    one, two = (
        SessionManager(StoreBackend(FolderStore(tmp_path, ("document",)), clock=clock), clock=clock) for _ in range(2)
    )
    one.create(ANN, "s1")
    with one.turn(ANN, "s1"):
        clock.now += HOUR
        assert two.sweep() == [] and two.get(ANN, "s1") is not None
        with pytest.raises(SessionInUse):
            two.delete(ANN, "s1")
    assert len(two.sweep()) == 1


def test_turns_on_one_session_follow_one_another(manager: SessionManager) -> None:
    manager.create(ANN, "s1")
    with manager.turn(ANN, "s1"), pytest.raises(SessionLocked), manager.turn(ANN, "s1", wait=0):
        pass

    def take(number: int) -> None:
        with manager.turn(ANN, "s1") as turn:
            turn.add_message(say(f"{number}?"))
            turn.add_message(say(f"{number}!", "assistant"))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take, range(12)))
    found = manager.get(ANN, "s1")
    assert found is not None
    said = texts(found["messages"])
    assert [text.rstrip("!") for text in said[1::2]] == [text.rstrip("?") for text in said[::2]]
    assert sorted(said[::2]) == sorted(f"{n}?" for n in range(12))


def test_messages_added_at_once_are_all_there(manager: SessionManager) -> None:
    manager.create(ANN, "s1")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: manager.add_message(ANN, "s1", say(str(n), "assistant")), range(18)))
    found = manager.get(ANN, "s1")
    assert found is not None and sorted(texts(found["messages"]), key=int) == [str(n) for n in range(18)]


def test_a_draft_is_resolved_by_the_next_turn(manager: SessionManager) -> None:
    manager.create(ANN, "s1")
    with manager.turn(ANN, "s1") as turn:
        turn.add_message(say("answered"))
        turn.add_message(say("yes", "assistant"))
    with pytest.raises(ZeroDivisionError), manager.turn(ANN, "s1") as turn:
        turn.add_message(say("unanswered"))
        _ = 1 / 0
    with manager.turn(ANN, "s1") as turn:
        assert texts(turn.messages) == ["answered", "yes"]
    found = manager.get(ANN, "s1")
    assert found is not None and texts(found["messages"]) == [
        "answered",
        "yes",
        "unanswered",
    ]  # a turn that adds nothing
    with manager.turn(ANN, "s1") as turn:
        turn.add_message(say("again"))
    found = manager.get(ANN, "s1")
    assert found is not None and texts(found["messages"]) == ["answered", "yes", "again"]


def test_what_a_draft_is() -> None:
    assert without_draft([say("a"), say("b", "assistant"), say("c"), say("d")]) == [say("a"), say("b", "assistant")]
    assert without_draft([say("a")]) == [] and without_draft([]) == []
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}
    assert without_draft([result]) == [result]
    assert without_draft([say("x", "tool")]) == [say("x", "tool")]


# --- sweeping ---------------------------------------------------------------------------------------------------------


def test_the_sweeper_runs_and_stops(clock: Clock) -> None:
    store = MemoryStore()
    manager = SessionManager(StoreBackend(store, clock=clock), clock=clock, sweep=0.01)
    before = threading.active_count()
    with manager:
        manager.start()  # once more changes nothing
        manager.create(ANN, "s1")
        clock.now += HOUR
        end = time.monotonic() + 5
        while manager.backend.list():
            assert time.monotonic() < end
            time.sleep(0.005)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    manager.stop()
    manager.create(ANN, "s2")
    clock.now += HOUR
    time.sleep(0.05)
    assert len(manager.backend.list()) == 1 and len(manager.sweep()) == 1


def test_a_sweep_that_fails_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Down(Plain):
        asked = 0

        def list(self) -> list[str]:
            self.asked += 1
            raise StoreError("cannot be reached")

    backend = Down()
    with SessionManager(backend, sweep=0.01):
        end = time.monotonic() + 5
        while backend.asked < 3:
            assert time.monotonic() < end
            time.sleep(0.005)
    assert "cannot be reached" in caplog.text
