"""Redis URLs: where the server is, how to get in, which prefixes the sessions have. Pure: nothing is connected here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from ...errors import UsageError
from ...keys import quoted

DOCUMENTS = "seepient:session:"
"""Prefix of documents (FORMATS.md section 1)."""

LOGS = "session-log:"
"""Prefix of logs (FORMATS.md section 2)."""

EXAMPLE = "redis://localhost:6379/0"
"""How a URL is written, for hints. No store is ever taken for named because it would be the usual one."""

Way = Literal["direct", "socket", "sentinel", "cluster"]

_WAYS: dict[str, Way] = {
    "redis": "direct",
    "rediss": "direct",
    "unix": "socket",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
_PORTS: dict[Way, int] = {"direct": 6379, "sentinel": 26379, "cluster": 6379}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password")
_CERT_REQS = ("required", "optional", "none")
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed Redis URL. ``str`` of it names the place, never how one gets in: no user, no password, no key file."""

    way: Way
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    tls: bool = False
    documents: str = DOCUMENTS
    logs: str = LOGS
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        query = {}
        if self.way == "socket":
            place = f"unix://{quote(self.path)}"
            if self.db:
                query["db"] = str(self.db)
        else:
            scheme = {"sentinel": "redis+sentinel", "cluster": "redis+cluster"}.get(self.way, "redis")
            if self.tls and self.way == "direct":
                scheme = "rediss"
            elif self.tls:
                query["ssl"] = "true"
            tail = {"sentinel": f"/{quote(self.service, safe='')}/{self.db}", "cluster": ""}.get(
                self.way, f"/{self.db}"
            )
            place = f"{scheme}://{self.servers}{tail}"
        if self.documents != DOCUMENTS:
            query["documents"] = self.documents
        if self.logs != LOGS:
            query["logs"] = self.logs
        return f"{place}?{urlencode(query, safe=':/')}" if query else place

    @property
    def redis_cli(self) -> str:
        """How ``redis-cli`` reaches the database, for hints; what lets one in is left out."""
        if self.way == "socket":
            return f"redis-cli -s {shlex.quote(self.path)} -n {self.db}"
        host, port = ("PRIMARY", 6379) if self.way == "sentinel" else self.hosts[0]
        database = "-c" if self.way == "cluster" else f"-n {self.db}"
        return f"redis-cli -h {shlex.quote(host)} -p {port} {database}" + (" --tls" if self.tls else "")

    @property
    def servers(self) -> str:
        """``host:port,host:port``, or the path of the socket: for messages."""
        if self.way == "socket":
            return self.path
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Read a Redis URL. A bare ``redis:`` takes ``$REDIS_URL``; ``redis:?logs=…`` adds options to that.

    Raises UsageError, in whose text no part of the URL that may be a secret ever occurs.
    """
    bare, _, options = url.partition("?")
    if bare.lower() == "redis:":
        given = environ.get("REDIS_URL", "")
        if not given:
            raise UsageError("REDIS_URL is not set", hint=f"set it, or name the server: {EXAMPLE}")
        if given.partition("?")[0].lower() == "redis:":
            raise UsageError("REDIS_URL names no server", hint=f"write {EXAMPLE}")
        url = given if not options else f"{given}{'&' if '?' in given else '?'}{options}"
    try:
        url.encode()
        parts = urlsplit(url)
    except ValueError:
        raise UsageError("not a Redis URL that can be read", hint=_ESCAPE) from None
    way = _WAYS.get(parts.scheme)
    if way is None:
        raise UsageError(f"{quoted(parts.scheme + ':')} is no Redis URL", hint=f"known are {', '.join(_WAYS)}")
    if parts.fragment:
        raise UsageError("a Redis URL has no '#' part", hint=_ESCAPE)
    query = _query(parts, way)
    login, _, servers = parts.netloc.rpartition("@")
    user, has_password, password = login.partition(":")
    path = unquote(parts.path)
    hosts: tuple[tuple[str, int], ...] = ()
    service = ""
    if way == "socket":
        if servers or not path.startswith("/"):
            raise UsageError("a unix: URL names a socket by its whole path", hint="write unix:///run/redis.sock?db=0")
        number = None
    else:
        hosts = tuple(_host(text, _PORTS[way]) for text in servers.split(",") if text)
        if not hosts:
            raise UsageError(f"{parts.scheme}: names no host", hint=f"write {_EXAMPLES[way]}")
        if way == "direct" and len(hosts) > 1:
            raise UsageError(
                "a redis: URL names one host", hint=f"write {_EXAMPLES['sentinel']}, {_EXAMPLES['cluster']}"
            )
        rest = path.strip("/")
        if way == "sentinel":
            service, _, rest = rest.partition("/")
            if not service:
                raise UsageError("the Sentinel URL names no service", hint=f"write {_EXAMPLES['sentinel']}")
        number = rest or None
    db = _db(number, query.get("db"))
    if way == "cluster" and db:
        raise UsageError("a Redis Cluster has database 0 only")
    documents, logs = query.get("documents", DOCUMENTS), query.get("logs", LOGS)
    if documents == logs:
        raise UsageError("documents and logs need different prefixes")
    return Address(
        way=way,
        hosts=hosts,
        path=path if way == "socket" else "",
        service=service,
        db=db,
        tls=parts.scheme == "rediss" or _flag("ssl", query.get("ssl", "false")),
        documents=documents,
        logs=logs,
        user=unquote(user) or None,
        password=unquote(password) if has_password else None,
        sentinel_user=query.get("sentinel_user"),
        sentinel_password=query.get("sentinel_password"),
        tls_options={name: query[name] for name in _TLS_OPTIONS if name in query},
    )


_ESCAPE = "in a user name or password write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A"
_EXAMPLES: dict[Way, str] = {
    "direct": "redis://localhost:6379/0",
    "sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
    "cluster": "redis+cluster://host1:6379,host2:6379",
}


def _query(parts: SplitResult, way: Way) -> dict[str, str]:
    known = ["documents", "logs", "db"]
    if way != "socket":
        known += _TLS_OPTIONS
    if way in ("sentinel", "cluster"):
        known.append("ssl")
    if way == "sentinel":
        known += _SENTINEL_OPTIONS
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # Only a plain name is repeated: an unescaped '?' in a password would bring a piece of it here.
            said = quoted(name) if name.isidentifier() and name.islower() and "@" not in parts.query else "one"
            raise UsageError(f"unknown option {said} in the Redis URL", hint=f"known are {', '.join(known)}")
        if name in found:
            raise UsageError(f"the option {quoted(name)} occurs twice in the Redis URL")
        found[name] = value
    if found.get("ssl_cert_reqs", "required") not in _CERT_REQS:
        raise UsageError(f"ssl_cert_reqs is one of {', '.join(_CERT_REQS)}")
    _flag("ssl_check_hostname", found.get("ssl_check_hostname", "true"))
    return found


def _flag(name: str, text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise UsageError(f"{name} is true or false") from None


def checks_host_name(options: Mapping[str, str]) -> bool:
    """Whether the certificate must name the host: unless it is not checked at all or ``ssl_check_hostname=false``."""
    return options.get("ssl_cert_reqs") != "none" and _flag(
        "ssl_check_hostname", options.get("ssl_check_hostname", "true")
    )


def _host(text: str, default: int) -> tuple[str, int]:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        valid = bool(closed) and (not port or port.startswith(":"))
        port = port[1:]
    else:
        host, _, port = text.partition(":")
        valid = True
    try:
        host.encode("idna")
    except UnicodeError:  # a label that is too long, or empty: no such host can be asked for
        valid = False
    number = int(port) if port.isascii() and port.isdigit() else default
    if not valid or not host or (port and not port.isdigit()) or not 0 < number < 65536:
        raise UsageError("the Redis URL holds something else than a host and a port number", hint=_ESCAPE)
    return host, number


def _db(in_path: str | None, in_query: str | None) -> int:
    for text in (in_path, in_query):
        if text is not None and not (text.isascii() and text.isdigit()):
            raise UsageError("the database in the Redis URL is not a number", hint=f"write {EXAMPLE}; {_ESCAPE}")
    if in_path is not None and in_query is not None and int(in_path) != int(in_query):
        raise UsageError("the Redis URL names two databases")
    return int(in_path or in_query or 0)
