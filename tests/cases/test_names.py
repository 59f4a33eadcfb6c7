"""Cases 184 to 200: hostile and odd ids, and links."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from sessionctl.errors import InvalidKey
from sessionctl.keys import file_name
from sessionctl.model import Ref
from sessionctl.stores.base import ANY
from sessionctl.stores.folder import FolderStore
from tests.stored import DAY, document, names, set_age
from tests.terminal import run


def test_case_184_no_id_leads_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    document(folder, "s1")
    for id_ in (str(tmp_path / "victim"), "../sessions/s1", "../victim"):
        done = run("delete", id_, "-y", "-s", folder)
        assert done.returncode == 2
        assert "not a valid session id" in done.stderr
        with FolderStore(folder) as store, pytest.raises(InvalidKey):
            store.put(Ref(id_, "document"), b"x", expect=ANY)
    assert (victim.read_text(), names(folder)) == ("{}", ["s1.json"])


def test_case_186_a_colon_in_an_id(folder: Path) -> None:
    document(folder, "line:U123")
    assert run("list", "-o", "ids", "-s", folder).stdout == "line:U123\n"
    assert run("show", "line:U123", "-s", folder).returncode == 0


def test_case_188_two_ids_and_their_files(folder: Path) -> None:
    """Documents keep their ids in their names. Logs follow the original, where / becomes _ (FORMATS.md)."""
    for key in ("telegram:a_b", "telegram:a:b"):
        document(folder, key)
    assert run("delete", "telegram:a:b", "-y", "-s", folder).returncode == 0
    assert names(folder) == ["telegram:a_b.json"]
    assert file_name("a/b", "log") == file_name("a_b", "log") == "a_b.jsonl"


def test_case_190_names_that_are_too_long_or_missing(folder: Path) -> None:
    done = run("show", "x" * 300, "-s", folder)
    assert done.returncode == 2
    assert "300 bytes long, the limit is 250" in done.stderr
    document(folder, "s1", id=None)
    found = run("list", "-o", "csv", "-s", folder).stdout
    assert "s1,s1,document" in found
    assert "id-mismatch" in found


def test_case_192_ids_that_differ_in_case(folder: Path) -> None:
    document(folder, "my-bot")
    assert run("delete", "My-Bot", "-y", "-s", folder).returncode == 3
    assert names(folder) == ["my-bot.json"]


def test_case_194_the_unicode_form_of_an_id(folder: Path) -> None:
    composed = "\ud14c\uc2a4\ud2b8"
    document(folder, unicodedata.normalize("NFD", composed))
    done = run("show", composed, "-s", folder)
    assert done.returncode == 3
    assert "the same letters in another Unicode form exists" in done.stderr
    assert len(names(folder)) == 1


@pytest.mark.parametrize("key", ["nul", "CON", "aux.txt", "com1", "LPT9"])
def test_case_196_names_that_windows_keeps(folder: Path, key: str) -> None:
    """Never made; one that is there is listed, shown and removed like any other."""
    for command in (["repair", key], ["show", key], ["delete", key, "-y"]):
        assert run(*command, "-s", folder).returncode == 3
    with FolderStore(folder) as store, pytest.raises(InvalidKey, match="reserved"):
        store.put(Ref(key, "document"), b"{}", expect=None)
    assert names(folder) == []
    document(folder, key)
    assert run("list", "-o", "ids", "-s", folder).stdout == f"{key}\n"
    assert run("delete", key, "-y", "-s", folder).returncode == 0


def test_case_198_an_id_is_no_pattern(folder: Path) -> None:
    document(folder, "job[1]")
    document(folder, "job1")
    (folder / "job[1].json.tmp.1750000000000").write_bytes(b"{")
    assert run("show", "job[1]", "-s", folder).stdout.splitlines()[0] == "job[1]"
    assert run("delete", "job[1]", "-y", "-s", folder).returncode == 0
    assert names(folder) == ["job1.json"]


def test_case_200_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    document(out, "v", age=9 * DAY)
    (folder / "s1.json").symlink_to(out / "v.json")
    (folder / "dir").symlink_to(out)
    set_age(folder / "s1.json", 3 * DAY)
    done = run("gc", "--older-than", "24h", "-y", "-v", "-s", folder)
    assert done.returncode == 0
    assert "s1.json is a link" in done.stderr
    assert names(folder) == ["dir", "s1.json"]
    assert run("delete", "s1", "-y", "-s", folder).returncode == 0
    assert names(folder) == ["dir"]
    assert names(out) == ["v.json"]
