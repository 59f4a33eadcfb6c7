"""What reads what others wrote, given anything: it ends, and raises nothing but errors of our own.

    python -m tests.trust.fuzz 60            # each target so many seconds, coverage-guided (extra: fuzz)
    python -m tests.trust.fuzz 3600 repair   # one target
    python -m tests.trust.fuzz 0 repair FILE # one input, with its traceback

Inputs that break a target end up in ``fuzz-findings/``. Put them into ``tests/trust/corpus/TARGET/``: every test run
tries them.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import FunctionType

from sessionctl import codec, config, durations
from sessionctl.cli.output import safe, safe_line, to_json
from sessionctl.errors import SessionctlError
from sessionctl.history import judge
from sessionctl.keys import NAME_LIMIT, SessionKey, check_lookup, file_name, folded, matches, quoted, split_composite
from sessionctl.model import KINDS, Ref
from sessionctl.ops import cursor, keep, plans
from sessionctl.ops.gc import plan_gc  # noqa: F401 - loaded before the clock of a run starts
from sessionctl.ops.mend import STRATEGIES, Options, mend
from sessionctl.stores import open_store
from sessionctl.stores.folder import FolderStore, ref_of

NOW = 1_796_083_200_000
CORPUS = Path(__file__).parent / "corpus"
FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PLACE = Path(tempfile.mkdtemp(prefix="sessionctl-fuzz-"))
atexit.register(shutil.rmtree, _PLACE, ignore_errors=True)


def _text(data: bytes) -> str:
    """Text as it comes from a command line: bytes that are no text stay as they are."""
    return data.decode("utf-8", "surrogateescape")


def documents(data: bytes) -> None:
    """A document: an outline, a verdict, messages; by all ways of reading the same."""
    _payload(Ref("a", "document"), data)
    codec.quick_id(data)
    codec.tail_times(data, NOW)


def logs(data: bytes) -> None:
    """A log: as a document, and in pieces as in one."""
    ref = Ref("a", "log")
    _payload(ref, data)
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    assert codec.outline_log(pieces, NOW) == codec.outline_log([data], NOW)


def _payload(ref: Ref, data: bytes) -> None:
    outline = codec.outline(ref, data, NOW)
    verdict = judge(outline)
    assert (verdict.status == "damaged") is (outline.steps is None or bool(outline.damage))
    session = codec.read(ref, data, NOW)
    if outline.steps is not None:
        assert len(session.messages) == len(outline.steps)
    brief = codec.brief(ref, data, NOW)
    assert brief is None or brief.updated_at == outline.updated_at
    assert judge(codec.summary_of_chunks(ref, lambda: [data[:5], data[5:]], NOW)).status == verdict.status
    for message in session.messages:
        to_json([message.role, message.text])
        assert not _CONTROL.search(safe(message.text))


def checkpoints(data: bytes) -> None:
    """A checkpoint of LoopEngine."""
    for session, calls in codec.approvals([data]).items():
        assert isinstance(session, str) and all(isinstance(call, str) for call in calls)


def repair(data: bytes) -> None:
    """A repair: it is final, and what it gives is no worse."""
    kind = KINDS[data[:1] > b"\x7f"]
    strategy = STRATEGIES[data[0] % len(STRATEGIES)] if data else "results"
    ref, payload = Ref("a", kind), data[1:]
    numbers = count()
    done = mend(ref, payload, NOW, Options(strategy=strategy), new_id=lambda: f"new{next(numbers)}")
    if done.after is None:
        return
    assert done.after != payload
    if done.appended is not None:
        assert done.after == payload + done.appended
    again = mend(ref, done.after, NOW, Options(strategy=strategy), new_id=lambda: f"new{next(numbers)}")
    assert again.after is None, "it is not final"


def keys(data: bytes) -> None:
    """A session key and a pattern: a file's name that is one, and what is parsed is what is written."""
    text, _, pattern = _text(data).partition("\n")
    parsed = SessionKey.parse(text)
    assert parsed is None or str(parsed) == text
    prefix, rest = split_composite(text)
    assert text == (rest if prefix is None else f"{prefix}:{rest}")
    folded(text)
    matches(text, (pattern,))
    assert not _CONTROL.search(quoted(text)) and not _CONTROL.search(safe_line(text))
    with suppress(SessionctlError):
        check_lookup(text)
        assert ".." not in re.split(r"[/\\]", text)
    for kind in KINDS:
        for new in (True, False):
            with suppress(SessionctlError):
                name = file_name(text, kind, new=new)
                assert "/" not in name and "\0" not in name and len(os.fsencode(name)) <= NAME_LIMIT
                ref = ref_of(name)
                assert ref is not None and ref.kind == kind and (kind == "log" or ref.key == text)


