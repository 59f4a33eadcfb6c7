"""TABLE.md names a test, which exists, for every case of the list."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
CASES = {
    *range(1, 134, 2), 134, 136, 138, 140, 142, 144, 146, 148, 150, 152, 154, 156, 158, *range(159, 184, 2),
    *range(184, 231, 2), 231, 233,
}  # fmt: skip
"""The numbers of the list."""
ROWS = dict(re.findall(r"^\| (\d+) \| (.+) \|$", Path(__file__).with_name("TABLE.md").read_text(), re.MULTILINE))


def test_every_case_is_in_the_table() -> None:
    assert set(map(int, ROWS)) == CASES


def test_every_named_test_exists() -> None:
    missing = []
    for number, row in ROWS.items():
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", row)
        assert named, f"case {number} names no test"
        for path, test in named:
            file = TESTS / path
            if not file.is_file() or (test and not re.search(rf"def {test}\(", file.read_text())):
                missing.append(f"{number}: {path}::{test}")
    assert missing == []


def test_every_test_of_a_case_is_in_the_table() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):
        for name in re.findall(r"def (test_case_\w+)\(", path.read_text()):
            for number in re.findall(r"(?<=_)\d{3}(?=_)", name):
                assert name in ROWS[str(int(number))], name
