"""LoopEngine's contract: exclusive turns on a log, durable appends, history and resume (FORMATS.md section 2).

A turn takes the session's lock, reads the history, runs, and appends what it added in one write that is on disk when
the block ends. Nothing is appended when the block raises, when the lock was lost, or when somebody else has written.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import json
import os
import shlex
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar, overload
from uuid import uuid4
from weakref import WeakValueDictionary

from .codec import outline
from .codec.checkpoints import approvals
from .codec.stringify import js_dumps
from .codec.text import loads
from .errors import (
    InvalidKey,
    SessionDamaged,
    SessionLocked,
    SessionNotFound,
    StoreError,
    StoreNotFound,
    UnsupportedKind,
    UsageError,
)
from .history import damage_place, judge
from .keys import SessionKey, check_lookup, file_name, quoted
from .locks import POLL, Lease
from .model import Outline, Ref, Stamp
from .stores import open_store

if TYPE_CHECKING:
    from .stores.base import Store

T = TypeVar("T")
ChatMessage = dict[str, Any]
"""A message as model APIs take it: ``{"role": …, "content": …}``."""
_Spelling = Literal["parentId", "parent_id"]

LOCK_WAIT = 15.0
"""Seconds that a turn waits for the session's lock (FORMATS.md section 2, Lock)."""
DEBOUNCE = 0.1
"""Seconds that ``Conversations.append`` collects messages before they are written (FORMATS.md section 2, Appends)."""

NOT_RUN = "[session resumed after an interruption] The tool did not run; no result was recorded."
"""What the continuation says for each tool call without a result."""
CONTINUATION = (
    "[session resumed after an interruption] The process stopped before the results of the requested tools were "
    "recorded. Treat these tools as not having run: they did not run."
)
"""What the continuation says once."""


class Resumed(NamedTuple):
    """A session to go on with.

    ``messages`` is the history, ending in the continuation where ``resumed_after_interruption`` is true. ``leaf_id`` is
    the id of the last stored entry (the parent of the next one), None for a new session.
    """

    messages: list[ChatMessage]
    leaf_id: str | None
    resumed_after_interruption: bool


class _Log(NamedTuple):
    """What was read of a log: enough to show it, to judge it, and to append to exactly this version of it."""

    stamp: Stamp | None
    messages: list[ChatMessage]
    leaf: str | None
    spelling: _Spelling
    ended: bool
    unresolved: tuple[str, ...]


_NEW = _Log(None, [], None, "parentId", True, ())


class Turn:
    """One exclusive turn on a session, made by ``Conversations.session``.

    ``history`` are the messages as a model is to see them: the stored ones, then, after an interruption,
    ``continuation``, then what this turn appended. Changing the list or its messages changes nothing that is stored.
    """

    def __init__(self, key: str, log: _Log) -> None:
        self.key = key
        self.leaf_id = log.leaf
        self.continuation = _continuation(log.unresolved) if log.unresolved else None
        self.history: list[ChatMessage] = [*log.messages]
        if self.continuation is not None:
            self.history.append(self.continuation)
        self._log = log
        self._added: list[str] = []
        self._over = False

    @property
    def resumed_after_interruption(self) -> bool:
        """Whether the session ended with tool calls that have no result, and no human is being asked about them."""
        return self.continuation is not None

    def append(self, *messages: Mapping[str, Any]) -> None:
        """Add messages: to ``history`` now, to the session when the block ends without an exception.

        Each is stored as it is at this moment. ``continuation`` is not stored by itself; append it first where the
        session is to stay acceptable to model APIs. Raises UsageError for what is no message, or after the turn.
        """
        if self._over:
            raise UsageError("the turn is over; nothing can be appended to it")
        for message in messages:
            self._added.append(_as_text(message))
            if message is not self.continuation:
                self.history.append(dict(message))


