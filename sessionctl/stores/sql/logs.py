"""Logs: one row of ``session_logs`` each, and their lines in ``session_entries``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from ...errors import SessionNotFound
from ...keys import quoted
from ...model import Record, Ref, Stamp
from ..base import BIG, TAIL, Put, Want
from .database import Expression, Row, now_ms
from .kinds import PAGE, Sessions, Work, changed_while_read, new_version
from .schema import Shape, entries, logs

_PIECE = 1 << 20
"""Bytes: a line longer than this goes on in the next row of ``session_entries``."""


class Logs(Sessions):
    """A version is a number, new when the log is written as a whole, and the size, which grows with each append."""

    kind = "log"
    table = logs
    changed_at = logs.c.changed_at
    expires_at = logs.c.expires_at

    def headers(self, shape: Shape, *more: Expression) -> sa.Select[Any]:
        return sa.select(*logs.c, *more)

    def stamp(self, row: Row) -> Stamp:
        return Stamp((row.version, row.size), row.size, row.changed_at, "mtime", row.expires_at)

    def load(self, shape: Shape, want: Want, keys: list[str]) -> list[Record]:
        joined = entries.c.session_id == logs.c.id
        if want is Want.TAIL:
            earlier = entries.alias()
            first = (
                sa.select(sa.func.max(earlier.c.position))
                .where(earlier.c.session_id == logs.c.id, earlier.c.position <= logs.c.size - TAIL)
                .correlate(logs)
                .scalar_subquery()
            )
            joined &= entries.c.position >= sa.func.coalesce(first, 0)
        else:
            joined &= logs.c.size <= BIG
        query = self.headers(shape, entries.c.line).select_from(logs.outerjoin(entries, joined))
        rows = self.fetch(query.where(logs.c.id.in_(keys)).order_by(logs.c.id, entries.c.position))
        lines: dict[str, list[bytes]] = {}
        for row in rows:
            lines.setdefault(row.id, []).append(row.line or b"")
        return self.filled({row.id: row for row in rows}.values(), want, lambda key: b"".join(lines[key]))

    def chunks(self, ref: Ref, shape: Shape) -> Iterator[bytes]:
        first = self.living(self.row(shape, ref.key), now_ms())
        if first is None:
            raise SessionNotFound(quoted(ref.key))
        position = 0
        while position < first.size:
            here = (entries.c.session_id == logs.c.id) & entries.c.position.between(position, position + BIG - 1)
            query = self.headers(shape, entries.c.line).select_from(logs.outerjoin(entries, here))
            rows = self.fetch(query.where(logs.c.id == ref.key).order_by(entries.c.position))
            piece = b"".join(row.line or b"" for row in rows)
            # An append leaves the first part of the version as it was, and all the bytes that were there.
            if not piece or rows[0].version != first.version[0]:
                raise changed_while_read(ref)
            yield piece[: first.size - position]
            position += len(piece)

    def write(self, work: Work, items: Iterable[Put], now: int, there: frozenset[str]) -> dict[Ref, tuple[object, ...]]:
        rows, lines = [], []
        for item in items:
            rows.append(
                {
                    "key": item.ref.key,
                    "new_version": new_version(),
                    "new_size": len(item.payload),
                    "new_changed_at": now if item.changed_at is None else item.changed_at,
                    "new_expires_at": None if item.ttl_ms is None else now + item.ttl_ms,
                }
            )
            lines += _line_rows(item.ref.key, 0, item.payload)
        values: dict[str, Expression] = {
            column.name: sa.bindparam(f"new_{column.name}") for column in logs.c if column.name != "id"
        }
        key: Expression = sa.bindparam("key")
        new = [row for row in rows if row["key"] not in there]
        old = [row for row in rows if row["key"] in there]
        if new:
            work.connection.execute(logs.insert().values(id=key, **values), new)
        if old:
            work.connection.execute(entries.delete().where(entries.c.session_id.in_([row["key"] for row in old])))
            work.connection.execute(logs.update().where(logs.c.id == key).values(values), old)
        _insert_lines(work, lines)
        return {Ref(str(row["key"]), "log"): (row["new_version"], row["new_size"]) for row in rows}

    def append(self, work: Work, ref: Ref, lines: bytes, row: Row | None) -> Stamp:
        """Append to the log of that row, which is begun anew where there is none or its time to live is over."""
        now = now_ms()
        before = self.living(row, now)
        if before is None:
            written = self.write(work, [Put(ref, lines)], now, frozenset([ref.key] if row is not None else ()))
            return Stamp(written[ref], len(lines), now, "mtime")
        size = before.size + len(lines)
        work.connection.execute(logs.update().where(logs.c.id == ref.key).values(size=size, changed_at=now))
        _insert_lines(work, _line_rows(ref.key, before.size, lines))
        return Stamp((before.version[0], size), size, now, "mtime", before.ttl_ms)

    def delete(self, connection: sa.Connection, key: str) -> None:
        connection.execute(entries.delete().where(entries.c.session_id == key))
        connection.execute(logs.delete().where(logs.c.id == key))


def _insert_lines(work: Work, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), PAGE):
        work.connection.execute(entries.insert(), rows[start : start + PAGE])


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
