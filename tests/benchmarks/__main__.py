"""Run sessionctl and its rivals in turn, whole processes from start to exit, and print medians and ratios."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ..servers import Server, server
from . import corpus

RIVALS = Path(__file__).parent / "rivals"


class Run(NamedTuple):
    """One command: its time by the clock and on processors (s), and the peak memory of its largest process (MB).

    Memory is never told as less than that of the benchmark itself, from which the command is forked.
    """

    wall: float
    cpu: float
    memory: float


class Task(NamedTuple):
    """Something to measure. ``goal`` is the highest ratio of times; ``rival`` None: only time and memory are shown.

    ``reset`` is a Redis that both sides start with empty; ``text`` is a file that a program reads as its input.
    """

    name: str
    ours: list[str]
    rival: list[str] | None = None
    goal: float | None = None
    reset: Server | None = None
    rival_text: Path | None = None


def measured(command: list[str], text: Path | None = None) -> Run:
    """Run a command to its end. Raises CalledProcessError unless it ends with 0, or 5 (findings are left)."""
    with (text or Path(os.devnull)).open("rb") as source, tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 5):
            said.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=said.read()[-500:])
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def compared(task: Task, rounds: int) -> tuple[Run, Run | None]:
    """The medians of both sides, which take turns; one run of each before that fills the caches."""
    sides = [(task.ours, None)] + ([(task.rival, task.rival_text)] if task.rival else [])
    runs: list[list[Run]] = [[] for _ in sides]
    for turn in range(rounds + 1):
        for (command, text), found in zip(sides, runs, strict=True):
            if task.reset is not None:
                task.reset.client().flushall()
            run = measured(command, text)
            if turn:
                found.append(run)
    medians = [Run(*map(statistics.median, zip(*found, strict=True))) for found in runs]
    return medians[0], medians[1] if len(medians) > 1 else None


class Bench:
    """The tasks of issue 7 over corpora that are made when they are first needed."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options, self.stack = options, stack
        self.program = str(Path(sysconfig.get_path("scripts")) / "sessionctl")
        self.missing: list[str] = []

    def folder(self, name: str, count: int) -> str:
        make: Callable[[Path, int], None] = getattr(corpus, name)
        return str(corpus.made(self.options.cache, name, count, make))

    def ours(self, *arguments: str) -> list[str]:
        return [self.program, *arguments]

    def found(self, *command: str) -> list[str] | None:
        """The command, None (and noted) where its program is missing."""
        if shutil.which(command[0]):
            return list(command)
        if command[0] not in self.missing:
            self.missing.append(command[0])
        return None

    def node(self, script: str, folder: str) -> list[str] | None:
        return self.found("node", str(RIVALS / script), folder)

    def start(self) -> Iterator[Task]:
        two = [sys.executable, str(RIVALS / "two_commands.py"), "one"]
        yield Task("--version", self.ours("--version"), two, 1.15)
        yield Task("list, 10 sessions", self.ours("list", "-s", self.folder("documents", 10)), two, 1.6)

    def documents(self) -> Iterator[Task]:
        folder = self.folder("documents", self.options.count)
        node = self.node("documents.js", folder)
        gc = self.ours("gc", "-s", folder, "--older-than", "24h", "--dry-run")
        rows = self.ours("list", "-s", folder, "-o", "jsonl")
        yield Task("gc --dry-run, documents", gc, node, 0.12)
        yield Task("list -o jsonl, documents", rows, node, 0.20)
        yield Task("repair (check), documents", self.ours("repair", "-s", folder), node, 0.20)
        jq = self.found("jq", "-c", "{id, updatedAt, messages: (.messages | length)}")
        find = ["find", folder, "-name", "*.json"]
        yield Task("list -o jsonl, beside jq", rows, [*find, "-exec", *jq, "{}", "+"] if jq else None)
        yield Task("gc --dry-run, beside find", gc, find)

    def logs(self) -> Iterator[Task]:
        folder = self.folder("logs", self.options.count)
        node = self.node("logs.js", folder)
        yield Task("list -o jsonl, logs", self.ours("list", "-s", folder, "-o", "jsonl"), node, 0.25)
        yield Task("gc --dry-run, logs", self.ours("gc", "-s", folder, "--older-than", "1s", "--dry-run"), node, 0.25)

    def redis(self) -> Iterator[Task]:
        folder = self.folder("documents", self.options.count)
        url = self._filled(folder).url()
        gets = [sys.executable, str(RIVALS / "single_gets.py"), url]
        yield Task("list -o jsonl, Redis", self.ours("list", "-s", url, "-o", "jsonl"), gets, 0.25)

    def migrate(self) -> Iterator[Task]:
        folder = self.folder("documents", self.options.count)
        target = self.stack.enter_context(server())
        sets = [sys.executable, str(RIVALS / "single_sets.py"), target.url(), folder]
        plain = self.ours("migrate", folder, target.url(), "--no-verify")
        verified = self.ours("migrate", folder, target.url())
        yield Task("migrate, beside single SETs", verified, sets, 0.33, target)
        pipe = self.found("redis-cli", "-p", str(target.port), "--pipe")
        protocol = self._protocol(folder) if pipe else None
        yield Task("migrate --no-verify", plain, pipe, 1.6, target, protocol)
        yield Task("migrate, verified", verified, pipe, 2.5, target, protocol)

    def large(self) -> Iterator[Task]:
        size = self.options.megabytes
        for kind, name in (("document", "large.json"), ("log", "large.jsonl")):
            folder = self.folder(f"large_{kind}", size)
            parse = [sys.executable, str(RIVALS / "parse.py"), str(Path(folder) / name)]
            yield Task(f"tail -n 5, {size} MB {kind}", self.ours("tail", "-n", "5", "-s", folder, "large"), parse, 0.1)
            yield Task(
                f"show --last 5, {size} MB {kind}", self.ours("show", "--last", "5", "-s", folder, "large"), parse, 0.1
            )
            yield Task(f"list, {size} MB {kind}", self.ours("list", "-s", folder))
            yield Task(f"repair, {size} MB {kind}", self.ours("repair", "-s", folder))

    def million(self) -> Iterator[Task]:
        for count in (self.options.count, 50 * self.options.count):
            folder = self.folder("tiny", count)
            limited = self.ours("list", "-s", folder, "--limit", "100", "-o", "jsonl")
            yield Task(f"list --limit 100, {count:,} tiny documents", limited)

    def _filled(self, folder: str) -> Server:
        target = self.stack.enter_context(server())
        subprocess.run(
            [sys.executable, str(RIVALS / "single_sets.py"), target.url(), folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return target

    def _protocol(self, folder: str) -> Path:
        """Redis protocol that sets every document, ready for ``redis-cli --pipe``."""
        path = Path(folder).with_suffix(".protocol")
        with path.open("wb") as file:
            for document in Path(folder).iterdir():
                parts = (b"SET", f"seepient:session:{document.stem}".encode(), document.read_bytes())
                file.write(b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        return path


GROUPS = ("start", "documents", "logs", "redis", "migrate", "large", "million")


def line(task: Task, ours: Run, rival: Run | None) -> str:
    """A row of the table."""
    cells = [task.name, f"{ours.wall:.3f}", f"{ours.cpu:.3f}", f"{ours.memory:.0f}"]
    if rival is None:
        cells += ["–"] * 4 + [""]
    else:
        ratio = ours.wall / rival.wall
        met = "" if task.goal is None else f"{task.goal:g} {'met' if ratio <= task.goal else 'MISSED'}"
        cells += [f"{rival.wall:.3f}", f"{rival.cpu:.3f}", f"{ratio:.2f}", f"{ours.cpu / rival.cpu:.2f}", met]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; default: all but million")
    parser.add_argument("--count", type=int, default=20_000, help="documents and logs (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=300, help="size of the large document and log (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured runs of each side (%(default)s)")
    cache = Path(tempfile.gettempdir()) / "sessionctl-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="where the corpora are kept (%(default)s)")
    options = parser.parse_args()
    unknown = [group for group in options.groups if group not in GROUPS]
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or a checkout would be compiled anew by every command
    with ExitStack() as stack:
        bench = Bench(options, stack)
        print("| task | s | CPU s | MB | rival s | rival CPU s | ratio | CPU ratio | goal |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|---|")
        for group in options.groups or GROUPS[:-1]:
            for task in getattr(bench, group)():
                print(line(task, *compared(task, options.rounds)), flush=True)
        for name in bench.missing:
            print(f"missing, so not compared with: {name}", file=sys.stderr)


if __name__ == "__main__":
    main()
