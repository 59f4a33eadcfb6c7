"""From findings to an edit, pure: what a repair of one session would make of its payload (FORMATS.md section 4).

A repair goes in stages: first the bytes, then the links of a log, then what the user asked to be dropped, then the
pairing of calls and results. After each stage the checker judges the result, and a stage that does not help, or by
which a message would be lost, is not taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from ..codec import outline
from ..codec.mending import (
    Fresh,
    Item,
    Layout,
    NewId,
    Part,
    clean_document,
    clean_log,
    cut_cycle,
    decoded_messages,
    drop_repeats,
    laid_out,
)
from ..codec.messages import MADE_UP, calls_of
from ..errors import UsageError
from ..history import SEVERITY, Problem, Verdict, is_draft, judge
from ..model import Finding, Outline, Ref, Status, Step

Strategy = Literal["results", "note", "truncate"]
STRATEGIES: tuple[Strategy, ...] = ("results", "note", "truncate")

NO_RESULT = (
    f"{MADE_UP} Error: the tool {{name}} did not run: the turn was interrupted and no result was stored. "
    "This text was written by `sessionctl repair` in place of a result. "
    "If the call may have had an effect, check that before calling the tool again."
)
"""What a made-up result says."""
NOTE = (
    f"{MADE_UP} The last turn was interrupted: these tools did not run: {{names}}. "
    "This note was written by `sessionctl repair`."
)
"""What the note of the strategy ``note`` says."""

_BYTES = frozenset(
    {
        "byte-order-mark",
        "blank-or-crlf-line",
        "nul-bytes",
        "invalid-json",
        "invalid-utf8",
        "not-a-session",
        "glued-line",
        "torn-tail",
        "missing-final-newline",
    }
)
_PAIRING = frozenset(
    {"unresolved-tool-call", "orphan-tool-result", "late-tool-result", "duplicate-tool-result"},
)
_ROUNDS = 5
"""How often the history is looked at anew; what is taken out may leave an unanswered message at its end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a repair may do. ``only`` (empty: all) and ``skip`` are finding codes; raises UsageError for unknown ones.

    ``strategy`` says what becomes of a call without a result. ``results``: an error result is added. ``note``: besides,
    a user's note at the end says that the tools did not run, as LoopEngine adds on resume (alone it would leave the
    session refused). ``truncate``: an unfinished turn at the end is taken out, from the message with the call on; a
    call in the middle still gets a result. ``drop_drafts`` takes out unanswered user messages at the end. ``force``
    also mends a session that awaits approval, but never makes up a result for a call that does.
    """

    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    strategy: Strategy = "results"
    drop_drafts: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        for code in sorted(self.only | self.skip):
            if code not in SEVERITY:
                raise UsageError(f"no finding has the code {code!r}", hint=f"codes are {', '.join(sorted(SEVERITY))}")
        if self.strategy not in STRATEGIES:
            raise UsageError(f"no strategy is called {self.strategy!r}", hint=f"strategies are {', '.join(STRATEGIES)}")
        if self.strategy == "note" and self.drop_drafts:
            raise UsageError("the strategy 'note' ends the session with the kind of message that drop-drafts removes")

    def wants(self, code: str) -> bool:
        """Whether findings of this code are to be mended."""
        return (not self.only or code in self.only) and code not in self.skip

    def seen(self, found: Finding) -> Finding:
        """A finding as these options make it: an unanswered message can be taken out only where that was asked for."""
        return found._replace(fixable=True) if self.drop_drafts and found.code == "draft" else found


class Outcome(NamedTuple):
    """One finding and what became of it; ``reason`` says why it was not mended, where it could have been."""

    finding: Finding
    fixed: bool = False
    reason: str = ""


class Repair(NamedTuple):
    """What a repair makes of one payload. ``after`` is None where nothing changes.

    ``appended`` are the lines by which ``after`` is longer, where appending to a log suffices. ``status`` is that of
    the result. ``removed`` are the bytes that were taken out, ``changes`` says what was done, for people. ``awaits``:
    nothing may be done, since a call awaits approval.
    """

    outcomes: tuple[Outcome, ...]
    status: Status
    after: bytes | None = None
    appended: bytes | None = None
    removed: tuple[bytes, ...] = ()
    changes: tuple[str, ...] = ()
    awaits: bool = False


class _View(NamedTuple):
    """A payload and what the checker says of it."""

    payload: bytes
    outline: Outline
    verdict: Verdict


class _Change(NamedTuple):
    """What one stage would do: the new payload, the codes it mends, and the entries and bytes it takes out.

    ``view`` is the checker's view of the payload, where the stage has it.
    """

    payload: bytes
    codes: frozenset[str]
    gone: frozenset[str] = frozenset()
    roles: tuple[str, ...] | None = None
    removed: tuple[bytes, ...] = ()
    said: tuple[str, ...] = ()
    view: _View | None = None


def examine(ref: Ref, payload: bytes, now: int, approvals: Collection[str] = ()) -> tuple[Outline, Verdict]:
    """The checker: the outline of a payload and the verdict on it."""
    found = outline(ref, payload, now)
    return found, judge(found, approvals)


def mend(
    ref: Ref,
    payload: bytes,
    now: int,
    options: Options | None = None,
    approvals: Collection[str] = (),
    new_id: NewId | None = None,
) -> Repair:
    """What a repair of this payload comes to, all findings at once. Doing it again changes nothing.

    ``now`` is in ms; ``approvals`` are the call ids that open checkpoints of the session name; ``new_id`` makes the
    ids of new messages and entries (default: random UUIDs).
    """
    plan = _Plan(ref, payload, now, options or Options(), frozenset(approvals), new_id or _uuid)
    return plan.repair()


def _uuid() -> str:
    return str(uuid4())


class _Plan:
    def __init__(
        self, ref: Ref, payload: bytes, now: int, options: Options, approvals: frozenset[str], new_id: NewId
    ) -> None:
        self.ref, self.now, self.options, self.approvals, self.new_id = ref, now, options, approvals, new_id
        self.first = self.view = self.look(payload)
        self.seen: list[Finding] = list(self.view.verdict.findings)
        self.removed: list[bytes] = []
        self.said: list[str] = []
        self.why: dict[str, str] = {}

    def look(self, payload: bytes) -> _View:
        found, verdict = examine(self.ref, payload, self.now, self.approvals)
        return _View(payload, found, verdict._replace(findings=tuple(map(self.options.seen, verdict.findings))))

    def repair(self) -> Repair:
        if self.awaits():
            return self.held()
        for stage in (_clean, _cut_cycle):
            self.take(stage(self))
        for _ in range(_ROUNDS):
            taken = [self.take(stage(self)) for stage in _HISTORY]
            if not any(taken):
                break
        if self.awaits():
            return self.held()
        before, after = self.first.payload, self.view.payload
        outcomes = tuple(self.outcomes())
        if after == before:
            return Repair(outcomes, self.view.verdict.status)
        grown = self.ref.kind == "log" and bool(before) and after.startswith(before)
        return Repair(
            outcomes,
            self.view.verdict.status,
            after,
            after[len(before) :] if grown else None,
            tuple(self.removed),
            tuple(self.said),
        )

    def awaits(self) -> bool:
        return not self.options.force and not self.approvals.isdisjoint(self.view.verdict.unresolved)

    def held(self) -> Repair:
        first = self.first.verdict
        return Repair(tuple(Outcome(f, reason="awaits approval") for f in first.findings), first.status, awaits=True)

    def refuse(self, codes: Collection[str], reason: str) -> None:
        self.why.update(dict.fromkeys(codes, reason))

    def take(self, change: _Change | None) -> bool:
        """Go on with the result of a stage if the checker says that it helps and nothing is lost by it."""
        if change is None or change.payload == self.view.payload:
            return False
        after = change.view or self.look(change.payload)
        reason = _objection(self.view, after, change)
        if reason:
            self.refuse(change.codes, reason)
            return False
        self.view = after
        self.removed += change.removed
        self.said += change.said
        codes = {f.code for f in self.seen}
        self.seen += [f for f in after.verdict.findings if f.code not in codes]
        return True

    def outcomes(self) -> Iterator[Outcome]:
        left = Counter(f.code for f in self.view.verdict.findings if f.fixable)
        for found in self.seen:
            fixed = found.fixable and self.options.wants(found.code) and not left[found.code]
            if fixed and self.view is self.first:
                fixed = False
            reason = "" if fixed or not found.fixable else self.why.get(found.code, "")
            yield Outcome(found, fixed, reason)


def _weight(verdict: Verdict, codes: Collection[str]) -> int:
    return sum(f.fixable and f.code in codes for f in verdict.findings)


def _objection(before: _View, after: _View, change: _Change) -> str:
    """Why a stage's result is not to be taken; empty where it is."""
    if _weight(after.verdict, change.codes) >= _weight(before.verdict, change.codes):
        return "the repair would not help"
    if change.roles is not None and tuple(s.role for s in after.outline.steps or ()) != change.roles:
        return "the repaired history would not be the one that is wanted"
    if before.outline.kind == "log":
        had = {e.id for e in before.outline.entries} - change.gone
        if not had <= {e.id for e in after.outline.entries}:
            return "an entry would be lost"
    if before.outline.steps is None:
        return ""
    if after.outline.steps is None:
        return "the session would not be readable any more"
    reached, reaches = ({view.outline.entries[i].id for i in view.outline.order} for view in (before, after))
    if not reached - change.gone <= reaches:
        return "a message would leave the history"
    worse = Counter(f.code for f in after.verdict.findings if f.severity == "error")
    worse.subtract(Counter(f.code for f in before.verdict.findings if f.severity == "error"))
    new = [code for code, number in worse.items() if number > 0]
    return f"it would bring about {new[0]}" if new else ""


