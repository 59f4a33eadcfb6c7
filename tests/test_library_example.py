"""README's example of the library, run as it stands there."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    code = [line for line in example.splitlines() if line.strip() and not line.startswith("#")]
    assert len(code) <= 30
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, str(README), "exec"), names)
    customer = hashlib.sha256(b"ann@example.com").hexdigest()
    assert capsys.readouterr().out.splitlines() == [
        "1 message so far",
        "{'title': 'Greeting'}",
        f"default:production:support:{customer}",
    ]
    assert not names["interrupted"] and names["leaf"]
    asyncio.run(names["answer"]("and more"))
    assert [m["content"] for m in names["talks"].history(names["key"])] == ["hello", "1 message so far", "and more"]
    assert sorted(p.name for p in tmp_path.rglob("*.json*")) == sorted(
        [
            "42.json",
            f"{names['key']}.jsonl",
            f"{hashlib.sha256(b'sk-key-of-a-customer').hexdigest()}:{names['session']['id']}.json",
        ]
    )
