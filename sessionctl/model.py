"""The types that everything shares. All are values: made once, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

Kind = Literal["document", "log"]
KINDS: tuple[Kind, ...] = ("document", "log")

Status = Literal["damaged", "empty", "awaiting-approval", "interrupted", "broken", "draft", "ok"]
STATUSES: tuple[Status, ...] = (
    "damaged",
    "empty",
    "awaiting-approval",
    "interrupted",
    "broken",
    "draft",
    "ok",
)

Severity = Literal["error", "warning", "info"]
AgeSource = Literal["document", "message", "mtime", "idle", "none"]


class Ref(NamedTuple):
    """What names one session inside a store. A folder can hold a document and a log of one key."""

    key: str
    kind: Kind


class Stamp(NamedTuple):
    """What a store knows of a payload without looking into it.

    ``version`` is opaque: two equal versions mean the same payload, as far as the store can tell (files: inode, size
    and mtime in ns). ``size`` is in bytes, ``changed_at`` in ms since the epoch by the store's own clock (None:
    the store does not know), ``ttl_ms`` is the remaining life in ms, None where it has no end.
    """

    version: tuple[object, ...]
    size: int
    changed_at: int | None = None
    source: AgeSource = "none"
    ttl_ms: int | None = None


class Record(NamedTuple):
    """One session as a store yields it: its name, its stamp and as much of the payload as was asked for.

    ``payload`` is None when it was not asked for, is larger than the reader's limit, or could not be read;
    ``error`` then says why, and ``code`` is the finding it stands for, if any. ``whole`` is False when ``payload`` is
    only the end of the stored bytes.
    """

    ref: Ref
    stamp: Stamp
    payload: bytes | None = None
    whole: bool = True
    error: str | None = None
    code: str = ""


class Stray(NamedTuple):
    """Something in a store that is not a session: a temporary file, a link, a sub-folder, a key of another type.

    ``ref`` is the session it belongs to where that can be told; ``code`` is a finding code or ``""`` for a mere note.
    ``is_removed`` marks a session whose removal was cut short.
    """

    name: str
    note: str
    ref: Ref | None = None
    code: str = ""
    stamp: Stamp | None = None
    is_removed: bool = False


class Damage(NamedTuple):
    """A part of a payload that had to be passed over. ``line`` counts from 1, ``offset`` is in bytes from the start."""

    code: str
    message: str
    line: int | None = None
    offset: int | None = None
    raw: bytes = b""


class Finding(NamedTuple):
    """Something that ``repair`` reports (FORMATS.md section 4). ``where`` names message, entry, line or byte."""

    code: str
    severity: Severity
    where: str
    message: str
    fixable: bool = False


class Call(NamedTuple):
    """A tool call as the rules see it. ``inline`` is True when the call itself carries its result."""

    id: str
    name: str
    well_formed: bool = True
    inline: bool = False
    inline_text: str = ""


class Result(NamedTuple):
    """A tool result as the rules see it. ``block`` is its place in the message's content, -1 for a whole message.

    ``made_up`` marks one that a repair wrote.
    """

    call_id: str
    block: int = -1
    made_up: bool = False
    text: str = ""


class Step(NamedTuple):
    """One message of a history, reduced to what status and findings depend on."""

    role: str
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    only_results: bool = False
    empty_text: bool = False
    missing_content: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call to be shown. ``arguments`` is what was stored, decoded; ``result`` only where the call carries it."""

    id: str
    name: str
    arguments: Any
    result: str | None = None
    well_formed: bool = True


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool result to be shown."""

    call_id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message, in one shape for both kinds. ``at`` is in ms or None; ``blocks`` are notes on what is not text."""

    id: str | None
    role: str
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    at: int | None = None
    reasoning: str = ""
    raw: Any = None
    branch: int = 0


class Entry(msgspec.Struct, frozen=True):
    """One line of a log: its id, its parent, its message (None: a root), and where its bytes lie in the payload."""

    id: str
    parent: str | None
    step: Step
    start: int = 0
    end: int = 0
    line: int = 0


class Outline(msgspec.Struct, frozen=True):
    """All that a list row, a status or a rule needs to know of a payload, without its texts.

    ``steps`` is the effective history (documents: the array; logs: the chain), None where there is none to be had.
    Of a log, ``entries`` are all entries in file order and ``order`` the indexes of those in the history. Times are
    in ms since the epoch; ``absurd_time`` says which time cannot be right, where one of the document's own cannot.
    ``unread`` messages were counted only. If nothing is wrong with any message, ``sound`` may say the status that
    follows (``draft`` or ``ok``) and ``last`` where the last one stands, and no steps are kept.
    """

    kind: Kind
    id: str | None = None
    steps: tuple[Step, ...] | None = None
    damage: tuple[Damage, ...] = ()
    notes: tuple[Finding, ...] = ()
    created_at: int | None = None
    updated_at: int | None = None
    active_at: int | None = None
    newest_message_at: int | None = None
    absurd_time: str | None = None
    provider: str | None = None
    model: str | None = None
    owner: str | None = None
    title: str | None = None
    entries: tuple[Entry, ...] = ()
    order: tuple[int, ...] = ()
    unread: int = 0
    sound: Literal["draft", "ok"] | None = None
    last: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A whole session, decoded: what ``show`` prints and what library users get.

    ``messages`` is the effective history, ``others`` are the messages of a log that are not part of it.
    """

    ref: Ref
    outline: Outline
    messages: tuple[Message, ...] = ()
    others: tuple[Message, ...] = ()
