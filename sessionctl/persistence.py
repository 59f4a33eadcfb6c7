"""Seepient's contract: sessions as documents, saved by its merge rules, with owners (FORMATS.md section 1)."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeGuard, cast, runtime_checkable

from .codec.documents import parse_document
from .codec.splice import apply, items, member, members, rearrange, set_member, style_of
from .codec.stringify import js_dumps, spelled_loads
from .errors import (
    OwnershipMismatch,
    SessionChanged,
    SessionDamaged,
    SessionNotFound,
    StoreError,
    StoreNotFound,
    UsageError,
)
from .history import damage_place
from .keys import check_storage_key, quoted, split_composite
from .locks import Lease
from .model import Ref, Stamp
from .stores import default_folder, open_store

if TYPE_CHECKING:
    from .stores.base import Store

SessionData = dict[str, Any]
"""A document as FORMATS.md section 1 describes it, unknown fields included."""
Clock = Callable[[], int]
"""Now, in ms since the epoch."""

FIELDS: Final = (
    "id",
    "messages",
    "createdAt",
    "updatedAt",
    "provider",
    "providerAccount",
    "model",
    "principalId",
    "metadata",
)
"""The keys of a document, in the order in which they are written."""
_OWN: Final = ("createdAt", "updatedAt")
"""Keys that the backend sets, whatever the caller says."""
REDIS_TTL = 86_400.0
"""Seconds that a save gives a session in Redis (the documented store's ``EX 86400``)."""
LOCK_WAIT = 15.0
"""Seconds that a save or a deletion waits for the session's lock."""
_TRIES = 5
"""How often a save is made anew when somebody without our lock wrote in between."""


class Unchecked(Enum):
    """The type of UNCHECKED."""

    UNCHECKED = "unchecked"


UNCHECKED: Final = Unchecked.UNCHECKED
"""``principal_id=UNCHECKED``: load whoever the owner is. (None is a principal that somebody failed to find out.)"""


def now_ms() -> int:
    """The system's clock, in ms since the epoch."""
    return time.time_ns() // 1_000_000


@runtime_checkable
class PersistenceBackend(Protocol):
    """What keeps sessions for Seepient. ``__persistence_backend__`` is its brand.

    An object without the brand is refused wherever a backend is asked for: something that merely has methods of these
    names need not keep times, owners and metadata.
    """

    __persistence_backend__: Literal[True]

    def save(self, session_id: str, data: Mapping[str, Any]) -> None:
        """Create or update a session."""

    def load(self, session_id: str, *, principal_id: str | Unchecked | None = UNCHECKED) -> SessionData | None:
        """The whole session, None if there is none; with ``principal_id`` only to its owner (``check_owner``)."""

    def delete(self, session_id: str) -> None:
        """Remove a session, if it is there."""

    def list(self) -> list[str]:
        """The ids of all sessions."""


def is_backend(value: object) -> TypeGuard[PersistenceBackend]:
    """Whether an object carries the brand."""
    return getattr(value, "__persistence_backend__", None) is True


def check_backend(value: object) -> PersistenceBackend:
    """Return a branded backend; raise UsageError for anything else."""
    if not is_backend(value):
        raise UsageError(
            f"{type(value).__name__} is not a persistence backend",
            hint="set __persistence_backend__ = True on a class that keeps sessions whole",
        )
    return value


class StoreBackend:
    """A PersistenceBackend over any store that holds documents.

    ``ttl`` (seconds) is the life that each save gives the session, where the store can end one; None leaves it as it
    is. Saves of one session, in any process, follow one another, and a document keeps every byte that a save does not
    change.
    """

    __persistence_backend__: Literal[True] = True

    def __init__(self, store: Store, *, ttl: float | None = None, clock: Clock = now_ms) -> None:
        if "document" not in store.kinds:
            raise UsageError(f"{store.url} holds no documents")
        self.store = store
        self.ttl = ttl
        self.clock = clock
        self._held: dict[Ref, Lease] = {}

    def save(self, session_id: str, data: Mapping[str, Any]) -> None:
        """Create or update a session by the merge rules of FORMATS.md section 1.

        ``createdAt`` is set once, ``updatedAt`` is now; what is left out or None is kept (a new session needs
        ``messages``); ``metadata`` is replaced whole; unknown fields are kept, and set where they are given.

        Raises InvalidKey, UsageError (what is given cannot be saved), SessionDamaged (what is stored cannot be read: it
        is left alone), SessionLocked, SessionChanged (somebody else keeps writing), StoreError.
        """
        ref = self._ref(session_id)
        _check(data)
        with self._locked(ref) as lease:
            for attempt in range(_TRIES):
                stamp, text = self._read(ref)
                payload = merge(session_id, text, data, self.clock()).encode()
                lease.check()
                try:
                    self.store.put(ref, payload, expect=stamp, ttl_ms=self._ttl_ms(stamp))
                    return
                except SessionChanged:
                    if attempt == _TRIES - 1:
                        raise

    def load(self, session_id: str, *, principal_id: str | Unchecked | None = UNCHECKED) -> SessionData | None:
        """The whole session, None if there is none; numbers keep their spelling when it is saved again.

        With ``principal_id`` the session must belong to exactly that principal: OwnershipMismatch is raised for another
        owner and for none, and for a principal that is None or empty, before anything is returned. Raises InvalidKey,
        SessionDamaged (it is there, but cannot be read), StoreError.
        """
        _, text = self._read(self._ref(session_id))
        if text is None:
            return None
        document = cast(SessionData, spelled_loads(text))
        check_owner(document, principal_id)
        return document

    def delete(self, session_id: str) -> None:
        """Remove a session; one that is not there is no error. Raises InvalidKey, SessionLocked, StoreError."""
        ref = self._ref(session_id)
        for attempt in range(_TRIES):
            with self._locked(ref) as lease:
                stamp = self._stamp(ref)
                if stamp is None:
                    return
                lease.check()
                try:
                    self.store.remove(ref, stamp)
                    return
                except SessionNotFound:
                    return
                except SessionChanged:
                    if attempt == _TRIES - 1:
                        raise

    def list(self) -> list[str]:
        """The storage keys of all sessions, sorted, damaged ones included."""
        try:
            return sorted(ref.key for ref in self.store.names(("document",)))
        except StoreNotFound:
            return []

    @contextmanager
    def lock(self, session_id: str, wait: float = LOCK_WAIT) -> Iterator[Lease]:
        """Hold a session: no other process and no other holder of this lock saves or deletes it meanwhile.

        Saves and deletions by this object go through. Raises SessionLocked when it is not free within ``wait`` seconds.
        """
        ref = self._ref(session_id)
        with self.store.lock(ref, wait) as lease:
            self._held[ref] = lease
            try:
                yield lease
            finally:
                del self._held[ref]

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    @contextmanager
    def _locked(self, ref: Ref) -> Iterator[Lease]:
        held = self._held.get(ref)
        if held is not None:
            yield held
        else:
            with self.store.lock(ref, LOCK_WAIT) as lease:
                yield lease

    def _ref(self, session_id: str) -> Ref:
        ref = Ref(check_storage_key(session_id), "document")
        self.store.check_key(ref)
        return ref

    def _stamp(self, ref: Ref) -> Stamp | None:
        try:
            return self.store.stamp(ref)
        except StoreNotFound:
            return None

    def _read(self, ref: Ref) -> tuple[Stamp | None, str | None]:
        """A session's stamp and text. Raises SessionDamaged for one that is there but is no session."""
        try:
            record = self.store.get(ref)
        except (SessionNotFound, StoreNotFound):
            return None, None
        if record.error is not None or record.payload is None:
            raise StoreError(f"cannot read {quoted(ref.key)}: {record.error}")
        document, damage = parse_document(record.payload)
        if document is None or damage:
            said = "; ".join(f"{d.message} ({damage_place(d.line, d.offset)})" for d in damage)
            raise SessionDamaged(f"{quoted(ref.key)}: {said}")
        if not all(isinstance(message, dict) for message in document["messages"]):
            raise SessionDamaged(f"{quoted(ref.key)}: a message is not an object")
        return record.stamp, record.payload.decode()

    def _ttl_ms(self, stamp: Stamp | None) -> int | None:
        if self.ttl is not None:
            return round(self.ttl * 1000)
        return stamp.ttl_ms if stamp is not None else None


def check_owner(session: Mapping[str, Any], principal_id: str | Unchecked | None) -> None:
    """Raise OwnershipMismatch unless the session belongs to exactly that principal, or nobody asked."""
    if not isinstance(principal_id, Unchecked) and not same_owner(session.get("principalId"), principal_id):
        raise OwnershipMismatch


def same_owner(owner: object, claimed: object) -> bool:
    """Whether two owners are the same one, in constant time. Nobody is not somebody: empty and absent never match."""
    if not isinstance(owner, str) or not isinstance(claimed, str) or not owner or not claimed:
        return False
    return hmac.compare_digest(owner.encode(errors="surrogatepass"), claimed.encode(errors="surrogatepass"))


# --- merging ----------------------------------------------------------------------------------------------------------


def _check(data: Mapping[str, Any]) -> None:
    """Raise UsageError for what is not the data of a session."""
    if not isinstance(data, Mapping):
        raise UsageError("the data of a session is an object with messages")
    messages = data.get("messages")
    if messages is not None and not (
        isinstance(messages, (list, tuple))
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages)
    ):
        raise UsageError("messages is a list of objects, each with a role")
    if data.get("metadata") is not None and not isinstance(data["metadata"], Mapping):
        raise UsageError("metadata is an object")
    for field in ("id", "provider", "providerAccount", "model", "principalId"):
        if data.get(field) is not None and not isinstance(data[field], str):
            raise UsageError(f"{field} is a text")


