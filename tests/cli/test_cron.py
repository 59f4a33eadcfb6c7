"""gc as a job: plans as files, metrics, one line for the log, and no terminal, home folder or locale."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from terminal import COMMAND, DOCUMENTS, LOGS, Terminal, environment, run

from sessionctl.errors import UsageError
from sessionctl.model import Ref
from sessionctl.ops import metrics, plans
from sessionctl.ops.gc import Outcome, Plan, Protection, Reason, Rules, Skip, plan_gc
from sessionctl.ops.select import Filter
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY

NOW = 1_796_083_200_000
BARE = ("/usr/bin/env", "-i", f"PYTHONPATH={environment()['PYTHONPATH']}")
AGED = ("--older-than", "1s", "--min-idle", "0")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DOCUMENTS, tmp_path / "store"))


def saved(store: Path, tmp_path: Path, *rules: str) -> Path:
    plan = tmp_path / "plan.json"
    found = run("gc", "-s", store, *(rules or AGED), "--save-plan", plan)
    assert found.returncode == 0, found.stderr
    return plan


def names(store: Path) -> set[str]:
    return {path.name for path in store.iterdir() if path.suffix in (".json", ".jsonl")}


def test_a_plan_is_written_and_nothing_is_deleted(store: Path, tmp_path: Path) -> None:
    before = names(store)
    plan = saved(store, tmp_path)
    assert names(store) == before
    assert plan.stat().st_mode & 0o777 == 0o600
    value = json.loads(plan.read_text())
    assert value["store"] == os.path.realpath(store)
    assert {f"{s['key']}.json" for s in value["sessions"]} <= before
    assert all(s["reason"] and s["version"] and s["size"] for s in value["sessions"])


def test_a_plan_deletes_what_it_lists_and_is_still_so(store: Path, tmp_path: Path) -> None:
    plan = saved(store, tmp_path, *AGED, "--status", "ok")
    listed = {f"{s['key']}.json" for s in json.loads(plan.read_text())["sessions"]}
    assert len(listed) > 4
    (store / "legacy-0001.json").write_bytes((store / "legacy-0001.json").read_bytes() + b" ")
    (store / "user-alice-session.json").unlink()
    shutil.copy(DOCUMENTS / "inline-results.json", store / "new-one.json")
    before = names(store)
    refused = run("gc", "-s", store, "--plan", plan, "--min-idle", "0")
    assert (refused.returncode, "needs --yes" in refused.stderr, names(store)) == (2, True, before)
    found = run("gc", "-s", store, "--plan", plan, "--yes", "--min-idle", "0", "-o", "json")
    assert found.returncode == 0, found.stderr
    assert names(store) == before - listed | {"legacy-0001.json"}
    skipped = {s["key"]: s["reason"] for s in json.loads(found.stdout)["skipped"]}
    assert set(skipped) == {"legacy-0001", "user-alice-session"}
    again = run("gc", "-s", store, "--plan", plan, "--yes", "--min-idle", "0", "-o", "json")
    assert json.loads(again.stdout)["deleted"] == 0


def test_a_plan_is_no_way_around_protection(tmp_path: Path) -> None:
    store = Path(shutil.copytree(LOGS, tmp_path / "s"))
    plan = saved(store, tmp_path)
    found = json.loads(run("gc", "-s", store, "--plan", plan, "--yes", "--min-idle", "5000d", "-o", "json").stdout)
    assert found["deleted"] == 0
    assert all("changed" in s["reason"] or "approval" in s["reason"] for s in found["skipped"])


def test_a_dry_run_of_a_plan_tells_what_changed_and_what_is_gone(store: Path, tmp_path: Path) -> None:
    plan = saved(store, tmp_path)
    changed, gone, *_ = sorted(names(store))
    (store / changed).write_bytes((store / changed).read_bytes() + b"\n")
    (store / gone).unlink()
    call = ("gc", "-s", store, "--plan", plan, "--min-idle", "0", "-o", "json")
    dry = run(*call, "--dry-run")
    found = json.loads(dry.stdout)
    skipped = {skip["key"]: skip["reason"] for skip in found["skipped"]}
    assert skipped == {
        changed[:-5]: "changed meanwhile: it is not as it was when the plan was made",
        gone[:-5]: "gone meanwhile",
    }
    assert not {changed[:-5], gone[:-5]} & set(found["keys"])
    assert set(found["reasons"]) == set(found["keys"])
    done = run(*call, "--yes")
    real = json.loads(done.stdout)
    assert real["deleted"] == len(found["keys"]) == 13
    assert (real["matched"], real["skipped"]) == (found["matched"], found["skipped"])
    assert f"gc: skipped {gone[:-5]}: gone meanwhile" in done.stderr, "few are named in a log"


def test_a_plan_does_not_forget_the_archive_it_cannot_hold(store: Path, tmp_path: Path) -> None:
    found = run("gc", "-s", store, *AGED, "--archive", tmp_path / "a", "--save-plan", tmp_path / "p")
    assert (found.returncode, (tmp_path / "p").exists()) == (2, False)
    assert "--plan FILE --archive STORE" in found.stderr


def test_a_rule_that_adds_to_another_is_told(store: Path) -> None:
    assert "--keep-last 2 is a rule of its own" in run("gc", "-s", store, *AGED, "--keep-last", "2", "-n").stderr
    assert "rule of its own" not in run("gc", "-s", store, "--keep-last", "2", "-n").stderr


def change(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan.update(fields)


def change_first(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["sessions"][0].update(fields)


@pytest.mark.parametrize(
    "spoil",
    [
        change(format="other"),
        change(extra=1),
        change(store="/etc"),
        change(store="/etc/"),
        change(made_at=-1),
        change(sessions={}),
        change_first(key="../../etc/passwd"),
        change_first(key="/etc/passwd"),
        change_first(key="a/../b"),
        change_first(key="x\0y"),
        change_first(key=""),
        change_first(key="k" * 5000),
        change_first(kind="link"),
        change_first(version=[]),
        change_first(version=[1]),
        change_first(version=[{"hex": "zz"}, 1, 1]),
        change_first(size=-1),
        change_first(size="1"),
        change_first(strays=["../../etc/passwd"]),
        lambda plan: plan["sessions"].append(plan["sessions"][0]),
    ],
)
def test_a_plan_of_a_stranger_is_refused(
    store: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    plan = tmp_path / "plan.json"
    with open_store(store) as opened:
        made = plan_gc(opened, Rules(older_than=1), Filter(), Protection(min_idle=0), NOW)
        plans.save(str(plan), opened, made)
        assert len(plans.load(str(plan), opened, NOW).actions) == len(made.actions) > 9
        value = json.loads(plan.read_text())
        spoil(value)
        plan.write_text(json.dumps(value))
        with pytest.raises(UsageError, match="plan"):
            plans.load(str(plan), opened, NOW)


def test_a_plan_that_names_a_file_elsewhere_deletes_nothing(store: Path, tmp_path: Path) -> None:
    plan = saved(store, tmp_path)
    value = json.loads(plan.read_text())
    value["sessions"][3]["key"] = "../../etc/passwd"
    plan.write_text(json.dumps(value))
    before = names(store)
    found = run("gc", "-s", store, "--plan", plan, "--yes", "--min-idle", "0", "--force")
    assert (found.returncode, found.stdout) == (2, "")
    assert "session 4: not a valid session id: '../../etc/passwd' is a path" in found.stderr
    assert names(store) == before


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 99999, b"null"])
def test_no_plan_at_all(store: Path, tmp_path: Path, content: bytes) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(content)
    assert run("gc", "-s", store, "--plan", plan, "--yes").returncode == 2
    plan.unlink()
    assert run("gc", "-s", store, "--plan", plan, "--yes").returncode == 2
    plan.symlink_to("/dev/zero")
    assert run("gc", "-s", store, "--plan", plan, "--yes").returncode == 2


def test_what_does_not_go_with_a_plan(store: Path, tmp_path: Path) -> None:
    plan = saved(store, tmp_path)
    for wrong in (("--older-than", "1d"), ("--status", "ok"), ("legacy*",), ("--limit", "1"), ("--max-delete", "5%")):
        assert run("gc", "-s", store, "--plan", plan, "--yes", *wrong).returncode == 2
    many = run("gc", "-s", store, "--plan", plan, "--yes", "--max-delete", "2")
    assert (many.returncode, "nothing was deleted" in many.stderr) == (2, True)
    nowhere = run("gc", "-s", store, *AGED, "--save-plan", tmp_path / "none" / "plan.json")
    assert (nowhere.returncode, "there is no folder" in nowhere.stderr) == (2, True)


def test_plans_of_other_stores(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis")
    try:
        for url in (server.url(), f"sqlite:///{tmp_path}/s.db"):
            with open_store(url) as store:
                for number in range(3):
                    payload = (DOCUMENTS / "legacy-0001.json").read_bytes().replace(b"legacy-0001", b"s%d" % number)
                    store.put(Ref(f"s{number}", "document"), payload, expect=None)
            plan = tmp_path / "plan"
            assert run("gc", "-s", url, *AGED, "--save-plan", plan).returncode == 0
            with open_store(url) as store:
                store.put(Ref("s1", "document"), payload, expect=ANY)
            done = run("gc", "-s", url, "--plan", plan, "--yes", "-o", "json")
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert (found["deleted"], [s["key"] for s in found["skipped"]]) == (2, ["s1"])
    finally:
        server.stop()


def samples(path: Path) -> dict[str, float]:
    """The samples of a metrics file, read as strictly as Prometheus reads them."""
    found: dict[str, float] = {}
    typed: set[str] = set()
    text = path.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split(" ")[2])
        elif not line.startswith("# HELP "):
            match = re.fullmatch(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\} ([0-9.]+)', line)
            assert match, line
            assert match[1] in typed
            reason = re.search(r'reason="([^"]*)"', match[2])
            found[match[1].removeprefix("sessionctl_gc_") + (f":{reason[1]}" if reason else "")] = float(match[3])
    return found


def test_metrics_tell_what_was_done(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "gc.prom"
    call = ("gc", "-s", store, *AGED, "--yes", "--metrics", file)
    size = sum((store / name).stat().st_size for name in names(store))
    (store / "seconds.json").write_bytes(
        (DOCUMENTS.parents[1] / "seepient-damaged/sessions/seconds-not-ms.json").read_bytes()
    )
    os.utime(store / "seconds.json", (1_700_000_000, 1_700_000_000))
    assert run(*call, "--dry-run").returncode == 0
    assert not file.exists(), "a dry run is no run"
    assert run(*call).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o644
    first = samples(file)
    assert first["deleted_sessions"] == 15
    assert first["freed_bytes"] == size
    assert first["skipped_sessions:uncertain-age"] == 1
    assert first["scanned_sessions"] == 16
    assert first["exit_code"] == 0
    assert first["last_success_timestamp_seconds"] == first["last_run_timestamp_seconds"]
    failed = run(*call, "--max-delete", "0", "--force", "-o", "json")
    assert failed.returncode == 2
    assert json.loads(failed.stderr)["error"]["code"] == "too-many", "told from a usage error by its code"
    second = samples(file)
    assert second["exit_code"] == 2
    assert second["last_success_timestamp_seconds"] == first["last_success_timestamp_seconds"]
    assert second["last_run_timestamp_seconds"] > first["last_run_timestamp_seconds"]
    assert list(tmp_path.glob("gc.prom?*")) == []


def test_metrics_of_a_store_that_does_not_answer(tmp_path: Path) -> None:
    file = tmp_path / "gc.prom"
    found = run("gc", "-s", "redis://me:hunter2@127.0.0.1:1/0", *AGED, "--yes", "--metrics", file)
    assert found.returncode == 7
    assert samples(file)["exit_code"] == 7
    assert "last_success_timestamp_seconds" not in samples(file)
    assert "hunter2" not in file.read_text() + found.stderr


def test_metrics_are_escaped_and_the_last_success_is_not_taken_from_elsewhere() -> None:
    skipped = [Skip(Ref("a", "log"), Reason("locked", "held")), Skip(Ref("b", "log"), "for some reason")]
    plan = Plan("s", 0, 2, (), tuple(skipped))
    made = metrics.text('a"b\\c\nd', plan, Outcome(skipped=skipped), code=8, seconds=1, now=5000, succeeded="4.5")
    assert 'store="a\\"b\\\\c\\nd",reason="locked"} 1' in made
    assert 'reason="other"} 1' in made
    assert metrics.last_success(made.encode(), 'a"b\\c\nd') == "4.5"
    assert metrics.last_success(made.encode(), "a") is None
    assert metrics.last_success(b"\xff" * 100, "a") is None


def test_one_line_for_the_log(store: Path) -> None:
    found = run("gc", "-s", store, *AGED, "--yes")
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z gc store=\S+ scanned=15 matched=15 deleted=15 .*failed=0", line)
    nothing = run("gc", "-s", store, *AGED, "--yes")
    assert len(nothing.stderr.splitlines()) == 1
    assert run("gc", "-s", store, *AGED, "--yes", "--quiet").stderr == ""


def test_at_a_terminal_it_is_told_to_people(store: Path) -> None:
    with Terminal("gc", "-s", store, *AGED, "--limit", "2") as screen:
        screen.expect("Delete 2 sessions")
        screen.send("y\n")
        assert screen.wait() == 0
        assert "deleted 2 sessions" in screen.plain
        assert "scanned=" not in screen.plain


def test_from_cron_with_nothing(store: Path) -> None:
    found = subprocess.run(
        [
            "/usr/bin/env",
            "-i",
            "LANG=C",
            f"PYTHONPATH={environment()['PYTHONPATH']}",
            *COMMAND,
            "gc",
            "-s",
            str(store),
            "--older-than",
            "1s",
            "--yes",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")
    assert len(found.stderr.splitlines()) == 1
    assert names(store) == set()
    no_home = subprocess.run(
        [
            "/usr/bin/env",
            "-i",
            f"PYTHONPATH={environment()['PYTHONPATH']}",
            *COMMAND,
            "gc",
            "--older-than",
            "1d",
            "--yes",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert no_home.returncode == 2
    assert "HOME is not set" in no_home.stderr


def test_two_at_once(store: Path) -> None:
    with open_store(store) as held, held.lock_store("gc"):
        found = run("gc", "-s", store, *AGED, "--yes")
    assert found.returncode == 75


def test_the_plan_of_an_application_table(tmp_path: Path) -> None:
    """A table that the application made: a row's version is what it holds, not a counter of ours."""
    database = tmp_path / "app.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table sessions (id text primary key, messages text, updated_at timestamp)")
        messages = json.dumps([{"id": "m", "role": "user", "content": "x", "timestamp": 1_790_000_000_000}])
        connection.execute("insert into sessions values ('a', ?, '2026-09-21 14:13:20')", (messages,))
        connection.commit()
    plan = tmp_path / "plan"
    assert run("gc", "-s", f"sqlite:///{database}", *AGED, "--save-plan", plan).returncode == 0
    found = run("gc", "-s", f"sqlite:///{database}", "--plan", plan, "--yes", "-o", "json")
    assert json.loads(found.stdout)["deleted"] == 1
