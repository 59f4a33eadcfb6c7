"""What a shell may complete: words of ours, store names, session keys. Fast, bounded, silent whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ..stores.base import Store

PATIENCE = 0.3
"""Seconds that a store is waited for; what has come by then is offered."""
MOST = 200
"""Keys that are offered at most."""

Offers = list[tuple[str, str]]


def words(*allowed: str) -> Callable[[str], list[str]]:
    """Completes a fixed set of words."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in allowed if word.startswith(incomplete)]

    return offer


def store_names(incomplete: str) -> Offers:
    """Completes the stores of the configuration; anything else is left to the shell's own completion of files."""
    return within(PATIENCE, lambda offers: _store_names(offers, incomplete))


def _store_names(offers: Offers, incomplete: str) -> None:
    from ..config import load

    for name, config in load().stores.items():
        if name.startswith(incomplete):
            offers.append((name, config.shown))


def keys(ctx: typer.Context, incomplete: str) -> Offers:
    """Completes the keys of the store that the line names, else of the default store."""
    named: Any = ctx.params.get("store")
    return within(PATIENCE, lambda offers: _keys(offers, named, incomplete))


def _keys(offers: Offers, named: str | None, incomplete: str) -> None:
    from ..stores import open_store
    from .options import default_store

    with open_store(default_store(named)) as store:
        _offer_keys(offers, store, incomplete)


def _offer_keys(offers: Offers, store: Store, incomplete: str) -> None:
    from ..durations import ago
    from ..keys import own_id
    from ..stores.base import Want
    from .options import now_ms

    now = now_ms()
    for record in store.records(Want.NAMES):
        key, kind = record.ref
        # Also the id alone of a key that begins with an owner's hash or an agent's place: nobody types those.
        for text in (key, own_id(record.ref)):
            if text.startswith(incomplete) and text.isprintable():
                at = record.stamp.changed_at
                offers.append((text, kind if at is None else f"{kind}, {ago(now - at)} old"))
                break
        if len(offers) >= MOST:
            return


def within(seconds: float, fill: Callable[[Offers], None]) -> Offers:
    """What ``fill`` has added to a list after so many seconds; errors leave it as it is."""
    offers: Offers = []

    def work() -> None:
        try:
            fill(offers)
        except Exception:  # noqa: BLE001 - a completion that fails offers nothing and says nothing
            return

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    return sorted(offers[:MOST])
