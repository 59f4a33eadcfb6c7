"""LoopEngine's contract: exclusive turns, durable appends in order, history and resume, the buffered writer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionctl.conversations import (
    Conversations,
    Turn,
    create_session_store,
    get_history,
    session_id_for,
    with_session,
)
from sessionctl.errors import (
    InvalidKey,
    LockLost,
    SessionChanged,
    SessionDamaged,
    SessionLocked,
    SessionNotFound,
    StoreError,
    StoreNotFound,
    UnsupportedKind,
    UsageError,
)
from sessionctl.keys import SessionKey
from sessionctl.locks import IN_PROCESS
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Store
from sessionctl.stores.folder import FolderStore
from sessionctl.stores.memory import MemoryStore

from . import postgres
from .servers import Server, server
from .workers import run_all, take_turns

KEY = "acme:production:support:42"
REF = Ref(KEY, "log")
FIXTURES = Path(__file__).parent / "data" / "fixtures"


def say(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "x", "input": {}}


@pytest.fixture(scope="module")
def redis_server() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(params=["folder", "memory", "sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        url = postgres.server().new_database()
    elif request.param == "redis":
        url = request.getfixturevalue("redis_server").url(f"/0?logs=t{uuid.uuid4().hex}:")
    else:
        url = {"folder": f"logs:{tmp_path}/logs", "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db"}[
            request.param
        ]
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def talks(store: Store) -> Conversations:
    return Conversations(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "logs"
    place.mkdir()
    return place


def on_disk(folder: Path, payload: bytes) -> Conversations:
    (folder / f"{KEY}.jsonl").write_bytes(payload)
    return Conversations(FolderStore(folder, ("log",)))


def entries(store: Store, key: str = KEY) -> list[dict[str, Any]]:
    payload = store.get(Ref(key, "log")).payload
    assert payload is not None and payload.endswith(b"\n")
    return [json.loads(line) for line in payload.splitlines()]


def is_linear(found: list[dict[str, Any]]) -> bool:
    ids = [entry["id"] for entry in found]
    parents = [entry["parentId"] for entry in found]
    return len(set(ids)) == len(ids) and parents == [None, *ids[:-1]]


INTERRUPTED = (
    b'{"id":"e1","parentId":null,"message":{"role":"user","content":"go"}}\n'
    b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":'
    b'[{"type":"tool_use","id":"t1","name":"x","input":{}}]}}\n'
)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_turn_appends_what_it_added_in_order_and_chained(talks: Conversations, store: Store) -> None:
    with talks.session(KEY) as turn:
        assert turn.history == [] and turn.leaf_id is None and not turn.resumed_after_interruption
        turn.append(say("one"), say("two", "assistant"))
        turn.append(say("three"))
        assert [m["content"] for m in turn.history] == ["one", "two", "three"]
        assert talks.history(KEY) == []  # not before the end
    with talks.session(KEY) as turn:
        assert turn.history == [say("one"), say("two", "assistant"), say("three")]
        turn.append(say("four"))
    found = entries(store)
    assert [e["message"]["content"] for e in found] == ["one", "two", "three", "four"]
    assert is_linear(found) and all(uuid.UUID(e["id"]).version == 4 for e in found)
    assert list(found[0]) == ["id", "parentId", "message"]
    assert talks.history(KEY) == [e["message"] for e in found]


def test_nothing_is_appended_when_the_block_raises(talks: Conversations, store: Store) -> None:
    with talks.session(KEY) as turn:
        turn.append(say("kept"))
    before = store.get(REF)
    with pytest.raises(ZeroDivisionError), talks.session(KEY) as turn:
        turn.append(say("lost"))
        _ = 1 / 0
    assert store.get(REF) == before
    with talks.session(KEY, wait=0) as turn:  # and the lock is free
        assert turn.history == [say("kept")]


def test_a_turn_that_adds_nothing_writes_nothing(talks: Conversations, store: Store) -> None:
    with talks.session(KEY):
        pass
    assert talks.history(KEY) == [] and talks.resume(KEY) == ([], None, False)
    with pytest.raises((SessionNotFound, StoreNotFound)):
        store.get(REF)


def test_the_lock_is_held_during_the_turn_and_history_needs_none(talks: Conversations) -> None:
    with talks.session(KEY) as turn:
        turn.append(say("a"))
    with talks.session(KEY):
        assert talks.history(KEY) == [say("a")]
        assert talks.resume(KEY).messages == [say("a")]
        with pytest.raises(SessionLocked), talks.session(KEY, wait=0):
            pass
        with talks.session("another", wait=0):
            pass


def test_keys_that_share_a_file_share_its_lock(folder: Path) -> None:
    talks = Conversations(FolderStore(folder, ("log",)))
    with talks.session("a/b") as turn:
        turn.append(say("x"))
        with pytest.raises(SessionLocked), talks.session("a_b", wait=0):
            pass
    assert talks.history("a_b") == [say("x")]


def test_a_turn_waits_for_the_one_before(talks: Conversations) -> None:
    order: list[str] = []
    inside = threading.Event()

    def first() -> None:
        with talks.session(KEY) as turn:
            inside.set()
            time.sleep(0.1)
            order.append("first")
            turn.append(say("first"))

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait()
    with talks.session(KEY) as turn:
        order.append("second")
        assert turn.history == [say("first")]
    thread.join()
    assert order == ["first", "second"]


def test_a_message_is_stored_as_it_was_when_it_was_appended(talks: Conversations) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    with talks.session(KEY) as turn:
        turn.append(message)
        message["content"][0]["cache_control"] = {"type": "ephemeral"}  # type: ignore[index]
        turn.history.clear()
    assert talks.history(KEY) == [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


NO_MESSAGES: list[Any] = [None, "hello", [], {}, {"content": "x"}, {"role": ""}, {"role": 1}]
NOT_JSON = [{"role": "user", "content": {1}}, {"role": "user", "content": float("nan")}, {"role": "user", 1: 2}]


@pytest.mark.parametrize("bad", [*NO_MESSAGES, *NOT_JSON])
def test_what_is_no_message_is_refused_at_once(bad: Any) -> None:
    store = MemoryStore()
    with pytest.raises(UsageError), Conversations(store).session(KEY) as turn:
        turn.append(bad)
    assert store.stamp(REF) is None


def test_a_turn_that_is_over_takes_nothing(talks: Conversations) -> None:
    with talks.session(KEY) as turn:
        pass
    with pytest.raises(UsageError, match="over"):
        turn.append(say("late"))


def test_somebody_else_writing_during_the_turn_is_loud(talks: Conversations, store: Store) -> None:
    line = b'{"id":"x","parentId":null,"message":{"role":"user","content":"other"}}\n'
    with pytest.raises(SessionChanged), talks.session(KEY) as turn:
        turn.append(say("mine"))
        store.append(REF, line, expect=ANY)
    assert store.get(REF).payload == line


def test_a_lost_lock_is_loud_and_nothing_is_appended_under_it(folder: Path) -> None:
    talks = Conversations(FolderStore(folder, ("log",)))
    with pytest.raises(LockLost), talks.session(KEY) as turn:
        turn.append(say("mine"))
        for lock in (folder / ".sessionctl" / "locks").glob("*.lock"):
            lock.unlink()
    assert talks.history(KEY) == []


def test_a_lost_lock_in_redis_is_loud_too(redis_server: Server) -> None:
    with open_store(redis_server.url("/1")) as store:
        talks = Conversations(store)
        with pytest.raises(LockLost), talks.session(KEY) as turn:
            turn.append(say("mine"))
            redis_server.client(db=1).set(f"session-lock:{KEY}", "somebody else's")
        assert talks.history(KEY) == []
        assert redis_server.client(db=1).get(f"session-lock:{KEY}") == b"somebody else's"


def test_a_turn_may_last_longer_than_the_life_of_its_lock(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionctl.stores.redis.lease.LIFE", 400)
    monkeypatch.setattr("sessionctl.stores.redis.lease.RENEW", 0.1)
    with open_store(redis_server.url("/3")) as store:
        talks = Conversations(store)
        with talks.session(KEY) as turn:
            turn.append(say("slow"))
            time.sleep(1)
            with open_store(redis_server.url("/3")) as other, pytest.raises(SessionLocked):
                other.lock(REF, 0)
        assert talks.history(KEY) == [say("slow")]


def test_a_session_key_may_name_the_session(talks: Conversations) -> None:
    with talks.session(SessionKey("acme", "production", "support", "42")) as turn:
        turn.append(say("hi"))
    assert talks.history(KEY) == [say("hi")]


def test_a_key_that_no_file_can_have_is_refused(folder: Path) -> None:
    talks = Conversations(FolderStore(folder, ("log",)))
    for key in ("", "a\0b", "x" * 300):
        with pytest.raises(InvalidKey), talks.session(key):
            pass
        with pytest.raises(InvalidKey):
            talks.append(key, say("x"))


def test_a_store_of_documents_holds_no_conversations(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedKind):
        Conversations(FolderStore(tmp_path, ("document",)))


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_the_bytes_of_a_new_log_are_those_of_the_original(folder: Path) -> None:
    talks = Conversations(FolderStore(folder, ("log",)))
    with talks.session(KEY) as turn:
        turn.append({"role": "user", "content": "é 😀 \u2028 \ud800", "n": [1.0, 1e21, 1.5e-7]})
    raw = (folder / f"{KEY}.jsonl").read_bytes()
    entry = json.loads(raw)["id"]
    message = '{"role":"user","content":"é 😀 \u2028 \\ud800","n":[1,1e+21,1.5e-7]}'
    assert raw == f'{{"id":"{entry}","parentId":null,"message":{message}}}\n'.encode()


def test_a_log_of_the_python_writer_keeps_its_spelling(folder: Path) -> None:
    before = b'{"id": "e1", "parent_id": null, "message": {"role": "user", "content": "\\u00e9"}}\n'
    talks = on_disk(folder, before)
    with talks.session(KEY) as turn:
        turn.append(say("ü"), say("ok", "assistant"))
    raw = (folder / f"{KEY}.jsonl").read_bytes()
    assert raw.startswith(before)
    first, second = (json.loads(line) for line in raw.splitlines()[1:])
    assert raw.splitlines()[1] == json.dumps(first).encode() and b"\\u00fc" in raw
    assert list(first) == ["id", "parent_id", "message"]
    assert first["parent_id"] == "e1" and second["parent_id"] == first["id"]


def test_a_missing_final_newline_is_added_and_nothing_is_glued(talks: Conversations, store: Store) -> None:
    before = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"a"}}'
    store.put(REF, before, expect=None)
    with talks.session(KEY) as turn:
        turn.append(say("b"), say("c"))
    raw = store.get(REF).payload
    assert raw is not None
    assert raw.startswith(before + b"\n{") and raw.endswith(b"}\n") and b"\n\n" not in raw
    assert talks.history(KEY) == [say("a"), say("b"), say("c")] and is_linear(entries(store))


def test_the_first_new_entry_follows_the_leaf(folder: Path) -> None:
    """The leaf is the last entry in file order, also where an earlier branch was given up."""
    talks = on_disk(
        folder,
        b'{"id":"a","parentId":null,"message":{"role":"user","content":"1"}}\n'
        b'{"id":"b","parentId":"a","message":{"role":"assistant","content":"2"}}\n'
        b'{"id":"c","parentId":"a","message":{"role":"assistant","content":"3"}}\n',
    )
    with talks.session(KEY) as turn:
        assert turn.leaf_id == "c"
        turn.append(say("4"))
    assert json.loads((folder / f"{KEY}.jsonl").read_bytes().splitlines()[-1])["parentId"] == "c"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b'{"id":"e2","par', b"not json\n", b'{"id":"e2"}{"id"\n', b"\n", b"\0\0\n"])
def test_nothing_is_appended_to_a_damaged_log(folder: Path, tail: bytes) -> None:
    before = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"a"}}\n' + tail
    talks = on_disk(folder, before)
    for read in (talks.resume, lambda key: talks.session(key).__enter__()):
        with pytest.raises(SessionDamaged, match=r"sessionctl repair --fix"):
            read(KEY)
    assert (folder / f"{KEY}.jsonl").read_bytes() == before
    with pytest.raises(SessionDamaged), talks.session(KEY, wait=0):  # the lock was given back
        pass


def test_history_leaves_out_a_line_that_is_being_written(folder: Path) -> None:
    talks = on_disk(folder, INTERRUPTED + b'{"id":"e3","par')
    assert len(talks.history(KEY)) == 2
    with pytest.raises(SessionDamaged):
        on_disk(folder, b"nonsense\n" + INTERRUPTED).history(KEY)


# --- resume -----------------------------------------------------------------------------------------------------------


def test_a_clean_session_resumes_as_it_is(talks: Conversations, store: Store) -> None:
    assert talks.resume(KEY) == ([], None, False)
    with talks.session(KEY) as turn:
        turn.append(say("a"))
    assert talks.resume(KEY) == ([say("a")], entries(store)[-1]["id"], False)


def test_an_interrupted_session_gets_a_continuation_that_is_never_stored_by_reading(folder: Path) -> None:
    talks = on_disk(folder, INTERRUPTED)
    messages, leaf, interrupted = talks.resume(KEY)
    assert interrupted and leaf == "e2" and len(messages) == 3
    result, note = messages[-1]["content"]
    assert messages[-1]["role"] == "user" and "did not run" in note["text"]
    assert result["type"] == "tool_result" and result["tool_use_id"] == "t1" and result["is_error"] is True
    with talks.session(KEY) as turn:
        assert turn.resumed_after_interruption and turn.history == messages and turn.leaf_id == "e2"
    assert len(talks.history(KEY)) == 2
    assert (folder / f"{KEY}.jsonl").read_bytes() == INTERRUPTED


def test_exactly_what_a_turn_added_follows_an_interruption(folder: Path) -> None:
    talks = on_disk(folder, INTERRUPTED)
    with talks.session(KEY) as turn:
        turn.append(say("go on"))
    raw = (folder / f"{KEY}.jsonl").read_bytes()
    assert raw.startswith(INTERRUPTED) and raw.count(b"\n") == 3
    assert json.loads(raw.splitlines()[-1])["parentId"] == "e2"


def test_a_continuation_that_is_appended_makes_the_session_whole(folder: Path) -> None:
    talks = on_disk(folder, INTERRUPTED)
    with talks.session(KEY) as turn:
        assert turn.continuation is not None
        turn.append(turn.continuation, say("I try again", "assistant"))
        assert len(turn.history) == 4
    resumed = talks.resume(KEY)
    assert len(resumed.messages) == 4 and not resumed.resumed_after_interruption


def test_only_the_calls_without_a_result_are_answered(folder: Path) -> None:
    use = [call("t1"), call("t2")]
    done = [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]
    lines = [
        {"id": "a", "parentId": None, "message": {"role": "assistant", "content": use}},
        {"id": "b", "parentId": "a", "message": {"role": "user", "content": done}},
    ]
    talks = on_disk(folder, "".join(json.dumps(line) + "\n" for line in lines).encode())
    resumed = talks.resume(KEY)
    assert resumed.resumed_after_interruption
    assert [b.get("tool_use_id") for b in resumed.messages[-1]["content"]] == ["t2", None]


def test_a_call_left_open_further_up_is_not_answered_at_the_end(folder: Path) -> None:
    lines = [
        {"id": "a", "parentId": None, "message": {"role": "assistant", "content": [call("old")]}},
        {"id": "b", "parentId": "a", "message": say("never mind")},
        {"id": "c", "parentId": "b", "message": {"role": "assistant", "content": [call("new")]}},
    ]
    talks = on_disk(folder, "".join(json.dumps(line) + "\n" for line in lines).encode())
    result, _ = talks.resume(KEY).messages[-1]["content"]
    assert result["tool_use_id"] == "new"


def test_a_turn_that_awaits_approval_was_not_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / ".sessions"
    folder.mkdir()
    talks = on_disk(folder, INTERRUPTED)
    checkpoints = tmp_path / ".checkpoints" / "checkpoints"
    checkpoints.mkdir(parents=True)
    checkpoint = {"id": "c", "closed": False, "sessionId": KEY, "outstanding": {"p": {"toolUseId": "t1"}}}
    (checkpoints / "c.json").write_text(json.dumps(checkpoint))
    resumed = talks.resume(KEY)
    assert not resumed.resumed_after_interruption and len(resumed.messages) == 2


@pytest.mark.parametrize("name", ["loopengine", "loopengine-damaged"])
def test_every_stored_log_is_read_as_expected_or_refused(name: str) -> None:
    expected = json.loads((FIXTURES / "expected.json").read_text())[f"{name}/.sessions"]
    talks = Conversations(FolderStore(FIXTURES / name / ".sessions", ("log",)))
    assert expected
    for key, said in expected.items():
        if said["status"] == "damaged":
            with pytest.raises(SessionDamaged):
                talks.resume(key)
        else:
            resumed = talks.resume(key)
            assert resumed.resumed_after_interruption == (said["status"] == "interrupted"), key
            assert len(resumed.messages) == said["messages"] + resumed.resumed_after_interruption, key


# --- with_session -----------------------------------------------------------------------------------------------------


def test_with_session_runs_a_function_as_a_turn(talks: Conversations) -> None:
    def run(turn: Turn) -> int:
        turn.append(say("a"))
        return len(turn.history)

    async def arun(turn: Turn) -> int:
        await asyncio.sleep(0)
        turn.append(say("b"))
        return len(turn.history)

    class Agent:
        async def __call__(self, turn: Turn) -> int:
            return await arun(turn)

    assert talks.with_session(KEY, run) == 1
    assert asyncio.run(talks.with_session(KEY, arun)) == 2  # type: ignore[arg-type]
    assert asyncio.run(talks.with_session(KEY, Agent())) == 3  # type: ignore[arg-type]
    assert talks.get_history(KEY) == [say("a"), say("b"), say("b")]
    with pytest.raises(UsageError, match="async"):
        talks.with_session(KEY, lambda turn: arun(turn))
    assert len(talks.history(KEY)) == 3


def test_the_names_of_loopengine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert get_history("k") == []
    with_session("k", lambda turn: turn.append(say("a")))
    assert get_history("k") == [say("a")]
    assert [p.name for p in (tmp_path / ".sessions").glob("*.jsonl")] == ["k.jsonl"]
    with create_session_store() as talks:
        assert talks.history("k") == [say("a")]


def test_redis_is_picked_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://localhost:1/0")
    talks = create_session_store()
    assert talks.store.url.startswith("redis://")
    with pytest.raises(StoreError):
        talks.history("k")


# --- async ------------------------------------------------------------------------------------------------------------


def test_async_turns_append_and_do_not_block_the_loop(talks: Conversations) -> None:
    async def main() -> int:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        heart = asyncio.create_task(beat())
        with talks.session(KEY) as held:
            held.append(say("sync"))
            waiting = asyncio.create_task(turn("async"))
            await asyncio.sleep(0.2)
            assert not waiting.done()
        await waiting
        heart.cancel()
        return beats

    async def turn(text: str) -> None:
        async with talks.asession(KEY) as opened:
            opened.append(say(text))

    assert asyncio.run(main()) > 15
    assert talks.history(KEY) == [say("sync"), say("async")]


def test_many_coroutines_on_one_key_take_turns_in_order(talks: Conversations, store: Store) -> None:
    """More of them than the loop has threads: waiting must not use these up."""

    async def main() -> None:
        async def turn(number: int) -> None:
            async with talks.asession(KEY) as opened:
                await asyncio.sleep(0)
                opened.append(say(str(number)))

        await asyncio.gather(*(turn(n) for n in range(60)))

    started = time.monotonic()
    asyncio.run(main())
    assert [m["content"] for m in talks.history(KEY)] == [str(n) for n in range(60)]
    assert is_linear(entries(store))
    assert time.monotonic() - started < 10
    assert len(IN_PROCESS) == 0 and not talks._queues


def test_a_cancelled_wait_leaks_no_lock(talks: Conversations) -> None:
    async def main() -> None:
        async def turn() -> None:
            async with talks.asession(KEY) as opened:
                opened.append(say("never"))

        with talks.session(KEY):
            waiting = [asyncio.create_task(turn()) for _ in range(5)]
            for pause in (0.0, 0.01, 0.06, 0.02, 0.03):
                await asyncio.sleep(pause)
                waiting.pop().cancel()
            await asyncio.sleep(0.1)
        for _ in range(20):  # cancelled at any step of taking the lock
            task = asyncio.create_task(turn_and_wait())
            await asyncio.sleep(0.0005 * _)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(2), talks.asession(KEY, wait=0):
            pass

    async def turn_and_wait() -> None:
        async with talks.asession(KEY) as opened:
            opened.append(say("never"))
            await asyncio.sleep(60)

    asyncio.run(main())
    assert talks.history(KEY) == [] and len(IN_PROCESS) == 0


def test_an_async_turn_gives_up_waiting(talks: Conversations) -> None:
    async def main() -> None:
        async with talks.asession(KEY):
            for wait in (0, 0.1):
                with pytest.raises(SessionLocked):
                    async with talks.asession(KEY, wait=wait):
                        pass
        with talks.session(KEY):
            for wait in (0, 0.1):
                with pytest.raises(SessionLocked):
                    async with talks.asession(KEY, wait=wait):
                        pass

    asyncio.run(main())


def test_nothing_is_appended_when_an_async_block_raises(talks: Conversations) -> None:
    async def main() -> None:
        async with talks.asession(KEY) as turn:
            turn.append(say("lost"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert talks.history(KEY) == []


# --- the buffered writer ----------------------------------------------------------------------------------------------


def eventually(holds: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_buffered_messages_are_written_soon_in_one_write(talks: Conversations, store: Store) -> None:
    for text in "abc":
        talks.append(KEY, say(text))
    assert talks.history(KEY) == []
    eventually(lambda: talks.history(KEY) != [])
    assert talks.history(KEY) == [say(t) for t in "abc"] and is_linear(entries(store))


def test_flush_writes_at_once(store: Store) -> None:
    talks = Conversations(store, debounce=60)
    talks.append("one", say("a"))
    talks.append("two", say("b"))
    talks.flush("one")
    assert talks.history("one") == [say("a")] and talks.history("two") == []
    talks.flush()
    talks.flush()
    assert talks.history("two") == [say("b")] and talks.history("one") == [say("a")]


def test_a_turn_sees_what_was_buffered_before_it(store: Store) -> None:
    talks = Conversations(store, debounce=60)
    talks.append(KEY, say("a"))
    with talks.session(KEY) as turn:
        assert turn.history == [say("a")]
        turn.append(say("b"))
    assert talks.history(KEY) == [say("a"), say("b")] and is_linear(entries(store))


def test_messages_buffered_during_a_turn_follow_it(store: Store) -> None:
    talks = Conversations(store, debounce=0.02)
    with talks.session(KEY) as turn:
        talks.append(KEY, say("later"))
        time.sleep(0.1)
        turn.append(say("turn"))
    eventually(lambda: len(talks.history(KEY)) == 2)
    assert talks.history(KEY) == [say("turn"), say("later")]


def test_an_error_in_the_background_is_raised_by_the_next_call_and_loses_nothing(folder: Path) -> None:
    talks = on_disk(folder, b"nonsense\n")
    talks.append(KEY, say("a"))
    time.sleep(0.3)
    with pytest.raises(SessionDamaged):
        talks.append(KEY, say("not taken"))
    with pytest.raises(SessionDamaged):
        talks.flush()
    (folder / f"{KEY}.jsonl").unlink()
    talks.append(KEY, say("b"))
    talks.flush()
    assert talks.history(KEY) == [say("a"), say("b")]


def test_closing_writes_what_is_buffered(tmp_path: Path) -> None:
    with Conversations(FolderStore(tmp_path / "s", ("log",)), debounce=60) as talks:
        talks.append(KEY, say("a"))
    assert talks.history(KEY) == [say("a")]


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "raise ZeroDivisionError", "del talks; gc.collect()"])
def test_a_normal_exit_loses_nothing(tmp_path: Path, ending: str) -> None:
    program = (
        "import gc, sys\nfrom sessionctl import Conversations, open_store\n"
        f"talks = Conversations(open_store('logs:{tmp_path}/s'), debounce=60)\n"
        "for i in range(100): talks.append(f'k{i % 3}', {'role': 'user', 'content': str(i)})\n" + ending
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "raise ZeroDivisionError": 1}.get(ending, 0), done.stderr
    with FolderStore(tmp_path / "s", ("log",)) as store:
        for k in range(3):
            assert [e["message"]["content"] for e in entries(store, f"k{k}")] == [
                str(i) for i in range(100) if i % 3 == k
            ]


def test_a_normal_exit_loses_nothing_in_redis(redis_server: Server) -> None:
    url = redis_server.url("/2")
    program = (
        "from sessionctl import Conversations, open_store\n"
        f"talks = Conversations(open_store('{url}'), debounce=60)\n"
        "talks.append('k', {'role': 'user', 'content': 'a'})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with open_store(url) as store:
        assert Conversations(store).history("k") == [say("a")]


def test_an_error_at_exit_is_shown(tmp_path: Path) -> None:
    (tmp_path / "k.jsonl").write_bytes(b"nonsense\n")
    program = (
        "from sessionctl import Conversations, open_store\n"
        f"talks = Conversations(open_store('logs:{tmp_path}'), debounce=60)\n"
        "talks.append('k', {'role': 'user', 'content': 'a'}); talks.append('l', {'role': 'user', 'content': 'b'})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, text=True)
    assert "SessionDamaged" in done.stderr
    assert (tmp_path / "l.jsonl").exists() and (tmp_path / "k.jsonl").read_bytes() == b"nonsense\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_write_what_its_parent_buffered(tmp_path: Path) -> None:
    program = (
        "import os\nfrom sessionctl import Conversations, open_store\n"
        f"talks = Conversations(open_store('logs:{tmp_path}'), debounce=60)\n"
        "talks.append('k', {'role': 'user', 'content': 'parent'})\n"
        "child = os.fork()\n"
        "if child == 0: talks.append('k', {'role': 'user', 'content': 'child'})\n"
        "else: os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with FolderStore(tmp_path, ("log",)) as store:
        assert [e["message"]["content"] for e in entries(store, "k")] == ["child", "parent"]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_the_key_of_a_request() -> None:
    assert session_id_for({"sessionId": "42"}, agent="support", tenant="acme") == KEY
    assert session_id_for({"sessionId": "a:b"}, agent="x") == "default:production:x:a:b"
    assert SessionKey.parse("default:production:x:a:b") == ("default", "production", "x", "a:b")
    one, two = (session_id_for({}, agent="x", environment="test") for _ in "ab")
    assert one != two and uuid.UUID(one.removeprefix("default:test:x:")).version == 4

    def customer(body: Any) -> str | None:
        return hashlib.sha256(body["customer"].encode()).hexdigest() if "customer" in body else None

    hashed = session_id_for({"sessionId": "theirs", "customer": "ann"}, agent="x", session_id=customer)
    assert hashed == "default:production:x:" + hashlib.sha256(b"ann").hexdigest()
    with pytest.raises(InvalidKey):
        session_id_for({"sessionId": "theirs"}, agent="x", session_id=customer)


@pytest.mark.parametrize("bad", ["", 7, [], "../x", "/etc/x", "a\nb", "a\0b", "x" * 300])
def test_a_session_id_that_cannot_be_one_is_a_validation_error(bad: Any) -> None:
    with pytest.raises(InvalidKey):
        session_id_for({"sessionId": bad}, agent="x")


def test_a_part_of_the_key_with_a_colon_is_refused() -> None:
    for parts in ({"agent": "a:b"}, {"agent": "a", "tenant": ""}, {"agent": "a", "environment": "x:y"}):
        with pytest.raises(InvalidKey):
            session_id_for({}, **parts)


# --- many at once -----------------------------------------------------------------------------------------------------

FULL = bool(os.environ.get("SESSIONCTL_TEST_FULL"))
"""8 processes of 8 threads with 1,000 turns on 20 keys, instead of a small version of it."""
PROCESSES, THREADS, TURNS, KEYS = (8, 8, 1000, 20) if FULL else (3, 4, 60, 4)


def prove_exclusion(url: str, marks: Path) -> None:
    run_all(take_turns, [(url, n, THREADS, TURNS, KEYS, str(marks)) for n in range(PROCESSES)])
    texts: list[str] = []
    with open_store(url) as store:
        for n in range(KEYS):
            found = entries(store, f"k{n}")
            assert is_linear(found)
            said = [entry["message"]["content"] for entry in found]
            assert said[1::2] == [text + "!" for text in said[::2]]
            texts += said[::2]
    assert sorted(texts) == sorted(f"{p}/{n}" for p in range(PROCESSES) for n in range(TURNS))


def test_turns_of_many_processes_and_threads_never_overlap_in_a_folder(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    prove_exclusion(f"logs:{tmp_path}/logs", marks)
    assert not (tmp_path / "logs" / ".sessionctl").exists()


def test_turns_of_many_processes_and_threads_never_overlap_in_redis(tmp_path: Path, redis_server: Server) -> None:
    prove_exclusion(redis_server.url("/0?logs=many:"), tmp_path)


def test_turns_of_many_processes_and_threads_never_overlap_in_postgresql(tmp_path: Path) -> None:
    prove_exclusion(postgres.server().new_database(), tmp_path)


def test_turns_of_many_processes_and_threads_never_overlap_in_sqlite(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    prove_exclusion(f"sqlite:///{tmp_path}/s.db", marks)
