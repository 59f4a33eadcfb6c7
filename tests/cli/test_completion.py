"""Completion in real shells: bash, zsh and fish; its scripts are those in ``completions/``."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from terminal import DOCUMENTS, LOGS, ROOT, Terminal, environment, run

from sessionctl.cli.generated import FILES

SCRIPTS = ROOT / "completions"
CASES = [
    ("sessionctl sto", ["stores"]),
    ("sessionctl st", ["stats", "stores"]),
    ("sessionctl gc --older", ["--older-than"]),
    ("sessionctl list --status aw", ["awaiting-approval"]),
    ("sessionctl list -o js", ["json", "jsonl"]),
    ("sessionctl list --st", ["--store", "--status"]),
    ("sessionctl migrate --on", ["--on-conflict"]),
    ("sessionctl stats --store te", ["test-samples"]),
    ("sessionctl show -s {documents} interrupted-o", ["interrupted-one"]),
    ("sessionctl repair --only unres", ["unresolved-tool-call"]),
    ("sessionctl repair --strategy t", ["truncate"]),
    ("sessionctl migrate a b --on-conflict o", ["overwrite"]),
    ("sessionctl list --sort si", ["size"]),
    ("sessionctl completion f", ["fish"]),
    ("sessionctl delete -s {logs} sib", ["siblings"]),
    ("sessionctl show -s redis://127.0.0.1:1/0 x", []),
    ("sessionctl list --no-such-option ", None),
]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "c.toml").write_text(f'default = "test-samples"\n[stores.test-samples]\nurl = "{DOCUMENTS}"\n')
    return environment(tmp_path, SESSIONCTL_CONFIG=str(tmp_path / "c.toml"), TERM="xterm")


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


def filled(line: str) -> str:
    return line.format(documents=DOCUMENTS, logs=LOGS)


def ask(line: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    asking = {
        "_SESSIONCTL_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": filled(line),
    }
    return run(env=env | asking)


@pytest.mark.parametrize("name", FILES)
def test_the_scripts_are_current(name: str) -> None:
    assert (SCRIPTS / name).read_text(encoding="utf-8") == FILES[name](), "run python -m sessionctl.cli.generated"


def test_the_command_prints_them() -> None:
    for name, file in (("bash", "sessionctl.bash"), ("zsh", "_sessionctl"), ("fish", "sessionctl.fish")):
        assert run("completion", name).stdout == (SCRIPTS / file).read_text()
    assert run("completion", "powershell").stdout == (SCRIPTS / "sessionctl.ps1").read_text()
    wrong = run("completion", "fsh")
    assert (wrong.returncode, "did you mean fish?" in wrong.stderr) == (2, True)


def test_bash(env: dict[str, str], tmp_path: Path) -> None:
    script = [f"cd {tmp_path}; source {SCRIPTS / 'sessionctl.bash'}"]
    for line, _ in CASES:
        script.append(f"COMP_LINE='{filled(line)}'; COMP_POINT=${{#COMP_LINE}}; _sessionctl sessionctl")
        script.append('echo "= ${COMPREPLY[*]}"')
    found = subprocess.run(
        [shell("bash"), "--norc", "-c", "\n".join(script)], env=env, capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    answers = [line[1:].split() for line in found.stdout.splitlines()]
    for (line, expected), answer in zip(CASES, answers, strict=True):
        assert expected is None or answer == expected, line


def test_bash_and_its_colons(env: dict[str, str]) -> None:
    with Terminal("--norc", "-i", command=[shell("bash")], env=env | {"PS1": "ready> "}) as screen:
        screen.expect("ready> ")
        screen.send(f"source {SCRIPTS / 'sessionctl.bash'}\n")
        screen.expect("ready> ready> " if "ready> ready> " in screen.plain else "sessionctl.bash")
        screen.send(f"echo sessionctl; sessionctl show -s {LOGS} default:production:file-agent:den\t")
        screen.expect("file-agent:denied", seconds=20)
        assert "default:production:default:" not in screen.plain.replace("\n", "")


def test_zsh(env: dict[str, str], tmp_path: Path) -> None:
    program = shell("zsh")
    (tmp_path / ".zshrc").write_text(
        f"fpath=({SCRIPTS} $fpath); autoload -Uz compinit; compinit -u -D\n"
        "PROMPT='ready> '; unsetopt prompt_cr prompt_sp\n"
    )
    with Terminal("-i", command=[program], env=env | {"ZDOTDIR": str(tmp_path)}, size=(200, 40)) as screen:
        screen.expect("ready> ", seconds=20)
        for line, word in (
            ("sessionctl sto", "stores"),
            ("sessionctl list --status aw", "awaiting-approval"),
            (f"sessionctl show -s {LOGS} default:production:file-agent:den", "default:production:file-agent:denied"),
            ("sessionctl show -s test-samples interrupted-o", "interrupted-one"),
            ("sessionctl st", "Count sessions"),
            ("sessionctl list --st", "may be repeated"),
        ):
            screen.text = ""
            screen.send(line + "\t")
            screen.expect(word, seconds=20)
            screen.read(0.3)
            screen.send("\x15")  # takes the line back


def test_fish(env: dict[str, str], tmp_path: Path) -> None:
    program = shell("fish")
    (tmp_path / "somewhere").mkdir()
    script = [f"source {SCRIPTS / 'sessionctl.fish'}; cd {tmp_path}"]
    lines = [*CASES, (f"sessionctl show -s {LOGS} default:p", None), ("sessionctl list --store some", ["somewhere/"])]
    for line, _ in lines:
        script += [f"complete -C '{filled(line)}'", "echo =="]
    found = subprocess.run(
        [program, "--no-config", "-c", "\n".join(script)], env=env, capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    answers = [re.findall(r"^\s*(\S+)", part, re.MULTILINE) for part in found.stdout.split("==\n")]
    for (line, expected), answer in zip(lines, answers, strict=False):
        assert expected is None or answer == expected, line
    assert len(answers[-3]) == 4, "keys with colons"


def test_it_is_silent_and_bounded(env: dict[str, str], tmp_path: Path) -> None:
    for line in (
        "sessionctl show -s /none ",
        "sessionctl show -s redis://h:x/ ",
        "sessionctl nonsense ",
        "sessionctl -",
    ):
        found = ask(f"sessionctl {line}", env)
        assert (found.returncode, found.stderr) == (0, "")
    for number in range(300):
        (tmp_path / f"s{number}.json").write_text("{}")
    assert len(ask(f"sessionctl show -s {tmp_path} s", env).stdout.splitlines()) == 200
    (tmp_path / "\x1b[2Jevil.json").write_text("{}")
    assert "\x1b" not in ask(f"sessionctl show -s {tmp_path} ", env).stdout
    broken = env | {"SESSIONCTL_CONFIG": str(tmp_path / "none.toml")}
    assert ask("sessionctl list --store ", broken).stderr == ""


def test_a_server_that_hangs_is_not_waited_for(env: dict[str, str]) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        started = time.monotonic()
        first = ask("sessionctl completion ", env)
        usual = time.monotonic() - started
        started = time.monotonic()
        found = ask(f"sessionctl show -s redis://127.0.0.1:{listening.getsockname()[1]}/0 ", env)
        took = time.monotonic() - started
    assert first.stdout
    assert (found.returncode, found.stdout.strip(), found.stderr) == (0, "", "")
    assert took < usual * 2 + 1.5, (took, usual)


@pytest.mark.parametrize("columns", ["20", "80", ""])
def test_every_option_takes_one_line(env: dict[str, str], columns: str) -> None:
    env = env | {"COLUMNS": columns}
    for command in ("list", "gc", "migrate", "repair"):
        lines = ask(f"sessionctl {command} -", env).stdout.splitlines()
        assert len(lines) > 10
        assert all(re.match(r"--?[a-z0-9][a-z-]*\t\S", line) for line in lines), lines


def test_the_id_of_a_composite_key_is_enough(env: dict[str, str]) -> None:
    assert "shared-session" in ask("sessionctl show shared", env).stdout
