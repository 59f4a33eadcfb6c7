"""``sessionctl repair``: what is printed, what is written and what is not, and backups that bring everything back."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sessionctl.model import Ref
from sessionctl.ops.repair import Backup, repair
from sessionctl.stores.folder import FolderStore
from tests.apis import refused
from tests.servers import Server
from tests.stored import DAY, HOUR, SECOND, call, document, entry, log, message, names, now_ms, result, set_age, state
from tests.terminal import COMMAND, FIXTURES, Terminal, environment, run

ASK = entry("e1", None, "user", "check")
DANGLING = (ASK, entry("e2", "e1", "assistant", [call("t1", "shell")]))
TORN = b'{"id":"e3","par'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def env(home: Path) -> dict[str, str]:
    return environment(home)


def calling(*ids: str, **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "name": "ls", "arguments": {}} | more for i in ids]
    return message("assistant", "", now_ms() - DAY, toolCalls=calls)


def dangling(folder: Path, key: str = "doc", *ids: str) -> Path:
    return document(folder, key, messages=[message("user", "hi", now_ms() - DAY), calling(*(ids or ("c1",)))])


def done(*arguments: str | Path, env: dict[str, str], code: int = 0, **more: Any) -> tuple[list[str], list[str]]:
    """The lines of both outputs of a run that ends with ``code``."""
    ended = run("repair", *arguments, env=env, **more)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout.splitlines(), ended.stderr.splitlines()


def objects(*arguments: str | Path, env: dict[str, str], code: int = 0) -> dict[str, dict[str, Any]]:
    ended = run("repair", "-o", "json", *arguments, env=env)
    assert ended.returncode == code, ended.stderr
    return {value["key"]: value for value in json.loads(ended.stdout)}


def backups(home: Path) -> list[Path]:
    return sorted((home / ".local" / "state" / "sessionctl" / "backups").glob("*"))


# --- what is said -----------------------------------------------------------------------------------------------------


def test_piped(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad", *DANGLING, TORN)
    before = state(folder)
    assert done("-s", folder, env=env, code=5) == (
        [
            "bad  damaged",
            "  error   torn-tail  line 3, byte 222: the last line is incomplete  [--fix mends it]",
            "  error   unresolved-tool-call  entry e2 (line 2, byte 80): the call t1 has no result; model APIs refuse "
            "the session as it is  [--fix mends it]",
        ],
        ["1 session checked, 1 with findings, --fix mends 2 findings"],
    )
    assert state(folder) == before


def test_fixed_and_put_back(folder: Path, home: Path, env: dict[str, str]) -> None:
    path = log(folder, "bad", *DANGLING, TORN)
    document(folder, "good")
    before, stored = state(folder), path.read_bytes()
    out, err = done("--fix", "-s", folder, env=env)
    [kept] = backups(home)
    assert out == [
        "bad  ok",
        "  error   torn-tail  line 3, byte 222: the last line is incomplete  [fixed]",
        "  error   unresolved-tool-call  entry e2 (line 2, byte 80): the call t1 has no result; model APIs refuse the "
        "session as it is  [fixed]",
        "  → put right: torn-tail",
        "  → took out 15 bytes that belong to no message",
        "  → added a result for the call t1",
    ]
    assert err == [
        "2 sessions checked, 1 with findings, 2 findings fixed",
        f"untouched copies are in {kept}; this puts them back:",
        f"  sessionctl migrate {kept} {folder} --on-conflict overwrite",
    ]
    whole = path.read_bytes()
    assert whole.startswith(stored.removesuffix(TORN))
    assert refused(whole, "log") == []
    assert path.stat().st_mtime_ns == before[str(path)][3], "a repair makes nothing younger"
    assert {p: s for p, s in state(folder).items() if p.endswith("good.json")}.items() <= before.items()
    assert [stat.S_IMODE(p.stat().st_mode) for p in (kept.parent, kept, kept / "bad.jsonl")] == [0o700, 0o700, 0o600]
    assert (kept / "bad.jsonl").read_bytes() == stored

    after = state(folder)
    assert done("--fix", "-s", folder, env=env) == ([], ["2 sessions checked, no findings, nothing to do"])
    assert state(folder) == after
    assert backups(home) == [kept], "nothing to do makes no folder"

    back = run("migrate", kept, folder, "--on-conflict", "overwrite", "--yes", env=env)
    assert back.returncode == 0, back.stderr
    assert path.read_bytes() == stored
    assert path.stat().st_mtime_ns == before[str(path)][3]


def test_at_a_terminal(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad", *DANGLING)
    with Terminal("repair", "-s", folder, env=env) as terminal:
        assert terminal.wait() == 5
        shown = terminal.plain
    assert "bad  interrupted\n" in shown
    assert (
        "  error   unresolved-tool-call  entry e2 (line 2, byte 80): the call t1 has no \n"
        "          result; model APIs refuse the session as it is  [--fix mends it]\n"
    ) in shown
    assert "\x1b[31m  error" in terminal.text
    assert shown.rstrip().endswith("1 session checked, 1 with findings, --fix mends 1 finding")


def test_the_bar_is_gone_before_a_line_is_printed(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad", *DANGLING)
    with Terminal("repair", "-s", folder, env=env) as terminal:
        terminal.wait()
    for line in re.findall(r"[^\n]*bad  [^\n]*", terminal.text):
        assert "checking" not in line.rpartition("\x1b[2K")[2], line


def test_a_diff(folder: Path, home: Path, env: dict[str, str]) -> None:
    path = dangling(folder)
    before = state(folder)
    for arguments in (("-n",), ("--fix", "--dry-run")):
        out, err = done(*arguments, "-s", folder, env=env, code=5)
        assert err == ["1 session checked, 1 with findings, 1 finding would be fixed"]
        assert out[0] == "doc  interrupted → ok"
        assert out[1].endswith("[would be fixed]")
        assert out[2:4] == ["  → added a result for the call c1", "    @@ -18,4 +18,11 @@"]
        added = [line.removeprefix("    +") for line in out if line.startswith("    +")]
        made = json.loads("{" + "".join(added).partition("{")[2] + "}")
        assert (made["role"], made["toolCallId"]) == ("tool", "c1")
        assert made["content"].startswith("[sessionctl] Error: the tool ls did not run")
        assert not [line for line in out if line.startswith("    -")]
    assert state(folder) == before
    assert backups(home) == []
    assert path.exists()


def test_a_diff_tells_that_the_last_newline_comes(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad", ASK, json.dumps(entry("e2", "e1", "assistant", "yes")).encode())
    out, _ = done("-n", "-s", folder, env=env)
    assert out[-1] == r"    -\ no newline at the end"


def test_json(folder: Path, home: Path, env: dict[str, str]) -> None:
    log(folder, "bad", *DANGLING)
    found = {
        "code": "unresolved-tool-call",
        "severity": "error",
        "where": "entry e2 (line 2, byte 80)",
        "message": "the call t1 has no result; model APIs refuse the session as it is",
        "fixable": True,
        "fixed": False,
    }
    whole = {"key": "bad", "kind": "log", "status": "interrupted", "findings": [found], "backup": None}
    assert objects("-s", folder, env=env, code=5) == {"bad": whole}
    assert objects("-s", folder, "-n", env=env, code=5) == {"bad": whole}, "a dry run fixes nothing"
    fixed = objects("-s", folder, "--fix", env=env)
    [kept] = backups(home)
    assert fixed == {"bad": whole | {"status": "ok", "findings": [found | {"fixed": True}], "backup": str(kept)}}
    assert objects("-s", folder, env=env) == {"bad": whole | {"status": "ok", "findings": []}}
    assert json.loads(run("repair", "-o", "jsonl", "-s", folder, env=env).stdout)["status"] == "ok"


def test_ids_compose(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad:1", *DANGLING)
    dangling(folder, "bad-2")
    document(folder, "good")
    out, _ = done("-o", "ids", "-s", folder, env=env, code=5)
    assert sorted(out) == ["bad-2", "bad:1"]
    assert run("repair", "-o", "ids", "-0", "-s", folder, env=env).stdout.count("\0") == 2
    piped = "\n".join([*out, "none-such"]).encode()
    out, err = done("--fix", "-", "-s", folder, env=env, code=8, stdin=piped)
    assert [line for line in out if not line.startswith(" ")] == [f"{key}  ok" for key in piped.decode().split()[:2]]
    assert err[-1] == "no such session: 'none-such'"
    assert done("-s", folder, env=env) == ([], ["3 sessions checked, no findings"])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none-such"], 3, "no such session: 'none-such'"),
        (["same"], 4, "same"),
        (["--only", "torn"], 2, "no such finding: 'torn'; did you mean torn-tail?"),
        (["--strategy", "result"], 2, "no such strategy: 'result'; did you mean results?"),
        (["--strategy", "note", "--drop-drafts"], 2, "drop-drafts"),
        (["--min-idle", "5"], 2, "not a duration: '5'"),
        (["-o", "csv"], 2, "no such output: 'csv'"),
        (["--fix", "--backup", "."], 2, "the backup is the store itself: nothing would be kept"),
        (["-s", "/nowhere/at/all"], 7, "/nowhere/at/all"),
    ],
)
def test_mistakes(folder: Path, env: dict[str, str], arguments: list[str], code: int, said: str) -> None:
    for key in ("same-1", "same-2"):
        log(folder, key, *DANGLING)
    before = state(folder)
    where = [] if "-s" in arguments else ["-s", folder]
    if "." in arguments:
        arguments = [str(folder) if a == "." else a for a in arguments]
    _, err = done(*arguments, *where, env=env, code=code)
    assert said in err[0]
    assert state(folder) == before


def test_exit_codes_for_what_is_left(folder: Path, env: dict[str, str]) -> None:
    document(folder, "warned", messages=[message("user", "hi"), message("assistant", "\ud800")], extra="\\ud800")
    done("-s", folder, env=env)
    (folder / "lost.json").write_bytes(b'{"id": "lost"')
    set_age(folder / "lost.json", DAY)
    dangling(folder)
    out, _ = done("-s", folder, "--fix", env=env, code=5)
    assert (
        "  error   invalid-json  byte 13: not JSON: expecting ',' delimiter  "
        "[restore it from a backup, or remove it with sessionctl delete]"
    ) in out
    done("-s", folder, "--fix", "--exit-zero", env=env)
    assert (folder / "lost.json").read_bytes() == b'{"id": "lost"'


def test_every_code_has_its_fix_or_its_next_step() -> None:
    from sessionctl.cli.repair import NEXT_STEP
    from sessionctl.history import SEVERITY

    always_mended = {"unresolved-tool-call", "orphan-tool-result", "late-tool-result", "glued-line"}
    always_mended |= {"missing-final-newline", "blank-or-crlf-line", "parent-cycle", "duplicate-entry", "stale-lock"}
    assert set(SEVERITY) - always_mended - {"consecutive-user-messages"} == set(NEXT_STEP)


def test_a_log_without_a_whole_entry_has_its_next_step(folder: Path, env: dict[str, str]) -> None:
    log(folder, "brk", b'{"')
    for more in ((), ("--fix",)):
        out, _ = done(*more, "-s", folder, env=env, code=5)
        assert out[1].endswith("[restore it from a backup, or remove it with sessionctl delete]")


def test_a_removed_temporary_file_is_told_with_its_copy(folder: Path, home: Path, env: dict[str, str]) -> None:
    document(folder, "s1")
    torn = folder / "s1.json.tmp.1750000000000"
    torn.write_bytes(b"{")
    set_age(torn, 2 * HOUR)
    out, _ = done("-n", "-s", folder, env=env)
    assert out[2:] == [f"  → removed the torn temporary file {torn.name}; a copy goes into the backup"]
    out, err = done("--fix", "-s", folder, env=env)
    [kept] = backups(home)
    assert out[2:] == [f"  → removed the torn temporary file {torn.name}; a copy is in {kept}"]
    assert err[1:] == [f"copies of the removed temporary files are in {kept}"]
    assert (kept / torn.name).read_bytes() == b"{" and not torn.exists()


def test_many_alike_are_folded(folder: Path, env: dict[str, str]) -> None:
    log(folder, "blank", ASK, *[b"\n"] * 1000, entry("e2", "e1", "assistant", "yes"))
    out, _ = done("-s", folder, env=env, code=5)
    assert out[1:] == [
        "  error   blank-or-crlf-line  line 2, byte 80: the line is blank, and 999 more  [--fix mends it]"
    ]
    assert len(done("-v", "-s", folder, env=env, code=5)[0]) == 1001
    assert len(objects("-s", folder, env=env, code=5)["blank"]["findings"]) == 1000
    document(folder, "many", messages=[message("user", "go"), calling(*(f"c{n}" for n in range(9)))])
    out, _ = done("many", "-n", "-s", folder, env=env, code=5)
    assert out[1].split(", and ")[1] == "8 more  [would be fixed]"
    assert out[2:8] == [*(f"  → added a result for the call c{n}" for n in range(5)), "  → … and 4 changes more"]


def test_long_texts_are_cut_at_a_terminal_only(folder: Path, env: dict[str, str]) -> None:
    long = "t" * 5000
    dangling(folder, "doc", long)
    assert long in done("-s", folder, env=env, code=5)[0][1]
    for arguments, whole in (((), False), (("-v",), True)):
        with Terminal("repair", "-s", folder, *arguments, env=env) as terminal:
            terminal.wait()
        assert (re.sub(r"\s", "", terminal.plain).count("t" * 4000) == 1) is whole
    with Terminal("repair", "-s", folder, env=env) as terminal:
        terminal.wait()
    assert re.search(r"… \(5,\d\d\d characters; -v shows\s+all\)", terminal.plain)


def test_nothing_stored_is_obeyed(folder: Path, env: dict[str, str]) -> None:
    evil = "\x1b[2J\x9b31m\u202e[bold]\r\n"
    dangling(folder, "doc", evil)
    for arguments in ((), ("-n",), ("-o", "json"), ("--fix",)):
        ended = run("repair", "-s", folder, *arguments, env=env)
        assert not re.search("[\x1b\x9b\u202e\r]", ended.stdout + ended.stderr)
    dangling(folder, "doc", evil)
    with Terminal("repair", "-n", "-s", folder, env=env) as terminal:
        terminal.wait()
    assert "\x1b[2J" not in terminal.text
    assert "\u202e" not in terminal.text


@pytest.mark.parametrize(
    ("value", "said"),
    [(b"NaN", "not JSON: NaN is no number in JSON"), (b"[" * 100_000 + b"]" * 100_000, "not JSON: nested too deeply")],
)
def test_what_no_parser_takes(folder: Path, env: dict[str, str], value: bytes, said: str) -> None:
    (folder / "s1.json").write_bytes(b'{"id":"s1","messages":[],"x":' + value + b"}")
    before = state(folder)
    out, _ = done("-s", folder, "--fix", "--force", env=env, code=5)
    assert len(out) == 2
    assert said in out[1]
    assert state(folder) == before


# --- what is chosen ---------------------------------------------------------------------------------------------------


def test_only_and_skip(folder: Path, env: dict[str, str]) -> None:
    path = log(folder, "bad", *DANGLING, TORN)
    stored = path.read_bytes()
    out, err = done("--only", "torn-tail", "-s", folder, env=env, code=5)
    assert (len(out), err) == (2, ["1 session checked, 1 with findings, --fix mends 1 finding"])
    done("--skip", "torn-tail", "--skip", "unresolved-tool-call", "-s", folder, env=env)
    done("--only", "torn-tail", "--fix", "-s", folder, env=env)
    assert path.read_bytes() == stored.removesuffix(TORN)
    done("--skip", "unresolved-tool-call", "--fix", "-s", folder, env=env)
    assert path.read_bytes() == stored.removesuffix(TORN)
    done("--fix", "-s", folder, env=env)
    assert refused(path.read_bytes(), "log") == []


@pytest.mark.parametrize(
    ("strategy", "roles"),
    [("results", "user assistant tool"), ("note", "user assistant tool user"), ("truncate", "user")],
)
def test_strategies(folder: Path, env: dict[str, str], strategy: str, roles: str) -> None:
    path = dangling(folder)
    done("--fix", "--strategy", strategy, "-s", folder, env=env)
    assert " ".join(m["role"] for m in json.loads(path.read_bytes())["messages"]) == roles


def test_drafts_go_only_when_that_is_asked_for(folder: Path, env: dict[str, str]) -> None:
    path = document(folder, "doc", messages=[message(r, "x", now_ms() - DAY) for r in ("user", "assistant", "user")])
    stored = path.read_bytes()
    found = objects("-s", folder, env=env)["doc"]["findings"]
    assert [(f["code"], f["fixable"]) for f in found] == [("draft", False)]
    assert objects("--drop-drafts", "-s", folder, env=env)["doc"]["findings"][0]["fixable"] is True
    out, err = done("-s", folder, env=env)
    assert out[1].endswith("the last message was not answered  [--fix --drop-drafts removes it]")
    assert err == ["1 session checked, 1 with findings"]
    assert done("--fix", "-s", folder, env=env)[1] == ["1 session checked, 1 with findings, nothing to do"]
    assert path.read_bytes() == stored
    out, _ = done("--fix", "--drop-drafts", "-s", folder, env=env)
    assert out[1].endswith("the last message was not answered  [fixed]")
    assert [m["role"] for m in json.loads(path.read_bytes())["messages"]] == ["user", "assistant"]


def test_a_backup_of_ones_own(folder: Path, tmp_path: Path, home: Path, env: dict[str, str]) -> None:
    stored = dangling(folder).read_bytes()
    kept = tmp_path / "my copies"
    _, err = done("--fix", "--backup", f"documents:{kept}", "-s", folder, env=env)
    assert (kept / "doc.json").read_bytes() == stored
    assert backups(home) == []
    assert f"sessionctl migrate 'documents:{kept}' {folder} --on-conflict overwrite" in err[-1]


def test_every_damaged_fixture_is_checked_without_a_trace(tmp_path: Path, env: dict[str, str]) -> None:
    for place in ("seepient-damaged/sessions", "loopengine-damaged/.sessions"):
        before = state(FIXTURES / place)
        found = objects("-s", FIXTURES / place, env=env, code=5)
        assert len(found) == len({p.name.partition(".")[0] for p in (FIXTURES / place).iterdir()})
        assert state(FIXTURES / place) == before


# --- what is left alone -----------------------------------------------------------------------------------------------


def test_locked(folder: Path, env: dict[str, str]) -> None:
    path = log(folder, "bad", *DANGLING)
    stored = path.read_bytes()
    with FolderStore(folder).lock(Ref("bad", "log"), 0):
        began = time.monotonic()
        out, err = done("--fix", "--lock-wait", "0s", "-s", folder, env=env, code=6)
        assert time.monotonic() - began < 5
        assert re.fullmatch(rf"  left alone: 'bad' is locked by \S+:{os.getpid()}.*", out[-1])
        assert err == ["1 session checked, 1 with findings, 1 left alone"]
        ended = run("repair", "-o", "json", "--fix", "--lock-wait", "0s", "--force", "-s", folder, env=env)
        assert ended.returncode == 6
        assert f":{os.getpid()}" in json.loads(ended.stdout)[0]["reason"]
    assert path.read_bytes() == stored


def test_a_lock_is_waited_for(folder: Path, env: dict[str, str]) -> None:
    log(folder, "bad", *DANGLING)
    with FolderStore(folder).lock(Ref("bad", "log"), 0):
        process = subprocess.Popen([*COMMAND, "repair", "--fix", "-q", "-s", folder], env=env, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert b"[fixed]" in out


def test_in_use(folder: Path, env: dict[str, str]) -> None:
    path = log(folder, "bad", *DANGLING, age=20 * SECOND)
    stored = path.read_bytes()
    out, _ = done("--fix", "-s", folder, env=env, code=6)
    assert re.fullmatch(r"  left alone: changed \d+ s ago", out[-1])
    assert path.read_bytes() == stored
    done("--fix", "--min-idle", "10s", "-s", folder, env=env)
    assert refused(path.read_bytes(), "log") == []
    set_age(log(folder, "bad", *DANGLING), 0)
    done("--fix", "--force", "-s", folder, env=env)
    assert refused(path.read_bytes(), "log") == []


def test_uncertain_age(folder: Path, env: dict[str, str]) -> None:
    messages = [message("user", "x", now_ms() - DAY), calling("c1")]
    path = document(folder, "later", messages=messages, updatedAt=now_ms() + 5 * DAY)
    document(folder, "healthy", updatedAt="yesterday")
    stored = path.read_bytes()
    out, err = done("--fix", "-s", folder, env=env, code=6)
    assert "  left alone: its age is uncertain: updatedAt lies in the future" in out
    assert err == ["2 sessions checked, 2 with findings, 1 left alone"], "what cannot be mended is not left alone"
    assert path.read_bytes() == stored
    done("--fix", "--force", "-s", folder, env=env)
    assert refused(path.read_bytes(), "document") == []
    assert json.loads(path.read_bytes())["updatedAt"] == json.loads(stored)["updatedAt"]


def checkpoint(folder: Path, session: str, *calls: str) -> None:
    place = folder.parent / ".checkpoints" / "checkpoints"
    place.mkdir(parents=True)
    outstanding = {f"p{n}": {"toolUseId": c, "tool": "shell", "args": {}} for n, c in enumerate(calls)}
    value = {"id": "k1", "closed": False, "sessionId": session, "resultsSoFar": [], "outstanding": outstanding}
    (place / "k1.json").write_text(json.dumps(value))


def test_awaiting_approval(folder: Path, env: dict[str, str]) -> None:
    folder = folder.rename(folder.with_name(".sessions"))
    path = log(folder, "paused", *DANGLING)
    checkpoint(folder, "paused", "t1")
    stored = path.read_bytes()
    assert done("--fix", "-s", folder, env=env) == ([], ["1 session checked, no findings, nothing to do"])
    log(folder, "paused", *DANGLING, TORN)
    out, _ = done("--fix", "-s", folder, env=env, code=6)
    assert out[-1] == "  left alone: awaiting approval"
    done("--fix", "--force", "-s", folder, env=env)
    assert path.read_bytes() == stored, "the call that awaits approval gets no result even then"


def test_protected_by_the_configuration(folder: Path, tmp_path: Path, home: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[stores.mine]\nurl = "{folder}"\nprotect = ["vip-*"]\n')
    env = environment(home, SESSIONCTL_CONFIG=str(config))
    path = log(folder, "vip-1", *DANGLING)
    other = log(folder, "other", *DANGLING)
    stored = path.read_bytes()
    for store in ("mine", str(folder)):
        out, _ = done("--fix", "--force", "-s", store, env=env, code=5)
        assert "  left alone: protected by the configuration" in out
    assert path.read_bytes() == stored
    assert refused(other.read_bytes(), "log") == []
    done("--fix", "--exit-zero", "-s", "mine", env=env)


# --- Redis ------------------------------------------------------------------------------------------------------------


def filled(redis: Server) -> None:
    client = redis.client()
    client.rpush("session-log:s1", *(json.dumps(e) for e in DANGLING))
    at = now_ms() - DAY
    value = {"id": "d1", "messages": [message("user", "x", at), calling("c1")], "createdAt": at, "updatedAt": at}
    client.set("seepient:session:d1", json.dumps(value), px=3_600_000)


def test_redis(redis: Server, env: dict[str, str], home: Path) -> None:
    filled(redis)
    client = redis.client()
    before = client.get("seepient:session:d1"), client.lrange("session-log:s1", 0, -1)
    at = ("-s", redis.url(), "--min-idle", "0s")
    assert len(done("-s", redis.url(), env=env, code=5)[0]) == 4
    done("--fix", "-s", redis.url(), "s1", env=env, code=6)  # a log that was written just now
    done("--fix", *at, env=env)
    assert 3_500_000 < client.pttl("seepient:session:d1") <= 3_600_000
    assert client.ttl("session-log:s1") == -1
    assert client.keys("session-lock:*") == []
    assert refused(client.get("seepient:session:d1"), "document") == []
    assert refused(b"".join(e + b"\n" for e in client.lrange("session-log:s1", 0, -1)), "log") == []
    assert done("--fix", *at, env=env) == ([], ["2 sessions checked, no findings, nothing to do"])
    kept = backups(home)[-1]
    back = run("migrate", kept, redis.url(), "--on-conflict", "overwrite", "--yes", "--min-idle", "0s", env=env)
    assert back.returncode == 0, back.stderr
    assert (client.get("seepient:session:d1"), client.lrange("session-log:s1", 0, -1)) == before


def test_a_backup_whose_keys_can_be_the_stores_own(redis: Server, env: dict[str, str]) -> None:
    filled(redis)
    client = redis.client()
    before = sorted(client.keys())
    kept = redis.url() + "?documents=seepient:session:kept:&logs=kept:"
    _, err = done("--fix", "--backup", kept, "-s", redis.url(), env=env, code=2)
    assert "the backup overlaps the store" in err[0]
    assert sorted(client.keys()) == before and client.llen("session-log:s1") == 2


def test_locks_of_agents_in_redis(redis: Server, env: dict[str, str]) -> None:
    filled(redis)
    client = redis.client()
    at = ("-s", redis.url(), "--min-idle", "0s", "--lock-wait", "0s")
    client.set("session-lock:s1", "agent-7", px=20_000)
    out, _ = done("s1", "--fix", *at, env=env, code=6)
    assert re.search(r"left alone: .*s1.* locked .*s left", out[-1])
    assert client.llen("session-log:s1") == 2
    client.set("session-lock:s1", "dead")
    out, _ = done("s1", *at[:2], env=env, code=5)
    assert any(line.startswith("  warning stale-lock  lock: ") for line in out)
    assert client.get("session-lock:s1") == b"dead"
    done("s1", "--fix", *at, env=env)
    assert client.llen("session-log:s1") == 3
    assert client.get("session-lock:s1") is None


def test_a_key_of_another_type_in_redis(redis: Server, env: dict[str, str]) -> None:
    redis.client().hset("seepient:session:odd", "a", "b")
    out, err = done("--fix", "-s", redis.url(), env=env, code=5)
    assert out[1].startswith("  error   wrong-type-key  key: ")
    assert out[1].endswith("rename or remove it with that program, or name another prefix]")
    assert err == ["1 session checked, 1 with findings, nothing to do"]
    assert redis.client().hgetall("seepient:session:odd") == {b"a": b"b"}


# --- what can go wrong ------------------------------------------------------------------------------------------------


def full_beyond(size: int, *arguments: str | Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A run in which no file can grow beyond ``size`` bytes, as on a disk that is full."""
    return subprocess.run(
        [*COMMAND, "repair", *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


@pytest.mark.parametrize("kind", ["append", "replace", "document"])
@pytest.mark.parametrize("at_backup", [True, False])
def test_a_full_disk(folder: Path, home: Path, env: dict[str, str], kind: str, at_backup: bool) -> None:
    text = entry("e0", None, "user", "x" * 20_000)
    chain = (text, entry("e1", "e0"), *DANGLING[1:])
    if kind == "document":
        path = document(folder, "bad", messages=[message("user", "x" * 20_000, now_ms() - DAY), calling("c1")])
    else:
        path = log(folder, "bad", *([b"\n"] if kind == "replace" else []), *chain)
    before, stored = state(folder), path.read_bytes()
    limit = 4096 if at_backup else len(stored) + 20
    ended = full_beyond(limit, "--fix", "-s", folder, env=env)
    assert ended.returncode == 8, ended.stderr
    assert "failed: " + ("no backup, so nothing was changed: " if at_backup else "cannot write ") in ended.stdout
    assert re.search("file too large|the write fell short", ended.stdout)
    assert path.read_bytes() == stored
    assert [p for p in state(folder) if Path(p).name != ".sessionctl"] == list(before)
    kept = [p.name for b in backups(home) for p in b.iterdir() if p.name[0] != "."]
    assert kept == ([] if at_backup else [path.name])
    done("--fix", "-s", folder, env=env)
    assert refused(path.read_bytes(), "document" if kind == "document" else "log") == []


def test_a_folder_that_cannot_be_written(folder: Path, env: dict[str, str]) -> None:
    path = log(folder, "bad", ASK, b"\n", *DANGLING[1:])
    stored = path.read_bytes()
    folder.chmod(0o500)
    # Of root's rights those are taken that let it write everywhere.
    less = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        ended = subprocess.run(
            [*less, *COMMAND, "repair", "--fix", "-s", folder], env=env, capture_output=True, text=True, check=False
        )
    finally:
        folder.chmod(0o700)
    assert ended.returncode == 8, ended.stderr
    assert re.search(r"failed: .*[Pp]ermission denied", ended.stdout)
    assert path.read_bytes() == stored
    assert names(folder) == ["bad.jsonl"]


def whole(path: Path, old: dict[str, bytes]) -> bool:
    """Whether a session is the old one, or the new one and whole; raises where it is neither."""
    payload = path.read_bytes()
    if payload == old[path.name]:
        return False
    assert refused(payload, "log" if path.suffix == ".jsonl" else "document") == [], path
    assert TORN not in payload
    return True


def test_killed_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(4)
    halves = 0
    for number in range(20):
        folder, home = tmp_path / f"store{number}", tmp_path / f"home{number}"
        folder.mkdir()
        for n in range(6):
            log(folder, f"a{n}", *DANGLING)
            log(folder, f"b{n}", ASK, *DANGLING[1:], TORN)
            dangling(folder, f"c{n}")
        old = {p.name: p.read_bytes() for p in folder.iterdir()}
        process = subprocess.Popen(
            [*COMMAND, "repair", "--fix", "-q", "-s", folder], env=environment(home), stdout=subprocess.DEVNULL
        )
        begun = chance.randrange(len(old))
        while sum(1 for b in backups(home) for _ in b.iterdir()) < begun and process.poll() is None:
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.005))
        process.kill()
        process.wait(10)
        sessions = [folder / name for name in old]
        mended = [whole(path, old) for path in sessions]
        halves += any(mended) and not all(mended)
        copies = {p.name: p.read_bytes() for b in backups(home) for p in b.iterdir() if p.name in old}
        assert copies == {name: old[name] for name in copies}
        assert {p.name for p, new in zip(sessions, mended, strict=True) if new} <= set(copies)
        list(repair(FolderStore(folder), now_ms, Backup(now=now_ms(), root=tmp_path / "again")))
        assert all(whole(path, old) for path in sessions)
    assert halves >= 10, "most of the kills came in the midst of the work"


