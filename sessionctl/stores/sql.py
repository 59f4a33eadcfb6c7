"""Sessions in SQL tables (extra ``sql``): ``sqlite:///PATH`` and ``postgresql://…``, by SQLAlchemy Core.

Documents live in ``sessions``, the table of Seepient's documentation (FORMATS.md section 1, SQL), so that an
application which knows ``id``, ``messages`` and ``updated_at`` shares it with us. The columns ``payload_*`` hold the
rest of a payload, with holes where messages and ``updatedAt`` stand: what an application writes is part of the document
at once (see ``codec.rows``). A row without them is the application's own; with ``payload_head`` alone, it holds bytes
that are no document.
Logs live in ``session_logs`` and, line by line, in ``session_entries``.

Reads are single statements, never a transaction left open: nobody who writes has to wait for somebody who reads.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import sqlite3
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ..codec.rows import LATEST, bare_frame, split_document, time_growth, with_time
from ..codec.text import OLDEST
from ..errors import (
    InvalidKey,
    LockLost,
    SessionChanged,
    SessionctlError,
    SessionLocked,
    SessionNotFound,
    StoreBusy,
    StoreError,
    StoreNotFound,
    UnknownStore,
    UnsupportedKind,
    WriteFailed,
)
from ..keys import quoted
from ..locks import POLL, FileLease, Holder, Lease, held_names
from ..model import KINDS, Kind, Record, Ref, Stamp
from .base import ANY, BIG, TAIL, Any_, Put, Store, Want
from .files import reason

_HINT = "pip install 'sessionctl[sql]'"

try:
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.pool import NullPool, QueuePool
    from sqlalchemy.schema import CreateColumn
    from sqlalchemy.types import NullType, UserDefinedType
except ModuleNotFoundError as missing:
    raise StoreError("SQL stores need SQLAlchemy, which is not installed", hint=_HINT) from missing

SCHEMA_VERSION = 1
"""Of the tables below, kept in ``sessionctl_meta``."""

KEY_LIMIT = 1024
"""Bytes of a key: an index of PostgreSQL holds no more than 2,700."""

PATIENCE = 60
"""Seconds that a read or write waits for another program's transaction."""

_PAGE = 500
"""Sessions looked up by one statement."""
_RUN = 2 * BIG
"""Bytes of payloads held in memory at a time."""
_PIECE = 1 << 20
"""Bytes: a line longer than this goes on in the next row of ``session_entries``."""
_GROUP = 100
"""Sessions written by one transaction of ``put_many``."""
_TRIES = 5
"""How often a write that met another's insert of the same session is tried again."""

Expression = sa.ColumnElement[Any]
Row = sa.Row[Any]


class _TextMoment(UserDefinedType[str]):
    """A moment in SQLite, which has no such type: text in UTC as its own functions write and read it."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "TIMESTAMP"


_tables = sa.MetaData()
_meta = sa.Table(
    "sessionctl_meta",
    _tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# The large columns stand last: SQLite reads through all that precedes a column.
_sessions = sa.Table(
    "sessions",
    _tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("updated_at", sa.TIMESTAMP(timezone=True).with_variant(_TextMoment(), "sqlite")),
    sa.Column("payload_version", sa.BigInteger),
    sa.Column("payload_updated_at", sa.BigInteger),
    sa.Column("payload_changed_at", sa.BigInteger),
    sa.Column("payload_expires_at", sa.BigInteger),
    sa.Column("payload_time_at", sa.BigInteger),
    sa.Column("payload_time_length", sa.BigInteger),
    sa.Column("payload_head", sa.LargeBinary),
    sa.Column("payload_tail", sa.LargeBinary),
    sa.Column("messages", sa.Text),
)
_logs = sa.Table(
    "session_logs",
    _tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
)
_entries = sa.Table(
    "session_entries",
    _tables,
    sa.Column("session_id", sa.Text, sa.ForeignKey("session_logs.id"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("line", sa.LargeBinary, nullable=False),
)
_TABLES: dict[Kind, sa.Table] = {"document": _sessions, "log": _logs}
_EXPIRY: dict[Kind, sa.Column[Any]] = {"document": _sessions.c.payload_expires_at, "log": _logs.c.expires_at}
_expiry_indexes = [
    sa.Index(
        f"{column.table.name}_expiry",
        column,
        sqlite_where=column.is_not(None),
        postgresql_where=column.is_not(None),
    )
    for column in _EXPIRY.values()
]
_APPLICATION = ("id", "messages", "updated_at")
"""The columns that an application's table must have."""


class _Shape(NamedTuple):
    """What of the tables a database has: column types of ``sessions`` (none: no such table), and whether it has logs.

    ``versioned`` is True when our own schema version was found. ``refusal`` says why documents can only be read.
    """

    types: dict[str, Any]
    logs: bool
    versioned: bool
    refusal: str | None = None

    def has(self, kind: Kind) -> bool:
        return bool(self.types) if kind == "document" else self.logs

    @property
    def complete(self) -> bool:
        return self.versioned and self.logs and self.types.keys() >= set(_sessions.c.keys())


