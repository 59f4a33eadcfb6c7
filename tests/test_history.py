"""The rules of a history against naive versions of them, written here from FORMATS.md, and against SessionKnit."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessionknit import SessionEntry
from sessionknit.reconstruct import reconstruct_chain

from sessionctl import codec
from sessionctl.history import SEVERITY, Soundness, Turn, chain, finding, is_draft, judge, pair
from sessionctl.model import Call, Damage, Entry, Outline, Ref, Result, Step

NOW = 1_796_000_000_000
ANY_STEP = Step("user")
LOG = Ref("k", "log")


# --- the chain of a log -----------------------------------------------------------------------------------------------


def naive_chain(parents: Sequence[tuple[str, str | None]]) -> list[int] | None:
    """FORMATS.md section 2, Chain, word for word and without regard to speed; None where the parents form a cycle."""
    leaf = len(parents) - 1
    path = [leaf]
    while parents[path[0]][1] is not None:
        known = [index for index, (id_, _) in enumerate(parents) if id_ == parents[path[0]][1]]
        if not known:
            break
        if known[-1] in path:
            return None
        path.insert(0, known[-1])
    order = []
    for place, node in enumerate(path):
        order.append(node)
        following = parents[path[place + 1]][0] if place + 1 < len(path) else None
        order += [i for i, (id_, p) in enumerate(parents) if p == parents[node][0] and id_ != following]
    return order


ids = st.sampled_from(["a", "b", "c", "d", "e", "f"])
graphs = st.lists(st.tuples(ids, st.none() | ids | st.just("gone")), min_size=1, max_size=9)
"""Anything: cycles, repeated ids, several roots, parents that are missing or come later."""


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[str, str | None]]:
    """A tree of entries, in an order in which parents may come after their children."""
    size = draw(st.integers(1, 40))
    nodes: list[tuple[str, str | None]] = [("n0", None)]
    for number in range(1, size):
        nodes.append((f"n{number}", f"n{draw(st.integers(max(0, number - draw(st.integers(1, 5))), number - 1))}"))
    return draw(st.permutations(nodes)) if draw(st.booleans()) else nodes


def entries_of(parents: Sequence[tuple[str, str | None]]) -> list[Entry]:
    return [Entry(id_, parent, ANY_STEP) for id_, parent in parents]


def payload_of(parents: Sequence[tuple[str, str | None]]) -> bytes:
    """A log of these entries; each message says which line it stands on."""
    lines = [
        {"id": id_, "parentId": parent, "message": {"role": "user", "content": f"line {number}"}}
        for number, (id_, parent) in enumerate(parents)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@given(graphs | trees())
def test_the_chain_is_what_the_rules_say(parents: list[tuple[str, str | None]]) -> None:
    found = chain(entries_of(parents))
    expected = naive_chain(parents)
    assert (None if found.order is None else list(found.order)) == expected
    assert (found.cycle is None) is (expected is not None)


@given(trees())
def test_the_chain_is_sessionknits(parents: list[tuple[str, str | None]]) -> None:
    knit = [SessionEntry(id_, parent, number) for number, (id_, parent) in enumerate(parents)]
    found = chain(entries_of(parents))
    assert found.order is not None
    assert list(found.order) == reconstruct_chain(knit).messages


@given(graphs)
def test_where_sessionknit_ends_we_agree_with_it(parents: list[tuple[str, str | None]]) -> None:
    found = chain(entries_of(parents))
    if found.order is not None:
        knit = [SessionEntry(id_, parent, number) for number, (id_, parent) in enumerate(parents)]
        assert list(found.order) == reconstruct_chain(knit).messages


@given(graphs | trees())
def test_no_entry_is_lost_or_doubled(parents: list[tuple[str, str | None]]) -> None:
    """Each entry is in the history or beside it, once, and nothing but a cycle leaves no history."""
    session = codec.read(LOG, payload_of(parents), NOW)
    texts = [message.text for message in (*session.messages, *session.others)]
    assert sorted(texts) == sorted(f"line {number}" for number in range(len(parents)))
    expected = naive_chain(parents)
    assert [message.text for message in session.messages] == [f"line {number}" for number in expected or ()]
    assert (session.outline.steps is None) is (expected is None)
    assert [d.code for d in session.outline.damage] == (["parent-cycle"] if expected is None else [])


@given(graphs | trees())
def test_what_is_said_of_a_graph(parents: list[tuple[str, str | None]]) -> None:
    known = {id_ for id_, _ in parents}
    seen: dict[str, tuple[str, str | None]] = {}
    same, repeats, conflicts, roots = set(), 0, 0, 0
    for index, (id_, parent) in enumerate(parents):
        if id_ not in seen:
            seen[id_] = (id_, parent)
            roots += parent is None
        elif seen[id_] == (id_, parent):
            same.add(index)
            repeats += 1
        else:
            conflicts += 1
    found = chain(entries_of(parents), same)
    codes = Counter(note.code for note in found.notes)
    assert codes["duplicate-entry"] == repeats
    assert codes["conflicting-entry"] == conflicts
    if found.order is not None:
        assert codes["missing-parent"] == sum(p is not None and p not in known for _, p in parents)
        assert codes["several-roots"] == (roots > 1)


def test_a_branch_keeps_its_number() -> None:
    parents = [("a", None), ("b", "a"), ("c", "b"), ("d", "c"), ("x", "b"), ("y", "x"), ("z", "y"), ("e", "d")]
    session = codec.read(LOG, payload_of(parents), NOW)
    assert [m.id for m in session.messages] == ["a", "b", "x", "c", "d", "e"]
    assert [(m.id, m.branch) for m in session.others] == [("y", 1), ("z", 1)]


def timed(function: Any, *arguments: Any) -> float:
    started = time.process_time()
    function(*arguments)
    return time.process_time() - started


@pytest.mark.parametrize(
    "shape",
    [
        lambda n: [("n0", None)] + [(f"n{i}", f"n{i - 1}") for i in range(1, n)],
        lambda n: [("n0", None)] + [(f"n{i}", "n0") for i in range(1, n)],
        lambda n: [(f"n{i}", f"n{(i - 1) % n}") for i in range(n)],
        lambda n: [("n", "n") for _ in range(n)],
        lambda n: [(f"n{i}", "gone") for i in range(n)],
    ],
    ids=["line", "star", "ring", "one id", "orphans"],
)
def test_the_chain_takes_linear_time(shape: Any) -> None:
    assert timed(chain, entries_of(shape(50_000))) < 5


# --- calls and results ------------------------------------------------------------------------------------------------


def naive_problems(steps: Sequence[Step]) -> Counter[tuple[str, str]]:
    """Which codes are due for which call id, for histories that use each call id for one call."""
    due: Counter[tuple[str, str]] = Counter()
    calls = {call.id: (place, call) for place, step in enumerate(steps) for call in step.calls}
    results: dict[str, list[tuple[int, Result]]] = {}
    for place, step in enumerate(steps):
        for result in step.results:
            results.setdefault(result.call_id, []).append((place, result))
    for call_id, answers in results.items():
        if call_id not in calls:
            due["orphan-tool-result", call_id] += len(answers)
            continue
        home, _ = calls[call_id]
        in_place = [
            place for place, _ in answers if place > home and all(s.only_results for s in steps[home + 1 : place])
        ]
        due["late-tool-result", call_id] += not in_place
        due["duplicate-tool-result", call_id] += len(answers) - 1
    for call_id, (_, call) in calls.items():
        due["malformed-tool-call", call_id] += not call.well_formed
        due["unresolved-tool-call", call_id] += call.well_formed and call_id not in results
    return +due


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Messages with calls, each of its own id, and results anywhere, of any call or of none."""
    unused = [f"c{number}" for number in range(8)]
    steps = []
    for _ in range(draw(st.integers(0, 9))):
        kind = draw(st.sampled_from(["user", "assistant", "system", "calls", "results", "results", "mixed"]))
        if kind in ("user", "assistant", "system"):
            steps.append(Step(kind))
        elif kind == "calls":
            some = [unused.pop(0) for _ in range(min(len(unused), draw(st.integers(1, 3))))]
            steps.append(Step("assistant", tuple(Call(c, "f", draw(st.integers(0, 4)) > 0) for c in some)))
        else:
            named = draw(st.lists(st.sampled_from([f"c{number}" for number in range(9)]), min_size=1, max_size=3))
            results = tuple(Result(c, i, draw(st.booleans())) for i, c in enumerate(named))
            steps.append(Step("user", (), results, kind == "results"))
    return steps


