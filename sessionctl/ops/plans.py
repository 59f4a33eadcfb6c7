"""A plan of gc as a file: written to be looked at, read back with suspicion, since it is data from anywhere."""

from __future__ import annotations

import msgspec

from ..errors import InvalidKey, SessionctlError, UsageError
from ..keys import MAX_LOOKUP, check_lookup, quoted
from ..model import AgeSource, Kind, Ref, Stamp
from ..stores.base import Store, Want
from . import keep
from .gc import Action, Plan
from .select import Context

FORMAT = "sessionctl-gc-plan-1"
OPTION = "--plan"
MOST = 10_000_000
"""Entries of a plan."""
_LATEST = 1 << 53


class _Hex(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes of a version."""

    hex: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    kind: Kind
    version: list[int | str | _Hex | None]
    size: int
    changed_at: int | None
    age_source: AgeSource
    reason: str
    messages: int | None
    last_activity_at: int | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    store: str
    made_at: int
    scanned: int
    sessions: list[_Entry]


def save(path: str, store: Store, plan: Plan) -> None:
    """Write a plan, all or nothing, readable by its owner alone. Raises WriteFailed."""
    sessions = [
        _Entry(
            action.ref.key,
            action.ref.kind,
            [_written(part) for part in action.stamp.version],
            action.stamp.size,
            action.stamp.changed_at,
            action.stamp.source,
            action.reason,
            action.messages,
            action.last_activity_at,
        )
        for action in plan.actions
    ]
    keep.write(path, keep.encode(_File(FORMAT, keep.identity(store), plan.made_at, plan.scanned, sessions)))


def load(path: str, store: Store, now: int) -> Plan:
    """Read a plan for this store. Temporary files that belong to its sessions are those that lie there now.

    Raises UsageError for a file that is no plan, that is for another store, that names what cannot be a session of this
    store, or that does not say exactly which version of a session it means.
    """
    data = keep.read(path, OPTION)
    if data is None:
        raise UsageError(f"there is no plan at {quoted(path, 300)}", hint="gc --save-plan FILE writes one")
    file = keep.decode(data, _File)
    if file is None or file.format != FORMAT or not 0 <= file.made_at < _LATEST or len(file.sessions) > MOST:
        raise _refused(path, "it is not a plan that sessionctl wrote")
    if file.store != keep.identity(store):
        raise UsageError(
            f"{quoted(path, 300)} is a plan for another store: {quoted(file.store, 200)}",
            hint=f"this one is {keep.identity(store)}",
        )
    actions: dict[Ref, Action] = {}
    context = Context.of(store, now)
    for number, entry in enumerate(file.sessions, 1):
        ref = Ref(entry.key, entry.kind)
        try:
            if len(entry.key) > MAX_LOOKUP:
                raise InvalidKey("it is too long")
            check_lookup(entry.key)
            store.check_key(ref)
            stamp = Stamp(tuple(_read(part) for part in entry.version), entry.size, entry.changed_at, entry.age_source)
        except (SessionctlError, ValueError) as error:
            raise _refused(path, f"session {number}: {error}") from None
        if ref in actions:
            raise _refused(path, f"session {number} is named twice: {quoted(entry.key)}")
        if not all(0 <= n < _LATEST for n in (entry.size, entry.messages or 0)):
            raise _refused(path, f"session {number} has an impossible size")
        strays = tuple(s for s in context.strays.get(ref, ()) if s.stamp is not None)
        # What a removal put aside before it died is still the version that was planned.
        is_left = any(s.stamp is not None and s.stamp.version == stamp.version for s in strays)
        is_left = is_left and store.stamp(ref) is None
        action = Action(ref, stamp, entry.reason, entry.messages, entry.last_activity_at, strays)
        actions[ref] = action._replace(is_left=is_left)
    _check_versions(path, store, actions)
    return Plan(store.url, file.made_at, len(actions), tuple(actions.values()))


def _check_versions(path: str, store: Store, actions: dict[Ref, Action]) -> None:
    """A version that tells less than the store does could stand for any: it was not written by ``save``."""
    for record in store.records(Want.NAMES, list(actions)):
        if len(actions[record.ref].stamp.version) < len(record.stamp.version):
            raise _refused(path, f"it does not tell the version of {quoted(record.ref.key)}")


def _written(part: object) -> int | str | _Hex | None:
    if isinstance(part, bytes):
        return _Hex(part.hex())
    if part is None or isinstance(part, int | str):
        return part
    raise TypeError(f"a store's version holds {type(part).__name__}")


def _read(part: int | str | _Hex | None) -> object:
    return bytes.fromhex(part.hex) if isinstance(part, _Hex) else part


def _refused(path: str, why: str) -> UsageError:
    return UsageError(f"the plan {quoted(path, 300)} is refused: {why}", hint="nothing was deleted")