# --- stages -----------------------------------------------------------------------------------------------------------


def _clean(plan: _Plan) -> _Change | None:
    wanted = {code for code in _BYTES if plan.options.wants(code)}
    clean = clean_log if plan.ref.kind == "log" else clean_document
    cleaned = clean(plan.view.payload, wanted)
    if not cleaned.codes:
        return None
    said = [f"put right: {', '.join(sorted(cleaned.codes))}"]
    if cleaned.removed:
        said.append(f"took out {sum(map(len, cleaned.removed))} bytes that belong to no message")
    return _Change(cleaned.payload, cleaned.codes, removed=cleaned.removed, said=tuple(said))


def _cut_cycle(plan: _Plan) -> _Change | None:
    if plan.ref.kind != "log" or not plan.options.wants("parent-cycle"):
        return None
    after = cut_cycle(plan.view.payload, plan.view.outline)
    damage = next((d for d in plan.view.outline.damage if d.code == "parent-cycle"), None)
    if after is None or damage is None:
        return None
    return _Change(after, frozenset({"parent-cycle"}), said=(f"line {damage.line}: the entry has no parent any more",))


def _drop_repeats(plan: _Plan, *, keep_last: bool = False) -> _Change | None:
    view = plan.view
    repeats = any(n.code == "duplicate-entry" for n in view.outline.notes)
    if not repeats or view.outline.damage or not plan.options.wants("duplicate-entry"):
        return None
    after, removed = drop_repeats(view.payload, view.outline, keep_last=keep_last)
    said = (f"took out what is stored twice: {len(removed)} of the entries",)
    return _Change(after, frozenset({"duplicate-entry"}), removed=removed, said=said)