class _Database(ABC):
    """What SQLite and PostgreSQL do each in its own way. ``name`` is shown to people and holds no secret."""

    name: str

    @abstractmethod
    def present(self) -> bool:
        """Whether there may be a database to read."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[sa.Connection]:
        """A connection for statements that each stand alone. Raises StoreError."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[sa.Connection]:
        """A transaction, committed when the block ends well. Raises WriteFailed, _Taken."""

    @abstractmethod
    def moment(self, column: Expression, type_: Any) -> Expression:
        """A moment as what ``read_moment`` takes."""

    @abstractmethod
    def read_moment(self, value: Any) -> int | None:
        """ms since the epoch, None where it is no moment."""

    @abstractmethod
    def write_moment(self, ms: int) -> Any:
        """A moment as the parameter ``new_updated_at``."""

    @abstractmethod
    def moment_values(self, type_: Any) -> dict[str, Expression]:
        """What ``updated_at`` is set to, and ``payload_updated_at``, which is the mark of that."""

    @abstractmethod
    def read_mark(self, value: Any) -> Any:
        """A mark that was read, to be compared with one that was stored."""

    @abstractmethod
    def mark(self, column: Expression, type_: Any) -> Expression:
        """A moment as a number that is the same for the same stored value, whatever the time zones."""

    @abstractmethod
    def text_bytes(self, column: Expression) -> Expression:
        """A text as its bytes in UTF-8."""

    @abstractmethod
    def text_size(self, column: Expression) -> Expression:
        """Bytes of a text."""

    def refusal(self, types: dict[str, Any]) -> str | None:
        """Why we cannot write to an application's table of these column types, None where we can."""
        return None

    def check(self, connection: sa.Connection, types: dict[str, Any]) -> None:
        """Raise StoreError for a database, or a table of these column types, that cannot even be read."""

    def before_schema(self, connection: sa.Connection) -> None:
        """See to it that no other program makes the tables at the same time."""

    @abstractmethod
    def lock(self, name: str, what: str, wait: float) -> Lease:
        """Raises SessionLocked."""

    @abstractmethod
    def held(self, names: Callable[[], Iterable[str]]) -> dict[str, Holder]:
        """Who holds which lock; ``names`` are asked for only where there is a lock whose name is not known."""

    @abstractmethod
    def close(self) -> None:
        """Give back all connections."""