@settings(max_examples=150)
@given(histories())
def test_pairing_is_what_the_rules_say(steps: list[Step]) -> None:
    assert Counter((problem.code, problem.call_id) for problem in pair(steps)) == naive_problems(steps)


def naive_status(steps: Sequence[Step] | None, damaged: bool, approved: set[str]) -> str:
    """FORMATS.md section 3, row by row."""
    if steps is None or damaged:
        return "damaged"
    if all(step.role == "system" for step in steps):
        return "empty"
    due = naive_problems(steps)
    unresolved = {call_id for code, call_id in due if code == "unresolved-tool-call"}
    with_calls = [place for place, step in enumerate(steps) if step.calls]
    if with_calls:
        newest = with_calls[-1]
        if any(call.id in unresolved for call in steps[newest].calls) and all(
            step.only_results for step in steps[newest + 1 :]
        ):
            return "awaiting-approval" if unresolved <= approved else "interrupted"
    if any(SEVERITY[code] == "error" for code, _ in due):
        return "broken"
    return "draft" if steps[-1].role == "user" and not steps[-1].results else "ok"


@settings(max_examples=150)
@given(histories(), st.booleans(), st.sets(st.sampled_from([f"c{number}" for number in range(4)])))
def test_the_status_is_what_the_rules_say(steps: list[Step], damaged: bool, approved: set[str]) -> None:
    damage = (Damage("torn-tail", ""),) if damaged else ()
    verdict = judge(Outline("log", steps=tuple(steps), damage=damage), approved)
    assert verdict.status == naive_status(steps, damaged, approved)
    due = naive_problems(steps)
    assert set(verdict.unresolved) == {call_id for code, call_id in due if code == "unresolved-tool-call"}
    codes = {f.code for f in verdict.findings}
    expected = {code for code, _ in due} | ({"torn-tail"} if damaged else set())
    if steps and is_draft(steps):
        expected.add("draft")
    if verdict.status == "awaiting-approval" or (damaged and "unresolved-tool-call" not in codes):
        expected.discard("unresolved-tool-call")
    assert codes == expected


