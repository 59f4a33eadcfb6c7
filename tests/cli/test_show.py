"""``sessionctl show``: golden transcripts, every form of output, branches, damage, and text that is never obeyed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sessionctl.cli.output import safe, safe_line
from tests.stored import DAY, document, entry, log, message, now_ms, result, state
from tests.terminal import COMMAND, DOCUMENTS, FIXTURES, LOGS, Terminal, environment, run

DAMAGED_LOGS = FIXTURES / "loopengine-damaged" / ".sessions"
DAMAGED = FIXTURES / "seepient-damaged" / "sessions"
AT = 1_750_000_000_000


def shown(*arguments: str | Path, code: int = 0) -> str:
    done = run("show", *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout


def as_json(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    return json.loads(shown("-o", "json", *arguments, code=code))


def talk(folder: Path) -> None:
    document(
        folder,
        "talk",
        age=DAY,
        provider="anthropic",
        model="claude",
        messages=[
            message("system", "Be brief.", AT),
            message("user", "Check both.\nSecond line.", AT + 1000),
            message("assistant", "", AT + 2000, toolCalls=[
                {"id": "a", "name": "get", "arguments": {"u": "x"}},
                {"id": "b", "name": "get", "arguments": {"u": "y"}},
                {"id": "c", "name": "", "arguments": "{\"cut"},
                {"id": "d", "name": "in", "arguments": {}, "result": ""},
            ]),
            message("tool", "200 OK\nfine", AT + 3000, toolCallId="a"),
            message("assistant", "Done.", AT + 4000),
            message("tool", "stale", AT + 5000, toolCallId="gone"),
        ],
    )  # fmt: skip


TRANSCRIPT = """\
talk
  document · broken · 6 messages · 1.3 KB · 1 d old · anthropic · claude
  ! 1 call without result, malformed-tool-call, orphan-tool-result

system  2025-06-15 15:06:40
  Be brief.

user  2025-06-15 15:06:41
  Check both.
  Second line.

