"""The screenshots show what the commands print now."""

from __future__ import annotations

import pytest
from screenshots import FOLDER, SHOTS, picture, text_of


@pytest.mark.parametrize("name", SHOTS)
def test_screenshots_are_current(name: str) -> None:
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text_of(kept) == text_of(picture(name)), "run python -m tests.screenshots"
    assert "http" not in kept.replace("http://www.w3.org/2000/svg", ""), "it loads nothing from elsewhere"
    assert len(text_of(kept)) > 200
