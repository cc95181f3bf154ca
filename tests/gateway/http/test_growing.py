"""An answer as it grows: which tokens are told of with which piece, and which with none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.gateway.http.growing import Growing, Piece
from kvstore.gateway.http.text import Text
from kvstore.logprobs import Logprobs
from tests.gateway.http.test_text import bytes_alone

SAID = Logprobs(-1.0)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """Of tokens that are a byte each."""
    folder = tmp_path_factory.mktemp("tokenizer")
    bytes_alone().save(str(folder / "tokenizer.json"))
    return Text(folder)


def grown(text: Text, tokens: Sequence[int], *stops: str) -> list[Piece]:
    growing, pieces = Growing(text, (), stops), []
    for token in tokens:
        pieces.append(growing.add(token, SAID))
        if growing.stopped:
            return pieces
    return [*pieces, growing.end("length")]


def joined(pieces: Sequence[Piece]) -> Piece:
    """All of one answer."""
    said = tuple(one for piece in pieces for one in piece.said)
    return Piece("".join(one.text for one in pieces), said, pieces[-1].reason)


def told(text: Text, piece: Piece) -> bytes:
    """The bytes of tokens that it tells of."""
    return b"".join(text.spelled(one.token).utf8 or b"" for one in piece.said)


@given(st.text(max_size=20), st.sampled_from(["b", "ab", "🌊", "\ufffd"]))
def test_each_piece_tells_of_the_tokens_that_its_text_is_made_of(
    text: Text, answer: str, stop: str
) -> None:
    pieces = grown(text, text.tokens(answer), stop)
    for piece in pieces:
        assert told(text, piece) == piece.text.encode()
    assert joined(pieces).text == answer.partition(stop)[0]
    assert pieces[-1].reason == ("stop" if stop in answer else "length")


def test_tokens_of_one_character_are_told_of_with_it_and_are_where_it_is(text: Text) -> None:
    pieces = grown(text, text.tokens("a🌊b"))
    assert [(one.text, len(one.said)) for one in pieces if one.text] == [
        *(("a", 1), ("🌊", 4), ("b", 1))
    ]
    assert [one.offset for one in joined(pieces).said] == [0, 1, 1, 1, 1, 2]


def test_a_token_that_begins_before_a_text_to_stop_at_is_told_of_and_none_behind_it(
    model_dir: Path,
) -> None:
    words = Text(model_dir)
    tokens = words.tokens("w7 w8 w9")
    pieces = grown(words, tokens, "8")  # within the second
    assert joined(pieces).text == "w7 w"
    assert [one.token for one in joined(pieces).said] == list(tokens[:2])


def test_what_was_held_back_and_is_no_stop_is_told_of_at_the_end(text: Text) -> None:
    *held, last = grown(text, text.tokens("ab"), "abc")
    assert not any(one.text or one.said for one in held)
    assert last.text == "ab" and told(text, last) == b"ab"


def test_an_end_token_is_told_of_last_though_it_has_no_text(text: Text) -> None:
    (end,) = text.specials
    pieces = grown(text, [*text.tokens("a"), end])
    assert [one.token for one in pieces[-1].said] == [end] and not pieces[-1].text
    assert [one.offset for one in joined(pieces).said] == [0, 1]


def test_where_nobody_asks_for_logprobs_nothing_is_told_of(text: Text) -> None:
    growing = Growing(text, (), ())
    pieces = [growing.add(one, None) for one in text.tokens("ab")]
    assert not joined([*pieces, growing.end("stop")]).said