def urls(data: bytes) -> None:
    """A store's name: it opens or is refused, and its password is in neither."""
    text = _text(data)
    secret = "s3cr3t-w0rd"
    for url in (text, text.replace("PASSWORD", secret)):
        try:
            if re.match(r"(?i)(sqlite|postgresql)[+:]", url):
                continue  # SQLAlchemy is fuzzed by others; its messages are tested where failures are
            with open_store(url) as store:
                shown = store.url + repr(store)
        except SessionctlError as error:
            shown = f"{error} {error.hint}"
        if re.match(r"(?i)(redis|rediss|unix|redis\+\w+):", url) and "PASSWORD@" in text and text.count("?") == 0:
            assert secret not in shown
    config.hide_secrets(text)


def configurations(data: bytes) -> None:
    """A configuration file."""
    found = config.parse(data, "config.toml")
    for store in found.stores.values():
        assert isinstance(store.shown, str)
        with suppress(SessionctlError):
            store.url, store.archive  # noqa: B018
    for name in found.options:
        assert isinstance(name, str)


def spans(data: bytes) -> None:
    """Durations and moments: what is read is positive, and is written so that it can be read again."""
    text = _text(data)
    with suppress(SessionctlError):
        span = durations.parse_duration(text)
        assert span > 0
        durations.ago(span)
    with suppress(SessionctlError):
        moment = durations.parse_moment(text, NOW)
        written = durations.iso(moment)
        assert written is None or abs(durations.parse_moment(written, NOW) - moment) < 1


def plan_files(data: bytes) -> None:
    """A plan of gc from a stranger: it names what can be a session of this store, or is refused."""
    store = _folder()
    path = _PLACE / "plan"
    path.write_bytes(data.replace(b"STORE", str(store.path.resolve()).encode()))
    for action in plans.load(str(path), store, NOW).actions:
        name = file_name(action.ref.key, action.ref.kind, new=False)
        assert "/" not in name and check_lookup(action.ref.key)


def cursor_files(data: bytes) -> None:
    """A cursor from a stranger; what is read is written back as it was."""
    path = _PLACE / "cursor"
    path.write_bytes(data)
    store = "/s"
    found = cursor.load(str(path), store)
    assert found is not None
    cursor.save(str(path), store, found)
    assert cursor.load(str(path), store) == found


def _folder() -> FolderStore:
    place = _PLACE / "store"
    if not place.exists():
        place.mkdir()
        (place / "a.json").write_bytes(b'{"id": "a", "messages": []}')
    return FolderStore(place)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "documents": documents,
    "logs": logs,
    "checkpoints": checkpoints,
    "repair": repair,
    "keys": keys,
    "urls": urls,
    "configurations": configurations,
    "spans": spans,
    "plans": plan_files,
    "cursors": cursor_files,
}


def attempt(target: str, data: bytes) -> None:
    """Give an input to a target; errors of our own are its answer, everything else is raised."""
    with suppress(SessionctlError):
        TARGETS[target](data)


# --- seeds ------------------------------------------------------------------------------------------------------------


def seeds(target: str) -> list[bytes]:
    """The inputs that a target starts from: the fixtures, what is written here, and the corpus."""
    found = [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]
    return [*found, *_SEEDS.get(target, list)()]


def _fixtures(pattern: str) -> list[bytes]:
    paths = (path for path in sorted(FIXTURES.rglob(pattern)) if path.is_file() and "sessions" in path.parent.name)
    return [path.read_bytes() for path in paths]