class SqlStore(Store):
    """The sessions of one SQL database. Tables are made, and an application's table is extended, by the first write.

    A payload whose time to live is over is no longer seen; the next program that starts to write removes it.
    """

    def __init__(self, database: _Database) -> None:
        self._database = database
        self.url = database.name
        self._shape: _Shape | None = None
        self._ready = False

    def exists(self) -> bool:
        try:
            self._look()
        except StoreNotFound:
            return False
        return True

    def close(self) -> None:
        self._database.close()

    def check_key(self, ref: Ref) -> None:
        if not ref.key:
            raise InvalidKey("it is empty")
        if not _storable(ref.key):
            raise InvalidKey(f"{quoted(ref.key)} is not text that a database can hold")
        length = len(ref.key.encode())
        if length > KEY_LIMIT:
            raise InvalidKey(f"{quoted(ref.key)} is {length} bytes long, the limit is {KEY_LIMIT}")

    def _look(self) -> _Shape:
        """Which tables there are. Raises StoreNotFound for none, StoreError for those of a newer version."""
        if self._shape is not None:
            return self._shape
        if not self._database.present():
            raise StoreNotFound(f"no database at {self.url}", hint="name another with --store or SESSIONCTL_STORE")
        with self._database.reading() as connection:
            shape = _inspect(self._database, connection)
        if not shape.types and not shape.logs:
            raise StoreNotFound(
                f"no sessions in the database {self.url}", hint="its tables are made by the first write"
            )
        if shape.complete:
            self._shape = shape
        return shape

    # --- reading ----------------------------------------------------------------------------------------------------

    def records(
        self, want: Want = Want.WHOLE, refs: Iterable[Ref] | None = None, kinds: Iterable[Kind] = KINDS
    ) -> Iterator[Record]:
        wanted = frozenset(kinds)
        asked = None if refs is None else tuple(dict.fromkeys(ref for ref in refs if _storable(ref.key)))
        shape = self._look()
        for kind in KINDS:
            keys = None if asked is None else [ref.key for ref in asked if ref.kind == kind]
            if kind not in wanted or not shape.has(kind):
                continue
            for page in self._pages(kind, shape, keys):
                if want is Want.NAMES:
                    yield from page
                    continue
                load = self._documents if kind == "document" else self._logs
                for run in _runs(page, want):
                    # Read whole before any is given out: its user may write to this database in between.
                    yield from load(shape, want, [record.ref.key for record in run])

    def _pages(self, kind: Kind, shape: _Shape, keys: list[str] | None) -> Iterator[list[Record]]:
        """Names and stamps, a page at a time, of all sessions or those of ``keys``."""
        key = _TABLES[kind].c.id
        query = self._headers(kind, shape)
        if keys is not None:
            for start in range(0, len(keys), _PAGE):
                yield self._seen(kind, self._fetch(query.where(key.in_(keys[start : start + _PAGE]))))
            return
        query = query.order_by(key).limit(_PAGE)
        rows = self._fetch(query.where(key.is_not(None)))
        while rows:
            yield self._seen(kind, rows)
            rows = self._fetch(query.where(key > rows[-1].id)) if len(rows) == _PAGE else ()

    def _fetch(self, query: sa.Select[Any]) -> Sequence[Row]:
        with self._database.reading() as connection:
            return connection.execute(query).all()

    def _headers(self, kind: Kind, shape: _Shape, *more: Expression) -> sa.Select[Any]:
        """What a stamp is made of, and ``more``."""
        if kind == "log":
            return sa.select(*_logs.c, *more)
        updated_at = _sessions.c.updated_at
        return sa.select(
            _sessions.c.id,
            self._database.moment(updated_at, shape.types["updated_at"]).label("updated_at"),
            self._database.mark(updated_at, shape.types["updated_at"]).label("mark"),
            self._database.text_size(_sessions.c.messages).label("messages_size"),
            sa.func.length(_ours(shape, "payload_head")).label("head_size"),
            sa.func.length(_ours(shape, "payload_tail")).label("tail_size"),
            *(_ours(shape, f"payload_{name}").label(label) for name, label in _HEADER.items()),
            *more,
        ).select_from(_sessions)

    def _seen(self, kind: Kind, rows: Iterable[Row]) -> list[Record]:
        """Records without payloads, of the rows that have not expired."""
        now = _now()
        found = ((Ref(str(row.id), kind), self._stamp(kind, row, now)) for row in rows)
        return [Record(ref, stamp) for ref, stamp in found if stamp is not None]

    def _stamp(self, kind: Kind, row: Row, now: int) -> Stamp | None:
        """None for a row whose time to live is over."""
        if kind == "log":
            stamp = Stamp((row.version, row.size), row.size, row.changed_at, "mtime", row.expires_at)
        else:
            stamp = self._document_stamp(row)
        if stamp.ttl_ms is None:
            return stamp
        return stamp._replace(ttl_ms=stamp.ttl_ms - now) if stamp.ttl_ms > now else None

    def _document_stamp(self, row: Row) -> Stamp:
        """The stamp of a document, ``ttl_ms`` still being the moment of its end."""
        version = (row.version, self._database.read_mark(row.mark), row.messages_size)
        if _is_raw(row):
            return Stamp(version, row.head_size, row.changed_at, "mtime", row.expires_at)
        messages_size = len(_NULL) if row.messages_size is None else row.messages_size
        updated_at = self._database.read_moment(row.updated_at)
        if row.tail_size is None:
            size = messages_size + sum(map(len, bare_frame(str(row.id), updated_at)))
        else:
            size = messages_size + row.head_size + row.tail_size
            if not self._touched(row):
                return Stamp(version, size, row.changed_at, "mtime", row.expires_at)
            if updated_at is not None:
                size += time_growth(row.time_length, updated_at)
        # As with Redis' SET, what an application writes has no end.
        return Stamp(version, size, updated_at, "none" if updated_at is None else "mtime")

    def _touched(self, row: Row) -> bool:
        """Whether an application has written the row since we did."""
        return bool(self._database.read_mark(row.mark) != row.marked)

    def _frame(self, row: Row, head: bytes | None, tail: bytes | None) -> tuple[bytes, bytes]:
        """The bytes before and after a document's messages."""
        head = head or b""  # (SQLite's substr makes NULL of nothing)
        if _is_raw(row):
            return head, b""
        updated_at = self._database.read_moment(row.updated_at)
        if tail is None:
            return bare_frame(str(row.id), updated_at)
        if updated_at is None or not self._touched(row):
            return head, tail
        return with_time(head, tail, row.time_at, row.time_length, updated_at)

    def _documents(self, shape: _Shape, want: Want, keys: list[str]) -> list[Record]:
        head, tail = _ours(shape, "payload_head"), _ours(shape, "payload_tail")
        messages = self._database.text_bytes(_sessions.c.messages)
        if want is Want.TAIL:
            columns = [sa.case((tail.is_(None), _end(head)), else_=head), _end(messages), tail]
        else:
            sizes = (sa.func.length(head), self._database.text_size(_sessions.c.messages), sa.func.length(tail))
            small = sum((sa.func.coalesce(size, 0) for size in sizes), sa.literal(0)) <= BIG
            columns = [sa.case((small, column)) for column in (head, messages, tail)]
        named = (column.label(name) for column, name in zip(columns, ("head", "messages", "tail"), strict=True))
        rows = self._fetch(self._headers("document", shape, *named).where(_sessions.c.id.in_(keys)))
        by_key = {str(row.id): row for row in rows}
        found = []
        for record in self._seen("document", rows):
            size = record.stamp.size
            if want is Want.WHOLE and size > BIG:
                found.append(record)
                continue
            row = by_key[record.ref.key]
            before, after = self._frame(row, row.head, row.tail)
            payload = before + _middle(row) + after
            whole = want is Want.WHOLE or size <= TAIL
            found.append(record._replace(payload=payload if whole else payload[-TAIL:], whole=whole))
        return found

    def _logs(self, shape: _Shape, want: Want, keys: list[str]) -> list[Record]:
        joined = _entries.c.session_id == _logs.c.id
        if want is Want.TAIL:
            earlier = _entries.alias()
            first = (
                sa.select(sa.func.max(earlier.c.position))
                .where(earlier.c.session_id == _logs.c.id, earlier.c.position <= _logs.c.size - TAIL)
                .correlate(_logs)
                .scalar_subquery()
            )
            joined &= _entries.c.position >= sa.func.coalesce(first, 0)
        else:
            joined &= _logs.c.size <= BIG
        query = self._headers("log", shape, _entries.c.line).select_from(_logs.outerjoin(_entries, joined))
        rows = self._fetch(query.where(_logs.c.id.in_(keys)).order_by(_logs.c.id, _entries.c.position))
        lines: dict[str, list[bytes]] = {}
        for row in rows:
            lines.setdefault(row.id, []).append(row.line or b"")
        found = []
        for record in self._seen("log", {row.id: row for row in rows}.values()):
            size = record.stamp.size
            if want is Want.WHOLE and size > BIG:
                found.append(record)
                continue
            payload = b"".join(lines[record.ref.key])
            whole = want is Want.WHOLE or size <= TAIL
            found.append(record._replace(payload=payload if whole else payload[-TAIL:], whole=whole))
        return found

    def chunks(self, ref: Ref) -> Iterator[bytes]:
        shape = self._look()
        if not _storable(ref.key) or not shape.has(ref.kind):
            raise SessionNotFound(quoted(ref.key))
        return self._log_chunks(ref, shape) if ref.kind == "log" else self._document_chunks(ref, shape)

    def _log_chunks(self, ref: Ref, shape: _Shape) -> Iterator[bytes]:
        first = self.stamp(ref)
        if first is None:
            raise SessionNotFound(quoted(ref.key))
        position = 0
        while position < first.size:
            here = (_entries.c.session_id == _logs.c.id) & _entries.c.position.between(position, position + BIG - 1)
            query = self._headers("log", shape, _entries.c.line).select_from(_logs.outerjoin(_entries, here))
            rows = self._fetch(query.where(_logs.c.id == ref.key).order_by(_entries.c.position))
            piece = b"".join(row.line or b"" for row in rows)
            # An append leaves the first part of the version as it was, and all the bytes that were there.
            if not piece or rows[0].version != first.version[0]:
                raise _changed_while_read(ref)
            yield piece[: first.size - position]
            position += len(piece)

    def _document_chunks(self, ref: Ref, shape: _Shape) -> Iterator[bytes]:
        head, tail = _ours(shape, "payload_head"), _ours(shape, "payload_tail")
        framed = sa.case((tail.is_not(None), head), else_=sa.literal(b"")).label("head")
        row = self._row(self._headers("document", shape, framed, tail.label("tail")), ref)
        if row is None or self._stamp("document", row, _now()) is None:
            raise SessionNotFound(quoted(ref.key))
        version = self._document_stamp(row).version
        before, after = self._frame(row, row.head, row.tail)
        middle = head if _is_raw(row) else self._database.text_bytes(_sessions.c.messages)
        size = row.head_size if _is_raw(row) else row.messages_size
        yield before
        if size is None:
            yield _NULL
        for start in range(0, size or 0, BIG):
            piece = sa.func.substr(middle, start + 1, BIG).label("piece")
            row = self._row(self._headers("document", shape, piece), ref)
            if row is None or self._document_stamp(row).version != version:
                raise _changed_while_read(ref)
            yield row.piece
        yield after

    def _row(self, query: sa.Select[Any], ref: Ref) -> Row | None:
        rows = self._fetch(query.where(_TABLES[ref.kind].c.id == ref.key))
        return rows[0] if rows else None

    def stamp(self, ref: Ref) -> Stamp | None:
        shape = self._look()
        if not _storable(ref.key) or not shape.has(ref.kind):
            return None
        row = self._row(self._headers(ref.kind, shape), ref)
        return None if row is None else self._stamp(ref.kind, row, _now())

    def holders(self, refs: Iterable[Ref] | None = None) -> dict[Ref, Holder]:
        asked = None if refs is None else frozenset(refs)

        def names() -> Iterator[str]:
            known = (record.ref for record in self.records(Want.NAMES)) if asked is None and self.exists() else asked
            return (_lock_name(ref) for ref in known or ())

        held = ((_lock_ref(name), holder) for name, holder in self._database.held(names).items())
        return {ref: holder for ref, holder in held if ref is not None and (asked is None or ref in asked)}

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        ref: Ref,
        payload: bytes,
        *,
        expect: Stamp | Any_ | None,
        changed_at: int | None = None,
        ttl_ms: int | None = None,
    ) -> Stamp:
        item = Put(ref, payload, expect, changed_at, ttl_ms)
        return self._write(ref, expect, lambda work: self._put(work, [item])[0])

    def put_many(self, items: Sequence[Put]) -> Iterator[Stamp | SessionctlError]:
        """Many in one transaction; where one of them fails, each in a transaction of its own."""
        for start in range(0, len(items), _GROUP):
            group = items[start : start + _GROUP]
            try:
                if len({item.ref for item in group}) < len(group):
                    raise _Taken
                for item in group:
                    self.check_key(item.ref)
                with self._working() as work:
                    stamps = self._put(work, group)
            except (SessionctlError, _Taken):
                yield from super().put_many(group)
            else:
                yield from stamps

    def _put(self, work: _Work, items: Sequence[Put]) -> list[Stamp]:
        """Write sessions, no two of one name, in few statements."""
        now = _now()
        versions: dict[Ref, tuple[object, ...]] = {}
        for kind in KINDS:
            some = {item.ref.key: item for item in items if item.ref.kind == kind}
            if not some:
                continue
            rows = {row.id: row for row in work.connection.execute(self._found(work, kind, list(some), update=True))}
            for key, item in some.items():
                self._guard(item.ref, rows.get(key), item.expect)
            write = self._write_documents if kind == "document" else _write_logs
            versions |= write(work, some.values(), now, frozenset(rows))
        return [
            Stamp(
                versions[item.ref],
                len(item.payload),
                now if item.changed_at is None else item.changed_at,
                "mtime",
                item.ttl_ms,
            )
            for item in items
        ]

    def append(self, ref: Ref, lines: bytes, *, expect: Stamp | Any_ | None) -> Stamp:
        if ref.kind != "log":
            raise UnsupportedKind("only a log is appended to")
        return self._write(ref, expect, lambda work: self._append(work, ref, lines, expect))

    def _append(self, work: _Work, ref: Ref, lines: bytes, expect: Stamp | Any_ | None) -> Stamp:
        row = self._find(work, ref, expect)
        now = _now()
        before = None if row is None else self._stamp("log", row, now)
        if before is None:
            written = _write_logs(work, [Put(ref, lines)], now, frozenset([ref.key] if row is not None else ()))
            return Stamp(written[ref], len(lines), now, "mtime")
        size = before.size + len(lines)
        work.connection.execute(_logs.update().where(_logs.c.id == ref.key).values(size=size, changed_at=now))
        _insert_lines(work, _line_rows(ref.key, before.size, lines))
        return Stamp((before.version[0], size), size, now, "mtime", before.ttl_ms)

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        def write(work: _Work) -> Stamp:
            try:
                row = self._find(work, ref, expect)
            except SessionChanged:
                row = None
            if row is None:
                return expect
            table, column = _TABLES[ref.kind], "changed_at" if ref.kind == "log" else "payload_changed_at"
            work.connection.execute(table.update().where(table.c.id == ref.key).values({column: changed_at}))
            return expect._replace(changed_at=changed_at, source="mtime")

        return self._write(ref, expect, write)

    def _write_documents(
        self, work: _Work, items: Iterable[Put], now: int, there: frozenset[str]
    ) -> dict[Ref, tuple[object, ...]]:
        if work.shape.refusal:
            raise WriteFailed(f"cannot write to {self.url}: {work.shape.refusal}")
        values: dict[str, Expression] = {column.name: sa.bindparam(f"new_{column.name}") for column in _sessions.c}
        values |= self._database.moment_values(work.shape.types["updated_at"])
        del values["id"]
        key: Expression = sa.bindparam("key")
        rows = [self._document_row(item, now) for item in items]
        for statement, is_there in (
            (_sessions.insert().values(id=key, **values), False),
            (_sessions.update().where(_sessions.c.id == key).values(values), True),
        ):
            some = [row for row in rows if (row["key"] in there) is is_there]
            if some:
                work.connection.execute(statement, some)
        written = work.connection.execute(self._found(work, "document", [row["key"] for row in rows]))
        return {Ref(row.id, "document"): self._document_stamp(row).version for row in written}

    def _document_row(self, item: Put, now: int) -> dict[str, Any]:
        changed_at = now if item.changed_at is None else item.changed_at
        split = split_document(item.payload)
        known = split.updated_at if split else None
        updated_at = min(max(0, changed_at), LATEST) if known is None else known
        return {
            "key": item.ref.key,
            "new_messages": split.messages if split else None,
            "new_updated_at": self._database.write_moment(updated_at),
            "new_payload_updated_at": updated_at,
            "new_payload_version": _new_version(),
            "new_payload_changed_at": changed_at,
            "new_payload_expires_at": None if item.ttl_ms is None else now + item.ttl_ms,
            "new_payload_head": split.head if split else item.payload,
            "new_payload_tail": split.tail if split else None,
            "new_payload_time_at": split.time_at if split else None,
            "new_payload_time_length": split.time_length if split else None,
        }

    def _found(self, work: _Work, kind: Kind, keys: Sequence[str], *, update: bool = False) -> sa.Select[Any]:
        """The rows of these sessions, expired or not; ``update`` keeps them from others until the transaction ends."""
        table = _TABLES[kind]
        query = self._headers(kind, work.shape).where(table.c.id.in_(keys))
        return query.order_by(table.c.id).with_for_update(of=table) if update else query

    def _find(self, work: _Work, ref: Ref, expect: Stamp | Any_ | None) -> Row | None:
        """The row of a session, kept from others. Raises SessionChanged if it is not as expected."""
        row = work.connection.execute(self._found(work, ref.kind, [ref.key], update=True)).first()
        self._guard(ref, row, expect)
        return row

    def _guard(self, ref: Ref, row: Row | None, expect: Stamp | Any_ | None) -> None:
        if isinstance(expect, Any_):
            return
        found = None if row is None else self._stamp(ref.kind, row, _now())
        if (found and found.version) != (expect and expect.version):
            raise SessionChanged(quoted(ref.key))

    def _write(self, ref: Ref, expect: Stamp | Any_ | None, write: Callable[[_Work], Stamp]) -> Stamp:
        """Carry out ``write`` in a transaction."""
        self.check_key(ref)  # before a database is made
        for _ in range(_TRIES):
            try:
                with self._working() as work:
                    return write(work)
            except _Taken:
                if expect is None:
                    break
        raise SessionChanged(quoted(ref.key))

    @contextmanager
    def _working(self) -> Iterator[_Work]:
        """A transaction on tables that are ours; made, extended and purged in it when it is the first of this store."""
        with self._database.writing() as connection:
            shape = self._shape
            if shape is None or not self._ready:
                self._database.before_schema(connection)
                shape = _make_tables(self._database, connection)
                self._purge(_Work(connection, shape))
            yield _Work(connection, shape)
        self._shape, self._ready = shape, True

    def _purge(self, work: _Work) -> None:
        """Remove what has expired."""
        now = _now()
        for kind in KINDS:
            rows = work.connection.execute(self._headers(kind, work.shape).where(_EXPIRY[kind] <= now)).all()
            for row in rows:
                if self._stamp(kind, row, now) is None:
                    _delete(work.connection, kind, row.id)

    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        shape = self._look()
        if not _storable(ref.key) or not shape.has(ref.kind):
            raise SessionNotFound(quoted(ref.key))
        with self._database.writing() as connection:
            row = self._find(_Work(connection, shape), ref, ANY)
            found = None if row is None else self._stamp(ref.kind, row, _now())
            if found is None:
                raise SessionNotFound(quoted(ref.key))
            if not isinstance(expect, Any_) and found.version != expect.version:
                raise SessionChanged(quoted(ref.key))
            _delete(connection, ref.kind, ref.key)

    def lock(self, ref: Ref, wait: float) -> Lease:
        return self._database.lock(_lock_name(ref), quoted(ref.key), wait)

    def lock_store(self, name: str) -> Lease:
        try:
            return self._database.lock(f"store:{name}", f"this store ({self.url})", 0)
        except SessionLocked as error:
            raise StoreBusy(str(error)) from None


