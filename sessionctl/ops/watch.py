"""When to look again: told by the file system where it tells of changes, else by a clock that costs next to nothing."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator

from ..model import Ref
from ..stores.base import Store
from ..stores.folder import FolderStore, ref_of

TICK = 0.25
"""Seconds between two looks at the sessions that are active, where nothing tells of changes."""
SHARE = 150
"""A look at all sessions is made at most so rarely that it takes one part in so many of the time."""
COSTS = 3
"""Looks of which the cheapest tells what one costs: one that a server or a reader held up tells nothing."""
RARELY = 10.0
"""Seconds between two looks at everything where changes are told: what went unheard is found then."""
WAKE = 0.5
"""Seconds after which the caller is woken at the latest, be there anything to look at or not."""
SILENT = ("nfs", "cifs", "smb", "fuse", "9p", "drvfs", "vboxsf", "afs", "ceph", "virtiofs")
"""How the names of file systems begin that do not tell of what others change."""

Batch = Collection[tuple[object, str]]
Look = Collection[Ref] | None
"""What to look at: these sessions (perhaps none), or everything (None)."""


def looks(
    store: Store, refs: Collection[Ref] | None, active: Callable[[], Collection[Ref]], poll: float | None
) -> Iterator[Look]:
    """What to look at, whenever it is time to; yields at least twice a second, an empty set where there is nothing.

    ``refs`` are the sessions that are followed (None: all), ``active`` tells which of them changed lately, ``poll``
    seconds forces polling at that pace.
    """
    while True:
        if poll is None and isinstance(store, FolderStore) and tells(store):
            yield from _told(store, refs)
        else:
            yield from _polled(store, refs, active, poll or TICK)


def tells(store: FolderStore) -> bool:
    """Whether the folder is there and its file system tells of changes."""
    return store.exists() and not file_system(str(store.path)).startswith(SILENT)


def file_system(path: str) -> str:
    """The type of the file system that holds ``path``; empty where the system does not say."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - not a path of ours
            mounts = [line.split(" ")[1:3] for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    inside = [(len(place), kind) for place, kind in mounts if real == place or real.startswith(place.rstrip("/") + "/")]
    return max(inside, default=(0, ""))[1]


def _told(store: FolderStore, refs: Collection[Ref] | None) -> Iterator[Look]:
    """Look at what the file system names, now and then at everything; ends when the folder is another one."""
    from watchfiles import watch

    place = store.place()
    due = 0.0
    changes = watch(
        store.path,
        watch_filter=None,
        debounce=150,
        step=50,
        rust_timeout=500,
        yield_on_timeout=True,
        recursive=False,
        raise_interrupt=True,
    )
    for batch in _until_gone(changes):
        if store.place() != place:
            store.close()
            return
        if time.monotonic() >= due:
            started = time.monotonic()
            yield refs
            due = time.monotonic() + max(RARELY, SHARE * (time.monotonic() - started))
            continue
        named = {ref for _, path in batch if (ref := ref_of(os.path.basename(path))) is not None}
        yield named if refs is None else named.intersection(refs)


def _until_gone(changes: Iterator[Batch]) -> Iterator[Batch]:
    try:
        yield from changes
    except FileNotFoundError:
        return


def _polled(
    store: Store, refs: Collection[Ref] | None, active: Callable[[], Collection[Ref]], pace: float
) -> Iterator[Look]:
    """Look at the active sessions at every tick, and at all as often as that is cheap, or when the folder has changed;
    ends when a folder has come that was not there."""
    folder = store if isinstance(store, FolderStore) else None
    there = folder is None or folder.exists()
    due, before = 0.0, _changed(folder)
    costs: deque[float] = deque(maxlen=COSTS)
    while True:
        if folder is not None and not there and folder.exists():
            folder.close()
            return
        now_changed = _changed(folder)
        started = time.monotonic()
        if started >= due or now_changed != before:
            before = now_changed
            yield refs
            costs.append(time.monotonic() - started)
            pause = SHARE * min(costs) if refs is None and len(costs) > 1 else 0
            due = time.monotonic() + pause
        else:
            yield active()
        left = pace
        while left > 0:
            time.sleep(min(left, WAKE))
            left -= WAKE
            if left > 0:
                yield ()


def _changed(folder: FolderStore | None) -> int:
    """When the folder's list of names changed, in ns."""
    try:
        return 0 if folder is None else os.stat(folder.path).st_mtime_ns
    except OSError:
        return 0
