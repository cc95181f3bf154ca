"""A namespace: every fact that decides what the bytes of a KV block mean.

Two engines share blocks exactly when their `KVSpec`s have one digest, so a fact left out of the
spec is a fact that may silently differ. The digest is BLAKE3 over the spec's canonical JSON.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from blake3 import blake3

from kvstore.codec import NONE, Coding
from kvstore.errors import Invalid
from kvstore.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_TOKENS_MAX,
    GROUPS_MAX,
    LAYERS_MAX,
    NAME_BYTES_MAX,
    ROPE_FACTS_MAX,
    STRIP_BYTES_MAX,
    STRIPS_MAX,
)

HASH_VERSION = 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1}


class Reuse(enum.StrEnum):
    """What part of a prefix a group needs before the tokens after it can be computed."""

    CHAIN = "chain"  # full attention: every block of the prefix
    WINDOW = "window"  # sliding window: only the last W tokens
    CHECKPOINT = "checkpoint"  # state layers: one exact position


SUPPORTED_REUSE = frozenset({Reuse.CHAIN, Reuse.WINDOW})


# Facts of a group that older specs do not name. Left out where they say nothing, so that a spec
# keeps the text, and the digest, that it had before they were known.
LATER_FACTS = ("window_tokens", "interior")


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that cache alike. `parts` is 2 where K and V are kept, 1 for a single latent (MLA)."""

    layers: tuple[int, ...]  # the model's layer numbers, in slot order
    kv_heads: int
    head_dim: int  # elements of one part of one token and KV head
    block_tokens: int = 64
    parts: int = 2
    reuse: str = Reuse.CHAIN
    window_tokens: int = 0  # of a window group: a token sees itself and so many less one before it
    interior: str = ""  # an engine's own order of bytes within its pages; empty: token by token

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        _within("layers", len(self.layers), 1, LAYERS_MAX)
        _within("kv_heads", self.kv_heads, 1, STRIPS_MAX)
        _within("head_dim", self.head_dim, 1, 65_536)
        _within("block_tokens", self.block_tokens, 1, BLOCK_TOKENS_MAX)
        _within("parts", self.parts, 1, 2)
        _within("layers x kv_heads", len(self.layers) * self.kv_heads, 1, STRIPS_MAX)
        if len(set(self.layers)) != len(self.layers) or min(self.layers) < 0:
            raise Invalid(f"layers {list(self.layers)} must be distinct numbers from 0")
        if self.reuse not in SUPPORTED_REUSE:
            known = ", ".join(sorted(SUPPORTED_REUSE))
            raise Invalid(f"reuse {self.reuse!r} is not supported by this release; use {known}")
        if self.reuse == Reuse.WINDOW:
            _within("window_tokens", self.window_tokens, 1, 2**31)
        elif self.window_tokens:
            raise Invalid(f"window_tokens {self.window_tokens} is for reuse 'window' alone")
        _text("interior", self.interior, 0)


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Every fact that changes the bytes of a block. `digest` names the namespace."""

    model: str
    revision: str  # an immutable revision, else a digest of the weights
    dtype: str  # as the engine resolved it, never "auto"
    groups: tuple[KVGroup, ...]
    rope: Mapping[str, str | int | float] = field(default_factory=dict)
    codec: str = NONE  # how blocks are written: see kvstore.codec
    draft_model: str = ""
    hash_version: int = HASH_VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "rope", dict(sorted(self.rope.items())))
        _text("model", self.model, 1)
        _text("revision", self.revision, 1)
        _text("draft_model", self.draft_model, 0)
        _within("facts in rope", len(self.rope), 0, ROPE_FACTS_MAX)
        for fact, value in self.rope.items():
            _text("a name in rope", fact, 1)
            if isinstance(value, str):
                _text(f"rope.{fact}", value, 0)
            elif type(value) not in (int, float) or not _is_finite(value):
                raise Invalid(f"rope.{fact} must be text or a finite number, not {value!r}")
        if self.dtype not in ITEM_BYTES:
            raise Invalid(f"dtype {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
        _within("groups", len(self.groups), 1, GROUPS_MAX)
        coding = Coding.of(self.codec, self.dtype)
        if self.hash_version != HASH_VERSION:
            raise Invalid(f"hash_version {self.hash_version} is unknown; this is {HASH_VERSION}")
        for index, group in enumerate(self.groups):
            strip = group.block_tokens * self.token_bytes(index)
            if coding is not None:  # more than the engine has where heads are very small
                runs = (group.parts, self.run_bytes(index))
                strip = max(strip, coding.strip_bytes(group.block_tokens, *runs))
            size = len(group.layers) * group.kv_heads * strip
            _within(f"bytes of a strip of groups[{index}]", strip, 1, STRIP_BYTES_MAX)
            _within(f"bytes of a block of groups[{index}]", size, 1, BLOCK_BYTES_MAX)

    @property
    def coding(self) -> Coding | None:
        """How strips are written in slots; None where that is as the engine has them."""
        return Coding.of(self.codec, self.dtype)

    @property
    def stored(self) -> str:
        """What the bytes of a block are: the codec, or the dtype where that is none."""
        return self.dtype if self.codec == NONE else self.codec

    def token_bytes(self, group: int) -> int:
        """Bytes of one token of one KV head of one layer, K and V, at the engine."""
        return self.groups[group].parts * self.run_bytes(group)

    def run_bytes(self, group: int) -> int:
        """Bytes of one part (K, or V) of one token and KV head at the engine."""
        return self.groups[group].head_dim * ITEM_BYTES[self.dtype]

    def canonical(self) -> str:
        """The one JSON text of this spec: keys sorted, no blanks."""
        return _json(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; `of_dict` reads them back."""
        raw = asdict(self)
        raw["groups"] = [{**g, "layers": list(g["layers"])} for g in raw["groups"]]
        for group in raw["groups"]:
            for name in LATER_FACTS:
                if not group[name]:
                    del group[name]
        return raw

    @property
    def digest(self) -> bytes:
        """32 bytes that name the namespace."""
        return blake3(b"moonpool namespace\0" + self.canonical().encode()).digest()

    @classmethod
    def parse(cls, text: str) -> KVSpec:
        """Read a canonical JSON spec; raises `Invalid` naming the field that is wrong."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"the spec is not JSON: {error}") from error
        return cls.of_dict(raw)

    @classmethod
    def of_dict(cls, raw: Any) -> KVSpec:
        values = _checked("spec", raw, cls)
        groups = values["groups"]
        if not isinstance(groups, list):
            raise Invalid("spec.groups must be a list of groups")
        parsed = [
            KVGroup(**_checked(f"spec.groups[{i}]", g, KVGroup)) for i, g in enumerate(groups)
        ]
        return cls(**{**values, "groups": tuple(parsed)})


def difference(stored: KVSpec, given: KVSpec) -> str | None:
    """The first field in which two specs differ, with both values, or None when they agree."""
    for name in ("model", "revision", "dtype", "rope", "codec", "draft_model", "hash_version"):
        a, b = getattr(stored, name), getattr(given, name)
        if _json(a) != _json(b):  # as the digest sees them: 1 and 1.0 are two
            return f"{name} is {a!r} there and {b!r} here"
    if len(stored.groups) != len(given.groups):
        return f"there are {len(stored.groups)} groups there and {len(given.groups)} here"
    for index, (theirs, ours) in enumerate(zip(stored.groups, given.groups, strict=True)):
        for item in fields(KVGroup):
            a, b = getattr(theirs, item.name), getattr(ours, item.name)
            if _json(a) != _json(b):
                return f"groups[{index}].{item.name} is {a!r} there and {b!r} here"
    return None


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float comes near
        return False


def _text(name: str, text: str, low: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{name} is not Unicode text: {error}") from error
    _within(f"bytes of {name}", size, low, NAME_BYTES_MAX)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"{name} must be {low} to {high}, not {value}")


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "tuple[int, ...]": (list,),
    "tuple[KVGroup, ...]": (list,),
    "Mapping[str, str | int | float]": (dict,),
}


def _checked(where: str, raw: Any, kind: type) -> dict[str, Any]:
    """`raw` as keyword arguments of `kind`: every key known and of its type."""
    if not isinstance(raw, dict):
        raise Invalid(f"{where} must be an object, not {type(raw).__name__}")
    known = {item.name: item for item in fields(kind)}
    for name, value in raw.items():
        if name not in known:
            raise Invalid(f"{where}.{name} is unknown; known are {', '.join(known)}")
        kinds = _KINDS[str(known[name].type)]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise Invalid(f"{where}.{name} must be {kinds[0].__name__}, not {value!r}")
        if name == "layers" and not all(type(layer) is int for layer in raw[name]):
            raise Invalid(f"{where}.layers must hold whole numbers, not {value!r}")
    required = {"model", "revision", "dtype", "groups", "layers", "kv_heads", "head_dim"}
    for name in known.keys() & required - raw.keys():
        raise Invalid(f"{where}.{name} is missing")
    return raw
