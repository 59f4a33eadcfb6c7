"""The contract over sessions in memory, and what is special there."""

from __future__ import annotations

import uuid

import pytest

from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import Store
from tests.contract import StoreContract


class TestMemory(StoreContract):
    keeps_ttl = True
    exists_from_the_start = True

    @pytest.fixture
    def place(self) -> str:
        return f"memory:{uuid.uuid4()}"

    def open(self, place: str) -> Store:
        return open_store(place)


def test_a_name_is_shared_and_none_is_not() -> None:
    name = f"memory:{uuid.uuid4()}"
    open_store(name).put(Ref("k", "log"), b"x", expect=None)
    assert open_store(name).stamp(Ref("k", "log")) is not None
    open_store("memory:").put(Ref("k", "log"), b"x", expect=None)
    assert open_store("memory:").stamp(Ref("k", "log")) is None
    assert open_store("memory:").place() != open_store("memory:").place()
