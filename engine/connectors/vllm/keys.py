"""What a request says of itself: why it is left out, if it is, and what it tells this connector.

A request that is left out is neither matched nor published: vLLM serves it as without a connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstore.client import NAME_BYTES_MAX


class Nameless(Exception):
    """A request whose KV has no name. It says why; nothing where it may have one soon."""


def left_out(request: Any) -> str:
    """Why a vLLM request is kept out of the pool by what it is, or nothing."""
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return "prompt embeddings"
    if request.resumable:
        return "streaming input"
    return ""


def said_of(request: Any) -> Mapping[str, Any]:
    """What its sender tells this connector: whatever that is, it may not stop vLLM."""
    said = (request.kv_transfer_params or {}).get("moonpool")
    return said if isinstance(said, Mapping) else {}


def hand_off_of(request: Any) -> str:
    """The name by which others follow this prefill; nothing where none do."""
    name = str(said_of(request).get("hand_off") or "")
    return name if is_name(name) else ""


def is_name(text: str) -> bool:
    """Whether a node takes it for the name of a writer group, or of a node."""
    try:
        return len(text.encode()) <= NAME_BYTES_MAX and "\0" not in text
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may have
        return False
