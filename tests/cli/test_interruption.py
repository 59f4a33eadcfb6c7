"""Ctrl-C while a lock is waited for, or before anything was decided: the end comes at once and says what was done."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sessionctl.model import Ref
from sessionctl.stores import open_store
from tests.servers import Server
from tests.stored import DAY, call, entry, log
from tests.terminal import COMMAND, environment

DANGLING = (entry("a", None), entry("b", "a", "assistant", [call("t1")]))


def interrupted(*arguments: str | Path, after: float) -> tuple[str, str, float]:
    """What a command says that is interrupted after some seconds, and how long it takes to end."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return out, err, time.monotonic() - began


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["delete", "s1", "-y"], "interrupted: 1 session was not deleted"),
        (["gc", "--older-than", "1d", "--lock-wait", "30s", "-y"], "interrupted: 1 session was not deleted"),
        (["repair", "--fix", "s1", "--min-idle", "0"], "interrupted: 1 session checked, 1 with findings, 1 left alone"),
    ],
)
@pytest.mark.parametrize("where", ["folder", "redis"])
def test_a_wait_for_a_lock_ends_with_the_first_ctrl_c(
    folder: Path, redis: Server, command: list[str], said: str, where: str
) -> None:
    log(folder, "s1", *DANGLING, age=2 * DAY)
    url = str(folder)
    if where == "redis":
        url = redis.url()
        with open_store(folder) as source, open_store(url) as target:
            target.put(Ref("s1", "log"), source.get(Ref("s1", "log")).payload or b"", expect=None, changed_at=1)
    with open_store(url) as store, store.lock(Ref("s1", "log"), 0):
        before = store.get(Ref("s1", "log")).payload
        out, err, seconds = interrupted(*command, "-s", url, after=3)
        assert store.get(Ref("s1", "log")).payload == before
    assert seconds < 3
    assert said in err
    assert "locked by" in out + err


def test_a_gc_that_is_interrupted_while_it_looks_says_that_nothing_was_done(redis: Server, tmp_path: Path) -> None:
    client = redis.client()
    metrics = tmp_path / "gc.prom"
    client.client_pause(30_000, all=False)  # writes, such as taking the lock
    try:
        _, err, _ = interrupted("gc", "--older-than", "1d", "-y", "-s", redis.url(), "--metrics", metrics, after=2)
    finally:
        client.client_unpause()
    assert err == "interrupted: nothing was deleted\n"
    assert re.search(r"exit_code\S* 130\n", metrics.read_text())
    assert client.keys() == []