assistant  2025-06-15 15:06:42
  → get {"u": "x"}
    200 OK
    fine
  → get {"u": "y"}
    ✗ no result (b)
  → (no name) {"cut
    ⚠ malformed call
    ✗ no result (c)
  → in {}
    (empty)

assistant  2025-06-15 15:06:44
  Done.

tool  2025-06-15 15:06:45
  ⚠ gone: result without a call
    stale
"""


def test_golden_transcript_piped(folder: Path) -> None:
    talk(folder)
    done = run("show", "talk", "-s", folder)
    assert done.stdout == TRANSCRIPT
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "talk: messages[2]: the call c lacks an id or a name, or its arguments are not an object (malformed-tool-call)",
        "talk: messages[2]: the call b has no result; model APIs refuse the session as it is (unresolved-tool-call)",
        "talk: messages[5]: a result for gone, which no message calls (orphan-tool-result)",
    ]


def test_golden_transcript_at_a_terminal(folder: Path) -> None:
    talk(folder)
    with Terminal("show", "talk", "-s", folder, size=(80, 500)) as screen:
        assert screen.wait() == 0
    lines = "".join(line.rstrip() + "\n" for line in screen.plain.splitlines())
    assert lines.startswith(TRANSCRIPT)
    assert "\x1b[1;36muser" in screen.text


def test_a_terminal_wraps_and_a_pipe_does_not(folder: Path) -> None:
    document(folder, "long", messages=[message("user", "word " * 60 + "漢字" * 60)])
    with Terminal("show", "long", "-s", folder, size=(80, 24)) as screen:
        screen.wait()
    from rich.cells import cell_len

    assert all(cell_len(line) <= 80 for line in screen.plain.splitlines())
    assert "word " * 60 + "漢字" * 60 in shown("long", "-s", folder)


def test_long_texts_are_cut_with_a_count(folder: Path) -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    document(folder, "long", messages=[
        message("user", text),
        message("assistant", "", toolCalls=[{"id": "a", "name": "f", "arguments": {"x": "y" * 900}, "result": text}]),
        message("assistant", "z" * 3_000_000),
    ])  # fmt: skip
    cut = shown("long", "-s", folder)
    assert "line 39\n" in cut
    assert "line 40\n" not in cut
    assert len(cut) < 10_000
    assert re.findall(r"… (.*) more \(--full\)", cut) == ["480 B", "734 B", "3.0 MB"]
    assert re.search(r"y… \(\+?\d+ B", cut)
    full = shown("long", "-s", folder, "--full")
    assert full.count("line 99\n") == 2
    assert "z" * 3_000_000 in full
    assert "y" * 900 in full
    assert "more (--full)" not in full
    assert as_json("long", "-s", folder)[0]["messages"][0]["text"] == text


@pytest.mark.parametrize("kind", ["document", "log"])
def test_the_last_messages_of_a_large_session(folder: Path, kind: str) -> None:
    """More than 4 MB: the end alone is read, unless that does not tell; all forms of output show the same messages."""
    texts = [f"{number} " + "x" * 100_000 for number in range(60)]
    roles, at = ["user", "assistant"], now_ms() - DAY
    if kind == "document":
        document(folder, "big", age=DAY, messages=[message(roles[n % 2], t, at + n) for n, t in enumerate(texts)])
    else:
        lines = [entry(f"e{n}", f"e{n - 1}" if n else None, roles[n % 2], text) for n, text in enumerate(texts)]
        log(folder, "big", *lines, age=DAY)
    head, facts, gap, *rest = shown("-s", folder, "big", "--last", "3").splitlines()
    assert (head, gap) == ("big", "… messages before")
    assert facts == f"  {kind} · 6.0 MB · 1 d old · only the end was read"
    assert [line.split()[0] for line in rest if line[:3] in ("  5", "  4")] == ["57", "58", "59"]
    (value,) = as_json("-s", folder, "big", "--last", "3")
    (whole,) = as_json("-s", folder, "big")
    assert whole["status"] == value["status"] == "ok"
    assert value["messages"] == whole["messages"][-3:] and len(whole["messages"]) == 60
    assert (
        shown("-s", folder, "big", "--last", "99").splitlines()[1].startswith(f"  {kind} · ok · 60 messages · 6.0 MB")
    )
    assert "## user" in shown("-s", folder, "big", "--last", "2", "--markdown")
    if kind == "log":
        with (folder / "big.jsonl").open("ab") as file:
            file.write(b'{"id": "e60", "parent')
        assert shown("-s", folder, "big", "--last", "3", code=5).splitlines()[1].startswith("  log · damaged · ")


def test_the_last_messages(folder: Path) -> None:
    document(folder, "s", messages=[message("user", f"text {number}") for number in range(9)])
    cut = shown("s", "-s", folder, "--last", "2")
    assert "… 7 messages before" in cut
    assert re.findall(r"text \d", cut) == ["text 7", "text 8"]
    assert re.findall(r"text \d", shown("s", "-s", folder, "--last", "0")) == []
    assert len(re.findall(r"text \d", shown("s", "-s", folder, "--last", "99"))) == 9
    assert [m["text"] for m in as_json("s", "-s", folder, "--last", "1")[0]["messages"]] == ["text 8"]


def test_a_result_is_shown_with_its_call(folder: Path) -> None:
    calls = [{"id": "a", "name": "get", "arguments": {}}]
    document(folder, "s", messages=[
        message("user", "x"), message("assistant", "", toolCalls=calls), message("tool", "RESULT", toolCallId="a"),
    ])  # fmt: skip
    for extra in ([], ["--markdown"]):
        cut = shown("s", "-s", folder, "--last", "1", *extra)
        assert cut.index("get") < cut.index("RESULT")


def test_json(folder: Path) -> None:
    talk(folder)
    (found,) = as_json("talk", "-s", folder)
    assert found["status"] == "broken"
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [(c["id"], c["resolved"]) for c in found["messages"][2]["tool_calls"]] == [
        ("a", True), ("b", False), ("c", False), ("d", True),
    ]  # fmt: skip
    assert found["messages"][2]["tool_calls"][2]["arguments"] == '{"cut'
    assert found["messages"][3]["tool_result"] == {"call_id": "a", "text": "200 OK\nfine", "is_error": False}
    assert found["messages"][0]["at"] == "2025-06-15T15:06:40.000Z"
    assert set(found["messages"][0]) >= {"id", "role", "text", "tool_calls", "tool_result", "at", "branch"}
    assert found["messages"][0]["tool_result"] is None


def test_several_sessions() -> None:
    found = as_json("interrupted-one", "legacy-0001", "interrupted-one", "-s", DOCUMENTS)
    assert [row["key"] for row in found] == ["interrupted-one", "legacy-0001"]
    lines = run("show", "interrupted-one", "legacy-0001", "-o", "jsonl", "-s", DOCUMENTS).stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["interrupted-one", "legacy-0001"]
    assert "\n\nlegacy-0001\n" in shown("interrupted-one", "legacy-0001", "-s", DOCUMENTS)


def test_the_exact_bytes(folder: Path) -> None:
    payload = b'\xef\xbb\xbf{"id":"s",\r\n"x":"\\u001b[31m \xff\x00"}'
    (folder / "s.json").write_bytes(payload)
    done = subprocess.run([*COMMAND, "show", "s", "--raw", "-s", folder], capture_output=True, env=environment())
    assert (done.returncode, done.stdout) == (0, payload)
    with Terminal("show", "s", "--raw", "-s", folder, size=(80, 500)) as screen:
        screen.wait()
    assert "\x00" not in screen.text
    assert "\\x00" in screen.text


@pytest.mark.parametrize("extra", [["--last", "1"], ["--tree"], ["--markdown"], ["-o", "json"]])
def test_raw_goes_with_nothing_else(extra: list[str]) -> None:
    done = run("show", "legacy-0001", "--raw", *extra, "-s", DOCUMENTS)
    assert (done.returncode, done.stdout) == (2, "")


def test_markdown_goes_with_no_json() -> None:
    done = run("show", "legacy-0001", "--markdown", "-o", "json", "-s", DOCUMENTS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--markdown and -o json" in done.stderr


def test_markdown_cannot_be_broken_out_of(folder: Path) -> None:
    document(folder, "s", messages=[
        message("user", "hi"),
        message("assistant", "", toolCalls=[
            {"id": "a", "name": "f", "arguments": {"x": 1}, "result": "```\n# not a heading\n````"},
            {"id": "b", "name": "g", "arguments": {}},
        ]),
    ])  # fmt: skip
    found = shown("s", "--markdown", "-s", folder)
    assert "\n`````\n```\n# not a heading\n````\n`````\n" in found
    assert "*no result (b)*" in found
    assert "## user\n\nhi\n" in found


def test_branches(folder: Path) -> None:
    log(folder, "s", entry("a", None, "user", "root"), entry("b", "a", "assistant", "one"),
        entry("c", "a", "assistant", "other"), entry("x", "c", "user", "given up"),
        entry("d", "b", "user", "on"))  # fmt: skip
    found = shown("s", "-s", folder)
    assert "given up" not in found
    assert "1 more message outside the history (--tree)" in found
    assert "other" in found, "topology repair makes a sibling part of the history"
    tree = shown("s", "--tree", "-s", folder)
    assert tree.index("branch 1") < tree.index("given up")
    messages = as_json("s", "--tree", "-s", folder)[0]["messages"]
    assert [(m["text"], m["branch"]) for m in messages][-1] == ("given up", 1)
    assert len(as_json("s", "-s", folder)[0]["messages"]) == 4


@pytest.mark.parametrize(
    ("key", "folder", "texts", "said"),
    [
        ("torn-tail", DAMAGED_LOGS, ["one", "two"], "line 3, byte 167: the last line is incomplete (torn-tail)"),
        ("cycle", DAMAGED_LOGS, ["one", "two", "three"], "the parents form a cycle; entry a closes it (parent-cycle)"),
        ("nul-hole", DAMAGED_LOGS, ["one"], "NUL bytes (nul-bytes)"),
        ("not-json", DAMAGED_LOGS, [], "(invalid-json)"),
        ("utf8-bom", DAMAGED, ["x"], "(byte-order-mark)"),
        ("truncated", DAMAGED, [], "(invalid-json)"),
        ("zero-bytes", DAMAGED, [], "the file is empty (empty-file)"),
    ],
)
def test_damage_is_said_and_the_rest_is_shown(key: str, folder: Path, texts: list[str], said: str) -> None:
    done = run("show", key, "-s", folder)
    assert done.returncode == 5
    assert said in done.stderr
    assert all(f"\n  {text}\n" in done.stdout or f"\n    {text}\n" in done.stdout for text in texts)
    assert len(json.loads(run("show", key, "-o", "json", "-s", folder).stdout)[0]["messages"]) >= len(texts)


# --- text that is never obeyed ---

BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
HOSTILE = (
    "a\x1b[2J\x1b[31mX \x1b]0;title\x07 \x1b]52;c;cHduZWQ=\x07 real\rFAKE \b\b\x00 \u202egnp.exe \u2066x\u2069 "
    "\x9b31m \x7f\u2028\u2029\ufeff\u061c\U000e0041 [/USER] [bold]x[/red] :smile:\tend\nnext"
)


def hostile(folder: Path) -> None:
    document(
        folder,
        "vile\x1b[31m\u202e\n",
        provider=HOSTILE,
        model=HOSTILE,
        principalId=HOSTILE,
        metadata={"title": HOSTILE},
        messages=[
            message("user\x1b[31m\n", HOSTILE, AT),
            message("assistant", HOSTILE, toolCalls=[
                {"id": HOSTILE, "name": HOSTILE, "arguments": {HOSTILE: HOSTILE}, "result": HOSTILE},
                {"id": "open\x1b", "name": HOSTILE, "arguments": HOSTILE},
            ]),
            message("tool", HOSTILE, toolCallId=HOSTILE * 2),
        ],
    )  # fmt: skip
    log(folder, "evil2\x1b[31m", entry("e\x1b[31m", None, "user", [result(HOSTILE, HOSTILE)]), b'{"id":"\x1b]0;x\x07')


@pytest.mark.parametrize(
    "command",
    [
        ["list"], ["list", "-o", "csv"], ["list", "-o", "ids"], ["list", "-o", "json"], ["list", "-o", "jsonl"],
        ["show", "vile"], ["show", "vile", "--full"], ["show", "vile", "--markdown"], ["show", "vile", "-o", "json"],
        ["show", "evil2", "--tree"], ["gc", "--older-than", "1h", "-n"], ["gc", "--ttl", "1h", "-n", "-o", "json"],
        ["delete", "evil2", "-n"], ["delete", "\x1b[31m"], ["show", "nope\x1b]0;x\x07"],
    ],
)  # fmt: skip
def test_nothing_is_obeyed(folder: Path, command: list[str]) -> None:
    hostile(folder)
    done = run(*command, "-s", folder, env=environment(SESSIONCTL_DEBUG="1"))
    assert done.returncode in (0, 3, 5), done.stderr
    assert not BAD.search(done.stdout)
    assert not BAD.search(done.stderr)
    for text in ("[/USER]", "[bold]x[/red]", ":smile:"):
        assert text in done.stdout or command[0] in ("delete", "gc") or "ids" in command or "nope" in command[1]
    with Terminal(*command, "-s", folder, size=(4000, 500)) as screen:
        screen.wait()
    ours = re.compile(r"\x1b\[(\?25[lh]|[0-9;]*[mKA])|\r")
    assert not BAD.search(ours.sub("", screen.text))
    assert "\x1b[31mX" not in screen.text


def test_json_keeps_hostile_text_exactly(folder: Path) -> None:
    hostile(folder)
    output = run("show", "vile", "-o", "json", "-s", folder).stdout
    assert output.isascii()
    (found,) = json.loads(output)
    assert found["messages"][0]["text"] == HOSTILE
    assert found["provider"] == HOSTILE
    assert found["key"] == "vile\x1b[31m\u202e\n"


def test_the_hostile_fixture() -> None:
    found = shown("hostile-text", "-s", DOCUMENTS)
    assert not BAD.search(found)
    assert "markup [bold]x[/bold] [/red] [link=file:///etc/passwd]y[/link]" in found
    assert "漢字かな 한글 👨‍👩‍👧" in found
    with Terminal("show", "hostile-text", "-s", DOCUMENTS, size=(80, 500)) as screen:
        screen.wait()
    assert "[/red]" in screen.plain
    assert "pwned\x07" not in screen.text


def test_safe_text() -> None:
    assert safe("a\tb\nc é 漢 👩‍💻") == "a\tb\nc é 漢 👩‍💻"
    assert safe_line("a\tb\nc") == "a\\tb\\nc"
    assert safe("\x1b[31m\r\x9b\u202e\ud800\U000e0041") == "\\x1b[31m\\r\\x9b\\u202e\\ud800\\U000e0041"
    assert not any(BAD.search(safe(chr(code))) for code in range(0x11000))


def test_a_log_of_the_other_writer() -> None:
    found = as_json("python-writer", "-s", LOGS)[0]
    assert [m["role"] for m in found["messages"]] == ["user", "assistant", "user", "assistant"]
    assert found["messages"][0]["text"] == "bonjour ☃"


def test_reading_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    talk(folder)
    log(folder, "log")
    before = state(tmp_path)
    for extra in ([], ["--raw"], ["--tree"], ["-o", "json"], ["--markdown"]):
        run("show", "talk", "log", *extra, "-s", folder, env=environment(tmp_path))
    assert state(tmp_path) == before
