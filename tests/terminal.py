"""Running the command line for tests: as a plain process, and at a real terminal (a pty)."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

COMMAND = [sys.executable, "-m", "sessionctl"]
ROOT = Path(__file__).parent.parent
FIXTURES = Path(__file__).parent / "data" / "fixtures"
DOCUMENTS = FIXTURES / "seepient" / "sessions"
LOGS = FIXTURES / "loopengine" / ".sessions"
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>()][A-Z0-9]?)")


def environment(home: Path | None = None, **extra: str) -> dict[str, str]:
    """A clean environment: nothing of the caller's but PATH, no pager, and no home folder unless one is given."""
    found = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "SESSIONCTL_CONFIG": "",
        "PAGER": "",
    }
    if home is not None:
        found["HOME"] = str(home)
    return found | extra


def run(
    *arguments: str | Path, env: dict[str, str] | None = None, stdin: bytes = b"", timeout: float = 30
) -> subprocess.CompletedProcess[str]:
    """Run sessionctl without a terminal."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin.decode(),
        capture_output=True,
        encoding="utf-8",
        env=environment() if env is None else env,
        timeout=timeout,
        check=False,
    )


class Terminal:
    """A process at a pty of so many columns and rows: ``text`` is what it has printed, ``plain`` is without escapes."""

    def __init__(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        size: tuple[int, int] = (80, 24),
        command: list[str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        settings = {"TERM": "xterm-256color"} | (environment() if env is None else env)
        self.process = subprocess.Popen(
            [*(COMMAND if command is None else command), *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=settings,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.master = master

    @property
    def plain(self) -> str:
        return _ESCAPE.sub("", self.text).replace("\r\n", "\n")

    def send(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def read(self, seconds: float) -> str:
        """Take what is printed within so many seconds, or until the process ends; returns all of ``plain``."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._take(left):
            pass
        return self.plain

    def expect(self, text: str, seconds: float = 15) -> str:
        """Wait until ``text`` has been printed."""
        end = time.monotonic() + seconds
        while text not in self.plain:
            left = end - time.monotonic()
            if left <= 0 or not self._take(left):
                raise AssertionError(f"{text!r} was not printed; there is:\n{self.plain}")
        return self.plain

    def _take(self, wait: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], wait)
        if not ready:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.text += self._decoder.decode(data)
        return bool(data)

    def wait(self, seconds: float = 15) -> int:
        """Read to the end and return the exit code."""
        while self._take(seconds):
            pass
        return self.process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)
