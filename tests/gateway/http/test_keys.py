"""A file of keys: what it says, and what is said of one that is wrong."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from kvstore.errors import ConfigError
from kvstore.gateway.http.keys import Anybody, BadKey, KeyFile
from tests import tree

SECRET = "0f" * 32
GUIDE = tree.ROOT / "deploy" / "guide" / "serve.md"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def good(name: str = "web", key: str = "k", more: str = "") -> str:
    return f'secret = "{SECRET}"\n[client.{name}]\nkeys = ["{digest(key)}"]\n{more}\n'


def test_tenants_of_one_name_are_one_whatever_their_clients(tmp_path: Path) -> None:
    text = good(more=f'tenant = "t"\n[client.b]\ntenant = "t"\nkeys = ["{digest("b")}"]')
    keys = KeyFile(written(tmp_path / "keys", text))
    one, other = keys.whose("Bearer k"), keys.whose("bearer  b ")
    assert (one.client, other.client) == ("web", "b") and one.salt == other.salt


def test_a_key_is_known_by_the_bytes_that_were_sent_whatever_they_are(tmp_path: Path) -> None:
    key = "schlüssel à"
    keys = KeyFile(written(tmp_path / "keys", good(key=key)))
    as_told = key.encode().decode("latin-1")  # of a header
    assert keys.whose(f"Bearer {as_told}").client == "web"


def test_another_secret_makes_other_names_of_the_same_tenants(tmp_path: Path) -> None:
    one = KeyFile(written(tmp_path / "one", good()))
    other = KeyFile(written(tmp_path / "other", good().replace(SECRET, "1f" * 32)))
    assert one.whose("Bearer k").salt != other.whose("Bearer k").salt


def test_keys_are_read_again_and_a_file_that_is_wrong_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", good())
    keys = KeyFile(path)
    written(path, good(key="new"))
    keys.read()
    assert keys.whose("Bearer new").client == "web"
    with pytest.raises(BadKey):
        keys.whose("Bearer k")
    written(path, "secret = ")
    with pytest.raises(ConfigError, match="Invalid value"):
        keys.read()
    assert keys.whose("Bearer new").client == "web"


@pytest.mark.parametrize("shown", ["", "k", "Basic k", "Bearer", "Bearer ", "Bearer kk"])
def test_what_is_no_key_of_the_file_is_nobody_s(tmp_path: Path, shown: str) -> None:
    with pytest.raises(BadKey):
        KeyFile(written(tmp_path / "keys", good())).whose(shown)


def test_without_a_file_a_key_tells_clients_apart_and_opens_nothing() -> None:
    one, other, nobody = (Anybody().whose(text) for text in ("Bearer a", "Bearer b", ""))
    assert one.client != other.client and not nobody.client
    assert not one.salt and one.client != "a"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[client.web]\nkeys = []", "secret: write 64 hexadecimal digits"),
        (f'secret = "{SECRET}"', "client: write a table for each"),
        (f'secret = "{SECRET}"\nclient = 3', "client: write a table for each"),
        (good() + "[tenant.x]", "tenant is not known"),
        (good(more="key = 1"), "client.web.key is not known: there are keys, tenant, requests"),
        (good(more="requests = 0"), "client.web.requests = 0: write a number from 1"),
        (good(more="requests = true"), "client.web.requests = True"),
        (good(more='tenant = ""'), "client.web.tenant: 1 to 256 bytes"),
        (good(more='tenant = "a\\n"'), "client.web.tenant: write printable text"),
        (good(name='"a\\nb"'), "its name: write printable text"),
        (good().replace(digest("k"), "k"), r"client.web.keys\[0\]: write the SHA-256 of a key"),
        (good(more=f'[client.b]\nkeys = ["{digest("k")}"]'), r"b.keys\[0\]: web has it too"),
        (good(more="[client.b]\nkeys = []"), "client.b.keys: write a list"),
        (good(more="[client.web]"), "line 4"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_what_would_be_right(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        KeyFile(written(tmp_path / "keys", text))


def test_the_guide_s_file_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.S)
    made = iter(digest(str(number)) for number in range(9))
    text = re.sub(r'"[^"]*digits[^"]*"', f'"{SECRET}"', text)
    text = re.sub(r'"(the digest|another|and one)[^"]*"', lambda _: f'"{next(made)}"', text)
    keys = KeyFile(written(tmp_path / "keys", text))
    web, nightly = keys.whose("Bearer 0"), keys.whose("Bearer 2")
    assert (web.client, web.requests, nightly.client) == ("web", 32, "nightly")
    assert web.salt == nightly.salt == keys.whose("Bearer 1").salt


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyFile(tmp_path / "none")
