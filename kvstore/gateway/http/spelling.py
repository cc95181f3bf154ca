"""The bytes that one token stands for in a text, also where these are no whole characters.

A tokenizer decodes such a token to a mark, from which nobody can tell the bytes. What its
vocabulary calls it tells them, in one of two ways: each byte by a letter that can be seen, as GPT-2
does, or one byte by its number, `<0xF0>`. Whichever of them decodes to the same mark is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Tokenizer

BROKEN = "\ufffd"  # stands for bytes that are no character, or not yet
_KEPT = 65_536  # tokens whose bytes are remembered, some 150 bytes each
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _letters() -> Iterator[tuple[str, int]]:
    """Bytes that can be seen in Latin-1 stand for themselves, the others for what follows it."""
    others = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte), byte
        else:
            yield chr(others), byte
            others += 1


_LETTERS = dict(_letters())


@dataclass(frozen=True, slots=True)
class Spelled:
    """One token, as a caller sees it."""

    text: str  # bytes that are no whole characters are written as \\xf0
    utf8: bytes | None  # or the part of it that it is; None: it is no text


class Spelling:
    """Of one tokenizer. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before = self._word()
        self.bytes_of = lru_cache(_KEPT)(self._bytes_of)

    def _bytes_of(self, token: int) -> bytes:
        """Behind another word, so with the space that it may begin with; none where there is no
        such token."""
        before, both = self._decode(*self._before), self._decode(*self._before, token)
        text = both.removeprefix(before) if both.startswith(before) else self._decode(token)
        if BROKEN in text:
            name = self._tokenizer.id_to_token(token) or ""
            for found in (_byte(name), _bytes(name)):
                if found and found.decode(errors="replace") == text:
                    return found
        return text.encode()

    def _word(self) -> tuple[int, ...]:
        """A token that others can stand behind, if there is one: itself a word, and all of it."""
        for token in range(self._tokenizer.get_vocab_size()):
            if _BYTE.fullmatch(self._tokenizer.id_to_token(token) or "") is None:
                text = self._decode(token)
                if text.isalnum() and text.isascii():
                    return (token,)
        return ()

    def _decode(self, *tokens: int) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _byte(name: str) -> bytes:
    found = _BYTE.fullmatch(name)
    return bytes.fromhex(found[1]) if found else b""


def _bytes(name: str) -> bytes:
    return bytes(_LETTERS[one] for one in name) if set(name) <= _LETTERS.keys() else b""
