"""Connections to Redis: one server, one found through Sentinel, or the primaries of a Cluster.

Commands go out in batches and every answer comes back as a value, so that one bad key does not spoil a batch. Nothing
here knows of sessions. What is raised is the Redis client's own exceptions; the store turns them into StoreError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice
from typing import Any, TypeVar

from redis import Redis
from redis import exceptions as failed
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.retry import Retry
from redis.sentinel import Sentinel

from .address import Address, checks_host_name

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to be made."""

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer to come."""

TRIES = 4
"""How often a lost connection, or a slot that moved, is tried again, each time after a longer pause."""

Answer = Any
Command = tuple[Any, ...]
T = TypeVar("T")

LOST = (failed.ConnectionError, failed.TimeoutError)
"""The connection is gone: whether the last command was carried out is not known."""

MOVED = (failed.AskError, failed.TryAgainError, failed.ClusterDownError)
"""The slot is, or is about to be, with another node (MovedError is an AskError): nothing was done."""

HOPELESS = (failed.AuthenticationError, failed.AuthorizationError, failed.TimeoutError)
"""Kinds of LOST that are not tried again: a password does not get right, and who was silent once is asked no more."""


class Link:
    """One connection, for as long as a transaction needs it."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = self._pool.get_connection()
        self._connection.update_current_socket_timeout(ANSWER_TIMEOUT)
        self._watching = False
        self._in_transaction = False

    def talk(self, commands: Sequence[Command]) -> Iterator[Answer]:
        """Send all, then give the answers as they come; an error that the server answers is a value among them.

        Whoever leaves before the last answer loses the connection.
        """
        connection = self._connection
        left = len(commands)
        try:
            connection.send_packed_command(packed(commands))
            read = connection.read_response
            while left:
                try:
                    answer = read()
                except failed.ResponseError as error:
                    answer = error
                left -= 1
                yield answer
        except BaseException:
            if left:
                connection.disconnect()  # answers are outstanding: nobody may use it as it is
                self._watching = False
            raise

    def ask(self, *commands: Command) -> list[Answer]:
        """All answers; any error among them is raised."""
        answers = list(self.talk(commands))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def watch(self, keys: Sequence[bytes], *commands: Command) -> list[Answer]:
        """Watch keys until ``transact``, and ask more at once; gives the answers to that, errors among them."""
        self._watching = True
        watched, *answers = self.talk([("WATCH", *keys), *commands])
        if isinstance(watched, Exception):
            raise watched
        return answers

    def transact(self, commands: Sequence[Command]) -> list[Answer] | None:
        """MULTI, the commands, EXEC. None when a watched key changed; raises the first error, before or in EXEC."""
        self._in_transaction = True
        self.ask(("MULTI",))  # apart: were it refused, what follows would be carried out at once
        answers = list(self.talk([*commands, ("EXEC",)]))
        self._watching = self._in_transaction = False
        done = outcome(answers)
        if isinstance(done, Exception):
            raise done
        return done

    def give_back(self) -> None:
        """Return the connection to the pool, watching nothing."""
        try:
            if self._in_transaction:
                self._connection.disconnect()
            elif self._watching:
                list(self.talk([("UNWATCH",)]))
        except LOST:
            pass
        finally:
            self._pool.release(self._connection)


def outcome(answers: Sequence[Answer]) -> list[Answer] | Exception | None:
    """What came of a transaction: EXEC's answers, None where a watched key had changed, or the first error of any."""
    for answer in answers:
        if isinstance(answer, Exception):
            return answer
    done: list[Answer] | None = answers[-1]
    return next((answer for answer in done or () if isinstance(answer, Exception)), done)


def packed(commands: Sequence[Command]) -> Iterator[bytes]:
    """The commands as the protocol writes them, in few pieces: much faster than the client's own way, item by item."""
    parts: list[bytes] = []
    size = 0
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for value in command:
            if not isinstance(value, bytes):
                parts.append(_word(value))
            elif len(value) < _WORTH_NO_COPY:
                parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
            else:
                parts += (b"$%d\r\n" % len(value), value, b"\r\n")
                size += len(value)
                if size > _PIECE:
                    yield b"".join(parts)
                    parts, size = [], 0
    yield b"".join(parts)


_PIECE = 128 << 10
"""Bytes of values in a piece, about: it stays in the processor's cache until it is sent."""
_WORTH_NO_COPY = 1024


@lru_cache(maxsize=1024)
def _word(value: str | float) -> bytes:
    """The name of a command, an option or a number, as the protocol writes it."""
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


