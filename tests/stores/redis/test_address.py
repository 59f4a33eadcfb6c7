"""Redis URLs: what they mean, and that no secret comes back out of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionctl.errors import SessionctlError, UsageError
from sessionctl.stores import open_store
from sessionctl.stores.redis.address import parse

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://h:7000/3", "redis://h:7000/3"),
        ("redis://h?db=4", "redis://h:6379/4"),
        ("rediss://u:hunter2@h:1/0?ssl_ca_certs=/ca.pem", "rediss://h:1/0"),
        ("redis://[::1]:7000/0", "redis://[::1]:7000/0"),
        ("redis://h/0?documents=session:&logs=l:", "redis://h:6379/0?documents=session:&logs=l:"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix://u:hunter2@/run/a%20b.sock?db=2", "unix:///run/a%20b.sock?db=2"),
        ("redis+sentinel://u:hunter2@a,b:2/main/3", "redis+sentinel://a:26379,b:2/main/3"),
        ("redis+sentinel://a/main?sentinel_password=hunter2&ssl=true", "redis+sentinel://a:26379/main/0?ssl=true"),
        ("redis+cluster://:hunter2@a:1,b:2", "redis+cluster://a:1,b:2"),
    ],
)
def test_the_name_of_a_store(url: str, said: str) -> None:
    address = parse(url, {})
    assert str(address) == said
    assert str(parse(said, {})) == said
    assert SECRET not in repr(address)


def test_what_a_url_says() -> None:
    address = parse("rediss://us%40er:p%2Fw%3A@h:1/2?ssl_cert_reqs=none&ssl_certfile=c&ssl_keyfile=k", {})
    assert (address.user, address.password, address.db, address.tls) == ("us@er", "p/w:", 2, True)
    assert address.tls_options == {"ssl_cert_reqs": "none", "ssl_certfile": "c", "ssl_keyfile": "k"}
    assert parse("redis://:pw@h", {}).user is None
    assert parse("redis+sentinel://a/s?sentinel_user=u&sentinel_password=p", {}).sentinel_password == "p"


def test_bare_redis_takes_the_environment() -> None:
    environ = {"REDIS_URL": "redis://u:hunter2@prod:7/1"}
    assert str(parse("redis:", environ)) == "redis://prod:7/1"
    assert parse("redis:", environ).password == SECRET
    assert str(parse("redis:?logs=l:", environ)) == "redis://prod:7/1?logs=l:"
    for unset in ({}, {"REDIS_URL": ""}):
        with pytest.raises(UsageError, match="REDIS_URL is not set"):
            parse("redis:", unset)
    assert str(parse("redis:?logs=l:", {"REDIS_URL": "redis://h?documents=d:"})).endswith("/0?documents=d:&logs=l:")
    for wrong in ("redis:", "http://prod", "prod:6379"):
        with pytest.raises(UsageError):
            parse("redis:", {"REDIS_URL": wrong})


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///2",
        "redis:prod",
        "redis:/run/redis.sock",
        "redis://:hunter2@",
        "redis://h:port",
        "redis://h:0",
        "redis://h:70000",
        "redis://h/abc",
        "redis://h/1?db=2",
        "redis://a,b",
        "redis://h#hunter2",
        "redis://:hunter2/x@h",
        "redis://:hunter2?x@h",
        "redis://:hunter2#x@h",
        "redis://a..b",
        f"redis://{'x' * 64}",
        f"redis+cluster://h,{'x' * 64}",
        "redis://[::1",
        "redis://[::1]x",
        "redis://h?foo=hunter2",
        "redis://h?password=hunter2",
        "redis://h?logs=a&logs=b",
        "redis://h?logs=a&documents=a",
        "redis://h?ssl_cert_reqs=maybe",
        "redis://h?ssl_check_hostname=maybe",
        "redis://h?sentinel_password=hunter2",
        "unix:",
        "unix://run/redis.sock",
        "unix:///s.sock?ssl_certfile=x",
        "redis+sentinel://h",
        "redis+sentinel://",
        "redis+cluster://h/1",
        "redis+cluster://",
    ],
)
def test_what_is_no_redis_url(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(url)
    assert SECRET not in f"{raised.value} {raised.value.hint}"


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'ssl_ca'") as raised:
        parse("rediss://h?ssl_ca=x", {})
    assert "ssl_ca_certs" in str(raised.value.hint)


@given(
    st.text(min_size=1, max_size=12), st.sampled_from(["redis://u:{}@h/0", "redis://h/0?x={}", "redis+cluster://{}"])
)
def test_any_text_is_read_or_refused_in_our_own_words(text: str, form: str) -> None:
    try:
        parse(form.format(text), {})
    except SessionctlError as error:
        assert str(error)
