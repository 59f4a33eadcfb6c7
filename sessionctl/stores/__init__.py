"""``open_store``: the table of store types, each loaded when it is first named, and third-party ones by entry point."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UnknownStore
from ..keys import quoted

if TYPE_CHECKING:
    from .base import Store

ENTRY_POINTS = "sessionctl.stores"
"""Entry point group of third-party stores: the name is the scheme, the object a callable from URL to Store."""

SCHEMES: dict[str, str] = {
    "file": "folder:open_file",
    "documents": "folder:open_documents",
    "logs": "folder:open_logs",
    "memory": "memory:open_memory",
    "redis": "redis:open_redis",
    "rediss": "redis:open_redis",
    "unix": "redis:open_redis",
    "redis+sentinel": "redis:open_redis",
    "redis+cluster": "redis:open_redis",
    "sqlite": "sql:open_sql",
    "postgresql": "sql:open_sql",
}
"""Scheme to ``module:function`` in this package."""

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")


def open_store(url: str | os.PathLike[str]) -> Store:
    """Open a store by folder, URL or configured name (DESIGN.md, Where a store is named).

    Nothing is created and no server is asked before the store is used. Raises UnknownStore.
    """
    text = os.fspath(url)
    if "\0" in text:
        raise UnknownStore("the name of a store holds a NUL")  # it may hold a password, too
    if not isinstance(url, str):
        return _open("file", f"file:{text}")
    match = _SCHEME.match(text)
    if match:
        return _open(match[1].lower(), text)
    if "/" in text or text.startswith(("~", ".")):
        return _open("file", f"file:{text}")
    from ..config import load

    configured = load().stores.get(text)
    if configured is not None:
        return open_store(configured.url)
    if os.path.isdir(text):  # False also for what cannot be a name
        return _open("file", f"file:{text}")
    if text == "file":
        return open_store(default_folder())
    if text == "redis":
        return _open("redis", "redis:")
    from difflib import get_close_matches

    new = f"./{text}" if re.fullmatch(r"[\w.-]{1,80}", text) else "./NAME"
    near = get_close_matches(text, (*load().stores, "file", "redis"), 1)
    raise UnknownStore(
        f"no store is called {quoted(text)}" + (f"; did you mean {near[0]}?" if near else ""),
        hint=f"for a new folder write {new}; else name a folder, a URL such as redis://localhost/0, or a store of the "
        "configuration (sessionctl stores)",
    )


def default_folder() -> str:
    """Seepient's session folder: ``$SEEPIENT_SESSION_DIR``, else ``~/.seepient/sessions``. Raises UnknownStore."""
    named = os.environ.get("SEEPIENT_SESSION_DIR")
    if named:
        return os.path.join(named, "")
    home = os.path.expanduser("~")
    if "HOME" not in os.environ or home == "~":
        raise UnknownStore("no store is given and HOME is not set", hint="name one with --store or SESSIONCTL_STORE")
    return os.path.join(home, ".seepient", "sessions")


def _open(scheme: str, url: str) -> Store:
    place = SCHEMES.get(scheme)
    if place is not None:
        module, _, function = place.partition(":")
        opener: Callable[[str], Store] = getattr(import_module(f".{module}", __package__), function)
        return opener(url)
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=scheme):
        third_party: Callable[[str], Store] = found.load()
        return third_party(url)
    from difflib import get_close_matches

    near = get_close_matches(scheme, SCHEMES, 1)
    known = ", ".join(sorted(SCHEMES))
    raise UnknownStore(
        f"no store type answers to {quoted(scheme + ':')}",
        hint=f"did you mean {near[0]}:?" if near else f"known are {known}",
    )
