"""Edits of JSON text keep every other character."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.codec.splice import (
    Edit,
    Style,
    apply,
    dumps,
    items,
    member,
    members,
    rearrange,
    remove_member,
    set_member,
    style_of,
)

ODD = '{ "a" : 1e400,\r\n"b":[1 , "x]",{"c":[]} ],"a":12345678901234567890, "s":"\\ud83d \\u00e9" }'


def test_members_and_items_give_places() -> None:
    assert [m.key for m in members(ODD)] == ["a", "b", "a", "s"]
    found = member(ODD, "a")
    assert found is not None and ODD[found.value.start : found.value.end] == "12345678901234567890"
    b = member(ODD, "b")
    assert b is not None
    assert [ODD[s.start : s.end] for s in items(ODD, b.value.start)] == ["1", '"x]"', '{"c":[]}']


def test_an_edit_of_an_array_keeps_the_white_space_of_what_stays() -> None:
    b = member(ODD, "b")
    assert b is not None
    edited = apply(ODD, [rearrange(ODD, b.value.start, [0, 2])])
    assert edited == ODD.replace(' , "x]"', "")
    added = apply(ODD, [rearrange(ODD, b.value.start, [0, 1, 2, "null"])])
    assert added == ODD.replace('{"c":[]} ]', '{"c":[]} , null ]')
    assert apply(ODD, [rearrange(ODD, b.value.start, [])]) == ODD.replace('[1 , "x]",{"c":[]} ]', "[]")


def test_an_array_in_the_style_of_json_stringify() -> None:
    text = json.dumps({"messages": []}, indent=2)
    found = member(text, "messages")
    assert found is not None
    style = style_of(text)
    filled = apply(text, [rearrange(text, found.value.start, [dumps({"id": "x"}, style, 2)], style, 1)])
    assert filled == json.dumps({"messages": [{"id": "x"}]}, indent=2)


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("{}", Style()),
        ('{"a":1}', Style()),
        ('{"a": 1, "b": 2}', Style(None, ": ", ", ", ascii=True)),
        ('{\r\n\t"a": 1}', Style("\t", ": ", ",", "\r\n")),
        ('{\n  "a": 1\n}', Style("  ", ": ", ",")),
    ],
)
def test_styles(text: str, style: Style) -> None:
    assert style_of(text) == style


def test_half_a_surrogate_pair_is_written_as_its_escape() -> None:
    assert dumps({"q": "é\ud83d"}) == '{"q":"é\\ud83d"}'
    assert dumps("é", Style(ascii=True)) == '"\\u00e9"'


def test_setting_and_removing_members() -> None:
    assert set_member(ODD, "a", "0") == ODD.replace("12345678901234567890", "0")
    assert set_member(ODD, "z", "0", before="b") == ODD.replace('"b":', '"z" : 0,\r\n"b":')
    assert json.loads(set_member(ODD, "z", "0"))["z"] == 0
    assert set_member("{}", "z", "0") == '{"z":0}'
    assert remove_member(ODD, "a") == '{ "b":[1 , "x]",{"c":[]} ], "s":"\\ud83d \\u00e9" }'
    assert remove_member(ODD, "none") == ODD
    assert remove_member('{"a":1,"a":2}', "a") == "{}"


def test_what_is_not_json_is_refused() -> None:
    for text in ("", "[", "{", '{"a"}', '{"a":}', '{"a":NaN}', '{"a":1 "b":2}', "[1 2]"):
        with pytest.raises(ValueError):
            (items if text.startswith("[") else members)(text)
    with pytest.raises(ValueError, match="deep"):
        members('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match="overlap"):
        apply("abc", [Edit(0, 2, ""), Edit(1, 3, "")])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(values, max_size=6), st.data(), st.sampled_from([None, 2]))
def test_any_rearrangement_is_the_one_of_the_values(old: list[object], data: st.DataObject, indent: int | None) -> None:
    text = json.dumps({"k": old}, indent=indent)
    found = member(text, "k")
    assert found is not None
    numbers = st.sampled_from(range(len(old))) if old else st.nothing()
    order = data.draw(st.lists(numbers | st.just('"new"'), max_size=8))
    style = style_of(text)
    edited = apply(text, [rearrange(text, found.value.start, order, style, 1)])
    wanted = {"k": [old[i] if isinstance(i, int) else "new" for i in order]}
    assert json.loads(edited) == wanted
    assert edited == json.dumps(wanted, indent=indent)


@given(st.dictionaries(st.text(), values, max_size=5), st.text(), values, st.sampled_from([None, 2]))
def test_any_member_can_be_set_and_removed(old: dict[str, object], key: str, value: object, indent: int | None) -> None:
    text = json.dumps(old, indent=indent)
    style = style_of(text)
    there = set_member(text, key, dumps(value, style, 1))
    assert json.loads(there) == {**old, key: value}
    assert list(json.loads(there)) == list({**old, key: value})
    without = remove_member(there, key)
    assert json.loads(without) == {k: v for k, v in old.items() if k != key}