class _Work(NamedTuple):
    """A transaction, and the tables that it sees."""

    connection: sa.Connection
    shape: _Shape


class _Taken(Exception):
    """Another program has inserted the same session since we looked for it."""


_NULL = b"null"
_HEADER = {
    "version": "version",
    "updated_at": "marked",
    "changed_at": "changed_at",
    "expires_at": "expires_at",
    "time_at": "time_at",
    "time_length": "time_length",
}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _new_version() -> int:
    """Never the same twice: a session that was removed and made again is another one."""
    return secrets.randbits(62)


def _storable(key: str) -> bool:
    """Whether a database can be asked for a key: none holds NUL or half a surrogate pair."""
    return key.isprintable() or ("\0" not in key and not any("\ud800" <= c <= "\udfff" for c in key))


def _lock_name(ref: Ref) -> str:
    return f"{ref.kind}:{ref.key}"


def _lock_ref(name: str) -> Ref | None:
    kind, _, key = name.partition(":")
    return next((Ref(key, known) for known in KINDS if known == kind), None)


def _changed_while_read(ref: Ref) -> StoreError:
    return StoreError(f"{quoted(ref.key)} was changed while it was read", hint="try again")


def _ours(shape: _Shape, name: str) -> Expression:
    """A column of ours, NULL in a table that an application has made and we have not extended."""
    return _sessions.c[name] if name in shape.types else sa.cast(sa.null(), _sessions.c[name].type)


