"""``sessionctl stats``: figures that add up, at every width, in every locale."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from rich.cells import cell_len
from terminal import DOCUMENTS, FIXTURES, LOGS, Terminal, environment, run

from sessionctl.model import Outline, Ref, Stamp
from sessionctl.ops.select import Context, summarise
from sessionctl.ops.stats import AGES, SIZES, TOP, gather
from sessionctl.stores import open_store

NOW = 1_796_083_200_000


def test_the_figures_add_up() -> None:
    for folder in (DOCUMENTS, LOGS, FIXTURES / "seepient-damaged" / "sessions"):
        found = json.loads(run("stats", "-s", folder, "-o", "json").stdout)
        files = [path for path in folder.iterdir() if path.suffix in (".json", ".jsonl")]
        assert found["sessions"] == len(files)
        assert found["bytes"] == sum(path.stat().st_size for path in files)
        for name in ("by_status", "by_kind", "by_owner", "by_tenant", "by_agent", "by_model", "ages", "sizes"):
            assert sum(count["sessions"] for count in found[name]) == found["sessions"], name
            assert sum(count["bytes"] for count in found[name]) == found["bytes"], name
        sizes = [row["size_bytes"] for row in found["largest"]]
        assert sizes == sorted((path.stat().st_size for path in files), reverse=True)[:TOP]
        ages = [row["last_activity_at"] for row in found["oldest"]]
        assert ages == sorted(ages)


def test_filters_narrow() -> None:
    found = json.loads(run("stats", "-s", DOCUMENTS, "--status", "interrupted", "-o", "json").stdout)
    assert [(count["name"], count["sessions"]) for count in found["by_status"]] == [("interrupted", 2)]
    none = run("stats", "-s", DOCUMENTS, "nobody*")
    assert (none.returncode, none.stdout) == (0, "")
    assert "no such sessions" in none.stderr


def test_bins_have_sharp_edges() -> None:
    def at(age: int | None, size: int) -> tuple[str, str]:
        from sessionctl.history import judge
        from sessionctl.ops.select import Summary

        stamp = Stamp((), size)
        outline = Outline("log", steps=())
        active = None if age is None else NOW - age
        one = Summary(Ref("s", "log"), stamp, outline, judge(outline), None, None, None, None, active, active, "mtime")
        found = gather([one], NOW)
        (age_bin,) = [count.name for count in found.ages if count.sessions]
        (size_bin,) = [count.name for count in found.sizes if count.sessions]
        return str(age_bin), str(size_bin)

    assert at(0, 0) == ("under 1 h", "under 1 KB")
    assert at(-1, 999) == ("in the future", "under 1 KB")
    assert at(None, 1000) == ("unknown", "1 to 10 KB")
    for (_, below), (name, _) in itertools.pairwise(AGES):
        assert at(below, 1)[0] == name
        assert at(below - 1, 1)[0] != name
    for (_, below), (name, _) in itertools.pairwise(SIZES):
        assert at(0, below)[1] == name
        assert at(0, below - 1)[1] != name


def test_the_largest_are_the_same_whatever_the_order() -> None:
    with open_store(DOCUMENTS) as store:
        context = Context.of(store, NOW)
        summaries = [summarise(store, record, context) for record in store.records()]
    forward, backward = gather(summaries, NOW), gather(reversed(summaries), NOW)
    assert [s.key for s in forward.largest] == [s.key for s in backward.largest]
    assert [s.key for s in forward.oldest] == [s.key for s in backward.oldest]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_at_a_terminal_nothing_wraps(width: int) -> None:
    with Terminal("stats", "-s", DOCUMENTS, size=(width, 50), env=environment(NO_COLOR="1")) as screen:
        assert screen.wait() == 0
        lines = screen.plain.splitlines()
    assert max(map(cell_len, lines[1:])) <= width
    assert "█" in screen.plain
    assert "\x1b[3" not in screen.text
    heads = [line for line in lines if "LARGEST" in line]
    assert ("OLDEST" in heads[0]) is (width >= 120), "beside each other where there is room"


def test_colour_and_ascii() -> None:
    with Terminal("stats", "-s", DOCUMENTS) as screen:
        screen.wait()
        assert "\x1b[32m" in screen.text
    plain = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    with Terminal("stats", "-s", DOCUMENTS, env=plain) as screen:
        screen.wait()
        assert "####" in screen.plain
        assert screen.text.isascii()
    piped = run("stats", "-s", DOCUMENTS, env=plain)
    assert piped.stdout.isascii()
    assert "####" in piped.stdout


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(
        json.dumps({"id": "s", "messages": [], "principalId": "\x1b[2J[red]x[/red]", "model": "m\u202e"})
    )
    for found in (run("stats", "-s", tmp_path).stdout, run("stats", "-s", tmp_path, "-o", "json").stdout):
        assert "[red]x[/red]" in found
        assert "\x1b" not in found
        assert "\u202e" not in found
    with Terminal("stats", "-s", tmp_path, env=environment(NO_COLOR="1")) as screen:
        screen.wait()
        assert "\\x1b[2J[red]x[/red]" in screen.plain
