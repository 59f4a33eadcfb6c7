"""Checkpoints of paused turns (FORMATS.md section 2, Pending approvals)."""

from __future__ import annotations

from collections.abc import Iterable

from .text import loads


def approvals(checkpoints: Iterable[bytes]) -> dict[str, frozenset[str]]:
    """The call ids that open checkpoints name, by session id. What cannot be read as a checkpoint is passed over."""
    found: dict[str, frozenset[str]] = {}
    for payload in checkpoints:
        try:
            value = loads(payload.decode())
        except ValueError:
            continue
        if not isinstance(value, dict) or value.get("closed") is not False:
            continue
        session = value.get("sessionId")
        if not isinstance(session, str):
            continue
        named = set()
        outstanding = value.get("outstanding")
        if isinstance(outstanding, dict):
            named |= {p.get("toolUseId") for p in outstanding.values() if isinstance(p, dict)}
        results = value.get("resultsSoFar")
        if isinstance(results, list):
            named |= {r.get("tool_use_id") for r in results if isinstance(r, dict)}
        ids = frozenset(n for n in named if isinstance(n, str))
        found[session] = found.get(session, frozenset()) | ids
    return found


def belongings(payload: bytes) -> tuple[str, tuple[str, ...]] | None:
    """The session that a checkpoint, open or closed, belongs to, and its pending ids; None for anything else."""
    try:
        value = loads(payload.decode())
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("sessionId"), str):
        return None
    outstanding = value.get("outstanding")
    return value["sessionId"], tuple(outstanding) if isinstance(outstanding, dict) else ()
