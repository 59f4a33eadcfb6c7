"""The sessions of one kind: what ``documents`` and ``logs`` each do in their own tables, and what they share."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import sqlalchemy as sa

from ...errors import StoreError
from ...keys import quoted
from ...model import Kind, Record, Ref, Stamp
from ..base import BIG, TAIL, Put, Want
from .database import Database, Expression, Row, now_ms
from .schema import Shape

PAGE = 500
"""Rows looked up or inserted by one statement."""


class Work(NamedTuple):
    """A transaction, and the tables that it sees."""

    connection: sa.Connection
    shape: Shape


class Sessions(ABC):
    """The sessions of one kind in a database. ``table`` has a row for each, with its key as ``id``."""

    kind: ClassVar[Kind]
    table: ClassVar[sa.Table]
    changed_at: ClassVar[sa.Column[Any]]
    expires_at: ClassVar[sa.Column[Any]]

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def headers(self, shape: Shape, *more: Expression) -> sa.Select[Any]:
        """What a stamp is made of, and ``more``."""

    @abstractmethod
    def stamp(self, row: Row) -> Stamp:
        """The stamp of a row, ``ttl_ms`` still being the moment of its end."""

    @abstractmethod
    def load(self, shape: Shape, want: Want, keys: list[str]) -> list[Record]:
        """The sessions of ``keys`` that exist, with their payloads as ``Store.records`` gives them."""

    @abstractmethod
    def chunks(self, ref: Ref, shape: Shape) -> Iterator[bytes]:
        """As ``Store.chunks``."""

    @abstractmethod
    def write(self, work: Work, items: Iterable[Put], now: int, there: frozenset[str]) -> dict[Ref, tuple[object, ...]]:
        """Write whole sessions, those of the keys ``there`` over what is there; returns their versions."""

    @abstractmethod
    def delete(self, connection: sa.Connection, key: str) -> None:
        """Remove a session, whatever it is."""

    def fetch(self, query: sa.Select[Any]) -> Sequence[Row]:
        """All rows of a statement that stands alone."""
        with self.database.reading() as connection:
            return connection.execute(query).all()

    def row(self, shape: Shape, key: str, *more: Expression) -> Row | None:
        """The row of ``headers`` for a session, expired or not."""
        rows = self.fetch(self.headers(shape, *more).where(self.table.c.id == key))
        return rows[0] if rows else None

    def found(self, work: Work, keys: Sequence[str], *, update: bool = False) -> sa.Select[Any]:
        """The rows of these sessions, expired or not; ``update`` keeps them from others until the transaction ends."""
        query = self.headers(work.shape).where(self.table.c.id.in_(keys))
        return query.order_by(self.table.c.id).with_for_update(of=self.table) if update else query

    def living(self, row: Row | None, now: int) -> Stamp | None:
        """None for no row, and for one whose time to live is over."""
        stamp = None if row is None else self.stamp(row)
        if stamp is None or stamp.ttl_ms is None:
            return stamp
        return stamp._replace(ttl_ms=stamp.ttl_ms - now) if stamp.ttl_ms > now else None

    def seen(self, rows: Iterable[Row]) -> list[Record]:
        """Records without payloads, of the rows that have not expired."""
        now = now_ms()
        found = ((Ref(str(row.id), self.kind), self.living(row, now)) for row in rows)
        return [Record(ref, stamp) for ref, stamp in found if stamp is not None]

    def filled(self, rows: Iterable[Row], want: Want, payload_of: Callable[[str], bytes]) -> list[Record]:
        """Records with as much of their payloads as is wanted; a key's payload may be its end alone for a tail."""
        filled = []
        for record in self.seen(rows):
            if want is Want.TAIL or record.stamp.size <= BIG:
                payload = payload_of(record.ref.key)
                whole = want is Want.WHOLE or record.stamp.size <= TAIL
                record = record._replace(payload=payload if whole else payload[-TAIL:], whole=whole)
            filled.append(record)
        return filled


def changed_while_read(ref: Ref) -> StoreError:
    return StoreError(f"{quoted(ref.key)} was changed while it was read", hint="try again")


def new_version() -> int:
    """Never the same twice: a session that was removed and made again is another one."""
    return secrets.randbits(62)
