"""The configuration file: named stores and defaults of options (DESIGN.md, Where a store is named).

    default = "prod"

    [stores.prod]
    url = "redis://:${REDIS_PASSWORD}@cache.internal/0"
    archive = "/var/backups/sessions"
    protect = ["acme:production:*"]

    [options.gc]
    older-than = "30d"

``${VAR}`` is replaced where a store is used, so that a missing variable spoils only the store that needs it. A relative
folder is one beside this file, wherever the command is started; ``~`` is the home folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .keys import quoted

TOP_KEYS = ("default", "stores", "options")
STORE_KEYS = ("url", "archive", "protect")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_LOGIN = re.compile(r"(://[^:/?#]*):.*@")  # to the last @: better to hide too much than to leave half a password
_SECRET_OPTION = re.compile(r"(?i)([?&][^=&#]*(?:pas|pw|secret|token|auth|cred)[^=&#]*=)[^&#]*")  # misspelt, too


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the file, for messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A named store. ``archive`` is where gc and delete copy first; ``protect`` are patterns that nothing removes.

    ``url`` and ``archive`` raise ConfigError when a variable in them is not set; ``shown`` is the URL as it is written,
    without a password.
    """

    written_url: str = ""
    written_archive: str | None = None
    protect: tuple[str, ...] = ()
    place: Place | None = None

    @property
    def url(self) -> str:
        return resolve(self.written_url, self.place)

    @property
    def archive(self) -> str | None:
        return None if self.written_archive is None else resolve(self.written_archive, self.place)

    @property
    def shown(self) -> str:
        return hide_secrets(self.written_url)


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says. ``options`` holds the defaults of each command's options, by command and option name.

    ``path`` is where it is, or would be; None where there is no place for it.
    """

    default: str | None = None
    stores: dict[str, StoreConfig] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    path: str | None = None
    lines: dict[tuple[str, ...], int] = field(default_factory=dict, repr=False)

    def checked_default(self) -> str | None:
        """The default store. Raises ConfigError for a name that is none of the configured ones."""
        names = (*self.stores, "file", "redis")
        if self.default and self.default not in names and _is_name(self.default):
            from difflib import get_close_matches

            near = get_close_matches(self.default, names, 1)
            raise ConfigError(
                f"{self.place('default')}: the default is no store of this file: {quoted(self.default)}"
                + (f"; did you mean {near[0]}?" if near else ""),
                hint="name one of [stores], or write a folder with a slash",
            )
        return self.default

    def place(self, *keys: str) -> Place:
        """Where a key stands, or the nearest table around it."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return Place(self.path or "config.toml", self.lines.get(keys, 1))


def load() -> Config:
    """Read the configuration, once; an absent file is an empty one, and no home folder means no file.

    Raises ConfigError, which names file, line and what is allowed there.
    """
    named = os.environ.get("SESSIONCTL_CONFIG")
    if named is not None:
        return _read(named, True) if named else Config()
    path = default_path()
    return _read(path, False) if path else Config()


def default_path() -> str | None:
    """The file in the platform's user config folder; None where no home folder is known."""
    if os.name == "posix" and not os.environ.get("HOME") and not os.environ.get("XDG_CONFIG_HOME"):
        return None
    from platformdirs import user_config_path

    return str(user_config_path("sessionctl", appauthor=False) / "config.toml")


@lru_cache(maxsize=8)
def _read(path: str, must_exist: bool) -> Config:
    try:
        data = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if must_exist:
            raise ConfigError(f"no configuration at {quoted(path, 300)} (SESSIONCTL_CONFIG)") from None
        return Config(path=path)
    except OSError as error:
        raise ConfigError(f"cannot read {quoted(path, 300)}: {(error.strerror or str(error)).lower()}") from None
    return parse(data, path)


def parse(data: bytes, path: str) -> Config:
    """The configuration in the bytes of a file called ``path``. Raises ConfigError."""
    import tomllib

    try:
        text = data.decode("utf-8-sig")
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"(.*) \(at (?:line (\d+)|end of document).*\)\Z", str(error))
        said, line_text = (match[1], match[2]) if match else (str(error), None)
        line = int(line_text) if line_text else text.count("\n") + 1
        raise ConfigError(f"{path}:{line}: not TOML: {said[:1].lower()}{said[1:]}") from None
    config = Config(path=path, lines=lines_of(text))
    check_keys(config, table, TOP_KEYS)
    default = _typed(config, table, "default", "text")
    stores = {
        name: _store(config, name, _typed(config, table["stores"], name, "table", "stores"))
        for name in _typed(config, table, "stores", "table") or {}
    }
    options = {
        name: _typed(config, table["options"], name, "table", "options")
        for name in _typed(config, table, "options", "table") or {}
    }
    if default is not None:
        default = resolve(default, config.place("default"))
    return Config(default, stores, options, path, config.lines)


