"""Fields of a body, checked one by one: whatever would change an answer and is not done is refused
by its name, and so is what is not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.errors import Invalid
from kvstore.gateway.http.refusal import BadField, UnknownModel
from kvstore.gateway.sampling import Sampling
from kvstore.limits import SERVE_CHOICES_MAX, SERVE_STOP_CHARACTERS_MAX, SERVE_STOPS_MAX

# Which make an answer another than that of the likeliest tokens, by what they may be.
_DRAWN = {"temperature": (0, 2), "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2)}
_SEED_MAX = 2**63 - 1
COMMON = frozenset(
    {"model", "n", "stop", "stream", "stream_options", "ignore_eos", "top_p", "seed", *_DRAWN}
)
# Of which one value alone is served: what that is, and what to write.
ONLY: dict[str, tuple[Any, str]] = {"logit_bias": ({}, "{}")}
NO_MATTER = frozenset({"user", "metadata"})


@dataclass(frozen=True, slots=True)
class Fields:
    """Those of one kind of call."""

    read: frozenset[str]
    only: Mapping[str, tuple[Any, str]]
    no_matter: frozenset[str]

    def check(self, found: Mapping[str, Any]) -> None:
        """Raises `BadField`. None is always right: as if it were not there."""
        for name, value in found.items():
            if name in self.read or name in self.no_matter or value is None:
                continue
            if name not in self.only:
                raise BadField(name[:64], f"{shown(name)} is not known here: leave it away")
            served, text = self.only[name]
            if isinstance(value, bool) != isinstance(served, bool) or value != served:
                raise BadField(name, f"{name} = {shown(value)} is not served: write {text}")


def object_of(body: bytes) -> dict[str, Any]:
    """Raises `Invalid`."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Invalid("the body is no JSON: send one object, as application/json") from None
    if not isinstance(found, dict):
        raise Invalid("the body is no JSON object: send {...}")
    return found


def model_of(found: Mapping[str, Any], models: Sequence[str]) -> str:
    """Raises `BadField` unless it is asked for one of those that are served."""
    named = found.get("model")
    if not isinstance(named, str):
        raise BadField("model", f"model: write the name of one, as in {models[0]!r}")
    if named not in models:
        served = ", ".join(map(repr, models[:8])) + (" and others" if len(models) > 8 else "")
        verb = "is" if len(models) == 1 else "are"
        raise UnknownModel("model", f"model {shown(named)} is not served here: {served} {verb}")
    return named


def text_of(name: str, value: Any) -> str:
    """Raises `BadField`."""
    if not isinstance(value, str):
        raise BadField(name, f"{name}: {shown(value)} is no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadField(name, f"{name}: it has half of a surrogate pair in it") from None
    return value


def tokens_of(found: Mapping[str, Any], name: str) -> int | None:
    """How many are wanted, at most; None where it is not said. Raises `BadField`."""
    value = found.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise BadField(name, f"{name} = {shown(value)}: write a whole number from 1")
    return value


def count_of(found: Mapping[str, Any], name: str, most: int) -> int | None:
    """None where it is not said. Raises `BadField`."""
    value = found.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= most):
        raise BadField(name, f"{name} = {shown(value)}: write a whole number from 0 to {most}")
    return value


def sampling_of(found: Mapping[str, Any]) -> Sampling | None:
    """How tokens are drawn; None where the likeliest are wanted, also where a call does not say:
    then `top_p` and `seed` make no difference. Raises `BadField`."""
    drawn = {name: _number(found, name, *bounds) or 0.0 for name, bounds in _DRAWN.items()}
    if not any(drawn.values()):
        return None
    seed, top_p = found.get("seed"), _number(found, "top_p", 0, 1)
    if top_p == 0:
        raise BadField("top_p", "top_p = 0: write a number above 0, up to 1")
    if seed is not None and (type(seed) is not int or not -_SEED_MAX <= seed <= _SEED_MAX):
        raise BadField("seed", f"seed = {shown(seed)}: write a whole number of 64 bits")
    if choices_of(found) > 1:
        raise BadField("n", "n: write 1 where temperature is not 0, and call as often as you like")
    return Sampling(top_p=1.0 if top_p is None else top_p, seed=seed, **drawn)


def _number(found: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most:  # so for NaN
        raise BadField(name, f"{name} = {shown(value)}: write a number from {least} to {most}")
    return float(value)


def choices_of(found: Mapping[str, Any]) -> int:
    """How many answers to each prompt. Raises `BadField`."""
    value = found.get("n")
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= SERVE_CHOICES_MAX:
        raise BadField("n", f"n = {shown(value)}: write a number from 1 to {SERVE_CHOICES_MAX}")
    return value


def stops_of(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts at which an answer ends. Raises `BadField`."""
    value = found.get("stop")
    if value is None:
        return ()
    texts = value if isinstance(value, list) else [value]
    if len(texts) > SERVE_STOPS_MAX:
        raise BadField("stop", f"stop: {len(texts)} texts; send {SERVE_STOPS_MAX} at most")
    for one in texts:
        if not 0 < len(text_of("stop", one)) <= SERVE_STOP_CHARACTERS_MAX:
            raise BadField(
                "stop", f"stop: a text has from 1 to {SERVE_STOP_CHARACTERS_MAX} characters"
            )
    return tuple(texts)


def include_usage(found: Mapping[str, Any], stream: bool) -> bool:
    """Whether a stream is to end with what it took. Raises `BadField`."""
    options = found.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise BadField("stream_options", "stream_options: is for stream = true")
    if not isinstance(options, dict) or set(options) - {"include_usage"}:
        raise BadField("stream_options", 'stream_options: write {"include_usage": true}')
    return flag(options, "include_usage")


def flag(found: Mapping[str, Any], name: str) -> bool:
    """False where it is not said. Raises `BadField`."""
    value = found.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadField(name, f"{name} = {shown(value)}: write true or false")
    return value


def shown(value: Any) -> str:
    """What was sent, in no more than a few words."""
    text = repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
    return text if len(text) <= 64 else f"{text[:64]}..."
