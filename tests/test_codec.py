"""The parser: every fixture, the fast way against the tolerant way, damage of every sort, and nothing ever raised."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionctl import codec
from sessionctl.codec.documents import slow_document
from sessionctl.codec.logs import Line, LogReader, lines_of, read_line
from sessionctl.codec.stringify import js_dumps, spelled_loads
from sessionctl.codec.text import OLDEST, has_lone_surrogate
from sessionctl.history import judge
from sessionctl.model import Outline, Ref, Step

FIXTURES = Path(__file__).parent / "data" / "fixtures"
EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((FIXTURES / "expected.json").read_bytes())
NOW = 1_900_000_000_000
DOC, LOG = Ref("k", "document"), Ref("k", "log")


def fixtures() -> Iterator[Any]:
    """Each stored session that is expected, with what is expected of it."""
    for folder, sessions in EXPECTED.items():
        for key in sessions:
            for suffix in (".json", ".jsonl"):
                path = FIXTURES / folder / (key + suffix)
                if path.exists():
                    yield pytest.param(path, sessions[key], id=f"{folder}/{key}")


def ref_of(path: Path) -> Ref:
    return Ref(path.stem, "document" if path.suffix == ".json" else "log")


@pytest.mark.parametrize(("path", "expected"), list(fixtures()))
def test_fixtures(path: Path, expected: dict[str, Any]) -> None:
    ref = ref_of(path)
    checkpoints = [p.read_bytes() for p in (path.parent.parent / ".checkpoints" / "checkpoints").glob("*.json")]
    outline = codec.outline(ref, path.read_bytes(), NOW)
    verdict = judge(outline, codec.approvals(checkpoints).get(ref.key, ()))
    found = {
        "status": verdict.status,
        "messages": None if outline.steps is None else len(outline.steps),
        "unresolved": list(verdict.unresolved),
        "findings": sorted({f.code for f in verdict.findings}),
    }
    wanted = expected | {"findings": [code for code in expected["findings"] if code != "stray-temporary-file"]}
    assert found == wanted


def test_every_fixture_is_expected() -> None:
    stored = {
        (str(path.parent.relative_to(FIXTURES)), path.stem)
        for path in [*FIXTURES.rglob("*.json"), *FIXTURES.rglob("*.jsonl")]
        if path.parent.name in ("sessions", ".sessions")
    }
    assert stored == {(folder, key) for folder, sessions in EXPECTED.items() for key in sessions}


# --- the fast way and the tolerant way ---


def plain(outline: Outline) -> Outline:
    """Without the texts of results, which only the tolerant way keeps."""
    steps = outline.steps
    if steps is not None:
        steps = tuple(
            step._replace(
                calls=tuple(call._replace(inline_text="") for call in step.calls),
                results=tuple(result._replace(text="") for result in step.results),
            )
            for step in steps
        )
    return msgspec.structs.replace(
        outline, steps=steps, entries=tuple(msgspec.structs.replace(e, step=Step("")) for e in outline.entries)
    )


def tolerant(ref: Ref, payload: bytes) -> Outline:
    """The outline by the tolerant way alone."""
    if ref.kind == "document":
        return slow_document(payload, NOW)[0]
    reader = LogReader()
    size = 0
    for line in lines_of([payload]):
        size += len(line.raw) + 1
        reader.take(line)
    return reader.outline(size)


def agrees(ref: Ref, payload: bytes) -> bool:
    """Whether the summary, which may only count messages, says the same as the tolerant way."""
    found, whole = codec.summary(ref, payload, NOW), codec.outline(ref, payload, NOW)
    fields = ["id", "damage", "notes", "created_at", "updated_at", "active_at", "newest_message_at", "absurd_time"]
    fields += ["provider", "model", "owner", "title"]
    return (
        judge(found)[:3] == judge(whole)[:3]
        and len(found.steps or ()) + found.unread == len(whole.steps or ())
        and all(getattr(found, name) == getattr(whole, name) for name in fields)
    )


texts = st.text(max_size=8) | st.sampled_from(
    ["", "hi", "[sessionctl] made up", "\ud800", "a\u2028b", "\x00", '"}{"id":', "x" * 500, "é" * 300, "  two\n lines "]
)
names = st.sampled_from(["", "c1", "c2", "c3", "é", "\n"])
times = st.sampled_from([1_750_000_000_000, 1_750_000_060_000, OLDEST, NOW]) | st.sampled_from(
    [0, -1, 1_750_000_000, NOW + 10**9, 1.5e12, "2024-01-01T00:00:00Z", "1750000000000", None, True, [], 10**30]
)
junk = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.just([]) | st.just({})
arguments = st.just({}) | st.dictionaries(texts, junk, max_size=2) | junk
calls = st.fixed_dictionaries(
    {"id": names, "name": names, "arguments": arguments}, optional={"result": texts | st.none(), "extra": junk}
)


def often(usual: st.SearchStrategy[Any], seldom: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda n: seldom if n == 0 else usual)


messages = often(
    st.one_of(
        st.fixed_dictionaries(
            {
                "id": names,
                "role": st.sampled_from(["user", "assistant", "system"]),
                "content": texts,
                "timestamp": times,
            },
            optional={"reasoning": texts, "tool_calls": junk, "x": junk},
        ),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": texts,
                "toolCalls": st.lists(calls, max_size=3),
                "timestamp": times,
            }
        ),
        st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "toolCallId": names, "timestamp": times}),
    ),
    st.dictionaries(st.sampled_from(["role", "content", "timestamp", "toolCalls", "toolCallId"]), junk) | junk,
)
documents = st.fixed_dictionaries(
    {"id": often(st.sampled_from(["k", "k", "other"]), junk), "messages": often(st.lists(messages, max_size=5), junk)},
    optional={
        "createdAt": times,
        "updatedAt": times,
        "provider": often(texts, junk),
        "model": often(texts, junk),
        "principalId": often(names, junk),
        "metadata": often(
            st.fixed_dictionaries(
                {}, optional={"apiKeyHash": names, "lastActivityAt": times, "title": often(texts, junk), "x": junk}
            ),
            junk,
        ),
    },
)


def written(value: Any, indent: int | None, ascii_only: bool) -> bytes:
    """JSON as a writer writes it; what is not text in UTF-8 stays an escape."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    return "".join(c if not 0xD800 <= ord(c) < 0xE000 else f"\\u{ord(c):04x}" for c in text).encode()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(documents, st.sampled_from([None, 2]), st.booleans())
