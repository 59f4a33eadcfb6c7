"""A session as a transcript: for a terminal, as Markdown, as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from ..durations import iso, size
from ..model import Message, Session, ToolCall, ToolResult
from ..ops.select import Summary
from .output import Output, plural, safe, safe_line
from .rows import STATUS_STYLES, age, problems

TEXT_LINES, RESULT_LINES, LINE_LENGTH = 40, 8, 2000
"""How much of a message and of a result is shown unless all is asked for: lines, and characters of a line."""

ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "system": "bold magenta", "tool": "bold yellow"}


class Folded(NamedTuple):
    """Which result belongs to which call: by (message, call) index; and the results that belong to none."""

    answers: dict[tuple[int, int], list[ToolResult]]
    loose: dict[int, list[ToolResult]]


def fold(messages: tuple[Message, ...]) -> Folded:
    """Put each result to its call: the nearest one before it that still waits, else the nearest after it."""
    waiting: dict[str, list[tuple[int, int]]] = {}
    for index, message in enumerate(messages):
        for place, call in enumerate(message.tool_calls):
            if call.id:
                waiting.setdefault(call.id, []).append((index, place))
    answers: dict[tuple[int, int], list[ToolResult]] = {}
    loose: dict[int, list[ToolResult]] = {}
    for index, message in enumerate(messages):
        for result in message.tool_results:
            calls = waiting.get(result.call_id, [])
            before = [at for at in calls if at[0] < index]
            open_ = [at for at in before if at not in answers]
            place_ = (open_ or before or calls)[-1] if (open_ or before) else (calls[0] if calls else None)
            if place_ is None:
                loose.setdefault(index, []).append(result)
                continue
            call = messages[place_[0]].tool_calls[place_[1]]
            if call.result == result.text:
                answers.setdefault(place_, [])  # stored in the call as well: shown once
            else:
                answers.setdefault(place_, []).append(result)
    return Folded(answers, loose)


def message_objects(session: Session, summary: Summary, last: int | None, tree: bool) -> list[dict[str, Any]]:
    """The messages as the objects that ``show -o json`` prints."""
    open_calls = {(p.step, p.call_id) for p in summary.verdict.problems if p.code == "unresolved-tool-call"}
    answered = {r.call_id for m in session.messages for r in m.tool_results}
    found = []
    for index, message in enumerate(session.messages):
        found.append(
            message_object(
                message,
                [
                    (index, c.id) not in open_calls and (c.well_formed or c.result is not None or c.id in answered)
                    for c in message.tool_calls
                ],
            )
        )
    if last is not None:
        found = found[len(found) - min(last, len(found)) :]
    if tree or summary.outline.steps is None:
        found.extend(message_object(m, [c.result is not None for c in m.tool_calls]) for m in session.others)
    return found


def message_object(message: Message, resolved: list[bool]) -> dict[str, Any]:
    results = [{"call_id": r.call_id, "text": r.text, "is_error": r.is_error} for r in message.tool_results]
    return {
        "id": message.id,
        "role": message.role,
        "text": message.text,
        "tool_calls": [
            {"id": c.id, "name": c.name, "arguments": c.arguments, "resolved": ok}
            for c, ok in zip(message.tool_calls, resolved, strict=True)
        ],
        "tool_result": results[0] if results else None,
        "tool_results": results,
        "at": iso(message.at),
        "branch": message.branch,
    }


class Line(NamedTuple):
    """A line of the transcript: its indent, its text, how it is styled."""

    indent: int
    text: str
    style: str = ""


def transcript(
    out: Output, session: Session, summary: Summary, *, last: int | None, full: bool, tree: bool, now: int
) -> None:
    """Print a session for people: wrapped and coloured at a terminal, plain lines elsewhere."""
    _print(out, _lines(session, summary, last, full, tree, now))


def ending(out: Output, messages: tuple[Message, ...], summary: Summary, *, last: int, full: bool, now: int) -> None:
    """``transcript`` of a session of which the end alone was read."""
    facts = [summary.ref.kind, *_size_and_age(summary, now), "only the end was read"]
    head = (Line(0, safe_line(summary.ref.key), "bold"), Line(2, " · ".join(facts), "dim"))
    _print(out, chain(head, _history(messages, last, full, is_end=True)))


def _print(out: Output, lines: Iterable[Line]) -> None:
    if not out.is_terminal:
        for line in lines:
            out.print(" " * line.indent + line.text if line.text else "")
        return
    from rich.padding import Padding
    from rich.text import Text

    console = out.console()
    for line in lines:
        text = Text(line.text, line.style, overflow="fold")
        console.print(Padding(text, (0, 0, 0, line.indent)) if line.indent else text)


def _lines(session: Session, summary: Summary, last: int | None, full: bool, tree: bool, now: int) -> Iterator[Line]:
    yield from _head(summary, now)
    yield from _history(session.messages, last, full)
    others = session.others
    if not others:
        return
    if tree or summary.outline.steps is None:
        yield Line(0, "")
        said = "not part of the history" if summary.outline.steps is not None else "no history can be told"
        yield Line(0, f"── {plural(len(others), 'message')}, {said} ──", "magenta")
        beside = fold(others)
        seen: set[int] = set()
        for index, message in enumerate(others):
            if message.branch not in seen:
                seen.add(message.branch)
                yield Line(0, "")
                yield Line(0, f"branch {message.branch}", "magenta")
            for line in _message(index, message, beside, full):
                yield line._replace(indent=line.indent + 2)
    else:
        yield Line(0, "")
        yield Line(0, f"{plural(len(others), 'more message')} outside the history (--tree)", "dim")


def _history(messages: tuple[Message, ...], last: int | None, full: bool, *, is_end: bool = False) -> Iterator[Line]:
    """The last messages; ``is_end``: there are more before these."""
    folded = fold(messages)
    start = _start(messages, folded, last)
    if is_end:
        yield Line(0, "… messages before", "dim")
    elif start:
        yield Line(0, f"… {plural(start, 'message')} before", "dim")
    for index in range(start, len(messages)):
        yield from _message(index, messages[index], folded, full)


def _size_and_age(summary: Summary, now: int) -> list[str]:
    return [size(summary.stamp.size), f"{age(summary, now)} old" if summary.last_activity_at else "age unknown"]


def _head(summary: Summary, now: int) -> Iterator[Line]:
    outline = summary.outline
    facts: list[str] = [summary.ref.kind, summary.status]
    if summary.messages is not None:
        facts.append(plural(summary.messages, "message"))
    facts += _size_and_age(summary, now)
    facts += [v for v in (outline.provider, outline.model) if v]
    yield Line(0, safe_line(summary.ref.key), "bold")
    yield Line(2, safe_line(" · ".join(facts)), STATUS_STYLES[summary.status])
    wrong = problems(summary)
    if wrong:
        yield Line(2, f"! {wrong}", "yellow")


def _start(messages: tuple[Message, ...], folded: Folded, last: int | None) -> int:
    """Where the last so many messages begin; results are shown with their calls, and so begin where those stand."""
    start = 0 if last is None else max(0, len(messages) - last)
    while 0 < start < len(messages) and _is_folded(messages[start], folded.loose.get(start, [])):
        start -= 1
    return start


def _is_folded(message: Message, loose: list[ToolResult]) -> bool:
    """Whether a message is nothing but results that are shown where they were called."""
    speaks = bool(message.text) and message.role != "tool"
    return bool(message.tool_results) and not loose and not speaks and not message.tool_calls


def _message(index: int, message: Message, folded: Folded, full: bool) -> Iterator[Line]:
    loose = folded.loose.get(index, [])
    if _is_folded(message, loose):
        return
    yield Line(0, "")
    yield Line(0, *_speaker(message))
    if message.reasoning and full:
        yield from _text(message.reasoning, 2, "dim italic", TEXT_LINES, full)
    if message.text and not (message.role == "tool" and loose):
        yield from _text(message.text, 2, "", TEXT_LINES, full)
    elif not message.tool_calls and not loose and not message.tool_results:
        yield Line(2, "(empty)", "dim")
    for place, call in enumerate(message.tool_calls):
        yield from _call(call, folded.answers.get((index, place), []), full)
    for result in loose:
        yield Line(2, f"⚠ {safe_line(result.call_id) or '(no id)'}: result without a call", "bold red")
        yield from _text(result.text, 4, "red", RESULT_LINES, full)


def standalone(message: Message, full: bool) -> Iterator[Line]:
    """One message by itself, its results not folded into their calls: for following."""
    yield Line(0, *_speaker(message))
    if message.reasoning and full:
        yield from _text(message.reasoning, 2, "dim italic", TEXT_LINES, full)
    speaks = bool(message.text) and not (message.role == "tool" and message.tool_results)
    if speaks:
        yield from _text(message.text, 2, "", TEXT_LINES, full)
    for call in message.tool_calls:
        yield from _called(call, full)
        if call.result is not None:
            yield from _text(call.result or "(empty)", 4, "dim", RESULT_LINES, full)
    for result in message.tool_results:
        yield Line(2, f"← {safe_line(result.call_id) or '(no id)'}", "red" if result.is_error else "blue")
        yield from _text(result.text or "(empty)", 4, "red" if result.is_error else "dim", RESULT_LINES, full)
    if not speaks and not message.tool_calls and not message.tool_results:
        yield Line(2, "(empty)", "dim")


def _speaker(message: Message) -> tuple[str, str]:
    """Role and time, and their style."""
    at = iso(message.at)
    time = f"  {at[:10]} {at[11:19]}" if at else ""
    return f"{safe_line(message.role) or '(no role)'}{time}", ROLE_STYLES.get(message.role, "bold")


def _called(call: ToolCall, full: bool) -> Iterator[Line]:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    shown = safe_line(arguments)
    if not full and len(shown) > 200:
        shown = f"{shown[:200]}… ({size(len(arguments))})"
    yield Line(2, f"→ {safe_line(call.name) or '(no name)'} {shown}", "blue")
    if not call.well_formed:
        yield Line(4, "⚠ malformed call", "bold red")


def _call(call: ToolCall, answers: list[ToolResult], full: bool) -> Iterator[Line]:
    yield from _called(call, full)
    if call.result is not None:
        yield from _text(call.result or "(empty)", 4, "dim", RESULT_LINES, full)
    elif not answers:
        yield Line(4, f"✗ no result ({safe_line(call.id) or 'no id'})", "bold yellow")
    for number, answer in enumerate(answers):
        if call.result is not None or number:
            yield Line(4, "⚠ another result", "bold red")
        yield from _text(answer.text or "(empty)", 4, "red" if answer.is_error else "dim", RESULT_LINES, full)


def _text(text: str, indent: int, style: str, most: int, full: bool) -> Iterator[Line]:
    """A text, made safe and cut to ``most`` lines, with how much more there is."""
    if full:
        for line in safe(text).split("\n"):
            yield Line(indent, line, style)
        return
    budget = most * LINE_LENGTH
    lines = text[:budget].split("\n")
    kept = [line[:LINE_LENGTH] for line in lines[:most]]
    for line in kept:
        yield Line(indent, safe(line), style)
    left = len(text) - sum(map(len, kept)) - (len(kept) - 1)
    if left > 0:
        yield Line(indent, f"… {size(left)} more (--full)", "dim")


def markdown(session: Session, summary: Summary, last: int | None) -> str:
    """A session as Markdown, nothing cut."""
    messages = session.messages
    folded = fold(messages)
    parts = [f"# {summary.ref.key}", f"{summary.ref.kind}, {summary.status}"]
    for index in range(_start(messages, folded, last), len(messages)):
        message = messages[index]
        loose = folded.loose.get(index, [])
        if _is_folded(message, loose):
            continue
        at = iso(message.at)
        parts.append(f"## {message.role or '(no role)'}" + (f" ({at})" if at else ""))
        if message.text and not (message.role == "tool" and loose):
            parts.append(message.text)
        for place, call in enumerate(message.tool_calls):
            parts.append(f"**{call.name or '(no name)'}**")
            parts.append(_fence(json.dumps(call.arguments, indent=2, ensure_ascii=False), "json"))
            answers = folded.answers.get((index, place), [])
            if call.result is not None:
                parts.append(_fence(call.result))
            elif not answers:
                parts.append(f"*no result ({call.id})*")
            parts.extend(_fence(answer.text) for answer in answers)
        for result in loose:
            parts += [f"*result without a call ({result.call_id})*", _fence(result.text)]
    return "\n\n".join(parts)


def _fence(text: str, language: str = "") -> str:
    """A code block that its text cannot close."""
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"
