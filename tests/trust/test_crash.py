"""Crash points, sampled: ``python -m tests.trust.crash`` goes through all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server
from tests.trust.crash import SCENES, Place, Scene, run_scene
from tests.trust.inject import APPLIES, Runner

FAULTS = dict.fromkeys(APPLIES, 43) | {"kill": 9, "torn": 5, "short": 5}
"""Every n-th call of each scene meets the fault."""
if os.environ.get("SESSIONCTL_TRUST") == "full":
    FAULTS = dict.fromkeys(FAULTS, 1)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_nothing_is_lost_whatever_happens_where(scene: Scene, runner: Runner, redis: Server, tmp_path: Path) -> None:
    met = run_scene(scene, Place(tmp_path / "place", redis), runner, FAULTS)
    assert met["kill"] >= 1