def test_both_ways_read_a_document_alike(document: Any, indent: int | None, ascii_only: bool) -> None:
    payload = written(document, indent, ascii_only)
    assert agrees(DOC, payload)
    assert codec.outline(DOC, payload, NOW).steps is None or len(codec.read(DOC, payload, NOW).messages) == len(
        document["messages"]
    )


def test_the_fast_way_takes_what_seepient_writes() -> None:
    """Every healthy fixture of the real writer goes the fast way, but those that hold something odd."""
    slow = set()
    for path in (FIXTURES / "seepient" / "sessions").glob("*.json"):
        payload = path.read_bytes()
        if judge(tolerant(DOC, payload)).status in ("ok", "draft") and not codec.summary(DOC, payload, NOW).sound:
            slow.add(path.stem)
    assert slow <= {"hostile-text", "legacy-0001", "future-fields"}


blocks = often(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
        st.fixed_dictionaries({"type": st.just("tool_use"), "id": names, "name": names, "input": arguments}),
        st.fixed_dictionaries(
            {"type": st.just("tool_result"), "tool_use_id": names},
            optional={
                "content": texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts})) | junk
            },
        ),
        st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": texts}),
    ),
    st.dictionaries(st.sampled_from(["type", "text", "id", "tool_use_id"]), junk) | junk,
)
log_messages = often(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": texts | st.lists(blocks, max_size=3),
        },
        optional={"toolCalls": junk, "tool_call_id": names, "x": junk},
    ),
    st.dictionaries(st.sampled_from(["role", "content"]), junk) | junk,
)
parents = st.none() | st.sampled_from(["e0", "e1", "e2", "gone"])
log_entries = often(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["e0", "e1", "e2", "e3", "e4"]), "parentId": parents, "message": log_messages},
        optional={"x": junk},
    )
    | st.fixed_dictionaries({"id": st.just("p"), "parent_id": parents, "message": log_messages})
    | st.fixed_dictionaries({"id": st.just("b"), "parentId": parents, "parent_id": parents, "message": log_messages}),
    st.dictionaries(st.sampled_from(["id", "parentId", "parent_id", "message"]), junk) | junk,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(log_entries, max_size=6), st.booleans(), st.sampled_from(["\n", "", "\r\n", "\n\n"]))
