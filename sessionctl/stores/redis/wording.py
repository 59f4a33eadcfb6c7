"""What went wrong at a Redis server, in one line, with a hint, and never with a secret or a payload in it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as failed
from redis.sentinel import MasterNotFoundError

from ...errors import StoreError, WriteFailed
from ...keys import quoted
from .address import Address

_COMMAND = re.compile(r"'([a-z0-9|_.-]+)' (?:command|subcommand)", re.IGNORECASE)
_PEER = re.compile(r"connecting to (\S+?)\.?(?:\s|$)")

TRY_AGAIN = "run it again when the server answers; what was done stays done"


def visible(text: str) -> str:
    """Text from elsewhere, on one line: cut, and with every control character visible."""
    return quoted(text, 300)[1:-1]


def of_server(error: BaseException) -> str:
    """The server's own words."""
    return visible(str(error) or type(error).__name__)


def not_allowed(error: BaseException) -> bool:
    """Whether a right is missing; EXEC tells it in words of its own."""
    return isinstance(error, failed.NoPermissionError) or "NOPERM" in str(error)


def missing_right(error: BaseException) -> str | None:
    """The command that the user may not run, None where it is a key that the user may not touch."""
    match = _COMMAND.search(str(error))
    return match[1].replace("|", " ").upper() if match else None


def explain(error: BaseException, address: Address) -> StoreError:
    """``error`` of the Redis client as a StoreError (exit code 7)."""
    at = f"Redis at {address.servers}"
    match error:
        case failed.NoPermissionError() | failed.ExecAbortError() if not_allowed(error):
            command = missing_right(error)
            said = f"may not run {command}" if command else "has no right to a key that is needed"
            allow = f"+{command.lower().replace(' ', '|')}" if command else "~PATTERN"
            return StoreError(f"{at}: NOPERM: the user {said}", hint=f"grant it: ACL SETUSER … {allow}")
        case failed.AuthenticationError() | failed.AuthorizationError():
            if "required" in str(error).lower():
                return StoreError(
                    f"{at} asks for a password (NOAUTH)",
                    hint="give user and password in the URL, best by ${VAR} in the configuration or by REDIS_URL",
                )
            return StoreError(f"{at} refused the user name or password", hint="user and password are those of the ACL")
        case failed.BusyLoadingError():
            return StoreError(f"{at} is still loading its data (LOADING)", hint="try again in a moment")
        case failed.ReadOnlyError():
            return WriteFailed(
                f"{at} is a read-only replica (READONLY); nothing was written",
                hint="name the primary, or go through Sentinel: redis+sentinel://host:26379/service",
            )
        case failed.OutOfMemoryError():
            return WriteFailed(
                f"{at} has no memory left: OOM {of_server(error)}", hint="raise maxmemory, then run it again"
            )
        case failed.MovedError() | failed.AskError() if address.way != "cluster":
            return StoreError(
                f"{at} is a node of a Redis Cluster (MOVED)", hint=f"write redis+cluster://{address.servers}"
            )
        case failed.MovedError() | failed.AskError() | failed.TryAgainError():
            return StoreError(f"{at}: a slot is just being moved to another node", hint="try again in a moment")
        case failed.ClusterDownError():
            return StoreError(
                f"{at}: {of_server(error)}", hint="a node of the cluster is down; nothing can be complete"
            )
        case failed.RedisClusterException():
            return _of_cluster(error, address)
        case MasterNotFoundError():
            return StoreError(
                f"no Sentinel at {address.servers} knows a reachable primary called {quoted(address.service)}",
                hint="check the service's name, and that the Sentinels answer",
            )
        case failed.TimeoutError():
            return StoreError(f"{at} does not answer in time", hint=TRY_AGAIN)
        case failed.ConnectionError():
            return _of_connection(error, address)
        case _:
            return StoreError(f"{at}: {of_server(error)}")


def _of_cluster(error: failed.RedisClusterException, address: Address) -> StoreError:
    cause = error.__cause__ or error.__context__
    if isinstance(cause, failed.RedisClusterException) and "not enabled" in str(cause):
        return StoreError(
            f"Redis at {address.servers} is not a Redis Cluster", hint="write redis:// for a single server"
        )
    if isinstance(cause, failed.RedisError):
        return explain(cause, address)
    return StoreError(f"the Redis Cluster at {address.servers} cannot be used: {of_server(error)}")


def _bracketed(place: str) -> str:
    """``host:port``, an IPv6 address in brackets."""
    host, _, port = place.rpartition(":")
    return f"[{host}]:{port}" if ":" in host else place


def _of_connection(error: failed.ConnectionError, address: Address) -> StoreError:
    peer = _PEER.search(str(error))
    place = _bracketed(peer[1]) if peer and address.way != "socket" else address.servers
    cause = _cause(error)
    match cause:
        case ssl.SSLCertVerificationError():
            return StoreError(
                f"Redis at {place}: the TLS certificate was not accepted: {visible(cause.verify_message)}",
                hint="name the right CA file: ?ssl_ca_certs=FILE (or, without any protection, ssl_cert_reqs=none)",
            )
        case ssl.SSLError():
            return StoreError(
                f"Redis at {place}: no TLS connection: {visible(cause.reason or str(cause))}",
                hint="is TLS served there? CA file: ?ssl_ca_certs=FILE, client: ssl_certfile=FILE&ssl_keyfile=FILE",
            )
        case socket.gaierror():
            return StoreError(f"Redis at {place}: the host is not known ({cause.strerror})")
        case FileNotFoundError() if address.way == "socket":
            return StoreError(
                f"there is no socket at {quoted(address.path, 300)}", hint="the path is Redis's unixsocket"
            )
        case OSError() if cause.filename:
            return StoreError(f"cannot read {quoted(str(cause.filename), 300)}: {cause.strerror}")
        case ConnectionRefusedError():
            return StoreError(f"Redis at {place}: connection refused", hint="is the server running, on that port?")
        case OSError():
            return StoreError(f"Redis at {place}: {visible(cause.strerror or str(cause))}", hint=TRY_AGAIN)
        case _:
            return StoreError(f"Redis at {place}: the connection was lost ({of_server(error)})", hint=TRY_AGAIN)


def _cause(error: BaseException) -> OSError | None:
    seen: BaseException | None = error
    for _ in range(8):
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__ if seen else None
    return None


@contextmanager
def told(address: Address) -> Iterator[None]:
    """Turn what the Redis client raises into StoreError, unchained: the client's exception may hold a payload."""
    try:
        yield
    except (failed.RedisError, failed.RedisClusterException) as error:
        raise explain(error, address) from None
    except OSError as error:
        # A certificate or key file that cannot be read is raised as it is.
        where = f" {quoted(str(error.filename), 300)}" if error.filename else ""
        raise StoreError(f"Redis at {address.servers}: cannot use{where}: {error.strerror or error}") from None
