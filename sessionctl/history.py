"""The rules of a history, pure: the chain of a log, which call belongs to which result, status and findings.

Sources: FORMATS.md section 2 (Chain, Interruption, Pending approvals), section 3 (status) and section 4 (findings).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from .model import Entry, Finding, Outline, Result, Severity, Status, Step

SEVERITY: dict[str, Severity] = {
    "unresolved-tool-call": "error",
    "orphan-tool-result": "error",
    "late-tool-result": "error",
    "duplicate-tool-call-id": "error",
    "duplicate-tool-result": "error",
    "malformed-tool-call": "error",
    "empty-text": "warning",
    "missing-content": "warning",
    "consecutive-user-messages": "info",
    "draft": "info",
    "invalid-json": "error",
    "not-a-session": "error",
    "empty-file": "error",
    "nul-bytes": "error",
    "invalid-utf8": "error",
    "byte-order-mark": "error",
    "torn-tail": "error",
    "glued-line": "error",
    "missing-final-newline": "warning",
    "blank-or-crlf-line": "error",
    "parent-cycle": "error",
    "missing-parent": "warning",
    "several-roots": "info",
    "duplicate-entry": "warning",
    "conflicting-entry": "error",
    "stray-temporary-file": "warning",
    "id-mismatch": "warning",
    "bad-timestamp": "warning",
    "timestamp-in-seconds": "warning",
    "no-owner": "info",
    "lone-surrogate": "warning",
    "stale-lock": "warning",
    "wrong-type-key": "error",
}
"""Every finding code and its severity (an ``empty-file`` is ``info`` in logs)."""


def finding(code: str, where: str, message: str, *, fixable: bool = False) -> Finding:
    """A finding with the severity that its code has."""
    return Finding(code, SEVERITY[code], where, message, fixable)


class Chain(NamedTuple):
    """The effective history of a log as indexes into its entries; ``order`` is None where the parents form a cycle."""

    order: tuple[int, ...] | None
    notes: tuple[Finding, ...]
    cycle: int | None = None


def chain(entries: Sequence[Entry], same: Collection[int] = ()) -> Chain:
    """Rebuild the history of a log: walk from the last entry to the root, then bring back siblings.

    FORMATS.md section 2, Chain. The last of several entries with one id is the one that is walked, as in the original.
    ``same`` holds the indexes of entries that repeat an earlier one exactly. Linear in the number of entries.
    """
    if not entries:
        return Chain((), ())
    by_id: dict[str, int] = {}
    children: dict[str, list[int]] = {}
    notes: list[Finding] = []
    roots = 0
    for index, entry in enumerate(entries):
        if entry.id in by_id:
            if index in same:
                notes.append(finding("duplicate-entry", _at(entry), "the entry is stored twice", fixable=True))
            else:
                notes.append(finding("conflicting-entry", _at(entry), "another entry has the same id"))
        elif entry.parent is None:
            roots += 1
        by_id[entry.id] = index
        if entry.parent is not None:
            children.setdefault(entry.parent, []).append(index)

    path: list[int] = []
    seen: set[int] = set()
    current: int | None = len(entries) - 1
    while current is not None:
        if current in seen:
            # Cut at the earliest entry of the loop: it is the one that began the conversation.
            loop = path[path.index(current) :]
            return Chain(None, tuple(notes), cycle=min(loop))
        seen.add(current)
        path.append(current)
        parent = entries[current].parent
        current = by_id.get(parent) if parent is not None else None
    path.reverse()

    missing = [e for e in entries if e.parent is not None and e.parent not in by_id]
    notes.extend(finding("missing-parent", _at(e), f"its parent {e.parent!r} is not in the log") for e in missing)
    if roots > 1:
        notes.append(finding("several-roots", "log", f"{roots} entries have no parent"))

    order: list[int] = []
    for place, index in enumerate(path):
        order.append(index)
        following = entries[path[place + 1]].id if place + 1 < len(path) else None
        order.extend(i for i in children.get(entries[index].id, ()) if entries[i].id != following)
    return Chain(tuple(order), tuple(notes))


def _at(entry: Entry) -> str:
    return entry_place(entry.id, entry.line, entry.start)


def entry_place(name: str, line: int, start: int) -> str:
    """Where an entry stands, for people."""
    return f"entry {name} (line {line}, byte {start})"


class Problem(NamedTuple):
    """One fault of pairing: where it is (``step``: index in the history), and what it is about.

    ``result`` is the result in question; ``call_step`` the step whose call it belongs to, where there is one.
    """

    code: str
    step: int
    call_id: str
    result: Result | None = None
    call_step: int | None = None
    fixable: bool = True


class _Owner:
    """A call that waits for its answer while the history is read."""

    __slots__ = ("answer", "call_id", "inline_text", "is_inline", "needs", "step")

    def __init__(self, step: int, call_id: str, needs: bool, is_inline: bool, inline_text: str) -> None:
        self.step = step
        self.call_id = call_id
        self.needs = needs
        self.is_inline = is_inline
        self.inline_text = inline_text
        self.answer: tuple[int, Result] | None = None

    @property
    def open(self) -> bool:
        return self.answer is None and not self.is_inline


def pair(steps: Sequence[Step]) -> list[Problem]:
    """Match calls and results by position, and name what does not match, in the order of the history.

    A result is in its place when nothing but results stands between it and the message with its call. Ids may repeat
    in later turns: each turn is matched on its own first. Linear in the number of calls and results.
    """
    if not any(step.calls or step.results for step in steps):
        return []
    problems: list[Problem] = []
    owners: dict[str, list[_Owner]] = {}
    strays: list[tuple[int, Result]] = []
    window: dict[str, _Owner] = {}
    for index, step in enumerate(steps):
        for result in step.results:
            owner = window.get(result.call_id)
            if owner is None:
                strays.append((index, result))
            elif owner.open:
                owner.answer = (index, result)
            elif not (owner.is_inline and owner.answer is None):
                problems.append(_second_answer(owner, index, result))
            elif owner.inline_text == result.text:
                owner.answer = (
                    index,
                    result,
                )  # stored twice, the same: healthy (a known habit of one writer)
            else:
                owner.answer = (index, result)
                problems.append(
                    Problem("duplicate-tool-result", index, result.call_id, result, owner.step, fixable=False)
                )
        if not step.only_results:
            window = {}
        for call in step.calls:
            if not call.well_formed:
                problems.append(Problem("malformed-tool-call", index, call.id, call_step=index, fixable=False))
            if not call.id:
                continue
            if call.id in owners:
                problems.append(Problem("duplicate-tool-call-id", index, call.id, call_step=index, fixable=False))
            if call.id not in window:
                owner = _Owner(index, call.id, call.well_formed, call.inline, call.inline_text)
                window[call.id] = owner
                owners.setdefault(call.id, []).append(owner)

    groups: dict[str, _Group] = {}
    for index, result in strays:
        group = groups.get(result.call_id)
        if group is None:
            group = groups[result.call_id] = _Group(owners.get(result.call_id, []))
        problems.append(group.place(index, result))
    problems.extend(
        Problem("unresolved-tool-call", owner.step, owner.call_id, call_step=owner.step)
        for group in owners.values()
        for owner in group
        if owner.open and owner.needs
    )
    problems.sort(key=lambda problem: problem.step)
    return problems


def _second_answer(owner: _Owner, index: int, result: Result) -> Problem:
    """A second answer to one call: the made-up one goes, else the later one."""
    assert owner.answer is not None
    place, first = owner.answer
    if first.made_up and not result.made_up:
        owner.answer = (index, result)
        return Problem("duplicate-tool-result", place, first.call_id, first, owner.step)
    return Problem("duplicate-tool-result", index, result.call_id, result, owner.step)


class _Group:
    """The calls of one id, while results that do not stand in their place look for theirs, in the order of the history.

    Each call is passed once, so that a thousand calls of one id cost no more than a thousand calls.
    """

    def __init__(self, owners: list[_Owner]) -> None:
        self._last = owners[-1] if owners else None
        self._earlier: list[_Owner] = []
        self._later = deque(owners)
        self._made_up = [owner for owner in owners if owner.answer is not None and owner.answer[1].made_up]

    def place(self, index: int, result: Result) -> Problem:
        """Judge a result that does not stand in its place: whose is it?"""
        if self._last is None:
            return Problem("orphan-tool-result", index, result.call_id, result)
        owner = self._open(index)
        if owner is not None:
            owner.answer = (index, result)
            if result.made_up:
                self._made_up.append(owner)
            return Problem("late-tool-result", index, result.call_id, result, owner.step)
        if self._made_up and not result.made_up:
            owner = self._made_up.pop()
            assert owner.answer is not None
            place, filler = owner.answer
            owner.answer = (index, result)
            return Problem("duplicate-tool-result", place, result.call_id, filler, owner.step)
        return Problem("duplicate-tool-result", index, result.call_id, result, self._last.step)

    def _open(self, index: int) -> _Owner | None:
        """The nearest call before ``index`` that waits for an answer, else the first one after it."""
        later = self._later
        while later and later[0].step < index:
            owner = later.popleft()
            if owner.open:
                self._earlier.append(owner)
        if self._earlier:
            return self._earlier.pop()
        here = later.popleft() if later and later[0].step == index else None
        while later and not later[0].open:
            later.popleft()
        found = later.popleft() if later else None
        if here is not None:
            later.appendleft(here)
        return found


_MESSAGES = {
    "unresolved-tool-call": "the call {id} has no result; model APIs refuse the session as it is",
    "orphan-tool-result": "a result for {id}, which no message calls",
    "late-tool-result": "the result of {id} does not stand right after its call",
    "duplicate-tool-call-id": "the call id {id} is used twice",
    "duplicate-tool-result": "a second result for {id}",
    "malformed-tool-call": "the call {id} lacks an id or a name, or its arguments are not an object",
}


class Verdict(NamedTuple):
    """What the rules say of a session: its status, its findings, and the ids of its calls without a result."""

    status: Status
    findings: tuple[Finding, ...]
    unresolved: tuple[str, ...]
    problems: tuple[Problem, ...]


def judge(outline: Outline, approvals: Collection[str] = ()) -> Verdict:
    """Status and findings of a session (FORMATS.md sections 3 and 4).

    ``approvals`` are the call ids that open checkpoints of this session name.
    """
    findings = [
        finding(d.code, damage_place(d.line, d.offset), d.message, fixable=_is_mendable(outline, d.code))
        for d in outline.damage
    ]
    findings.extend(outline.notes)
    steps = outline.steps
    if steps is None:
        return Verdict("damaged", tuple(findings), (), ())
    if outline.sound is not None:
        if outline.sound == "draft":
            findings.append(_draft(outline.last))
        return Verdict(outline.sound, tuple(findings), (), ())
    problems = pair(steps)
    unresolved = tuple(p.call_id for p in problems if p.code == "unresolved-tool-call")
    interrupted = bool(unresolved) and _is_interrupted(steps, problems)
    awaiting = interrupted and set(unresolved) <= set(approvals)
    findings.extend(
        finding(
            problem.code,
            place(outline, problem.step),
            _MESSAGES[problem.code].format(id=problem.call_id or "(no id)"),
            fixable=problem.fixable,
        )
        for problem in problems
        if not (awaiting and problem.code == "unresolved-tool-call")
    )
    findings.extend(_texts(outline, steps))
    return Verdict(
        _status(outline, steps, findings, interrupted, awaiting), tuple(findings), unresolved, tuple(problems)
    )


Turn = tuple[str, Sequence[str], Sequence[str]]
"""A message as soundness sees it: its role, the ids of its calls (all well-formed), the ids of its results.