class Servers:
    """All servers of an Address. Nothing is connected before the first command."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reading_counts_as_use = False
        """True once a server refused CLIENT NO-TOUCH (older than 7.2, or no right to it)."""
        self._client: Redis | None = None
        self._cluster: Any = None  # the client's classes for Cluster and Sentinel have no type hints
        self._sentinel: Any = None
        self._retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), TRIES - 1)

    # --- who serves what --------------------------------------------------------------------------------------------

    def primaries(self) -> list[Redis]:
        """Every server that holds keys of its own."""
        if self.address.way != "cluster":
            return [self._direct()]
        cluster = self._topology()
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def at(self, key: bytes) -> Redis:
        """The server of a key."""
        if self.address.way != "cluster":
            return self._direct()
        cluster = self._topology()
        node = cluster.get_node_from_key(key)
        if node is None:
            raise failed.ClusterDownError("CLUSTERDOWN no node serves the slot of a key")
        client: Redis = cluster.get_redis_connection(node)
        return client

    def beside(self, key: bytes, name: str) -> bytes:
        """Another key, in the slot of ``key``, that no application uses."""
        if self.address.way != "cluster":
            return f"sessionctl-new:{name}".encode()
        start = key.find(b"{")
        end = key.find(b"}", start + 1) if start >= 0 else -1
        tag = key[start + 1 : end] if end > start + 1 else key
        if b"}" in tag:  # such a key is hashed whole, yet cannot stand between braces: find another tag of its slot
            slot = key_slot(key)
            tag = next(t for i in range(64 * REDIS_CLUSTER_HASH_SLOTS) if key_slot(t := b"%d" % i) == slot)
        return b"sessionctl-new:{%s}:%s" % (tag, name.encode())

    def refresh(self) -> None:
        """Learn anew which node serves which slot."""
        if self._cluster is not None:
            self._cluster.nodes_manager.initialize()

    def close(self) -> None:
        """Close all connections; the next command opens new ones."""
        sentinels = self._sentinel.sentinels if self._sentinel is not None else ()
        for client in (self._client, self._cluster, *sentinels):
            if client is not None:
                client.close()
        self._client = self._cluster = self._sentinel = None

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, keyed: Sequence[tuple[bytes, Command]]) -> list[Answer]:
        """Ask the server of each key, in one go per server; the answers come in the order of the questions.

        For commands that may be carried out twice: a lost connection is tried again.
        """
        answers: list[Answer] = [None] * len(keyed)
        for index, answer in self.stream(keyed):
            answers[index] = answer
        return answers

    def stream(self, keyed: Sequence[tuple[bytes, Command]]) -> Iterator[tuple[int, Answer]]:
        """``ask``, each answer as it comes, with the number of its question: only one need be in memory."""
        left: Sequence[int] = range(len(keyed))
        repeated = (*MOVED, *LOST) if self.address.way == "cluster" else LOST
        bad: list[tuple[int, Answer]] = []
        for pause in self.tries():
            bad = []
            for index, answer in self._round(keyed, left):
                if isinstance(answer, repeated):
                    bad.append((index, answer))
                else:
                    yield index, answer
            if not bad:
                return
            left = [index for index, _ in bad]
            pause()
            with suppress(failed.RedisClusterException, failed.RedisError):
                self.refresh()
        for _, answer in bad:
            if isinstance(answer, LOST):
                raise answer
        yield from bad

    def once(self, keyed: Sequence[tuple[bytes, Command]]) -> list[Answer]:
        """``ask`` without a second try: for writes. A lost connection is an answer, and leaves open what happened."""
        answers: list[Answer] = [None] * len(keyed)
        for index, answer in self._round(keyed, range(len(keyed))):
            answers[index] = answer
        return answers

    def make(self, keys: Sequence[bytes], commands: Sequence[Command]) -> list[Answer] | Exception | None:
        """Carry out commands in one transaction unless one of the keys, all of one server, is there; no second try.

        Gives their answers, or what failed, or None.
        """
        try:
            with self.link(keys[0]) as link:
                (there,) = link.watch(keys, ("EXISTS", *keys))
                return link.transact(commands) if there == 0 else None
        except HOPELESS:
            raise
        except failed.RedisError as error:
            return error

    def transactions(self, blocks: Sequence[tuple[bytes, Sequence[Command]]]) -> list[list[Answer] | Exception | None]:
        """Carry out each block, whose commands name keys of one slot, as a transaction of its own; ``once``.

        Only for what does no harm where MULTI is refused.
        """
        wrapped = [(key, [("MULTI",), *commands, ("EXEC",)]) for key, commands in blocks]
        answers = iter(self.once([(key, command) for key, commands in wrapped for command in commands]))
        return [outcome(list(islice(answers, len(commands)))) for _, commands in wrapped]

    def _round(self, keyed: Sequence[tuple[bytes, Command]], left: Sequence[int]) -> Iterator[tuple[int, Answer]]:
        """Ask what is left, server by server. The answer of a server that was lost is that error."""
        clustered = self.address.way == "cluster"
        by_server: dict[Redis, list[int]] = {}
        if clustered:
            for index in left:
                by_server.setdefault(self.at(keyed[index][0]), []).append(index)
        elif left:
            by_server[self._direct()] = list(left)
        for server, indexes in by_server.items():
            done = 0
            try:
                for answer in self._talk(server, [keyed[index][1] for index in indexes]):
                    index = indexes[done]
                    found = self._follow(answer, keyed[index][1]) if clustered else answer
                    done += 1
                    yield index, found
            except HOPELESS:
                raise
            except LOST as error:
                yield from ((index, error) for index in indexes[done:])

    def _follow(self, answer: Answer, command: Command) -> Answer:
        """The answer to a key that has already gone to the next node of a slot that is being moved."""
        if not isinstance(answer, failed.AskError) or isinstance(answer, failed.MovedError):
            return answer
        node: Any = self._topology().get_node(host=answer.host, port=answer.port)
        if node is None:
            return answer
        _, answer = self._talk(self._topology().get_redis_connection(node), [("ASKING",), command])
        return answer

    @staticmethod
    def _talk(server: Redis, commands: Sequence[Command]) -> Iterator[Answer]:
        link = Link(server)
        try:
            yield from link.talk(commands)
        finally:
            link.give_back()

    def _answers(self, server: Redis, *commands: Command) -> list[Answer]:
        return list(self._talk(server, commands))

    def one(self, key: bytes, *command: Any) -> Answer:
        """Ask one question; an error is raised."""
        (answer,) = self.ask([(key, command)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ping(self) -> None:
        """See that every server answers, whatever it answers."""
        for server in self.again(self.primaries):
            self.again(partial(self._answers, server, ("PING",)))

    def size(self, server: Redis) -> int:
        """How many keys a server holds; 0 where we may not ask."""
        (count,) = self.again(partial(self._answers, server, ("DBSIZE",)))
        return count if isinstance(count, int) else 0

    def names(self) -> tuple[str, ...]:
        """How the nodes of a Cluster call themselves."""
        return tuple(sorted(node.name for node in self._topology().get_primaries()))

    def scan(self, server: Redis, pattern: bytes, count: int) -> Iterator[list[bytes]]:
        """All keys of a server that fit, in pages; some may come twice.

        A scan that loses its server begins again: a cursor means nothing to a server that was started anew.
        """
        last: Exception | None = None
        for pause in self.tries():
            cursor = b"0"
            try:
                while True:
                    (answer,) = self._talk(server, [("SCAN", cursor, "MATCH", pattern, "COUNT", count)])
                    if isinstance(answer, Exception):
                        raise answer
                    cursor, keys = answer
                    yield keys
                    if cursor == b"0":
                        return
            except HOPELESS:
                raise
            except LOST as error:
                last = error
            pause()
        assert last is not None
        raise last

    @contextmanager
    def link(self, key: bytes) -> Iterator[Link]:
        """A connection to the key's server, for one transaction."""
        link = Link(self.at(key))
        try:
            yield link
        finally:
            link.give_back()

    def again(self, do: Callable[[], T]) -> T:
        """Do what may be done twice; after a lost connection pause and do it again, at most TRIES times in all."""

        def lost(error: Exception) -> None:
            if isinstance(error, HOPELESS):
                raise error

        return self._retry.call_with_retry(do, lost)

    @staticmethod
    def tries() -> Iterator[Callable[[], None]]:
        """TRIES turns; each gives the pause to make before the next."""
        backoff = ExponentialBackoff(cap=1.0, base=0.05)
        for count in range(1, TRIES + 1):
            yield partial(time.sleep, backoff.compute(count))

    # --- connecting -------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        address = self.address
        options: dict[str, Any] = {
            "db": address.db,
            "username": address.user,
            "password": address.password,
            "socket_timeout": CONNECT_TIMEOUT,  # also that of the TLS handshake; Link waits longer
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),  # retries are ours: a write is never repeated blindly
        }
        if address.tls:
            options |= {"ssl": True, "ssl_cert_reqs": "required", **address.tls_options}
            options["ssl_check_hostname"] = checks_host_name(address.tls_options)
        return options

    def _direct(self) -> Redis:
        if self._client is None:
            options = {**self._options(), "redis_connect_func": self._greet}
            address = self.address
            if address.way == "socket":
                self._client = Redis(unix_socket_path=address.path, **options)
            elif address.way == "sentinel":
                self._client = self._through_sentinel(options)
            else:
                ((host, port),) = address.hosts
                self._client = Redis(host=host, port=port, **options)
        return self._client

    def _through_sentinel(self, options: dict[str, Any]) -> Redis:
        address = self.address
        own = {**self._options(), "username": address.sentinel_user, "password": address.sentinel_password}
        del own["db"]
        make: Any = Sentinel
        self._sentinel = make(list(address.hosts), sentinel_kwargs=own, **options)
        client: Redis = self._sentinel.master_for(address.service)
        return client

    def _topology(self) -> Any:
        if self._cluster is None:
            options = self._options()
            del options["db"], options["retry"]
            node: Any = ClusterNode
            nodes = [node(host, port) for host, port in self.address.hosts]
            self._cluster = RedisCluster(startup_nodes=nodes, redis_connect_func=self._keep_age, **options)
        return self._cluster

    def _greet(self, connection: Any) -> None:
        connection.on_connect()
        self._keep_age(connection)

    def _keep_age(self, connection: Any) -> None:
        """Tell the server that what this connection reads is not to count as use (FORMATS.md section 2)."""
        connection.send_command("CLIENT", "NO-TOUCH", "ON")
        try:
            connection.read_response()
        except failed.ResponseError:
            self.reading_counts_as_use = True
