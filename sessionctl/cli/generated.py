"""The files of ``completions/``: written by ``python -m sessionctl.cli.generated``, held current by a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .completion import BASH, FISH, POWERSHELL, ZSH
from .manual import page

FILES: dict[str, Callable[[], str]] = {
    "sessionctl.bash": lambda: BASH,
    "_sessionctl": lambda: ZSH,
    "sessionctl.fish": lambda: FISH,
    "sessionctl.ps1": lambda: POWERSHELL,
    "sessionctl.1": page,
}
"""File to what makes its text."""


def write(folder: Path) -> None:
    """Write all files."""
    for name, make in FILES.items():
        (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "completions"))
