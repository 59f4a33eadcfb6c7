"""Every crash point of everything that writes: stopped there, or met by an error, then looked at, then run again.

python -m tests.trust.crash            # every fault at every call of every scene, and the totals
python -m tests.trust.crash kill gc    # one fault, the scenes of one name
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import Server, server
from tests.stored import DAY, HOUR, call, document, entry, log, message, result, set_age
from tests.terminal import environment
from tests.trust.inject import APPLIES, Ran, Runner

CODES = frozenset((0, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130, 141))
"""Exit codes of DESIGN.md but 1, which is a bug."""
_RANDOM = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|\b1[78]\d{11}\b")
_SESSION = re.compile(r".+\.jsonl?\Z", re.DOTALL)
_KEYS = {"document": b"seepient:session:", "log": b"session-log:"}

Contents = dict[tuple[str, str], bytes]
"""By place and name, what is stored, without what is random in it: ids that are drawn and times."""


def plain(payload: bytes) -> bytes:
    """A payload without what differs from run to run."""
    return _RANDOM.sub(b"?", payload)


class Place:
    """Where one run takes place: folders below a root, and an empty Redis."""

    def __init__(self, root: Path, redis: Server) -> None:
        self.root, self.redis = root, redis
        self.store, self.archive, self.target = root / "store", root / "archive", root / "target"
        self.home = root / "home"
        self.env = environment(self.home, XDG_STATE_HOME=str(self.home))
        self.url = redis.url()
        self.client = redis.client(single_connection_client=True)
        self.client.execute_command("CLIENT", "NO-TOUCH", "ON")
        # What former tests left open would be waited for after every fault.
        self.client.client_kill_filter(_type="normal", skipme=True)

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.store.mkdir(parents=True, mode=0o700)
        self.home.mkdir()
        self.client.flushall()

    def folders(self) -> dict[str, Path]:
        """All folders with sessions in them, the folders of backups each under one name."""
        found = {name: self.root / name for name in ("store", "archive", "target") if (self.root / name).is_dir()}
        backups = self.home / "sessionctl" / "backups"
        if backups.is_dir():
            found |= {f"backup{number}": path for number, path in enumerate(sorted(backups.iterdir()))}
        return found

    def contents(self) -> Contents:
        """Every session, read without the product."""
        found: Contents = {}
        for place, folder in self.folders().items():
            for path in folder.iterdir():
                if _SESSION.match(path.name) and path.is_file():
                    found[place.rstrip("0123456789"), path.name] = plain(path.read_bytes())
        for name in sorted(self.root.glob("*.file")):
            whole = name.read_bytes().endswith(b"\n")
            found["", name.name] = b"whole" if whole else name.read_bytes()
        self._settle()
        for kind, prefix in _KEYS.items():
            for key in self.client.keys(prefix + b"*"):  # type: ignore[union-attr]
                value = (
                    self.client.get(key)
                    if kind == "document"
                    else b"".join(item + b"\n" for item in self.client.lrange(key, 0, -1))  # type: ignore[union-attr]
                )
                found["redis", key.decode()] = plain(value)  # type: ignore[arg-type]
        return found

    def _settle(self) -> None:
        """Wait until the server has read all that the dead sent it."""
        end = time.monotonic() + 5
        while len(self.client.client_list()) > 1 and time.monotonic() < end:  # type: ignore[arg-type]
            time.sleep(0.001)

    def strays(self) -> dict[Path, bytes]:
        """Every other file beside sessions."""
        return {
            path: plain(path.read_bytes())
            for folder in (*self.folders().values(), self.root)
            for path in folder.iterdir()
            if path.is_file() and not _SESSION.match(path.name) and path.suffix != ".file"
        }

    def litter(self) -> dict[Path, bytes]:
        """``strays``, but not those in backups, which hold temporary files as they were."""
        return {path: payload for path, payload in self.strays().items() if self.home not in path.parents}

    def odd_keys(self) -> list[bytes]:
        """Keys that are neither sessions nor locks that end."""
        return [
            key
            for key in self.client.scan_iter()
            if not key.startswith(tuple(_KEYS.values()))
            and not (b"-lock:" in key and 0 < self.client.pttl(key) <= 30_000)  # type: ignore[operator]
        ]

    def expire_locks(self) -> None:
        """What the passing of 30 s does."""
        for key in self.client.keys("*-lock:*"):  # type: ignore[union-attr]
            self.client.delete(key)

    def to_redis(self) -> None:
        """Put what is in the store's folder into Redis instead."""
        for path in list(self.store.iterdir()):
            if path.suffix == ".json":
                self.client.set(_KEYS["document"] + path.stem.encode(), path.read_bytes())
            else:
                key = _KEYS["log"] + path.stem.encode()
                self.client.rpush(key, *path.read_bytes().splitlines())
                idle = int(time.time() - path.stat().st_mtime)
                dump = self.client.dump(key)
                self.client.restore(key, 0, dump, replace=True, idletime=idle)  # type: ignore[arg-type]
            path.unlink()