Beside calls, the results are those that the calls themselves carry.
"""


class Soundness:
    """Follows a history turn by turn for as long as nothing is wrong with it: its status can only be draft or ok.

    Most histories are so, and this takes a third of the time. It gives up (False) at whatever takes a closer look.
    """

    def __init__(self) -> None:
        self.count = 0
        """Messages so far."""
        self._waiting: list[str] = []
        self._before = ""
        self._calls = array("q")

    def follows(self, turns: Sequence[Turn]) -> bool:
        """Whether the history is without fault up to the end of these, which come next."""
        waiting, before = self._waiting, self._before
        for role, calls, results in turns:
            if results and not calls:
                for call_id in results:
                    if not waiting or waiting.pop() != call_id:
                        return False
                before = "tool"
                continue
            if waiting or (role == before == "user"):
                return False
            if calls:
                answered = frozenset(results)
                waiting = [call_id for call_id in reversed(calls) if call_id not in answered]
                self._calls.extend(map(hash, calls))
            before = role
        self.count += len(turns)
        self._waiting, self._before = waiting, before
        return True

    def status(self) -> Literal["draft", "ok"] | None:
        """The status of a history that ends here; None where a closer look must tell."""
        if self._waiting or self._before not in ("user", "assistant", "tool") or repeats(self._calls):
            return None
        return "draft" if self._before == "user" else "ok"


def repeats(values: array[int]) -> bool:
    """Whether a value occurs twice; a part of them at a time, since a set of all would take most of the memory."""
    parts = 1 + len(values) // 200_000
    for part in range(parts):
        some = [value for value in values if value % parts == part] if parts > 1 else values
        if len(set(some)) < len(some):
            return True
    return False


def _is_mendable(outline: Outline, code: str) -> bool:
    """Whether a repair can put this damage right: in a log if a whole entry is there, of a document only its mark."""
    if outline.kind == "log":
        return bool(outline.entries)
    return code == "byte-order-mark" and outline.steps is not None


def _status(
    outline: Outline, steps: Sequence[Step], findings: Sequence[Finding], interrupted: bool, awaiting: bool
) -> Status:
    if outline.damage:
        return "damaged"
    if all(step.role == "system" for step in steps):
        return "empty"
    if awaiting:
        return "awaiting-approval"
    if interrupted:
        return "interrupted"
    if any(f.severity == "error" for f in findings):
        return "broken"
    return "draft" if is_draft(steps) else "ok"


def is_draft(steps: Sequence[Step]) -> bool:
    """Whether the last message is a user's that nobody answered."""
    return bool(steps) and steps[-1].role == "user" and not steps[-1].results


