"""Random sessions, damaged at random: a repair never crashes, loses nothing, satisfies the APIs, and is final."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionctl.codec import outline
from sessionctl.codec.logs import lines_of, read_line
from sessionctl.codec.messages import MADE_UP
from sessionctl.history import judge
from sessionctl.model import Ref
from sessionctl.ops.mend import Options, Repair, mend
from tests.apis import refused

NOW = 1_800_000_000_000
Json = dict[str, Any]
FEW = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[str, int]]:
    """User texts, answers, and rounds of up to three calls."""
    shape = st.tuples(st.sampled_from(["user", "answer", "calls"]), st.integers(1, 3))
    return draw(st.lists(shape, min_size=1, max_size=8))


@st.composite
def logs(draw: st.DrawFn) -> list[Json]:
    """The entries of a healthy log: one chain, results in one entry or as siblings, given-up branches in between."""
    number = count()
    entries: list[Json] = []
    leaf: str | None = None

    def add(message: Json, parent: str | None) -> str:
        entry_id = f"e{next(number)}"
        entries.append({"id": entry_id, "parentId": parent, "message": message})
        return entry_id

    for kind, size in draw(turns()):
        if kind == "user":
            leaf = add({"role": "user", "content": f"say {next(number)} ✓"}, leaf)
        elif kind == "answer":
            leaf = add({"role": "assistant", "content": [{"type": "text", "text": "so"}]}, leaf)
        else:
            ids = [f"t{next(number)}" for _ in range(size)]
            uses = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
            leaf = add(
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}, *uses]},
                leaf,
            )
            results = [{"type": "tool_result", "tool_use_id": i, "content": f"got {i}"} for i in ids]
            if draw(st.booleans()):
                made = [add({"role": "user", "content": [r]}, leaf) for r in results]
                leaf = made[-1]
            else:
                leaf = add({"role": "user", "content": results}, leaf)
        if draw(st.integers(0, 5)) == 0:
            aside = add({"role": "assistant", "content": "given up"}, leaf)
            aside = add({"role": "user", "content": "and on"}, aside)
            if draw(st.booleans()):
                add({"role": "user", "content": "further"}, aside)
            leaf = add({"role": "user", "content": "again"}, leaf)
    return entries


def encoded(entries: list[Json]) -> list[bytes]:
    return [json.dumps(e, ensure_ascii=False, separators=(",", ":")).encode() for e in entries]


@st.composite
def damaged_logs(draw: st.DrawFn) -> bytes:
    entries = draw(logs())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(entries) - 1))
        match draw(st.sampled_from(["drop", "double", "filler", "swap", "parent", "block", "text"])):
            case "drop" if len(entries) > 1:
                del entries[at]
            case "double":
                entries.insert(draw(st.integers(at, len(entries))), entries[at])
            case "filler" if entries[at]["message"]["role"] == "user":
                old = entries[at]["message"]["content"]
                content = [{**b, "content": f"{MADE_UP} none"} for b in old if "tool_use_id" in b]
                made = {**entries[at], "id": f"f{len(entries)}-{at}", "message": {"role": "user", "content": content}}
                if content:
                    entries.insert(draw(st.integers(0, len(entries))), made)
            case "swap":
                other = draw(st.integers(0, len(entries) - 1))
                entries[at], entries[other] = entries[other], entries[at]
            case "parent":
                other = draw(st.sampled_from([None, "gone", *(e["id"] for e in entries)]))
                entries[at] = {**entries[at], "parentId": other}
            case "block" if isinstance(entries[at]["message"]["content"], list):
                content = entries[at]["message"]["content"]
                gone = draw(st.integers(0, len(content) - 1))
                if len(content) > 1:
                    entries[at] = {
                        **entries[at],
                        "message": {**entries[at]["message"], "content": content[:gone] + content[gone + 1 :]},
                    }
            case "text" if (
                isinstance(entries[at]["message"]["content"], list) and entries[at]["message"]["role"] == "user"
            ):
                content = [*entries[at]["message"]["content"], {"type": "text", "text": "by the way"}]
                entries[at] = {**entries[at], "message": {"role": "user", "content": content}}
    lines = encoded(entries)
    ends = [b"\n"] * len(lines)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["cut", "glue", "nul", "crlf", "blank", "latin", "open", "junk", "mark"])):
            case "cut":
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
            case "glue":
                ends[at] = b""
            case "nul":
                place = draw(st.sampled_from([0, len(lines[at])]))
                lines[at] = lines[at][:place] + bytes(20) + lines[at][place:]
            case "crlf":
                ends[at] = b"\r\n"
            case "blank":
                ends[at] = b"\n\n"
            case "latin":
                lines[at] = lines[at].replace(b"say", b"\xe9")
            case "open":
                ends[-1] = b""
            case "junk":
                lines[at] = b'{"note":1}'
            case "mark":
                lines[0] = b"\xef\xbb\xbf" + lines[0]
    return b"".join(line + end for line, end in zip(lines, ends, strict=True))


@st.composite
def damaged_documents(draw: st.DrawFn) -> bytes:
    messages: list[Json] = []
    number = count()
    for kind, size in draw(turns()):
        if kind != "calls":
            role = "user" if kind == "user" else "assistant"
            messages.append({"id": f"m{next(number)}", "role": role, "content": "wörd"})
            continue
        ids = [f"c{next(number)}" for _ in range(size)]
        calls: list[Json] = [{"id": i, "name": "f", "arguments": {}} for i in ids]
        if draw(st.integers(0, 4)) == 0:
            calls[0]["result"] = "inline"
        messages.append({"id": f"m{next(number)}", "role": "assistant", "content": "", "toolCalls": calls})
        messages += [
            {"id": f"m{next(number)}", "role": "tool", "content": "out", "toolCallId": c["id"]}
            for c in calls
            if "result" not in c
        ]
    for place, message in enumerate(messages):
        message["timestamp"] = 1_750_000_000_000 + place
    for _ in range(draw(st.integers(0, 5))):
        if not messages:
            break
        at = draw(st.integers(0, len(messages) - 1))
        match draw(st.sampled_from(["drop", "double", "filler", "swap"])):
            case "drop":
                del messages[at]
            case "double" if messages[at]["role"] != "assistant":
                messages.insert(draw(st.integers(0, len(messages))), messages[at])
            case "filler" if messages[at]["role"] == "tool":
                made = {**messages[at], "id": f"f{next(number)}", "content": f"{MADE_UP} none"}
                messages.insert(draw(st.integers(0, len(messages))), made)
            case "swap":
                other = draw(st.integers(0, len(messages) - 1))
                messages[at], messages[other] = messages[other], messages[at]
    document = {
        "id": "d",
        "messages": messages,
        "createdAt": 1_750_000_000_000,
        "updatedAt": 1_750_000_009_000,
        "x": [1.0, 12345678901234567890],
    }
    indent = draw(st.sampled_from([2, None]))
    text = json.dumps(document, indent=indent, ensure_ascii=False).replace("12345678901234567890", "1e400")
    payload = text.encode()
    if draw(st.integers(0, 5)) == 0:
        payload = b"\xef\xbb\xbf" + payload
    if draw(st.integers(0, 9)) == 0:
        payload = payload[: draw(st.integers(0, len(payload)))]
    return payload


def ids() -> Any:
    number = count()
    return lambda: f"new-{next(number)}"


def whole_entries(payload: bytes) -> list[Json]:
    return [piece.value for line in lines_of([payload]) for piece in read_line(line)[0]]


def texts(messages: list[Json], calls: set[str]) -> set[str]:
    """Each text, call and thought of some messages, and each result of these calls."""
    found: set[str] = set()
    for message in messages:
        content = message["content"]
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if str(block.get("content")).startswith(MADE_UP):
                continue
            if block["type"] != "tool_result" or block["tool_use_id"] in calls:
                found.add(json.dumps(block, sort_keys=True))
    return found


def holds(ref: Ref, payload: bytes, repair: Repair) -> None:
    after = payload if repair.after is None else repair.after
    found = outline(ref, after, NOW)
    assert judge(found).status == repair.status
    again = mend(ref, after, NOW)
    assert again.after is None, again.changes
    if repair.appended is not None:
        assert payload + repair.appended == after
    if not any(f.severity == "error" for f in judge(found).findings):
        assert refused(after, ref.kind) == []


@FEW
@given(damaged_logs())
def test_logs(payload: bytes) -> None:
    ref = Ref("s", "log")
    repair = mend(ref, payload, NOW, new_id=ids())
    holds(ref, payload, repair)
    after = payload if repair.after is None else repair.after
    before_entries, after_entries = whole_entries(payload), whole_entries(after)
    # A result whose call is not in the history is an orphan, and goes; nothing else may.
    called = {c.id for step in outline(ref, after, NOW).steps or () for c in step.calls}
    before, now = (texts([e["message"] for e in entries], called) for entries in (before_entries, after_entries))
    assert before <= now
    # All that can be mended is, unless entries of one id contradict each other.
    codes = {o.finding.code for o in repair.outcomes}
    if "conflicting-entry" not in codes:
        left = [o for o in repair.outcomes if o.finding.fixable and not o.fixed and o.finding.code != "draft"]
        assert all(o.reason == "a log cannot be without entries" for o in left), repair
    if repair.after is not None and not codes & {"parent-cycle", "missing-parent", "conflicting-entry"}:
        known = {e["id"] for e in after_entries}
        assert all(e["parentId"] in known for e in after_entries if e["parentId"] is not None)


@FEW
@given(damaged_documents())
def test_documents(payload: bytes) -> None:
    ref = Ref("d", "document")
    repair = mend(ref, payload, NOW, new_id=ids())
    holds(ref, payload, repair)
    assert all(o.fixed for o in repair.outcomes if o.finding.fixable and o.finding.code != "draft"), repair
    if repair.after is not None:
        head, tail = b'"createdAt"', payload[payload.index(b'"createdAt"') :]
        assert repair.after.endswith(tail) and head in tail
        after = json.loads(repair.after)["messages"]
        made = {m["id"]: m for m in after}
        calls = {c["id"] for m in after for c in m.get("toolCalls", ())}
        for message in json.loads(payload.removeprefix(b"\xef\xbb\xbf"))["messages"]:
            if message["content"].startswith(MADE_UP):
                continue
            if message["role"] != "tool" or message["toolCallId"] in calls:
                assert made[message["id"]] == message


@FEW
@given(st.one_of(damaged_logs(), damaged_documents()), st.sampled_from(["note", "truncate"]), st.booleans())
def test_other_strategies(payload: bytes, strategy: Any, drafts: bool) -> None:
    kind = "document" if b'"createdAt"' in payload else "log"
    ref = Ref("d", kind)  # type: ignore[arg-type]
    options = Options(strategy=strategy, drop_drafts=drafts and strategy != "note")
    repair = mend(ref, payload, NOW, options, new_id=ids())
    after = payload if repair.after is None else repair.after
    assert mend(ref, after, NOW, options).after is None
    verdict = judge(outline(ref, after, NOW))
    if not any(f.severity == "error" for f in verdict.findings):
        assert refused(after, kind) == []
