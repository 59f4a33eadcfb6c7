"""Cases 97 to 127: ages, units, clocks, dry runs and questions of gc and delete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessionctl.model import Ref
from sessionctl.stores.folder import FolderStore
from tests.stored import DAY, HOUR, MINUTE, document, log, names, now_ms, set_age, state
from tests.terminal import run

GC = ("gc", "--older-than", "24h")


def collected(folder: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run(*GC, "-o", "json", *arguments, "-s", folder)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_case_097_the_age_is_not_the_files_time(folder: Path) -> None:
    set_age(document(folder, "s1", age=MINUTE), 40 * DAY)
    assert collected(folder, "-n")["keys"] == []
    assert collected(folder, "-y")["deleted"] == 0
    assert names(folder) == ["s1.json"]


def test_case_099_reading_changes_nothing(folder: Path, tmp_path: Path) -> None:
    document(folder, "s1", age=0).chmod(0o444)
    log(folder, "s2").chmod(0o444)
    before = state(tmp_path)
    for command in (["list"], ["show", "s1"], ["tail", "s2", "-n", "1"], [*GC, "-n"], ["repair", "s1", "--dry-run"]):
        run(*command, "-s", folder)
    assert state(tmp_path) == before


def test_case_101_no_mass_deletion_without_a_word(folder: Path) -> None:
    for number in range(30):
        document(folder, f"old{number}", age=10 * DAY)
    document(folder, "new", age=0)
    done = run(*GC, "-s", folder)
    assert done.returncode == 2
    assert "30 sessions, " in done.stderr
    assert "last active before 2" in done.stderr
    assert len(names(folder)) == 31
    done = run(*GC, "-y", "-v", "-s", folder)
    assert len(done.stdout.splitlines()) == 30
    assert names(folder) == ["new.json"]


def test_case_103_a_session_in_use(folder: Path) -> None:
    """With LoopEngine's lock in Redis, tests/stores/redis holds the same."""
    document(folder, "s1", age=2 * DAY)
    with FolderStore(folder) as store, store.lock(Ref("s1", "document"), 0) as lease:
        found = collected(folder, "-y")
        lease.check()
    assert found["skipped"][0]["reason"].startswith("locked by ")
    assert names(folder) == ["s1.json"]


def test_case_107_a_session_that_was_just_written(folder: Path) -> None:
    """DESIGN.md: protected for a minute, exit code 6; --force goes on."""
    document(folder, "s1", age=0)
    done = run("delete", "s1", "-y", "-s", folder)
    assert done.returncode == 6
    assert "skipped s1: changed 0 s ago" in done.stderr
    assert names(folder) == ["s1.json"]
    assert run("delete", "s1", "-y", "--force", "-s", folder).returncode == 0


@pytest.mark.parametrize("span", ["0h", "-1h", "", "0"])
def test_case_109_zero_is_no_retention(folder: Path, span: str) -> None:
    document(folder, "s1", age=HOUR)
    assert run("gc", f"--older-than={span}", "-y", "-s", folder).returncode == 2
    assert names(folder) == ["s1.json"]


@pytest.mark.parametrize("span", ["12x", "10", "1y2z", "24H", "1.5", "h"])
def test_case_111_there_is_no_fallback_unit(folder: Path, span: str) -> None:
    document(folder, "s1", age=2 * DAY)
    done = run("gc", "--older-than", span, "-n", "-s", folder)
    assert done.returncode == 2
    assert "90s, 30m, 24h, 7d, 2w" in done.stderr


def test_case_113_seconds_instead_of_milliseconds(folder: Path) -> None:
    """DESIGN.md: kept, and said as skipped; exit code 0, since a nightly gc did its work."""
    seconds = now_ms() // 1000
    set_age(document(folder, "s1", createdAt=seconds, updatedAt=seconds, messages=[]), 9 * DAY)
    assert "timestamp-in-seconds" in run("list", "-s", folder).stdout
    assert collected(folder, "-y")["skipped"] == [
        {"key": "s1", "reason": "its age is uncertain: updatedAt is not in ms"}
    ]
    assert names(folder) == ["s1.json"]


def test_case_115_a_time_in_the_future(folder: Path) -> None:
    document(folder, "s1", age=-3650 * DAY)
    document(folder, "s2", age=MINUTE)
    done = run("list", "-s", folder)
    assert "lies in the future" in next(line for line in done.stdout.splitlines() if line.startswith("s1"))
    assert "lies in the future" in collected(folder, "-n")["skipped"][0]["reason"]


def test_case_117_a_time_without_a_zone(folder: Path) -> None:
    document(folder, "s1", createdAt="2024-01-01T00:00:00", updatedAt="2024-01-01T00:00:00", messages=[])
    document(folder, "s2", age=2 * DAY)
    set_age(folder / "s1.json", 9 * DAY)
    found = collected(folder, "-n")
    assert found["keys"] == ["s2"]
    assert found["skipped"][0]["key"] == "s1"


def test_case_119_mixed_time_formats(folder: Path) -> None:
    for key, at in (("s1", "2026-01-02T00:00:00Z"), ("s2", 1_767_225_600_000), ("s3", "1767139200000")):
        set_age(document(folder, key, createdAt=1, updatedAt=at, messages=[]), 900 * DAY)
    rows = json.loads(run("list", "-o", "json", "-s", folder).stdout)
    assert [row["key"] for row in rows] == ["s1", "s2", "s3"]
    assert ["bad-timestamp" in row["findings"] for row in rows] == [True] * 3


def test_case_121_a_start_of_an_id_deletes_no_crowd(folder: Path) -> None:
    for key in ("s1", "s10", "s11", "s100", "session-1", "session-2"):
        document(folder, key)
    assert run("delete", "s1", "-y", "-s", folder).returncode == 0
    assert "s1.json" not in names(folder)
    left = names(folder)
    assert run("delete", "s", "-y", "-s", folder).returncode == 3
    assert run("delete", "session", "-y", "-s", folder).returncode == 4
    assert names(folder) == left


def test_case_123_all_parts_of_a_session_go(folder: Path) -> None:
    """And nothing of others. (A document and a log of one key in Redis: tests/stores/redis.)"""
    document(folder, "s1")
    log(folder, "s1")
    document(folder, "s1-child")
    (folder / "s1.json.tmp.1750000000000").write_bytes(b"{")
    (folder / "s1-child.json.tmp.1750000000000").write_bytes(b"{")
    assert run("delete", "s1", "-y", "-s", folder).returncode == 0
    assert names(folder) == ["s1-child.json", "s1-child.json.tmp.1750000000000"]


def test_case_125_a_dry_run_tells_the_truth(folder: Path) -> None:
    document(folder, "s1", age=2 * DAY)
    document(folder, "s2", age=2 * DAY)
    dry = run(*GC, "-n", "-s", folder)
    assert "would delete 2 sessions, 4 messages" in dry.stderr
    assert names(folder) == ["s1.json", "s2.json"]
    assert collected(folder, "-y")["deleted"] == 2


def test_case_127_a_question_without_a_terminal(folder: Path) -> None:
    document(folder, "s1")
    done = run("delete", "s1", "-s", folder)
    assert done.returncode == 2
    assert "needs --yes when there is no terminal" in done.stderr
    assert names(folder) == ["s1.json"]
