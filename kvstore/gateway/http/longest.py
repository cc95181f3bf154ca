"""How many bytes of a text one token stands for at most, where that is certain.

It is where no byte is lost on the way: the text is taken as it is, cut into pieces that are all
kept, and each of its bytes is a letter that the vocabulary has, as with GPT-2 and Llama 3. Others
leave spaces away, compose characters, or make one token of all that they do not know: of those a
long text may be few tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import pre_tokenizers

_LETTERS = frozenset(pre_tokenizers.ByteLevel.alphabet())


def token_bytes_max(said: Mapping[str, Any]) -> int | None:
    """Of a tokenizer, by what its file says; None where there is no telling."""
    model, added = said["model"], said["added_tokens"]
    if said["normalizer"] is not None or not _keeps_all(said["pre_tokenizer"]):
        return None
    if model["type"] != "BPE" or not _LETTERS.issubset(model["vocab"]):
        return None
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    if any(one["lstrip"] or one["rstrip"] for one in added):  # it takes all spaces beside it along
        return None
    return max(max(map(len, model["vocab"])), *(len(one["content"].encode()) for one in added), 1)


def _keeps_all(cuts: Mapping[str, Any] | None) -> bool:
    """Whether its pieces have all of a text, each byte as a letter."""
    each = [] if cuts is None else cuts.get("pretokenizers", [cuts])
    *before, last = each or [{"type": ""}]
    return last["type"] == "ByteLevel" and all(
        one["type"] == "Split" and one["behavior"] != "Removed" for one in before
    )