def test_interrupted_between_two_sessions(folder: Path, env: dict[str, str]) -> None:
    for n in range(60):
        log(folder, f"a{n}", *DANGLING)
    old = {p.name: p.read_bytes() for p in folder.iterdir()}
    process = subprocess.Popen(
        [*COMMAND, "repair", "--fix", "-s", folder], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not [p for p in folder.glob("*.jsonl") if p.read_bytes() != old[p.name]]:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    done_now = sum(whole(folder / name, old) for name in old)
    assert done_now == out.count(b"[fixed]") < 60
    assert f"interrupted: {done_now} sessions checked".encode() in err or done_now == 1
    assert b"untouched copies are in " in err


def test_results_survive_a_second_kind_of_writer(folder: Path, env: dict[str, str]) -> None:
    """A real result that comes after a repair wins at the next one."""
    path = log(folder, "s1", *DANGLING)
    done("--fix", "-s", folder, env=env)
    last = json.loads(path.read_bytes().splitlines()[-1])["id"]
    with path.open("ab") as file:
        file.write(json.dumps(entry("e9", last, "user", [result("t1", "42 files")])).encode() + b"\n")
    set_age(path, DAY)
    done("--fix", "-s", folder, env=env)
    assert b"[sessionctl]" not in path.read_bytes()
    assert b"42 files" in path.read_bytes()
    assert refused(path.read_bytes(), "log") == []


def test_what_is_only_reported_comes_in_the_order_of_keys(tmp_path: Path) -> None:
    for number in (7, 3, 9, 1, 5):
        (tmp_path / f"s{number}.json").write_text("{")
    done = run("repair", "-o", "ids", "-s", tmp_path)
    assert done.stdout.split() == ["s1", "s3", "s5", "s7", "s9"]
    assert re.findall(r"^s\d", run("repair", "-s", tmp_path).stdout, re.MULTILINE) == done.stdout.split()
