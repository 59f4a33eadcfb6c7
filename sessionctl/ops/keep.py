"""Small files that commands keep for themselves (cursors, plans, metrics): written whole, distrusted when read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import UsageError, WriteFailed
from ..keys import quoted
from ..stores.base import Store
from ..stores.files import chunks_at, reason, replace_at
from ..stores.folder import FolderStore

T = TypeVar("T")
LARGEST = 256 << 20
"""Bytes above which a file is none of ours."""


def check_place(path: str, option: str) -> None:
    """Raise UsageError if a file could not be written there; asked before the work, not after it."""
    folder = Path(path).parent
    if not path or path.endswith("/") or os.path.isdir(path):
        raise UsageError(f"{option} names no file: {quoted(path, 300)}")
    if not os.path.isdir(folder):
        raise UsageError(f"{option}: there is no folder {quoted(str(folder), 300)}")
    try:
        is_file = stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        is_file = True  # it will be
    except (OSError, ValueError) as error:
        said = reason(error) if isinstance(error, OSError) else str(error)
        raise UsageError(f"{option}: {quoted(path, 300)}: {said}") from error
    if not is_file:
        raise UsageError(f"{option}: {quoted(path, 300)} is not a regular file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: cannot write in {quoted(str(folder), 300)}")


def write(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a whole file, durably; a new one has ``mode``. Raises WriteFailed."""
    place = Path(path)
    try:
        descriptor = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise WriteFailed(f"cannot write {quoted(path, 300)}: {reason(error)}") from error
    try:
        replace_at(descriptor, place.name, data, None, check=False, changed_at=None, mode=mode)
    finally:
        os.close(descriptor)


def read(path: str, option: str) -> bytes | None:
    """A file's bytes, None where there is none. Raises UsageError for one that cannot be read or is no file of ours."""
    place = Path(path)
    try:
        descriptor = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{option}: cannot read {quoted(path, 300)}: {reason(error)}") from None
    try:
        data = b""
        for chunk in chunks_at(descriptor, place.name):
            data += chunk
            if len(data) > LARGEST:
                raise UsageError(f"{option}: {quoted(path, 300)} is too large")
        return data
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{option}: cannot read {quoted(path, 300)}: {reason(error)}") from None
    finally:
        os.close(descriptor)


def identity(store: Store) -> str:
    """A store's name in such a file: without secrets, and the same from whatever folder the command is started."""
    if isinstance(store, FolderStore):
        prefix = f"{store.kinds[0]}s:" if len(store.kinds) == 1 else ""
        return prefix + os.path.realpath(store.path)
    return store.url


def encode(value: msgspec.Struct) -> bytes:
    """A struct as JSON in ASCII: keys may hold what no encoding can (half a surrogate pair, a byte of a file name)."""
    return json.dumps(msgspec.to_builtins(value)).encode() + b"\n"


def decode(data: bytes, as_type: type[T]) -> T | None:
    """A struct from JSON, None unless it fits the type exactly."""
    try:
        return msgspec.convert(json.loads(data), as_type)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None
