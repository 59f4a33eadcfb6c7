"""Nobody gets in, nothing leaks: ids, texts, links, races, passwords, and files from strangers."""

from __future__ import annotations

import hmac
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from sessionctl import create_persistence_backend, open_store
from sessionctl.cli.complete import _offer_keys
from sessionctl.errors import OwnershipMismatch
from tests.servers import Server, free_port
from tests.stored import DAY, call, document, entry, log, message, names, now_ms, set_age, state
from tests.terminal import Terminal, environment, run
from tests.trust.crash import CODES
from tests.trust.inject import Runner

OLD = ("--older-than", "1d", "-y")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


# --- ids and texts are text ---

PATTERNS = ["*", "?", "[ab]", "a*", "**", "{a,b}", "[!x]", "\\*"]


def test_an_id_is_no_pattern(folder: Path, runner: Runner) -> None:
    for key in ("a", "b", "ab", "*", "[ab]"):
        log(folder, key, age=9 * DAY)
    for key in PATTERNS:
        runner(["delete", key, "-y", "-s", str(folder)], environment())
    assert names(folder) == ["a.jsonl", "ab.jsonl", "b.jsonl"]


def test_an_id_is_no_pattern_and_no_command_in_redis(redis: Server, runner: Runner) -> None:
    client = redis.client()
    hostile = ["*", "[ab]", "x\r\nFLUSHALL\r\n", "$3\r\nDEL", "a b", '"', "'; DROP TABLE sessions; --"]
    for key in ("a", "b", "ab", *hostile):
        client.set(f"seepient:session:{key}", b'{"id": "x", "messages": []}')
    client.set("other", "stays")
    for key in (*hostile, *PATTERNS):
        runner(["delete", "--force", "-y", "-s", redis.url(), "--", key], environment())
    left = sorted(client.keys())  # type: ignore[type-var]
    assert left == [b"other", b"seepient:session:a", b"seepient:session:ab", b"seepient:session:b"]
    bad = "documents=*&logs=l:"
    assert run("list", "-o", "ids", "-s", redis.url(f"/0?{bad}")).stdout == "", "a prefix is no pattern either"


@pytest.mark.parametrize(
    "key", ["'; DROP TABLE sessions; --", '" OR "1"="1', "%", "_", "a' OR 'a'='a", "\\", "?", ":x"]
)
def test_an_id_is_no_sql(tmp_path: Path, key: str) -> None:
    from sessionctl.model import Ref
    from sessionctl.stores.base import ANY

    with open_store(f"sqlite:///{tmp_path / 'db'}") as store:
        for name in ("a", "b", key):
            store.put(Ref(name, "document"), b'{"id": "x", "messages": []}', expect=None)
        assert store.get(Ref(key, "document")).payload == b'{"id": "x", "messages": []}'
        store.remove(Ref(key, "document"), ANY)
        assert sorted(record.ref.key for record in store.records()) == ["a", "b"]
        assert list(store.records(refs=[Ref(key, "document")])) == []


