"""Seepient's server rules: how long sessions live, how many an owner has, and whose they are (FORMATS.md section 1)."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeGuard
from uuid import uuid4

from .codec.messages import step_of
from .errors import (
    SessionctlError,
    SessionDamaged,
    SessionInUse,
    SessionLocked,
    SessionNotFound,
    TooManySessions,
    UsageError,
)
from .history import is_draft
from .keys import check_client_id, quoted, split_composite
from .locks import Lease, LocalLease
from .persistence import LOCK_WAIT, Clock, PersistenceBackend, SessionData, check_backend, now_ms, same_owner

TTL = 24 * 3600.0
"""Seconds from creation to expiry."""
INACTIVITY = 30 * 60.0
"""Seconds from the last activity to expiry."""
MAX_PER_OWNER = 5
SWEEP = 5 * 60.0
"""Seconds between two sweeps."""

_log = logging.getLogger(__name__)


def owner_hash(api_key: str) -> str:
    """How an API key is stored: its SHA-256, in hex."""
    return hashlib.sha256(api_key.encode(errors="surrogatepass")).hexdigest()


def is_expired(session: Mapping[str, Any], now: int, ttl: float = TTL, inactivity: float = INACTIVITY) -> bool:
    """Whether either limit has passed: ``ttl`` from creation, ``inactivity`` from the last activity (seconds).

    The last activity is ``metadata.lastActivityAt``, else ``updatedAt``; ``now`` is in ms. A time that is no number
    counts for nothing.
    """
    metadata = session.get("metadata")
    active = metadata.get("lastActivityAt") if isinstance(metadata, Mapping) else None
    if not _is_time(active):
        active = session.get("updatedAt")
    created = session.get("createdAt")
    return (_is_time(created) and now - created > ttl * 1000) or (_is_time(active) and now - active > inactivity * 1000)


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def without_draft(messages: Sequence[Any]) -> list[Any]:
    """The messages without those of the user at the end that nobody answered (FORMATS.md section 1, Drafts)."""
    kept = list(messages)
    while kept and isinstance(kept[-1], dict) and is_draft([step_of(kept[-1])]):
        kept.pop()
    return kept


class ServerTurn:
    """A turn in flight, made by ``SessionManager.turn``.

    ``messages`` are those to go on with: a draft that the turn before left is not among them. It leaves the stored
    session with the first message that this turn adds.
    """

    def __init__(self, manager: SessionManager, key: str, session: SessionData) -> None:
        self.messages: list[Any] = without_draft(session["messages"])
        self._manager = manager
        self._key = key
        self._guard = threading.Lock()
        self._over = False

    def add_message(self, message: Mapping[str, Any]) -> None:
        """Add a message and save it. Raises UsageError for what is no message, or after the turn."""
        with self._guard:
            if self._over:
                raise UsageError("the turn is over; nothing can be added to it")
            self._manager._save(self._key, [*self.messages, dict(message)])
            self.messages.append(dict(message))


class SessionManager:
    """A server's sessions over a persistence backend, by owner (an API key), with limits.

    ``ttl``, ``inactivity`` and ``sweep`` are in seconds; ``clock`` gives ms. Everything is kept in the backend under
    ``{sha256 of the API key}:{id}``, nothing in memory: two owners may use one id, several processes may serve one
    backend, and a session of somebody else is as good as absent.

    A context manager: inside, a thread sweeps every ``sweep`` seconds.
    """

    def __init__(
        self,
        backend: PersistenceBackend,
        *,
        ttl: float = TTL,
        inactivity: float = INACTIVITY,
        max_per_owner: int = MAX_PER_OWNER,
        sweep: float = SWEEP,
        clock: Clock = now_ms,
    ) -> None:
        self.backend = check_backend(backend)
        self.ttl = ttl
        self.inactivity = inactivity
        self.max_per_owner = max_per_owner
        self.sweep_every = sweep
        self.clock = clock
        self._turns: dict[str, ServerTurn] = {}
        self._stopping = threading.Event()
        self._sweeper: threading.Thread | None = None

    # --- one session ------------------------------------------------------------------------------------------------

    def create(
        self,
        api_key: str,
        session_id: str | None = None,
        *,
        provider: str | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionData:
        """Make an empty session, under a fresh UUID unless ``session_id`` is given, and return it.

        Raises TooManySessions when the owner has ``max_per_owner`` live ones, also when several are made at once;
        InvalidKey; UsageError when the owner has a live session of that id.
        """
        owner = owner_hash(api_key)
        key = self._key(owner, str(uuid4()) if session_id is None else session_id)
        with self._exclusive(owner, LOCK_WAIT):
            live = self._live(owner)
            if key in live:
                raise UsageError(f"there is a session {quoted(split_composite(key)[1])} already")
            if len(live) >= self.max_per_owner:
                raise TooManySessions(f"at most {self.max_per_owner} sessions may be live at a time")
            self._remove_expired(key)
            self.backend.save(
                key,
                {
                    "messages": [],
                    "provider": provider,
                    "model": model,
                    "metadata": {**(metadata or {}), "apiKeyHash": owner, "lastActivityAt": self.clock()},
                },
            )
            created = self._load(key)
            if created is None:
                raise SessionNotFound(quoted(split_composite(key)[1]))
            return created

    def get(self, api_key: str, session_id: str) -> SessionData | None:
        """A live session of this owner; None if there is none, be it absent, expired or somebody else's."""
        return self._owned(self._key(owner_hash(api_key), session_id))

    def list(self, api_key: str) -> list[SessionData]:
        """The owner's live sessions, the one that was active last first."""
        return sorted(self._live(owner_hash(api_key)).values(), key=_activity, reverse=True)

    def add_message(self, api_key: str, session_id: str, message: Mapping[str, Any]) -> None:
        """Add a message and count it as activity; inside a turn of this process it becomes part of that turn.

        Raises SessionNotFound (also for an expired session and for somebody else's), SessionLocked (a turn of another
        process is in flight), UsageError.
        """
        key = self._key(owner_hash(api_key), session_id)
        turn = self._turns.get(key)
        if turn is not None:
            turn.add_message(message)
            return
        with self._exclusive(key, LOCK_WAIT):
            self._save(key, [*self._required(key)["messages"], dict(message)])

    def delete(self, api_key: str, session_id: str) -> bool:
        """Remove a session of this owner, and say whether there was one. Raises SessionInUse during a turn on it."""
        key = self._key(owner_hash(api_key), session_id)
        if self._load(key) is None:
            return False
        try:
            with self._exclusive(key, 0):
                self.backend.delete(key)
        except SessionLocked as error:
            raise SessionInUse(f"a turn is in flight: {error}") from error
        return True

    @contextmanager
    def turn(self, api_key: str, session_id: str, *, wait: float = LOCK_WAIT) -> Iterator[ServerTurn]:
        """A turn: one at a time per session, across processes where the backend locks so; meanwhile the session does
        not expire and cannot be deleted. Raises SessionNotFound, SessionLocked (after ``wait`` seconds)."""
        key = self._key(owner_hash(api_key), session_id)
        if self._owned(key) is None:
            raise SessionNotFound(quoted(session_id))
        with self._exclusive(key, wait):
            turn = self._turns[key] = ServerTurn(self, key, self._required(key))
            try:
                yield turn
            finally:
                del self._turns[key]
                with turn._guard:
                    turn._over = True

    # --- all sessions -----------------------------------------------------------------------------------------------

    def sweep(self) -> Sequence[str]:
        """Remove all expired server sessions and return their keys. Those with a turn in flight stay, as do sessions
        that belong to no server, and damaged ones."""
        return [key for key in self.backend.list() if self._sweep_one(key)]

    def start(self) -> None:
        """Sweep in a thread of its own, every ``sweep`` seconds, until ``stop``."""
        if self._sweeper is None:
            self._sweeper = threading.Thread(target=self._sweep_for_ever, name="sessionctl-sweep", daemon=True)
            self._sweeper.start()

    def stop(self) -> None:
        """Stop sweeping and wait for a sweep that is under way."""
        if self._sweeper is not None:
            self._stopping.set()
            self._sweeper.join()
            self._stopping.clear()
            self._sweeper = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _sweep_for_ever(self) -> None:
        while not self._stopping.wait(self.sweep_every):
            try:
                self.sweep()
            except SessionctlError as error:
                _log.warning("sweep: %s", error)

    def _sweep_one(self, key: str) -> bool:
        if self._stopping.is_set():
            return False
        try:
            session = self.backend.load(key)
            return session is not None and _owner(key, session) is not None and self._remove_expired(key)
        except SessionctlError as error:
            _log.warning("sweep: %s", error)
            return False

    # --- the parts --------------------------------------------------------------------------------------------------

    def _key(self, owner: str, session_id: str) -> str:
        return f"{owner}:{check_client_id(session_id)}"

    def _exclusive(self, name: str, wait: float) -> AbstractContextManager[Lease]:
        """Hold a session, or an owner, against others: across processes where the backend can, else in this one."""
        lock = getattr(self.backend, "lock", None)
        if lock is not None:
            held: AbstractContextManager[Lease] = lock(name, wait)
            return held
        return LocalLease((id(self.backend), name), wait, quoted(split_composite(name)[1]))

    def _load(self, key: str) -> SessionData | None:
        """The session of a key if it is its owner's by its metadata too."""
        session = self.backend.load(key)
        return session if session is not None and same_owner(_owner(key, session), split_composite(key)[0]) else None

    def _owned(self, key: str) -> SessionData | None:
        session = self._load(key)
        return session if session is not None and self._is_live(key, session) else None

    def _required(self, key: str) -> SessionData:
        """A session whose lock is held: it cannot be expired by a turn's length, only by what was before."""
        session = self._load(key)
        if session is None or self._is_past(session):
            raise SessionNotFound(quoted(split_composite(key)[1]))
        return session

    def _live(self, owner: str) -> dict[str, SessionData]:
        prefix = f"{owner}:"
        found: dict[str, SessionData] = {}
        for key in self.backend.list():
            if key.startswith(prefix):
                try:
                    session = self._owned(key)
                except SessionDamaged as error:
                    _log.warning("not counted: %s", error)
                else:
                    if session is not None:
                        found[key] = session
        return found

    def _is_past(self, session: SessionData) -> bool:
        return is_expired(session, self.clock(), self.ttl, self.inactivity)

    def _is_live(self, key: str, session: SessionData) -> bool:
        return not self._is_past(session) or self._in_flight(key)

    def _in_flight(self, key: str) -> bool:
        if key in self._turns:
            return True
        try:
            with self._exclusive(key, 0):
                return False
        except SessionLocked:
            return True

    def _remove_expired(self, key: str) -> bool:
        """Remove a session that is expired, looked at again with its lock held; not one with a turn in flight."""
        try:
            with self._exclusive(key, 0):
                session = self.backend.load(key)
                if session is None or not self._is_past(session):
                    return False
                self.backend.delete(key)
                return True
        except SessionLocked:
            return False

    def _save(self, key: str, messages: Sequence[Any]) -> None:
        """Save a session's messages, and that it was active now; its lock is held."""
        session = self.backend.load(key)
        if session is None:
            raise SessionNotFound(quoted(split_composite(key)[1]))
        metadata = session.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        active = {"apiKeyHash": _owner(key, session), "lastActivityAt": self.clock()}
        self.backend.save(key, {"messages": messages, "metadata": {**metadata, **active}})


def _owner(key: str, session: SessionData) -> str | None:
    """The hash of a server session's owner: its metadata says it, else the key's prefix."""
    metadata = session.get("metadata")
    said = metadata.get("apiKeyHash") if isinstance(metadata, dict) else None
    return said if isinstance(said, str) else split_composite(key)[0]


def _activity(session: SessionData) -> float:
    metadata = session.get("metadata")
    active = metadata.get("lastActivityAt") if isinstance(metadata, dict) else None
    return active if isinstance(active, (int, float)) else 0
