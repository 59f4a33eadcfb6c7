"""Keys: what may be one, how it is built, parsed and matched, and the file it lives in."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.errors import InvalidKey
from sessionctl.keys import (
    SessionKey,
    check_client_id,
    check_key,
    check_lookup,
    check_storage_key,
    file_name,
    is_reserved_name,
    matches,
    quoted,
    split_composite,
)
from sessionctl.model import KINDS, Kind

HASH = "a3f1" * 16


def test_a_key_of_four_parts() -> None:
    key = SessionKey.build("user:7", "support", "acme", "staging")
    assert str(key) == "acme:staging:support:user:7"
    assert SessionKey.parse(str(key)) == key
    assert str(SessionKey.build("x", "agent")) == "default:production:agent:x"


@pytest.mark.parametrize("key", ["", "a", "a:b:c", "a::c:d", ":b:c:d", "a:b:c:"])
def test_keys_of_another_form(key: str) -> None:
    assert SessionKey.parse(key) is None


@pytest.mark.parametrize("parts", [("", "a"), ("x", ""), ("x", "a:b"), ("x", "a", "t:u"), ("x", "a", "", "e")])
def test_parts_that_would_shift_the_others(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidKey):
        SessionKey.build(*parts)


@given(
    st.lists(st.text(st.characters(exclude_characters=":"), min_size=1), min_size=3, max_size=3),
    st.text("a:", min_size=1),
)
def test_built_keys_parse_back(parts: list[str], raw: str) -> None:
    key = SessionKey.build(raw, parts[0], parts[1], parts[2])
    assert SessionKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["s1", "a:b:c:d", "job[1]", "*", "naïve", "a/b", "-x", "a\nb", "k" * 250, "é" * 125])
def test_what_may_be_looked_up(text: str) -> None:
    assert check_lookup(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("../x", "is a path"),
        ("..", "is a path"),
        ("a/../../b", "is a path"),
        ("a\\..\\b", "is a path"),
        ("/etc/passwd", "is a path"),
        ("\\\\server\\x", "is a path"),
        ("C:\\x", "is a path"),
        ("c:/x", "is a path"),
        ("a\0b", "NUL"),
        ("x" * 300, "300 bytes long, the limit is 250"),
        ("é" * 256, "512 bytes long"),
        ("x" * 10_000, "10000 bytes long"),
    ],
)
def test_what_never_names_a_session(text: str, why: str) -> None:
    with pytest.raises(InvalidKey, match=why) as caught:
        check_lookup(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", ["a", "A-z_0:9", "x" * 256])
def test_storage_keys(key: str) -> None:
    assert check_storage_key(key) == key


@pytest.mark.parametrize("key", ["", "a b", "a.b", "a/b", "é", "a\n", "x" * 257])
def test_refused_storage_keys(key: str) -> None:
    with pytest.raises(InvalidKey):
        check_storage_key(key)


def test_client_ids() -> None:
    assert check_client_id("a_b-9") == "a_b-9"
    assert check_client_id("x" * 128) == "x" * 128
    for refused in ("", "a:b", "x" * 129, "a\n", "a b"):
        with pytest.raises(InvalidKey):
            check_client_id(refused)


def test_keys_that_no_store_takes() -> None:
    assert check_key("a\nb") == "a\nb"
    for refused in ("", "a\0"):
        with pytest.raises(InvalidKey):
            check_key(refused)


def test_composite_keys() -> None:
    assert split_composite(f"{HASH}:shared") == (HASH, "shared")
    assert split_composite(f"{HASH[:16]}:a:b") == (HASH[:16], "a:b")
    for plain in ("s1", "a:b", f"{HASH[:15]}:x", f"{HASH.upper()}:x", f"{HASH}:", HASH):
        assert split_composite(plain) == (None, plain)


@pytest.mark.parametrize("name", ["nul", "CON", "aux.txt", "Com1", "LPT9.json", "com¹"])
def test_names_that_windows_keeps(name: str) -> None:
    assert is_reserved_name(name)
    with pytest.raises(InvalidKey, match="reserved"):
        file_name(name, "log")
    assert file_name(name, "log", new=False) == f"{name}.jsonl"


def test_names_that_windows_does_not_keep() -> None:
    assert not any(map(is_reserved_name, ("null", "console", "com10", "a.nul", "lpt")))


def test_file_names() -> None:
    assert file_name("a:b", "document") == "a:b.json"
    assert file_name("a/b\\c", "log") == "a_b_c.jsonl"
    assert file_name("a\nb", "document", new=False) == "a\nb.json"
    for key in ("a/b", "a\\b", "", "a\0b"):
        for new in (True, False):
            with pytest.raises(InvalidKey):
                file_name(key, "document", new=new)
    for key in ("a\nb", "a\x7f", "\udc80"):
        with pytest.raises(InvalidKey):
            file_name(key, "document")


@given(st.text(), st.sampled_from(KINDS), st.booleans())
def test_a_file_name_is_always_one_name(key: str, kind: Kind, new: bool) -> None:
    try:
        name = file_name(key, kind, new=new)
    except InvalidKey:
        return
    assert os.path.basename(name) == name
    assert name not in (".", "..")
    assert "\0" not in name
    assert len(os.fsencode(name)) <= 255


def test_patterns() -> None:
    assert matches("abc", ())
    assert matches("abc", ("x*", "a?c"))
    assert matches("a\nb", ("a*",))
    assert not matches("ABC", ("a*",))
    assert not matches("xabc", ("abc",))
    assert matches("job[1]", ("job[[]1]",))
    assert not matches("job[1]", ("job[1]",))


@given(st.text())
def test_quoted_text_is_printable_and_short(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    assert len(shown) < 1000
