"""A thousand random argument lists: an exit code of the table, never a bug, never a traceback, nothing outside."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sessionctl import cli
from tests.stored import DAY, document, entry, log
from tests.terminal import FIXTURES
from tests.trust.crash import CODES

LISTS = 20_000 if os.environ.get("SESSIONCTL_TRUST") == "full" else 1000
SEED = int(os.environ.get("SESSIONCTL_SEED", "1"))
ODD = [
    *("", "-", "--", "-1", "0", "1", "99999999999999999999", "1e9", "NaN", "é", "\u202e", "\x1b[31m", "a\nb", "\udcff"),
    *("*", "[", "[!", "**/*", "../../etc/passwd", "..\\x", "a" * 300, "${HOME}", "%s%n", "'; DROP TABLE x; --", "%00"),
    *("1h", "30m", "0s", "1y", "-5m", "2026-01-31", "2026-13-45", "999999w", "10%", "101%", "keep", "none", "newer"),
    *("table", "json", "jsonl", "csv", "ids", "results", "truncate", "document", "log", "ok", "damaged", "torn-tail"),
    *(
        "memory:",
        "sqlite:///x.db",
        "documents:store",
        "logs:store",
        "file:",
        "redis:/",
        "unix://x",
        "bogus://h",
        "store",
    ),
    *(
        "redis://:secret@",
        "redis+sentinel://h",
        "postgresql:///?x=%",
        "sqlite:///",
        "file:\x1b]0;x\x07",
        "store/s1.json",
    ),
    *("s1", "sess", "acme:production:support:42", "broken", "plan", "cursor", "archive"),
]
FOREVER = frozenset(("-f", "--follow", "--show-completion", "--install-completion"))


def options() -> dict[str, list[str]]:
    """The options of each command, as the command line itself knows them."""
    group: Any = typer.main.get_command(cli.app)
    found = {}
    for name in cli.COMMANDS:
        command = group.get_command(None, name)
        found[name] = [o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]
    return found


def stage(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    store = place / "store"
    shutil.copytree(FIXTURES / "seepient-damaged" / "sessions", store)
    document(store, "s1", age=9 * DAY)
    log(store, "acme:production:support:42", age=9 * DAY)
    log(store, "broken", entry("e1", "e1"), b"{torn", age=9 * DAY)


def lists(chance: random.Random) -> Iterator[list[str]]:
    known = options()
    for _ in range(LISTS):
        command = chance.choice([*known, "bogus"] if chance.random() < 0.03 else [*known])
        words = [command]
        if command == "migrate" and chance.random() < 0.8:
            words += [chance.choice(("store", *ODD)), chance.choice(("target", "archive", *ODD))]
        elif chance.random() < 0.85:
            words += ["-s", "store"]
        for _ in range(chance.randint(0, 6)):
            option = chance.choice(known.get(command) or ["--x"])
            if option in FOREVER:
                continue
            words.append(option if chance.random() < 0.9 else option + "x")
            if chance.random() < 0.6:
                words.append(chance.choice(ODD))
        if chance.random() < 0.4:
            words.insert(chance.randint(1, len(words)), chance.choice(ODD))
        yield words


def run(arguments: list[str]) -> tuple[int, str, str]:
    """``sessionctl`` in this process, with streams of its own."""
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(b"s1\nbogus\n"))
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    try:
        code = cli.call(arguments)
        texts = []
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    return code, texts[0], texts[1]


def test_any_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "deep" / "deep" / "place"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SESSIONCTL_CONFIG", "SESSIONCTL_STORE", "REDIS_URL", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    chance = random.Random(SEED)
    codes = set()
    for number, arguments in enumerate(lists(chance)):
        if number % 25 == 0:
            monkeypatch.chdir(tmp_path)
            stage(place)
            monkeypatch.chdir(place)
        signal.alarm(30)
        try:
            code, out, err = run(arguments)
        except BaseException as error:
            raise AssertionError(f"{arguments}: {error!r}") from error
        finally:
            signal.alarm(0)
        codes.add(code)
        assert code in CODES, (arguments, code, err)
        assert "Traceback" not in out + err and "bug in sessionctl" not in err, (arguments, err)
        assert code in (0, 130) or out or err or {"-q", "--quiet"} & set(arguments), arguments
        assert "\x1b]" not in out + err and "\u202e" not in err, (arguments, out, err)
    assert codes >= {0, 2, 3, 5, 7}, codes
    assert {path.name for path in tmp_path.iterdir()} == {"home", "deep"}, "something was written elsewhere"
    assert not list(tmp_path.rglob("passwd"))
