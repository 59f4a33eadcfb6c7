"""Help of every command, its examples (each is run), suggestions, and the man page made from the same text."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server
from stored import HOUR, document
from terminal import DOCUMENTS, LOGS, ROOT, Terminal, environment, run

from sessionctl.cli import COMMANDS
from sessionctl.cli.manual import commands, examples, page
from sessionctl.cli.output import FORMATS
from sessionctl.history import SEVERITY
from sessionctl.model import STATUSES

EXAMPLES = [(name, example) for name, command in commands().items() for example in examples(command)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_a_sentence_and_ends_with_two_examples(name: str) -> None:
    command = commands()[name]
    first = command.help.split("\n\n")[0].strip()
    assert first[0].isupper() and first.endswith(".") and len(first) < 140
    found = examples(command)
    assert len(found) == 2
    assert all(f"sessionctl {name}" in example for example in found)
    text = run(name, "--help").stdout
    assert " ".join(text.split()).endswith(found[1])
    assert run(name, "-h").stdout == text


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_groups(name: str) -> None:
    for parameter in commands()[name].params:
        if parameter.param_type_name == "option":
            assert parameter.rich_help_panel, parameter.name
            assert parameter.help
    assert "--install-completion" not in run(name, "--help").stdout


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_help_and_completion_name_the_formats_that_are_taken(name: str, tmp_path: Path) -> None:
    (output,) = (p for p in commands()[name].params if p.name == "output")
    named = re.findall(r"[a-z]+", output.help.replace(" or ", " "))
    asking = {"_SESSIONCTL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked = environment(tmp_path) | asking | {"_TYPER_COMPLETE_ARGS": f"sessionctl {name} -o "}
    assert run(env=asked).stdout.split() == named
    others = ("./none", "./new") if name == "migrate" else ("x", "-y") if name == "delete" else ()
    for format in FORMATS:
        refused = f"no such output: '{format}'" in run(name, *others, "-o", format, env=environment(tmp_path)).stderr
        assert refused is (format not in named), format
    assert any("--null" in p.opts for p in commands()[name].params) is ("ids" in named)


@pytest.mark.parametrize("name", COMMANDS)
def test_values_are_called_by_plain_names(name: str) -> None:
    for parameter in commands()[name].params:
        if parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help":
            assert re.fullmatch(r"[A-Z]+(\|P%)?", parameter.metavar), parameter.name


def test_a_number_that_is_none() -> None:
    found = run("show", "x", "--last", "many")
    assert (found.returncode, found.stderr.splitlines()[0]) == (
        2,
        "sessionctl: Invalid value for '--last': it is not a whole number",
    )


@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_fits_the_terminal(width: int) -> None:
    for arguments in (("--help",), ("gc", "--help")):
        with Terminal(*arguments, size=(width, 50)) as screen:
            screen.wait()
            assert max(map(len, screen.plain.splitlines())) <= width


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("redis"))
    yield made
    made.stop()


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_runs(name: str, example: str, tmp_path: Path, server: Server) -> None:
    server.client().flushall()
    shutil.copytree(DOCUMENTS, tmp_path / ".seepient" / "sessions")
    shutil.copytree(LOGS, tmp_path / ".sessions")
    document(tmp_path / ".seepient" / "sessions", "fresh", age=HOUR)  # the samples grow older every day
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", example.replace("redis://localhost/0", server.url())],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # repair says by 5 that findings are left: those that nobody can mend
    assert done.returncode in ({0, 5} if name == "repair" else {0}), done.stderr
    assert done.stdout or "deleted" in done.stderr or name in ("gc", "delete", "migrate")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [
        (("lst",), "list"),
        (("list", "--statsu", "ok"), "--status"),
        (("list", "--status", "interupted"), "did you mean interrupted?"),
        (("list", "--kind", "documents"), "did you mean document?"),
        (("list", "-o", "jsonn"), "did you mean json?"),
        (("list", "--sort", "sise"), "did you mean size?"),
        (("list", "-s", "redsi"), "did you mean redis?"),
        (("list", "-s", "redsi://h/0"), "did you mean redis:?"),
    ],
)
def test_the_nearest_is_suggested(wrong: tuple[str, ...], suggestion: str) -> None:
    found = run(*wrong)
    assert (found.returncode, found.stdout) == (2, "")
    assert suggestion in found.stderr


def test_the_man_page_says_it_all() -> None:
    text = page()
    for name, command in commands().items():
        assert f".SS sessionctl {name}" in text
        for parameter in command.params:
            for option in getattr(parameter, "opts", ()) if parameter.param_type_name == "option" else ():
                assert option.replace("-", "\\-") in text
    formatter = shutil.which("groff")
    if formatter:
        done = subprocess.run(
            [formatter, "-man", "-Tascii", "-ww"], input=text, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        assert "SESSIONCTL(1)" in done.stdout


def test_the_readme_explains_every_status_and_finding() -> None:
    found = (ROOT / "README.md").read_text(encoding="utf-8").split("## What it finds\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", found, re.MULTILINE)) == STATUSES
    named: dict[str, str] = {}
    severity = ""
    for row in found.split("| severity |")[1].splitlines()[2:]:
        if row.startswith("|"):
            first, _, codes = row.strip("|").split("|")
            severity = first.split(":")[0].strip() or severity
            named |= dict.fromkeys(re.findall(r"`([a-z][a-z0-9-]*)`", codes), severity)
    assert named == SEVERITY
    for status in STATUSES:
        assert status in commands()["list"].help
