"""The contract over folders, and what is special to files: links, modes, temporary files, races, full disks."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sessionctl.errors import InvalidKey, SessionChanged, SessionNotFound, StoreError, WriteFailed
from sessionctl.keys import SUFFIXES
from sessionctl.locks import FileLease
from sessionctl.model import Kind, Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import ANY, Store, Want
from sessionctl.stores.folder import FolderStore
from tests.contract import StoreContract


class TestFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "sessions")

    def open(self, place: str) -> Store:
        return open_store(place)


class TestDocuments(StoreContract):
    kinds = ("document",)

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"documents:{tmp_path / 'sessions'}"

    def open(self, place: str) -> Store:
        return open_store(place)


class TestLogs(StoreContract):
    kinds = ("log",)

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"logs:{tmp_path / 'sessions'}"

    def open(self, place: str) -> Store:
        return open_store(place)


# --- what is special to files ---------------------------------------------------------------------------

DOC = Ref("s1", "document")
LOG = Ref("s1", "log")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "sessions"
    path.mkdir()
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[FolderStore]:
    with FolderStore(folder) as opened:
        yield opened


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every name below a folder with what must not change by reading."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_nlink)
    return found


def test_new_folders_and_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with FolderStore(tmp_path / "new") as store:
            store.put(DOC, b"{}", expect=None)
            store.append(LOG, b"{}\n", expect=None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o600}


def test_a_replaced_file_keeps_mode_and_owner(store: FolderStore, folder: Path) -> None:
    path = folder / "s1.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    owner = (path.stat().st_uid, path.stat().st_gid)
    if os.geteuid() == 0:
        owner = (65534, 65534)
        os.chown(path, *owner)
    store.put(DOC, b"new", expect=store.stamp(DOC))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (path.stat().st_uid, path.stat().st_gid) == owner
    assert path.read_bytes() == b"new"


def test_a_write_leaves_no_other_file(store: FolderStore, folder: Path) -> None:
    store.put(DOC, b"1", expect=None)
    store.put(DOC, b"2", expect=ANY)
    with pytest.raises(SessionChanged):
        store.put(DOC, b"3", expect=None)
    store.append(LOG, b"{}\n", expect=None)
    store.remove(LOG, ANY)
    assert [path.name for path in folder.iterdir()] == ["s1.json"]


@pytest.mark.parametrize("kind", ["document", "log"])
def test_the_longest_name_is_written_replaced_and_removed(store: FolderStore, folder: Path, kind: Kind) -> None:
    ref = Ref("x" * (255 - len(SUFFIXES[kind])), kind)
    store.put(ref, b"1\n", expect=None)
    store.put(ref, b"2\n", expect=store.stamp(ref))
    assert store.get(ref).payload == b"2\n"
    store.remove(ref, ANY)
    assert list(folder.iterdir()) == []
    longer = Ref("x" + ref.key, kind)
    with pytest.raises(InvalidKey, match="bytes long"):
        store.put(longer, b"", expect=ANY)
    assert store.stamp(longer) is None


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "nul", "CON", "aux.txt", os.fsdecode(b"\xff\xfe"), "LPT9"])
def test_names_that_are_there_can_be_used_but_not_made(store: FolderStore, folder: Path, key: str) -> None:
    ref = Ref(key, "document")
    with pytest.raises(InvalidKey):
        store.put(ref, b"{}", expect=ANY)
    assert list(folder.iterdir()) == []
    (folder / f"{key}.json").write_bytes(b"{}")
    assert [record.ref for record in store.records()] == [ref]
    assert store.get(ref).payload == b"{}"
    store.remove(ref, ANY)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("key", ["../s1", "/etc/passwd", "a/b", "a\\b", "..\\s1", ".."])
def test_no_key_leads_out_of_the_folder(store: FolderStore, folder: Path, key: str) -> None:
    outside = folder.parent / "s1.json"
    outside.write_bytes(b"{}")
    ref = Ref(key, "document")
    assert store.stamp(ref) is None
    with pytest.raises(SessionNotFound):
        store.get(ref)
    with pytest.raises(SessionNotFound):
        store.remove(ref, ANY)
    if "/" in key or "\\" in key:
        with pytest.raises(InvalidKey):
            store.put(ref, b"x", expect=ANY)
        log = Ref(key, "log")
        store.append(log, b"{}\n", expect=None)
        assert store.get(log).payload == b"{}\n"
        assert (folder / (key.replace("/", "_").replace("\\", "_") + ".jsonl")).exists()
    assert outside.read_bytes() == b"{}"
    assert {path.name for path in folder.parent.iterdir()} == {"sessions", "s1.json"}


def test_what_is_not_a_session_is_named_and_left_alone(store: FolderStore, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_bytes(b"{}")
    (folder / "link.json").symlink_to(outside)
    (folder / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "sub").mkdir()
    (folder / "sub.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s.jsonl"))
    listener.close()
    (folder / "a.json.tmp.1700000000000").write_bytes(b"{")
    (folder / "b.jsonl.tmp.1700000000000.x1y2z3").write_bytes(b"{}")
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / ".sessionctl").mkdir()
    store.put(DOC, b"{}", expect=None)
    before = state(folder)
    assert [record.ref for record in store.records()] == [DOC]
    found = {stray.name: (stray.note, stray.ref, stray.code) for stray in store.strays()}
    temporary = "is a temporary file that its writer left"
    assert found == {
        "link.json": ("is a link", Ref("link", "document"), ""),
        "dangling.jsonl": ("is a link", Ref("dangling", "log"), ""),
        "loop.json": ("is a link", Ref("loop", "document"), ""),
        "sub": ("is a sub-folder", None, ""),
        "sub.json": ("is a folder", Ref("sub", "document"), ""),
        "pipe.json": ("is not a regular file", Ref("pipe", "document"), ""),
        "s.jsonl": ("is not a regular file", Ref("s", "log"), ""),
        "a.json.tmp.1700000000000": (temporary, Ref("a", "document"), "stray-temporary-file"),
        "b.jsonl.tmp.1700000000000.x1y2z3": (temporary, Ref("b", "log"), "stray-temporary-file"),
    }
    for key, kind in (("link", "document"), ("pipe", "document"), ("sub", "document"), ("s", "log")):
        ref = Ref(key, cast(Kind, kind))
        assert store.stamp(ref) is None
        with pytest.raises((SessionNotFound, StoreError)):
            list(store.chunks(ref))
        with pytest.raises((SessionNotFound, StoreError)):
            store.remove(ref, ANY)
        with pytest.raises((WriteFailed, SessionChanged)):
            store.put(ref, b"x", expect=ANY)
    with pytest.raises((WriteFailed, SessionChanged)):
        store.append(Ref("dangling", "log"), b"x\n", expect=ANY)
    assert state(folder) == before
    assert outside.read_bytes() == b"{}"
    assert not (tmp_path / "nowhere").exists()


def test_strays_are_read_and_removed_only_as_they_were_seen(store: FolderStore, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_bytes(b"{}")
    (folder / "link.json").symlink_to(outside)
    (folder / "sub").mkdir()
    temporary = folder / "a.json.tmp.1"
    temporary.write_bytes(b"{")
    by_name = {stray.name: stray for stray in store.strays()}
    assert store.read_stray(by_name["a.json.tmp.1"]) == b"{"
    with pytest.raises(StoreError):
        store.read_stray(by_name["link.json"])
    with pytest.raises(StoreError):
        store.remove_stray(by_name["sub"])
    temporary.write_bytes(b"{}")
    with pytest.raises(SessionChanged):
        store.remove_stray(by_name["a.json.tmp.1"])
    assert temporary.read_bytes() == b"{}"
    (again,) = (stray for stray in store.strays() if stray.code)
    store.remove_stray(again)
    store.remove_stray(by_name["link.json"])
    assert outside.read_bytes() == b"{}"
    (folder / "link.json").write_bytes(b"a session by now")
    with pytest.raises(SessionChanged):
        store.remove_stray(by_name["link.json"])
    assert {path.name for path in folder.iterdir()} == {"link.json", "sub"}


def test_a_file_without_a_name_is_no_session(store: FolderStore, folder: Path) -> None:
    (folder / ".json").write_bytes(b"{}")
    (folder / ".jsonl").write_bytes(b"")
    assert list(store.records()) == []


def test_reading_touches_nothing(store: FolderStore, folder: Path) -> None:
    for number in range(3):
        (folder / f"d{number}.json").write_bytes(b"{}" * 2000)
        (folder / f"l{number}.jsonl").write_bytes(b"{}\n")
    (folder / "d1.json.tmp.1").write_bytes(b"")
    before = state(folder.parent)
    for want in Want:
        list(store.records(want))
    list(store.strays())
    list(store.checkpoints())
    store.holders()
    store.get(Ref("d1", "document"))
    list(store.chunks(Ref("l1", "log")))
    assert state(folder.parent) == before


def test_checkpoints_are_read_beside_the_folder_and_never_hang(tmp_path: Path) -> None:
    place = tmp_path / ".checkpoints" / "checkpoints"
    place.mkdir(parents=True)
    (tmp_path / ".sessions").mkdir()
    (place / "a.json").write_bytes(b"1")
    (place / "b.json.tmp.1").write_bytes(b"2")
    (place / "link.json").symlink_to(place / "a.json")
    os.mkfifo(place / "pipe.json")
    with FolderStore(tmp_path / ".sessions", ("log",)) as store:
        assert list(store.checkpoints()) == [b"1"]
    with FolderStore(tmp_path / ".sessions", ("document",)) as store:
        assert list(store.checkpoints()) == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with FolderStore(tmp_path / "f") as store:
        assert not store.exists()
        with pytest.raises(StoreError, match="is not a folder"):
            list(store.records())
        with pytest.raises(StoreError, match="is not a folder"):
            store.put(DOC, b"{}", expect=None)
    with FolderStore(tmp_path / "f" / "below") as store, pytest.raises(StoreError):
        store.put(DOC, b"{}", expect=None)


def test_one_place_under_several_names(store: FolderStore, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    for other in (f"documents:{folder}/.", str(tmp_path / "alias"), f"file:{folder}/../sessions"):
        with open_store(other) as opened:
            assert opened.place() == store.place()
    with open_store(str(tmp_path)) as opened:
        assert opened.place() != store.place()


def test_a_swapped_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """The folder is replaced by a link to another one while a store is open."""
    (folder / "s1.json").write_bytes(b"judged")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "s1.json").write_bytes(b"precious")
    with FolderStore(folder) as store:
        stamp = store.get(DOC).stamp
        folder.rename(tmp_path / "moved")
        folder.symlink_to(victim)
        with pytest.raises(StoreError, match="another folder"):
            store.lock(DOC, 0)
        with pytest.raises(StoreError, match="another folder"):
            store.lock_store("gc")
        store.remove(DOC, stamp)
    assert [path.name for path in victim.iterdir()] == ["s1.json"]
    assert (victim / "s1.json").read_bytes() == b"precious"
    assert list((tmp_path / "moved").iterdir()) == []


def test_a_folder_that_is_swapped_while_it_is_locked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is taken in the wrong one, and given back."""

    class Late(FileLease):
        def __init__(self, *wanted: Any) -> None:
            folder.rename(tmp_path / "moved")
            folder.mkdir()
            super().__init__(*wanted)

    monkeypatch.setattr("sessionctl.stores.folder.FileLease", Late)
    with FolderStore(folder) as store, pytest.raises(StoreError, match="another folder"):
        store.lock_store("gc")
    assert list(folder.iterdir()) == list((tmp_path / "moved").iterdir()) == []


