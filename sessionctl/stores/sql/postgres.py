"""PostgreSQL by psycopg 3: connections from a pool, and advisory locks."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from ...errors import LockLost, SessionLocked, StoreError, WriteFailed
from ...locks import POLL, Holder, Lease
from .database import Database, Expression, Row, Taken, now_ms

_SECRET_OPTIONS = ("password", "sslpassword")
_AWARE = sa.TIMESTAMP(timezone=True)
_SCHEMA_LOCK = "schema"
_HELD = """
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS number, l.pid, a.application_name, a.usename
    FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_RELEASE = "SELECT pg_advisory_unlock_all(), set_config('application_name', 'sessionctl', false)"


class Postgres(Database):
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
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{self.patience}s'"))
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
                raise Taken from None
            said = "another program has locked it" if state == "55P03" else _one_line(str(cause))
            for secret in self._secrets:
                said = said.replace(str(secret), "***")
            raise kind(f"cannot {action} {self.name}: {said}") from None

    def moment(self, column: Expression, type_: Any) -> Expression:
        return _epoch(column, sa.cast(column, _AWARE)) if isinstance(type_, sa.DateTime) else column

    def mark(self, column: Expression, type_: Any) -> Expression:
        return _epoch(column, column) if isinstance(type_, sa.DateTime) else column

    def read_moment(self, value: Any) -> int | None:
        return value if isinstance(value, int) else super().read_moment(value)

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
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock_number(_SCHEMA_LOCK))))

    def lock(self, name: str, what: str, wait: float) -> Lease:
        return AdvisoryLease(self, name, what, wait)

    def held(self, names: Callable[[], Iterable[str]]) -> dict[str, Holder]:
        with self.reading() as connection:
            rows = connection.execute(sa.text(_HELD)).all()
        if not rows:
            return {}
        by_number = {row.number: _holder(row) for row in rows}
        return {name: by_number[number] for name in names() if (number := lock_number(name)) in by_number}

    def close(self) -> None:
        self.engine.dispose()


class AdvisoryLease(Lease):
    """An advisory lock of PostgreSQL, on a connection of its own: it ends with the connection, however that ends."""

    def __init__(self, database: Postgres, name: str, what: str, wait: float) -> None:
        self._database, self._number = database, lock_number(name)
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
                        said = holder.sentence(now_ms()) if holder else "locked by another program"
                        raise SessionLocked(f"{what} is {said}")
                    time.sleep(min(POLL, left))
                self._introduce(f"sessionctl {socket.gethostname()[:30]}:{os.getpid()} {now_ms()}")
        except BaseException:
            self.release()
            raise

    def _scalar(self, expression: Expression) -> Any:
        if self._connection is None:
            raise LockLost("the lock was given back; nothing more is written under it")
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
            raise LockLost("the connection that held the lock is gone; nothing more is written under it")

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


def lock_number(name: str) -> int:
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


def _without_secrets(url: sa.URL) -> sa.URL:
    return url.difference_update_query(_SECRET_OPTIONS)


def _one_line(text: str) -> str:
    return " ".join(text.split())