def _mendable() -> Iterator[bytes]:
    for kind, pattern in ((0, "*.json"), (0x80, "*.jsonl")):
        for payload in _fixtures(pattern):
            yield bytes([kind]) + payload


def _plan() -> bytes:
    store = _folder()
    version = store.get(Ref("a", "document")).stamp.version
    return (
        b'{"format":"sessionctl-gc-plan-1","store":"STORE","made_at":1,"scanned":1,"sessions":[{"key":"a","kind":'
        b'"document","version":%s,"size":27,"changed_at":1,"age_source":"mtime","reason":"old","messages":0,'
        b'"last_activity_at":null}]}' % str(list(version)).encode()
    )


def _cursor() -> bytes:
    from sessionctl.ops.follow import Follower

    with FolderStore(FIXTURES / "seepient" / "sessions") as store:
        follower = Follower(store, None)
        list(follower.look(None))
        path = _PLACE / "seed"
        cursor.save(str(path), "/s", dict(list(follower.positions.items())[:3]))
    return keep.read(str(path), "--cursor") or b""


_SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "documents": lambda: _fixtures("*.json"),
    "logs": lambda: _fixtures("*.jsonl"),
    "checkpoints": lambda: [path.read_bytes() for path in sorted(FIXTURES.rglob("checkpoints/*.json"))],
    "repair": lambda: list(_mendable()),
    "keys": lambda: [b"acme:production:support:42\nacme:*", b"a/b\\c\n[!a-z]?", b"../../etc/passwd\n**", b"\xff\x00"],
    "urls": lambda: [
        b"redis://user:PASSWORD@host:6379/0?documents=a:&logs=b:",
        b"rediss://:PASSWORD@[::1]/1?ssl_cert_reqs=none",
        b"redis+sentinel://u:PASSWORD@h1,h2:26379/service/0?sentinel_password=x",
        b"redis+cluster://h1,h2",
        b"unix:///run/redis.sock?db=3",
        b"documents:~/x",
        b"file:a",
        b"memory:",
        b"prod",
    ],
    "configurations": lambda: [
        b'default = "p"\n[stores.p]\nurl = "redis://:${X}@h/0"\narchive = "/a"\nprotect = ["a:*"]\n'
        b'[options.gc]\nolder-than = "30d"\n[options."list"]\nlimit = 3\n'
    ],
    "spans": lambda: [b"1h30m", b"90s", b"2w", b"2026-01-31", b"2026-01-31T12:00:00.123Z", b"20260131T120000+0230"],
    "plans": lambda: [_plan()],
    "cursors": lambda: [_cursor()],
}


# --- the long run -----------------------------------------------------------------------------------------------------


def _guided(target: str, seconds: int, corpus: Path, findings: Path) -> None:
    """Run libFuzzer on one target in this process, which it ends."""
    import atheris

    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and (thing.__module__ or "").startswith("sessionctl"):
            atheris.instrument_func(thing)

    def once(data: bytes) -> None:
        attempt(target, bytes(data))

    options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", f"-artifact_prefix={findings}/{target}-"]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", "-verbosity=0", str(corpus)], once)
    atheris.Fuzz()


def main() -> None:
    """The command of this module's docstring."""
    if not sys.argv[1:]:
        sys.exit(__doc__)
    seconds, *rest = sys.argv[1:]
    if len(rest) == 2:
        attempt(rest[0], Path(rest[1]).read_bytes())
        return
    findings = Path("fuzz-findings")
    findings.mkdir(exist_ok=True)
    failed = False
    for target in rest or TARGETS:
        corpus = _PLACE / f"corpus-{target}"
        corpus.mkdir()
        for number, data in enumerate(seeds(target)):
            (corpus / f"seed{number}").write_bytes(data)
        code = f"from tests.trust import fuzz; from pathlib import Path; fuzz._guided({target!r}, {int(seconds)}, "
        code += f"Path({str(corpus)!r}), Path({str(findings.resolve())!r}))"
        done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
        executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        print(
            f"{target}: {executed[1] if executed else '?'} executions in {seconds} s, exit {done.returncode}",
            flush=True,
        )
        if done.returncode:
            failed = True
            print(done.stderr[-3000:], flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
