"""What a gateway knows of the model that it serves, all of it read from the model's folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.client import weights_digest
from kvstore.config import GatewayConfig
from kvstore.errors import ConfigError
from kvstore.gateway.http.asked import Asked, Prompt
from kvstore.gateway.http.fields import shown
from kvstore.gateway.http.model import Model
from kvstore.gateway.http.refusal import BadField, TooLong
from kvstore.gateway.http.template import Conversation, Template
from kvstore.gateway.http.text import Text


@dataclass(frozen=True, slots=True)
class Served:
    """One model. `prompts` is safe to call from several threads."""

    name: str
    adapters: tuple[str, ...]  # of it, by the names of vLLM's servers for them
    revision: str  # of its weights, as engines name them
    text: Text
    template: Template
    eos: frozenset[int]
    positions: int  # tokens of a prompt and its answer, at most
    answer_tokens: int  # of an answer for which nobody names a length, at most
    vocabulary: int
    created: int  # seconds since 1970: when the gateway started

    @classmethod
    def of(cls, config: GatewayConfig) -> Served:
        """Reads every byte of the weights once, whose digest names them, unless it is told."""
        found = Model.of(config.model)
        positions = config.max_model_len or found.positions
        if positions is None:
            raise ConfigError(
                f"{config.model}/config.json does not say how many positions the model has: say "
                "how many tokens of prompt and answer the servers take, with --max-model-len"
            )
        text = Text(config.model, found.eos)
        return cls(
            name=config.served_name,
            adapters=config.adapters,
            revision=config.revision or f"blake3:{weights_digest(config.model)}",
            text=text,
            template=Template(config.model),
            eos=found.eos,
            positions=positions,
            answer_tokens=config.answer_tokens or positions,
            vocabulary=found.vocabulary or text.vocabulary,
            created=int(time.time()),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """By which callers ask, the model's first."""
        return self.name, *self.adapters

    def prompts(self, wanted: Asked) -> tuple[tuple[int, ...], ...]:
        """The tokens of each. Raises `BadField` for one that the model cannot go on with."""
        return tuple(self._prompt(one, wanted) for one in wanted.prompts)

    def new_tokens(self, prompt: Sequence[int], wanted: Asked) -> int:
        """How many may come behind a prompt."""
        if wanted.max_tokens is not None:
            return wanted.max_tokens
        unsaid = wanted.tokens_unsaid or self.answer_tokens
        return min(self.positions - len(prompt), self.answer_tokens, unsaid)

    def _prompt(self, prompt: Prompt, wanted: Asked) -> tuple[int, ...]:
        if isinstance(prompt, str):
            self._check_bytes("prompt", prompt)
            return self._checked("prompt", self.text.tokens(prompt), wanted)
        if isinstance(prompt, Conversation):
            text = self.template.text(prompt)
            self._check_bytes("messages", text)
            return self._checked("messages", self.text.template_tokens(text), wanted)
        return self._checked("prompt", prompt, wanted)

    def _check_bytes(self, field: str, text: str) -> None:
        """Raises `TooLong`, without the time that making tokens takes, where they are too many
        whatever they are."""
        each, size = self.text.token_bytes_max, len(text.encode())
        if each is not None and size > each * self.positions:
            raise TooLong(
                field,
                f"{size} bytes of text in tokens of {each} bytes at most: the model has "
                f"positions for {self.positions} in all",
            )

    def _checked(self, field: str, tokens: tuple[int, ...], wanted: Asked) -> tuple[int, ...]:
        if not tokens:
            raise BadField(field, f"{field}: it has no tokens")
        if len(tokens) + (wanted.max_tokens or 1) > self.positions:
            most = shown(wanted.max_tokens)
            said = "" if wanted.max_tokens is None else f" and {wanted.limit} = {most}"
            raise TooLong(
                field if len(tokens) >= self.positions else wanted.limit,
                f"{len(tokens)} tokens of prompt{said}: the model has "
                f"positions for {self.positions} in all",
            )
        if not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            raise BadField(field, f"{field}: token ids are 0 to {self.vocabulary - 1}")
        return tokens
