"""The pager: only at a terminal, only for what is longer than the screen, and never in the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from terminal import DOCUMENTS, Terminal, environment, run

MARK = {"PAGER": "sed 's/^/PAGED /'", "NO_COLOR": "1"}


@pytest.fixture
def long(tmp_path: Path) -> Path:
    messages = [{"id": f"m{n}", "role": "user", "content": f"line-{n}"} for n in range(300)]
    (tmp_path / "s.json").write_text(json.dumps({"id": "s", "messages": messages}))
    return tmp_path


def at_terminal(*arguments: str | Path, lines: int = 24, **extra: str) -> str:
    with Terminal(*arguments, env=environment(**(MARK | extra)), size=(80, lines)) as screen:
        assert screen.wait() == 0, screen.plain
        return screen.plain


def test_what_is_longer_than_the_screen_is_paged(long: Path) -> None:
    text = at_terminal("show", "s", "-s", long)
    assert "PAGED   line-0" in text
    assert "PAGED   line-299" in text
    text = at_terminal("list", "-s", DOCUMENTS, lines=10)
    assert text.count("PAGED") == 16
    assert text.splitlines()[-1].startswith("15 sessions"), "notes come after the pager"


def test_what_fits_is_not(long: Path) -> None:
    assert "PAGED" not in at_terminal("show", "s", "--last", "3", "-s", long)
    assert "PAGED" not in at_terminal("list", "-s", DOCUMENTS, lines=40)


def test_it_can_be_turned_off(long: Path) -> None:
    for arguments, extra in (
        (("--no-pager",), {}),
        ((), {"PAGER": ""}),
        ((), {"PAGER": "cat"}),
        ((), {"TERM": "dumb"}),
    ):
        text = at_terminal("show", "s", "-s", long, *arguments, **extra)
        assert "line-299" in text
        assert "PAGED" not in text


def test_never_without_a_terminal(long: Path) -> None:
    found = run("show", "s", "-s", long, env=environment(PAGER="touch /nonexistent/file; false"))
    assert (found.returncode, found.stderr) == (0, "")
    assert "line-299" in found.stdout


def test_a_pager_that_is_left_early(long: Path) -> None:
    for pager in ("head -n 1", "true", "exit 3; x"):
        with Terminal("show", "s", "--full", "-s", long, env=environment(PAGER=pager)) as screen:
            assert screen.wait() == 0, screen.plain
            assert "Traceback" not in screen.plain
            assert "Broken" not in screen.plain


def test_a_pager_that_is_not_there_hides_nothing(long: Path) -> None:
    assert "line-299" in at_terminal("show", "s", "-s", long, PAGER="no-such-pager-anywhere -x")


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not on this machine")
def test_less(long: Path) -> None:
    env = environment()
    del env["PAGER"]
    with Terminal("show", "s", "-s", long, env=env) as screen:
        screen.expect("line-0")
        screen.read(0.5)
        assert "line-299" not in screen.plain
        assert "\x1b[1;36m" in screen.text or "\x1b[1m" in screen.text, "colours pass"
        screen.send("\x03")
        screen.read(0.5)
        assert screen.process.poll() is None, "Ctrl-C belongs to less"
        screen.send("q")
        assert screen.wait() == 0
        assert "Traceback" not in screen.plain


def test_a_terminal_without_a_size_is_nobody_to_page_for(long: Path) -> None:
    assert "PAGED" not in at_terminal("show", "s", "-s", long, lines=0)


def test_control_characters_do_not_reach_the_pager() -> None:
    text = at_terminal("show", "hostile-text", "-s", DOCUMENTS, lines=5)
    assert "PAGED   clear \\x1b[2J" in text
