"""Pages are called what SGLang's own functions make of their tokens."""

from __future__ import annotations

import random

import pytest

from kvstore.block import foreign
from kvstore.naming import names_of
from tests.nodes import SPEC

utils = pytest.importorskip("sglang.srt.mem_cache.utils")


class Key(list[int]):
    """Of tokens, as SGLang's radix tree has it."""

    extra_key: str | None = None
    cache_salt: str | None = None


@pytest.mark.parametrize("salt", ["", "mine", "grüße"])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_a_page_is_called_as_sglang_hashes_it(page: int, salt: str) -> None:
    dice = random.Random(page)
    key = Key(dice.randrange(2**32) for _ in range(5 * page))
    key.cache_salt = salt or None
    hashes = utils.get_storage_hash_str(key, None, page)
    keys = [f"sglang 0/1 {one}" for one in hashes]
    found = names_of(SPEC.digest, 0, page, "sglang 0/1").of(key, salt)
    assert found == foreign(SPEC.digest, 0, keys, page).hashes
