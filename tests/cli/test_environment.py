"""The world around: locales, missing HOME, dumb terminals, closed and full outputs, other users, full disks, speed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stored import DAY, HOUR, document, log, message, names, state
from tests.terminal import COMMAND, ROOT, Terminal, environment, run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, mounts a small disk")


@pytest.fixture
def talk(folder: Path) -> Path:
    document(folder, "s1", messages=[message("user", "žluť 🔥 漢字", 1_750_000_000_000)])
    return folder


@pytest.mark.parametrize(
    "locale",
    [
        {"LANG": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"},
    ],
)
@pytest.mark.parametrize("command", [["list"], ["show", "s1"], ["list", "-o", "csv"]])
def test_locales(talk: Path, command: list[str], locale: dict[str, str]) -> None:
    """What the encoding lacks is escaped; sessions are read as UTF-8 whatever the locale says."""
    done = subprocess.run(
        [*COMMAND, *command, "-s", talk], capture_output=True, env=environment() | locale, check=False
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    text = done.stdout.decode()
    assert "žluť 🔥 漢字" in text or r"\u017elu\u0165 \U0001f525 \u6f22\u5b57" in text


def test_no_home(talk: Path, tmp_path: Path) -> None:
    assert run("list", env=environment(SESSIONCTL_STORE=str(talk))).returncode == 0
    assert run("list", env=environment(SEEPIENT_SESSION_DIR=str(talk))).returncode == 0
    done = run("list", env=environment())
    assert (done.returncode, done.stdout) == (2, "")
    assert "HOME is not set" in done.stderr
    done = run("list", env=environment(tmp_path))
    assert done.returncode == 7
    assert str(tmp_path / ".seepient" / "sessions") in done.stderr
    assert names(tmp_path) == ["sessions"]


def test_the_default_store_is_seepients_folder(tmp_path: Path) -> None:
    place = tmp_path / ".seepient" / "sessions"
    place.mkdir(parents=True)
    document(place, "s1")
    assert run("list", "-o", "ids", env=environment(tmp_path)).stdout == "s1\n"
    assert run("list", "-o", "ids", "-s", "file", env=environment(tmp_path)).stdout == "s1\n"


def test_the_store_that_is_named_first_counts(folder: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("option", "variable", "seepient")):
        place = tmp_path / name
        place.mkdir()
        document(place, f"s{number}")
    env = environment(
        tmp_path, SESSIONCTL_STORE=str(tmp_path / "variable"), SEEPIENT_SESSION_DIR=str(tmp_path / "seepient")
    )
    assert run("list", "-o", "ids", "-s", tmp_path / "option", env=env).stdout == "s0\n"
    assert run("list", "-o", "ids", env=env).stdout == "s1\n"
    del env["SESSIONCTL_STORE"]
    assert run("list", "-o", "ids", env=env).stdout == "s2\n"


@pytest.mark.parametrize(
    ("extra", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_at_a_terminal(talk: Path, extra: dict[str, str], colour: bool) -> None:
    for command in (["list"], ["show", "s1"]):
        with Terminal(*command, "-s", talk, env=environment(**extra)) as screen:
            assert screen.wait() == 0
        assert bool(re.search(r"\x1b\[[0-9;]*3\dm", screen.text)) is colour
        assert colour or extra == {"NO_COLOR": "1"} or "\x1b" not in screen.text


def test_no_colours_in_a_pipe(talk: Path) -> None:
    for command in (["list"], ["show", "s1"], ["gc", "--older-than", "1h", "-n"], ["show", "nope"], ["--help"]):
        done = run(*command, *(["-s", talk] if command != ["--help"] else []))
        assert "\x1b" not in done.stdout + done.stderr


def test_columns_are_obeyed(talk: Path) -> None:
    document(talk, "long", messages=[message("user", "word " * 60)])
    with Terminal("list", "-s", talk, env=environment(COLUMNS="100"), size=(80, 24)) as screen:
        screen.wait()
    assert max(map(len, screen.plain.splitlines())) == 100


# --- closed and full outputs ---


@pytest.mark.parametrize("command", ["list -o jsonl", "show s1", "show s1 --full", "show s1 --raw", "list -o csv"])
def test_a_reader_that_goes_away(folder: Path, command: str) -> None:
    document(folder, "s1", messages=[message("user", "line\n" * 9, 1_750_000_000_000)] * 5000)
    for number in range(300):
        document(folder, f"t{number}")
    line = f"{' '.join(COMMAND)} {command} -s {folder} | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr == ""
    assert done.stdout in ("0\n", "141\n")


@pytest.mark.parametrize("command", [["list"], ["show", "s1"], ["list", "-o", "json"], ["show", "s1", "--raw"]])
def test_an_output_that_is_full(talk: Path, command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *command, "-s", talk], stdout=full, stderr=subprocess.PIPE, text=True, env=environment()
        )
    assert done.returncode == 7
    assert "cannot write the output: no space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(talk: Path, closed: str) -> None:
    before = state(talk)
    lost = 7 if ">&-" in closed.split() else 0
    for command, code in (("list", lost), ("show s1", lost), ("show nope", 3), ("gc --older-than 1h", 2)):
        line = f"{' '.join(COMMAND)} {command} -s {talk} {closed}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment())
        assert done.returncode == code, (command, done.stderr)
        assert "Traceback" not in done.stderr
        told = "cannot write the output: it is closed" in done.stderr
        assert told is (code == 7 and "2>" not in closed)
        assert ">&-" not in closed or "2>" in closed or done.stdout == ""
    assert state(talk) == before


# --- other users and full disks ---


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user can reach."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT)


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing here changes the user")
def test_as_somebody_who_may_not(public: Path) -> None:
    if as_nobody("--version").returncode:
        pytest.skip("another user cannot run this interpreter")
    document(public, "mine", age=9 * DAY).chmod(0o644)
    document(public, "secret", age=9 * DAY).chmod(0o600)
    (public / "private").mkdir(mode=0o700)
    before = state(public)
    listed = as_nobody("list", "-o", "json", "-s", public)
    assert listed.returncode == 8
    assert "1 session could not be read: secret (permission denied)" in listed.stderr
    rows = {row["key"]: row for row in json.loads(listed.stdout)}
    assert (rows["mine"]["status"], rows["secret"]["messages"]) == ("ok", None)
    shown = as_nobody("show", "mine", "secret", "-s", public)
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (8, "mine")
    assert "cannot read secret: permission denied" in shown.stderr
    assert as_nobody("show", "secret", "-s", public).returncode == 7
    assert as_nobody("delete", "secret", "-y", "-s", public).returncode == 8, "not in use: out of reach"
    for command in (["gc", "--older-than", "1h", "-y"], ["delete", "mine", "-y"]):
        done = as_nobody(*command, "-s", public)
        assert done.returncode in (7, 8)
        assert "ermission denied" in done.stderr
        assert "Traceback" not in done.stderr
    for command in (["list"], ["gc", "--older-than", "1h", "-y"], ["show", "mine"]):
        done = as_nobody(*command, "-s", public / "private")
        assert done.returncode == 7
        assert "permission denied" in done.stderr
        assert as_nobody(*command, "-s", public / "private" / "below").returncode == 7
    assert state(public) == before


@needs_root
def test_a_full_disk_at_the_archive(folder: Path, tmp_path: Path) -> None:
    """A tmpfs of 64 KB: what fits is moved there, the rest stays, and nothing lies there by halves."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("no mount here")
    try:
        payloads = {}
        for number in range(5):
            path = document(folder, f"s{number}", age=(20 - number) * DAY, messages=[message("user", "x" * 20_000)])
            payloads[path.name] = path.read_bytes()
        done = run("gc", "--older-than", "24h", "-y", "-o", "json", "--archive", small, "-s", folder)
        assert done.returncode == 8
        found = json.loads(done.stdout)
        assert "no space left" in found["failed"][0]["error"]
        kept = {path.name: path.read_bytes() for path in small.iterdir()}
        assert 0 < len(kept) == found["deleted"] < 5
        left = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert kept | left == payloads
        assert not set(kept) & set(left)
    finally:
        subprocess.run(["umount", small], check=True)


