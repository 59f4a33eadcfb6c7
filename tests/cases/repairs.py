"""What the cases about repairs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.apis import refused
from tests.stored import DAY, set_age, state
from tests.terminal import environment, run

Json = dict[str, Any]


def lines(folder: Path, *entries: Json | bytes, key: str = "s1") -> bytes:
    """Store a log as LoopEngine spells it and return its bytes."""
    compact = (e if isinstance(e, bytes) else json.dumps(e, separators=(",", ":")).encode() + b"\n" for e in entries)
    path = folder / f"{key}.jsonl"
    path.write_bytes(b"".join(compact))
    set_age(path, DAY)
    return path.read_bytes()


def numbered(folder: Path, *messages: Json) -> bytes:
    """Store a document of these messages, with ids ``m1``, ``m2``, … as in the samples, and return its bytes."""
    said = [{"id": f"m{n}", **m, "timestamp": 1750000000000 + n} for n, m in enumerate(messages, 1)]
    value = {"id": "s1", "messages": said, "createdAt": 1750000000000, "updatedAt": 1750000060000}
    path = folder / "s1.json"
    path.write_text(json.dumps(value, separators=(",", ":")))
    set_age(path, DAY)
    return path.read_bytes()


def calling(*ids: str, **more: Any) -> Json:
    calls = [{"id": i, "name": "ls", "arguments": {}} | more for i in ids]
    return {"role": "assistant", "content": "", "toolCalls": calls}


def answer(call_id: str, text: str = "ok") -> Json:
    return {"role": "tool", "content": text, "toolCallId": call_id}


def said(role: str, text: Any) -> Json:
    return {"role": role, "content": text}


def found(folder: Path, code: int) -> list[tuple[str, bool]]:
    """The findings of ``s1``, each with whether it is fixable, as a look says that ends with this code."""
    before = state(folder)
    done = run("repair", "s1", "-o", "json", "-s", folder, timeout=5)
    assert done.returncode == code, done.stderr
    assert state(folder) == before, "a look changes nothing"
    return [(f["code"], f["fixable"]) for f in json.loads(done.stdout)[0]["findings"]]


def mended(folder: Path, *, code: int = 0, arguments: tuple[str, ...] = ()) -> bytes:
    """What ``repair --fix`` makes of ``s1``; the untouched bytes are in the backup, and a second run does nothing."""
    home = folder.parent / "home"
    path = next(p for p in folder.iterdir() if p.name in ("s1.json", "s1.jsonl"))
    before, at = path.read_bytes(), path.stat().st_mtime_ns

    def once() -> str:
        done = run("repair", "s1", "--fix", *arguments, "-s", folder, env=environment(home), timeout=10)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr

    once()
    after = path.read_bytes()
    assert once().endswith("nothing to do\n")
    assert path.read_bytes() == after
    copies = list((home / ".local" / "state" / "sessionctl" / "backups").glob(f"*/{path.name}"))
    assert [copy.read_bytes() for copy in copies] == ([before] if after != before else [])
    assert path.stat().st_mtime_ns == at, "a repair makes no session younger"
    if not code:
        assert refused(after, "log" if path.suffix == ".jsonl" else "document") == []
    return after


def messages(payload: bytes) -> list[Json]:
    """The messages of a document."""
    value: list[Json] = json.loads(payload)["messages"]
    return value


def entries(payload: bytes) -> list[Json]:
    """The entries of a log."""
    return [json.loads(line) for line in payload.decode().split("\n") if line]
