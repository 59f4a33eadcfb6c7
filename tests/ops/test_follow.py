"""What is new in a session: told purely from what was known, and read from stores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.model import Message, Ref
from sessionctl.ops.follow import (
    CHECKED,
    END,
    KEEP,
    Follower,
    News,
    Position,
    in_order,
    new_from,
    read_document,
    read_entries,
    stamps,
)
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Store

names = st.lists(st.sampled_from("abcdef"), max_size=12)


@given(names, names)
def test_what_is_appended_is_new(known: list[str], added: list[str]) -> None:
    unique = [f"{index}{name}" for index, name in enumerate(known + added)]
    last = unique[: len(known)][-KEEP:]
    assert new_from(last, unique) == list(range(len(known), len(unique)))


@given(names, names)
def test_nothing_is_new_twice(known: list[str], found: list[str]) -> None:
    after = [found[index] for index in new_from(known, found) or ()]
    last = found[-KEEP:]
    assert not last or new_from(last, found) == []
    assert len(after) <= len(found)


@pytest.mark.parametrize(
    ("last", "found", "new"),
    [
        ("", "abc", "abc"),
        ("abc", "abc", ""),
        ("abc", "abcde", "de"),
        ("abd", "abcd", ""),  # one was put in between (a repair): the last is known
        ("abd", "abx", "x"),  # the draft at the end was dropped
        ("abcd", "cdef", "ef"),  # a shortened history
        ("abcd", "ab", ""),
        ("bca", "abcab", "b"),  # ids that repeat: the place where most agrees
        ("aa", "aaaa", "aa"),
        ("abc", "xyz", None),
        ("abc", "", None),
    ],
)
def test_known_again_by_ids_and_place(last: str, found: str, new: str | None) -> None:
    indexes = new_from(tuple(last), tuple(found))
    assert (None if indexes is None else "".join(found[i] for i in indexes)) == new


def document(*messages: str, **extra: Any) -> bytes:
    return json.dumps(
        {"id": "s", "messages": [{"id": m, "role": "user", "content": f"text {m}"} for m in messages], **extra}
    ).encode()


def test_a_document_is_read_by_ids() -> None:
    first = read_document(None, document("a", "b"))
    assert first is not None
    assert [m.id for m in first.messages] == ["a", "b"]
    second = read_document(first.position, document("a", "b", "c"))
    assert second is not None
    assert ([m.id for m in second.messages], second.replaced) == (["c"], False)
    third = read_document(second.position, document("x", "y"))
    assert third is not None
    assert ([m.id for m in third.messages], third.replaced) == (["x", "y"], True)
    assert read_document(None, b'{"id": "s", "mess') is None


def line(name: str, text: str = "") -> bytes:
    value = {"id": name, "parentId": None, "message": {"role": "user", "content": text or f"text {name}"}}
    return json.dumps(value).encode() + b"\n"


@given(st.lists(st.sampled_from([line("a"), line("b"), b"\n", b"{torn\n", line("é" * 20)]), max_size=8), st.data())
def test_a_log_read_in_any_pieces_gives_the_same(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    expected = [m.id for m in read_entries(whole, first=True)[0]]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    got: list[str | None] = []
    offset = 0
    for cut in [*cuts, len(whole)]:
        messages, used, _ = read_entries(whole[offset:cut], first=offset == 0)
        got += [m.id for m in messages]
        offset += used
    assert got == expected
    assert offset == len(whole)


def test_a_whole_entry_without_a_newline_is_taken_once() -> None:
    text = line("a") + line("b")[:-1]
    messages, used, _ = read_entries(text, first=True)
    assert ([m.id for m in messages], used) == (["a", "b"], len(text))
    messages, used, damaged = read_entries(b"\n" + line("c"), first=False)
    assert ([m.id for m in messages], damaged) == (["c"], 0)
    glued, _, damaged = read_entries(b'{"id": "x", "par' + line("d"), first=False)
    assert ([m.id for m in glued], damaged) == (["d"], 0)


class Talk:
    """A folder that is followed, and what was heard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Store = open_store(path)
        self.follower = Follower(self.store)

    def hear(self, *refs: Ref) -> list[tuple[str, list[str | None], tuple[str, ...]]]:
        return [(n.ref.key, [m.id for m in n.messages], n.notes) for n in self.follower.look(refs or None)]

    def write(self, name: str, data: bytes, how: str = "wb") -> None:
        with (self.path / name).open(how) as file:
            file.write(data)


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


def test_appends_to_a_log(talk: Talk) -> None:
    talk.write("s.jsonl", line("a"))
    assert talk.hear() == [("s", ["a"], ())]
    assert talk.hear() == []
    talk.write("s.jsonl", line("b")[:20], "ab")
    assert talk.hear() == []
    talk.write("s.jsonl", line("b")[20:] + line("c"), "ab")
    assert talk.hear() == [("s", ["b", "c"], ())]


