"""What becomes of a session whose key is taken at the target of a migration, decided purely."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Literal

from ..durations import iso, size
from ..model import Ref, Stamp
from .select import Summary

Mode = Literal["skip", "newer", "overwrite", "fail"]
MODES: tuple[Mode, ...] = ("skip", "newer", "overwrite", "fail")

RESOLUTION = 1000
"""ms: ages of logs that are nearer to each other are equal (Redis counts idle time in seconds)."""

Relation = Literal["same", "ahead", "behind", "other"]
"""How a payload stands to another: equal, beginning with it, being its beginning, or neither."""


def relation(payload: bytes, chunks: Iterable[bytes]) -> Relation:
    """Compare a payload with one that comes in pieces."""
    at = 0
    for chunk in chunks:
        here = payload[at : at + len(chunk)]
        if here != chunk:
            return "behind" if chunk.startswith(here) else "other"
        at += len(chunk)
    return "same" if at == len(payload) else "ahead"


Action = Literal["identical", "replace", "skip", "conflict"]


def settle(mode: Mode, here: Summary, there: Summary, related: Relation) -> tuple[Action, str]:
    """What becomes of a session whose key is taken at the target, and why, for people.

    ``here`` is the session at the source, ``there`` the one at the target. In mode ``newer`` a log that begins with
    the other is the newer one whatever the clocks say; else the later activity decides.
    """
    if related == "same":
        return "identical", ""
    if mode == "overwrite":
        return "replace", ""
    if there.error is not None:
        return "conflict", f"the target holds one that cannot be read: {there.error}"
    if mode != "newer":
        what = "a damaged one" if there.status == "damaged" else "another version"
        return "conflict", f"the target holds {what} ({_words(there)}; here {_words(here)})"
    for summary, place in ((there, "at the target"), (here, "at the source")):
        if summary.status == "damaged":
            return "conflict", f"the one {place} is damaged; {_ASK}"
    if here.ref.kind == "log" and related != "other":
        return ("replace", "") if related == "ahead" else ("skip", "the target holds more of it")
    mine, its = here.last_activity_at, there.last_activity_at
    least = RESOLUTION if here.ref.kind == "log" else 0
    if mine is None or its is None or abs(mine - its) <= least:
        return "conflict", f"which one is newer cannot be told ({_words(there)}; here {_words(here)}); {_ASK}"
    return ("replace", "") if mine > its else ("skip", f"the target holds a newer one ({_words(there)})")


_ASK = "--on-conflict overwrite replaces it"


def _words(summary: Summary) -> str:
    return f"{size(summary.stamp.size)}, last active {iso(summary.last_activity_at) or 'at an unknown time'}"


def clashes(names: Mapping[Ref, Hashable]) -> dict[Ref, Ref]:
    """The sessions that would become one at the target, each with another of them. ``names``: what each is called."""
    if len(set(names.values())) == len(names):
        return {}
    users: dict[Hashable, list[Ref]] = {}
    for ref, name in names.items():
        users.setdefault(name, []).append(ref)
    return {ref: next(o for o in refs if o != ref) for refs in users.values() if len(refs) > 1 for ref in refs}


def same_version(one: Stamp, other: Stamp) -> bool:
    """Whether two stamps may be of one version; one that was made by reading more may know more than the other."""
    shared = min(len(one.version), len(other.version))
    return one.version[:shared] == other.version[:shared]
