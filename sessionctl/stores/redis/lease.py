"""The lock that LoopEngine's agents take in Redis (FORMATS.md section 2), taken the same way."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from redis import exceptions as failed

from ...errors import LockLost, SessionLocked
from ...keys import quoted
from ...locks import POLL, Holder, Lease, LocalLease, is_dead, process_space
from .servers import Answer, Servers
from .wording import told

LOCKS = b"session-lock:"
"""Prefix of session locks. One lock guards the document and the log of a key."""

LIFE = 30_000
"""Milliseconds that a lock lives unless it is renewed."""

RENEW = 10.0
"""Seconds between two renewals."""

_TOKEN = re.compile(rb"sessionctl@([\x21-\x7e]{1,255}):(\d{1,10}):([0-9a-f]{8}):[0-9a-f]{32}")

_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"

_CLOSED = (failed.RedisError, failed.RedisClusterException, OSError)


class RedisLease(Lease):
    """``SET key token PX 30000 NX``, tried every 50 ms up to ``wait`` seconds; renewed every 10 s by
    compare-and-PEXPIRE; released by compare-and-DEL. Threads of this process queue before they ask the server.

    The token names host and process for people and ends in 128 random bits. A failed attempt never writes to the key;
    only a lock that a process of this very machine left by dying is removed, so that its work can be taken up at once.
    Raises SessionLocked, which says who holds the lock and how long it still lives.
    """

    def __init__(self, servers: Servers, key: bytes, what: str, wait: float) -> None:
        self._servers = servers
        self._key = key
        self._what = what
        process = f"{socket.gethostname()}:{os.getpid()}:{process_space()}"
        self._token = f"sessionctl@{process}:{secrets.token_hex(16)}".encode()
        self._lost = ""
        self._until = 0.0
        self._ended = threading.Event()
        start = time.monotonic()
        self._local = LocalLease((str(servers.address), key), wait, what)
        try:
            with told(servers.address):
                self._take(start + wait, wait)
        except SessionLocked:
            self._local.release()
            raise
        except BaseException:  # a lost connection, Ctrl-C: it may be ours by now
            self._give_up()
            raise
        self._renewer = threading.Thread(target=self._renew, name="sessionctl-lock", daemon=True)
        # While the interpreter ends, Python 3.12 starts no thread; what is written then takes far less than LIFE.
        with suppress(RuntimeError):
            self._renewer.start()

    def _take(self, deadline: float, wait: float) -> None:
        key = self._key
        while True:
            asked = time.monotonic()
            # Repeated after a lost connection, SET may find the lock that its first try took: then the value is ours.
            got, value, left = self._servers.ask(
                [(key, ("SET", key, self._token, "PX", LIFE, "NX")), (key, ("GET", key)), (key, ("PTTL", key))]
            )
            if isinstance(got, Exception):
                raise got
            if got is not None or value == self._token:
                self._until = asked + LIFE / 1000
                return
            if isinstance(value, bytes) and _is_left_over(value):
                self._servers.one(key, "EVAL", _RELEASE, 1, key, value)
                continue
            now = time.monotonic()
            if now >= deadline:
                raise self._locked(holder_of(value, left), wait)
            time.sleep(min(POLL, deadline - now))

    def _locked(self, holder: Holder | None, wait: float) -> SessionLocked:
        if holder is None:
            return SessionLocked(f"{self._what} was locked until just now")
        now = time.time_ns() // 1_000_000
        said = holder._replace(who=quoted(holder.who, 100)).sentence(now)
        if wait > 0 and holder.until is not None:
            said += f" (longer than the wait of {wait:g} s)"
        name = shlex.quote(self._key.decode("utf-8", "replace"))
        hint = f"if its holder is gone: {self._servers.address.redis_cli} del {name}" if name.isprintable() else None
        return SessionLocked(f"{self._what} is {said}", hint=hint)

    def _renew(self) -> None:
        pause = RENEW
        while not self._ended.wait(pause):
            asked = time.monotonic()
            try:
                kept = self._servers.one(self._key, "EVAL", _RENEW, 1, self._key, self._token, LIFE)
            except _CLOSED as error:
                if asked >= self._until:
                    self._lost = f"it could not be renewed ({type(error).__name__})"
                    return
                pause = 1.0
                continue
            if kept != 1:
                self._lost = "it was taken away or removed"
                return
            self._until = asked + LIFE / 1000
            pause = RENEW

    def check(self) -> None:
        """Raise LockLost if the lock ended: by our own clock, by what a renewal found, or by what the server holds."""
        if not self._lost and time.monotonic() >= self._until:
            self._lost = f"it expired, since it could not be renewed for {LIFE // 1000} s"
        if not self._lost and not self._ended.is_set():
            with told(self._servers.address):
                if self._servers.one(self._key, "GET", self._key) != self._token:
                    self._lost = "it was taken away or removed"
        if self._lost:
            raise LockLost(f"the lock of {self._what} was lost: {self._lost}")

    def release(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._give_up()

    def _give_up(self) -> None:
        """Remove the lock if it is ours. Where the server does not answer, it ends by itself after LIFE."""
        try:
            if not self._lost:
                self._servers.one(self._key, "EVAL", _RELEASE, 1, self._key, self._token)
        except _CLOSED:
            pass
        finally:
            self._local.release()


def _is_left_over(token: bytes) -> bool:
    """Whether a lock is one of ours whose process has died."""
    match = _TOKEN.fullmatch(token)
    return match is not None and is_dead(match[1].decode(), match[3].decode(), int(match[2]))


def holder_of(value: Answer, left: Answer) -> Holder | None:
    """What GET and PTTL of a lock's key tell; None where there is no lock."""
    now = time.time_ns() // 1_000_000
    ends: Any = None if isinstance(left, Exception) else left
    if value is None or ends == -2:
        return None
    if isinstance(value, failed.NoPermissionError):
        who = "somebody"
    elif isinstance(value, Exception):
        who = "a key of another type"
    else:
        who = value.decode("utf-8", "replace")
    if ends is None:
        return Holder(who)
    return Holder(who, None, now + ends) if ends >= 0 else Holder(who, note="no expiry")
