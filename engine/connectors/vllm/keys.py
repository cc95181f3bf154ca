"""Which content beside its tokens decides a request's KV, and which requests are left out.

A request that is left out is neither matched nor published: vLLM serves it as without a connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstore.client import NAME_BYTES_MAX, salted


def left_out(request: Any) -> str:
    """Why a vLLM request is kept out of the pool, or nothing."""
    if request.lora_request is not None:
        return "LoRA"
    if request.mm_features:
        return "multimodal input"
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return "prompt embeddings"
    if request.resumable:
        return "streaming input"
    return ""


def extra_of(request: Any, since: str) -> dict[int, bytes]:
    """Digests of content by block, as `Client.chain` takes them. `since` names the weights of
    an engine that is kept apart, as since vLLM's caches were reset; else it is empty."""
    return salted(since + (request.cache_salt or ""))


def said_of(request: Any) -> Mapping[str, Any]:
    """What its sender tells this connector: whatever that is, it may not stop vLLM."""
    said = (request.kv_transfer_params or {}).get("moonpool")
    return said if isinstance(said, Mapping) else {}


def is_name(text: str) -> bool:
    """Whether a node takes it for the name of a writer group, or of a node."""
    try:
        return len(text.encode()) <= NAME_BYTES_MAX and "\0" not in text
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may have
        return False