@needs_root
def test_a_full_disk_can_be_cleaned(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True).returncode:
        pytest.skip("no mount here")
    try:
        document(small, "old", age=9 * DAY)
        with (small / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError) as full:
            while True:
                filler.write(b"x" * 4096)
        assert full.value.errno == errno.ENOSPC
        assert run("gc", "--older-than", "24h", "-y", "-s", small).returncode == 0
        assert names(small) == ["filler"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_limit_on_file_sizes(folder: Path, tmp_path: Path) -> None:
    document(folder, "big", age=9 * DAY, messages=[message("user", "x" * 50_000)])
    document(folder, "small", age=9 * DAY)
    line = f"ulimit -f 8; {' '.join(COMMAND)} gc --older-than 24h -y -s {folder} --archive {tmp_path / 'a'}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment())
    assert done.returncode == 8, done.stderr
    assert "file too large" in done.stderr
    assert names(folder) == ["big.json"]
    assert names(tmp_path / "a") == ["small.json"]


# --- memory and size ---


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from Linux's /proc")
def test_memory_does_not_follow_the_bytes(folder: Path) -> None:
    """A log of 120 MB is listed by a process that may have less than half of that to itself."""
    line = json.dumps({"id": "e{}", "parentId": None, "message": {"role": "user", "content": "x" * 1_000_000}}).encode()
    with (folder / "big.jsonl").open("wb") as file:
        for number in range(120):
            file.write(line.replace(b"e{}", b"e%d" % number, 1) + b"\n")
    script = (
        "import runpy, sys\n"
        "try: runpy.run_module('sessionctl', run_name='__main__')\n"
        # Not ru_maxrss: that begins with what the process that started this one had.
        "finally: print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    arguments = [COMMAND[0], "-c", script, "list", "-o", "json", "-s", folder]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment(), cwd=ROOT, check=True)
    assert json.loads(done.stdout)[0]["messages"] is not None
    assert int(done.stderr.split()[-1]) < 80_000, "KB"


def test_many_sessions_at_once(folder: Path) -> None:
    for number in range(600):
        log(folder, f"s{number}", age=HOUR)
    done = run("list", "-o", "jsonl", "-s", folder)
    assert len(done.stdout.splitlines()) == 600
    assert run("gc", "--older-than", "1m", "-y", "--max-delete", "100%", "-s", folder).returncode == 0
    assert names(folder) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["show", "s1", "--last", "2"],
        ["gc", "--older-than", "1d", "--dry-run"],
        ["repair", "--exit-zero"],
        ["tail", "-n", "2", "s1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_loads_only_what_it_uses(talk: Path, arguments: list[str]) -> None:
    """What takes a tenth of a second to load, and more: pydantic (for values that need it), clients of servers."""
    program = (
        "import sys\nfrom sessionctl.cli import call\ncode = call(sys.argv[1:])\n"
        "heavy = ('pydantic', 'redis', 'sqlalchemy', 'asyncio', 'watchfiles', 'rich.console', 'tomllib')\n"
        "print(code, *(name for name in heavy if name in sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments, "-s", str(talk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "0"


def test_no_cycles_are_looked_for(talk: Path) -> None:
    """Neither among the rows nor on the way out, where the interpreter would go through all there is."""
    program = (
        "import atexit, gc, sys; counts = []; gc.callbacks.append(lambda *_: counts.append(len(gc.get_objects())));"
        "from sessionctl.__main__ import main; counts.clear();"
        "atexit.register(lambda: print(counts, len(gc.get_objects()), gc.get_freeze_count() > 1000)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "list", "-o", "ids", "-s", talk],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    id_, counts = done.stdout.splitlines()
    collections, left, frozen = counts.rsplit(maxsplit=2)
    assert (id_, collections, frozen) == ("s1", "[]", "True")
    assert int(left) < 1000
