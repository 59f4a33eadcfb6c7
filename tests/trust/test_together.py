"""Writers and commands at work on one store at the same time: no entry lost, none invented, every skip explained.

``SESSIONCTL_TRUST_SECONDS`` is how long (3).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.stored import DAY, HOUR, document, log
from tests.terminal import environment
from tests.trust.crash import CODES
from tests.trust.inject import Ran, Runner

SECONDS = float(os.environ.get("SESSIONCTL_TRUST_SECONDS", "3"))

# LoopEngine's appends and Seepient's saves, in its own language and in Python; each tells what is written.
NODE = """
const fs = require('fs'), [, folder, seconds] = process.argv, end = Date.now() + seconds * 1000;
let n = 0, parent = null;
const step = () => {
  const id = `n${n++}`;
  fs.appendFileSync(`${folder}/node.jsonl`,
    JSON.stringify({id, parentId: parent, message: {role: n % 2 ? 'user' : 'assistant', content: `é ${n}`}}) + '\\n');
  parent = id;
  const at = Date.now(), file = `${folder}/nodedoc.json`, tmp = `${file}.tmp.${at}.k3j9x`;
  fs.writeFileSync(tmp, JSON.stringify({id: 'nodedoc', messages: [{role: 'user', content: `${n}`, timestamp: at}],
    createdAt: at, updatedAt: at}, null, 2), {mode: 0o600});
  fs.renameSync(tmp, file);
  if (Date.now() < end) setTimeout(step, 2); else console.log(n);
};
step();
"""
PYTHON = """
import json, os, sys, time
folder, name, end = sys.argv[1], sys.argv[2], time.time() + float(sys.argv[3])
n, parent = 0, None
while time.time() < end:
    said = {"role": "assistant" if n % 2 else "user", "content": "x" * n}
    entry = {"id": f"p{n}", "parentId": parent, "message": said}
    with open(f"{folder}/{name}.jsonl", "ab", buffering=0) as file:
        file.write(json.dumps(entry).encode() + b"\\n")
    n, parent, at = n + 1, f"p{n}", int(time.time() * 1000)
    document = {"id": f"{name}doc", "messages": [{"role": "user", "content": str(n)}], "createdAt": at, "updatedAt": at}
    temporary = f"{folder}/{name}doc.json.tmp.{at}"
    with open(temporary, "w") as file:
        json.dump(document, file, indent=2)
    os.replace(temporary, f"{folder}/{name}doc.json")
    time.sleep(0.002)
print(n)
"""
TURNS = """
import sys, time
from sessionctl import Conversations, open_store
end, n = time.time() + float(sys.argv[2]), 0
with Conversations(open_store(sys.argv[1]), lock_wait=60) as talks:
    while time.time() < end:
        with talks.session("shared") as turn:
            turn.append({"role": "user", "content": f"{sys.argv[3]} {n}"}, {"role": "assistant", "content": "ok"})
        n += 1
