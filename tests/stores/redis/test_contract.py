"""The contract of a store, on a server and on a Cluster."""

from __future__ import annotations

import time

import pytest

from sessionctl.errors import SessionLocked
from sessionctl.model import Ref
from sessionctl.stores import open_store
from sessionctl.stores.base import Store, Want

from ... import servers
from ...contract import THEN, StoreContract

LONGEST = 180 * 86_400_000


class RedisContract(StoreContract):
    keeps_ttl = True
    exists_from_the_start = True

    def open(self, place: str) -> Store:
        return open_store(place)

    def test_the_age_is_kept(self, store: Store, ref: Ref) -> None:
        """Only logs have an age here, and the server counts no longer than half a year back."""
        hour_ago = time.time_ns() // 1_000_000 - 3_600_000
        for at, kept in ((hour_ago, hour_ago), (THEN, time.time_ns() // 1_000_000 - LONGEST)):
            store.put(Ref(f"{at}", ref.kind), self.one(ref), expect=None, changed_at=at)
            for found in store.records(Want.NAMES, [Ref(f"{at}", ref.kind)]):
                if ref.kind == "document":
                    assert (found.stamp.changed_at, found.stamp.source) == (None, "none")
                else:
                    assert found.stamp.source == "idle"
                    assert found.stamp.changed_at is not None
                    assert abs(found.stamp.changed_at - kept) <= 1000

    def test_locks_of_other_sessions_are_free(self, store: Store, ref: Ref) -> None:
        """One lock guards the document and the log of a key, as it does for the agents."""
        with store.lock(ref, 0), store.lock(Ref("another", ref.kind), 0):
            pass
        with store.lock(Ref("both", "document"), 0), pytest.raises(SessionLocked):
            store.lock(Ref("both", "log"), 0)


class TestServer(RedisContract):
    @pytest.fixture
    def place(self, redis: servers.Server) -> str:
        return redis.url()


class TestCluster(RedisContract):
    @pytest.fixture
    def place(self, nodes: list[servers.Server]) -> str:
        for node in nodes:
            node.client().flushall()
        return f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"
