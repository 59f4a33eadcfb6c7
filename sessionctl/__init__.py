"""Stored sessions of AI agents: list, show, prune, move and repair them, and take turns on them.

The public names load when they are first used, so that importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .conversations import (
        Conversations,
        Resumed,
        Turn,
        create_session_store,
        get_history,
        session_id_for,
        with_session,
    )
    from .errors import (
        InvalidKey,
        LockLost,
        OwnershipMismatch,
        SessionChanged,
        SessionctlError,
        SessionDamaged,
        SessionLocked,
        SessionNotFound,
        StoreError,
        TooManySessions,
        UnknownStore,
        UsageError,
        WriteFailed,
    )
    from .keys import SessionKey
    from .limits import SessionManager
    from .model import Kind, Message, Record, Ref, Session, Stamp
    from .persistence import PersistenceBackend, StoreBackend, create_persistence_backend, register_backend
    from .stores import open_store
    from .stores.base import Store

__all__ = [
    "Conversations",
    "InvalidKey",
    "Kind",
    "LockLost",
    "Message",
    "OwnershipMismatch",
    "PersistenceBackend",
    "Record",
    "Ref",
    "Resumed",
    "Session",
    "SessionChanged",
    "SessionDamaged",
    "SessionKey",
    "SessionLocked",
    "SessionManager",
    "SessionNotFound",
    "SessionctlError",
    "Stamp",
    "Store",
    "StoreBackend",
    "StoreError",
    "TooManySessions",
    "Turn",
    "UnknownStore",
    "UsageError",
    "WriteFailed",
    "__version__",
    "create_persistence_backend",
    "create_session_store",
    "get_history",
    "open_store",
    "register_backend",
    "session_id_for",
    "with_session",
]

_NAMES = {
    "conversations": "Conversations Resumed Turn create_session_store get_history session_id_for with_session",
    "errors": (
        "InvalidKey LockLost OwnershipMismatch SessionChanged SessionDamaged SessionLocked SessionNotFound "
        "SessionctlError StoreError TooManySessions UnknownStore UsageError WriteFailed"
    ),
    "keys": "SessionKey",
    "limits": "SessionManager",
    "model": "Kind Message Record Ref Session Stamp",
    "persistence": "PersistenceBackend StoreBackend create_persistence_backend register_backend",
    "stores": "open_store",
    "stores.base": "Store",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