print(n)
"""


@pytest.fixture(scope="module")
def runners() -> Iterator[tuple[Runner, Runner]]:
    with Runner() as one, Runner() as other:
        yield one, other


def writer(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*command], stdout=subprocess.PIPE, text=True, env=environment())


def written(process: subprocess.Popen[str]) -> int:
    out, _ = process.communicate(timeout=SECONDS + 60)
    assert process.returncode == 0
    return int(out)


def fine(ran: Ran) -> None:
    assert ran.code in CODES, ran
    assert "Traceback" not in ran.err and "bug in sessionctl" not in ran.err, ran
    for line in ran.out.splitlines():
        value = json.loads(line) if line.startswith("{") else {}
        assert all(skip["reason"] for skip in value.get("skipped", [])), "a skip without a reason"


def ids(lines: bytes) -> list[str]:
    assert lines.endswith(b"\n")
    return [json.loads(line)["id"] for line in lines.splitlines()]


def at_work(runner: Runner, commands: list[list[str]], home: Path, writers: list[Any]) -> int:
    """Run these commands in turn while the writers are at work."""
    rounds = 0
    while any(process.poll() is None for process in writers):
        for arguments in commands:
            fine(runner(arguments, environment(home)))
        rounds += 1
    return rounds


def test_writers_that_take_no_lock(runners: tuple[Runner, Runner], tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    store.mkdir()
    document(store, "old", age=9 * DAY)
    name = str(store)
    writers = [writer(sys.executable, "-c", PYTHON, name, f"py{number}", str(SECONDS)) for number in range(2)]
    node = shutil.which("node")
    if node:
        writers.append(writer(node, "-e", NODE, name, str(SECONDS)))
    commands = [
        ["list", "-o", "jsonl", "-s", name],
        ["tail", "-o", "jsonl", "--cursor", str(tmp_path / "cursor"), "-s", name],
        ["gc", "--older-than", "1d", "--keep-last", "0", "-y", "-o", "jsonl", "-s", name],
        ["repair", "--fix", "-q", "-s", name],
        ["migrate", name, str(target), "--on-conflict", "newer", "-o", "jsonl"],
    ]
    assert at_work(runners[0], commands, tmp_path, writers) >= 1
    counts = [written(process) for process in writers]
    logs = {"py0": counts[0], "py1": counts[1]} | ({"node": counts[2]} if node else {})
    for name, count in logs.items():
        found = ids((store / f"{name}.jsonl").read_bytes())
        assert found == [f"{name[0]}{number}" for number in range(count)], "entries are lost or invented"
        assert json.loads((store / f"{name}doc.json").read_bytes())["messages"][0]["content"] == str(count)
        copy = (target / f"{name}.jsonl").read_bytes() if (target / f"{name}.jsonl").exists() else b""
        assert (store / f"{name}.jsonl").read_bytes().startswith(copy), "a copy is the start of what there is"
    assert not (store / "old.json").exists()


@pytest.mark.parametrize("kind", ["redis", "folder"])
def test_writers_under_the_lock(runners: tuple[Runner, Runner], redis: Server, tmp_path: Path, kind: str) -> None:
    url = redis.url() if kind == "redis" else f"logs:{tmp_path / 'store'}"
    writers = [writer(sys.executable, "-c", TURNS, url, str(SECONDS), str(number)) for number in range(3)]
    commands = [
        ["list", "-o", "jsonl", "-s", url],
        ["tail", "-o", "jsonl", "--cursor", str(tmp_path / "cursor"), "-s", url],
        ["gc", "--older-than", "1d", "-y", "-o", "jsonl", "-s", url],
        ["repair", "--fix", "-q", "--lock-wait", "0s", "-s", url],
        ["migrate", url, str(tmp_path / "target"), "--on-conflict", "newer", "-o", "jsonl"],
    ]
    assert at_work(runners[0], commands, tmp_path, writers) >= 1
    counts = [written(process) for process in writers]
    if kind == "redis":
        lines = b"".join(item + b"\n" for item in redis.client().lrange("session-log:shared", 0, -1))  # type: ignore[union-attr]
    else:
        lines = (tmp_path / "store" / "shared.jsonl").read_bytes()
    entries = [json.loads(line) for line in lines.splitlines()]
    assert len(entries) == 2 * sum(counts)
    assert [e["parentId"] for e in entries] == [None, *(e["id"] for e in entries[:-1])], "turns overlapped"
    said = [e["message"]["content"] for e in entries[::2]]
    assert sorted(said) == sorted(f"{w} {n}" for w, count in enumerate(counts) for n in range(count))


PAIRED: dict[str, Callable[[str, Path], list[str]]] = {
    "list": lambda s, p: ["list", "-o", "jsonl", "-s", s],
    "tail": lambda s, p: ["tail", "-o", "jsonl", "--cursor", str(p / "cursor"), "-s", s],
    "stats": lambda s, p: ["stats", "-s", s],
    "gc": lambda s, p: ["gc", "--older-than", "1d", "-y", "-o", "jsonl", "-s", s],
    "gc --archive": lambda s, p: ["gc", "--ttl", "1d", "-y", "-o", "jsonl", "-s", s, "--archive", str(p / "archive")],
    "delete": lambda s, p: ["delete", "d0", "d1", "d2", "-y", "-o", "jsonl", "-s", s],
    "repair": lambda s, p: ["repair", "--fix", "-s", s],
    "migrate": lambda s, p: ["migrate", s, str(p / "target"), "-o", "jsonl"],
    "migrate --delete-source": lambda s, p: ["migrate", s, str(p / "target"), "--delete-source", "-y", "-o", "jsonl"],
}


@pytest.mark.parametrize("kind", ["folder", "redis"])
def test_two_commands_at_once(runners: tuple[Runner, Runner], redis: Server, tmp_path: Path, kind: str) -> None:
    for number, pair in enumerate(combinations_with_replacement(PAIRED, 2)):
        if kind == "redis" and number % 3 and SECONDS < 60:
            continue  # all of them in the long run
        place = tmp_path / str(number)
        folder = place / "store"
        folder.mkdir(parents=True)
        redis.client().flushall()
        for index in range(8):
            document(folder, f"d{index}", age=9 * DAY)
            log(folder, f"l{index}", age=9 * DAY)
        document(folder, "young", age=HOUR)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        store = str(folder)
        if kind == "redis":
            fine(runners[0](["migrate", store, redis.url(), "--delete-source", "-y"], environment(place)))
            store = redis.url()
        done: list[Ran] = []

        def act(runner: Runner, arguments: list[str], done: list[Ran] = done, place: Path = place) -> None:
            done.append(runner(arguments, environment(place, XDG_STATE_HOME=str(place))))

        threads = [
            threading.Thread(target=act, args=(runner, PAIRED[name](store, place)))
            for runner, name in zip(runners, pair, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(done) == 2, pair
        for ran in done:
            fine(ran)
        if kind == "redis":
            shutil.rmtree(folder, ignore_errors=True)
            fine(runners[0](["migrate", store, str(folder)], environment(place)))
        kept: dict[str, list[bytes]] = {}
        for path in place.glob("*/*.json*"):
            kept.setdefault(path.name, []).append(path.read_bytes())
        for name, payloads in kept.items():
            assert all(payload == before[name] for payload in payloads), (pair, name)
        gone = before.keys() - kept.keys()
        if not {"gc", "delete"} & set(pair):
            assert not gone, pair
        assert not {n for n in gone if n == "young.json" or ("gc" not in pair and n not in DELETED)}, (pair, gone)
        assert not list(place.glob("*/.sessionctl/locks/*")), pair
        shutil.rmtree(place)


DELETED = ("d0.json", "d1.json", "d2.json")
