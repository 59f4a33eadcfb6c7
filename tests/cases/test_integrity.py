"""Cases 33 to 79: files that are torn, glued, filled with zeros, oddly encoded, deep, large, or left over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stored import DAY, TALK, document, entry, log, names, now_ms, set_age, state
from tests.terminal import environment, run

HI = b'{"id":"e1","parentId":null,"message":{"role":"user","content":"hi"}}\n'
HELLO = b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":"hello"}}\n'


def row(folder: Path, key: str = "s1") -> dict[str, object]:
    return {r["key"]: r for r in json.loads(run("list", "-o", "json", "-s", folder).stdout)}[key]


def texts(folder: Path, key: str = "s1") -> list[str]:
    return [m["text"] for m in json.loads(run("show", key, "-o", "json", "-s", folder).stdout)[0]["messages"]]


@pytest.mark.parametrize(
    ("payload", "shown", "said", "finding"),
    [
        pytest.param(HI + HELLO + b'{"id":"e3","parentId":"e2","mess', ["hi", "hello"],
                     "line 3, byte 146: the last line is incomplete", "torn-tail", id="033-torn"),
        pytest.param(HI + b'{"id":"e2","parentId":"e1","message":{"role":"assi' + HELLO.replace(b"e2", b"e3"),
                     ["hi", "hello"], "line 2", "glued-line", id="035-glued"),
        pytest.param(HI.replace(b"hi", b"brace }{ in text") + HI[:-1].replace(b"e1", b"e0")
                     .replace(b"null", b'"e1"') + HELLO.replace(b'"e1"', b'"e0"'),
                     ["brace }{ in text", "hi", "hello"], "2 whole entries", "glued-line", id="037-two"),
        pytest.param(HI + HELLO[:-1] + bytes(9000) + b"\n" + bytes(140_000), ["hi", "hello"],
                     "9000 NUL bytes", "nul-bytes", id="039-nul"),
        pytest.param(HI + b'{"id":"x","note":"cut\n' + HELLO + HELLO.replace(b"e1", b"e2").replace(b'"e2"', b'"e3"', 1),
                     ["hi", "hello", "hello"], "line 2, byte 69: not JSON", "invalid-json", id="045-middle"),
        pytest.param(HI + b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":"\xe6\x97\n'
                     + HELLO.replace(b"e2", b"e3"), ["hi", "hello"],
                     "line 2, byte 69: not UTF-8 at byte 68", "invalid-utf8", id="079-utf8"),
    ],
)  # fmt: skip
def test_case_033_035_037_039_045_079_damaged_lines(
    folder: Path, payload: bytes, shown: list[str], said: str, finding: str
) -> None:
    """What is whole is shown; what is not is named by line and byte, in list as in show; exit code 5 (DESIGN.md)."""
    (folder / "s1.jsonl").write_bytes(payload)
    before = state(folder)
    assert texts(folder) == shown
    done = run("show", "s1", "-s", folder)
    assert done.returncode == 5
    assert said in done.stderr
    found = row(folder)
    assert (found["status"], found["messages"], found["findings"]) == ("damaged", len(shown), [finding])
    assert run("list", "-s", folder).returncode == 0, "damage is part of a row, not a failure of list"
    assert state(folder) == before


def test_case_041_zero_bytes_in_a_document(folder: Path) -> None:
    (folder / "s1.json").write_bytes(b"\0\0")
    document(folder, "s2")
    set_age(folder / "s1.json", 90 * DAY)
    assert run("show", "s2", "-s", folder).returncode == 0
    assert row(folder)["findings"] == ["nul-bytes"]
    assert run("show", "s1", "-s", folder).returncode == 5
    run("gc", "--older-than", "30d", "-y", "-s", folder)
    assert names(folder) == ["s1.json", "s2.json"]


def test_case_043_an_empty_log(folder: Path) -> None:
    (folder / "s1.jsonl").write_bytes(b"")
    document(folder, "s2")
    found = row(folder)
    assert (found["status"], found["messages"], found["findings"]) == ("empty", 0, ["empty-file"])
    done = run("show", "s1", "-s", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert texts(folder) == []


def test_case_047_one_bad_file_hides_no_other(folder: Path) -> None:
    document(folder, "s1", age=0)
    (folder / "s2.json").write_text("[]\n")
    document(folder, "s3", messages=[{"id": "m1", "role": "wizard", "content": "?", "timestamp": 1_750_000_000_000}])
    for key, status in (("s1", "ok"), ("s2", "damaged"), ("s3", "ok")):
        assert row(folder, key)["status"] == status
    set_age(folder / "s2.json", 99 * DAY)
    found = json.loads(run("gc", "--older-than", "24h", "-n", "-o", "json", "-s", folder).stdout)
    assert "s2" not in found["keys"]


def test_case_049_the_total_tells_damaged_ones(folder: Path) -> None:
    document(folder, "s1")
    (folder / "s2.json").write_text("CORRUPT {{{\n")
    done = run("list", "-s", folder)
    assert "s2" in done.stdout
    assert done.stderr == "2 sessions, 1 damaged\n"


def test_case_051_a_byte_order_mark(folder: Path) -> None:
    """FORMATS.md: the mark is damage (the original cannot read it), so show ends with 5, but shows all."""
    path = document(folder, "s1")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    before = state(folder)
    assert (row(folder)["messages"], row(folder)["findings"]) == (2, ["byte-order-mark"])
    assert texts(folder) == ["hi", "hello"]
    assert run("show", "s1", "-s", folder).returncode == 5
    assert state(folder) == before


def test_case_055_line_separators_inside_a_string(folder: Path) -> None:
    text = "one\u2028two\u2029three\u0085four"
    log(folder, "s1", entry("e1", None, "user", text), entry("e2", "e1", "assistant", "ok"))
    assert texts(folder) == [text, "ok"]
    assert row(folder)["status"] == "ok"


def test_case_057_half_a_surrogate_pair(folder: Path) -> None:
    line = rb'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":[{"type":"tool_use","id":"t1",' + (
        rb'"name":"ask","input":{"q":"\ud99c x"}}]}}' + b"\n"
    )
    answer = [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]
    log(folder, "s1", HI, line, entry("e3", "e2", "user", answer))
    assert row(folder)["findings"] == ["lone-surrogate"]
    done = run("show", "s1", "-s", folder)
    assert done.returncode == 0
    assert r"\ud99c x" in done.stdout
    assert r"\ud99c" in run("show", "s1", "-o", "json", "-s", folder).stdout


def test_case_059_the_locale_does_not_say_how_files_are_read(folder: Path) -> None:
    log(folder, "s1", entry("e1", None, "user", "한글 — café"), entry("e2", "e1", "assistant", "ok"))
    env = environment() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run("show", "s1", "-s", folder, env=env)
    assert done.returncode == 0
    assert r"\ud55c\uae00 \u2014 caf\xe9" in done.stdout
    assert json.loads(run("show", "s1", "-o", "json", "-s", folder, env=env).stdout)[0]["status"] == "ok"


def test_case_061_nan_is_not_json(folder: Path) -> None:
    """FORMATS.md: what JSON.parse refuses is damage; the rest of the log is shown."""
    line = b'{"id":"e2","parentId":"e1","message":{"role":"assistant","content":[{"type":"tool_use","id":"t1",'
    log(folder, "s1", HI, line + b'"name":"f","input":{"x":NaN}}]}}\n')
    done = run("show", "s1", "-s", folder)
    assert done.returncode == 5
    assert "line 2, byte 69: not JSON: NaN" in done.stderr
    assert texts(folder) == ["hi"]


def test_case_063_very_deep_nesting(folder: Path) -> None:
    calls = [{"id": "c1", "name": "f", "arguments": "DEEP"}]
    path = document(folder, "s1", messages=[{"role": "assistant", "content": "", "toolCalls": calls}])
    path.write_text(path.read_text().replace('"DEEP"', "[" * 100_000 + "]" * 100_000))
    document(folder, "s2")
    assert row(folder)["status"] == "damaged"
    assert row(folder, "s2")["status"] == "ok"
    done = run("show", "s1", "-s", folder)
    assert done.returncode == 5
    assert "nested too deeply" in done.stderr
    assert "Traceback" not in done.stderr


def test_case_065_a_very_large_session(folder: Path) -> None:
    """A 60 MB log is listed with a third of that to spare; tests/cli/test_environment.py measures memory itself."""
    line = json.dumps(entry("e0", None, "user", "x" * 1_000_000)).encode() + b"\n"
    with (folder / "s1.jsonl").open("wb") as file:
        for number in range(60):
            parent = b"null" if not number else b'"e%d"' % (number - 1)
            file.write(line.replace(b'"e0"', b'"e%d"' % number, 1).replace(b"null", parent, 1))
    assert row(folder)["messages"] == 60


def test_case_067_one_very_long_line(folder: Path) -> None:
    log(folder, "s1", HI, entry("e2", "e1", "assistant", "x" * 15_000_000))
    done = run("show", "s1", "-s", folder)
    assert done.returncode == 0
    assert "15.0 MB more (--full)" in done.stdout
    assert len(done.stdout) < 5000
    assert len(texts(folder)[1]) == 15_000_000


def test_case_069_a_picture_comes_first(folder: Path) -> None:
    blocks = [{"type": "image", "data": "A" * 219_000}, {"type": "text", "text": "see picture"}]
    log(folder, "s1", entry("e1", None, "user", blocks))
    assert row(folder)["title"] == "see picture"


def test_case_071_a_temporary_file_is_no_session(folder: Path) -> None:
    document(folder, "s1", age=0)
    (folder / f"s1.json.tmp.{now_ms()}").write_bytes(b'{"id":"s1","mess')
    done = run("list", "-o", "ids", "-s", folder)
    assert (done.returncode, done.stdout) == (0, "s1\n")
    assert "is a temporary file that its writer left" in done.stderr
    assert texts(folder) == ["hi", "hello"]


def test_case_073_a_temporary_file_is_the_only_copy(folder: Path) -> None:
    """gc leaves it; list says it; repair brings it back (tests/ops/test_repair.py)."""
    left = folder / f"s1.json.tmp.{now_ms()}"
    document(folder, "s1").rename(left)
    set_age(left, 3 * DAY)
    done = run("list", "-s", folder)
    assert left.name in done.stderr
    run("gc", "--older-than", "24h", "-y", "-s", folder)
    assert names(folder) == [left.name]


def test_case_053_crlf_is_read_and_named(folder: Path) -> None:
    (folder / "s1.jsonl").write_bytes((HI + HELLO).replace(b"\n", b"\r\n"))
    assert texts(folder) == ["hi", "hello"]
    assert row(folder)["findings"] == ["blank-or-crlf-line"]


def test_case_087_reading_a_torn_document_changes_nothing(folder: Path) -> None:
    (folder / "s1.json").write_bytes(b'{"id":"s1","messages":[{"id":"m1","role":"user","content":"hi')
    before = state(folder)
    assert run("show", "s1", "-s", folder).returncode == 5
    assert row(folder)["findings"] == ["invalid-json"]
    assert state(folder) == before


def test_the_samples_are_healthy_without_their_fault(folder: Path) -> None:
    log(folder, "s1", *TALK)
    assert row(folder)["status"] == "ok"
    assert (folder / "s1.jsonl").read_bytes().replace(b": ", b":").replace(b", ", b",") == HI + HELLO
