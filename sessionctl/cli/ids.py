"""From the ids that a command was given to the sessions that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import NamedTuple

from ..errors import InvalidKey, SessionctlError, SessionNotFound, UsageError
from ..keys import quoted
from ..model import KINDS, Kind, Ref
from ..ops.select import exactly, resolve
from ..stores.base import Store


class Named(NamedTuple):
    """The sessions that were named, each once, and the keys from standard input that name none."""

    refs: list[Ref]
    missing: list[tuple[str, SessionctlError]]


def named(store: Store, ids: list[str], kinds: tuple[Kind, ...] = KINDS, also: Collection[Ref] = ()) -> Named:
    """Resolve all ids before anything is done; ``-`` reads keys from standard input, one a line or ended by NUL.

    An id of the command line that names nothing raises; a key of standard input is told at the end, the others done.
    Such a key is meant whole: the session may have gone since it was listed, and then it is not the start of another.
    ``also`` are sessions that the store does not yield but that may be named by their key.
    """

    def find(text: str, *, whole: bool) -> list[Ref]:
        try:
            found = exactly(store, text, kinds) if whole else resolve(store, text, kinds)
            failed = SessionNotFound(quoted(text))
        except SessionNotFound as error:
            found, failed = [], error
        found = found or [ref for ref in also if ref.key == text]
        if not found:
            raise failed
        return found

    refs: dict[Ref, None] = {}
    missing: list[tuple[str, SessionctlError]] = []
    unknown: dict[str, SessionNotFound] = {}
    for text in ids:
        if text != "-":
            try:
                refs.update(dict.fromkeys(find(text, whole=False)))
            except SessionNotFound as error:
                unknown[text] = error
    for first in unknown.values():
        raise first if len(unknown) == 1 else SessionNotFound(", ".join(map(quoted, unknown)), hint=first.hint)
    if "-" in ids:
        for text in read_ids():
            try:
                refs.update(dict.fromkeys(find(text, whole=True)))
            except (SessionNotFound, InvalidKey) as error:
                missing.append((text, error))
    return Named(list(refs), missing)


def read_ids() -> list[str]:
    """The keys on standard input."""
    if sys.stdin is None:
        raise UsageError("there is no standard input to read ids from")
    text = sys.stdin.buffer.read()
    parts = text.split(b"\0") if b"\0" in text else [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return [os.fsdecode(part) for part in dict.fromkeys(parts) if part]
