"""How /v1/chat/completions says what it asks for, checked field by field: messages of text. Tools,
images and sound are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.gateway.http import fields
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.refusal import BadField
from kvstore.gateway.http.template import Conversation, Message
from kvstore.limits import SERVE_MESSAGES_MAX, TOP_LOGPROBS_MAX

# What templates know by an older name.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LIMITS = ("max_completion_tokens", "max_tokens")  # the newer one first

FIELDS = fields.Fields(
    read=fields.COMMON | {"messages", "logprobs", "top_logprobs", *_LIMITS},
    only=fields.ONLY
    | {
        "response_format": ({"type": "text"}, '{"type": "text"}'),
        "tools": ([], "null"),
    },
    no_matter=fields.NO_MATTER | {"store", "service_tier", "prompt_cache_key", "safety_identifier"},
)


def asked_chat(body: bytes, models: Sequence[str]) -> Asked:
    """Raises as `asked` does."""
    found = fields.object_of(body)
    model = fields.model_of(found, models)
    FIELDS.check(found)
    stream = fields.flag(found, "stream")
    limit, max_tokens = _max_tokens(found)
    return Asked(
        model=model,
        prompts=(_conversation(found.get("messages")),),
        max_tokens=max_tokens,
        limit=limit,
        stream=stream,
        include_usage=fields.include_usage(found, stream),
        ignore_eos=fields.flag(found, "ignore_eos"),
        stops=fields.stops_of(found),
        choices=fields.choices_of(found),
        sampling=fields.sampling_of(found),
        logprobs=_logprobs(found),
    )


def _max_tokens(found: Mapping[str, Any]) -> tuple[str, int | None]:
    """By which of its names, too."""
    said = {name: count for name in _LIMITS if (count := fields.tokens_of(found, name))}
    if len(set(said.values())) > 1:
        raise BadField(_LIMITS[1], f"{' and '.join(_LIMITS)} say two things: write one of them")
    return next(iter(said.items()), (_LIMITS[1], None))


def _logprobs(found: Mapping[str, Any]) -> int | None:
    top = fields.count_of(found, "top_logprobs", TOP_LOGPROBS_MAX) or 0
    if fields.flag(found, "logprobs"):
        return top
    if top:
        raise BadField("top_logprobs", "top_logprobs: is for logprobs = true")
    return None


def _conversation(value: Any) -> Conversation:
    if not isinstance(value, list) or not value:
        raise BadField("messages", 'messages: write a list, as in [{"role": "user", ...}]')
    if len(value) > SERVE_MESSAGES_MAX:
        raise BadField("messages", f"messages: {len(value)}; send {SERVE_MESSAGES_MAX} at most")
    each = (_message(f"messages[{number}]", one) for number, one in enumerate(value))
    return Conversation(tuple(each))


def _message(where: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise BadField("messages", f'{where}: write {{"role": ..., "content": ...}}')
    for name, other in value.items():
        if name not in ("role", "content") and other is not None:
            text = f"{where}.{name[:64]} is not served: a role and a content are"
            raise BadField("messages", text)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadField(
            "messages", f"{where}.role = {fields.shown(role)}: is one of {', '.join(_ROLES)}"
        )
    return Message(_ROLES[role], _content(f"{where}.content", value.get("content")))


def _content(where: str, value: Any) -> str:
    """A text, or parts that are texts, of which each is a line of its own."""
    if not isinstance(value, list):
        return _text(where, value)
    parts = []
    for number, part in enumerate(value):
        if not isinstance(part, dict) or set(part) != {"type", "text"} or part["type"] != "text":
            wanted = '{"type": "text", "text": ...}: text alone is served'
            raise BadField("messages", f"{where}[{number}]: write {wanted}")
        parts.append(_text(f"{where}[{number}].text", part["text"]))
    return "\n".join(parts)


def _text(where: str, value: Any) -> str:
    try:
        return fields.text_of(where, value)
    except BadField as wrong:
        raise BadField("messages", str(wrong)) from None