def merge(session_id: str, stored: str | None, data: Mapping[str, Any], now: int) -> str:
    """The document's text after a save at ``now`` (ms). ``stored`` is its text before, None for a new session.

    Raises UsageError for data that JSON cannot hold, or a new session without messages.
    """
    given = {key: value for key, value in data.items() if key not in _OWN and (value is not None or key not in FIELDS)}
    try:
        return _created(session_id, given, now) if stored is None else _updated(stored, given, now)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the session cannot be saved: {error}") from error


def _created(session_id: str, given: Mapping[str, Any], now: int) -> str:
    if "messages" not in given:
        raise UsageError("a new session needs messages, if only an empty list")
    document = {"id": split_composite(session_id)[1], **given, "createdAt": now, "updatedAt": now}
    known = {field: document[field] for field in FIELDS if field in document}
    return js_dumps({**known, **document}, 2)


def _updated(text: str, given: Mapping[str, Any], now: int) -> str:
    indent = style_of(text).indent or ""
    stored = spelled_loads(text)
    if "messages" in given:
        text = _with_messages(text, stored["messages"], given["messages"], indent)
    changed = {"updatedAt": now, **{key: value for key, value in given.items() if key != "messages"}}
    for key in sorted(changed, key=_place):
        value = js_dumps(changed[key])
        if key not in stored or js_dumps(stored[key]) != value:
            text = set_member(text, key, js_dumps(changed[key], indent, 1), before=_following(text, key))
    return text