# --- races: something happens between looking and acting --------------------------------------------------------------


def at_the_call(monkeypatch: pytest.MonkeyPatch, function: str, act: Callable[[], object], number: int = 1) -> None:
    """Run ``act`` right before the ``number``-th call of an ``os`` function that the stores make."""
    real = getattr(os, function)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            monkeypatch.setattr(os, function, real)
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(os, function, wrapped)


def replace(path: Path, content: bytes) -> None:
    """As a writer does it: a temporary file, then a rename."""
    temporary = path.with_name(path.name + ".tmp.1.writer")
    temporary.write_bytes(content)
    temporary.replace(path)


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


CHANGES: dict[str, Callable[[Path], object]] = {
    "replaced": lambda path: replace(path, b"the newer one"),
    "replaced by as many bytes": lambda path: replace(path, b"seen?"),
    "appended to": lambda path: append(path, b"{}\n"),
    "emptied": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("call", ["rename", "unlink"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_removal_takes_only_what_was_seen(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str, call: str
) -> None:
    """A writer is at work right before the file is put aside, or right before what was put aside is unlinked."""
    path = folder / "s1.json"
    path.write_bytes(b"seen!")
    stamp = store.get(DOC).stamp
    at_the_call(monkeypatch, call, lambda: CHANGES[change](path))
    if call == "rename":
        with pytest.raises(SessionChanged):
            store.remove(DOC, stamp)
    else:
        store.remove(DOC, stamp)  # the writer came too late for the old version and has made a new one
    after = {"replaced": b"the newer one", "replaced by as many bytes": b"seen?", "emptied": b""}
    appended = b"seen!{}\n" if call == "rename" else b"{}\n"
    assert path.read_bytes() == after.get(change, appended)
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_a_removal_of_what_is_gone_meanwhile(store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "s1.json"
    path.write_bytes(b"seen!")
    stamp = store.get(DOC).stamp
    at_the_call(monkeypatch, "rename", path.unlink)
    with pytest.raises(SessionNotFound):
        store.remove(DOC, stamp)
    assert list(folder.iterdir()) == []


def test_two_writers_during_one_removal_lose_nothing(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replaces the file before it is put aside, another writes a new one before it is put back."""
    path = folder / "s1.json"
    path.write_bytes(b"seen!")
    stamp = store.get(DOC).stamp

    def second() -> None:
        path.write_bytes(b"second")

    def first() -> None:
        replace(path, b"first")
        at_the_call(monkeypatch, "link", second)

    at_the_call(monkeypatch, "rename", first)
    with pytest.raises(WriteFailed, match="written twice"):
        store.remove(DOC, stamp)
    assert sorted(p.read_bytes() for p in folder.iterdir()) == [b"first", b"second"]
    assert path.read_bytes() == b"second"
    assert [stray.code for stray in store.strays()] == ["stray-temporary-file"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_write_takes_only_the_place_of_what_was_seen(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = folder / "s1.json"
    path.write_bytes(b"seen!")
    stamp = store.get(DOC).stamp
    at_the_call(monkeypatch, "fsync", lambda: CHANGES[change](path))
    with pytest.raises(SessionChanged):
        store.put(DOC, b"ours", expect=stamp)
    assert path.read_bytes() != b"ours"
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_a_new_file_does_not_replace_one_that_came_first(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s1.json"
    at_the_call(monkeypatch, "link", lambda: path.write_bytes(b"theirs"))
    with pytest.raises(SessionChanged):
        store.put(DOC, b"ours", expect=None)
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_a_file_that_grows_while_it_is_read(store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "s1.jsonl"
    path.write_bytes(b"{}\n")
    at_the_call(monkeypatch, "read", lambda: append(path, b"[]\n"))
    record = store.get(LOG)
    assert record.payload == b"{}\n[]\n"
    assert record.stamp == store.stamp(LOG)


# --- when the system refuses ---------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, function: str, error: int, times: int = 1_000_000) -> list[int]:
    """Let an ``os`` function fail some times; the numbers of its calls are collected."""
    real = getattr(os, function)
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        if len(calls) <= times:
            raise OSError(error, os.strerror(error))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, function, wrapped)
    return calls


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("function", ["write", "fsync", "replace", "fchmod"])
def test_a_failed_write_leaves_all_as_it_was(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: int
) -> None:
    path = folder / "s1.json"
    path.write_bytes(b"old")
    before = path.stat()
    failing(monkeypatch, function, error)
    with pytest.raises(WriteFailed, match=os.strerror(error).lower()):
        store.put(DOC, b"new", expect=store.stamp(DOC))
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_an_append_that_falls_short_is_taken_back(store: FolderStore, folder: Path) -> None:
    """A limit on the file's size lets the first bytes of a line through."""
    path = folder / "s1.jsonl"
    path.write_bytes(b"{}\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(WriteFailed):
            store.append(LOG, b'{"id":"too long"}\n', expect=store.stamp(LOG))
        with pytest.raises(WriteFailed, match="too large"):
            store.put(DOC, b"x" * 100, expect=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"{}\n"
    assert [p.name for p in folder.iterdir()] == ["s1.jsonl"]


def test_case_208_a_rename_that_is_refused_for_a_moment(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s1.json"
    path.write_bytes(b"old")
    calls = failing(monkeypatch, "replace", errno.EACCES, times=2)
    store.put(DOC, b"new", expect=store.stamp(DOC))
    assert (path.read_bytes(), len(calls)) == (b"new", 3)
    failing(monkeypatch, "replace", errno.EACCES)
    with pytest.raises(WriteFailed, match="permission denied"):
        store.put(DOC, b"newer", expect=store.stamp(DOC))
    assert path.read_bytes() == b"new"
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_a_file_system_without_hard_links(store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "link", errno.EPERM)
    store.put(DOC, b"1", expect=None)
    with pytest.raises(SessionChanged):
        store.put(DOC, b"2", expect=None)
    stamp = store.get(DOC).stamp
    at_the_call(monkeypatch, "rename", lambda: replace(folder / "s1.json", b"newer"))
    with pytest.raises(SessionChanged):
        store.remove(DOC, stamp)
    assert (folder / "s1.json").read_bytes() == b"newer"
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_a_removal_that_is_refused_puts_the_file_back(
    store: FolderStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "s1.json").write_bytes(b"1")
    failing(monkeypatch, "unlink", errno.EPERM, times=1)
    with pytest.raises(WriteFailed, match="cannot remove"):
        store.remove(DOC, ANY)
    assert (folder / "s1.json").read_bytes() == b"1"
    assert [p.name for p in folder.iterdir()] == ["s1.json"]


def test_an_unreadable_file_hides_no_other(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(DOC, b"{}", expect=None)
    store.put(Ref("s2", "document"), b"{}", expect=None)
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == "s1.json":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    found = {record.ref.key: (record.payload, record.error) for record in store.records()}
    assert found == {"s1": (None, "permission denied"), "s2": (b"{}", None)}