def _is_interrupted(steps: Sequence[Step], problems: Sequence[Problem]) -> bool:
    newest = max(index for index, step in enumerate(steps) if step.calls)
    return any(p.code == "unresolved-tool-call" and p.step == newest for p in problems) and all(
        step.only_results for step in steps[newest + 1 :]
    )


def _texts(outline: Outline, steps: Sequence[Step]) -> list[Finding]:
    """Findings that concern single messages, not pairs."""
    found: list[Finding] = []
    before = None
    for index, step in enumerate(steps):
        if step.empty_text:
            found.append(finding("empty-text", place(outline, index), "an empty text; some APIs refuse it"))
        if step.missing_content:
            found.append(finding("missing-content", place(outline, index), "the message has no content"))
        if outline.kind == "document" and step.role == before == "user" and not step.results:
            found.append(finding("consecutive-user-messages", place(outline, index), "two user messages in a row"))
        before = step.role
    if is_draft(steps):
        found.append(_draft(place(outline, len(steps) - 1)))
    return found


def _draft(where: str) -> Finding:
    return finding("draft", where, "the last message was not answered")


def place(outline: Outline, step: int) -> str:
    """Where a step of the history stands, for people: ``messages[3]`` or ``entry e3 (line 4, byte 512)``."""
    return _at(outline.entries[outline.order[step]]) if outline.order else f"messages[{step}]"


def damage_place(line: int | None, offset: int | None) -> str:
    """Where damage lies, for people."""
    if line is not None:
        return f"line {line}, byte {offset or 0}"
    return f"byte {offset}" if offset is not None else "file"
