"""Text that grows token by token is the text of all tokens, and no piece has half a character."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvstore.errors import ConfigError
from kvstore.gateway.http.spelling import Spelled
from kvstore.gateway.http.text import HELD_TOKENS_MAX, Text, Writing

END, TURN = "<end>", "<|END_OF_TURN_TOKEN|>"


def bytes_alone() -> Tokenizer:
    """A token a byte, as GPT-2's and Llama 3's tokenizers have them at the least."""
    ids = {one: at for at, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def end_of(folder: Path) -> int:
    found = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(TURN)
    assert isinstance(found, int)
    return found


def words_and_bytes() -> Tokenizer:
    """Words that bring their space, and bytes for the rest, as Llama 2's has them."""
    names = ["<unk>", *(f"<0x{one:02X}>" for one in range(256)), "▁", "▁a", "▁bc", "d"]
    tokenizer = Tokenizer(
        models.BPE({one: at for at, one in enumerate(names)}, [], byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([END])
    return tokenizer


@pytest.fixture(scope="module", params=[bytes_alone, words_and_bytes])
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Text:
    folder = tmp_path_factory.mktemp("tokenizer")
    request.param().save(str(folder / "tokenizer.json"))
    return Text(folder)


def test_other_threads_go_on_while_a_long_text_is_made_into_tokens(tmp_path: Path) -> None:
    bytes_alone().save(str(tmp_path / "tokenizer.json"))
    text, beats, over = Text(tmp_path), list[float](), threading.Event()

    def beat() -> None:
        while not over.wait(0.0005):
            beats.append(time.monotonic())

    other = threading.Thread(target=beat)
    other.start()
    try:
        began = time.monotonic()
        assert len(text.tokens("word " * 100_000)) == 500_000
        ended = time.monotonic()
    finally:
        over.set()
        other.join()
    # Hundreds as it is; some at both ends where the lock is kept.
    assert sum(began < one < ended for one in beats) > 20


@given(st.text(max_size=30))
def test_pieces_make_up_the_whole(text: Text, said: str) -> None:
    tokens = text.tokens(said)
    writing = Writing(text, ())
    pieces = [writing.add(token) for token in tokens]
    # A text may itself have the character that stands for broken bytes.
    assert "\ufffd" in said or not any("\ufffd" in piece for piece in pieces)
    assert "".join([*pieces, writing.end()]) == text.decode(tokens)


UNKNOWN = 2**20  # no token of these has a text


@pytest.mark.parametrize("known", [False, True])
def test_tokens_without_a_text_are_not_gone_through_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    tokenizer = words_and_bytes()
    each = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*each, decoders.Replace("d", "")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = Text(tmp_path)
    token = tokenizer.token_to_id("d") if known else UNKNOWN
    decode, lengths = Text.decode, list[int]()

    def watched(one: Text, tokens: Sequence[int]) -> str:
        lengths.append(len(tokens))
        return decode(one, tokens)

    monkeypatch.setattr(Text, "decode", watched)
    writing = Writing(text, text.tokens("a"))
    assert not any(writing.add(token) for _ in range(100))
    assert max(lengths, default=0) <= 3 * HELD_TOKENS_MAX
    assert writing.add(tokenizer.token_to_id("▁a")) == " a"


@given(st.lists(st.text(max_size=6), max_size=4), st.integers(0, 3 * HELD_TOKENS_MAX))
def test_what_stands_around_unknown_tokens_is_one_text(
    text: Text, parts: list[str], unknown: int
) -> None:
    tokens = [*itertools.chain(*([*text.tokens(one), *[UNKNOWN] * unknown] for one in parts))]
    writing = Writing(text, ())
    pieces = [*map(writing.add, tokens), writing.end()]
    assert "".join(pieces) == text.decode(tokens)


def test_a_character_of_four_bytes_comes_with_its_last(text: Text) -> None:
    writing = Writing(text, ())
    pieces = [writing.add(token) for token in text.tokens("🌊")]
    assert [one for one in pieces if one][-1].endswith("🌊")
    assert pieces[-1] and not any(pieces[-4:-1])


def test_a_character_that_never_ends_is_marked(text: Text) -> None:
    writing = Writing(text, ())
    pieces = [writing.add(token) for token in text.tokens("🌊")[:-1]]
    assert "\ufffd" not in "".join(pieces)
    assert "\ufffd" in writing.end()


def test_bytes_that_are_no_text_are_not_held_for_ever(text: Text) -> None:
    lead = text.tokens("🌊")[-4]
    writing = Writing(text, ())
    assert any(writing.add(lead) for _ in range(HELD_TOKENS_MAX + 1))


@given(st.text(max_size=30), st.text(max_size=10))
def test_prompt_and_answer_make_up_one_text(text: Text, before: str, said: str) -> None:
    prompt, tokens = text.tokens(before), text.tokens(said)
    writing = Writing(text, prompt)
    answer = "".join([*map(writing.add, tokens), writing.end()])
    assert text.decode(prompt) + answer == text.decode([*prompt, *tokens])


@pytest.fixture
def stripped(tmp_path: Path) -> Text:
    """Its first word has no space before it, as Llama 2's has it."""
    tokenizer = words_and_bytes()
    each = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*each, decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return Text(tmp_path)


@pytest.mark.parametrize("before", ["日" * 6, "日" * 5 + "é", "🌊" * 4 + "é日"])
def test_a_word_keeps_its_space_behind_more_bytes_than_are_looked_back_on(
    stripped: Text, before: str
) -> None:
    prompt, tokens = stripped.tokens(before), stripped.tokens("a")
    assert len(before.encode()) > HELD_TOKENS_MAX and stripped.decode(tokens) == "a"
    writing = Writing(stripped, prompt)
    assert "".join([*map(writing.add, tokens), writing.end()]) == " a"


@pytest.mark.parametrize("before", ["\ufffd", "a\ufffd", "日" * 6 + "\ufffd", "\ufffd" * 20])
def test_a_word_keeps_its_space_behind_the_character_that_stands_for_broken_bytes(
    stripped: Text, before: str
) -> None:
    prompt, tokens = stripped.tokens(before), stripped.tokens("a")
    writing = Writing(stripped, prompt)
    assert "".join([*map(writing.add, tokens), writing.end()]) == " a"


def test_a_prompt_that_ends_within_a_character_takes_no_text_from_the_answer(text: Text) -> None:
    *cut, last = text.tokens("🌊")
    writing = Writing(text, cut)
    answer = "".join([*map(writing.add, [last, *text.tokens("a")]), writing.end()])
    assert answer.endswith("a")


def test_special_tokens_are_no_text(text: Text) -> None:
    (end,) = text.specials
    writing = Writing(text, ())
    tokens = [*text.tokens("a"), end, *text.tokens("d")]
    pieces = [writing.add(token) for token in tokens]
    assert "".join([*pieces, writing.end()]) == text.decode(tokens)


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tokenizer says of the token that ends an answer nothing but its name."""
    folder, tokenizer = tmp_path_factory.mktemp("tokenizer"), bytes_alone()
    tokenizer.add_tokens([AddedToken(TURN, special=False, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_an_end_token_is_no_text_also_where_its_tokenizer_does_not_mark_it(unmarked: Path) -> None:
    end = end_of(unmarked)
    text = Text(unmarked, frozenset({end}))
    writing = Writing(text, text.tokens(f"Say hi{TURN}"))
    tokens = text.tokens(f"Hi{TURN}.")
    assert end in tokens and text.decode(tokens) == "Hi."
    assert "".join([*map(writing.add, tokens), writing.end()]) == "Hi."
    assert text.spelled(end) == Spelled(TURN, None)


def test_a_name_that_ends_no_answer_is_text(unmarked: Path) -> None:
    text = Text(unmarked)
    assert text.decode(text.tokens(TURN)) == TURN
    assert text.spelled(end_of(unmarked)) == Spelled(TURN, TURN.encode())


@given(st.text(max_size=30))
def test_the_bytes_of_tokens_make_up_the_bytes_of_their_text(text: Text, said: str) -> None:
    tokens = text.tokens(said)
    found = b"".join(text.spelled(token).utf8 or b"" for token in tokens)
    assert found == text.decode(tokens).encode()


def test_a_token_that_is_no_whole_character_is_written_by_its_bytes(text: Text) -> None:
    *_, first, second, third, fourth = (text.spelled(one) for one in text.tokens("🌊"))
    assert [one.utf8 for one in (first, second, third, fourth)] == [
        *(b"\xf0", b"\x9f", b"\x8c", b"\x8a")
    ]
    assert first.text == "\\xf0" and text.spelled(text.tokens("d")[-1]).text == "d"


def test_a_special_token_is_written_by_its_name_and_has_no_bytes(text: Text) -> None:
    (end,) = text.specials
    assert text.spelled(end) == Spelled(END, None)


def test_a_number_that_no_token_has_is_written_as_nothing(text: Text) -> None:
    assert text.spelled(2**32 - 1) == Spelled("", b"")


def test_a_word_brings_the_space_that_stands_before_it_in_a_text(
    model_dir: Path,
) -> None:
    words = Text(model_dir)
    (token,) = words.tokens("w7")
    assert words.spelled(token) == Spelled(" w7", b" w7")


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Text(tmp_path)


def test_a_tokenizer_that_is_none_is_told_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        Text(tmp_path)


def test_a_prompt_is_whole_whatever_lengths_the_tokenizer_was_trained_with(tmp_path: Path) -> None:
    tokenizer = bytes_alone()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = Text(tmp_path)
    for tokens in (text.tokens("all of it"), text.template_tokens("all of it")):
        assert text.decode(tokens) == "all of it" and len(tokens) == len("all of it")
