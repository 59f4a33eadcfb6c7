"""The pager: what is longer than the screen of a terminal goes through ``$PAGER``, else ``less``."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from .output import Output
from .streams import LACKING


def command() -> str | None:
    """The pager to be used, a shell command; None for none."""
    named = os.environ.get("PAGER", "less").strip()
    if named in ("", "cat") or os.environ.get("TERM") == "dumb":
        return None
    # A single word that is no program would hide the output; what is more is the shell's to understand.
    program = named.split()[0]
    return named if shutil.which(program) or not program.replace("-", "").isalnum() else None


@contextmanager
def paged(out: Output, *, wanted: bool = True) -> Iterator[None]:
    """Let what is printed go through the pager if it is longer than the screen; only at a terminal.

    Quitting the pager ends the printing and is no error. Notes wait until it has ended.
    """
    lines = _lines() if wanted and out.is_terminal else 0
    pager = command() if lines else None
    if pager is None:
        yield
        return
    before = sys.stdout
    stream = _Paged(before, pager, lines)
    sys.stdout = stream
    out.hold_notes()
    try:
        yield
    except _Left:
        pass
    finally:
        sys.stdout = before
        stream.finish()
        out.release_notes()


def _lines() -> int:
    """The height of the terminal; 0 for one that has none: nobody sits before it."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines
    except OSError:
        return 0


class _Left(Exception):
    """The pager has been left. No BrokenPipeError: Rich ends the process at one."""


class _Paged(io.TextIOBase):
    """A terminal's output that turns into a pager's input at the first line beyond the screen."""

    def __init__(self, terminal: TextIO, pager: str, lines: int) -> None:
        self._terminal = terminal
        self._pager = pager
        self._room = lines - 1  # the prompt takes a line
        self._held: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._process is None:
            self._held.append(text)
            self._room -= text.count("\n")
            if self._room < 0:
                self._start()
        else:
            self._pass_on(text)
        return len(text)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._pager,
            shell=True,
            stdin=subprocess.PIPE,
            env={"LESS": "FRX", "LV": "-c"} | os.environ,
            encoding=self.encoding,
            errors=LACKING,
        )
        held, self._held = "".join(self._held), []
        self._pass_on(held)

    def _pass_on(self, text: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(text)
        except BrokenPipeError:
            raise _Left from None

    def flush(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.flush()
            except BrokenPipeError:
                raise _Left from None

    def finish(self) -> None:
        """Print what was short enough to need no pager, else wait until the pager has been left."""
        if self._process is None:
            self._terminal.write("".join(self._held))
            self._terminal.flush()
            return
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        while True:
            try:
                self._process.wait()
                return
            except KeyboardInterrupt:
                continue  # it is the pager's: less takes Ctrl-C as the end of a search
