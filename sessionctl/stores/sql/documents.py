"""Documents: one row of ``sessions`` each, which an application may write, too.

The columns ``payload_*`` hold the rest of a payload, with holes where messages and ``updatedAt`` stand: what an
application writes is part of the document at once (see ``codec.rows``). A row without them is the application's own;
with ``payload_head`` alone, it holds bytes that are no document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from ...codec.rows import LATEST, bare_frame, split_document, time_growth, with_time
from ...errors import SessionNotFound, WriteFailed
from ...keys import quoted
from ...model import Record, Ref, Stamp
from ..base import BIG, TAIL, Put, Want
from .database import Expression, Row, now_ms
from .kinds import Sessions, Work, changed_while_read, new_version
from .schema import Shape, sessions

_NULL = b"null"
_HEADER = {
    "version": "version",
    "updated_at": "marked",
    "changed_at": "changed_at",
    "expires_at": "expires_at",
    "time_at": "time_at",
    "time_length": "time_length",
}
"""Columns ``payload_*`` to their names in a row of ``headers``."""


class Documents(Sessions):
    """A version is a number, new with each of our writes, and what an application's write is seen by."""

    kind = "document"
    table = sessions
    changed_at = sessions.c.payload_changed_at
    expires_at = sessions.c.payload_expires_at

    def headers(self, shape: Shape, *more: Expression) -> sa.Select[Any]:
        updated_at = sessions.c.updated_at
        return sa.select(
            sessions.c.id,
            self.database.moment(updated_at, shape.types["updated_at"]).label("updated_at"),
            self.database.mark(updated_at, shape.types["updated_at"]).label("mark"),
            self.database.text_size(sessions.c.messages).label("messages_size"),
            sa.func.length(_ours(shape, "payload_head")).label("head_size"),
            sa.func.length(_ours(shape, "payload_tail")).label("tail_size"),
            *(_ours(shape, f"payload_{name}").label(label) for name, label in _HEADER.items()),
            *more,
        ).select_from(sessions)

    def stamp(self, row: Row) -> Stamp:
        version = (row.version, self.database.read_mark(row.mark), row.messages_size)
        if _is_raw(row):
            return Stamp(version, row.head_size, row.changed_at, "mtime", row.expires_at)
        messages_size = len(_NULL) if row.messages_size is None else row.messages_size
        updated_at = self.database.read_moment(row.updated_at)
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
        return bool(self.database.read_mark(row.mark) != row.marked)

    def _frame(self, row: Row) -> tuple[bytes, bytes]:
        """The bytes before and after a document's messages, of a row with its ``head`` and ``tail``."""
        head = row.head or b""  # (SQLite's substr makes NULL of nothing)
        if _is_raw(row):
            return head, b""
        updated_at = self.database.read_moment(row.updated_at)
        if row.tail is None:
            return bare_frame(str(row.id), updated_at)
        if updated_at is None or not self._touched(row):
            return head, row.tail
        return with_time(head, row.tail, row.time_at, row.time_length, updated_at)

    def load(self, shape: Shape, want: Want, keys: list[str]) -> list[Record]:
        head, tail = _ours(shape, "payload_head"), _ours(shape, "payload_tail")
        messages = self.database.text_bytes(sessions.c.messages)
        if want is Want.TAIL:
            columns = [sa.case((tail.is_(None), _end(head)), else_=head), _end(messages), tail]
        else:
            sizes = (sa.func.length(head), self.database.text_size(sessions.c.messages), sa.func.length(tail))
            small = sum((sa.func.coalesce(size, 0) for size in sizes), sa.literal(0)) <= BIG
            columns = [sa.case((small, column)) for column in (head, messages, tail)]
        named = (column.label(name) for column, name in zip(columns, ("head", "messages", "tail"), strict=True))
        rows = self.fetch(self.headers(shape, *named).where(sessions.c.id.in_(keys)))
        by_key = {str(row.id): row for row in rows}
        return self.filled(rows, want, lambda key: self._payload(by_key[key]))

    def _payload(self, row: Row) -> bytes:
        before, after = self._frame(row)
        return before + _middle(row) + after

    def chunks(self, ref: Ref, shape: Shape) -> Iterator[bytes]:
        head, tail = _ours(shape, "payload_head"), _ours(shape, "payload_tail")
        framed = sa.case((tail.is_not(None), head), else_=sa.literal(b"")).label("head")
        row = self.row(shape, ref.key, framed, tail.label("tail"))
        if row is None or self.living(row, now_ms()) is None:
            raise SessionNotFound(quoted(ref.key))
        version = self.stamp(row).version
        before, after = self._frame(row)
        middle = head if _is_raw(row) else self.database.text_bytes(sessions.c.messages)
        size = row.head_size if _is_raw(row) else row.messages_size
        yield before
        if size is None:
            yield _NULL
        for start in range(0, size or 0, BIG):
            row = self.row(shape, ref.key, sa.func.substr(middle, start + 1, BIG).label("piece"))
            if row is None or self.stamp(row).version != version:
                raise changed_while_read(ref)
            yield row.piece
        yield after

    def write(self, work: Work, items: Iterable[Put], now: int, there: frozenset[str]) -> dict[Ref, tuple[object, ...]]:
        if work.shape.refusal:
            raise WriteFailed(f"cannot write to {self.database.name}: {work.shape.refusal}")
        values: dict[str, Expression] = {column.name: sa.bindparam(f"new_{column.name}") for column in sessions.c}
        values |= self.database.moment_values(work.shape.types["updated_at"])
        del values["id"]
        key: Expression = sa.bindparam("key")
        rows = [self._new_row(item, now) for item in items]
        for statement, is_there in (
            (sessions.insert().values(id=key, **values), False),
            (sessions.update().where(sessions.c.id == key).values(values), True),
        ):
            some = [row for row in rows if (row["key"] in there) is is_there]
            if some:
                work.connection.execute(statement, some)
        written = work.connection.execute(self.found(work, [row["key"] for row in rows]))
        return {Ref(row.id, "document"): self.stamp(row).version for row in written}

    def _new_row(self, item: Put, now: int) -> dict[str, Any]:
        changed_at = now if item.changed_at is None else item.changed_at
        split = split_document(item.payload)
        known = split.updated_at if split else None
        updated_at = min(max(0, changed_at), LATEST) if known is None else known
        return {
            "key": item.ref.key,
            "new_messages": split.messages if split else None,
            "new_updated_at": self.database.write_moment(updated_at),
            "new_payload_updated_at": updated_at,
            "new_payload_version": new_version(),
            "new_payload_changed_at": changed_at,
            "new_payload_expires_at": None if item.ttl_ms is None else now + item.ttl_ms,
            "new_payload_head": split.head if split else item.payload,
            "new_payload_tail": split.tail if split else None,
            "new_payload_time_at": split.time_at if split else None,
            "new_payload_time_length": split.time_length if split else None,
        }

    def delete(self, connection: sa.Connection, key: str) -> None:
        connection.execute(sessions.delete().where(sessions.c.id == key))


def _ours(shape: Shape, name: str) -> Expression:
    """A column of ours, NULL in a table that an application has made and we have not extended."""
    return sessions.c[name] if name in shape.types else sa.cast(sa.null(), sessions.c[name].type)


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