def _store(config: Config, name: str, table: dict[str, Any]) -> StoreConfig:
    at = ("stores", name)
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ConfigError(f"{config.place(*at)}: not a name for a store: {quoted(name)}", hint="such as prod or eu-1")
    check_keys(config, table, STORE_KEYS, *at)
    url = _typed(config, table, "url", "text", *at)
    if not url:
        raise ConfigError(f"{config.place(*at)}: [stores.{name}] has no url")
    if _is_name(url):
        raise ConfigError(
            f"{config.place(*at, 'url')}: the url of a store is a folder or URL, not another name: {quoted(url)}",
            hint="write a folder with a slash, such as /var/lib/sessions",
        )
    protect = _typed(config, table, "protect", "list of texts", *at) or []
    archive = _typed(config, table, "archive", "text", *at)
    return StoreConfig(url, archive, tuple(protect), config.place(*at, "url"))


def check_keys(config: Config, table: Mapping[str, Any], allowed: tuple[str, ...], *at: str) -> None:
    """Raise ConfigError for a key that is not allowed, naming the nearest and all."""
    for key in table:
        if key not in allowed:
            from difflib import get_close_matches

            near = get_close_matches(key, allowed, 1)
            where = f" in [{'.'.join(at)}]" if at else ""
            raise ConfigError(
                f"{config.place(*at, key)}: no such key{where}: {quoted(key)}"
                + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"it is one of {', '.join(allowed)}",
            )


TYPES: dict[str, Any] = {
    "text": lambda v: isinstance(v, str),
    "number": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "true or false": lambda v: isinstance(v, bool),
    "list of texts": lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v),
    "table": lambda v: isinstance(v, dict),
}
"""What a value can have to be, by its name for people."""


def check_type(config: Config, value: object, wanted: str, *at: str) -> None:
    """Raise ConfigError unless ``value`` is of the type called ``wanted`` (see TYPES)."""
    if not TYPES[wanted](value):
        written = next((name for name, fits in TYPES.items() if fits(value)), type(value).__name__)
        raise ConfigError(f"{config.place(*at)}: {at[-1]} must be {_article(wanted)}, not {_article(written)}")


def _article(noun: str) -> str:
    return noun if noun in ("text", "true or false") else f"a {noun}"


def _typed(config: Config, table: Mapping[str, Any], key: str, wanted: str, *at: str) -> Any:
    value = table.get(key)
    if key in table:
        check_type(config, value, wanted, *at, key)
    return value


def expand(text: str, place: Place | None = None) -> str:
    """``text`` with each ``${VAR}`` replaced from the environment. Raises ConfigError naming what is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            at = f"{place}: " if place else ""
            raise ConfigError(f"{at}the environment variable {quoted(name)} is not set")
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def _is_name(text: str) -> bool:
    """Whether a store is named by its name alone, not by a folder or URL."""
    return "/" not in text and ":" not in text and not text.startswith(("~", "."))


def resolve(text: str, place: Place | None) -> str:
    """A store as it is written in the file: ``${VAR}`` replaced, a relative folder taken as one beside the file."""
    text = expand(text, place)
    match = re.match(r"sqlite:///|(?:file|documents|logs):(?!//)|(?!.*:)", text)
    if place is None or match is None or _is_name(text):
        return text
    path = os.path.expanduser(text[match.end() :])
    if not path or path.startswith(":") or os.path.isabs(path):
        return match[0] + path
    return match[0] + os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(place.file)), path))


def hide_secrets(url: str) -> str:
    """A URL without its password; a ``${VAR}`` in its place stays, as it gives nothing away."""

    def login(match: re.Match[str]) -> str:
        secret = match[0][len(match[1]) + 1 : -1]
        return match[0] if _VARIABLE.fullmatch(secret) else f"{match[1]}:***@"

    return _SECRET_OPTION.sub(r"\1***", _LOGIN.sub(login, url))


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Where each table and key of a TOML text stands, by its path; for messages, since tomllib does not tell."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line.startswith("["):
            path = _path(line)
            if path is not None:
                table = path
                found.setdefault(path, number)
        elif "=" in line and not line.startswith("#"):
            key = _path(line.partition("=")[0] + "= 0")
            if key is not None:
                found.setdefault(table + key, number)
    return found


def _path(line: str) -> tuple[str, ...] | None:
    import tomllib

    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    path: list[str] = []
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            value = value[0]
            continue
        name, value = next(iter(value.items()))
        path.append(name)
    return tuple(path)
