"""How etcd is named, and what is said where it is named wrong."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstore.config import EtcdConfig
from kvstore.errors import ConfigError, Unavailable
from kvstore.metadata import open_metadata
from kvstore.metadata.etcd import EtcdMetadata


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("http://127.0.0.1:2379", ("http://127.0.0.1:2379",)),
        ("https://a:1, https://b.example:65535/", ("https://a:1", "https://b.example:65535")),
        ("http://[::1]:2379", ("http://[::1]:2379",)),
    ],
)
def test_endpoints_are_read(text: str, endpoints: tuple[str, ...]) -> None:
    assert EtcdConfig.parse(text).endpoints == endpoints
    assert isinstance(open_metadata(text), EtcdMetadata)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://", "HOST:PORT"),
        ("http://a", "HOST:PORT"),
        ("http://a:1,", "HOST:PORT"),
        ("http://a:1/path", "HOST:PORT"),
        ("http://a:0", "HOST:PORT"),
        ("http://a:65536", "HOST:PORT"),
        ("http://user:password@a:1", "HOST:PORT"),
        ("http://a:1,https://b:1", "take one of them"),
    ],
)
def test_what_names_no_endpoint_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_metadata(text)


@pytest.mark.parametrize("text", ["a:2379", "etcd://a:2379", "ftp://a:1"])
def test_other_schemes_are_told_the_right_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="write etcd's endpoints, http://HOST:PORT"):
        open_metadata(text)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": ""}, "--cluster"),
        ({"cluster": "a/b"}, "--cluster"),
        ({"cluster": "c" * 65}, "--cluster"),
        ({"cert": Path("a")}, "name both"),
        ({"key": Path("a")}, "name both"),
        ({"ca": Path("a")}, "https"),
        ({"user": "a"}, "MOONPOOL_ETCD_PASSWORD"),
        ({"password": "a"}, "MOONPOOL_ETCD_USER"),
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EtcdConfig.parse("http://a:1", **settings)


def test_no_password_shows() -> None:
    assert "hush" not in repr(EtcdConfig(("http://a:1",), user="a", password="hush"))


@pytest.mark.parametrize("password", ["hush", "hush/", "hush@", "hush,"])
def test_a_password_written_into_an_address_is_not_told_to_the_log(password: str) -> None:
    with pytest.raises(ConfigError, match="MOONPOOL_ETCD_PASSWORD") as refused:
        EtcdConfig.parse(f"http://b:1,https://root:{password}@a:1")
    assert "hush" not in str(refused.value)


def test_who_uses_no_etcd_loads_none_of_it() -> None:
    code = "import sys, kvstore.client, kvstore.metadata; sys.exit('aetcd' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


async def test_where_nobody_answers_nothing_is_said_of_a_change_that_was_never_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # and listens no more
        port = taken.getsockname()[1]
    store = open_metadata(f"http://127.0.0.1:{port}")
    try:
        with pytest.raises(Unavailable, match="cannot be reached") as refused:
            await store.put_if("a", b"b", expected_revision=0)
        assert "change" not in str(refused.value)
    finally:
        await store.close()