class Scene(NamedTuple):
    """Something that writes. ``again``: exit codes that a second run may end with.

    ``appends``: a death in the middle of its write may leave the start of what it appends, which repair takes away.
    """

    name: str
    build: Callable[[Place], None]
    arguments: Callable[[Place], list[Any]]
    again: tuple[int, ...] = (0,)
    appends: bool = False


# --- scenes -----------------------------------------------------------------------------------------------------------


def _expired(place: Place) -> None:
    document(place.store, "old1", age=9 * DAY)
    document(place.store, "old2", age=9 * DAY)
    log(place.store, "acme:p:x:1", age=9 * DAY)
    document(place.store, "young", age=HOUR)
    (place.root / "old.file").write_text("metrics of before\n")


def _expired_in_redis(place: Place) -> None:
    _expired(place)
    place.to_redis()


def _planned(place: Place) -> None:
    from sessionctl.cli import call as run

    _expired(place)
    plan = place.root / "plan.file"
    assert run(["gc", "--older-than", "1d", "-q", "-o", "ids", "-s", str(place.store), "--save-plan", str(plan)]) == 0


def _asked(at: int, **more: Any) -> list[dict[str, Any]]:
    calls = [{"id": "c1", "name": "ls", "arguments": {}}]
    return [message("user", "go", at), message("assistant", "", at, toolCalls=calls, **more)]


def _interrupted(place: Place) -> None:
    at = int(time.time() * 1000) - 9 * DAY
    document(place.store, "cut", age=9 * DAY, messages=[*_asked(at), message("user", "and now?", at)])


def _interrupted_log(place: Place) -> None:
    log(place.store, "cut", entry("e1", None), entry("e2", "e1", "assistant", [call("t1")]), age=9 * DAY)


def _broken_log(place: Place) -> None:
    entries = (entry("e1", None), b'{"id": "torn"\n', entry("e2", "e1", "assistant", [call("t1")]))
    log(place.store, "cut", *entries, entry("e3", "e2", "user", [result("t1")]), b'{"id": "e4", "par', age=9 * DAY)


def _with_strays(place: Place) -> None:
    for name in ("gone", "kept"):
        path = document(place.store, name, age=9 * DAY)
        path.rename(place.store / f"{name}.json.tmp.1796000005000.k3j9x")
    document(place.store, "kept", age=8 * DAY)
    for path in place.store.iterdir():
        set_age(path, 8 * DAY)


def _to_replace(place: Place) -> None:
    _expired(place)
    shutil.copytree(place.store, place.target)
    document(place.target, "old1", age=20 * DAY)


def _in_redis(build: Callable[[Place], None], place: Place) -> None:
    build(place)
    place.to_redis()


def _talk(place: Place) -> None:
    log(place.store, "talk", age=9 * DAY)


def _saved(place: Place) -> None:
    document(place.store, "saved", age=9 * DAY)


def _new(place: Place) -> None:
    document(place.store, "other", age=9 * DAY)


