"""Repairs on a real Redis server: the same findings and fixes, TTLs and ages kept, locks of agents respected."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sessionctl.model import Ref
from sessionctl.ops.mend import Options
from sessionctl.ops.repair import Backup, Report, repair
from sessionctl.stores import open_store
from sessionctl.stores.base import Store

from ..apis import refused
from ..servers import Server
from .test_repair import DANGLING, answer, calling, doc

LOG, DOCUMENT = Ref("s", "log"), Ref("d", "document")


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store(redis: Server) -> Store:
    hour_ago = now() - 3_600_000
    store = open_store(redis.url())
    store.put(LOG, DANGLING, expect=None, changed_at=hour_ago)
    store.put(
        DOCUMENT,
        doc({"role": "user", "content": "x"}, calling("c1", "c2"), answer("c2")),
        expect=None,
        ttl_ms=3_600_000,
    )
    return store


def run(store: Store, tmp_path: Path, **more: object) -> dict[Ref, Report]:
    reports = repair(store, now, Backup(now=now(), root=tmp_path), lock_wait=0, **more)  # type: ignore[arg-type]
    return {report.ref: report for report in reports}


def test_both_kinds_are_mended(store: Store, redis: Server, tmp_path: Path) -> None:
    reports = run(store, tmp_path)
    for ref in (LOG, DOCUMENT):
        payload = store.get(ref).payload
        assert payload is not None and refused(payload, ref.kind) == []
        assert reports[ref].status == "ok" and reports[ref].backup is not None, reports[ref]
    assert 3_500_000 < redis.client().pttl("seepient:session:d") <= 3_600_000
    assert redis.client().keys("session-lock:*") == []
    stamp = store.stamp(LOG)
    assert stamp is not None and stamp.changed_at is not None and now() - stamp.changed_at > 3_500_000
    entries = redis.client().lrange("session-log:s", 0, -1)
    assert entries[:2] == DANGLING.splitlines() and len(entries) == 3


def test_an_agents_lock_is_respected(store: Store, redis: Server, tmp_path: Path) -> None:
    redis.client().set("session-lock:s", "agent", px=60_000)
    report = run(store, tmp_path)[LOG]
    assert report.skipped and report.exit_code == 6 and store.get(LOG).payload == DANGLING
    assert redis.client().get("session-lock:s") == b"agent" and redis.client().pttl("session-lock:s") > 0


def test_a_lock_without_expiry_goes_when_that_is_wanted(store: Store, redis: Server, tmp_path: Path) -> None:
    redis.client().set("session-lock:s", "dead agent")
    report = run(store, tmp_path, options=Options(skip=frozenset({"stale-lock"})))[LOG]
    assert report.skipped and redis.client().get("session-lock:s") == b"dead agent"
    report = run(store, tmp_path)[LOG]
    assert report.status == "ok" and all(o.fixed for o in report.outcomes), report
    assert "stale-lock" in {o.finding.code for o in report.outcomes}
    assert redis.client().get("session-lock:s") is None


def test_a_key_of_another_type_is_reported(store: Store, redis: Server, tmp_path: Path) -> None:
    redis.client().hset("session-log:odd", "a", "b")
    report = run(store, tmp_path)[Ref("odd", "log")]
    assert [(o.finding.code, o.fixed) for o in report.outcomes] == [("wrong-type-key", False)]
    assert redis.client().hgetall("session-log:odd") == {b"a": b"b"}
