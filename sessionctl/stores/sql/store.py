"""The store over the tables: pages of sessions, writes in transactions, and locks.

Reads are single statements, never a transaction left open: nobody who writes has to wait for somebody who reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...errors import (
    InvalidKey,
    SessionChanged,
    SessionctlError,
    SessionLocked,
    SessionNotFound,
    StoreBusy,
    StoreNotFound,
    UnsupportedKind,
)
from ...keys import quoted
from ...locks import Holder, Lease
from ...model import KINDS, Kind, Record, Ref, Stamp
from ..base import ANY, BIG, TAIL, Any_, Put, Store, Want
from .database import Database, Row, Taken, now_ms
from .documents import Documents
from .kinds import PAGE, Sessions, Work
from .logs import Logs
from .schema import Shape, inspect, make_tables

KEY_LIMIT = 1024
"""Bytes of a key: an index of PostgreSQL holds no more than 2,700."""

_RUN = 2 * BIG
"""Bytes of payloads held in memory at a time."""
_GROUP = 100
"""Sessions written by one transaction of ``put_many``."""
_TRIES = 5
"""How often a write that met another's insert of the same session is tried again."""


class SqlStore(Store):
    """The sessions of one SQL database. Tables are made, and an application's table is extended, by the first write.

    A payload whose time to live is over is no longer seen; the next program that starts to write removes it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._logs = Logs(database)
        self._sessions: dict[Kind, Sessions] = {"document": Documents(database), "log": self._logs}
        self.url = database.name
        self._shape: Shape | None = None
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

    def _look(self) -> Shape:
        """Which tables there are. Raises StoreNotFound for none, StoreError for those of a newer version."""
        if self._shape is not None:
            return self._shape
        if not self._database.present():
            raise StoreNotFound(f"no database at {self.url}", hint="name another with --store or SESSIONCTL_STORE")
        with self._database.reading() as connection:
            shape = inspect(self._database, connection)
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
        for kind, sessions in self._sessions.items():
            keys = None if asked is None else [ref.key for ref in asked if ref.kind == kind]
            if kind not in wanted or not shape.has(kind):
                continue
            for page in _pages(sessions, shape, keys):
                if want is Want.NAMES:
                    yield from page
                    continue
                for run in _runs(page, want):
                    # Read whole before any is given out: its user may write to this database in between.
                    yield from sessions.load(shape, want, [record.ref.key for record in run])

    def chunks(self, ref: Ref) -> Iterator[bytes]:
        return self._sessions[ref.kind].chunks(ref, self._shape_with(ref))

    def stamp(self, ref: Ref) -> Stamp | None:
        try:
            shape = self._shape_with(ref)
        except SessionNotFound:
            return None
        sessions = self._sessions[ref.kind]
        return sessions.living(sessions.row(shape, ref.key), now_ms())

    def _shape_with(self, ref: Ref) -> Shape:
        """The tables, if there are those that could hold the session. Raises SessionNotFound."""
        shape = self._look()
        if not _storable(ref.key) or not shape.has(ref.kind):
            raise SessionNotFound(quoted(ref.key))
        return shape

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
                    raise Taken
                for item in group:
                    self.check_key(item.ref)
                with self._working() as work:
                    stamps = self._put(work, group)
            except (SessionctlError, Taken):
                yield from super().put_many(group)
            else:
                yield from stamps

    def _put(self, work: Work, items: Sequence[Put]) -> list[Stamp]:
        """Write sessions, no two of one name, in few statements."""
        now = now_ms()
        versions: dict[Ref, tuple[object, ...]] = {}
        for kind, sessions in self._sessions.items():
            some = {item.ref.key: item for item in items if item.ref.kind == kind}
            if not some:
                continue
            rows = {row.id: row for row in work.connection.execute(sessions.found(work, list(some), update=True))}
            for key, item in some.items():
                self._guard(item.ref, rows.get(key), item.expect)
            versions |= sessions.write(work, some.values(), now, frozenset(rows))
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
        return self._write(ref, expect, lambda work: self._logs.append(work, ref, lines, self._find(work, ref, expect)))

    def backdate(self, ref: Ref, expect: Stamp, changed_at: int) -> Stamp:
        def write(work: Work) -> Stamp:
            try:
                row = self._find(work, ref, expect)
            except SessionChanged:
                row = None
            if row is None:
                return expect
            sessions = self._sessions[ref.kind]
            update = sessions.table.update().where(sessions.table.c.id == ref.key)
            work.connection.execute(update.values({sessions.changed_at: changed_at}))
            return expect._replace(changed_at=changed_at, source="mtime")

        return self._write(ref, expect, write)

    def _find(self, work: Work, ref: Ref, expect: Stamp | Any_ | None) -> Row | None:
        """The row of a session, kept from others. Raises SessionChanged if it is not as expected."""
        row = work.connection.execute(self._sessions[ref.kind].found(work, [ref.key], update=True)).first()
        self._guard(ref, row, expect)
        return row

    def _guard(self, ref: Ref, row: Row | None, expect: Stamp | Any_ | None) -> None:
        if isinstance(expect, Any_):
            return
        found = self._sessions[ref.kind].living(row, now_ms())
        if (found and found.version) != (expect and expect.version):
            raise SessionChanged(quoted(ref.key))

    def _write(self, ref: Ref, expect: Stamp | Any_ | None, write: Callable[[Work], Stamp]) -> Stamp:
        """Carry out ``write`` in a transaction."""
        self.check_key(ref)  # before a database is made
        for _ in range(_TRIES):
            try:
                with self._working() as work:
                    return write(work)
            except Taken:
                if expect is None:
                    break
        raise SessionChanged(quoted(ref.key))

    @contextmanager
    def _working(self) -> Iterator[Work]:
        """A transaction on tables that are ours; made, extended and purged in it when it is the first of this store."""
        with self._database.writing() as connection:
            shape = self._shape
            if shape is None or not self._ready:
                self._database.before_schema(connection)
                shape = make_tables(self._database, connection)
                self._purge(Work(connection, shape))
            yield Work(connection, shape)
        self._shape, self._ready = shape, True

    def _purge(self, work: Work) -> None:
        """Remove what has expired."""
        now = now_ms()
        for sessions in self._sessions.values():
            rows = work.connection.execute(sessions.headers(work.shape).where(sessions.expires_at <= now)).all()
            for row in rows:
                if sessions.living(row, now) is None:
                    sessions.delete(work.connection, row.id)

    def remove(self, ref: Ref, expect: Stamp | Any_) -> None:
        shape = self._shape_with(ref)
        sessions = self._sessions[ref.kind]
        with self._database.writing() as connection:
            found = sessions.living(self._find(Work(connection, shape), ref, ANY), now_ms())
            if found is None:
                raise SessionNotFound(quoted(ref.key))
            if not isinstance(expect, Any_) and found.version != expect.version:
                raise SessionChanged(quoted(ref.key))
            sessions.delete(connection, ref.key)

    def lock(self, ref: Ref, wait: float) -> Lease:
        return self._database.lock(_lock_name(ref), quoted(ref.key), wait)

    def lock_store(self, name: str) -> Lease:
        try:
            return self._database.lock(f"store:{name}", f"this store ({self.url})", 0)
        except SessionLocked as error:
            raise StoreBusy(str(error)) from None


def _pages(sessions: Sessions, shape: Shape, keys: list[str] | None) -> Iterator[list[Record]]:
    """Names and stamps, a page at a time, of all sessions or those of ``keys``."""
    key = sessions.table.c.id
    query = sessions.headers(shape)
    if keys is not None:
        for start in range(0, len(keys), PAGE):
            yield sessions.seen(sessions.fetch(query.where(key.in_(keys[start : start + PAGE]))))
        return
    query = query.order_by(key).limit(PAGE)
    rows = sessions.fetch(query.where(key.is_not(None)))
    while rows:
        yield sessions.seen(rows)
        rows = sessions.fetch(query.where(key > rows[-1].id)) if len(rows) == PAGE else ()


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


def _storable(key: str) -> bool:
    """Whether a database can be asked for a key: none holds NUL or half a surrogate pair."""
    return key.isprintable() or ("\0" not in key and not any("\ud800" <= c <= "\udfff" for c in key))


def _lock_name(ref: Ref) -> str:
    return f"{ref.kind}:{ref.key}"


def _lock_ref(name: str) -> Ref | None:
    kind, _, key = name.partition(":")
    return next((Ref(key, known) for known in KINDS if known == kind), None)
