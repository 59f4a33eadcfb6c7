"""Cases 210 to 222, 231 and 233: what is printed, where to, and in which world."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from rich.cells import cell_len

from tests.stored import call, document, entry, log, message, result
from tests.terminal import COMMAND, Terminal, environment, run

AT = 1_750_000_000_000


def test_case_210_text_is_not_markup(folder: Path) -> None:
    text = "see [/USER] and [/] and [bold]x[/red] :smile:"
    document(folder, "s1", messages=[message("user", text, AT)])
    assert text in run("show", "s1", "-s", folder).stdout
    assert text in run("list", "-s", folder).stdout
    for command in (["show", "s1"], ["list"]):
        with Terminal(*command, "-s", folder, size=(120, 24)) as screen:
            assert screen.wait() == 0
        assert text in screen.plain


def test_case_212_control_sequences(folder: Path) -> None:
    text = "a\x1b[2J\x1b[31mX \x1b]0;title\x07 real\rFAKE \b\b \u202egnp.exe \x9b31m"
    document(folder, "s1", messages=[message("user", text, AT)])
    for command in (["show", "s1"], ["list"], ["tail", "s1", "-n", "1"], ["repair", "s1", "--dry-run"]):
        done = run(*command, "-s", folder)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.stdout + done.stderr)
    (found,) = json.loads(run("show", "s1", "-o", "json", "-s", folder).stdout)
    assert found["messages"][0]["text"] == text


def test_case_214_a_broken_pipe(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "line", AT + number) for number in range(20_000)])
    line = f"{' '.join(COMMAND)} show s1 -s {folder} | head -n 3; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment(), check=True)
    *lines, code = done.stdout.splitlines()
    assert (len(lines), done.stderr) == (3, "")
    assert code in ("0", "141")


def test_case_216_wide_characters_in_the_table(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "整理论文和更新README" * 9, AT)])
    document(folder, "整理", messages=[message("user", "hi", AT)])
    with Terminal("list", "-s", folder, size=(80, 24)) as screen:
        screen.wait()
    head, *rows, _ = screen.plain.splitlines()
    assert len(rows) == 2
    for line in rows:
        assert cell_len(line) <= 80
        before = re.split(r"draft|ok", line)[0]
        assert cell_len(before) == head.index("STATUS")


def test_case_218_an_ascii_locale(folder: Path) -> None:
    document(folder, "s1", messages=[message("user", "žluť 🔥", AT)])
    env = {"PATH": environment()["PATH"], "PYTHONPATH": environment()["PYTHONPATH"], "LC_ALL": "C", "PYTHONUTF8": "0",
           "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii", "SESSIONCTL_STORE": str(folder)}  # fmt: skip
    done = run("show", "s1", env=env)
    assert done.returncode == 0
    assert r"\u017elu\u0165 \U0001f525" in done.stdout


def test_case_220_colour_when_not_wanted(folder: Path) -> None:
    document(folder, "s1")
    assert "\x1b" not in run("list", "-s", folder).stdout
    with Terminal("list", "-s", folder, env=environment(NO_COLOR="1")) as screen:
        screen.wait()
    assert not re.search(r"\x1b\[[0-9;]*3\dm", screen.text)


def test_case_222_no_home(folder: Path) -> None:
    document(folder, "s1")
    bare = {"PATH": environment()["PATH"], "PYTHONPATH": environment()["PYTHONPATH"]}
    assert run("list", env=bare | {"SESSIONCTL_STORE": str(folder)}).returncode == 0
    done = run("list", env=bare)
    assert done.returncode == 2
    assert "HOME is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_case_231_binary_content(folder: Path) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO" + "A" * 4000}}
    log(folder, "s1", entry("e1", None, "user", "shot"), entry("e2", "e1", "assistant", [call("t1", "screenshot")]),
        entry("e3", "e2", "user", [result("t1", [picture])]))  # fmt: skip
    shown = run("show", "s1", "-s", folder).stdout
    assert re.search(r"\[image/png, [\d.]+ ", shown)
    assert "AAAA" not in shown
    assert picture["source"]["data"] in run("show", "s1", "--raw", "-s", folder).stdout


def test_case_233_unknown_block_types(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", "x"), entry("e2", "e1", "assistant", [call("t1")]),
        entry("e3", "e2", "user", [result("t1", [{"type": "tool_reference", "tool_name": "q"}])]),
        entry("e4", "e3", "assistant", "visible"))  # fmt: skip
    shown = run("show", "s1", "-s", folder).stdout
    assert shown.index("[tool_reference]") < shown.index("visible")
    assert json.loads(run("list", "-o", "json", "-s", folder).stdout)[0]["findings"] == []
