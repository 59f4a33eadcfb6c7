"""A folder of sessions for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "sessions"
    path.mkdir()
    return path