def as_turn(step: Step) -> Turn:
    inline = [call.id for call in step.calls if call.inline]
    return step.role, [call.id for call in step.calls], [*inline, *(result.call_id for result in step.results)]


@st.composite
def answered(draw: st.DrawFn) -> list[Step]:
    """Conversations in which calls are mostly answered at once and in order; now and then something is left out."""
    steps, count = [Step("system")] if draw(st.booleans()) else [], 0
    for _ in range(draw(st.integers(0, 4))):
        steps.append(Step("user"))
        for _ in range(draw(st.integers(0, 2))):
            some = [f"c{count + i}" for i in range(draw(st.integers(1, 3)))]
            count += len(some) if draw(st.integers(0, 9)) else 0
            inline = draw(st.sets(st.sampled_from(some))) if draw(st.booleans()) else set()
            steps.append(Step("assistant", tuple(Call(c, "f", True, c in inline) for c in some)))
            some = [c for c in some if c not in inline or not draw(st.integers(0, 9))]
            if not some:
                continue
            if draw(st.booleans()):
                steps.append(Step("user", (), tuple(Result(c, i) for i, c in enumerate(some)), True))
            else:
                steps += [Step("tool", (), (Result(c),), True) for c in some]
        steps.append(Step("assistant"))
    if steps and not draw(st.integers(0, 3)):
        del steps[draw(st.integers(0, len(steps) - 1))]
    return steps


@settings(max_examples=300)
@given(answered() | histories(), st.integers(1, 4))
def test_nothing_is_wrong_with_what_is_sound(steps: list[Step], size: int) -> None:
    history = Soundness()
    parts = [steps[start : start + size] for start in range(0, len(steps), size)]
    status = history.status() if all(history.follows([*map(as_turn, part)]) for part in parts) else None
    verdict = judge(Outline("log", steps=tuple(steps)))
    well_formed = all(call.well_formed for step in steps for call in step.calls)
    if status is not None and well_formed:  # what is not well-formed is not told to it
        assert (verdict.status, [f.code for f in verdict.findings]) == (status, ["draft"] if status == "draft" else [])
        assert verdict[2:] == ((), ())
        assert history.count == len(steps)


def test_a_session_without_history_is_damaged() -> None:
    assert judge(Outline("document")).status == naive_status(None, False, set()) == "damaged"


