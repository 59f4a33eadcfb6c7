"""What two model APIs refuse, written down for the tests alone: nothing here uses the product's own analysis.

``anthropic`` follows the Messages API (tool use: every ``tool_use`` is answered by a ``tool_result`` in the next user
turn, results only for calls of the turn before; consecutive messages of one role are one turn). ``openai`` follows chat
completions (each id of ``tool_calls`` is answered by tool messages directly after, and no other tool message may stand
anywhere). Both return what is wrong as texts; an empty list is a history that would be taken.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def log_history(payload: bytes) -> list[Json]:
    """The history of a log as LoopEngine rebuilds it: leaf to root, then the other children of each node."""
    entries = [json.loads(line) for line in payload.decode().split("\n") if line]
    by_id = {e["id"]: e for e in entries}

    def parent(entry: Json) -> Any:
        return entry["parentId"] if "parentId" in entry else entry.get("parent_id")

    path, seen, at = [], set(), entries[-1] if entries else None
    while at is not None:
        assert at["id"] not in seen, "a cycle"
        seen.add(at["id"])
        path.insert(0, at)
        at = by_id.get(parent(at))
    history = []
    for place, node in enumerate(path):
        history.append(node["message"])
        next_id = path[place + 1]["id"] if place + 1 < len(path) else None
        history += [e["message"] for e in entries if parent(e) == node["id"] and e["id"] != next_id]
    return history


def document_history(payload: bytes) -> list[Json]:
    messages: list[Json] = json.loads(payload)["messages"]
    return messages


def as_blocks(message: Json) -> tuple[str, list[Json]]:
    """A message of any of the three spellings as a role and Anthropic blocks."""
    content = message.get("content")
    text = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
    if message["role"] == "tool":
        call = message.get("toolCallId", message.get("tool_call_id"))
        return "user", [{"type": "tool_result", "tool_use_id": call, "content": content}]
    blocks: list[Json] = list(content) if isinstance(content, list) else text
    blocks += [{"type": "tool_use", "id": c["id"], "name": c["name"]} for c in message.get("toolCalls") or ()]
    blocks += [
        {"type": "tool_use", "id": c["id"], "name": c["function"]["name"]} for c in message.get("tool_calls") or ()
    ]
    return message["role"], blocks


def anthropic(messages: list[Json]) -> list[str]:
    """What the Messages API would refuse in this history."""
    turns: list[tuple[str, list[Json], list[Json]]] = []
    for message in messages:
        role, blocks = as_blocks(message)
        if role == "system":
            continue
        inline = [
            {"type": "tool_result", "tool_use_id": c["id"]}
            for c in message.get("toolCalls") or ()
            if c.get("result") is not None
        ]
        if turns and turns[-1][0] == role and not turns[-1][2]:
            turns[-1][1].extend(blocks)
            turns[-1][2].extend(inline)
        else:
            turns.append((role, blocks, inline))
    wrong = []
    open_calls: set[Any] = set()
    answered_inline: set[Any] = set()
    for role, blocks, inline in turns:
        calls = [b.get("id") for b in blocks if b.get("type") == "tool_use"]
        results = [b.get("tool_use_id") for b in blocks if b.get("type") == "tool_result"]
        if role == "user":
            wrong += [f"no result for {c}" for c in open_calls - set(results)]
            wrong += [
                f"a result for {r}, not called in the turn before"
                for r in results
                if r not in open_calls | answered_inline
            ]
            wrong += [f"two results for {r}" for r in set(results) if results.count(r) > 1]
            open_calls = set()
        else:
            wrong += [f"no result for {c}" for c in open_calls]
            wrong += [f"{c} called twice in a turn" for c in set(calls) if calls.count(c) > 1]
            wrong += [f"an assistant's result for {r}" for r in results]
            answered_inline = {b["tool_use_id"] for b in inline}
            open_calls = set(calls) - answered_inline
    return wrong + [f"no result for {c}" for c in open_calls]


def openai(messages: list[Json]) -> list[str]:
    """What chat completions would refuse in this history."""
    wrong = []
    open_calls: list[Any] = []
    inline: set[Any] = set()
    for message in messages:
        _role, blocks = as_blocks(message)
        results = [b.get("tool_use_id") for b in blocks if b.get("type") == "tool_result"]
        others = [b for b in blocks if b.get("type") not in ("tool_result", "tool_use")]
        calls = [b.get("id") for b in blocks if b.get("type") == "tool_use"]
        for result in results:
            if result in open_calls:
                open_calls.remove(result)
            elif result in inline:
                inline.discard(result)
            else:
                wrong.append(f"a tool message for {result} that does not follow its call")
        if results and not others and not calls:
            continue
        wrong += [f"no tool message for {call}" for call in open_calls]
        inline = {c["id"] for c in message.get("toolCalls") or () if c.get("result") is not None}
        open_calls = [c for c in calls if c not in inline]
    return wrong + [f"no tool message for {call}" for call in open_calls]


def refused(payload: bytes, kind: str) -> list[str]:
    """What either API would refuse in a stored session."""
    history = log_history(payload) if kind == "log" else document_history(payload)
    return anthropic(history) + openai(history)