def test_both_ways_read_a_log_alike(entries: list[Any], ascii_only: bool, end: str) -> None:
    lines = [written(entry, None, ascii_only) for entry in entries]
    payload = b"\n".join(lines) + end.encode()
    found = codec.outline_log([payload], NOW)
    assert plain(found) == plain(tolerant(LOG, payload))
    assert judge(found)[:3] == judge(tolerant(LOG, payload))[:3]
    assert agrees(LOG, payload)
    session = codec.read(LOG, payload, NOW)
    assert len(session.messages) + len(session.others) == len(found.entries)


@given(st.lists(log_entries, max_size=4), st.lists(st.integers(0, 400), max_size=5))
def test_a_log_may_come_in_any_pieces(entries: list[Any], cuts: list[int]) -> None:
    payload = b"".join(written(entry, None, True) + b"\n" for entry in entries)
    places = [0, *sorted(min(cut, len(payload)) for cut in cuts), len(payload)]
    chunks = [payload[start:end] for start, end in pairwise(places)]
    assert codec.outline_log(chunks, NOW) == codec.outline_log([payload], NOW)


# --- damage ---


def sample_payloads() -> list[tuple[Ref, bytes]]:
    paths = [p for p in FIXTURES.rglob("*") if p.suffix in (".json", ".jsonl") and "sessions" in p.parent.name]
    return [(ref_of(path), path.read_bytes()) for path in sorted(paths)]


@settings(max_examples=150)
@given(st.sampled_from(sample_payloads()), st.randoms(use_true_random=False))
def test_nothing_that_is_stored_raises(sample: tuple[Ref, bytes], chance: random.Random) -> None:
    """Any bytes give an outline, a verdict and messages; what is damaged is called damaged."""
    ref, payload = sample
    data = bytearray(payload)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        match chance.randint(0, 4):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = chance.randbytes(chance.randint(1, 4))
            case 2:
                del data[at : at + chance.randint(1, 30)]
            case 3:
                data[at:at] = bytes(chance.randint(1, 50))
            case 4:
                data[at:at] = data[: chance.randint(0, len(data))]
    outline = codec.outline(ref, bytes(data), NOW)
    verdict = judge(outline)
    session = codec.read(ref, bytes(data), NOW)
    if ref.kind == "log":
        assert plain(outline) == plain(tolerant(ref, bytes(data)))
    assert agrees(ref, bytes(data))
    assert (verdict.status == "damaged") is (outline.steps is None or bool(outline.damage))
    if outline.steps is not None:
        assert len(session.messages) == len(outline.steps)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([DOC, LOG]))
def test_no_bytes_raise(payload: bytes, ref: Ref) -> None:
    judge(codec.outline(ref, payload, NOW))
    codec.read(ref, payload, NOW)
    codec.quick_id(payload)
    codec.tail_times(payload, NOW)
    codec.approvals([payload])


@pytest.mark.parametrize("ref", [DOC, LOG])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_damage_and_no_crash(ref: Ref, opening: str) -> None:
    deep = opening * 100_000
    head = '{"id":"k","messages":[{"role":"user","content":"x","y":'
    if ref is LOG:
        head = '{"id":"e1","parentId":null,"message":{"role":"user","content":"x","y":'
    outline = codec.outline(ref, (head + deep + "\n").encode(), NOW)
    assert [d.code for d in outline.damage] == ["invalid-json"]
    assert "nested too deeply" in outline.damage[0].message or "Expecting" in outline.damage[0].message


@pytest.mark.parametrize("ref", [DOC, LOG])
def test_a_depth_that_one_way_still_reads_is_no_crash(ref: Ref) -> None:
    """How deep is too deep depends on the stack of the moment; the messages are those of the outline anyway."""
    for depth in range(900, 1000):
        deep = "[" * depth + "]" * depth
        payload = said(ref, f'"x": {deep}')
        session = codec.read(ref, payload, NOW)
        assert len(session.messages) == len(session.outline.steps or ())


