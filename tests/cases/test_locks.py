"""Case 136: a run that is interrupted gives back the lock that agents wait for."""

from __future__ import annotations

import json
import signal
import subprocess

from tests.servers import Server, until
from tests.terminal import COMMAND, environment

SESSIONS = 1500


def test_case_136_ctrl_c_gives_back_the_lock_of_the_agents(redis: Server) -> None:
    client = redis.client()
    old = {"messages": [], "createdAt": 1_700_000_000_000, "updatedAt": 1_700_000_000_000}
    for number in range(SESSIONS):
        client.set(f"seepient:session:s{number:04}", json.dumps({"id": f"s{number:04}", **old}))
    command = [*COMMAND, "gc", "--older-than", "1d", "-y", "-s", redis.url()]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment()
    )
    until(lambda: client.dbsize() < SESSIONS - 20 or process.poll() is not None, "the first removals")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert not client.keys("*lock:*")
    left = client.keys("seepient:session:*")
    assert 0 < len(left) == client.dbsize() < SESSIONS
    assert f"interrupted: {len(left):,} sessions were not deleted" in said
    assert "Traceback" not in said
