"""Stored sessions for tests, written as Seepient and LoopEngine write them, and what must not change by reading."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def message(role: str, content: Any, at: int | None = None, **more: Any) -> dict[str, Any]:
    """A message of a document."""
    return {"role": role, "content": content} | ({} if at is None else {"timestamp": at}) | more


def document(
    folder: Path, key: str, *, age: int = DAY, messages: list[dict[str, Any]] | None = None, **fields: Any
) -> Path:
    """A document whose times lie ``age`` ms back; ``fields`` replace or add keys of the object."""
    at = now_ms() - age
    said = [message("user", "hi", at), message("assistant", "hello", at)] if messages is None else messages
    value = {"id": key, "messages": said, "createdAt": at, "updatedAt": at} | fields
    path = folder / f"{key}.json"
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "replace").decode())
    return path


def entry(id_: str, parent: str | None, role: str = "user", content: Any = "hi", **more: Any) -> dict[str, Any]:
    """An entry of a log."""
    return {"id": id_, "parentId": parent, "message": {"role": role, "content": content}} | more


def call(id_: str, name: str = "ls", **arguments: Any) -> dict[str, Any]:
    """A block with a tool call."""
    return {"type": "tool_use", "id": id_, "name": name, "input": arguments}


def result(id_: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    """A block with a tool result."""
    return {"type": "tool_result", "tool_use_id": id_, "content": content} | more


TALK = (entry("e1", None), entry("e2", "e1", "assistant", "hello"))


def log(folder: Path, key: str, *entries: dict[str, Any] | bytes, age: int = DAY) -> Path:
    """A log of these entries (bytes: a line as it is, with its end), last written ``age`` ms ago."""
    path = folder / f"{key}.jsonl"
    lines = (e if isinstance(e, bytes) else json.dumps(e, ensure_ascii=False).encode() + b"\n" for e in entries or TALK)
    path.write_bytes(b"".join(lines))
    set_age(path, age)
    return path


def set_age(path: Path, age: int) -> None:
    """Move a file's times ``age`` ms back."""
    at = (now_ms() - age) * 1_000_000
    os.utime(path, ns=(at, at), follow_symlinks=False)


def state(*folders: Path) -> dict[str, tuple[int, ...]]:
    """Every name at and below some folders with what must not change by reading."""
    found = {}
    for folder in folders:
        for path in [folder, *folder.rglob("*")]:
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_nlink)
    return found


def names(folder: Path) -> list[str]:
    """The names in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())