OLD = ("--older-than", "1d", "--yes")
NOW = ("--lock-wait", "0s")
_SAFE = ("--delete-source", "--yes", *NOW)
SCENES = [
    Scene("gc", _expired, lambda p: ["gc", *OLD, "-s", p.store, "--metrics", p.root / "old.file"]),
    Scene("gc --archive", _expired, lambda p: ["gc", *OLD, "-s", p.store, "--archive", p.archive]),
    Scene("gc --archive, to Redis", _expired, lambda p: ["gc", *OLD, "-s", p.store, "--archive", p.url]),
    Scene("gc --plan", _planned, lambda p: ["gc", "--yes", "-s", p.store, "--plan", p.root / "plan.file"]),
    Scene("gc --save-plan", _expired, lambda p: ["gc", *OLD[:2], "-s", p.store, "--save-plan", p.root / "plan.file"]),
    Scene("gc, Redis", _expired_in_redis, lambda p: ["gc", *OLD, "-s", p.url]),
    Scene("gc --archive, Redis", _expired_in_redis, lambda p: ["gc", *OLD, "-s", p.url, "--archive", p.archive]),
    Scene("delete", _expired, lambda p: ["delete", "acme:p:x:1", "-y", "-s", p.store, *NOW], (0, 3)),
    Scene("delete, Redis", _expired_in_redis, lambda p: ["delete", "old1", "-y", "-s", p.url], (0, 3)),
    Scene("repair, document", _interrupted, lambda p: ["repair", "--fix", "-s", p.store]),
    Scene("repair, append", _interrupted_log, lambda p: ["repair", "--fix", "-s", p.store], appends=True),
    Scene("repair, log", _broken_log, lambda p: ["repair", "--fix", "-s", p.store]),
    Scene("repair, strays", _with_strays, lambda p: ["repair", "--fix", "-s", p.store]),
    Scene("repair, document in Redis", partial(_in_redis, _interrupted), lambda p: ["repair", "--fix", "-s", p.url]),
    Scene("repair, append in Redis", partial(_in_redis, _interrupted_log), lambda p: ["repair", "--fix", "-s", p.url]),
    Scene("migrate", _expired, lambda p: ["migrate", p.store, p.target]),
    Scene(
        "migrate, overwriting", _to_replace, lambda p: ["migrate", p.store, p.target, "-y", "--on-conflict=overwrite"]
    ),
    Scene("migrate --delete-source", _expired, lambda p: ["migrate", p.store, p.target, *_SAFE]),
    Scene("migrate to Redis", _expired, lambda p: ["migrate", p.store, p.url, *_SAFE]),
    Scene("migrate from Redis", _expired_in_redis, lambda p: ["migrate", p.url, p.target, *_SAFE]),
    Scene("tail --cursor", _expired, lambda p: ["tail", "-s", p.store, "--cursor", p.root / "cursor.file"]),
    Scene("a turn", _talk, lambda p: ["turn", f"logs:{p.store}", "talk"], appends=True),
    Scene("a first turn", _new, lambda p: ["turn", f"logs:{p.store}", "talk"], appends=True),
    Scene("a turn, Redis", partial(_in_redis, _talk), lambda p: ["turn", p.url, "talk"]),
    Scene("the buffered writer", _talk, lambda p: ["buffer", f"logs:{p.store}", "talk"], appends=True),
    Scene("the buffered writer, Redis", partial(_in_redis, _talk), lambda p: ["buffer", p.url, "talk"]),
    Scene("a save", _saved, lambda p: ["save", f"documents:{p.store}", "saved"]),
    Scene("a first save", _new, lambda p: ["save", f"documents:{p.store}", "saved"]),
    Scene("a save, Redis", partial(_in_redis, _saved), lambda p: ["save", p.url, "saved"]),
]


# --- the runs ---------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """What an undisturbed run comes to: what was there, what is there after it, and after a second one."""

    before: Contents
    once: Contents
    twice: Contents


def undisturbed(scene: Scene, place: Place, runner: Runner) -> Known:
    """Run a scene without faults, twice."""
    place.clear()
    scene.build(place)
    arguments = list(map(str, scene.arguments(place)))
    before = place.contents()
    states = []
    for codes in ((0,), scene.again):
        ran = runner(arguments, place.env)
        assert ran.code in codes, ran
        assert (place.litter(), place.odd_keys(), locks_left(place)) == ({}, [], []), scene.name
        states.append(place.contents())
    return Known(before, *states)


def _staged(scene: Scene, place: Place) -> None:
    place.clear()
    scene.build(place)
    for path in place.root.rglob("*"):  # a file that is replaced keeps its mode
        if path.is_file():
            path.chmod(0o600)


def disturbed(scene: Scene, place: Place, runner: Runner, known: Known, fault: str, number: int) -> bool:
    """Run a scene whose ``number``-th call meets a fault, and hold what is promised; False if it has fewer calls."""
    _staged(scene, place)
    arguments = list(map(str, scene.arguments(place)))
    there = {path.lstat().st_ino for path in place.root.rglob("*")}
    ran = runner(arguments, place.env, number, fault)
    if not ran.reached:
        return False
    try:
        # The umask is 0 there: whatever is private, is so by its maker's will. (Metrics are for all to read.)
        made = [
            path for path in place.root.rglob("*") if path.lstat().st_ino not in there and "old.file" not in path.name
        ]
        assert [path for path in made if path.lstat().st_mode & 0o077] == [], "open to others"
        _check(scene, place, runner, known, fault, ran, arguments)
    except AssertionError as error:
        raise AssertionError(f"{scene.name}: {fault} at call {number}: {error}\n{ran}") from error
    return True