def test_a_log_that_is_cut_or_replaced(talk: Talk) -> None:
    talk.write("s.jsonl", line("a") + line("b") + b'{"id":"x')
    assert talk.hear() == [("s", ["a", "b"], ())]
    talk.write("s.jsonl", line("n"))
    assert talk.hear() == [("s", ["n"], ("was replaced or cut",))]
    talk.write("s.jsonl", line("m") * 3)
    assert talk.hear() == [("s", ["m"] * 3, ("was replaced or cut",))]
    (talk.path / "s.jsonl").unlink()
    assert talk.hear() == [("s", [], ("was deleted",))]
    assert talk.hear() == []
    talk.write("s.jsonl", line("p"))
    assert talk.hear() == [("s", ["p"], ("was replaced or cut",))]


def test_a_log_that_a_repair_rewrote_is_not_told_again(talk: Talk) -> None:
    talk.write("s.jsonl", line("a") + b"{torn\n" + line("b"))
    assert talk.hear() == [("s", ["a", "b"], ("1 damaged line passed over",))]
    talk.write("s.jsonl", line("a") + line("b") + line("c"))
    assert talk.hear() == [("s", ["c"], ("was replaced or cut",))]


def test_a_document_that_is_half_written_is_waited_for(talk: Talk) -> None:
    talk.write("s.json", document("a"))
    assert talk.hear() == [("s", ["a"], ())]
    talk.write("s.json", document("a", "b")[:-9])
    assert talk.hear() == []
    talk.write("s.json", document("a", "b"))
    assert talk.hear() == [("s", ["b"], ())]
    talk.write("s.json", b"\0" * 50)
    assert talk.hear() == []
    assert talk.hear() == [("s", [], ("cannot be read as a session",))]
    assert talk.hear() == [], "said once"


def test_a_file_that_may_not_be_read(talk: Talk) -> None:
    if os.geteuid() == 0:
        (talk.path / "s.jsonl").symlink_to(talk.path / "elsewhere")
        (talk.path / "t.jsonl").mkdir()
        assert talk.hear() == [], "links and folders are no sessions"
        return
    talk.write("s.jsonl", line("a"))
    (talk.path / "s.jsonl").chmod(0)
    assert talk.hear() == []
    assert talk.hear() == [("s", [], ("cannot be read as a session",))]


def test_the_end_of_a_long_log_is_enough(talk: Talk) -> None:
    lines = [line(f"e{index}", "x" * 1000) for index in range(300)]
    talk.write("s.jsonl", b"".join(lines))
    (news,) = talk.follower.start(stamps(talk.store), 10)
    assert [m.id for m in news.messages] == [f"e{index}" for index in range(290, 300)]
    talk.write("s.jsonl", line("new"), "ab")
    assert talk.hear() == [("s", ["new"], ())]
    talk.write("one.jsonl", line("huge", "y" * (3 * END)) + line("z"))
    (news,) = talk.follower.start(stamps(talk.store, [Ref("one", "log")]), 2)
    assert [m.id for m in news.messages] == ["huge", "z"]


def test_a_position_is_all_that_is_needed_to_go_on(talk: Talk) -> None:
    talk.write("s.jsonl", line("a", "x" * CHECKED) + line("b"))
    talk.write("d.json", document("a"))
    talk.hear()
    positions = talk.follower.positions
    talk.write("s.jsonl", line("c"), "ab")
    talk.write("d.json", document("a", "b"))
    later = Follower(talk.store, positions)
    assert sorted((n.ref.key, [m.id for m in n.messages]) for n in later.look()) == [("d", ["b"]), ("s", ["c"])]


def test_another_store_needs_nothing_more() -> None:
    with open_store("memory:") as store:
        follower = Follower(store)
        store.put(Ref("s", "log"), line("a"), expect=None)
        store.put(Ref("d", "document"), document("a"), expect=None)
        assert {n.ref.key for n in follower.look()} == {"s", "d"}
        store.append(Ref("s", "log"), line("b"), expect=ANY)
        assert [[m.id for m in n.messages] for n in follower.look()] == [["b"]]


def test_messages_of_several_sessions_come_in_the_order_of_their_times() -> None:
    def message(name: str, at: int | None) -> Message:
        return Message(name, "user", name, at=at)

    news = [
        News(Ref("one", "document"), (message("a", 10), message("b", None), message("c", 30)), (), 99),
        News(Ref("two", "document"), (message("d", 20),), (), 99),
        News(Ref("log", "log"), (message("e", None), message("f", None)), (), 15),
    ]
    assert "".join(m.text for _, m in in_order(news)) == "abefdc"
    assert "".join(m.text for _, m in in_order(news, 16)) == "bdc"


def test_positions_stay_small() -> None:
    reading = read_document(None, document(*(f"m{index}" for index in range(100))))
    assert reading is not None
    assert len(reading.position.last) == KEEP
    assert isinstance(reading.position, Position)