def _is_raw(row: Row) -> bool:
    """Whether a row holds bytes that are no document, and no application has written messages since."""
    return row.head_size is not None and row.tail_size is None and row.messages_size is None


def _middle(row: Row) -> bytes:
    if _is_raw(row):
        return b""
    return _NULL if row.messages is None else bytes(row.messages)


def _end(column: Expression) -> Expression:
    """The last TAIL bytes."""
    length = sa.func.length(column)
    return sa.func.substr(column, sa.case((length > TAIL, length - (TAIL - 1)), else_=1))


def _runs(page: Iterable[Record], want: Want) -> Iterator[list[Record]]:
    """A page in parts whose payloads fit in memory together."""
    run: list[Record] = []
    held = 0
    for record in page:
        size = min(record.stamp.size, TAIL if want is Want.TAIL else BIG)
        if run and held + size > _RUN:
            yield run
            run, held = [], 0
        run.append(record)
        held += size
    if run:
        yield run


def _write_logs(work: _Work, items: Iterable[Put], now: int, there: frozenset[str]) -> dict[Ref, tuple[object, ...]]:
    rows, lines = [], []
    for item in items:
        rows.append(
            {
                "key": item.ref.key,
                "new_version": _new_version(),
                "new_size": len(item.payload),
                "new_changed_at": now if item.changed_at is None else item.changed_at,
                "new_expires_at": None if item.ttl_ms is None else now + item.ttl_ms,
            }
        )
        lines += _line_rows(item.ref.key, 0, item.payload)
    values: dict[str, Expression] = {
        column.name: sa.bindparam(f"new_{column.name}") for column in _logs.c if column.name != "id"
    }
    key: Expression = sa.bindparam("key")
    new = [row for row in rows if row["key"] not in there]
    old = [row for row in rows if row["key"] in there]
    if new:
        work.connection.execute(_logs.insert().values(id=key, **values), new)
    if old:
        work.connection.execute(_entries.delete().where(_entries.c.session_id.in_([row["key"] for row in old])))
        work.connection.execute(_logs.update().where(_logs.c.id == key).values(values), old)
    _insert_lines(work, lines)
    return {Ref(str(row["key"]), "log"): (row["new_version"], row["new_size"]) for row in rows}


