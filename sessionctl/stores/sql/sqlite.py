"""SQLite by the standard library: the file, its connections, and locks beside it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.types import NullType

from ...errors import StoreError, WriteFailed
from ...keys import quoted
from ...locks import FileLease, Holder, Lease, held_names
from ..files import reason
from .database import Database, Expression, Taken


class Sqlite(Database):
    """A database file. Every statement or transaction opens it anew, so that threads and forks share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"sqlite:///{path}"
        self._reader = sa.create_engine(
            "sqlite://", creator=self._open_reader, poolclass=NullPool, hide_parameters=True
        )
        self._writer = sa.create_engine(
            "sqlite://", creator=self._open_writer, poolclass=NullPool, hide_parameters=True
        )
        event.listen(self._writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))

    def present(self) -> bool:
        with self._mapped(StoreError, "read"):
            return self.path.exists()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._mapped(StoreError, "read"), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with self._mapped(WriteFailed, "write to"), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _mapped(self, kind: type[StoreError], action: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            cause = getattr(error, "orig", None) or error
            name = getattr(cause, "sqlite_errorname", "")
            if name in ("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"):
                raise Taken from None
            said = next((text for start, text in _ERRORS.items() if name.startswith(start)), None)
            raise kind(f"cannot {action} {self.name}: {said or str(cause).splitlines()[0]}") from error
        except OSError as error:
            raise kind(f"cannot {action} {self.name}: {reason(error)}") from error

    def _open_reader(self) -> sqlite3.Connection:
        """Read-only, and so that SQLite makes no file beside it.

        A database in WAL mode that nobody has open has no ``-wal`` file, and SQLite would make one.
        """
        wal = _header(self.path)[18:20] == b"\x02\x02" and not Path(f"{self.path}-wal").exists()
        connection = self._connect("immutable=1" if wal else "mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").close()
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
                raise
            # A writer has died in a transaction. Only SQLite's own recovery makes the file readable again.
            recovery = self._connect("mode=rw")
            recovery.execute("SELECT 1 FROM sqlite_master").close()
            recovery.close()
            connection = self._connect("mode=ro")
        return connection

    def _open_writer(self) -> sqlite3.Connection:
        self._folder()
        with suppress(FileExistsError):
            # Not closed: another thread may hold a lock on the new database already, which closing it would end.
            made = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            status = os.fstat(made)
            _descriptors[status.st_dev, status.st_ino] = made
        _header(self.path)
        return self._connect("mode=rw")

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?{mode}",
            uri=True,
            timeout=self.patience,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = lambda data: data.decode(errors="surrogateescape")
        return connection

    def moment(self, column: Expression, type_: Any) -> Expression:
        return sa.type_coerce(column, NullType())

    def mark(self, column: Expression, type_: Any) -> Expression:
        return self.moment(column, type_)

    def read_mark(self, value: Any) -> int | None:
        return self.read_moment(value)

    def write_moment(self, ms: int) -> str:
        seconds, rest = divmod(ms, 1000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:03d}000"

    def moment_values(self, type_: Any) -> dict[str, Expression]:
        return {}  # both are parameters as they are

    def text_bytes(self, column: Expression) -> Expression:
        return sa.cast(column, sa.LargeBinary)

    def text_size(self, column: Expression) -> Expression:
        if sqlite3.sqlite_version_info >= (3, 43):
            return sa.func.octet_length(column)
        return sa.func.length(sa.cast(column, sa.LargeBinary))

    def lock(self, name: str, what: str, wait: float) -> Lease:
        return FileLease(self._folder(), f"{self.path.name}:{name}", what, wait)

    def _folder(self) -> Path:
        """Where the database lies; raises WriteFailed where it could not be made."""
        folder = self.path.parent
        if not os.path.isdir(folder):
            raise WriteFailed(f"cannot make {self.name}: there is no folder {quoted(str(folder), 300)}")
        return folder

    def held(self, names: Callable[[], Iterable[str]]) -> dict[str, Holder]:
        prefix = f"{self.path.name}:"
        held = held_names(self.path.parent)
        return {name.removeprefix(prefix): holder for name, holder in held.items() if name.startswith(prefix)}

    def close(self) -> None:
        self._reader.dispose()
        self._writer.dispose()


_ERRORS = {
    "SQLITE_BUSY": "another program has locked it",
    "SQLITE_READONLY": "the file or its folder may not be written",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_NOTADB": "it is not an SQLite database",
    "SQLITE_CORRUPT": "the database is damaged",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_TOOBIG": "the session is too large for a row",
}
_descriptors: dict[tuple[int, int], int] = {}
"""One of each database file, kept open: closing any would end all locks that SQLite holds in this process (POSIX)."""


def _header(path: Path) -> bytes:
    """The first bytes of a database file. Raises OSError, and StoreError if it is no such file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{quoted(str(path), 300)} is not a regular file")
    name = (status.st_dev, status.st_ino)
    if name not in _descriptors:
        _descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    header = os.pread(_descriptors[name], 100, 0)
    if header and not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{quoted(str(path), 300)} is not an SQLite database")
    return header