def _drop_earlier_repeats(plan: _Plan) -> _Change | None:
    """Where the history hangs on the last of several copies, that one stays."""
    return _drop_repeats(plan, keep_last=True)


def _drop_drafts(plan: _Plan) -> _Change | None:
    steps = plan.view.outline.steps
    if not plan.options.drop_drafts or not plan.options.wants("draft") or steps is None or not is_draft(steps):
        return None
    end = len(steps)
    while is_draft(steps[:end][-1:]):
        end -= 1
    return _cut(plan, end, "draft", f"took out {len(steps) - end} unanswered user messages at the end")


def _truncate(plan: _Plan) -> _Change | None:
    """Cut the history before an unfinished turn at its end, and before the one that then ends it, and so on."""
    steps = plan.view.outline.steps
    if plan.options.strategy != "truncate" or not plan.options.wants("unresolved-tool-call") or steps is None:
        return None
    open_calls: dict[int, set[str]] = {}
    for problem in plan.view.verdict.problems:
        if problem.code == "unresolved-tool-call":
            open_calls.setdefault(problem.step, set()).add(problem.call_id)
    end = at = len(steps)
    while at:
        at -= 1
        if at in open_calls and plan.approvals.isdisjoint(open_calls[at]):
            end = at
        elif not steps[at].only_results:
            break
    if end == len(steps):
        return None
    count = len(steps) - end
    said = f"took out the unfinished turn ({count} message{'s' if count > 1 else ''})"
    return _cut(plan, end, "unresolved-tool-call", said)