class Conversations:
    """The sessions of a store that holds logs, as LoopEngine uses them.

    ``lock_wait`` (seconds) is how long a turn waits for the one before it. May be used by many threads and event loops;
    turns on one key never overlap, be it in this process, in others on this machine, or (Redis, SQL) on other hosts.
    A context manager: leaving it writes what ``append`` collected and closes the store.
    """

    def __init__(
        self, store: Store | Conversations, *, lock_wait: float = LOCK_WAIT, debounce: float = DEBOUNCE
    ) -> None:
        # create_session_store() makes one of these, as LoopEngine's does.
        self.store: Store = store.store if isinstance(store, Conversations) else store
        if "log" not in self.store.kinds:
            raise UnsupportedKind(f"{self.store.url} holds no logs")
        self.lock_wait = lock_wait
        self._queues: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._buffer = _Buffer(self._drain, debounce)

    # --- turns ------------------------------------------------------------------------------------------------------

    @contextmanager
    def session(self, key: str | SessionKey, *, wait: float | None = None) -> Iterator[Turn]:
        """An exclusive turn on ``key``; ``wait`` (seconds) replaces ``lock_wait``.

        What ``Turn.append`` was given is stored, in order and durably, when the block ends; nothing is when it raises.
        Raises SessionLocked (nobody gave the lock back in time), SessionDamaged (``sessionctl repair`` mends it),
        LockLost or SessionChanged (at the end: nothing was appended), StoreError.
        """
        turn, lease = self._begin(self._ref(key), self.lock_wait if wait is None else wait)
        try:
            yield turn
            self._end(turn, lease)
        finally:
            turn._over = True
            lease.release()

    @asynccontextmanager
    async def asession(self, key: str | SessionKey, *, wait: float | None = None) -> AsyncIterator[Turn]:
        """``session`` for an event loop, which goes on while the lock is waited for and the store is at work.

        Cancellation is safe at any moment: no lock stays behind, and an append that has begun is finished first.
        """
        ref = self._ref(key)
        turn, lease = await self._abegin(ref, self.lock_wait if wait is None else wait)
        try:
            yield turn
            await _in_thread(self._end, turn, lease)
        finally:
            turn._over = True
            await _in_thread(lease.release)

    @overload
    def with_session(
        self, key: str | SessionKey, fn: Callable[[Turn], Awaitable[T]], *, wait: float | None = None
    ) -> Awaitable[T]: ...

    @overload
    def with_session(self, key: str | SessionKey, fn: Callable[[Turn], T], *, wait: float | None = None) -> T: ...

    def with_session(
        self, key: str | SessionKey, fn: Callable[[Turn], Any], *, wait: float | None = None
    ) -> Awaitable[Any] | Any:
        """Run ``fn(turn)`` as a turn and return what it returns; for an async ``fn``, an awaitable of it."""
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
            return self._with_asession(key, fn, wait)
        with self.session(key, wait=wait) as turn:
            result = fn(turn)
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise UsageError("the function returned an awaitable; give an async function, so that it is awaited")
            return result

    async def _with_asession(self, key: str | SessionKey, fn: Callable[[Turn], Awaitable[T]], wait: float | None) -> T:
        async with self.asession(key, wait=wait) as turn:
            return await fn(turn)

    # --- reading ----------------------------------------------------------------------------------------------------

    def history(self, key: str | SessionKey) -> list[ChatMessage]:
        """The stored messages, in the order of the chain. Takes no lock: it works while a turn is paused.

        Empty for a session that does not exist. A last line that is still being written is left out. Raises
        SessionDamaged, StoreError.
        """
        return self._read(self._ref(key), torn=True).messages

    get_history = history

    def resume(self, key: str | SessionKey) -> Resumed:
        """The history to go on with; after an interruption it ends in a continuation. Takes no lock, stores nothing.

        The continuation says that the tools did not run, with a result for each call that has none, since model APIs
        want one. Raises SessionDamaged, StoreError.
        """
        turn = Turn(str(key), self._read(self._ref(key)))
        return Resumed(turn.history, turn.leaf_id, turn.resumed_after_interruption)

    # --- writing outside turns --------------------------------------------------------------------------------------

    def append(self, key: str | SessionKey, message: Mapping[str, Any]) -> None:
        """Add a message soon, without waiting: it is written within about 100 ms, at ``flush``, or at exit.

        Messages of one key keep their order, and come before the next turn on it. Raises UsageError for what is no
        message, and the error of an earlier write of this key that failed: ``message`` is not taken then, the earlier
        ones are kept and tried again.
        """
        self._buffer.add(self._ref(key).key, _as_text(message))

    def flush(self, key: str | SessionKey | None = None) -> None:
        """Write what ``append`` collected, of one key or of all, and return when it is on disk.

        Raises the first error; what could not be written is kept. Must not be called inside a turn on the same key.
        """
        self._buffer.flush(None if key is None else str(key))

    def close(self) -> None:
        """Flush and close the store."""
        try:
            self.flush()
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- the parts --------------------------------------------------------------------------------------------------

    def _ref(self, key: str | SessionKey) -> Ref:
        ref = Ref(str(key), "log")
        self.store.check_key(ref)
        return ref

    def _begin(self, ref: Ref, wait: float) -> tuple[Turn, Lease]:
        lease = self.store.lock(ref, wait)
        try:
            self._write_buffered(ref)
            return Turn(ref.key, self._read(ref)), lease
        except BaseException:
            lease.release()
            raise

    async def _abegin(self, ref: Ref, wait: float) -> tuple[Turn, Lease]:
        # Coroutines of one loop queue in order; only the first of them tries the lock, each time for a moment, so that
        # no thread is held by waiting: the turn that is to give the lock back may need one.
        deadline = time.monotonic() + wait
        name = (id(asyncio.get_running_loop()), ref.key)
        queue = self._queues.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(wait):
                await queue.acquire()
        except TimeoutError:
            raise SessionLocked(f"{quoted(ref.key)} is locked by this process") from None
        try:
            while True:
                try:
                    begun = await _in_thread(self._begin, ref, 0.0, undo=_give_back)
                except SessionLocked:
                    if time.monotonic() >= deadline:
                        raise
                    await asyncio.sleep(POLL)
                else:
                    return begun[0], _QueuedLease(begun[1], asyncio.get_running_loop(), queue)
        except BaseException:
            queue.release()
            raise

    def _end(self, turn: Turn, lease: Lease) -> None:
        lease.check()
        self._write(Ref(turn.key, "log"), turn._log, turn._added)

    def _read(self, ref: Ref, *, torn: bool = False) -> _Log:
        """Read and judge a log. Raises SessionDamaged; with ``torn`` not for a last line that is incomplete."""
        try:
            record = self.store.get(ref)
        except (SessionNotFound, StoreNotFound):
            return _NEW
        if record.error is not None or record.payload is None:
            raise StoreError(f"cannot read {quoted(ref.key)}: {record.error}")
        payload = record.payload
        found = outline(ref, payload, time.time_ns() // 1_000_000)
        for damage in found.damage:
            if not (torn and damage.code == "torn-tail"):
                place = damage_place(damage.line, damage.offset)
                raise SessionDamaged(
                    f"{quoted(ref.key)}: {damage.message} ({place}); "
                    f"sessionctl repair --fix {shlex.quote(ref.key)} mends what can be"
                )
        values = [loads(payload[entry.start : entry.end].decode()) for entry in found.entries]
        last = values[-1] if values else {}
        return _Log(
            record.stamp,
            [values[i]["message"] for i in found.order],
            last.get("id"),
            "parent_id" if "parent_id" in last and "parentId" not in last else "parentId",
            payload.endswith(b"\n") or not payload,
            self._interrupted_calls(ref, found),
        )

    def _interrupted_calls(self, ref: Ref, found: Outline) -> tuple[str, ...]:
        """The calls without a result that a session was interrupted at; none where it was not."""
        verdict = judge(found)
        if verdict.status == "interrupted":
            verdict = judge(found, approvals(self.store.checkpoints()).get(ref.key, ()))
        if verdict.status != "interrupted":
            return ()
        # Calls left open further up are not answered at the end: model APIs refuse a result that is out of its place.
        open_calls = [problem for problem in verdict.problems if problem.code == "unresolved-tool-call"]
        newest = max(problem.step for problem in open_calls)
        return tuple(problem.call_id for problem in open_calls if problem.step == newest)

    def _write(self, ref: Ref, log: _Log, messages: Sequence[str]) -> None:
        """Append messages, given as JSON text, as a chain of new entries, to exactly the version that was read."""
        if not messages:
            return
        # A last line without its newline is whole (else the log is damaged): end it, or the entry is glued onto it.
        lines = [] if log.ended else [b""]
        parent = log.leaf
        for message in messages:
            entry = str(uuid4())
            lines.append(_line(entry, parent, message, log.spelling))
            parent = entry
        self.store.append(ref, b"\n".join(lines) + b"\n", expect=log.stamp)

    def _drain(self, key: str, wait: float | None) -> None:
        """Write what is buffered for a key, under its lock."""
        ref = Ref(key, "log")
        with self.store.lock(ref, self.lock_wait if wait is None else wait):
            self._write_buffered(ref)

    def _write_buffered(self, ref: Ref) -> None:
        """With the lock held: write what is buffered for a key, which stays buffered if that fails."""
        with self._buffer.taken(ref.key) as messages:
            if messages:
                self._write(ref, self._read(ref), messages)


class _QueuedLease(Lease):
    """A lease that lets the next coroutine of its loop try for the lock when it is released."""

    def __init__(self, lease: Lease, loop: asyncio.AbstractEventLoop, queue: asyncio.Lock) -> None:
        self._lease = lease
        self._loop = loop
        self._queue = queue

    def check(self) -> None:
        self._lease.check()

    def release(self) -> None:
        try:
            self._lease.release()
        finally:
            self._loop.call_soon_threadsafe(self._queue.release)


def _give_back(begun: tuple[Turn, Lease]) -> None:
    begun[1].release()


async def _in_thread(function: Callable[..., T], *args: Any, undo: Callable[[T], None] | None = None) -> T:
    """Run a blocking function in a thread and wait for its end, also when cancelled meanwhile.

    A cancellation is raised after that end; a result that nobody will get goes to ``undo`` first.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if task.exception() is None and undo is not None:
        undo(task.result())
    raise cancelled


# --- messages ---------------------------------------------------------------------------------------------------------


def _as_text(message: Mapping[str, Any]) -> str:
    """A message as compact JSON, checked. Raises UsageError."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not message["role"]:
        raise UsageError("a message is an object with a role, such as {'role': 'user', 'content': 'hello'}")
    try:
        return js_dumps(message)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the message cannot be stored: {error}") from error


def _line(entry: str, parent: str | None, message: str, spelling: _Spelling) -> bytes:
    """A line of a log, without its newline, in the spelling of LoopEngine or of the Python writer (FORMATS.md 2)."""
    if spelling == "parentId":
        head = js_dumps({"id": entry, "parentId": parent})
        return f'{head[:-1]},"message":{message}}}'.encode()
    return json.dumps({"id": entry, "parent_id": parent, "message": json.loads(message)}).encode()


def _continuation(unresolved: Sequence[str]) -> ChatMessage:
    """The message that follows an interruption: a result for each open call, and what happened."""
    results = [
        {"type": "tool_result", "tool_use_id": call, "content": NOT_RUN, "is_error": True} for call in unresolved
    ]
    return {"role": "user", "content": [*results, {"type": "text", "text": CONTINUATION}]}


# --- the buffered writer ----------------------------------------------------------------------------------------------


class _Buffer:
    """Messages by key that wait to be written; ``drain(key, wait)`` writes those of one key through ``taken``.

    A background write comes ``delay`` seconds after the first message. Where the key is locked it tries again later;
    any other error is kept, and raised by the next ``add``.
    """

    def __init__(self, drain: Callable[[str, float | None], None], delay: float) -> None:
        self._drain = drain
        self._delay = delay
        self.forget()

    def forget(self) -> None:
        """Start empty."""
        self._guard = threading.Lock()
        self._waiting: dict[str, list[str]] = {}
        self._failed: dict[str, Exception] = {}
        self._timer: threading.Timer | None = None

    def add(self, key: str, message: str) -> None:
        """Take a message, or raise the error of an earlier write of this key and leave the message to the caller."""
        with self._guard:
            failed = self._failed.pop(key, None)
            if failed is None:
                self._waiting.setdefault(key, []).append(message)
                _unwritten.add(self)
            self._start_timer()
        if failed is not None:
            raise failed

    @contextmanager
    def taken(self, key: str) -> Iterator[Sequence[str]]:
        """The messages of a key, to be written in the block; they stay, before any newer ones, if it raises."""
        with self._guard:
            messages = tuple(self._waiting.get(key, ()))
        yield messages
        with self._guard:
            left = self._waiting.pop(key, [])[len(messages) :]
            if left:
                self._waiting[key] = left
            if messages:
                self._failed.pop(key, None)
            if not self._waiting:
                _unwritten.discard(self)

    def flush(self, key: str | None = None) -> None:
        """Write the messages of one key or of all. Raises the first error, after all keys have been tried."""
        errors: list[Exception] = []
        for waiting in self._keys():
            if key is None or waiting == key:
                try:
                    self._drain(waiting, None)
                except Exception as error:  # noqa: BLE001 - the other keys are written all the same
                    errors.append(error)
        if errors:
            raise errors[0]

    def _keys(self) -> list[str]:
        with self._guard:
            return list(self._waiting)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._delay, self._run)
            self._timer.daemon = True
            self._timer.start()

    def _run(self) -> None:
        with self._guard:
            self._timer = None
        for key in self._keys():
            try:
                self._drain(key, 0)
            except SessionLocked:
                pass
            except Exception as error:  # noqa: BLE001 - raised to the caller by the next add
                with self._guard:
                    self._failed[key] = error
        with self._guard:
            if self._waiting.keys() - self._failed.keys():
                self._start_timer()


