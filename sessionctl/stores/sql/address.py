"""URLs of databases; nothing is connected here."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from ...errors import UnknownStore
from ...keys import quoted
from .database import Database
from .postgres import Postgres
from .sqlite import Sqlite

_FORMS = "write sqlite:///PATH or postgresql://USER@HOST/DATABASE"


def parse(url: str) -> Database:
    """The database that a URL names. Raises UnknownStore; ModuleNotFoundError where its driver is not installed."""
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:///")
        if path in ("", url) or path.startswith((":", "file:")) or "?" in path:
            raise UnknownStore(f"{quoted(url)} names no database file", hint=_FORMS)
        return Sqlite(Path(path).expanduser().resolve())
    try:
        parsed = sa.make_url(url)
        (parsed.host or "").encode("idna")  # raises for what can be no host's name
    except (ArgumentError, ValueError):
        raise UnknownStore("this is not the URL of a database", hint=_FORMS) from None
    return Postgres(parsed)