def _cut(plan: _Plan, end: int, code: str, said: str) -> _Change | None:
    steps = plan.view.outline.steps or ()
    return _arranged(plan, plan.view, Layout(range(end)), range(end, len(steps)), frozenset({code}), (said,))


def _arranged(
    plan: _Plan, view: _View, layout: Layout, gone: Collection[int], codes: frozenset[str], said: tuple[str, ...]
) -> _Change | None:
    """The change that gives the session another history; ``gone`` are the steps that leave it as a whole."""
    steps = view.outline.steps or ()
    if view.outline.damage:
        plan.refuse(codes, "the damage of the session has to be mended first")
        return None
    try:
        payload = laid_out(view.payload, view.outline, layout, plan.now, plan.new_id)
    except ValueError as error:
        plan.refuse(codes, str(error))
        return None
    ids = frozenset(view.outline.entries[view.outline.order[s]].id for s in gone) if view.outline.order else frozenset()
    return _Change(payload, codes, ids, tuple(_role(steps, item) for item in layout.order), said=said)


def _role(steps: Sequence[Step], item: Item) -> str:
    if isinstance(item, int):
        return steps[item].role
    return str(item.message["role"]) if isinstance(item, Fresh) else "user"


# --- pairing ----------------------------------------------------------------------------------------------------------


class _Fate(NamedTuple):
    """What becomes of the results of one step: which blocks are removed, and which go behind which call's message."""

    removed: set[int]
    moved: dict[int, list[int]]
    ranks: dict[int, int]


def _pair(plan: _Plan) -> _Change | None:
    """Put calls and results right: planned anew until nothing is left, since a result that takes the place of a made-up
    one has to be moved there in its turn. Judged as a whole."""
    view, done = plan.view, None
    for _ in range(_ROUNDS):
        change = _pair_once(plan, view)
        if change is None:
            break
        view = plan.look(change.payload)
        done = change if done is None else _joined(done, change)
    return done and done._replace(view=view)


def _joined(first: _Change, then: _Change) -> _Change:
    return then._replace(codes=first.codes | then.codes, gone=first.gone | then.gone, said=(*first.said, *then.said))


def _pair_once(plan: _Plan, view: _View) -> _Change | None:
    steps = view.outline.steps
    problems = [
        p
        for p in view.verdict.problems
        if p.fixable and p.code in _PAIRING and plan.options.wants(p.code) and p.call_id not in _held(plan, p)
    ]
    if not problems or steps is None:
        return None
    layout, gone = _layout(plan, view, steps, problems)
    codes = frozenset(p.code for p in problems)
    return _arranged(plan, view, layout, gone, codes, tuple(_sentence(p) for p in problems))


def _held(plan: _Plan, problem: Problem) -> frozenset[str]:
    return plan.approvals if problem.code == "unresolved-tool-call" else frozenset()


def _sentence(problem: Problem) -> str:
    what = {
        "unresolved-tool-call": "added a result for the call {id}",
        "orphan-tool-result": "took out a result for {id}, which no message calls",
        "late-tool-result": "moved the result of {id} to right after its call",
        "duplicate-tool-result": "took out a second result of {id}",
    }[problem.code]
    return what.format(id=problem.call_id or "(no id)")


