"""Text into tokens and, as they come, tokens into text that is never half a character."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from kvstore.errors import ConfigError
from kvstore.gateway.http.longest import token_bytes_max
from kvstore.gateway.http.spelling import BROKEN, Spelled, Spelling

HELD_TOKENS_MAX = 16  # what is no whole character by then never will be


class Text:
    """A model folder's tokenizer. Safe to use from several threads."""

    def __init__(self, folder: Path, ends: Collection[int] = ()) -> None:
        """`ends` are the tokens that end its model's answers: no text, whatever the file calls
        them."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"--model = {folder}: it has no tokenizer.json, which makes text")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # it has no type of its own
            raise ConfigError(f"{path} cannot be read as a tokenizer: {error}") from None
        # Some files keep the lengths to which a training cut and filled its texts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._spelling = Spelling(self._tokenizer)
        self.token_bytes_max = token_bytes_max(json.loads(self._tokenizer.to_str()))
        self.tokens("")  # starts its threads: later there may be none to be had
        added = self._tokenizer.get_added_tokens_decoder()
        self.specials = frozenset(id for id, token in added.items() if token.special).union(ends)

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows; of a model they may be fewer than that has rows for."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def tokens(self, text: str) -> tuple[int, ...]:
        """With what the tokenizer itself puts before a prompt, as `transformers` does it."""
        return self._encoded(text, add_special_tokens=True)

    def template_tokens(self, text: str) -> tuple[int, ...]:
        """Of a text that a chat template made: what stands before a prompt is in it already."""
        return self._encoded(text, add_special_tokens=False)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """As a batch of one: `encode` would keep Python's lock, and the whole process with it, for
        the seconds that a long text takes."""
        told = {"add_special_tokens": add_special_tokens}
        return tuple(self._tokenizer.encode_batch_fast([text], **told)[0].ids)

    def knows(self, token: int) -> bool:
        """A model may have rows for more tokens than these: they are no text."""
        return self._tokenizer.id_to_token(token) is not None

    def decode(self, tokens: Sequence[int]) -> str:
        read = [one for one in tokens if one not in self.specials]
        return str(self._tokenizer.decode(read, skip_special_tokens=True))

    def spelled(self, token: int) -> Spelled:
        """One token as it stands behind others; special ones by their names."""
        if token in self.specials:
            return Spelled(self._tokenizer.id_to_token(token) or "", None)
        utf8 = self._spelling.bytes_of(token)
        return Spelled(utf8.decode(errors="backslashreplace"), utf8)

    def is_whole(self, tokens: Sequence[int]) -> bool:
        """Their bytes are characters, also where some of these are the mark for broken bytes."""
        utf8 = b"".join(self.spelled(one).utf8 or b"" for one in tokens)
        return utf8.decode(errors="ignore").encode() == utf8


class Writing:
    """The text of one answer as it grows behind its prompt, so that both together are one text.

    A token's text depends on the one before (a space, the first bytes of a character), so the
    newest ones are decoded together with those written last, and what is more than these is new.
    """

    def __init__(self, text: Text, prompt: Sequence[int]) -> None:
        self._text = text
        self._window = [one for one in prompt[-HELD_TOKENS_MAX:] if one not in text.specials]
        # It may begin within a character, which breaks all bytes behind it. Where the prompt ends
        # within one nothing is left: what comes of that character is no text by itself. One that
        # ends in the mark for broken bytes as a character of its own is whole, and stays.
        while text.decode(self._window).endswith(BROKEN) and not text.is_whole(self._window):
            del self._window[0]
        self._written = len(self._window)  # tokens of the window whose text was given out

    def add(self, token: int) -> str:
        """What can be read now and could not before; maybe nothing."""
        if token in self._text.specials or not self._text.knows(token):
            return ""
        self._window.append(token)
        held = len(self._window) - self._written
        new = self._new(whole=held <= HELD_TOKENS_MAX)
        if not new and held > HELD_TOKENS_MAX:  # the oldest has no text, whatever comes behind it
            del self._window[self._written]
        return new

    def end(self) -> str:
        """What is left, with a mark where the bytes of a character are missing."""
        return self._new(whole=False)

    def _new(self, *, whole: bool) -> str:
        before = self._text.decode(self._window[: self._written])
        now = self._text.decode(self._window)
        if len(now) <= len(before) or (whole and now.endswith(BROKEN)):
            return ""
        del self._window[: self._written]
        self._written = len(self._window)
        return now[len(before) :]
