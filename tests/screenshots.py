"""Screenshots of the sample sessions as SVG, for the README: ``python -m tests.screenshots`` writes them anew.

They are what the commands print at a real terminal, with the clock stopped.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent))

from terminal import DOCUMENTS, Terminal, environment

FOLDER = Path(__file__).parent / "data" / "screenshots"
WIDTH = 100
NOW = 1_796_083_200_000
"""When the pictures are taken, in ms: some hours after the samples were written."""
_LAUNCH = f"import time; time.time_ns = lambda: {NOW} * 1_000_000; from sessionctl.cli import run; run()"
_PROGRESS = re.compile(r"\x1b\[\?25l.*?\x1b\[\?25h\x1b\[1A\x1b\[2K", re.DOTALL)
"""A progress bar that came and went."""
_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)
"""What would load fonts from elsewhere, and where Rich is found."""
SHOTS = {
    "list": ("list",),
    "show": ("show", "user-alice-session"),
    "repair": ("repair", "interrupted-one", "midway-unresolved", "orphan-result"),
    "stats": ("stats",),
}
"""Picture to command."""


def printed(arguments: tuple[str, ...]) -> str:
    """What a command prints at a terminal about the samples, with its escape sequences."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(shutil.copytree(DOCUMENTS, Path(folder) / "sessions"))
        for path in store.iterdir():
            os.utime(path, (NOW / 1000 - 3600, NOW / 1000 - 3600))
        command = [sys.executable, "-c", _LAUNCH]
        env = environment(SESSIONCTL_STORE="./sessions", PAGER="")
        with Terminal(*arguments, command=command, env=env, size=(WIDTH, 50), cwd=Path(folder)) as screen:
            screen.wait()
            return _PROGRESS.sub("", screen.text.replace("\r\n", "\n")).strip("\n")


def picture(name: str) -> str:
    """The picture of that name."""
    arguments = SHOTS[name]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ sessionctl " + " ".join(arguments), "bold"))
    console.print(Text.from_ansi(printed(arguments)))
    svg = console.export_svg(title="sessionctl " + " ".join(arguments), theme=MONOKAI, unique_id=f"sessionctl-{name}")
    return _ELSEWHERE.sub("", svg)


def text_of(svg: str) -> str:
    """The words of a picture, whatever version of Rich has drawn it."""
    return " ".join(html.unescape(" ".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg))).split())


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name in SHOTS:
        (FOLDER / f"{name}.svg").write_text(picture(name), encoding="utf-8")


if __name__ == "__main__":
    main()
