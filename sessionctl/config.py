"""The configuration file: named stores and defaults (DESIGN.md, Where a store is named)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A named store. ``archive`` is where gc and delete copy first; ``protect`` are patterns that nothing removes."""

    url: str
    archive: str | None = None
    protect: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says. ``options`` holds the defaults of each command's options, by command and option name."""

    default: str | None = None
    stores: dict[str, StoreConfig] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def load() -> Config:
    """Read the configuration; an absent file is an empty one. Raises ConfigError."""
    return Config()
