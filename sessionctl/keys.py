"""Session keys: what may be one, how it is built, parsed and matched, and what file it lives in."""

from __future__ import annotations

import os
import re
import unicodedata
from fnmatch import translate
from typing import NamedTuple

from .errors import InvalidKey
from .model import Kind, Ref

MAX_LOOKUP = 1024
"""Characters. Longer text cannot name a session in any store (file names end at 255 bytes, keys at 256 characters)."""

SUFFIXES: dict[Kind, str] = {"document": ".json", "log": ".jsonl"}
NAME_LIMIT = 255
"""Bytes of a file name on the file systems in use."""

_STORAGE_KEY = re.compile(r"[a-zA-Z0-9_:-]{1,256}\Z")
_CLIENT_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_HASH_PREFIX = re.compile(r"([0-9a-f]{64}|[0-9a-f]{16}):(.+)\Z", re.DOTALL)
_WINDOWS_NAMES = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NUL = re.compile(r"\x00")


class SessionKey(NamedTuple):
    """LoopEngine's session id (FORMATS.md section 2): ``tenant:environment:agent:raw``; ``raw`` may hold ``:``."""

    tenant: str
    environment: str
    agent: str
    raw: str

    def __str__(self) -> str:
        return ":".join(self)

    @classmethod
    def build(cls, raw: str, agent: str, tenant: str = "default", environment: str = "production") -> SessionKey:
        """Make a key from its parts. Raises InvalidKey for an empty part, or a ``:`` in any part but ``raw``."""
        for name, part in (("tenant", tenant), ("environment", environment), ("agent", agent)):
            if not part or ":" in part:
                raise InvalidKey(f"{name} {quoted(part)} must not be empty or hold ':'")
        if not raw:
            raise InvalidKey("the raw id is empty")
        return cls(tenant, environment, agent, raw)

    @classmethod
    def parse(cls, key: str) -> SessionKey | None:
        """Split a key into its four parts; None for a key of another form."""
        parts = key.split(":", 3)
        return cls(*parts) if len(parts) == 4 and all(parts) else None


def quoted(text: str, limit: int = 80) -> str:
    """``text`` for a message: cut, in quotes, with every control character visible."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return "'" + "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in cut) + "'"


def check_lookup(text: str) -> str:
    """Return ``text`` if it may be looked up as an id; raise InvalidKey for a path, a NUL, excess."""
    if not text:
        raise InvalidKey("it is empty")
    if len(text) > NAME_LIMIT and len(text.encode("utf-8", "surrogatepass")) > 250:
        raise InvalidKey(f"it is {len(text.encode('utf-8', 'surrogatepass'))} bytes long, the limit is 250")
    if "\0" in text:
        raise InvalidKey(f"{quoted(text)} holds a NUL")
    if text.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", text) or re.match(r"[A-Za-z]:[/\\]", text):
        raise InvalidKey(f"{quoted(text)} is a path")
    return text


def check_key(key: str) -> str:
    """Return ``key`` if a store can hold a session under it; raise InvalidKey for nothing and for a NUL."""
    if not key or "\0" in key:
        raise InvalidKey(f"{quoted(key)} is empty" if not key else f"{quoted(key)} holds a NUL")
    return key


def check_storage_key(key: str) -> str:
    """Seepient's rule for saving (FORMATS.md section 1, Ids); raises InvalidKey."""
    if not _STORAGE_KEY.match(key):
        raise InvalidKey(f"{quoted(key)} (letters, digits, '_', ':' and '-', at most 256 characters)")
    return key


def check_client_id(session_id: str) -> str:
    """Seepient's rule for an id that a client gives (FORMATS.md section 1, Ids); raises InvalidKey."""
    if not _CLIENT_ID.match(session_id):
        raise InvalidKey(f"{quoted(session_id)} (letters, digits, '_' and '-', at most 128 characters)")
    return session_id


def split_composite(key: str) -> tuple[str | None, str]:
    """``{apiKeyHash}:{id}`` into prefix and id (FORMATS.md section 1, Composite keys); the prefix is None elsewhere."""
    match = _HASH_PREFIX.match(key) if ":" in key else None
    return (match[1], match[2]) if match else (None, key)


def own_id(ref: Ref) -> str:
    """The id that people know a session by, as its key tells it: what follows the owner's hash in a document's key, the
    raw id of a log's. Else the key itself."""
    if ref.kind == "document":
        return split_composite(ref.key)[1]
    parsed = SessionKey.parse(ref.key)
    return parsed.raw if parsed else ref.key


def is_pattern(text: str) -> bool:
    """Whether a text holds any of the characters that make a shell pattern."""
    return any(character in text for character in "*?[")


def is_reserved_name(name: str) -> bool:
    """Whether Windows keeps this file name for a device."""
    return bool(_WINDOWS_NAMES.match(name))


def file_name(key: str, kind: Kind, *, new: bool = True) -> str:
    """The file that a session of this key has in a folder. Raises InvalidKey where no file may have that name.

    Logs: ``/`` and ``\\`` become ``_`` (FORMATS.md section 2); documents: neither is allowed. A ``new`` file has a name
    that every system takes; one that is there may hold control characters, bytes that are no text, or a reserved name.
    """
    if not key or (_CONTROL if new else _NUL).search(key):
        raise InvalidKey(f"{quoted(key)} cannot be a file name")
    if kind == "log":
        key = key.replace("/", "_").replace("\\", "_")
    elif "/" in key or "\\" in key:
        raise InvalidKey(f"{quoted(key)} is a path")
    name = key + SUFFIXES[kind]
    try:
        length = len(name if name.isascii() else name.encode() if new else os.fsencode(name))
    except UnicodeEncodeError as error:
        raise InvalidKey(f"{quoted(key)} is not text that a file can be named by") from error
    if length > NAME_LIMIT:
        limit = NAME_LIMIT - len(SUFFIXES[kind])
        raise InvalidKey(f"{quoted(key)} is {length - len(SUFFIXES[kind])} bytes long, the limit is {limit}")
    if new and is_reserved_name(name):
        raise InvalidKey(f"{quoted(key)} is a reserved name on Windows")
    return name


def digest(data: bytes) -> str:
    """32 hex digits that stand for these bytes (the front half of their SHA-256)."""
    import hashlib  # loads OpenSSL: commands that only read do without

    return hashlib.sha256(data).hexdigest()[:32]


def folded(name: str) -> str:
    """``name`` as a disk compares it that folds case and Unicode forms: two that are equal are one file there."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def matches(key: str, patterns: tuple[str, ...]) -> bool:
    """Whether ``key`` fits one of the shell patterns, as a whole and with regard to case. No pattern fits all."""
    return not patterns or any(re.match(translate(pattern), key) for pattern in patterns)
