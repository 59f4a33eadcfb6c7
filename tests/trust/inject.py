"""Runs a command that dies, or meets an error, at its N-th call that writes to a disk or a server.

    python -m tests.trust.inject 7 kill -- gc --older-than 1d -y -s FOLDER
    python -m tests.trust.inject 2 ENOSPC -- turn logs:FOLDER KEY

The product holds no switch for this: the calls of ``os`` and of sockets are wrapped in the process that runs it. With
``--serve`` commands come as lines of JSON, each is run in a forked child, and what came of it is a line of JSON.
"""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.terminal import ROOT, environment

FILES = frozenset(
    ("open", "write", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "ftruncate", "utime", "fchmod")
)
"""Calls that change something on a disk; ``open`` only where it may write, ``look`` is every other."""
APPLIES: dict[str, frozenset[str]] = {
    "kill": FILES | {"send"},
    "torn": frozenset(("write", "send")),
    "short": frozenset(("write",)),
    "ENOSPC": frozenset(("open", "write", "fsync", "link", "mkdir")),
    "EIO": FILES - {"mkdir", "rmdir"},
    "EACCES": frozenset(("open", "rename", "replace", "link", "unlink", "mkdir")),
    "EROFS": FILES,
    "EMFILE": frozenset(("open", "look")),
    "reset": frozenset(("send",)),
    "lost": frozenset(("send",)),
}
"""At which calls a fault can happen. ``torn``: half of it is done, then the process dies. ``short``: half of it, as is
said. ``reset``: the connection ends before anything is sent; ``lost``: after all was sent, before any answer."""
LASTING = ("ENOSPC", "EROFS")
"""Faults that all later calls meet, too."""


class Injector:
    """Counts the calls that the fault can happen at; from ``arm`` on, the N-th one meets it."""

    def __init__(self, number: int, fault: str) -> None:
        self.number, self.fault = number, fault
        self.count = 0
        self.reached = False

    def arm(self) -> None:
        """Wrap the calls."""
        for name in FILES:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        os.remove = os.unlink
        sendall = socket.socket.sendall

        def send(sock: socket.socket, data: bytes, *flags: int) -> None:
            if self._is_it("send"):
                if self.fault == "torn":
                    sendall(sock, data[: len(data) // 2])
                if self.fault in ("kill", "torn"):
                    _die()
                if self.fault == "lost":
                    sendall(sock, data)
                    sock.shutdown(socket.SHUT_RD)
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            sendall(sock, data, *flags)

        socket.socket.sendall = send  # type: ignore[method-assign]

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            kind = name
            if name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                kind = "look"
            if name == "write" and arguments[0] <= 2:
                return real(*arguments)
            if not self._is_it(kind):
                return real(*arguments, **more)
            if self.fault in ("torn", "short"):
                done = real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                if self.fault == "short":
                    return done
            if self.fault in ("kill", "torn"):
                _die()
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number))

        return call

    def _is_it(self, kind: str) -> bool:
        if kind not in APPLIES[self.fault]:
            return False
        self.count += 1
        it_is = self.count == self.number or (self.reached and self.fault in LASTING)
        self.reached = self.reached or it_is
        return it_is


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- what is run -----------------------------------------------------------------------------------------------------


def _turn(url: str, key: str) -> int:
    from sessionctl import Conversations, open_store

    with Conversations(open_store(url)) as talks, talks.session(key) as turn:
        turn.append({"role": "user", "content": "more"}, {"role": "assistant", "content": "done"})
    return 0


def _buffered(url: str, key: str) -> int:
    from sessionctl import Conversations, open_store

    with Conversations(open_store(url)) as talks:
        talks.append(key, {"role": "user", "content": "more"})
        talks.append(key, {"role": "assistant", "content": "done"})
    return 0


def _save(url: str, key: str) -> int:
    from sessionctl.persistence import StoreBackend
    from sessionctl.stores import open_store

    backend = StoreBackend(open_store(url))
    backend.save(key, {"messages": [{"role": "user", "content": "saved"}]})
    backend.close()
    return 0


ACTS: dict[str, Callable[[str, str], int]] = {"turn": _turn, "buffer": _buffered, "save": _save}
"""What is no command: a turn, the buffered writer, a save."""


def perform(arguments: list[str]) -> int:
    """Run a command or an act and return its exit code."""
    from sessionctl.cli import call
    from sessionctl.errors import SessionctlError

    if arguments[0] not in ACTS:
        return call(arguments)
    try:
        return ACTS[arguments[0]](*arguments[1:])
    except SessionctlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def serve() -> None:
    """Run what comes by standard input, each in a child that has everything imported already."""
    import sessionctl

    for module in pkgutil.walk_packages(sessionctl.__path__, "sessionctl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    _warm_up()
    for line in sys.stdin:
        print(json.dumps(_in_child(json.loads(line))), flush=True)


def _warm_up() -> None:
    """Load what commands load when they are first called."""
    from contextlib import redirect_stderr, redirect_stdout

    from tests.stored import DAY, document, log

    with tempfile.TemporaryDirectory() as name, io.TextIOWrapper(io.BytesIO()) as sink:
        folder = Path(name)
        document(folder, "cut", age=9 * DAY)
        log(folder, "torn", b"{}", age=9 * DAY)
        with redirect_stdout(sink), redirect_stderr(sink):
            for words in ("list", "show cut", "tail", "repair", "repair -n --fix", "gc --ttl 1d -n", "delete cut -n"):
                perform([*words.split(), "-s", name])
            perform(["migrate", name, f"{name}/target"])
            perform(["turn", f"logs:{name}/target", "talk"])
            perform(["save", f"documents:{name}/target", "saved"])


def _in_child(job: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = _child(job, writer, out.fileno(), err.fileno())
            except BaseException:  # noqa: BLE001 - shown to who asked for the run
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
        _, status = os.waitpid(child, 0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    code = os.waitstatus_to_exitcode(status)
    killed = code == -signal.SIGKILL
    count, reached = json.loads(told) if told else (job["number"], True)
    return {"code": code, "out": texts[0], "err": texts[1], "count": count, "reached": reached or killed}


def _child(job: dict[str, Any], writer: int, out: int, err: int) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
    os.umask(0)  # whatever is private, is so by its maker's will
    os.environ.clear()
    os.environ.update(job["env"])
    injector = Injector(job["number"], job["fault"])
    injector.arm()
    code = perform(job["arguments"])
    sys.stdout.flush()
    with io.FileIO(writer, "w") as pipe:
        pipe.write(json.dumps((injector.count, injector.reached)).encode())
    return code


class Ran(NamedTuple):
    """What came of a run. ``code`` is negative for a signal; ``count``: calls the fault could have happened at."""

    code: int
    out: str
    err: str
    count: int
    reached: bool


class Runner:
    """Runs commands with faults, fast: a server that forks. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trust.inject", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
            text=True,
        )
        self.runs = 0

    def __call__(self, arguments: list[str], env: dict[str, str], number: int = 0, fault: str = "kill") -> Ran:
        """Run a command whose ``number``-th call meets a fault (0: none does)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"arguments": arguments, "env": env, "number": number, "fault": fault}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self.runs += 1
        return Ran(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def main() -> None:
    """The command of this module's docstring."""
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    number, fault, dashes, *arguments = sys.argv[1:]
    if dashes != "--" or fault not in APPLIES:
        sys.exit(__doc__)
    injector = Injector(int(number), fault)
    injector.arm()
    sys.exit(perform(arguments))


if __name__ == "__main__":
    main()
