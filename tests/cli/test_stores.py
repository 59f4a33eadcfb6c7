"""``sessionctl stores``: what is configured, whether it answers, and nothing secret."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from terminal import DOCUMENTS, Terminal, environment, run


def configured(tmp_path: Path, **extra: str) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "c.toml").write_text(
        f'default = "samples"\n[stores.samples]\nurl = "{DOCUMENTS}"\nprotect = ["vip-*"]\n'
        f'[stores.new]\nurl = "{tmp_path}/none/"\narchive = "redis://:archivepw@127.0.0.1:{port}/1"\n'
        f'[stores.cache]\nurl = "redis://me:hunter2@127.0.0.1:{port}/0"\n'
        '[stores.unset]\nurl = "redis://:${NOT_SET_HERE}@127.0.0.1/0"\n'
    )
    return environment(SESSIONCTL_CONFIG=str(tmp_path / "c.toml"), **extra)


def test_each_store_and_whether_it_answers(tmp_path: Path) -> None:
    found = run("stores", "-o", "json", env=configured(tmp_path))
    assert found.returncode == 7, "one does not answer"
    rows = {row["name"]: row for row in json.loads(found.stdout)}
    assert list(rows) == ["samples", "new", "cache", "unset"]
    assert rows["samples"] | {"milliseconds": 0} == {
        "name": "samples",
        "url": str(DOCUMENTS),
        "archive": None,
        "protect": ["vip-*"],
        "default": True,
        "answers": True,
        "state": "answers",
        "milliseconds": 0,
    }
    assert (rows["new"]["answers"], rows["new"]["state"]) == (True, "does not exist yet")
    assert rows["cache"]["answers"] is False
    assert "'NOT_SET_HERE' is not set" in rows["unset"]["state"]


def test_no_password_is_shown(tmp_path: Path) -> None:
    env = configured(tmp_path)
    with Terminal("stores", env=env, size=(200, 24)) as screen:
        screen.wait()
    for text in (screen.text, *(run("stores", "-o", f, env=env).stdout for f in ("table", "json", "jsonl", "csv"))):
        assert "samples" in text
        assert "hunter2" not in text
        assert "archivepw" not in text


def test_without_a_configuration_the_default_store_is_told(tmp_path: Path) -> None:
    found = run("stores", env=environment(tmp_path))
    assert found.returncode == 0
    assert str(tmp_path / ".seepient" / "sessions") in found.stdout
    nothing = run("stores", env=environment())
    assert (nothing.returncode, nothing.stdout.splitlines()[1:]) == (0, [])


def test_a_wrong_default_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'default = "sampels"\n[stores.samples]\nurl = "{DOCUMENTS}"\n')
    found = run("stores", env=environment(SESSIONCTL_CONFIG=str(tmp_path / "c.toml")))
    assert found.returncode == 7
    assert "did you mean samples?" in found.stdout
    assert "answers" in found.stdout