def test_awaiting_approval_needs_every_unresolved_call() -> None:
    steps = (Step("user"), Step("assistant", (Call("a", "f"), Call("b", "f"))))
    assert judge(Outline("log", steps=steps), {"a", "b", "c"}).status == "awaiting-approval"
    assert judge(Outline("log", steps=steps), {"a"}).status == "interrupted"
    earlier = (Step("user"), Step("assistant", (Call("x", "f"),)), *steps)
    assert judge(Outline("log", steps=earlier), {"a", "b"}).status == "interrupted"


def test_ids_that_come_back_are_matched_turn_by_turn() -> None:
    turn = (Step("assistant", (Call("call_0", "f"),)), Step("tool", (), (Result("call_0"),), True))
    steps = (Step("user"), *turn, Step("user"), *turn)
    assert [(p.code, p.step) for p in pair(steps)] == [("duplicate-tool-call-id", 4)]
    assert [p.code for p in pair(steps[:-1])] == ["duplicate-tool-call-id", "unresolved-tool-call"]


@pytest.mark.parametrize(
    ("inline", "text", "codes"),
    [("hello", "hello", []), ("hello", "other", ["duplicate-tool-result"]), ("", "", [])],
)
def test_a_result_in_the_call_and_in_a_message(inline: str, text: str, codes: list[str]) -> None:
    steps = (
        Step("assistant", (Call("c", "f", True, True, inline),)),
        Step("tool", (), (Result("c", -1, False, text),), True),
    )
    assert [problem.code for problem in pair(steps)] == codes


def test_a_real_result_wins_over_one_that_a_repair_wrote() -> None:
    made_up, real = Result("c", 0, True), Result("c", 0, False)
    call = Step("assistant", (Call("c", "f"),))
    for later in (Step("user", (), (real,), True), Step("user", (), (real,))):
        (problem,) = pair((call, Step("user", (), (made_up,), True), Step("user"), later))
        assert (problem.code, problem.step, problem.result) == ("duplicate-tool-result", 1, made_up)
    (problem,) = pair((call, Step("user", (), (real,), True), Step("user", (), (made_up,), True)))
    assert (problem.step, problem.result) == (2, made_up)


@pytest.mark.parametrize("results_first", [False, True])
@pytest.mark.parametrize("one_id", [False, True])
def test_pairing_takes_linear_time(one_id: bool, results_first: bool) -> None:
    many = 30_000
    names = ["c"] * many if one_id else [f"c{number}" for number in range(many)]
    calls = [Step("assistant", (Call(name, "f"),)) for name in names]
    results = [Step("tool", (), (Result(name, -1, number % 2 == 0),)) for number, name in enumerate(names)]
    steps = [*results, *calls, *results] if results_first else [*calls, Step("user"), *results, *results]
    assert timed(pair, steps) < 5


# --- findings ---------------------------------------------------------------------------------------------------------


def test_findings_of_single_messages() -> None:
    steps = (
        Step("user"),
        Step("user", empty_text=True),
        Step("assistant", missing_content=True),
        Step("user"),
    )
    found = judge(Outline("document", steps=steps)).findings
    assert [(f.code, f.where) for f in found] == [
        ("empty-text", "messages[1]"),
        ("consecutive-user-messages", "messages[1]"),
        ("missing-content", "messages[2]"),
        ("draft", "messages[3]"),
    ]
    assert "consecutive-user-messages" not in {f.code for f in judge(Outline("log", steps=steps)).findings}


def test_findings_say_where() -> None:
    entries = (
        Entry("e1", None, ANY_STEP, 0, 10, 1),
        Entry("e2", "e1", Step("assistant", (Call("t", "f"),)), 11, 30, 2),
    )
    outline = Outline("log", steps=tuple(e.step for e in entries), entries=entries, order=(0, 1))
    (found,) = judge(outline).findings
    assert found.where == "entry e2 (line 2, byte 11)"
    assert judge(Outline("document", damage=(Damage("invalid-json", "m", None, 7),))).findings[0].where == "byte 7"
    assert judge(Outline("document", damage=(Damage("invalid-json", "m"),))).findings[0].where == "file"


def test_every_code_has_a_severity() -> None:
    for code, severity in SEVERITY.items():
        assert finding(code, "w", "m").severity == severity
        assert severity in ("error", "warning", "info")
