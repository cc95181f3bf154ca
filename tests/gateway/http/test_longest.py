"""No text has more bytes than its tokens may, where that is said at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from kvstore.config import GatewayConfig
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.longest import token_bytes_max
from kvstore.gateway.http.refusal import TooLong
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.text import Text
from tests.gateway.http.test_served import ENGINES, without
from tests.gateway.http.test_text import END, bytes_alone, words_and_bytes


def pairs() -> Tokenizer:
    """Bytes, and some of them together."""
    merges = [("a", "a"), ("aa", "aa"), ("Ġ", "a"), ("Ã", "©")]
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE({one: at for at, one in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def cut() -> Tokenizer:
    """As Llama 3 cuts its texts."""
    tokenizer = pairs()
    split = pre_tokenizers.Split(Regex(r"\d{1,3}|\s+"), "isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
    return tokenizer


def named() -> Tokenizer:
    tokenizer = pairs()
    tokenizer.add_special_tokens([END])
    return tokenizer


BOUND = {bytes_alone: len(END), pairs: 4, cut: 4, named: len(END)}
PIECES = st.sampled_from(["a", "aaaa", " ", "é", END, "🌊", "1234", "\n"])


@pytest.mark.parametrize("make", BOUND, ids=lambda make: make.__name__)
@given(st.lists(PIECES | st.text(max_size=5), max_size=20).map("".join))
def test_a_text_has_no_more_bytes_than_its_tokens_may(
    make: Callable[[], Tokenizer], said: str
) -> None:
    tokenizer = make()
    longest = token_bytes_max(json.loads(tokenizer.to_str()))
    assert longest == BOUND[make]
    assert len(said.encode()) <= longest * len(tokenizer.encode(said).ids)


def normalized() -> Tokenizer:
    tokenizer = pairs()
    tokenizer.normalizer = normalizers.Replace(" ", "")
    return tokenizer


def without_spaces() -> Tokenizer:
    tokenizer = pairs()
    split = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    return tokenizer


def with_spaces_of_its_own() -> Tokenizer:
    tokenizer = pairs()
    tokenizer.add_special_tokens([AddedToken("<x>", rstrip=True)])
    return tokenizer


def without_a_byte() -> Tokenizer:
    """What it does not know it leaves away."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[1:]
    tokenizer = Tokenizer(models.BPE({one: at for at, one in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def uncut() -> Tokenizer:
    """Where a byte is no letter, most characters are not known."""
    return Tokenizer(pairs().model)


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


UNBOUND = (normalized, without_spaces, with_spaces_of_its_own, without_a_byte, uncut)


@pytest.mark.parametrize("make", (*UNBOUND, words, words_and_bytes))
def test_where_some_of_a_text_may_be_lost_there_is_no_telling(
    make: Callable[[], Tokenizer],
) -> None:
    assert token_bytes_max(json.loads(make().to_str())) is None


def test_a_text_that_cannot_fit_is_refused_before_it_is_made_into_tokens(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without(model_dir, tmp_path / "m")
    pairs().save(str(folder / "tokenizer.json"))
    told = GatewayConfig(folder, engines=ENGINES, revision="r", max_model_len=10)
    served = Served.of(told)
    (prompt,) = served.prompts(Asked("tiny", ("a" * 36,), max_tokens=1))
    assert len(prompt) == 9
    made = list[str]()
    monkeypatch.setattr(Text, "tokens", lambda _, text: made.append(text) or (1,) * len(text))
    with pytest.raises(TooLong, match=r"41 bytes of text .* positions for 10") as refused:
        served.prompts(Asked("tiny", ("a" * 41,), max_tokens=1))
    assert refused.value.param == "prompt" and not made
    with pytest.raises(TooLong):
        served.prompts(Asked("tiny", ("a" * 40,), max_tokens=1))
    assert made
