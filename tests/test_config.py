"""The configuration file: what it may say, what is said of mistakes, and what it does to commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from terminal import DOCUMENTS, environment, run

from sessionctl import config
from sessionctl.errors import ConfigError

GOOD = """
default = "prod"   # the store of every command

[stores.prod]
url = "redis://agent:${PROD_PASSWORD}@cache.internal/0"
archive = "/var/backups/sessions"
protect = ["acme:*", "vip-*"]

[stores."eu-1"]
url = "/srv/sessions"

[options.gc]
older-than = "30d"
"""


def test_it_says_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROD_PASSWORD", "s3cret")
    read = config.parse(GOOD.encode(), "c.toml")
    assert read.default == "prod"
    assert list(read.stores) == ["prod", "eu-1"]
    prod = read.stores["prod"]
    assert prod.url == "redis://agent:s3cret@cache.internal/0"
    assert prod.shown == "redis://agent:${PROD_PASSWORD}@cache.internal/0"
    assert (prod.archive, prod.protect) == ("/var/backups/sessions", ("acme:*", "vip-*"))
    assert read.options == {"gc": {"older-than": "30d"}}


def test_a_missing_variable_spoils_only_the_store_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROD_PASSWORD", raising=False)
    read = config.parse(GOOD.encode(), "c.toml")
    assert read.stores["eu-1"].url == "/srv/sessions"
    with pytest.raises(ConfigError, match=r"c\.toml:5: the environment variable 'PROD_PASSWORD' is not set"):
        _ = read.stores["prod"].url


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('defualt = "x"', "c.toml:1: no such key: 'defualt'; did you mean default?", "default, stores, options"),
        ("default = 3", "c.toml:1: default must be text, not a number", None),
        ("\n\ndefault = [", "c.toml:3: not TOML", None),
        ("a = 1\na = 2", "c.toml:2: not TOML", None),
        ("stores = 1", "c.toml:1: stores must be a table, not a number", None),
        ("[stores]\nprod = 'x/y'", "c.toml:2: prod must be a table, not text", None),
        ("[stores.prod]\n", "c.toml:1: [stores.prod] has no url", None),
        (
            "# note\n[stores.prod]\nurl = '/x'\nprotekt = []",
            "c.toml:4: no such key in [stores.prod]: 'protekt'; did you mean protect?",
            "url, archive, protect",
        ),
        ("[stores.p]\nurl = '/x'\nprotect = 'a*'", "c.toml:3: protect must be a list of texts, not text", None),
        ("[stores.p]\nurl = '/x'\nprotect = [1]", "c.toml:3: protect must be a list of texts", None),
        ("[stores.p]\nurl = 5", "c.toml:2: url must be text, not a number", None),
        ("[stores.p]\nurl = 'other'", "c.toml:2: the url of a store is a folder or URL", "with a slash"),
        ("[stores.'a b']\nurl = '/x'", "c.toml:1: not a name for a store: 'a b'", None),
        ("stores.p = {url = '/x', achive = '/y'}", "c.toml:1: no such key in [stores.p]: 'achive'", None),
        ("[options]\ngc = true", "c.toml:2: gc must be a table, not true or false", None),
    ],
)
def test_a_mistake_is_named_with_file_and_line(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text.encode(), "c.toml")
    assert message in str(caught.value)
    if hint:
        assert hint in (caught.value.hint or "")


def test_other_bytes_than_text_are_named() -> None:
    with pytest.raises(ConfigError, match=r"c\.toml:2: not UTF-8"):
        config.parse(b"# a\n\xff", "c.toml")


def test_a_default_that_names_no_store_is_told_where_it_is_used() -> None:
    read = config.parse(b'# a\ndefault = "prd"\n[stores.prod]\nurl = "/x"', "c.toml")
    with pytest.raises(ConfigError, match=r"c\.toml:2: .* no store of this file: 'prd'; did you mean prod\?"):
        read.checked_default()
    for fine in ("prod", "file", "redis", "./prd", "redis://h/0"):
        text = f'default = "{fine}"\n[stores.prod]\nurl = "/x"'
        assert config.parse(text.encode(), "c.toml").checked_default()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("./x", "/etc/ctl/x"),
        ("../x/y", "/etc/x/y"),
        ("x/y", "/etc/ctl/x/y"),
        ("logs:x", "/etc/ctl/x"),
        ("file:./x:y", "/etc/ctl/x:y"),
        ("sqlite:///x.db", "/etc/ctl/x.db"),
        ("~/x", "/home/me/x"),
        ("documents:~/x", "/home/me/x"),
        ("/x", "/x"),
        ("sqlite:////x.db", "/x.db"),
        ("redis://h/0", "redis://h/0"),
        ("file:///x", "file:///x"),
    ],
)
def test_relative_folders_are_beside_the_file(monkeypatch: pytest.MonkeyPatch, written: str, meant: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = f'default = "{written}"\n[stores.a]\nurl = "{written}"\narchive = "{written}"'
    read = config.parse(text.encode(), "/etc/ctl/config.toml")
    assert read.default == read.stores["a"].url == read.stores["a"].archive
    assert read.default is not None and read.default.endswith(meant)
    assert read.default.removesuffix(meant) in ("", "logs:", "file:", "documents:", "sqlite:///")


def test_an_archive_of_the_configuration_lies_beside_it(tmp_path: Path, store: Path) -> None:
    env = configured(tmp_path, f'[stores.mine]\nurl = "{store}"\narchive = "./kept"\n[options.gc]\nolder-than = "1s"\n')
    assert run("gc", "-s", "mine", "-y", env=env).returncode == 0
    assert len(list((tmp_path / "kept").iterdir())) == 15
    shutil.copy(DOCUMENTS / "legacy-0001.json", store)
    env = configured(tmp_path, '[options.delete]\narchive = "./other"\n')
    assert run("delete", "legacy-0001", "-y", "-s", store, env=env).returncode == 0
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["legacy-0001.json"]


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "SESSIONCTL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert config.load() == config.Config(), "no home folder: no configuration, no error"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config.load().stores == {}
    place = Path(config.default_path() or "")
    place.parent.mkdir(parents=True)
    place.write_text('[stores.a]\nurl = "/a"')
    config._read.cache_clear()
    assert list(config.load().stores) == ["a"]
    place.write_text("not toml at all")
    assert list(config.load().stores) == ["a"], "read once"
    monkeypatch.setenv("SESSIONCTL_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match="no configuration at"):
        config.load()
    monkeypatch.setenv("SESSIONCTL_CONFIG", str(tmp_path))
    with pytest.raises(ConfigError, match="is a directory"):
        config.load()
    monkeypatch.setenv("SESSIONCTL_CONFIG", "")
    assert config.load() == config.Config()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:pw@h/0", "redis://:***@h/0"),
        ("redis://me:p@ss/w?rd#x@h:1/0", "redis://me:***@h:1/0"),
        ("redis://:${PW}@h/0", "redis://:${PW}@h/0"),
        ("redis://:a${PW}@h/0", "redis://:***@h/0"),
        ("postgresql://h/db?user=me&password=pw&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("redis+sentinel://h1:1,h2:2/s/0?sentinel_password=pw", "redis+sentinel://h1:1,h2:2/s/0?sentinel_password=***"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("/srv/a:b@c", "/srv/a:b@c"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert config.hide_secrets(url) == shown


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DOCUMENTS, tmp_path / "store"))


def configured(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "c.toml").write_text(text)
    return environment(SESSIONCTL_CONFIG=str(tmp_path / "c.toml"))


def test_the_default_store_and_defaults_of_options(tmp_path: Path, store: Path) -> None:
    env = configured(
        tmp_path, f'default = "mine"\n[stores.mine]\nurl = "{store}"\n[options.list]\noutput = "ids"\nlimit = 2\n'
    )
    assert len(run("list", env=env).stdout.splitlines()) == 2
    assert len(json.loads(run("list", "-o", "json", "--limit", "3", env=env).stdout)) == 3, "the call wins"
    assert run("list", "-s", "mine", env=env).returncode == 0
    wrong = run("list", "-s", "mien", env=env)
    assert (wrong.returncode, "did you mean mine?" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("[options.gcc]\nyes = true", "c.toml:1: no such key in [options]: 'gcc'; did you mean gc?"),
        ("[options.gc]\nolder = '1h'", "c.toml:2: no such key in [options.gc]: 'older'; did you mean older-than?"),
        ("[options.gc]\nyes = 'true'", "c.toml:2: yes must be true or false, not text"),
        ("[options.gc]\nlimit = '3'", "c.toml:2: limit must be a number, not text"),
        ("[options.gc]\nolder-than = 30", "c.toml:2: older-than must be text, not a number"),
        ("[options.gc]\nstatus = 'ok'", "c.toml:2: status must be a list of texts, not text"),
    ],
)
def test_mistakes_in_defaults_of_options(tmp_path: Path, options: str, said: str) -> None:
    env = configured(tmp_path, options)
    found = run("gc", "-s", tmp_path, "--ttl", "1h", env=env)
    assert (found.returncode, said in found.stderr) == (2, True), found.stderr
    assert run("gc", "--help", env=env).returncode == 0, "help is there also with a broken configuration"


def test_a_rule_of_the_call_is_not_widened_by_one_of_the_configuration(tmp_path: Path, store: Path) -> None:
    env = configured(tmp_path, f'default = "{store}"\n[options.gc]\nolder-than = "1s"\n')
    every = json.loads(run("gc", "--dry-run", "-o", "json", env=env).stdout)
    none = json.loads(run("gc", "--ttl", "5000d", "--dry-run", "-o", "json", env=env).stdout)
    assert len(every["keys"]) > 5
    assert none["keys"] == []


def test_protected_patterns_and_archive_hold_by_whatever_name_the_store_is_opened(tmp_path: Path, store: Path) -> None:
    archive = tmp_path / "archive"
    env = configured(
        tmp_path, f'[stores.mine]\nurl = "{store}"\narchive = "documents:{archive}"\nprotect = ["legacy-*"]\n'
    )
    for name in ("mine", str(store), f"file:{store}/../store"):
        kept = run("delete", "legacy-0001", "--force", "--yes", "-s", name, env=env)
        assert "protected by the configuration" in kept.stderr
        assert (store / "legacy-0001.json").exists()
    before = (store / "cleared.json").read_bytes()
    assert run("delete", "cleared", "--yes", "-s", store, env=env).returncode == 0
    assert not (store / "cleared.json").exists()
    assert (archive / "cleared.json").read_bytes() == before
    gone = json.loads(run("gc", "--older-than", "1s", "--force", "--yes", "-o", "json", "-s", store, env=env).stdout)
    assert gone["deleted"] == gone["archived"] > 5
    assert [f.name for f in store.glob("*.json")] == ["legacy-0001.json"]
