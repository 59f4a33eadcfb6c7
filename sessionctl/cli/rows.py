"""A session as a row: the JSON fields of DESIGN.md, and the columns of a table."""

from __future__ import annotations

from typing import Any

from ..durations import ago, iso, size
from ..history import SEVERITY
from ..ops.select import Summary
from .output import safe_line

COLUMNS = (
    "key",
    "id",
    "kind",
    "status",
    "messages",
    "created_at",
    "updated_at",
    "last_activity_at",
    "age_source",
    "size_bytes",
    "provider",
    "model",
    "owner",
    "tenant",
    "environment",
    "agent",
    "title",
    "locked",
    "unresolved",
    "findings",
    "ttl_seconds",
)

STATUS_STYLES = {
    "ok": "green",
    "empty": "dim",
    "draft": "cyan",
    "interrupted": "yellow",
    "awaiting-approval": "magenta",
    "broken": "red",
    "damaged": "bold red",
}


def row(summary: Summary) -> dict[str, Any]:
    """A session as the object that ``list -o json`` prints."""
    outline = summary.outline
    ttl = summary.stamp.ttl_ms
    return {
        "key": summary.ref.key,
        "id": summary.id,
        "kind": summary.ref.kind,
        "status": summary.verdict.status,
        "messages": summary.messages,
        "created_at": iso(outline.created_at),
        "updated_at": iso(summary.updated_at),
        "last_activity_at": iso(summary.last_activity_at),
        "age_source": summary.age_source,
        "size_bytes": summary.stamp.size,
        "provider": outline.provider,
        "model": outline.model,
        "owner": summary.owner,
        "tenant": summary.tenant,
        "environment": summary.environment,
        "agent": summary.agent,
        "title": outline.title,
        "locked": summary.holder is not None,
        "unresolved": list(summary.verdict.unresolved),
        "findings": summary.codes if summary.verdict.findings else [],
        "ttl_seconds": None if ttl is None else ttl // 1000,
    }


def problems(summary: Summary) -> str:
    """What is wrong with a session, in a few words; empty where nothing is."""
    if summary.error is not None:
        return safe_line(summary.error)
    parts = []
    calls = len(summary.verdict.unresolved)
    if calls:
        parts.append(f"{calls} call{'s' if calls > 1 else ''} without result")
    if summary.outline.absurd_time is not None:
        parts.append(summary.outline.absurd_time)
    parts.extend(
        code
        for code in summary.codes
        if code not in ("unresolved-tool-call", "draft") and (SEVERITY[code] != "info" or code == "empty-file")
    )
    return safe_line(", ".join(parts))


def age(summary: Summary, now: int) -> str:
    """How long ago a session was last active, for people."""
    at = summary.last_activity_at
    return "?" if at is None else "in " + ago(at - now) if at > now else ago(now - at)


def short_key(key: str) -> str:
    """A key for a narrow place: the hash before a composite id is cut."""
    prefix, colon, rest = key.partition(":")
    if colon and len(prefix) == 64:
        return safe_line(f"{prefix[:8]}…:{rest}")
    return safe_line(key)


def middle_cut(text: str, most: int) -> str:
    """A text of at most so many cells of a terminal: the start and the end tell sessions apart."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= most:
        return text
    start = (most - 1) // 3
    end = text[-(most - 1 - start) :]
    while cell_len(end) > most - 1 - start:
        end = end[1:]
    return f"{set_cell_size(text, start).rstrip()}…{end}"


def cells(summary: Summary, now: int, *, full_key: bool) -> tuple[str, ...]:
    """The cells of a table row: key, status, messages, age, size, note."""
    messages = summary.messages
    note = problems(summary)
    title = safe_line(summary.outline.title or "")
    lock = "locked" if summary.holder is not None else ""
    return (
        safe_line(summary.ref.key) if full_key else short_key(summary.ref.key),
        summary.status,
        "–" if messages is None else str(messages),
        age(summary, now),
        size(summary.stamp.size),
        " · ".join(part for part in (lock, note, title) if part),
    )