def _place(key: str) -> int:
    return FIELDS.index(key) if key in FIELDS else len(FIELDS)


def _following(text: str, key: str) -> str | None:
    """Before which member a new one of this key belongs; None: at the end."""
    place = _place(key)
    return next((m.key for m in members(text) if _place(m.key) > place), None)


def _with_messages(text: str, stored: Sequence[Any], given: Sequence[Any], indent: str) -> str:
    """The text with these messages; each that was there before keeps its bytes."""
    before: dict[str, list[int]] = {}
    for index in reversed(range(len(stored))):
        before.setdefault(js_dumps(stored[index]), []).append(index)
    order: list[int | str] = []
    for message in given:
        same = before.get(js_dumps(message))
        order.append(same.pop() if same else js_dumps(message, indent, 2))
    found = member(text, "messages")
    assert found is not None
    if order == list(range(len(items(text, found.value.start)))):
        return text
    return apply(text, [rearrange(text, found.value.start, order, style_of(text), 1)])


# --- the factory ------------------------------------------------------------------------------------------------------

BackendFactory = Callable[[Mapping[str, Any]], PersistenceBackend]


def _check_options(config: Mapping[str, Any], *names: str) -> None:
    unknown = sorted(set(config) - {"type", *names})
    if unknown:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise UsageError(f"a {config['type']} backend has no option {quoted(unknown[0])}; {has}")


def _file(config: Mapping[str, Any]) -> PersistenceBackend:
    _check_options(config, "path")
    path = os.path.expanduser(config.get("path") or default_folder())
    return StoreBackend(open_store(f"documents:{os.path.abspath(path)}"))


def _memory(config: Mapping[str, Any]) -> PersistenceBackend:
    _check_options(config)
    return StoreBackend(open_store("memory:"))


def _redis(config: Mapping[str, Any]) -> PersistenceBackend:
    _check_options(config, "url", "ttl")
    return StoreBackend(open_store(config.get("url") or "redis:"), ttl=config.get("ttl", REDIS_TTL))


def _sql(config: Mapping[str, Any]) -> PersistenceBackend:
    _check_options(config, "url")
    if not config.get("url"):
        raise UsageError("a sql backend needs a url, such as sqlite:///sessions.db")
    return StoreBackend(open_store(config["url"]))


_factories: dict[str, BackendFactory] = {"file": _file, "memory": _memory, "redis": _redis, "sql": _sql}


def register_backend(type: str, factory: BackendFactory) -> None:
    """Make ``create_persistence_backend({"type": type, ...})`` call ``factory`` with its whole argument."""
    _factories[type] = factory


def create_persistence_backend(config: Mapping[str, Any] | PersistenceBackend) -> PersistenceBackend:
    """A backend by its configuration; a backend itself is returned as it is.

    ``{"type": "file", "path": FOLDER}`` (default: Seepient's own folder), ``{"type": "memory"}``,
    ``{"type": "redis", "url": …, "ttl": SECONDS or None}`` (default: ``$REDIS_URL``, and 24 h from each save),
    ``{"type": "sql", "url": …}``, or a registered type. Raises UsageError for an unknown type or option, and for an
    object without the brand, be it given or made by a factory.
    """
    if not isinstance(config, Mapping):
        return check_backend(config)
    factory = _factories.get(config.get("type", ""))
    if factory is None:
        known = ", ".join(sorted(_factories))
        raise UsageError(f"no persistence backend is called {quoted(str(config.get('type')))}; known are {known}")
    return check_backend(factory(config))
