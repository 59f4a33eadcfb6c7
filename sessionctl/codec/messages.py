"""One message, tolerantly: calls, results and texts in all three spellings (Anthropic blocks, Seepient, OpenAI)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..model import Call, Message, Result, Step, ToolCall, ToolResult
from .text import OLDEST, loads

_SHOWN_ELSEWHERE = ("tool_use", "tool_result", "thinking", "redacted_thinking")
MADE_UP = "[sessionctl]"
"""How a result begins that a repair wrote."""


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def result_text(content: object) -> str:
    """The text of a tool result: a string, or the text blocks of a list."""
    if isinstance(content, list):
        return "\n".join(b["text"] for b in content if isinstance(b, dict) and isinstance(b.get("text"), str))
    return content if isinstance(content, str) else ""


def content_text(content: object) -> str:
    """The text that a message's content holds, without calls, results and what is not text."""
    if isinstance(content, list):
        return "\n".join(
            b["text"]
            for b in content
            if isinstance(b, dict) and b.get("type") == "text" and isinstance(b.get("text"), str)
        )
    return content if isinstance(content, str) else ""


def _is_object(arguments: object) -> bool:
    """Whether arguments are an object; OpenAI's spelling has them as JSON text."""
    return isinstance(arguments, dict)


def _is_object_text(arguments: object) -> bool:
    if not isinstance(arguments, str):
        return isinstance(arguments, dict)
    try:
        return not arguments.strip() or isinstance(loads(arguments), dict)
    except ValueError:
        return False


def calls_of(message: dict[str, Any]) -> Iterator[tuple[Call, Any]]:
    """Each tool call of a message in any of the three spellings, with its arguments as stored."""
    for spelled in _dicts(message.get("toolCalls")):
        call_id, name = text_or_none(spelled.get("id")) or "", text_or_none(spelled.get("name")) or ""
        inline = spelled.get("result") is not None
        arguments = spelled.get("arguments")
        yield (
            Call(
                call_id,
                name,
                bool(call_id and name) and _is_object(arguments),
                inline,
                _inline_text(spelled.get("result")) if inline else "",
            ),
            arguments,
        )
    for spelled in _dicts(message.get("tool_calls")):
        function = spelled.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = text_or_none(spelled.get("id")) or "", text_or_none(function.get("name")) or ""
        arguments = function.get("arguments")
        yield Call(call_id, name, bool(call_id and name) and _is_object_text(arguments)), arguments
    for block in _dicts(message.get("content")):
        if block.get("type") == "tool_use":
            call_id, name = text_or_none(block.get("id")) or "", text_or_none(block.get("name")) or ""
            arguments = block.get("input")
            yield Call(call_id, name, bool(call_id and name) and _is_object(arguments)), arguments


def _inline_text(result: object) -> str:
    return result if isinstance(result, str) else json.dumps(result)


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield item if isinstance(item, dict) else {}


def results_of(message: dict[str, Any]) -> Iterator[tuple[Result, ToolResult]]:
    """Each tool result of a message in any of the three spellings."""
    content = message.get("content")
    if message.get("role") == "tool":
        call_id = text_or_none(message.get("toolCallId")) or text_or_none(message.get("tool_call_id")) or ""
        text = result_text(content)
        yield Result(call_id, -1, text.startswith(MADE_UP), text), ToolResult(call_id, describe(content))
        return
    for index, block in enumerate(_dicts(content)):
        if block.get("type") == "tool_result":
            call_id = text_or_none(block.get("tool_use_id")) or ""
            text = result_text(block.get("content"))
            yield (
                Result(call_id, index, text.startswith(MADE_UP), text),
                ToolResult(call_id, describe(block.get("content")), block.get("is_error") is True),
            )


def step_of(message: dict[str, Any]) -> Step:
    """What the rules need of one message, whatever its spelling."""
    role = text_or_none(message.get("role")) or ""
    content = message.get("content")
    calls = tuple(call for call, _ in calls_of(message))
    results = tuple(result for result, _ in results_of(message))
    blocks = content if isinstance(content, list) else []
    only_results = bool(results) and not calls and (role == "tool" or len(blocks) == len(results))
    speaks = role in ("user", "assistant")
    empty = any(b.get("type") == "text" and b.get("text") == "" for b in _dicts(content))
    if content == "" and speaks and not calls:
        empty = True
    missing = not calls and not results and (content is None or content == [])
    results = tuple(r._replace(text="") if r.block >= 0 else r for r in results)
    return Step(role, calls, results, only_results, empty, missing)


def describe(content: object) -> str:
    """Content for people: texts as they are, everything else as a short note in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    return "\n".join(_describe_block(block) for block in content)


def _describe_block(block: object) -> str:
    if not isinstance(block, dict):
        return json.dumps(block, ensure_ascii=False)
    if block.get("type") == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    kind = text_or_none(block.get("type")) or "unknown"
    source = block.get("source")
    source = source if isinstance(source, dict) else block
    data = source.get("data")
    media = text_or_none(source.get("media_type"))
    if isinstance(data, str):
        return f"[{media or kind}, {len(data) * 3 // 4} bytes]"
    return f"[{media or kind}]"


def message_of(message: Any, *, fallback_id: str | None = None, branch: int = 0) -> Message:
    """One message, decoded for people and programs."""
    if not isinstance(message, dict):
        return Message(fallback_id, "", "", raw=message, branch=branch)
    content = message.get("content")
    results = tuple(shown for _, shown in results_of(message))
    if isinstance(content, list) and message.get("role") != "tool":
        text = "\n".join(
            _describe_block(b)
            for b in content
            if not (
                isinstance(b, dict) and b.get("type") in ("tool_use", "tool_result", "thinking", "redacted_thinking")
            )
        )
    else:
        text = describe(content)
    thinking = [b["thinking"] for b in _dicts(content) if isinstance(b.get("thinking"), str)]
    at = message.get("timestamp")
    return Message(
        text_or_none(message.get("id")) or fallback_id,
        text_or_none(message.get("role")) or "",
        text,
        tuple(
            ToolCall(call.id, call.name, arguments, call.inline_text if call.inline else None, call.well_formed)
            for call, arguments in calls_of(message)
        ),
        results,
        at if isinstance(at, int) and OLDEST <= at < 100 * OLDEST else None,
        text_or_none(message.get("reasoning")) or "\n".join(thinking),
        message,
        branch,
    )