@pytest.mark.parametrize("ref", [DOC, LOG])
def test_a_number_may_have_any_number_of_digits(ref: Ref) -> None:
    """As JSON.parse takes it; Python takes no int of more than 4300."""
    payload = said(ref, f'"x": -{"7" * 5000}')
    assert agrees(ref, payload)
    assert [message.text for message in codec.read(ref, payload, NOW).messages] == ["hi", "yes"]
    assert js_dumps(spelled_loads("7" * 5000)) == "7" * 5000


def said(ref: Ref, extra: str = "") -> bytes:
    """A session without fault; the first message has ``extra``."""
    one = '"role": "user", "content": "hi", "timestamp": 1800000000000' + (", " + extra if extra else "")
    two = '"role": "assistant", "content": "yes", "timestamp": 1800000000000'
    if ref.kind == "log":
        pair = (
            f'{{"id": "a", "parentId": null, "message": {{{one}}}}}',
            f'{{"id": "b", "parentId": "a", "message": {{{two}}}}}',
        )
        return "".join(f"{line}\n" for line in pair).encode()
    return document_of(f"{{{one}}}", f"{{{two}}}")


def document_of(*messages: str, more: str = "") -> bytes:
    head = '{\n  "id": "k",\n  "messages": [\n    '
    tail = f'\n  ],\n  "createdAt": 1800000000000,\n  "updatedAt": 1800000000000{more}\n}}'
    return (head + ",\n    ".join(messages) + tail).encode()


_CALL = '"toolCalls": [{"id": "c", "name": "n", "arguments": {}}]'


@pytest.mark.parametrize(
    ("ref", "payload"),
    [
        (DOC, said(DOC)),
        (LOG, said(LOG)),
        (
            DOC,
            document_of(
                f'{{"role": "user", "content": "hi", "timestamp": 1800000000000, {_CALL}}}',
                '{"role": "tool", "content": "x", "timestamp": 1800000000000, "toolCallId": "c"}',
            ),
        ),
        (DOC, said(DOC)[:-2] + b',\n  "mess\\u0061ges": []\n}'),
        (DOC, said(DOC)[:-2] + b',\n  "messages": []\n}'),
        (
            LOG,
            b'{"id": "a", "parentId": null, "message": {"role": "system", "content": '
            b'[{"type": "tool_use", "id": "c", "name": "n", "input": {}}]}}\n'
            b'{"id": "b", "parentId": "a", "message": {"role": "system", "content": '
            b'[{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}}\n',
        ),
    ],
    ids=["document", "log", "a user calls", "hidden list", "second list", "the system calls"],
)
def test_what_is_judged_in_passing_is_judged_alike(ref: Ref, payload: bytes) -> None:
    assert agrees(ref, payload)
    whole = tolerant(ref, payload)
    for cut in (0, 40):
        found = codec.summary_of_chunks(ref, lambda: [payload[:cut], payload[cut:]] if cut else [payload], NOW)  # noqa: B023
        assert judge(found).status == judge(whole).status
        assert len(found.steps or ()) + found.unread == len(whole.steps or ())
        assert (found.id, found.title) == (whole.id, whole.title)


def test_an_empty_id_is_none_by_either_way() -> None:
    payload = said(DOC).replace(b'"id": "k"', b'"id": ""')
    assert codec.summary(DOC, payload, NOW).id is None
    assert [note.message for note in codec.summary(DOC, payload, NOW).notes] == ["the id inside is no text"]


def test_a_hostile_line_takes_linear_time() -> None:
    """A bad line is searched for entries; places that look like their start cannot be made to cost the square."""
    line = Line(1, 0, b'{"id":"' * 200_000)
    pieces, damage = read_line(line)
    assert (pieces, [d.code for d in damage]) == ([], ["invalid-json"])


