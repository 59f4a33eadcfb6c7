"""Fixtures that many tests share. What is expensive starts when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .servers import Server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """One Redis server for the whole run; ``redis`` gives it empty."""
    from .servers import server

    with server() as made:
        yield made


@pytest.fixture
def redis(redis_server: Server) -> Server:
    """The server, empty, with its first configuration and nobody but the default user."""
    client = redis_server.client()
    client.flushall()
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("proto-max-bulk-len", 512 << 20)
    for user in client.acl_users():
        if user != "default":
            client.acl_deluser(user)
    return redis_server
