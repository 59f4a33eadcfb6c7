"""The contract over folders, and what is special to files: links, modes, temporary files, races, full disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionctl.stores import open_store
from sessionctl.stores.base import Store
from tests.contract import StoreContract


class TestFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return str(tmp_path / "sessions")

    def open(self, place: str) -> Store:
        return open_store(place)


class TestDocuments(StoreContract):
    kinds = ("document",)

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"documents:{tmp_path / 'sessions'}"

    def open(self, place: str) -> Store:
        return open_store(place)


class TestLogs(StoreContract):
    kinds = ("log",)

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"logs:{tmp_path / 'sessions'}"

    def open(self, place: str) -> Store:
        return open_store(place)