@pytest.mark.parametrize(
    ("raw", "ids", "codes"),
    [
        (b'{"id":"a","message":{}}', ["a"], []),
        (b'{"id":"a","message":{}}{"id":"b","message":{}}', ["a", "b"], ["glued-line"]),
        (b'{"id":"x","mess{"id":"b","message":{}}', ["b"], ["glued-line"]),
        (b'{"id":"a","message":{"content":"}{"}}', ["a"], []),
        (b'{"id":"a","message":{}}\r', ["a"], ["blank-or-crlf-line"]),
        (b"\r", [], ["blank-or-crlf-line"]),
        (b"", [], ["blank-or-crlf-line"]),
        (b'\xef\xbb\xbf{"id":"a","message":{}}', ["a"], ["byte-order-mark"]),
        (b'{"id":"a","message":{}}\0\0\0', ["a"], ["nul-bytes"]),
        (b"\0\0\0", [], ["nul-bytes"]),
        (b'{"id":"a","message":{"x":NaN}}', [], ["invalid-json"]),
        (b'{"id":"a","message":{"x":"\xe6\x97"}}', [], ["invalid-utf8"]),
        (b'{"id":1,"message":{}}', [], ["not-a-session"]),
        (b'{"id":"a"}', [], ["not-a-session"]),
        (b'{"id":"a","parentId":5,"message":{}}', [], ["not-a-session"]),
        (b"[]", [], ["not-a-session"]),
    ],
)
def test_lines(raw: bytes, ids: list[str], codes: list[str]) -> None:
    pieces, damage = read_line(Line(1, 100, raw))
    assert [piece.value["id"] for piece in pieces] == ids
    assert [d.code for d in damage] == codes
    for piece in pieces:
        assert raw[piece.start - 100 : piece.end - 100] == piece.raw
        assert json.loads(piece.raw) == piece.value


def test_lines_end_at_newlines_only() -> None:
    entry = '{"id":"a","message":{"role":"user","content":"x\u2028y\u2029z\u0085w\\u000b"}}\n'.encode()
    assert [line.raw for line in lines_of([entry, entry])] == [entry[:-1]] * 2
    assert len(codec.outline_log([entry], NOW).steps or ()) == 1


def test_a_torn_last_line() -> None:
    whole = b'{"id":"a","parentId":null,"message":{"role":"user","content":"x"}}\n'
    for end in (b'{"id":"b","paren', b"{", b'{"id":"b","message":{"role":"user","content":"\xe6'):
        outline = codec.outline_log([whole + end], NOW)
        assert [d.code for d in outline.damage] == ["torn-tail"]
        assert len(outline.steps or ()) == 1


# --- small readers ---


def test_the_id_without_reading_the_rest() -> None:
    assert codec.quick_id(b'{\n  "id": "a b",\n  "messages": [') == "a b"
    assert codec.quick_id(b'{"messages": [], "id": "late"}') == "late"
    assert codec.quick_id(b'{"id": "\\u0061", "messages": []}') == "a"
    assert codec.quick_id(b'{"id": null, "messages": []}') is None
    assert codec.quick_id(b"not json") is None


def test_the_newest_time_at_the_end() -> None:
    end = (
        b'..."createdAt": 1750000000000,\n "updatedAt": 1750000060000,\n "metadata": {"lastActivityAt": 1750000070000}}'
    )
    assert codec.tail_times(end, NOW) == 1_750_000_070_000
    assert codec.tail_times(end, 1_750_000_065_000) == 1_750_000_060_000
    assert codec.tail_times(b'"createdAt": 1750000000000}', NOW) is None
    assert codec.tail_times(b'"updatedAt": 1750000000}', NOW) is None


@pytest.mark.parametrize(
    ("text", "lone"),
    [
        (r"\ud800", True), (r"\ud83d\ude00", False), (r"\ude00\ud83d", True), (r"\\ud800", False), (r"\\\ud800", True),
        (r"\uD83D\uDE00\udfff", True), (r"A", False), ("plain", False),
    ],
)  # fmt: skip
def test_half_surrogate_pairs(text: str, lone: bool) -> None:
    assert has_lone_surrogate(f'"{text}"'.encode()) is lone


def test_approvals() -> None:
    def checkpoint(**fields: Any) -> bytes:
        usual = {"closed": False, "sessionId": "s", "outstanding": {"p": {"toolUseId": "t1"}}, "resultsSoFar": []}
        return json.dumps(usual | fields).encode()

    assert codec.approvals([checkpoint()]) == {"s": frozenset({"t1"})}
    more = checkpoint(outstanding={"q": {"toolUseId": "t2"}, "r": 5}, resultsSoFar=[{"tool_use_id": "t3"}, None])
    assert codec.approvals([checkpoint(), more]) == {"s": frozenset({"t1", "t2", "t3"})}
    for other in (checkpoint(closed=True), checkpoint(sessionId=None), b"[]", b"\xff", b"", checkpoint(closed=None)):
        assert codec.approvals([other]) == {}
