"""What a store needs of its database: connections, moments, texts and locks, each in the database's own way."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, ClassVar

import sqlalchemy as sa

from ...codec.rows import LATEST
from ...codec.text import OLDEST
from ...locks import Holder, Lease

Expression = sa.ColumnElement[Any]
Row = sa.Row[Any]


class Database(ABC):
    """What SQLite and PostgreSQL do each in its own way. ``name`` is shown to people and holds no secret."""

    name: str
    patience: ClassVar[int] = 60
    """Seconds that a read or write waits for another program's transaction."""

    @abstractmethod
    def present(self) -> bool:
        """Whether there may be a database to read."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[sa.Connection]:
        """A connection for statements that each stand alone. Raises StoreError."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[sa.Connection]:
        """A transaction, committed when the block ends well. Raises WriteFailed, Taken."""

    @abstractmethod
    def moment(self, column: Expression, type_: Any) -> Expression:
        """A moment as what ``read_moment`` takes."""

    def read_moment(self, value: Any) -> int | None:
        """ms since the epoch, None where it is no moment.

        An application may have put into ``updated_at``: ms, seconds, or text in ISO 8601 (UTC without a zone).
        """
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


class Taken(Exception):
    """Another program has inserted the same session since we looked for it."""


def now_ms() -> int:
    """ms since the epoch."""
    return time.time_ns() // 1_000_000
