"""Redis and Valkey: ``open_redis`` makes a store of a URL; ``RedisStore`` says how sessions lie there."""

from .address import parse
from .store import RedisStore

__all__ = ["RedisStore", "open_redis"]


def open_redis(url: str) -> RedisStore:
    """Open ``redis:``, ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://`` or ``redis+cluster://``.

    No server is asked before the store is used. Raises UsageError.
    """
    return RedisStore(parse(url))
