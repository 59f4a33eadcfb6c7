"""Cases 1 to 31: calls and results, as repair mends them. Flags and exit codes are those of DESIGN.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases.repairs import answer, calling, entries, found, lines, mended, messages, numbered, said
from tests.stored import call, entry, result


def test_case_001_a_call_without_result(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", "earlier talk, condensed"),
        entry("e2", "e1", "user", "check the queue"),
        entry("e3", "e2", "assistant", [{"type": "text", "text": "Looking."}, call("t1", "shell", cmd="ping")]),
        entry("e4", "e3", "user", "go on"),
    )
    assert found(folder, 5) == [("unresolved-tool-call", True), ("draft", False)]
    after = mended(folder).splitlines()
    assert after[:3] == before.splitlines()[:3]
    made = json.loads(after[3])
    [block] = made["message"]["content"]
    assert (made["parentId"], block["tool_use_id"], block["is_error"]) == ("e3", "t1", True)
    assert "did not run" in block["content"]
    assert json.loads(after[4])["message"] == {"role": "user", "content": "go on"}
    assert len(after) == 5


def test_case_003_a_call_without_result_in_a_document(folder: Path) -> None:
    before = numbered(folder, said("user", "run the tests"), calling("call_122"), said("user", "never mind"))
    after = mended(folder)
    assert [m.get("toolCallId") for m in messages(after)] == [None, None, "call_122", None]
    assert messages(after)[3] == messages(before)[2]
    assert json.loads(after)["updatedAt"] == 1750000060000


def test_case_005_a_result_without_a_call(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", [result("t9"), {"type": "text", "text": "now deploy"}]),
        entry("e2", "e1", "assistant", "Deploying."),
    )
    gone = json.dumps(result("t9"), separators=(",", ":")).encode() + b","
    assert mended(folder) == before.replace(gone, b"")


def test_case_007_parallel_calls_only_some_answered(folder: Path) -> None:
    numbered(folder, said("user", "scan"), calling("c1", "c2", "c3", "c4"), answer("c1", "a.txt"), said("user", "next"))
    assert found(folder, 5)[:3] == [("unresolved-tool-call", True)] * 3
    after = messages(mended(folder))
    assert [m.get("toolCallId") for m in after] == [None, None, "c1", "c2", "c3", "c4", None]
    assert after[2]["content"] == "a.txt"
    assert after[6]["content"] == "next"


def test_case_009_parallel_results_as_siblings(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", "roll 3 dice"),
        entry("e2", "e1", "assistant", [call("t1"), call("t2"), call("t3")]),
        *(entry(f"r{n}", "e2", "user", [result(f"t{n}")]) for n in (1, 2, 3)),
        entry("e3", "r3", "assistant", "Done."),
    )
    assert found(folder, 0) == []
    assert mended(folder) == before


def test_case_011_ids_used_twice(folder: Path) -> None:
    """FORMATS.md section 4 reports them only: which of two equal ids is meant elsewhere, nobody can tell."""
    turns = [said("user", "one"), calling("call_0"), answer("call_0", "A")]
    before = numbered(folder, *turns, said("user", "two"), calling("call_0"), answer("call_0", "B"))
    assert found(folder, 5) == [("duplicate-tool-call-id", False)], "by position nothing is missing"
    assert mended(folder, code=5) == before


@pytest.mark.parametrize(("stored", "code"), [("hello", 0), ("other", 5)])
def test_case_013_one_result_stored_twice(folder: Path, stored: str, code: int) -> None:
    before = numbered(folder, said("user", "read it"), calling("c1", result="hello"), answer("c1", stored))
    assert found(folder, code) == ([("duplicate-tool-result", False)] if code else [])
    assert mended(folder, code=code) == before, "of two that differ neither is thrown away"


def test_case_015_a_result_that_is_not_in_the_next_message(folder: Path) -> None:
    joke = [said("user", "tell me a joke"), said("assistant", "Why did ...")]
    numbered(folder, said("user", "weather?"), calling("c1"), *joke, answer("c1", "sunny"))
    assert found(folder, 5) == [("late-tool-result", True)]
    assert [m["id"] for m in messages(mended(folder))] == ["m1", "m2", "m5", "m3", "m4"]


def test_case_017_a_result_before_its_call(folder: Path) -> None:
    before = numbered(folder, said("user", "x"), answer("c1"), calling("c1"))
    first, second, third = messages(before)
    assert messages(mended(folder)) == [first, third, second]


def test_case_019_a_real_result_after_a_made_up_one(folder: Path) -> None:
    filler = result("t1", "[sessionctl] no result was recorded", is_error=True)
    before = lines(
        folder,
        entry("e1", None, "user", "count"),
        entry("e2", "e1", "assistant", [call("t1")]),
        entry("e3", "e2", "user", [filler]),
        entry("e4", "e3", "user", [result("t1", "42 files")]),
    )
    after = entries(mended(folder))
    assert [e["id"] for e in after] == ["e1", "e2", "e4"]
    assert after[2]["message"] == entries(before)[3]["message"]
    assert after[2]["parentId"] == "e2"


def test_case_021_arguments_cut_off(folder: Path) -> None:
    """FORMATS.md section 4 reports them only; the raw text stays where it is."""
    before = numbered(folder, said("user", "write it"), calling("c1", arguments='{"command":"cat'), answer("c1", "[e]"))
    assert found(folder, 5) == [("malformed-tool-call", False)]
    assert mended(folder, code=5) == before


def test_case_023_an_empty_text(folder: Path) -> None:
    """FORMATS.md section 4: a warning, reported only."""
    before = lines(
        folder,
        entry("e1", None, "user", "find"),
        entry("e2", "e1", "assistant", [{"type": "text", "text": ""}, call("t1")]),
        entry("e3", "e2", "user", [result("t1")]),
    )
    assert found(folder, 0) == [("empty-text", False)]
    assert mended(folder) == before


def test_case_025_content_is_null_or_missing(folder: Path) -> None:
    """FORMATS.md section 4: a warning, reported only."""
    before = numbered(folder, said("user", None), {"role": "assistant"})
    assert found(folder, 0) == [("missing-content", False)] * 2
    assert mended(folder) == before


def test_case_027_reasoning_is_not_touched(folder: Path) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    before = lines(
        folder,
        entry("e1", None, "user", "x"),
        entry("e2", "e1", "assistant", [thinking, call("t1")]),
        entry("e3", "e2", "user", [result("t1")]),
        entry("e4", "e3", "assistant", [call("t2")]),
    )
    after = mended(folder)
    assert after.startswith(before)
    assert len(entries(after)) == 5


def test_case_029_removing_an_entry_breaks_no_chain(folder: Path) -> None:
    before = lines(
        folder,
        entry("e1", None, "user", "a"),
        entry("e2", "e1", "assistant", "b"),
        entry("e3", "e2", "user", [result("t9", "lone")]),
        entry("e4", "e3", "assistant", "c"),
    )
    after = entries(mended(folder))
    assert [(e["id"], e["parentId"]) for e in after] == [("e1", None), ("e2", "e1"), ("e4", "e2")]
    assert [e["message"] for e in after] == [e["message"] for e in entries(before) if e["id"] != "e3"]


def test_case_031_a_malformed_call(folder: Path) -> None:
    """FORMATS.md section 4 reports it only: no result is made up for a call without id and name."""
    text = {"type": "text", "text": "ok"}
    before = lines(folder, entry("e1", None, "user", "x"), entry("e2", "e1", "assistant", [text, call("", "")]))
    assert found(folder, 5) == [("malformed-tool-call", False)]
    assert mended(folder, code=5) == before
