"""Bad input: one clear line on stderr, the right exit code, and no change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessionctl import errors
from tests.stored import DAY, document, entry, log, names, state
from tests.terminal import environment, run

COMMANDS = (["list"], ["gc", "--older-than", "1h", "-y"], ["delete", "s1", "-y"])


@pytest.fixture(autouse=True)
def sessions(folder: Path) -> Path:
    document(folder, "s1", age=9 * DAY)
    document(folder, "s22", age=9 * DAY)
    document(folder, "s222", age=9 * DAY)
    log(folder, "log1", age=9 * DAY)
    return folder


def refuse(folder: Path, *arguments: str | Path, code: int, says: str, kind: str | None = None) -> None:
    """The command ends with this code and one clear line (and a hint), and nothing has changed."""
    before = state(folder.parent)
    done = run(*arguments, env=environment(folder.parent))
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("sessionctl: ")
    assert says in done.stderr
    assert len(lines) == 1 or lines[1].startswith("  ")
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert state(folder.parent) == before
    if kind is None:
        return
    as_json = run(*arguments, "-o", "json", env=environment(folder.parent))
    assert as_json.returncode == code
    error = json.loads(as_json.stderr)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == kind


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("store", "code", "says", "kind"),
    [
        ("nosuch:x", 2, "no store type answers to 'nosuch:'", "unknown-store"),
        ("rediss3://x", 2, "did you mean rediss:", "unknown-store"),
        ("nosuchname", 2, "no store is called 'nosuchname'", "unknown-store"),
        ("documents:", 2, "names no folder", "usage"),
        ("{0}/s1.json", 7, "is not a folder", "store"),
        ("{0}/missing", 7, "no session folder at", "no-store"),
        ("{0}/s1.json/below", 7, "is not a folder", "store"),
    ],
)
def test_stores(folder: Path, command: list[str], store: str, code: int, says: str, kind: str) -> None:
    refuse(folder, *command, "-s", store.format(folder), code=code, says=says, kind=kind)


@pytest.mark.parametrize("span", ["24", "1x", "-3h", "0d", "", "1.5h", "24H", "h"])
def test_durations(folder: Path, span: str) -> None:
    says = "write 90s, 30m, 24h, 7d, 2w or 1h30m"
    refuse(folder, "gc", f"--older-than={span}", "-y", "-s", folder, code=2, says=says)


@pytest.mark.parametrize("option", ["--ttl", "--idle", "--older-than"])
def test_every_rule_wants_a_duration(folder: Path, option: str) -> None:
    refuse(folder, "gc", option, "0d", "-y", "-s", folder, code=2, says="not a duration", kind="invalid-duration")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "--status", "brokn"], "did you mean broken?"),
        (["list", "--status", "\x1b[31m"], "\\x1b[31m"),
        (["list", "--kind", "documents"], "did you mean document?"),
        (["list", "--sort", "size "], "did you mean size?"),
        (["list", "--older-than", "yesterday"], "write 2026-01-31"),
        (["list", "--newer-than", "1750000000"], "write 2026-01-31"),
        (["list", "--all", "--limit", "3"], "exclude each other"),
        (["list", "--limit", "-1"], "greater than or equal to 0"),
        (["list", "--nosuch"], "--nosuch"),
        (["show"], "name the sessions to show"),
        (["show", "s1", "--last", "x"], "not a whole number"),
        (["gc", "-y"], "gc needs a rule"),
        (["gc", "--older-than", "1h"], "needs --yes"),
        (["gc", "--keep-last", "-1", "-y"], "greater than or equal to 0"),
        (["gc", "--older-than", "1h", "--lock-wait", "5", "-y"], "5"),
        (["gc", "--older-than", "1h", "--min-idle", "x", "-y"], "'x'"),
        (["delete", "-y"], "name the sessions to delete"),
        (["delete", "s1"], "needs --yes"),
    ],
)
def test_usage(folder: Path, arguments: list[str], says: str) -> None:
    refuse(folder, *arguments, "-s", folder, code=2, says=says)


@pytest.mark.parametrize("command", [["show"], ["delete", "-y"]], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("id_", "code", "says"),
    [
        ("../s1", 2, "is a path"),
        ("../sessions/s1", 2, "is a path"),
        ("/etc/passwd", 2, "is a path"),
        ("C:\\s1", 2, "is a path"),
        ("x" * 10_000, 2, "10000 bytes long, the limit is 250"),
        ("", 2, "it is empty"),
        ("*", 3, "no such session: '*'"),
        ("s?", 3, " -o ids 's?' | sessionctl … -"),
        ("s1234", 3, "sessionctl list"),
        ("log11", 3, "did you mean 'log1'?"),
        ("[s]1", 3, "no such session"),
        ("S1", 3, "no such session"),
        ("nope", 3, "sessionctl list"),
        ("log", 3, "at least 4 characters"),
        ("\x1b[31m\n", 3, "\\x1b[31m\\n"),
        ("s1.json", 3, "no such session"),
        ("%2e%2e/s1", 3, "no such session"),
        ("a/b", 3, "no such session"),
    ],
)
def test_ids(folder: Path, command: list[str], id_: str, code: int, says: str) -> None:
    refuse(folder, command[0], id_, *command[1:], "-s", folder, code=code, says=says)


def test_a_nul_in_an_id(folder: Path) -> None:
    done = run("delete", "-", "-y", "-s", folder, stdin=b"s1\nx\0s22\0")
    assert done.returncode == 8
    assert names(folder) == ["log1.jsonl", "s1.json", "s222.json"]


def test_an_ambiguous_id(folder: Path) -> None:
    document(folder, "session-a", age=DAY)
    document(folder, "session-b", age=DAY)
    for command in (["show"], ["delete", "-y"]):
        refuse(folder, command[0], "session", *command[1:], "-s", folder, code=4, says="'session-a', 'session-b'")


def test_the_raw_id_of_a_log_is_an_id(folder: Path) -> None:
    log(folder, "acme:production:support:order-1", entry("a", None), age=DAY)
    log(folder, "acme:production:support:order-2", entry("a", None), age=DAY)
    log(folder, "other:production:support:order-2", entry("a", None), age=DAY)
    assert run("show", "order-1", "-s", folder).stdout.startswith("acme:production:support:order-1\n")
    for ambiguous in ("order-2", "orde"):
        refuse(folder, "show", ambiguous, "-s", folder, code=4, says="sessions are called")
    refuse(folder, "show", "ord", "-s", folder, code=3, says="at least 4 characters")
    refuse(folder, "show", "ordr-1", "-s", folder, code=3, says="did you mean 'order-1'?")
    assert run("delete", "order-1", "-y", "-s", folder).returncode == 0
    assert "order-1" not in " ".join(names(folder))


def test_formats_of_each_command(folder: Path) -> None:
    for command, format_ in (("show", "csv"), ("show", "ids"), ("gc", "csv"), ("list", "yaml")):
        rest = {"show": ["s1"], "gc": ["--older-than", "1h", "-n"], "list": []}[command]
        done = run(command, *rest, "-o", format_, "-s", folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"no such output: '{format_}'" in done.stderr


def test_no_command_shows_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "list" in done.stdout + done.stderr
    assert run("--help").returncode == 0
    assert run("nosuch").returncode == 2
    for command in ("list", "show", "gc", "delete"):
        assert "--store" in run(command, "--help").stdout


def test_a_bug_is_one_line_unless_it_is_looked_for(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sessionctl.ops.select as s\ndef broken(*a, **k): raise ZeroDivisionError('oops')\ns.listing = broken\n"
    )
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    done = run("list", "-s", folder, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith("sessionctl: ZeroDivisionError: oops\n")
    assert "SESSIONCTL_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("list", "-s", folder, env=env | {"SESSIONCTL_DEBUG": "1"}).stderr


def test_codes_are_stable() -> None:
    """The codes and exit codes that programs rely on."""
    found = {
        error.code: error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.SessionctlError)
    }
    promised = {
        "usage": 2, "invalid-key": 2, "invalid-duration": 2, "invalid-moment": 2, "unknown-store": 2,
        "invalid-config": 2, "unsupported-kind": 2, "needs-yes": 2, "too-many": 2, "not-found": 3, "ambiguous": 4,
        "damaged": 5, "locked": 6, "in-use": 6, "lock-lost": 6, "changed": 6, "store": 7, "no-store": 7,
        "write-failed": 7, "some-failed": 8, "SESSION_OWNERSHIP_MISMATCH": 9, "busy": 75,
    }  # fmt: skip
    assert found.items() >= promised.items()


LONG = "x" * 400


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list", "-s", LONG], 2, "no store is called"),
        (["list", "-s", f"./{LONG}"], 7, "file name too long"),
        (["list", "-s", f"sqlite:///{LONG}"], 7, "file name too long"),
        (["list", "-s", f"redis://{LONG}/0"], 2, "something else than a host"),
        (["list", "-s", f"postgresql://{LONG}/x"], 2, "not the URL of a database"),
        (["gc", "-s", "STORE", "--older-than", "1d", "-y", "--archive", LONG], 2, "no store is called"),
        (["gc", "-s", "STORE", "--older-than", "1d", "--save-plan", LONG], 2, "--save-plan: 'x"),
        (["gc", "-s", "STORE", "--older-than", "1d", "-y", "--metrics", LONG], 2, "--metrics: 'x"),
        (["gc", "-s", "STORE", "--plan", LONG], 2, "file name too long"),
        (["tail", "-s", "STORE", "--cursor", LONG], 2, "--cursor: 'x"),
        (["migrate", "STORE", LONG], 2, "no store is called"),
        (["repair", "-s", "STORE", "--fix", "--backup", LONG], 2, "no store is called"),
        (["show", "-s", "STORE", LONG], 2, "the limit is 250"),
    ],
)
def test_names_that_no_system_takes(folder: Path, arguments: list[str], code: int, said: str) -> None:
    refuse(folder, *(a.replace("STORE", str(folder)) for a in arguments), code=code, says=said)


@pytest.mark.parametrize(
    "command",
    [
        ["gc", "--older-than", "90d", "-y"],
        ["gc", "--older-than", "90d", "-n"],
        ["repair"],
        ["repair", "--fix"],
        ["stats"],
    ],
)
def test_a_store_one_level_too_high_is_said(tmp_path: Path, command: list[str]) -> None:
    """A nightly job on the wrong folder would do nothing for years."""
    inner = tmp_path / "agent" / ".sessions"
    inner.mkdir(parents=True)
    log(inner, "l1")
    said = f"note: no sessions in {inner.parent}; there are some in {inner}"
    assert said in run(*command, "-s", inner.parent).stderr
    assert said not in run(*command, "-s", inner).stderr
    assert said in run("migrate", inner.parent, tmp_path / "t").stderr


def test_tail_tells_of_damage(folder: Path) -> None:
    (folder / "cut.json").write_bytes(b'{"id": "cut", "mess')
    log(folder, "holes", entry("e1", None), b"no json\n", entry("e2", "e1", "assistant", "hello"))
    done = run("tail", "-s", folder, "cut", "holes", "-n", "9")
    assert done.returncode == 8 and "hello" in done.stdout
    assert "cut cannot be read as a session" in done.stderr
    assert f"1 session could not be read: cut\n  sessionctl show -s {folder} cut tells why\n" in done.stderr
    assert run("tail", "-s", folder, "holes").returncode == run("tail", "-s", folder).returncode == 0
    assert "holes 1 damaged line passed over" in done.stderr


def test_a_list_of_none_counts_all(folder: Path) -> None:
    assert run("list", "-s", folder, "--limit", "0").stderr == "0 of 4 sessions\n"


def test_the_metrics_of_what_was_too_much_tell_how_much(folder: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "gc.prom"
    done = run("gc", "-s", folder, "--older-than", "1d", "-y", "--max-delete", "1", "--metrics", metrics)
    assert done.returncode == 2 and "4 of 4 sessions would be deleted" in done.stderr
    values = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if line[0] != "#")
    found = {name.partition("{")[0]: value for name, value in values.items()}
    assert (found["sessionctl_gc_scanned_sessions"], found["sessionctl_gc_matched_sessions"]) == ("4", "4")
    assert found["sessionctl_gc_exit_code"] == "2"


def test_a_hint_names_the_store_that_was_asked(folder: Path) -> None:
    for arguments, list_ in (
        (["nobody-at-all"], f"list them with: sessionctl list -s {folder}"),
        (["s*"], f"list -s {folder} -o ids 's*'"),
    ):
        assert list_ in run("show", "-s", folder, *arguments).stderr


def test_nul_is_for_ids(folder: Path) -> None:
    refuse(folder, "list", "-s", folder, "-0", code=2, says="-0 goes with -o ids")
