"""Size: twice the input takes at most about twice the time, and memory does not follow the bytes stored."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionctl import codec
from sessionctl.codec.documents import slow_document, sound_chunks, sound_document
from sessionctl.codec.logs import sound_log
from sessionctl.codec.text import ODD
from sessionctl.history import judge
from sessionctl.model import Kind, Outline, Ref
from sessionctl.ops import follow
from sessionctl.ops.mend import Options, mend
from sessionctl.ops.select import Filter, listing
from sessionctl.stores.memory import MemoryStore

from .benchmarks import corpus

NOW = time.time_ns() // 1_000_000
AT = NOW - 3_600_000
SLACK = 0.03
"""Seconds that a busy machine may add to a measurement."""


def is_linear(make: Callable[[int], Any], work: Callable[[Any], object], size: int) -> None:
    """Assert that ``work`` takes at most 2.5 times as long for twice the size; the best of several tries counts.

    Without the garbage collector, which the command line hardly lets run, and whose work depends on all other tests.
    """

    def best(value: Any) -> float:
        times = []
        gc.disable()
        for _ in range(3):
            start = time.process_time()
            work(value)
            times.append(time.process_time() - start)
        gc.enable()
        return min(times)

    one, two = make(size), make(2 * size)
    tries = []
    for _ in range(3):
        once, twice = best(one), best(two)
        if twice <= 2.5 * once + SLACK:
            return
        tries.append((once, twice))
    pytest.fail(f"not linear: {tries}")


def entry(name: str, parent: str | None, content: Any, role: str = "user") -> bytes:
    return corpus.as_line({"id": name, "parentId": parent, "message": {"role": role, "content": content}}).encode()


def log(payload: bytes) -> Outline:
    found = codec.outline(Ref("k", "log"), payload, NOW)
    judge(found)
    return found


def document(payload: bytes) -> Outline:
    found = codec.outline(Ref("k", "document"), payload, NOW)
    judge(found)
    return found


def a_document(messages: list[dict[str, Any]]) -> bytes:
    stamped = [{"id": f"m{i}", "timestamp": AT, **message} for i, message in enumerate(messages)]
    return corpus.as_document({"id": "k", "messages": stamped, "createdAt": AT, "updatedAt": AT}).encode()


def call(name: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "toolCalls": [{"id": name, "name": "run", "arguments": {}}]}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "content": "done", "toolCallId": name}


def in_pieces(payload: bytes, size: int = 4096) -> list[bytes]:
    return [payload[i : i + size] for i in range(0, len(payload), size)]


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"", b"\x00\n", b"}\n"], ids=["whole", "torn", "nul", "glued"])
def test_one_long_line(end: bytes) -> None:
    is_linear(
        lambda size: in_pieces(entry("a", None, "x" * size)[:-1] + end),
        lambda pieces: codec.outline_log(pieces, NOW),
        3_000_000,
    )


def test_one_line_full_of_starts() -> None:
    is_linear(lambda size: b'{"id":' * size + b"\n", log, 100_000)


def test_a_long_chain() -> None:
    def make(size: int) -> bytes:
        return b"".join(entry(f"e{i}", f"e{i - 1}" if i else None, "hi") for i in range(size))

    is_linear(make, log, 30_000)


def test_a_cycle() -> None:
    def make(size: int) -> bytes:
        return b"".join(entry(f"e{i}", f"e{(i or size) - 1}", "hi") for i in range(size))

    is_linear(make, log, 20_000)


def test_many_siblings() -> None:
    def make(size: int) -> bytes:
        calls = [{"type": "tool_use", "id": f"c{i}", "name": "run", "input": {}} for i in range(size)]
        results = [[{"type": "tool_result", "tool_use_id": f"c{i}", "content": "ok"}] for i in range(size)]
        lines = (entry(f"r{i}", "a", content) for i, content in enumerate(results))
        return entry("a", None, calls, "assistant") + b"".join(lines)

    is_linear(make, log, 10_000)


def test_one_entry_repeated() -> None:
    is_linear(lambda size: entry("a", None, "hi") * size, log, 20_000)


@pytest.mark.parametrize("depth", [500, 10_000])
def test_deep_nesting(depth: int) -> None:
    def make(size: int) -> bytes:
        deep = "[" * depth + "]" * depth
        one = a_document([call("c"), result("c")]).replace(
            b'"arguments": {}', b'"arguments": {"x": %b}' % deep.encode()
        )
        return one + b" " * size

    is_linear(make, document, 100_000)
    line = b'{"id":"a","message":{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}}\n"
    is_linear(lambda size: line * size, log, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda size: a_document([call(f"c{i}") for i in range(size)]),
        lambda size: a_document([result(f"c{i}") for i in range(size)]),
        lambda size: a_document([call("c")] * size),
        lambda size: a_document([call("c"), result("c")] * size),
        lambda size: a_document([call("c")] * size + [result("c")] * size),
        lambda size: a_document([result("c")] * size + [call("c")] * size),
        lambda size: a_document([{"role": "user", "content": ""}] * size),
        lambda size: a_document([{"role": "user", "content": "x", "timestamp": 5}] * size),
    ],
    ids=["unresolved", "orphans", "one-id", "repeated", "late", "early", "empty", "times"],
)
def test_many_findings(make: Callable[[int], bytes]) -> None:
    is_linear(make, document, 5_000)


def test_many_damaged_lines() -> None:
    is_linear(lambda size: b'{"id": "x", "message": \n' * size, log, 5_000)


def test_many_repairs() -> None:
    def make(size: int) -> bytes:
        return a_document([call(f"c{i}") for i in range(size)])

    is_linear(make, lambda payload: mend(Ref("k", "document"), payload, NOW, Options()), 1_000)


def test_many_escapes() -> None:
    is_linear(lambda size: a_document([{"role": "user", "content": "\\" * size + "\x1b" * size}]), document, 300_000)


def test_keys_that_sort_badly() -> None:
    def make(size: int) -> MemoryStore:
        store = MemoryStore()
        keys = ["k" * 200 + f"{i:06d}" for i in range(size)]
        random.Random(1).shuffle(keys)
        for key in keys:
            store.put(Ref(key, "log"), entry("a", None, "hi"), expect=None, changed_at=AT)
        return store

    for by in ("activity", "key", "status"):
        is_linear(make, lambda store, by=by: listing(store, NOW, Filter(), lambda s: s.key, by=by), 1_000)


# --- piece by piece is the same as in one piece -----------------------------------------------------------------------


def same_but_counted(found: Outline, whole: Outline) -> bool:
    """Whether an outline is that of the whole, but for the messages, which it only counts."""
    count = len(whole.steps or ())
    counted = msgspec.structs.replace(
        whole, steps=(), unread=count, sound=judge(whole).status, entries=(), order=(), last=found.last
    )
    return found == counted and judge(found)[:3] == judge(whole)[:3]


@given(seed=st.integers(0, 1 << 30), turns=st.integers(1, 12), size=st.integers(1, 3000), is_draft=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_document_in_pieces_is_the_same(seed: int, turns: int, size: int, is_draft: bool) -> None:
    document = corpus.Writer(seed).document("k", turns, NOW)
    if is_draft:
        document["messages"].append({"id": "m", "role": "user", "content": "and?", "timestamp": NOW - 1})
    payload = corpus.as_document(document).encode()
    whole = sound_document(payload, NOW)
    assert sound_chunks([payload], NOW) == whole
    assert same_but_counted(whole, slow_document(payload, NOW)[0])
    try:
        found = sound_chunks(in_pieces(payload, size), NOW)
    except ODD:
        assert size < len('{\n  "id": "k",\n  "messages": [')  # the head must come in one piece
    else:
        assert found == whole


@given(seed=st.integers(0, 1 << 30), turns=st.integers(1, 12), size=st.integers(1, 3000), is_draft=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_log_in_pieces_is_the_same(seed: int, turns: int, size: int, is_draft: bool) -> None:
    entries = [*corpus.Writer(seed).entries(turns)]
    if is_draft:
        message = {"role": "user", "content": [{"type": "text", "text": "and?"}]}
        entries.append({"id": "e", "parentId": entries[-1]["id"], "message": message})
    payload = "".join(map(corpus.as_line, entries)).encode()
    whole = codec.outline_log([payload], NOW)
    assert same_but_counted(sound_log(in_pieces(payload, size)), whole)


@pytest.mark.parametrize("count", [1, 20, 60, 10_000])
def test_the_end_of_a_document_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(follow, "END", 2048)
    store, ref = MemoryStore(), Ref("k", "document")
    payload = corpus.as_document(corpus.Writer(1).document("k", 30, NOW)).encode()
    store.put(ref, payload, expect=None)
    whole = follow.read_document(None, payload)
    found = follow.read_document_end(store, ref, len(payload), count)
    assert whole is not None
    if found is None:
        assert count >= 60  # nearly all of it: it is read as a whole then
    else:
        assert len(whole.messages) > len(found.messages) >= count
        assert found.messages == whole.messages[-len(found.messages) :]
        assert count < follow.KEEP or found.position == whole.position


@given(
    kind=st.sampled_from(["document", "log"]), seed=st.integers(0, 1 << 20), count=st.integers(1, 12), cut=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_the_last_messages_are_those_of_the_whole(kind: Kind, seed: int, count: int, cut: bool) -> None:
    store, ref, writer = MemoryStore(), Ref("k", kind), corpus.Writer(seed)
    if kind == "document":
        payload = corpus.as_document(writer.document("k", 60, NOW)).encode()
    else:
        lines = [*map(corpus.as_line, writer.entries(60))]
        payload = "".join(lines[: -seed % 5] if cut and seed % 5 else lines).encode()
    store.put(ref, payload, expect=None)
    whole = codec.read(ref, payload, NOW).messages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "END", 4096)
        found = follow.last_messages(store, ref, len(payload), count)
    if found is not None:
        assert found == whole[len(whole) - len(found) :] and len(found) >= count
        called = {call.id for message in found for call in message.tool_calls}
        assert {result.call_id for message in found for result in message.tool_results} <= called
    else:
        assert cut or count > 8


@pytest.mark.parametrize(
    "lines",
    [
        [entry(f"e{i}", f"e{i - 1}" if i else None, "x" * 300) for i in range(60)] + [b'{"id": "e60", "par'],
        [entry(f"e{i}", "e0" if i else None, "x" * 300) for i in range(60)],
        [entry(f"e{i}", f"e{i - 1}" if i else None, "x" * 300) for i in range(60)] + [b"\n"],
    ],
    ids=["torn", "branches", "blank"],
)
def test_an_end_that_does_not_tell_takes_the_whole(monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> None:
    monkeypatch.setattr(follow, "END", 4096)
    store, ref = MemoryStore(), Ref("k", "log")
    store.put(ref, b"".join(lines), expect=None)
    assert follow.last_messages(store, ref, len(b"".join(lines)), 2) is None


@pytest.mark.parametrize(
    "tail",
    ['"x": [\n    {\n      "role": "user"\n    }\n  ]', '"y": {"x": [\n    {\n      "role": "user"\n    }\n  ]}'],
)
def test_the_end_of_another_list_is_not_that_of_the_messages(monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    monkeypatch.setattr(follow, "END", 80)
    payload = a_document([{"role": "user", "content": "x" * 9000}])[:-2] + f",\n  {tail}\n}}".encode()
    store, ref = MemoryStore(), Ref("k", "document")
    store.put(ref, payload, expect=None)
    found = follow.read_document_end(store, ref, len(payload), 1)
    assert found is None or [m.id for m in found.messages] == ["m0"]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_makes_no_difference_between_the_ways(data: st.DataObject) -> None:
    """Whatever a payload looks like, the ways that leave something out agree with the one that does not, or give up."""
    kind = data.draw(st.sampled_from(["document", "log"]))
    writer = corpus.Writer(data.draw(st.integers(0, 1000)))
    text = (
        corpus.as_document(writer.document("k", 3, NOW))
        if kind == "document"
        else "".join(map(corpus.as_line, writer.entries(3)))
    )
    payload = bytearray(text.encode())
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at : at + data.draw(st.integers(0, 3))] = data.draw(
        st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"]", b",", b"\xff", b"\n", b"null", b"1", b'"messages": [],'])
    )
    ref = Ref("k", "document" if kind == "document" else "log")
    whole = codec.outline(ref, bytes(payload), NOW)
    for found in (
        codec.summary(ref, bytes(payload), NOW),
        codec.summary_of_chunks(ref, lambda: in_pieces(bytes(payload), 512), NOW),
    ):
        assert judge(found) == judge(whole)
        assert found == whole or same_but_counted(found, whole)
    brief = codec.brief(ref, bytes(payload), NOW)
    if brief is not None:
        assert whole.steps is not None and not whole.damage
        assert brief.unread == len(whole.steps)
        times = ("created_at", "updated_at", "active_at", "newest_message_at", "absurd_time", "owner", "id")
        assert [getattr(brief, name) for name in times] == [getattr(whole, name) for name in times]


# --- memory -----------------------------------------------------------------------------------------------------------


def peak(*arguments: str) -> float:
    """Peak memory of a command in MB; measured by a small process, since a fork starts with what its parent has."""
    code = (
        "import os, subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "_, status, usage = os.wait4(p.pid, 0); print(status, usage.ru_maxrss)"
    )
    command = [sys.executable, "-S", "-c", code, sys.executable, "-m", "sessionctl", *arguments]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"SESSIONCTL_CONFIG": ""}
    )
    status, memory = map(int, done.stdout.split())
    assert status == 0, done.stderr
    return memory / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@pytest.mark.parametrize("make", [corpus.large_document, corpus.large_log], ids=["document", "log"])
@pytest.mark.parametrize(
    "command",
    [("list",), ("gc", "--older-than", "1s", "--dry-run"), ("repair",), ("tail", "-n", "5", "large")],
    ids=["list", "gc", "repair", "tail"],
)
def test_memory_does_not_follow_the_bytes(
    tmp_path: Path, command: tuple[str, ...], make: Callable[[Path, int], None]
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    for folder, megabytes in ((small, 5), (large, 25)):
        folder.mkdir()
        make(folder, megabytes)
    assert peak(*command, "-s", str(large)) - peak(*command, "-s", str(small)) < 12


def test_memory_does_not_follow_the_number_of_sessions(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    for folder, count in ((few, 2_500), (many, 10_000)):
        folder.mkdir()
        corpus.tiny(folder, count)
    limited = ("--limit", "10", "-o", "jsonl")
    assert peak("list", "-s", str(many), *limited) - peak("list", "-s", str(few), *limited) < 6
