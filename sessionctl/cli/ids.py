"""From the ids that a command was given to the sessions that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import NamedTuple

from ..errors import AmbiguousId, InvalidKey, SessionctlError, SessionNotFound, UsageError
from ..keys import quoted
from ..model import KINDS, Kind, Ref
from ..ops.select import resolve
from ..stores.base import Store


class Named(NamedTuple):
    """The sessions that were named, each once, and the ids from standard input that name none."""

    refs: list[Ref]
    missing: list[tuple[str, SessionctlError]]


def named(store: Store, ids: list[str], kinds: tuple[Kind, ...] = KINDS, also: Collection[Ref] = ()) -> Named:
    """Resolve all ids before anything is done; ``-`` reads them from standard input, one a line or ended by NUL.

    An id of the command line that names nothing raises; one of standard input is told at the end, the others are done.
    ``also`` are sessions that the store does not yield but that may be named by their key.
    """

    def find(text: str) -> list[Ref]:
        try:
            return resolve(store, text, kinds)
        except SessionNotFound:
            lost = [ref for ref in also if ref.key == text]
            if not lost:
                raise
            return lost

    refs: dict[Ref, None] = {}
    missing: list[tuple[str, SessionctlError]] = []
    unknown: dict[str, SessionNotFound] = {}
    for text in ids:
        if text != "-":
            try:
                refs.update(dict.fromkeys(find(text)))
            except SessionNotFound as error:
                unknown[text] = error
    for first in unknown.values():
        raise first if len(unknown) == 1 else SessionNotFound(", ".join(map(quoted, unknown)), hint=first.hint)
    if "-" in ids:
        for text in read_ids():
            try:
                refs.update(dict.fromkeys(find(text)))
            except (SessionNotFound, InvalidKey, AmbiguousId) as error:
                missing.append((text, error))
    return Named(list(refs), missing)


def read_ids() -> list[str]:
    """The ids on standard input."""
    if sys.stdin is None:
        raise UsageError("there is no standard input to read ids from")
    text = sys.stdin.buffer.read()
    parts = text.split(b"\0") if b"\0" in text else [line.removesuffix(b"\r") for line in text.split(b"\n")]
    return [os.fsdecode(part) for part in dict.fromkeys(parts) if part]