def _check(
    scene: Scene, place: Place, runner: Runner, known: Known, fault: str, ran: Ran, arguments: list[str]
) -> None:
    if fault not in ("kill", "torn"):
        assert ran.code in CODES, "an exit code that is not in the table"
    assert "Traceback" not in ran.err and "bug in sessionctl" not in ran.err
    now, strays = place.contents(), place.strays()
    torn = scene.appends and fault == "torn"
    for name in known.before.keys() | now.keys():
        allowed = {known.before.get(name), known.once.get(name)}
        if now.get(name) in allowed or known.before.get(name) in strays.values():
            continue
        # Appending may leave an empty log, which is no session yet, or the start of what was to be appended.
        started = (now.get(name) or b"").startswith(known.before.get(name, b""))
        assert started and (torn or now[name] == b""), f"{name} is neither as it was nor as it was to be"
    held = {*now.values(), *strays.values()}
    for name, payload in known.before.items():
        if payload in known.once.values():
            assert payload in held, f"{name} is lost"
    assert place.odd_keys() == []
    _mend(place, runner, torn=torn)
    place.expire_locks()
    second = runner(arguments, place.env)
    assert second.code in scene.again, f"the second run: {second}"
    if _clean(place, runner):
        third = runner(arguments, place.env)
        assert third.code in scene.again, f"after repair: {third}"
    after = place.contents()
    for name in known.once.keys() | known.twice.keys() | after.keys():
        finals = {known.once.get(name), known.twice.get(name)}
        if name[0] == "backup" or (torn and (after.get(name) or b"").startswith(known.before.get(name, b""))):
            continue
        assert after.get(name) in finals, f"{name} after the second run"


def _mend(place: Place, runner: Runner, *, torn: bool) -> None:
    """What was torn is taken away by repair, as it says."""
    if torn:
        for folder in place.store.iterdir():
            if folder.is_file():
                set_age(folder, HOUR)
        ran = runner(["repair", "--fix", "-s", str(place.store)], place.env)
        assert ran.code in (0, 5), ran


def _clean(place: Place, runner: Runner) -> bool:
    """What is left is named by repair, and by and by cleaned; locks of the dead are swept by gc. True if there was."""
    found = False
    for folder in place.folders().values():
        here = [path for path in place.litter() if path.parent == folder]
        if not here:
            continue
        found = True
        named = runner(["repair", "-o", "json", "-s", str(folder)], place.env)
        for path in here:
            assert path.name in named.out + named.err, f"{path.name} is not named"
            set_age(path, 2 * HOUR)
        runner(["repair", "--fix", "--min-idle", "0", "-s", str(folder)], place.env)
        assert [path for path in place.litter() if path.parent == folder] == [], "strays are left"
    for folder in place.folders().values():
        if (folder / ".sessionctl").exists():
            ran = runner(["gc", "--older-than", "9999d", "-y", "-s", str(folder)], place.env)
            assert ran.code == 0, ran
    assert locks_left(place) == [], "locks are left"
    assert [p for p in place.root.iterdir() if p.is_file() and p.suffix != ".file" and ".tmp." not in p.name] == []
    assert place.odd_keys() == []
    return found


def locks_left(place: Place) -> list[str]:
    """Whatever lies in the folders for locks."""
    return [str(path) for folder in place.folders().values() for path in (folder / ".sessionctl").rglob("*")]


def run_scene(scene: Scene, place: Place, runner: Runner, faults: Mapping[str, int]) -> Counter[str]:
    """Run a scene with these faults, at every n-th call; how often each fault was met."""
    known = undisturbed(scene, place, runner)
    met: Counter[str] = Counter()
    for fault, step in faults.items():
        number = 1
        while disturbed(scene, place, runner, known, fault, number):
            met[fault] += 1
            number += step
    return met


def main() -> None:
    """The command of this module's docstring."""
    fault, name = (*sys.argv[1:3], "", "")[:2]
    faults = {fault: 1} if fault else dict.fromkeys(APPLIES, 1)
    total: Counter[str] = Counter()
    failures = 0
    with server() as redis, Runner() as runner, tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "place", redis)
        for scene in SCENES:
            if name not in scene.name:
                continue
            try:
                met = run_scene(scene, place, runner, faults)
            except AssertionError as error:
                failures += 1
                print(f"FAILED {error}", flush=True)
                continue
            total += met
            print(f"{scene.name}: {json.dumps(met)}", flush=True)
        print(f"{sum(total.values())} points in {len(SCENES)} scenes, {runner.runs} runs: {json.dumps(total)}")
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main()
