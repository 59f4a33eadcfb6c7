"""What the tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...servers import Server, cluster


@pytest.fixture(scope="session")
def nodes() -> Iterator[list[Server]]:
    """A Cluster of three primaries; each test empties it itself."""
    with cluster() as made:
        yield made
