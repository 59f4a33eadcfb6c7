"""The tables, and how they come to be: made where missing, extended where an application has made its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import UserDefinedType

from ...errors import StoreError
from ...keys import quoted
from ...model import Kind
from .database import Database

SCHEMA_VERSION = 1
"""Of the tables below, kept in ``sessionctl_meta``."""


class _TextMoment(UserDefinedType[str]):
    """A moment in SQLite, which has no such type: text in UTC as its own functions write and read it."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "TIMESTAMP"


_tables = sa.MetaData()
meta = sa.Table(
    "sessionctl_meta",
    _tables,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# The large columns stand last: SQLite reads through all that precedes a column.
sessions = sa.Table(
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
logs = sa.Table(
    "session_logs",
    _tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
)
entries = sa.Table(
    "session_entries",
    _tables,
    sa.Column("session_id", sa.Text, sa.ForeignKey("session_logs.id"), primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("line", sa.LargeBinary, nullable=False),
)
_expiry_indexes = [
    sa.Index(
        f"{column.table.name}_expiry",
        column,
        sqlite_where=column.is_not(None),
        postgresql_where=column.is_not(None),
    )
    for column in (sessions.c.payload_expires_at, logs.c.expires_at)
]
_APPLICATION = ("id", "messages", "updated_at")
"""The columns that an application's table must have."""


class Shape(NamedTuple):
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
        return self.versioned and self.logs and self.types.keys() >= set(sessions.c.keys())


def inspect(database: Database, connection: sa.Connection) -> Shape:
    """What tables there are. Raises StoreError for tables that are not ours to read."""
    look = sa.inspect(connection)
    names = frozenset(look.get_table_names())
    versioned = meta.name in names and _check_version(database, connection)
    types = (
        {column["name"]: column["type"] for column in look.get_columns(sessions.name)} if "sessions" in names else {}
    )
    absent = [name for name in _APPLICATION if name not in types]
    if types and absent:
        raise StoreError(
            f"the table 'sessions' of {database.name} is not one of stored sessions: it has no column {absent[0]!r}"
        )
    database.check(connection, types)
    return Shape(types, {logs.name, entries.name} <= names, versioned, database.refusal(types) if types else None)


def _check_version(database: Database, connection: sa.Connection) -> bool:
    value = connection.scalar(sa.select(meta.c.value).where(meta.c.name == "schema_version"))
    if value is None:
        return False
    if str(value) != str(SCHEMA_VERSION):
        raise StoreError(
            f"the tables of {database.name} have schema version {quoted(str(value), 20)}, "
            f"this sessionctl knows version {SCHEMA_VERSION}",
            hint="a newer sessionctl wrote them: upgrade this one",
        )
    return True


def make_tables(database: Database, connection: sa.Connection) -> Shape:
    """Make the tables that are missing, extend the table of an application, and note the schema version."""
    shape = inspect(database, connection)
    if shape.complete:
        return shape
    _tables.create_all(connection)
    added = [column for column in sessions.c if shape.types and column.name not in shape.types]
    for column in added:
        definition = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE sessions ADD COLUMN {definition}"))
    if added:
        for index in _expiry_indexes:
            index.create(connection, checkfirst=True)
    if not shape.versioned:
        connection.execute(meta.insert().values(name="schema_version", value=str(SCHEMA_VERSION)))
    return inspect(database, connection)
