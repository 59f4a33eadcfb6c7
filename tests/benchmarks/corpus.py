"""Made sessions, seeded, in the writers' exact format (FORMATS.md), kept in a cache folder for the next run."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

HOUR = 3_600_000
_WORDS = re.findall(
    r"\w+",
    "agent session tool call result file folder line error test server key value read write list of the and to in is "
    "that it was not found then we look at what happened next while everything else stays as it is",
)
_ODD = ("naïve café", "日本語のテキスト", "🙂", "\x1b[31mred\x1b[0m", 'say "hi"', "C:\\tmp\\x", "a\tb\n  c")


class Writer:
    """Makes texts and sessions from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, low: int, high: int) -> str:
        """Words, about one text in ten with something odd in it."""
        words = self.random.choices(_WORDS, k=self.random.randrange(low, high))
        if self.random.random() < 0.1:
            words.append(self.random.choice(_ODD))
        return " ".join(words)

    def turns(self, count: int) -> Iterator[list[tuple[str, Any]]]:
        """``count`` turns: a question, sometimes a tool call and its result, an answer; role and text or call."""
        for turn in range(count):
            messages: list[tuple[str, Any]] = [("user", self.text(20, 150))]
            if self.random.random() < 0.3:
                messages.append(("call", (f"c{turn}", "run_shell", {"command": self.text(3, 12)})))
                messages.append(("result", (f"c{turn}", self.text(20, 200))))
            messages.append(("assistant", self.text(20, 200)))
            yield messages

    def document(self, key: str, count: int, now: int) -> dict[str, Any]:
        """A document of ``count`` turns that was last written in the ten days before ``now`` (ms)."""
        at = now - self.random.randrange(2 * 60_000, 240 * HOUR)
        created = at - count * 20_000
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(self.turns(count)):
            for place, (role, value) in enumerate(turn):
                message: dict[str, Any] = {"id": f"m{number}-{place}", "role": role, "content": value}
                if role == "call":
                    call_id, name, arguments = value
                    calls = [{"id": call_id, "name": name, "arguments": arguments}]
                    message.update(role="assistant", content="", toolCalls=calls)
                elif role == "result":
                    message.update(role="tool", content=value[1], toolCallId=value[0])
                message["timestamp"] = created + number * 20_000 + place * 1000
                messages.append(message)
        return {
            "id": key,
            "messages": messages,
            "createdAt": created,
            "updatedAt": at,
            "provider": "openai",
            "model": "gpt-5.4",
            "principalId": f"user-{self.random.randrange(50)}",
        }

    def entries(self, count: int) -> Iterator[dict[str, Any]]:
        """The entries of a log of ``count`` turns."""
        parent = None
        for number, turn in enumerate(self.turns(count)):
            for place, (role, value) in enumerate(turn):
                message: dict[str, Any] = {"role": role, "content": value}
                if role == "call":
                    call_id, name, arguments = value
                    use = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
                    message = {"role": "assistant", "content": [use]}
                elif role == "result":
                    block = {"type": "tool_result", "tool_use_id": value[0], "content": value[1]}
                    message = {"role": "user", "content": [block]}
                name = f"e{number}-{place}"
                yield {"id": name, "parentId": parent, "message": message}
                parent = name


def as_document(value: dict[str, Any]) -> str:
    """As Seepient writes a document."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def as_line(value: dict[str, Any]) -> str:
    """As LoopEngine writes an entry."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def documents(folder: Path, count: int) -> None:
    """Documents of about 12 KB."""
    writer, now = Writer(1), time.time_ns() // 1_000_000
    for number in range(count):
        key = f"s{number:06d}"
        value = writer.document(key, writer.random.randrange(4, 14), now)
        (folder / f"{key}.json").write_text(as_document(value))


def logs(folder: Path, count: int) -> None:
    """Logs of about 12 KB."""
    writer = Writer(2)
    for number in range(count):
        lines = "".join(map(as_line, writer.entries(writer.random.randrange(4, 16))))
        (folder / f"acme:production:support:{number:06d}.jsonl").write_text(lines)


def tiny(folder: Path, count: int) -> None:
    """Documents of one short turn."""
    now = time.time_ns() // 1_000_000
    for number in range(count):
        at = now - (number * 7919) % (240 * HOUR) - 120_000
        said = [("user", "hello"), ("assistant", "hi")]
        messages = [{"id": f"m{i}", "role": r, "content": c, "timestamp": at} for i, (r, c) in enumerate(said)]
        value = {"id": f"t{number:07d}", "messages": messages, "createdAt": at, "updatedAt": at}
        (folder / f"t{number:07d}.json").write_text(as_document(value))


def large_log(folder: Path, megabytes: int) -> None:
    """One log of so many megabytes."""
    with (folder / "large.jsonl").open("w") as file:
        _fill(file, map(as_line, Writer(3).entries(1 << 40)), megabytes, '"role":"assistant","content":"')


def large_document(folder: Path, megabytes: int) -> None:
    """One document of so many megabytes."""
    writer, now = Writer(4), time.time_ns() // 1_000_000
    head, rest = as_document(writer.document("large", 8, now)).split('"messages": [', 1)
    turns, tail = rest.split("\n  ],\n", 1)
    with (folder / "large.json").open("w") as file:
        file.write(head + '"messages": [' + turns)
        _fill(file, repeat("," + turns), megabytes)
        file.write("\n  ],\n" + tail)


def _fill(file: TextIO, texts: Iterable[str], megabytes: int, last: str = "") -> None:
    """Write texts until there is enough; the last one holds ``last``."""
    for text in texts:
        file.write(text)
        if last in text and file.tell() >= megabytes * 1_000_000:
            return


def made(cache: Path, name: str, count: int, make: Callable[[Path, int], None]) -> Path:
    """The folder of a corpus; made if it is not there in full."""
    folder = cache / f"{name}-{count}"
    if not folder.exists():
        print(f"making {folder.name} …", flush=True)
        unfinished = cache / f"{name}-{count}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished, count)
        unfinished.rename(folder)
    return folder