def _insert_lines(work: _Work, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _PAGE):
        work.connection.execute(_entries.insert(), rows[start : start + _PAGE])


def _line_rows(key: str, position: int, payload: bytes) -> list[dict[str, Any]]:
    """One row for each line, its newline included, named by the byte at which it begins."""
    rows = []
    for line in _lines(payload):
        rows.append({"session_id": key, "position": position, "line": line})
        position += len(line)
    return rows


def _lines(payload: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(payload):
        end = payload.find(b"\n", start, start + _PIECE) + 1 or min(start + _PIECE, len(payload))
        yield payload[start:end]
        start = end


def _delete(connection: sa.Connection, kind: Kind, key: str) -> None:
    if kind == "log":
        connection.execute(_entries.delete().where(_entries.c.session_id == key))
    table = _TABLES[kind]
    connection.execute(table.delete().where(table.c.id == key))


# --- tables -----------------------------------------------------------------------------------------------------------


def _inspect(database: _Database, connection: sa.Connection) -> _Shape:
    """What tables there are. Raises StoreError for tables that are not ours to read."""
    look = sa.inspect(connection)
    names = frozenset(look.get_table_names())
    versioned = _meta.name in names and _check_version(database, connection)
    types = (
        {column["name"]: column["type"] for column in look.get_columns(_sessions.name)} if "sessions" in names else {}
    )
    absent = [name for name in _APPLICATION if name not in types]
    if types and absent:
        raise StoreError(
            f"the table 'sessions' of {database.name} is not one of stored sessions: it has no column {absent[0]!r}"
        )
    database.check(connection, types)
    return _Shape(types, {_logs.name, _entries.name} <= names, versioned, database.refusal(types) if types else None)


def _check_version(database: _Database, connection: sa.Connection) -> bool:
    value = connection.scalar(sa.select(_meta.c.value).where(_meta.c.name == "schema_version"))
    if value is None:
        return False
    if str(value) != str(SCHEMA_VERSION):
        raise StoreError(
            f"the tables of {database.name} have schema version {quoted(str(value), 20)}, "
            f"this sessionctl knows version {SCHEMA_VERSION}",
            hint="a newer sessionctl wrote them: upgrade this one",
        )
    return True


def _make_tables(database: _Database, connection: sa.Connection) -> _Shape:
    """Make the tables that are missing, extend the table of an application, and note the schema version."""
    shape = _inspect(database, connection)
    if shape.complete:
        return shape
    _tables.create_all(connection)
    added = [column for column in _sessions.c if shape.types and column.name not in shape.types]
    for column in added:
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE sessions ADD COLUMN {definition}"))
    if added:
        for index in _expiry_indexes:
            index.create(connection, checkfirst=True)
    if not shape.versioned:
        connection.execute(_meta.insert().values(name="schema_version", value=str(SCHEMA_VERSION)))
    return _inspect(database, connection)


# --- SQLite -----------------------------------------------------------------------------------------------------------


class _Sqlite(_Database):
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
                raise _Taken from None
            said = next((text for start, text in _SQLITE_ERRORS.items() if name.startswith(start)), None)
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
        if not self.path.parent.is_dir():
            raise WriteFailed(f"cannot make {self.name}: there is no folder {quoted(str(self.path.parent), 300)}")
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
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = lambda data: data.decode(errors="surrogateescape")
        return connection

    def moment(self, column: Expression, type_: Any) -> Expression:
        return sa.type_coerce(column, NullType())

    def mark(self, column: Expression, type_: Any) -> Expression:
        return self.moment(column, type_)

    def read_moment(self, value: Any) -> int | None:
        return _sqlite_moment(value)

    def read_mark(self, value: Any) -> int | None:
        return _sqlite_moment(value)

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
        folder = self.path.parent
        if not folder.is_dir():
            raise WriteFailed(f"cannot lock {what}: there is no folder {quoted(str(folder), 300)}")
        return FileLease(folder, f"{self.path.name}:{name}", what, wait)

    def held(self, names: Callable[[], Iterable[str]]) -> dict[str, Holder]:
        prefix = f"{self.path.name}:"
        held = held_names(self.path.parent)
        return {name.removeprefix(prefix): holder for name, holder in held.items() if name.startswith(prefix)}

    def close(self) -> None:
        self._reader.dispose()
        self._writer.dispose()


_SQLITE_ERRORS = {
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


def _sqlite_moment(value: object) -> int | None:
    """What an application may have put into ``updated_at``: ms, seconds, or text in ISO 8601 (UTC without a zone)."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return round(moment.timestamp() * 1000)
    if isinstance(value, (int, float)) and 0 <= value <= LATEST:
        return round(value if value >= OLDEST else value * 1000)
    return None


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

_AWARE = sa.TIMESTAMP(timezone=True)
_SCHEMA_LOCK = "schema"
_HELD = """
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS number, l.pid, a.application_name, a.usename
    FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_RELEASE = "SELECT pg_advisory_unlock_all(), set_config('application_name', 'sessionctl', false)"


class _Postgres(_Database):
    """A PostgreSQL database, by psycopg 3."""

    def __init__(self, url: sa.URL) -> None:
        self.name = _without_secrets(url).render_as_string()
        self._secrets = [value for value in (url.password, *map(url.query.get, _SECRET_OPTIONS)) if value]
        options: dict[str, Any] = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
        self.engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=QueuePool,
            max_overflow=-1,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={"application_name": "sessionctl", **options},
        )
        self._single = self.engine.execution_options(isolation_level="AUTOCOMMIT")

    def present(self) -> bool:
        return True

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self.mapped(StoreError, "read"), self._single.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with self.mapped(WriteFailed, "write to"), self.engine.begin() as connection:
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{PATIENCE}s'"))
            yield connection

    @contextmanager
    def mapped(self, kind: type[StoreError], action: str) -> Iterator[None]:
        """Errors of the database as ours, in one line and without a password."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            state = getattr(cause, "sqlstate", None)
            if state == "23505":
                raise _Taken from None
            said = "another program has locked it" if state == "55P03" else _one_line(str(cause))
            for secret in self._secrets:
                said = said.replace(str(secret), "***")
            raise kind(f"cannot {action} {self.name}: {said}") from None

    def moment(self, column: Expression, type_: Any) -> Expression:
        return _epoch(column, sa.cast(column, _AWARE)) if isinstance(type_, sa.DateTime) else column

    def mark(self, column: Expression, type_: Any) -> Expression:
        return _epoch(column, column) if isinstance(type_, sa.DateTime) else column

    def read_moment(self, value: Any) -> int | None:
        return value if isinstance(value, int) else _sqlite_moment(value)

    def read_mark(self, value: Any) -> Any:
        return value

    def write_moment(self, ms: int) -> datetime:
        seconds, rest = divmod(ms, 1000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)

    def moment_values(self, type_: Any) -> dict[str, Expression]:
        stored = sa.cast(sa.bindparam("new_updated_at", type_=_AWARE), type_)
        return {"updated_at": stored, "payload_updated_at": self.mark(stored, type_)}

    def text_bytes(self, column: Expression) -> Expression:
        return sa.func.convert_to(sa.cast(column, sa.Text), "UTF8")

    def text_size(self, column: Expression) -> Expression:
        return sa.func.octet_length(sa.cast(column, sa.Text))

    def refusal(self, types: dict[str, Any]) -> str | None:
        for name, wanted, said in (("messages", sa.String, "text"), ("updated_at", sa.DateTime, "a timestamp")):
            if not isinstance(types[name], wanted):
                return f"its column {name} is {str(types[name]).lower()}; only where it is {said} are all bytes kept"
        return None

    def check(self, connection: sa.Connection, types: dict[str, Any]) -> None:
        encoding = connection.scalar(sa.text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise StoreError(f"the database {self.name} has the encoding {encoding}, sessions need UTF8")
        if types and not isinstance(types["id"], sa.String):
            raise StoreError(f"the ids in {self.name} are of type {str(types['id']).lower()}, not text")

    def before_schema(self, connection: sa.Connection) -> None:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_lock_number(_SCHEMA_LOCK))))

    def lock(self, name: str, what: str, wait: float) -> Lease:
        return AdvisoryLease(self, name, what, wait)

    def held(self, names: Callable[[], Iterable[str]]) -> dict[str, Holder]:
        with self.reading() as connection:
            rows = connection.execute(sa.text(_HELD)).all()
        if not rows:
            return {}
        by_number = {row.number: _holder(row) for row in rows}
        return {name: by_number[number] for name in names() if (number := _lock_number(name)) in by_number}

    def close(self) -> None:
        self.engine.dispose()


class AdvisoryLease(Lease):
    """An advisory lock of PostgreSQL, on a connection of its own: it ends with the connection, however that ends."""

    def __init__(self, database: _Postgres, name: str, what: str, wait: float) -> None:
        self._database, self._number = database, _lock_number(name)
        deadline = time.monotonic() + wait
        with database.mapped(StoreError, "lock in"):
            self._connection: sa.Connection | None = database.engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            )
        try:
            with database.mapped(StoreError, "lock in"):
                while not self._scalar(sa.func.pg_try_advisory_lock(self._number)):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        holder = database.held(lambda: [name]).get(name)
                        said = holder.sentence(_now()) if holder else "locked by another program"
                        raise SessionLocked(f"{what} is {said}")
                    time.sleep(min(POLL, left))
                self._introduce(f"sessionctl {socket.gethostname()[:30]}:{os.getpid()} {_now()}")
        except BaseException:
            self.release()
            raise

    def _scalar(self, expression: Expression) -> Any:
        if self._connection is None:
            raise LockLost("the lock was given back; nothing was written under it")
        return self._connection.scalar(sa.select(expression))

    def _introduce(self, name: str) -> None:
        """Tell other programs, who see a connection's name, whose it is and since when it holds the lock."""
        self._scalar(sa.func.set_config("application_name", name, False))

    def check(self) -> None:
        mine = sa.text(f"EXISTS (SELECT FROM ({_HELD}) h WHERE h.pid = pg_backend_pid() AND h.number = {self._number})")
        try:
            held = self._scalar(sa.type_coerce(mine, sa.Boolean))
        except SQLAlchemyError:
            held = False
        if not held:
            raise LockLost("the connection that held the lock is gone; nothing was written under it")

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.execute(sa.text(_RELEASE))
            connection.close()
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                connection.invalidate()
            connection.close()


def _epoch(column: Expression, moment: Expression) -> Expression:
    """ms since the epoch, NULL for the infinities."""
    ms = sa.cast(sa.func.round(sa.extract("epoch", moment) * 1000), sa.BigInteger)
    return sa.case((sa.func.isfinite(column), ms))


def _lock_number(name: str) -> int:
    """The number of an advisory lock: 64 bits of a hash, so that no two names meet."""
    digest = hashlib.sha256(b"sessionctl:" + name.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _holder(row: Row) -> Holder:
    """From ``sessionctl HOST:PID MS``, the name that AdvisoryLease gives its connection."""
    match = re.fullmatch(r"sessionctl (\S+:\d+) (\d+)", row.application_name or "")
    if match:
        return Holder(match[1], int(match[2]))
    who = row.application_name or row.usename or "another program"
    return Holder(f"{who} (server process {row.pid})")


_SECRET_OPTIONS = ("password", "sslpassword")


def _without_secrets(url: sa.URL) -> sa.URL:
    return url.difference_update_query(_SECRET_OPTIONS)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def open_sql(url: str) -> SqlStore:
    """``sqlite:///PATH`` (``sqlite:////PATH`` for one from the root) or ``postgresql://USER@HOST/DATABASE``."""
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:///")
        if path in ("", url) or path.startswith((":", "file:")) or "?" in path:
            raise UnknownStore(f"{quoted(url)} names no database file", hint=_FORMS)
        return SqlStore(_Sqlite(Path(path).expanduser().resolve()))
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise UnknownStore("this is not the URL of a database", hint=_FORMS) from None
    try:
        return SqlStore(_Postgres(parsed))
    except ModuleNotFoundError as error:
        raise StoreError("PostgreSQL needs psycopg, which is not installed", hint=_HINT) from error


_FORMS = "write sqlite:///PATH or postgresql://USER@HOST/DATABASE"
