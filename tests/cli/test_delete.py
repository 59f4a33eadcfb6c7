"""``sessionctl delete``: what an id means, what is protected, links, standard input, and all is checked first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sessionctl.model import Ref
from sessionctl.stores.folder import FolderStore
from tests.servers import Server
from tests.stored import DAY, call, document, entry, log, names, now_ms, state
from tests.terminal import Terminal, environment, run

OWNERS = ("a3f1" * 16, "b7c2" * 16)


def deleted(folder: Path, *arguments: str | Path, code: int = 0, stdin: bytes = b"") -> dict[str, Any]:
    done = run("delete", "-o", "json", "-y", "-v", *arguments, "-s", folder, stdin=stdin)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_golden_output(folder: Path) -> None:
    document(folder, "s1", age=3 * DAY)
    log(folder, "s2", age=2 * DAY)
    dry = run("delete", "s1", "s2", "-n", "-s", folder)
    assert dry.stdout == "KEY  MSGS   SIZE  REASON\ns1      2  286 B  named\ns2      2  162 B  named\n"
    assert dry.stderr == "would delete 2 sessions, 4 messages, 448 B, 2 looked at\n"
    refused = run("delete", "s1", "s2", "-s", folder)
    assert refused.returncode == 2
    assert refused.stderr.startswith("sessionctl: this would delete 2 sessions, 448 B; it needs --yes")
    done = run("delete", "s1", "s2", "-y", "-s", folder)
    assert done.stdout == "deleted s1  3 d  286 B\ndeleted s2  2 d  162 B\n"
    assert done.stderr == "deleted 2 sessions, 4 messages, 448 B, 2 looked at\n"
    assert names(folder) == []


def test_what_an_id_means(folder: Path) -> None:
    for owner in OWNERS:
        document(folder, f"{owner}:shared", id="shared")
    document(folder, f"{OWNERS[0]}:only", id="only")
    document(folder, "file-name", id="inner-name")
    before = state(folder)
    for ambiguous in ("shared", "shar", OWNERS[0][:8]):
        done = run("delete", ambiguous, "-y", "-s", folder)
        assert done.returncode == 4, ambiguous
        assert "full key" in done.stderr
    for unknown in ("sha", "none", "SHARED", "share*", "*", f"{OWNERS[0]}:", "only "):
        assert run("delete", unknown, "-y", "-s", folder).returncode in (3, 4), unknown
    assert state(folder) == before
    assert deleted(folder, f"{OWNERS[0]}:shared")["keys"] == [f"{OWNERS[0]}:shared"]
    assert deleted(folder, "shared")["keys"] == [f"{OWNERS[1]}:shared"]
    assert deleted(folder, "only")["keys"] == [f"{OWNERS[0]}:only"]
    assert deleted(folder, "inner")["keys"] == ["file-name"]


def test_all_ids_are_checked_before_anything_is_done(folder: Path) -> None:
    document(folder, "s1")
    document(folder, "s2")
    before = state(folder)
    for bad, code in (("nope", 3), ("../s1", 2), ("s", 3), ("", 2), ("x" * 10_000, 2)):
        assert run("delete", "s1", bad, "-y", "-s", folder).returncode == code
        assert state(folder) == before
    done = run("delete", "nope", "s1", "neither", "-y", "-s", folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "sessionctl: no such session: 'nope', 'neither'")
    assert state(folder) == before


def test_both_kinds_of_one_key(folder: Path) -> None:
    document(folder, "s1")
    log(folder, "s1")
    log(folder, "s1-child")
    (folder / "s1.json.tmp.1750000000000").write_bytes(b"{")
    assert deleted(folder, "s1")["deleted"] == 2
    assert names(folder) == ["s1-child.jsonl"]


def test_ids_from_standard_input(folder: Path) -> None:
    for number in range(4):
        document(folder, f"s{number}")
    found = deleted(folder, "-", stdin=b"s0\r\ns1\n\nnope\n../x\ns0\n", code=8)
    assert found["keys"] == ["s0", "s1"]
    assert [failure["key"] for failure in found["failed"]] == ["nope", "../x"]
    assert found["failed"][0]["error"] == "no such session: 'nope'"
    done = run("delete", "-", "-y", "-s", folder, stdin=b"nope\n\x1b[31m\n")
    assert done.returncode == 8
    assert done.stderr.count("nope") == 1 and "no such session: 'nope'\n" in done.stderr
    assert "\x1b" not in done.stderr
    assert deleted(folder, "-", stdin=b"s2\0s3\0")["keys"] == ["s2", "s3"]
    assert deleted(folder, "-", stdin=b"")["matched"] == 0


@pytest.mark.parametrize("command", ["delete", "show", "repair", "migrate"])
def test_a_key_on_standard_input_is_never_the_start_of_another(folder: Path, tmp_path: Path, command: str) -> None:
    document(folder, "job-12", id="inner-name")
    before = state(folder)
    stores = [folder, tmp_path / "target"] if command == "migrate" else ["-s", folder]
    sure = {"show": [], "repair": ["--fix"]}.get(command, ["--yes"])
    for gone in (b"job-1\n", b"inner-name\n", b"job-1\0"):
        done = run(command, *stores, "-", *sure, stdin=gone)
        assert done.returncode == 8, (gone, done.stderr)
        assert "no such session: " in done.stderr
        assert state(folder) == before
        assert not (tmp_path / "target").exists()


def test_any_name_survives_the_way_from_list_to_delete(folder: Path) -> None:
    odd = ["a\nb", "\x1b[31m", "-n", "--force", " x ", "\u202egpj", "e\u0301", "nul", "*", "k" * 249, "a\u2028b"]
    for name in odd:
        (folder / f"{name}.json").write_bytes(document(folder, "model").read_bytes())
    (folder / "model.json").unlink()
    listed = run("list", "-o", "ids", "-0", "-s", folder).stdout
    assert sorted(listed.split("\0")[:-1]) == sorted(odd)
    assert deleted(folder, "-", stdin=listed.encode())["deleted"] == len(odd)
    assert names(folder) == []


@pytest.mark.parametrize("name", ["-n", "--force", "--"])
def test_ids_that_look_like_options(folder: Path, name: str) -> None:
    document(folder, name)
    document(folder, "other")
    done = run("delete", "-y", "-s", folder, "--", name)
    assert done.returncode == 0, done.stderr
    assert names(folder) == ["other.json"]


def test_a_table_on_standard_input_is_told_once_a_line(folder: Path) -> None:
    document(folder, "s1")
    document(folder, "s2")
    table = run("list", "-s", folder).stdout
    done = run("delete", "-", "-y", "-s", folder, stdin=table.encode())
    assert (done.returncode, names(folder)) == (8, ["s1.json", "s2.json"])
    assert all(done.stderr.count(key) == 1 for key in ("s1 ", "s2 ", "KEY "))
    assert "list -o ids" in done.stderr


def test_force_is_offered_only_for_what_it_overrides(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[stores.here]\nurl = "{folder}"\nprotect = ["kept"]\n')
    env = environment(SESSIONCTL_CONFIG=str(config))
    document(folder, "kept")
    document(folder, "busy", age=1000)
    for more in ((), ("--force",)):
        done = run("delete", "kept", "-y", *more, "-s", folder, env=env)
        assert (done.returncode, "protected by the configuration" in done.stderr) == (6, True)
        assert "--force" not in done.stderr
    done = run("delete", "kept", "busy", "-y", "-s", folder, env=env)
    assert "--force deletes 1 of them all the same" in done.stderr


def test_protected_sessions_stay(folder: Path, tmp_path: Path) -> None:
    document(folder, "busy", age=1000)
    document(folder, "future", age=-400 * DAY)
    place = tmp_path / ".checkpoints" / "checkpoints"
    place.mkdir(parents=True)
    checkpoint = {"id": "c", "closed": False, "sessionId": "paused", "outstanding": {"p": {"toolUseId": "t1"}}}
    (place / "c.json").write_text(json.dumps(checkpoint))
    log(folder, "paused", entry("a", None), entry("b", "a", "assistant", [call("t1")]))
    document(folder, "free")
    for key in ("busy", "future", "paused"):
        done = run("delete", key, "-y", "-s", folder)
        assert done.returncode == 6, key
        assert f"skipped {key}: " in done.stderr
        assert "--force" in done.stderr
    found = deleted(folder, "busy", "free", code=6)
    assert (found["keys"], [skip["key"] for skip in found["skipped"]]) == (["free"], ["busy"])
    assert deleted(folder, "busy", "future", "paused", "--force")["deleted"] == 3


def test_damaged_and_unreadable_ones_can_be_deleted_by_name(folder: Path) -> None:
    (folder / "bad.json").write_bytes(b"{")
    (folder / "bad.jsonl").write_bytes(b"\xff")
    assert run("delete", "bad", "-y", "-s", folder).returncode == 6, "written a moment ago"
    assert deleted(folder, "bad", "--min-idle", "0")["deleted"] == 2


def test_what_cannot_be_read_is_a_failure_and_the_rest_is_done(redis: Server) -> None:
    client = redis.client()
    for key in ("open", "shut"):
        client.set(f"seepient:session:{key}", json.dumps({"id": key, "updatedAt": 1_700_000_000_000, "messages": []}))
    keys = ["seepient:session:open", "session-log:*", "session-lock:*"]
    client.acl_setuser("half", enabled=True, passwords=["+pw"], keys=keys, commands=["+@all"])
    done = run("delete", "-o", "json", "-y", "-v", "shut", "open", "-s", redis.url(login="half:pw@"))
    found = json.loads(done.stdout)
    assert done.returncode == 8, done.stderr
    assert (found["keys"], [failed["key"] for failed in found["failed"]]) == (["open"], ["shut"])
    assert "cannot be read: " in found["failed"][0]["error"]
    assert found["skipped"] == []
    assert client.keys() == [b"seepient:session:shut"]


def test_a_lock_is_waited_for_and_named(folder: Path) -> None:
    document(folder, "s1")
    with FolderStore(folder) as store:
        with store.lock(Ref("s1", "document"), 0):
            done = run("delete", "s1", "-y", "--lock-wait", "200ms", "-s", folder)
            assert done.returncode == 6
            assert re.match(r"skipped s1: 's1' is locked by \S+:\d+, for \d+ s\n", done.stderr)
            assert names(folder) == [".sessionctl", "s1.json"]
            assert deleted(folder, "s1", "--force")["deleted"] == 1
        assert names(folder) == []


def test_a_link_is_removed_and_never_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text(document(tmp_path, "outside").read_text())
    (folder / "link.json").symlink_to(outside)
    (folder / "dangling.json").symlink_to(tmp_path / "nowhere")
    (folder / "dir.jsonl").symlink_to(tmp_path)
    dry = run("delete", "link", "-n", "-s", folder)
    assert "only the link goes" in dry.stdout
    assert deleted(folder, "link", "dangling", "dir")["keys"] == ["link", "dangling", "dir"]
    assert names(folder) == []
    assert outside.exists()


def test_the_question(folder: Path) -> None:
    document(folder, "s1")
    for answer, left in (("n\n", ["s1.json"]), ("y\n", [])):
        with Terminal("delete", "s1", "-s", folder) as screen:
            screen.expect("Delete 1 session, 286 B?")
            screen.send(answer)
            assert screen.wait() == 0
        assert names(folder) == left


def test_no_id_at_all(folder: Path) -> None:
    done = run("delete", "-y", "-s", folder)
    assert done.returncode == 2
    assert "name the sessions" in done.stderr


def test_an_archive(folder: Path, tmp_path: Path) -> None:
    payload = document(folder, "s1").read_bytes()
    found = deleted(folder, "s1", "--archive", tmp_path / "archive")
    assert (found["deleted"], found["archived"]) == (1, 1)
    assert (tmp_path / "archive" / "s1.json").read_bytes() == payload
    (tmp_path / "archive" / "s1.json").write_bytes(b"another")
    document(folder, "s1", createdAt=now_ms() - DAY)
    found = deleted(folder, "s1", "--archive", tmp_path / "archive", code=7)
    assert "archive holds another session" in found["failed"][0]["error"]
    assert names(folder) == ["s1.json"]
