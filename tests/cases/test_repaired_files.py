"""Cases 33 to 79: damaged files, as repair mends them or leaves them alone."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.repairs import entries, found, lines, mended, messages, numbered, said
from tests.servers import Server
from tests.stored import DAY, call, document, entry, result, set_age, state
from tests.terminal import COMMAND, environment, run

HI = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"hi"}}\n'
HELLO = b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":"hello"}}\n'
LATER = HELLO.replace(b"e2", b"e3")
TORN = b'{"id":"x","parentId":"e1","message":{"role":"assi'
CUT = b'{"id":"x","parentId":"e1","message":{"role":"assistant","content":"\xe6\x97\n'
BRACES = HI.replace(b"hi", b"brace }{ in text")


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        pytest.param(HI + HELLO + TORN, HI + HELLO, "torn-tail", id="033-torn"),
        pytest.param(HI + TORN + HELLO, HI + HELLO, "glued-line", id="035-glued"),
        pytest.param(BRACES + HELLO[:-1] + LATER, BRACES + HELLO + LATER, "glued-line", id="037-two-on-one-line"),
        pytest.param(HI + HELLO[:-1] + bytes(9000) + b"\n" + bytes(140_000), HI + HELLO, "nul-bytes", id="039-nul"),
        pytest.param(HI + TORN + b"\n" + HELLO + LATER, HI + HELLO + LATER, "invalid-json", id="045-middle"),
        pytest.param(b"\xef\xbb\xbf" + HI + HELLO, HI + HELLO, "byte-order-mark", id="051-mark"),
        pytest.param(HI + CUT + LATER, HI + LATER, "invalid-utf8", id="079-half-a-character"),
    ],
)
def test_case_033_035_037_039_045_051_079_lines(folder: Path, before: bytes, after: bytes, code: str) -> None:
    """Whole entries stay byte for byte; what is none is in the backup, as it was."""
    lines(folder, before)
    assert set(found(folder, 5)) == {(code, True)}
    assert mended(folder) == after


@pytest.mark.parametrize("payload", [b"\0\0", bytes(9000), b"", b"CORRUPT {{{", b"[]"])
def test_case_041_043_049_nothing_to_recover(folder: Path, payload: bytes) -> None:
    """The next step is said, the file stays, and no other session is touched."""
    document(folder, "s2")
    path = folder / "s1.json"
    path.write_bytes(payload)
    set_age(path, DAY)
    before = state(folder)
    [(_, fixable)] = found(folder, 5)
    assert not fixable
    mended(folder, code=5)
    done = run("repair", "--fix", "--force", "-s", folder, env=environment(folder.parent / "home"))
    assert (done.returncode, state(folder)) == (5, before)
    assert done.stdout.endswith("  [restore it from a backup, or remove it with sessionctl delete]\n")


def test_case_043_an_empty_log_is_an_empty_session(folder: Path) -> None:
    lines(folder)
    assert found(folder, 0) == [("empty-file", False)]
    assert mended(folder) == b""


def test_case_051_a_byte_order_mark_of_a_document(folder: Path) -> None:
    before = numbered(folder, said("user", "hi"), said("assistant", "ho"))
    path = folder / "s1.json"
    path.write_bytes(b"\xef\xbb\xbf" + before)
    set_age(path, DAY)
    assert found(folder, 5) == [("byte-order-mark", True)]
    assert mended(folder) == before


def test_case_053_crlf(folder: Path) -> None:
    """FORMATS.md section 4 has every line end in one newline: the original dies on a lone carriage return."""
    calls = json.dumps(entry("e2", "e1", "assistant", [call("t1")]), separators=(",", ":")).encode()
    lines(folder, HI[:-1] + b"\r\n" + calls + b"\r\n")
    after = mended(folder)
    assert after.startswith(HI + calls + b"\n")
    assert b"\r" not in after, "never a mix"
    assert len(entries(after)) == 3


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_case_055_line_separators_inside_a_string(folder: Path, separator: str) -> None:
    text = json.dumps(entry("e1", None, "user", f"one{separator}two"), ensure_ascii=False, separators=(",", ":"))
    before = lines(folder, text.encode() + b"\n", HELLO.replace(b'"hello"', b'[{"type":"tool_use","id":"t1",'
                   b'"name":"ls","input":{}}]'))  # fmt: skip
    assert mended(folder).startswith(before)


def test_case_057_half_a_surrogate_pair(folder: Path) -> None:
    """FORMATS.md section 4: a warning, reported only; a repair of something else leaves every escape as it is."""
    before = lines(
        folder,
        HI,
        entry("e2", "e1", "assistant", [call("t1", "ask", q="\ud99c x")]),
        entry("e3", "e2", "user", [result("t1")]),
    )
    assert found(folder, 0) == [("lone-surrogate", False)]
    assert mended(folder) == before
    before = lines(folder, HI, entry("e2", "e1", "assistant", [call("t1", "ask", q="\ud99c x")]))
    assert mended(folder).startswith(before)


def test_case_061_nan_is_named_and_left(folder: Path) -> None:
    """Not JSON: in a document nothing can be done; in a log the line goes to the backup, the good ones stay."""
    nan = b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":[{"type":"x","y":NaN}]}}\n'
    lines(folder, HI + nan + LATER)
    assert "NaN is no number in JSON" in run("repair", "-s", folder).stdout
    assert mended(folder) == HI + LATER


def test_case_063_very_deep_nesting(folder: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    path = folder / "s1.json"
    path.write_text(
        '{"id":"s1","messages":[{"id":"m1","role":"assistant","content":"","toolCalls":[{"id":"c1","name":"f","arguments":'
        + deep
        + '}],"timestamp":1}],"createdAt":1,"updatedAt":1}'
    )
    set_age(path, DAY)
    before = state(folder)
    assert found(folder, 5) == [("invalid-json", False)]
    assert "nested too deeply" in run("repair", "-s", folder).stdout
    mended(folder, code=5)
    assert state(folder) == before


def test_case_065_067_a_large_log_is_mended_with_its_long_lines_as_they_are(folder: Path) -> None:
    long = entry("e2", "e1", "assistant", "x" * 15_000_000)
    before = lines(folder, HI, long, entry("e3", "e2", "assistant", [call("t1")]))
    after = mended(folder)
    assert after.startswith(before)
    assert len(entries(after)) == 4


def test_case_073_a_temporary_file_is_the_only_copy(folder: Path) -> None:
    payload = numbered(folder, said("user", "hi"), said("assistant", "ho"))
    (folder / "s1.json").rename(folder / "s1.json.tmp.1750000000000")
    set_age(folder / "s1.json.tmp.1750000000000", 3 * DAY)
    home = environment(folder.parent / "home")
    done = run("repair", "s1", "--fix", "-s", folder, env=home)
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_bytes() for p in folder.glob("s1*")} == {"s1.json": payload}
    assert run("repair", "s1", "--fix", "-s", folder, env=home).stderr.endswith("no findings, nothing to do\n")


def test_case_075_a_replacement_is_all_or_nothing(redis: Server, tmp_path: Path) -> None:
    client = redis.client()
    stored = [json.dumps(entry("e1", None)).encode(), json.dumps(entry("e2", "e1", "assistant", [call("t1")])).encode()]
    client.rpush("session-log:s1", *stored)
    client.execute_command("ACL", "SETUSER", "half", "on", ">pw", "~*", "&*", "+@all", "-rpush", "-linsert", "-lset")
    done = run("repair", "--fix", "--min-idle", "0s", "-s", redis.url(login="half:pw@"), env=environment(tmp_path))
    assert done.returncode == 8, done.stderr
    assert "rpush" in done.stdout.lower()
    assert client.lrange("session-log:s1", 0, -1) == stored
    assert client.keys("*") == [b"session-log:s1"], "no lock and nothing half made stays"


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("unshare") is None, reason="takes a mount of its own")
def test_case_077_a_full_disk(folder: Path, tmp_path: Path) -> None:
    """A real file system without room; limits of the process stand in for it in tests/cli/test_repair.py."""
    text = [entry(f"e{n}", f"e{n - 1}" if n else None, "user", "x" * 900) for n in range(39)]
    before = lines(folder, *text, entry("e39", "e38", "assistant", [call("t1")]))
    small = tmp_path / "small"
    small.mkdir()
    script = (
        'mount -t tmpfs -o size=64k none "$SMALL" || exit 90; cp -p "$SMALL/../sessions/s1.jsonl" "$SMALL"; "$@"; '
        'echo "code $?"; sha256sum < "$SMALL/s1.jsonl"; ls -AR "$SMALL" | grep -v sessionctl'
    )
    command = [*COMMAND, "repair", "--fix", "-s", f"logs:{small}", "--backup", f"logs:{small / 'b'}"]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *command],
        env=environment(tmp_path / "home", SMALL=str(small)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 90 or "unshare" in done.stderr:
        pytest.skip("no mount without rights here")
    assert "no space left" in done.stdout.lower(), done.stdout + done.stderr
    assert "code 8" in done.stdout
    assert hashlib.sha256(before).hexdigest() in done.stdout
    left = ["b", "s1.jsonl", "", f"{small / 'b'}:"]
    assert done.stdout.splitlines()[-4:] == left, "no temporary file and no half backup"


def test_hostile_text_survives_an_edit_beside_it(folder: Path) -> None:
    """Not a case, but what all of them ask for: nothing but the edit changes."""
    before = numbered(folder, said("user", "1e400 \ud800 \u2028"), {"role": "assistant", "content": "", "toolCalls": [
        {"id": "c1", "name": "ls", "arguments": {"n": 12345678901234567890}}]})  # fmt: skip
    after = mended(folder)
    assert messages(after)[:2] == messages(before)
    start = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    assert after.endswith(before[start:])
