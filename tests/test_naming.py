"""Whoever has a prompt's tokens calls its blocks what engines call them: by chains of ours, or by
SGLang's hashes of its pages."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.block import chain, foreign
from kvstore.content import adapted, together
from kvstore.content import salted as salted_chain
from kvstore.errors import Invalid
from kvstore.naming import names_of, request_of, rid_of

SPACE, SIZE = bytes(range(32)), 4
tokens_of = st.lists(st.integers(0, 2**32 - 1), max_size=40)
NAMINGS = ("", "sglang 0/2", "sglang mla")


def pages(tokens: list[int], start: bytes = b"") -> list[str]:
    """Hashes of whole pages, as SGLang has them."""
    found = []
    for at in range(0, len(tokens) - SIZE + 1, SIZE):
        start = hashlib.sha256(start + struct.pack(f"<{SIZE}I", *tokens[at : at + SIZE])).digest()
        found.append(start.hex())
    return found


def test_where_nothing_is_said_blocks_are_those_of_a_chain_with_its_short_tail() -> None:
    names, tokens = names_of(SPACE, 1, SIZE), [1, 2, 3, 4, 5]
    assert names.of(tokens) == chain(SPACE, 1, tokens, SIZE).hashes
    assert names.of(tokens, "mine") == chain(SPACE, 1, tokens, SIZE, salted_chain("mine")).hashes


def test_blocks_under_an_adapter_are_a_chain_s_under_its_weights_and_pages_have_no_name() -> None:
    tokens, weights = [1, 2, 3, 4, 5], b"w" * 32
    under = together(salted_chain("mine"), adapted(weights))
    found = names_of(SPACE, 1, SIZE).of(tokens, "mine", weights)
    assert found == chain(SPACE, 1, tokens, SIZE, under).hashes
    with pytest.raises(Invalid, match="LoRA"):
        names_of(SPACE, 1, SIZE, "sglang mla").of(tokens, "", weights)


@given(tokens=tokens_of)
def test_a_page_is_called_by_its_hash_under_the_key_that_stores_it(tokens: list[int]) -> None:
    keys = [f"sglang 0/2 {one}" for one in pages(tokens)]
    assert names_of(SPACE, 1, SIZE, "sglang 0/2").of(tokens) == foreign(SPACE, 1, keys, SIZE).hashes


def test_the_hash_of_a_page_is_the_same_for_ever() -> None:
    """As SGLang 0.5.23 makes it, of the first pages and of those under the salt `mine`."""
    plain = "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72"
    salted = (
        "cc4cc5ce9d428feabe97113288acfc173fee618ecebe6ecec36d3b2f8dccc4bb",
        "0c5de491227b2441d5ad54c9cd9f1276192de8fbbea7de341af6510468c78dee",
    )
    for salt, known in (("", [plain]), ("mine", salted)):
        tokens = list(range(1, 1 + SIZE * len(known)))
        keys = [f"sglang mla {one}" for one in known]
        found = names_of(SPACE, 0, SIZE, "sglang mla").of(tokens, salt)
        assert found == foreign(SPACE, 0, keys, SIZE).hashes


@pytest.mark.parametrize("naming", NAMINGS)
@given(tokens=tokens_of, cut=st.integers(0, 10))
def test_what_follows_a_block_is_called_as_in_the_whole_prompt(
    naming: str, tokens: list[int], cut: int
) -> None:
    names = names_of(SPACE, 1, SIZE, naming)
    ids = np.array(tokens, np.uint32)
    links = names.links(b"", ids)
    cut = min(cut, len(links))
    first = names.links(b"", ids[: cut * SIZE])
    rest = names.links(first[-1] if first else b"", ids[cut * SIZE :])
    assert first + rest == links
    assert tuple(names.named(links)) == names.of(tokens[: len(links) * SIZE])


@pytest.mark.parametrize("naming", NAMINGS)
def test_prompts_of_other_salts_share_no_name(naming: str) -> None:
    names, tokens = names_of(SPACE, 0, SIZE, naming), list(range(12))
    found = [names.of(tokens, salt) for salt in ("", "a", "b", "a\0")]
    assert len({one for each in found for one in each}) == 12


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("token", [-1, 2**32, 1.5])
def test_a_token_that_would_wrap_has_no_name(naming: str, token: float) -> None:
    with pytest.raises(Invalid, match="whole numbers from 0 to 4294967295"):
        names_of(SPACE, 0, SIZE, naming).of([1, 2, 3, token])  # type: ignore[list-item]


def test_a_naming_that_nothing_here_knows_is_refused() -> None:
    with pytest.raises(Invalid, match="naming = 'lmcache': empty, or 'sglang '"):
        names_of(SPACE, 0, SIZE, "lmcache")


def test_no_request_of_a_server_begins_as_another_ends() -> None:
    """SGLang ends all whose name begins with that of a caller who leaves."""
    asked = [(name, attempt) for name in ("r", "r try 2", "r-1", "r-10") for attempt in (1, 2)]
    rids = [rid_of(*one) for one in asked]
    assert [request_of(one) for one in rids] == [name for name, _ in asked]
    assert request_of("another's") == "another's"
    assert not any(one != other and other.startswith(one) for one in rids for other in rids)
