"""``sessionctl list``: every fixture, every format, golden tables, filters, sorting, and no trace of reading."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.stored import DAY, HOUR, MINUTE, call, document, entry, log, message, now_ms, set_age, state
from tests.terminal import COMMAND, FIXTURES, Terminal, environment, run

EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((FIXTURES / "expected.json").read_bytes())
FIELDS = {
    "key", "id", "kind", "status", "messages", "created_at", "updated_at", "last_activity_at", "age_source",
    "size_bytes", "provider", "model", "owner", "tenant", "environment", "agent", "title", "locked", "unresolved",
    "findings",
}  # fmt: skip
"""The fields that DESIGN.md names."""


def rows(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    done = run("list", "-o", "json", *arguments)
    assert (done.returncode, done.stdout[:1]) == (code, "["), done.stderr
    return json.loads(done.stdout)


def keys(*arguments: str | Path) -> list[str]:
    done = run("list", "-o", "ids", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("folder", EXPECTED)
def test_fixtures(folder: str) -> None:
    before = state(FIXTURES)
    found = {
        row["key"]: {name: row[name] for name in ("status", "messages", "unresolved", "findings")}
        for row in rows("-s", FIXTURES / folder)
    }
    assert found == EXPECTED[folder]
    assert state(FIXTURES) == before


@pytest.mark.parametrize("folder", EXPECTED)
def test_rows_have_the_fields_that_are_promised(folder: str) -> None:
    for row in rows("-s", FIXTURES / folder):
        assert set(row) >= FIELDS
        assert row["size_bytes"] >= 0
        assert row["age_source"] in ("document", "message", "mtime", "idle", "none")
        for name in ("created_at", "updated_at", "last_activity_at"):
            assert row[name] is None or (len(row[name]) == 24 and row[name].endswith("Z"))


def test_one_document(folder: Path) -> None:
    at = 1_750_000_000_000
    owner = "ab" * 32
    path = document(
        folder,
        f"{owner}:s1",
        id="s1",
        createdAt=at,
        updatedAt=at + 60_000,
        messages=[message("user", "Plan the trip\nto Rome", at + 30_000), message("assistant", "ok", at + 60_001)],
        provider="p",
        model="m",
        metadata={"lastActivityAt": at + 50_000},
    )
    (row,) = rows("-s", folder)
    assert row | {"ttl_seconds": None} == {
        "key": f"{owner}:s1",
        "id": "s1",
        "kind": "document",
        "status": "ok",
        "messages": 2,
        "created_at": "2025-06-15T15:06:40.000Z",
        "updated_at": "2025-06-15T15:07:40.000Z",
        "last_activity_at": "2025-06-15T15:07:40.001Z",
        "age_source": "message",
        "size_bytes": path.stat().st_size,
        "provider": "p",
        "model": "m",
        "owner": owner,
        "tenant": None,
        "environment": None,
        "agent": None,
        "title": "Plan the trip to Rome",
        "locked": False,
        "unresolved": [],
        "findings": [],
        "ttl_seconds": None,
    }


def test_one_log(folder: Path) -> None:
    log(folder, "acme:staging:support:u:7", entry("e1", None), entry("e2", "e1", "assistant", [call("t1"), call("t2")]))
    (row,) = rows("-s", folder)
    assert (row["tenant"], row["environment"], row["agent"], row["owner"]) == ("acme", "staging", "support", None)
    assert (row["status"], row["unresolved"], row["created_at"]) == ("interrupted", ["t1", "t2"], None)
    assert row["age_source"] == "mtime"
    assert row["last_activity_at"] == row["updated_at"] is not None


def test_both_kinds_in_one_folder(folder: Path) -> None:
    document(folder, "same")
    log(folder, "same")
    assert {(row["key"], row["kind"]) for row in rows("-s", folder)} == {("same", "document"), ("same", "log")}
    assert [row["kind"] for row in rows("-s", f"logs:{folder}")] == ["log"]
    assert [row["kind"] for row in rows("-s", f"documents:{folder}")] == ["document"]
    assert [row["kind"] for row in rows("-s", f"file:{folder}", "--kind", "log")] == ["log"]


# --- what is printed ---


def sample(folder: Path) -> None:
    """Sessions whose rows do not depend on the day."""
    document(folder, "newest", age=5 * MINUTE + 30_000, messages=[message("user", "What now?", 1_750_000_000_000)])
    document(
        folder, "整理论文", age=2 * HOUR + 30_000, messages=[message("user", "整理论文和更新README", 1_750_000_000_000)]
    )
    log(folder, "acme:prod:bot:42", entry("e1", None, "user", "order A-1001"),
        entry("e2", "e1", "assistant", [call("t1", "lookup", order="A-1001")]), age=3 * DAY)  # fmt: skip
    (folder / "damaged.json").write_bytes(b'{"id": "damaged", "mess')
    set_age(folder / "damaged.json", 10 * DAY)
    document(folder, LONG, id="s", age=20 * DAY)


LONG = "c0ffee" * 10 + "beef:s"
PIPED = f"""\
{"KEY":{len(LONG)}}  STATUS       MSGS    AGE   SIZE  NOTE
{"newest":{len(LONG)}}  draft           1  5 min  198 B  What now?
{"整理论文":{len(LONG) - 4}}  draft           1    2 h  222 B  整理论文和更新README
{"acme:prod:bot:42":{len(LONG)}}  interrupted     2    3 d  247 B  1 call without result · order A-1001
{"damaged":{len(LONG)}}  damaged         –   10 d   23 B  invalid-json
{LONG}  ok              2   20 d  285 B  hi
"""
AT_80_COLUMNS = """\
KEY               STATUS       MSGS    AGE   SIZE  NOTE
newest            draft           1  5 min  198 B  What now?
整理论文          draft           1    2 h  222 B  整理论文和更新README
acme:prod:bot:42  interrupted     2    3 d  247 B  1 call without result · orde…
damaged           damaged         –   10 d   23 B  invalid-json
c0ffeec0…:s       ok              2   20 d  285 B  hi
5 sessions, 1 damaged
"""


def test_golden_table_piped(folder: Path) -> None:
    sample(folder)
    done = run("list", "-s", folder)
    assert done.stdout == PIPED
    assert done.stderr == "5 sessions, 1 damaged\n"
    assert done.returncode == 0


def test_golden_table_at_a_terminal(folder: Path) -> None:
    sample(folder)
    with Terminal("list", "-s", folder, size=(80, 24)) as screen:
        assert screen.wait() == 0
    assert "".join(line.rstrip() + "\n" for line in screen.plain.splitlines()) == AT_80_COLUMNS
    assert "\x1b[" in screen.text, "colours at a terminal"


@pytest.mark.parametrize("columns", [40, 60, 100, 132])
def test_a_table_fits_its_terminal(folder: Path, columns: int) -> None:
    from rich.cells import cell_len

    sample(folder)
    document(folder, "emoji", messages=[message("user", "👩‍💻🎉 " * 40)])
    document(folder, "k" * 60, messages=[message("user", "word " * 40)])
    with Terminal("list", "-s", folder, size=(columns, 24)) as screen:
        screen.wait()
    lines = screen.plain.splitlines()
    assert len(lines) == 9, "one line a session, a head and a count"
    assert all(cell_len(line) <= columns for line in lines)


def test_a_terminal_shows_fifty(folder: Path) -> None:
    for number in range(55):
        document(folder, f"s{number:02}", age=HOUR + number * MINUTE)
    with Terminal("list", "-s", folder, size=(80, 500)) as screen:
        screen.wait()
    assert len(screen.plain.splitlines()) == 52
    assert "50 of 55 sessions (--all shows all)" in screen.plain
    with Terminal("list", "-a", "-s", folder, size=(80, 500)) as screen:
        screen.wait()
    assert len(screen.plain.splitlines()) == 57
    assert len(run("list", "-s", folder).stdout.splitlines()) == 56


def test_csv_and_jsonl(folder: Path) -> None:
    document(folder, "a", messages=[message("user", 'says "x, y"\n=1+1')])
    document(folder, "b", age=2 * DAY)
    by_csv = list(csv.DictReader(io.StringIO(run("list", "-o", "csv", "-s", folder).stdout)))
    by_lines = [json.loads(line) for line in run("list", "-o", "jsonl", "-s", folder).stdout.splitlines()]
    assert by_lines == rows("-s", folder)
    assert [row["key"] for row in by_csv] == ["a", "b"]
    assert set(by_csv[0]) == set(by_lines[0])
    assert by_csv[0]["locked"] == "false"
    assert by_csv[0]["owner"] == ""
    assert by_csv[0]["title"] == 'says "x, y" =1+1'


def test_ids(folder: Path) -> None:
    document(folder, "b", age=DAY)
    document(folder, "a", age=HOUR)
    assert run("list", "-o", "ids", "-s", folder).stdout == "a\nb\n"
    assert run("list", "-o", "ids", "-0", "-s", folder).stdout == "a\0b\0"
    assert run("list", "-o", "ids", "-s", folder).stderr == ""


def test_an_empty_and_a_missing_folder(folder: Path) -> None:
    done = run("list", "-s", folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"no sessions in {folder}" in done.stderr
    assert "--store" in done.stderr
    missing = folder / "missing"
    done = run("list", "-s", missing)
    assert (done.returncode, done.stdout) == (7, "")
    assert str(missing) in done.stderr
    assert "--store" in done.stderr
    assert not missing.exists()
    assert rows("-s", folder) == []


def test_strays_are_said_and_do_not_fail(folder: Path) -> None:
    document(folder, "s1")
    (folder / "sub").mkdir()
    (folder / "l.json").symlink_to(folder / "s1.json")
    (folder / "s1.json.tmp.1750000000000").write_bytes(b"{")
    os.mkfifo(folder / "p.jsonl")
    done = run("list", "-o", "json", "-s", folder)
    assert done.returncode == 0
    assert [row["key"] for row in json.loads(done.stdout)] == ["s1"]
    assert json.loads(done.stdout)[0]["findings"] == ["stray-temporary-file"]
    assert sorted(done.stderr.splitlines()) == [
        "note: l.json is a link",
        "note: p.jsonl is not a regular file",
        "note: s1.json.tmp.1750000000000 is a temporary file that its writer left",
        "note: sub is a sub-folder",
    ]
    assert run("list", "-q", "-o", "json", "-s", folder).stderr == ""


# --- choosing and sorting ---


@pytest.fixture
def varied(folder: Path) -> Path:
    document(folder, "alpha", age=HOUR, provider="anthropic", model="claude-x", principalId="alice")
    document(folder, "beta", age=2 * DAY, provider="openai", model="gpt-y", principalId="bob",
             messages=[message("user", "hi")])  # fmt: skip
    document(folder, "gamma", age=9 * DAY, messages=[])
    log(folder, "acme:prod:support:1", age=3 * HOUR)
    log(folder, "acme:dev:sales:2", age=4 * DAY)
    return folder


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["alpha", "acme:prod:support:1", "beta", "acme:dev:sales:2", "gamma"]),
        (["-r"], ["gamma", "acme:dev:sales:2", "beta", "acme:prod:support:1", "alpha"]),
        (["--sort", "key"], ["acme:dev:sales:2", "acme:prod:support:1", "alpha", "beta", "gamma"]),
        (["--sort", "messages", "beta", "gamma", "alpha"], ["alpha", "beta", "gamma"]),
        (["--limit", "2"], ["alpha", "acme:prod:support:1"]),
        (["--limit", "0"], []),
        (["--status", "draft"], ["beta"]),
        (["--status", "draft", "--status", "empty"], ["beta", "gamma"]),
        (["--older-than", "3d"], ["acme:dev:sales:2", "gamma"]),
        (["--newer-than", "2h"], ["alpha"]),
        (["--newer-than", "5d", "--older-than", "1d"], ["beta", "acme:dev:sales:2"]),
        (["--provider", "openai"], ["beta"]),
        (["--model", "claude-*"], ["alpha"]),
        (["--owner", "alice"], ["alpha"]),
        (["--tenant", "acme"], ["acme:prod:support:1", "acme:dev:sales:2"]),
        (["--environment", "prod"], ["acme:prod:support:1"]),
        (["--agent", "sales"], ["acme:dev:sales:2"]),
        (["--kind", "log", "--older-than", "1d"], ["acme:dev:sales:2"]),
        (["a*"], ["alpha", "acme:prod:support:1", "acme:dev:sales:2"]),
        (["A*"], []),
        (["*support*", "gamma"], ["acme:prod:support:1", "gamma"]),
        (["--locked"], []),
    ],
)
def test_choosing_and_sorting(varied: Path, arguments: list[str], expected: list[str]) -> None:
    assert keys("-s", varied, *arguments) == expected


def test_those_without_the_value_come_last(folder: Path) -> None:
    document(folder, "new", age=HOUR, createdAt=now_ms() - HOUR)
    document(folder, "old", age=DAY)
    log(folder, "log")
    assert keys("-s", folder, "--sort", "created") == ["new", "old", "log"]
    assert keys("-s", folder, "--sort", "created", "-r") == ["old", "new", "log"]


def test_a_list_may_be_cut_by_its_reader(folder: Path) -> None:
    for number in range(300):
        document(folder, f"s{number}")
    command = f"{shlex.join(COMMAND)} list -s {folder} -o jsonl 2>&1 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment(), check=True)
    line, code = done.stdout.splitlines()
    assert json.loads(line)["kind"] == "document"
    assert code in ("0", "141")


def test_reading_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    sample(folder)
    before = state(tmp_path)
    for format_ in ("table", "json", "jsonl", "csv", "ids"):
        run("list", "-s", folder, "-o", format_, env=environment(tmp_path))
    run("list", "-s", folder, "--locked", env=environment(tmp_path))
    assert state(tmp_path) == before


def test_hints(folder: Path) -> None:
    (folder / ".sessions").mkdir()
    document(folder / ".sessions", "inside")
    assert f"--store {folder / '.sessions'})" in run("list", "-s", folder).stderr
    document(folder, "s01")
    document(folder, "s02")
    for command in (["list"], ["gc", "--older-than", "1h", "-n"]):
        assert "begin so: 's0*'" in run(*command, "s0", "-s", folder).stderr
        assert "begin so" not in run(*command, "x*", "-s", folder).stderr
    assert "begin so" not in run("list", "s01", "-s", folder).stderr
    assert run("list", "--limit", "1", "-s", folder).stderr.splitlines()[-1] == "1 of 2 sessions"


def test_long_keys_are_cut_where_they_are_alike(folder: Path) -> None:
    for name in ("first", "second"):
        log(folder, f"default:production:file-agent-of-a-long-name:and-a-session-{name}", entry("a", None))
    with Terminal("list", "-s", folder, size=(80, 24)) as screen:
        screen.wait()
    for name in ("first", "second"):
        assert re.search(rf"^default:\S*…\S*-{name} ", screen.plain, re.MULTILINE)


@pytest.mark.parametrize("command", [["list"], ["tail"], ["show", "s1", "s2"]], ids=lambda command: command[0])
def test_json_is_indented_as_a_whole(folder: Path, command: list[str]) -> None:
    document(folder, "s1", messages=[message("user", "a\n  b")], provider="x\n[")
    document(folder, "s2", messages=[message("user", "c")])
    text = run(*command, "-o", "json", "-s", folder).stdout
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