_unwritten: set[_Buffer] = set()
"""Buffers that hold messages, kept alive until these are written."""


def _flush_all() -> None:
    """At exit: write what every buffer holds, each whatever the others met; raise the first error, for stderr."""
    errors: list[Exception] = []
    for buffer in list(_unwritten):
        try:
            buffer.flush()
        except Exception as error:  # noqa: BLE001 - the other buffers are written all the same
            errors.append(error)
    if errors:
        raise errors[0]


def _forget_all() -> None:
    """In a forked child: what the parent collected is the parent's to write."""
    for buffer in _unwritten:
        buffer.forget()
    _unwritten.clear()


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


# --- LoopEngine's own names -------------------------------------------------------------------------------------------


def create_session_store() -> Conversations:
    """LoopEngine's choice: Redis when ``REDIS_URL`` is set, else logs in the folder ``.sessions``."""
    return Conversations(open_store(_default_url()))


def _default_url() -> str:
    return os.environ.get("REDIS_URL") or "logs:" + os.path.abspath(".sessions")


@functools.cache
def _opened(url: str) -> Conversations:
    """The process's own session store at a place, opened once."""
    return Conversations(open_store(url))


@overload
def with_session(key: str | SessionKey, fn: Callable[[Turn], Awaitable[T]]) -> Awaitable[T]: ...