def _layout(plan: _Plan, view: _View, steps: Sequence[Step], problems: Sequence[Problem]) -> tuple[Layout, list[int]]:
    fates: dict[int, _Fate] = {}
    missing: dict[int, list[str]] = {}
    # A made-up result that is out of place and superseded is named twice: it goes.
    going = {(p.step, p.result.block) for p in problems if p.result is not None and p.code != "late-tool-result"}
    for problem in problems:
        result, call_step = problem.result, problem.call_step
        if result is None:
            missing.setdefault(problem.step, []).append(problem.call_id)
            continue
        fate = fates.setdefault(problem.step, _Fate(set(), {}, {}))
        if (problem.step, result.block) in going or call_step is None:
            fate.removed.add(result.block)
        else:
            fate.moved.setdefault(call_step, []).append(result.block)
            rank = _rank(steps[call_step], problem.call_id)
            fate.ranks[call_step] = min(rank, fate.ranks.get(call_step, rank))

    arrivals: dict[int, list[tuple[int, Item]]] = {}
    moved: set[int] = set()
    gone: list[int] = []
    taken: dict[int, set[int]] = {}
    for index, fate in fates.items():
        targets = dict(fate.moved)
        leaving = len(fate.removed) + sum(map(len, targets.values()))
        if steps[index].only_results and leaving == len(steps[index].results):
            if not targets:
                gone.append(index)
                continue
            # The message itself goes with the first results that are moved; it keeps its id.
            target = next(iter(targets))
            del targets[target]
            moved.add(index)
            arrivals.setdefault(target, []).append((fate.ranks[target], index))
        blocks = {*fate.removed, *(block for part in targets.values() for block in part)}
        if blocks:
            taken[index] = blocks
        for target, part in targets.items():
            arrivals.setdefault(target, []).append((fate.ranks[target], Part(index, tuple(part))))

    message_of = decoded_messages(view.payload, view.outline) if missing else None
    for index, ids in missing.items():
        assert message_of is not None
        rank = len(steps[index].calls)
        arrivals.setdefault(index, []).extend((rank, fresh) for fresh in _results(message_of(index), ids))

    order: list[Item] = []
    waiting: list[tuple[int, Item]] = []
    left = moved.union(gone)
    for index, step in enumerate(steps):
        if index in left:
            continue
        if not step.only_results:
            order += [item for _, item in sorted(waiting, key=lambda pair: pair[0])]
            waiting = arrivals.get(index, [])
        order.append(index)
    order += [item for _, item in sorted(waiting, key=lambda pair: pair[0])]
    if plan.options.strategy == "note" and view.verdict.status == "interrupted":
        order.append(Fresh({"role": "user", "content": NOTE.format(names=_names(steps, missing))}))
    return Layout(order, moved, taken), gone


def _rank(step: Step, call_id: str) -> int:
    return next((number for number, call in enumerate(step.calls) if call.id == call_id), len(step.calls))


def _names(steps: Sequence[Step], missing: dict[int, list[str]]) -> str:
    newest = max(missing, default=0)
    return ", ".join(c.name for c in steps[newest].calls if c.id in missing.get(newest, ()))


def _results(message: dict[str, Any], ids: Sequence[str]) -> Iterator[Fresh]:
    """Error results for calls of a message, in the spelling of each call; Anthropic's share one message."""
    blocks: list[dict[str, Any]] = []
    names = {call.id: call.name for call, _ in calls_of(message)}
    seepient, openai = (_ids(message.get(key)) for key in ("toolCalls", "tool_calls"))
    for call_id in ids:
        text = NO_RESULT.format(name=names.get(call_id, ""))
        if call_id in seepient:
            yield Fresh({"role": "tool", "content": text, "toolCallId": call_id})
        elif call_id in openai:
            yield Fresh({"role": "tool", "tool_call_id": call_id, "content": text})
        else:
            blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": True})
    if blocks:
        yield Fresh({"role": "user", "content": blocks})


def _ids(calls: object) -> set[object]:
    return (
        {call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)}
        if isinstance(calls, list)
        else set()
    )


_HISTORY = (_drop_repeats, _drop_earlier_repeats, _drop_drafts, _truncate, _pair)
"""The stages that work on the history, in their order."""
