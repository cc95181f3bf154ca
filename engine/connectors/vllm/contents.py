"""What decides a request's KV beside its tokens, by digests of the content itself, as the keys of
its blocks have it; and which requests have something that cannot be named.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from kvstore.client import adapted, salted, shown, together

from .adapters import Adapters
from .keys import Nameless, left_out
from .media import Media
from .messages import Adapter
from .without_adapter import why_not

# vLLM calls what came of an image under an adapter by the adapter's name, which may get others.
TOWER = "images under LoRA adapters that change their encoder (enable_tower_connector_lora)"


@dataclass(frozen=True, slots=True)
class Content:
    """Of one request."""

    extra: dict[int, bytes] = field(default_factory=dict)  # by block, as `Client.chain` takes it
    adapter: Adapter | None = None
    apart: bool = False  # only this engine names it so


class Contents:
    """Of one engine's requests."""

    def __init__(self, media: Media, plain: str = "") -> None:
        """`plain`: why prompts without an adapter are not kept, if they are not."""
        self.adapters, self.media, self._plain = Adapters(), media, plain
        self._since = ""  # a name of its own for what is computed since it is kept apart

    @classmethod
    def of_engine(cls, config: Any) -> Contents:
        return cls(Media.of_engine(config), why_not(config))

    def of(self, request: Any, block_tokens: int) -> Content:
        """Raises `Nameless` for one that is left out."""
        if why := left_out(request):
            raise Nameless(why)
        adapter = None
        if request.lora_request is None:
            if self._plain:
                raise Nameless(self._plain)
        else:
            adapter = self.adapters.of(request)
            if adapter is None:
                raise Nameless(self.adapters.why_not(request))
            if request.mm_features and self.media.adapted:
                raise Nameless(TOWER)
        media = shown(self.media.of(request.mm_features), block_tokens)
        weights = bytes.fromhex(adapter.weights) if adapter is not None else b""
        salt = salted(self._since + (request.cache_salt or ""))
        return Content(together(salt, adapted(weights), media), adapter, bool(self._since))

    def keep_apart(self) -> None:
        """What is computed from now on is this engine's alone."""
        self._since = secrets.token_hex(16)
