"""Logs go back and forth between ours and the other writers: PyPI's sessionknit, and LoopEngine's way in Node."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sessionknit import FileStorage, SessionEntry, SessionKnit

from sessionctl.conversations import Conversations
from sessionctl.stores.folder import FolderStore

KEY = "default:production:support:42"
SCRIPT = Path(__file__).with_name("logs.js")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def say(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def talks_in(folder: Path) -> Conversations:
    return Conversations(FolderStore(folder, ("log",)))


async def knit_write(folder: Path, written: list[SessionEntry[Any]]) -> None:
    knit: SessionKnit[Any] = SessionKnit(FileStorage(str(folder)))
    for entry in written:
        await knit.append(KEY, entry)
    await knit.flush(KEY)


async def knit_read(folder: Path) -> list[Any]:
    return (await SessionKnit(FileStorage(str(folder))).resume(KEY)).messages


def test_what_sessionknit_writes_we_read_and_it_reads_what_we_append(tmp_path: Path) -> None:
    texts = ["Grüße 😀", "line\nline\u2028 \t", '"quoted" \\ \x00']
    ids = [None, "e0", "e1"]
    written = [SessionEntry(id=f"e{n}", parent_id=ids[n], message=say(text)) for n, text in enumerate(texts)]
    asyncio.run(knit_write(tmp_path, written))
    talks = talks_in(tmp_path)
    assert talks.history(KEY) == [say(text) for text in texts]
    with talks.session(KEY) as turn:
        turn.append(say("Ä", "assistant"), say("next"))
    everything = [*map(say, texts), say("Ä", "assistant"), say("next")]
    assert asyncio.run(knit_read(tmp_path)) == everything
    leaf = talks.resume(KEY).leaf_id
    asyncio.run(knit_write(tmp_path, [SessionEntry(id="last", parent_id=leaf, message=say("from it again"))]))
    assert talks.history(KEY) == [*everything, say("from it again")]


def test_parallel_results_of_sessionknit_come_back_in_its_order(tmp_path: Path) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "x", "input": {}} for i in "ab"]}
    results = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": i}]} for i in "ab"]
    written = [
        SessionEntry(id="call", parent_id=None, message=use),
        SessionEntry(id="ra", parent_id="call", message=results[0]),
        SessionEntry(id="rb", parent_id="call", message=results[1]),
    ]
    asyncio.run(knit_write(tmp_path, written))
    assert talks_in(tmp_path).history(KEY) == asyncio.run(knit_read(tmp_path))


def node(folder: Path, *texts: str) -> list[Any]:
    """Let Node append messages to the log as LoopEngine does, and return the history that it reads then."""
    done = subprocess.run(["node", str(SCRIPT), str(folder), KEY, *texts], capture_output=True, check=True, timeout=60)
    history: list[Any] = json.loads(done.stdout)
    return history


@needs_node
def test_what_node_writes_we_read_and_it_reads_what_we_append(tmp_path: Path) -> None:
    assert node(tmp_path, "Grüße 😀", "\u2028") == talks_in(tmp_path).history(KEY)
    with talks_in(tmp_path).session(KEY) as turn:
        turn.append({"role": "assistant", "content": "ü \u2029", "n": [1.0, 1e21, 1.5e-7]}, say("next"))
    history = node(tmp_path, "more")
    assert [m["content"] for m in history] == ["Grüße 😀", "\u2028", "ü \u2029", "next", "more"]
    assert talks_in(tmp_path).history(KEY) == history


@needs_node
def test_our_lines_are_those_that_node_would_write(tmp_path: Path) -> None:
    talks = talks_in(tmp_path)
    with talks.session(KEY) as turn:
        turn.append({"role": "user", "content": [{"type": "text", "text": 'ä "\\\b 😀\u2028'}], "n": [1.0, -0.0, 1e-7]})
    raw = (tmp_path / f"{KEY}.jsonl").read_text(encoding="utf-8")
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("stringify.js")), "0"],
        input=raw.encode(),
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) + "\n" == raw
