"""What becomes of a session whose key is taken at the target, decided without any store."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from sessionctl.model import Kind, Record, Ref, Stamp
from sessionctl.ops.select import Context, Summary, summarise
from sessionctl.ops.settle import MODES, RESOLUTION, Mode, Relation, clashes, relation, settle
from sessionctl.stores.memory import MemoryStore

THEN = 1_750_000_000_000


def doc(key: str) -> Ref:
    return Ref(key, "document")


@given(st.binary(max_size=12), st.binary(max_size=12), st.integers(1, 4))
def test_relation_is_what_comparing_the_whole_says(one: bytes, other: bytes, piece: int) -> None:
    pieces = [other[i : i + piece] for i in range(0, len(other), piece)]
    expected = (
        "same" if one == other else "ahead" if one.startswith(other) else "behind" if other.startswith(one) else "other"
    )
    assert relation(one, pieces) == expected
    assert relation(one, [one]) == "same"


def test_clashes_name_each_other_and_nobody_else() -> None:
    names: dict[Ref, Hashable] = {doc("a"): 1, doc("b"): 2, doc("c"): 1, Ref("a", "log"): 3}
    assert clashes(names) == {doc("a"): doc("c"), doc("c"): doc("a")}


DOCUMENT = (
    '{"id": "a", "messages": [{"id": "m", "role": "user", "content": "x", "timestamp": %d}], "createdAt": 1, '
    '"updatedAt": %d}'
)
ENTRY = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"x"}}\n'


@st.composite
def summaries(draw: st.DrawFn, kind: Kind) -> Summary:
    """Of a session that was last active at one of a few moments, or that is damaged, or cannot be read."""
    at = THEN + draw(st.sampled_from((0, 1, RESOLUTION, RESOLUTION + 1, 1 << 30)))
    how = draw(st.sampled_from(("whole", "whole", "damaged", "unreadable")))
    payload = (DOCUMENT % (at, at)).encode() if kind == "document" else ENTRY
    changed_at = draw(st.sampled_from((at, None)))
    stamp = Stamp(("x",), len(payload), changed_at, "mtime" if changed_at else "none")
    record = Record(Ref("a", kind), stamp, payload if how == "whole" else b'{"id": "a", "mess')
    if how == "unreadable":
        record = record._replace(payload=None, error="no right to this key")
    return summarise(MemoryStore(), record, Context(THEN, {}, {}, {}))


@given(
    st.sampled_from(("document", "log")).flatmap(lambda kind: st.tuples(summaries(kind), summaries(kind))),
    st.sampled_from(MODES),
    st.sampled_from(("same", "ahead", "behind", "other")),
)
def test_nothing_gives_way_but_to_what_is_newer_or_on_request(
    pair: tuple[Summary, Summary], mode: Mode, related: Relation
) -> None:
    here, there = pair
    action, reason = settle(mode, here, there, related)
    assert (action == "identical") == (related == "same")
    assert bool(reason) == (action in ("skip", "conflict"))
    if related == "same":
        return
    if mode == "overwrite":
        assert action == "replace"
    elif mode != "newer" or here.status == "damaged" or there.status == "damaged" or there.error is not None:
        assert action == "conflict"
    elif here.ref.kind == "log" and related != "other":
        assert action == {"ahead": "replace", "behind": "skip"}[related]
    else:
        mine, its = here.last_activity_at, there.last_activity_at
        least = RESOLUTION if here.ref.kind == "log" else 0
        ahead = None if mine is None or its is None else mine - its
        assert action == "conflict" if ahead is None or -least <= ahead <= least else "replace" if ahead > 0 else "skip"
        if action == "replace":
            assert settle(mode, there, here, related)[0] == "skip", "the same pair is judged alike from both sides"