TITLE = "\x1b]0;pwned\x07\x1b[31m\x9b31m\u202e"
COMMANDS = [
    ["list"],
    ["list", "-o", "csv"],
    ["list", "-o", "ids"],
    ["list", "-o", "json"],
    ["show", "hostile", "--full"],
    ["show", "hostile", "--markdown"],
    ["show", "log", "--tree"],
    ["tail", "--full"],
    ["tail", "-o", "jsonl"],
    ["stats"],
    ["repair"],
    ["repair", "--fix", "-n"],
    ["gc", "--older-than", "1d", "-n", "-v"],
    ["delete", "hostile", "-n"],
    ["migrate", ".", "../target", "-n", "-v"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_text_reaches_a_terminal_as_anything_else(folder: Path, tmp_path: Path, arguments: list[str]) -> None:
    at = now_ms() - 9 * DAY
    calls = [{"id": TITLE, "name": TITLE, "arguments": {TITLE: TITLE}}]
    said = [message("user", TITLE, at), message(TITLE, TITLE, at), message("assistant", "", at, toolCalls=calls)]
    more = {"principalId": TITLE, "provider": TITLE, "model": TITLE, "metadata": {"title": TITLE}}
    document(folder, "hostile", age=9 * DAY, messages=said, **more)
    log(
        folder,
        f"log{TITLE}",
        entry(TITLE, None, TITLE, [call(TITLE, TITLE, x=TITLE)]),
        b"{" + TITLE.encode(),
        age=9 * DAY,
    )
    log(folder, "log", entry("a", None, "user", TITLE), age=9 * DAY)
    (folder / f"x.json.tmp.1.{'k3j9x'}").write_text(TITLE)
    here = [] if arguments[0] == "migrate" else ["-s", str(folder)]
    words = [str(folder) if word == "." else word.replace("..", str(tmp_path)) for word in arguments]
    with Terminal(*words, *here, env=environment(tmp_path), size=(200, 50)) as terminal:
        terminal.wait()
    assert terminal.text
    for bad in ("\x1b]", "\x9b", "\u202e", "\x07"):
        assert bad not in terminal.text


def test_completion_offers_no_control_characters(folder: Path) -> None:
    for key in (f"a{TITLE}", "a\nb", "a$(id)", "a b"):
        log(folder, key)
    offers: list[tuple[str, str]] = []
    with open_store(str(folder)) as store:
        _offer_keys(offers, store, "a")
    assert sorted(text for text, _ in offers) == ["a b", "a$(id)"]


# --- links and races ---


def test_links_lead_nowhere(folder: Path, tmp_path: Path, runner: Runner) -> None:
    """A session that is a link is neither read nor written, whatever is forced; hard links keep their other name."""
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = document(outside, "secret", age=9 * DAY, messages=[message("user", "SECRET")])
    torn = log(outside, "torn", entry("e1", None), b"{torn", age=9 * DAY)
    before = state(outside)
    (folder / "secret.json").symlink_to(secret)
    (folder / "torn.jsonl").symlink_to(torn)
    (folder / ".sessionctl").symlink_to(outside)
    for arguments in (
        ["list", "-o", "json"],
        ["show", "secret", "--raw"],
        ["tail", "-o", "jsonl"],
        ["repair", "--fix", "--force"],
        ["gc", *OLD, "--force", "--archive", str(tmp_path / "archive")],
        ["delete", "secret", "torn", "-y", "--force"],
    ):
        done = runner([*arguments, "-s", str(folder)], environment(tmp_path))
        assert "SECRET" not in done.out + done.err
        assert done.code in CODES
    assert {name: kept[:3] for name, kept in state(outside).items()} == {n: k[:3] for n, k in before.items()}
    assert secret.exists() and torn.exists()
    hard = folder / "hard.json"
    os.link(secret, hard)
    (folder / ".sessionctl").unlink()
    content = secret.read_bytes()
    for arguments in (["repair", "--fix", "--force"], ["gc", *OLD, "--force"]):
        runner([*arguments, "-s", str(folder)], environment(tmp_path))
    assert not hard.exists()
    assert secret.read_bytes() == content


@pytest.mark.parametrize("what", ["link", "folder", "fifo"])
def test_an_archive_that_is_prepared_is_not_written_through(folder: Path, tmp_path: Path, what: str) -> None:
    document(folder, "s1", age=9 * DAY)
    archive, victim = tmp_path / "archive", tmp_path / "victim"
    archive.mkdir()
    victim.write_text("untouched")
    place = archive / "s1.json"
    {"link": lambda: place.symlink_to(victim), "folder": place.mkdir, "fifo": lambda: os.mkfifo(place)}[what]()
    done = run("gc", *OLD, "-s", folder, "--archive", archive)
    assert done.returncode in (7, 8), done.stderr
    assert victim.read_text() == "untouched"
    assert names(folder) == ["s1.json"]


def test_a_folder_that_is_swapped_all_the_time(folder: Path, tmp_path: Path) -> None:
    """The store's folder and a link to a victim change places while commands run: the victim is not touched."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for number in range(3):
        document(victim, f"v{number}", age=9 * DAY)
        log(victim, f"w{number}", entry("e1", None), b"{torn", age=9 * DAY)
    before = state(victim)
    spare = tmp_path / "spare"
    over = threading.Event()

    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            folder.rename(spare)
            with suppress(FileExistsError):  # a command has made the folder that was not there
                folder.symlink_to(victim)
                time.sleep(0.0005)
                folder.unlink()
                swaps += 1
            while spare.exists():
                try:
                    spare.rename(folder)
                except OSError:  # so here
                    folder.rename(tmp_path / f"made{time.monotonic_ns()}")
            time.sleep(0.0005)

    worker = threading.Thread(target=swap)
    for number in range(3):
        document(folder, f"s{number}", age=9 * DAY)
    worker.start()
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with open_store(f"documents:{folder}") as store:
                _remove_all(store, "s")
    finally:
        over.set()
        worker.join()
    assert swaps > 50
    kept = state(victim)
    del before[str(victim)], kept[str(victim)]
    assert {n: k for n, k in kept.items() if "sessionctl" not in n} == before


def _remove_all(store: object, start: str) -> None:
    from sessionctl.errors import SessionctlError
    from sessionctl.stores.folder import FolderStore

    assert isinstance(store, FolderStore)
    try:
        for record in list(store.records()):
            if record.ref.key.startswith(start):
                with store.lock(record.ref, 0) as lease:
                    lease.check()
                    store.put(record.ref, record.payload or b"", expect=record.stamp)
    except SessionctlError:
        pass  # it has noticed


# --- passwords ---

SECRETS = ["s3cr3tW0rd", "p@ss/w0rd#X?y", "ünïcode-s3cret"]


FULL = os.environ.get("SESSIONCTL_TRUST") == "full"
QUICK = (1, 2, 3, 7, 9, 11, 12)
"""Those of ``failing_urls`` that need no second try."""


def failing_urls(secret: str, guarded: Server) -> list[str]:
    encoded, port = quote(secret, safe=""), free_port()
    return [
        f"redis://:{encoded}@127.0.0.1:{port}/0",
        f"redis://user:{encoded}@127.0.0.1:{guarded.port}/0",
        f"redis://:{encoded}@127.0.0.1:{guarded.port}/notanumber",
        f"redis://:{secret}@127.0.0.1:{guarded.port}/0",
        f"rediss://:{encoded}@127.0.0.1:{guarded.port}/0",
        f"redis+sentinel://:{encoded}@127.0.0.1:{port}/svc?sentinel_password={encoded}",
        f"redis+cluster://:{encoded}@127.0.0.1:{guarded.port}",
        f"redis://127.0.0.1:{port}/0?pasword={encoded}",
        f"postgresql://user:{encoded}@127.0.0.1:{port}/db",
        f"postgresql://user:{secret}@127.0.0.1:{port}/db",
        f"postgresql://127.0.0.1:{port}/db?user=u&password={encoded}",
        f"postgresql+bogus://user:{encoded}@127.0.0.1:{port}/db",
        f"bogus://user:{encoded}@h/x",
    ]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    from tests.servers import server

    with server("requirepass another") as made:
        yield made


@pytest.mark.parametrize("secret", SECRETS, ids=["plain", "escaped", "unicode"])
def test_passwords_are_in_no_output(runner: Runner, guarded: Server, tmp_path: Path, secret: str) -> None:
    kinds = {secret, quote(secret, safe=""), quote(secret), secret.encode("unicode_escape").decode()}
    store = tmp_path / "store"
    store.mkdir()
    document(store, "s1", age=9 * DAY)
    config = tmp_path / "config.toml"
    for number, url in enumerate(failing_urls(secret, guarded)):
        config.write_text(f"[stores.it]\nurl = {json.dumps(url)}\narchive = {json.dumps(url)}\n")
        env = environment(tmp_path, SESSIONCTL_DEBUG="1", SESSIONCTL_CONFIG=str(config), PGCONNECT_TIMEOUT="2")
        rounds = [
            ["list", "-s", url],
            ["stats", "-s", "it", "-o", "json"],
            ["gc", *OLD, "-v", "-s", url, "--metrics", str(tmp_path / "metrics")],
            ["gc", *OLD, "-s", str(store), "--archive", url],
            ["migrate", url, str(tmp_path / "target"), "-v"],
            ["migrate", str(store), url, "-o", "json"],
            ["show", "x", "-s", url],
            ["tail", "-s", url, "--cursor", str(tmp_path / "cursor")],
            ["repair", "--fix", "-s", url, "--backup", url],
            ["delete", "x", "-s", url, "-y"],
            ["stores"],
            ["stores", "-o", "json"],
        ]
        # Each way with each command would take minutes: what answers at once with all, the others in turn.
        if number not in QUICK and secret != SECRETS[1] and not FULL:
            continue
        chosen = rounds if number == 1 or FULL else [rounds[number % len(rounds)], *rounds[-1:] * (number in QUICK)]
        for arguments in chosen:
            ran = runner(arguments, env)
            said = ran.out + ran.err
            for path in (tmp_path / "metrics", tmp_path / "cursor"):
                said += path.read_text() if path.exists() else ""
            assert ran.code != 1 and "Traceback" not in said, (arguments, said)
            for spelled in kinds:
                assert spelled not in said, (arguments, said)


# --- owners ---


def test_owners_are_compared_in_constant_time_and_before_anything_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = create_persistence_backend({"type": "file", "path": str(tmp_path)})
    backend.save("s1", {"messages": [{"role": "user", "content": "SECRET"}], "principalId": "alice"})
    compared = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for claimed in ("bob", "alic", "alice ", "ALICE", "", None):
        with pytest.raises(OwnershipMismatch) as refused:
            backend.load("s1", principal_id=claimed)
        assert "SECRET" not in repr(refused.value) and "alice" not in str(refused.value)
    assert compared == [(b"alice", name.encode()) for name in ("bob", "alic", "alice ", "ALICE")]
    assert backend.load("s1", principal_id="alice") is not None


# --- files from strangers ---


def plan_of(folder: Path, key: str, kind: str) -> str:
    session = {
        "key": key,
        "kind": kind,
        "version": [1, 2, 3],
        "size": 1,
        "changed_at": 1,
        "age_source": "mtime",
        "reason": "x",
        "messages": 0,
        "last_activity_at": None,
    }
    made = {"format": "sessionctl-gc-plan-1", "store": os.path.realpath(folder), "made_at": 1, "scanned": 1}
    return json.dumps(made | {"sessions": [session]})


@pytest.mark.parametrize("kind", ["document", "log"])
@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "../victim", "a\0b", "", "C:\\x", "x" * 2000]
)
def test_a_plan_that_names_what_is_no_session_is_refused(
    folder: Path, tmp_path: Path, runner: Runner, key: str, kind: str
) -> None:
    document(tmp_path, "victim", age=9 * DAY)
    document(folder, "s1", age=9 * DAY)
    before = state(tmp_path)
    plan = tmp_path / "plan"
    plan.write_text(plan_of(folder, key, kind))
    done = runner(["gc", "--plan", str(plan), "-y", "-s", str(folder)], environment())
    assert done.code == 2, done.err
    after = state(tmp_path)
    assert {name for name in after if name not in before} == {str(plan)}
    assert (tmp_path / "victim.json").exists() and (folder / "s1.json").exists()


@pytest.mark.parametrize("option", ["--plan", "--cursor"])
@pytest.mark.parametrize("what", ["link", "folder", "fifo", "device", "nothing", "deep", "huge number"])
def test_files_that_are_none_of_ours(folder: Path, tmp_path: Path, option: str, what: str) -> None:
    document(folder, "s1", age=9 * DAY)
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path = tmp_path / "file"
    make = {
        "link": lambda: path.symlink_to(victim),
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "nothing": lambda: path.write_bytes(b""),
        "deep": lambda: path.write_bytes(b"[" * 200_000),
        "huge number": lambda: path.write_bytes(b'{"format": ' + b"9" * 6000 + b"}"),
    }
    make[what]()
    words = ["gc", "--plan", str(path), "-y"] if option == "--plan" else ["tail", "--cursor", str(path)]
    done = run(*words, "-s", folder, timeout=20)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("sessionctl: ")
    assert victim.read_text() == "untouched"
    assert names(folder) == ["s1.json"]


def test_a_checkpoint_from_a_stranger_keeps_nobody_busy(folder: Path, tmp_path: Path) -> None:
    """Checkpoints are data, too: deep, looped, or of another form, they change nothing."""
    place = tmp_path / ".checkpoints" / "checkpoints"
    place.mkdir(parents=True)
    (place / "a.json").write_bytes(b"[" * 100_000)
    (place / "b.json").write_text(json.dumps({"id": "b", "closed": False, "sessionId": ["x"], "outstanding": 7}))
    os.mkfifo(place / "c.json")
    (place / "d.json").symlink_to("/dev/zero")
    path = log(folder, "s1", age=9 * DAY)
    set_age(path, 9 * DAY)
    assert run("gc", *OLD, "-s", folder, timeout=20).returncode == 0
    assert names(folder) == []


def test_a_tight_umask_stops_nothing(folder: Path, tmp_path: Path) -> None:
    """Folders and files are made with their modes; umask 077 is no less. (Umask 0: in ``crash``.)"""
    document(folder, "s1", age=9 * DAY)
    log(folder, "s2", entry("e1", None), b"{torn", age=9 * DAY)
    before = os.umask(0o077)
    try:
        mended = run("repair", "--fix", "-s", folder, env=environment(tmp_path))
        done = run("gc", *OLD, "-s", folder, "--archive", tmp_path / "a" / "b", "--metrics", tmp_path / "metrics")
    finally:
        os.umask(before)
    assert (mended.returncode, done.returncode) == (0, 0), mended.stderr + done.stderr
    assert names(tmp_path / "a" / "b") == ["s1.json", "s2.jsonl"]
    assert not [path for path in (tmp_path / "a").rglob("*") if path.stat().st_mode & 0o077]