@overload
def with_session(key: str | SessionKey, fn: Callable[[Turn], T]) -> T: ...


def with_session(key: str | SessionKey, fn: Callable[[Turn], Any]) -> Awaitable[Any] | Any:
    """``Conversations.with_session`` on the store that ``create_session_store`` picks."""
    return _opened(_default_url()).with_session(key, fn)


def get_history(key: str | SessionKey) -> list[ChatMessage]:
    """``Conversations.history`` of the store that ``create_session_store`` picks."""
    return _opened(_default_url()).history(key)


def session_id_for(
    body: Mapping[str, Any],
    *,
    agent: str,
    tenant: str = "default",
    environment: str = "production",
    session_id: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> str:
    """The key of the session that a request belongs to: ``tenant:environment:agent:raw`` (FORMATS.md section 2).

    ``raw`` is what the agent's own function ``session_id`` makes of the body, else the client's ``sessionId``, else a
    fresh UUID. Raises InvalidKey: that function found none (None), it is not a text, or no store could hold it. Such a
    function can keep customers' names out of file names and keys::

        session_id_for(body, agent="support", session_id=lambda b: sha256(b["customer"].encode()).hexdigest())
    """
    raw: Any
    if session_id is not None:
        raw = session_id(body)
        if raw is None:
            raise InvalidKey("the agent's own function found none in the request")
    else:
        raw = body.get("sessionId")
        if raw is None:
            raw = str(uuid4())
    if not isinstance(raw, str):
        raise InvalidKey(f"it is {type(raw).__name__}, not a text")
    key = str(SessionKey.build(check_lookup(raw), agent, tenant, environment))
    file_name(key, "log")
    return key
