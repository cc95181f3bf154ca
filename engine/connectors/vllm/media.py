"""Images, sound and videos in requests, each by a digest of what the encoder is given of it.

vLLM calls one by a hash of what was sent, or as its sender does (`multi_modal_uuids`), and keeps
what came of it under that. So one name that stood for two contents is nobody's here: which of them
vLLM computes with is not known.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch

from kvstore.client import Medium

from ..vllm_images import images_of
from .digest import digest
from .keys import Nameless

KNOWN_MAX = 16_384  # names, and what they last stood for

ABSENT = "images, sound or videos that do not come with the request"
TWO = "images, sound or videos of which two have one name"


class Media:
    """Of one engine's requests."""

    def __init__(self, encoder: str, refused: str = "") -> None:
        """`encoder`: what decides what becomes of them, beside the model's name; `refused`: why
        none of them is kept."""
        self._encoder, self._refused = encoder, refused
        # By name, the item that was digested last and its digest; empty where it is nobody's.
        self._known: OrderedDict[str, tuple[Any, bytes]] = OrderedDict()

    @classmethod
    def of_engine(cls, config: Any) -> Media:
        model = config.model_config
        return cls(images_of(model), _refused(config)) if model.multimodal_config else cls("")

    def of(self, features: Iterable[Any]) -> list[Medium]:
        """Those of a request, as vLLM has them. Raises `Nameless`."""
        return [
            Medium(one.mm_position.offset, one.mm_position.length, self._digest(one))
            for one in features
        ]

    def _digest(self, feature: Any) -> bytes:
        if self._refused:
            raise Nameless(self._refused)
        said, name = feature.data, feature.identifier
        known = self._known.get(name)
        if known is None or (known[1] and known[0]() is not said):
            found = self._anew(feature, b"" if known is None else known[1])
            known = (ref(said), found)
        self._known[name] = known
        self._known.move_to_end(name)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        if not known[1]:
            raise Nameless(TWO)
        return known[1]

    def _anew(self, feature: Any, before: bytes) -> bytes:
        """Its digest; empty where its name stood for another before."""
        place = feature.mm_position
        try:
            said = {name: one.data for name, one in feature.data.items()}
            # A request may leave out embeddings that another engine has, and with a cache in shared
            # memory the workers alone have the bytes. What is there then names nothing.
            if _numbers(list(said.values())) < place.length:
                raise Nameless(ABSENT)
            found = digest([self._encoder, feature.modality, place.length, place.is_embed, said])
        except (AttributeError, TypeError, RuntimeError) as error:
            raise Nameless(f"{feature.modality}s that have no digest ({error})") from error
        return found if before in (b"", found) else b""


def _refused(config: Any) -> str:
    """Why an engine's images cannot be named, or nothing."""
    told = config.model_config.multimodal_config
    if config.model_config.is_mm_prefix_lm:
        return "images of a model whose image tokens attend to those behind them"
    if config.ec_transfer_config is not None:
        return "images whose embeddings come from elsewhere (--ec-transfer-config)"
    if told.mm_encoder_attn_dtype == "fp8" and not told.mm_encoder_fp8_scale_path:
        return "images of an encoder whose fp8 scales depend on what came before"
    return ""


def _numbers(values: Sequence[Any]) -> int:
    """How many there are in tensors of pixels, samples or embeddings: not in those of sizes and
    places, which are whole numbers."""
    count = 0
    for one in values:
        if isinstance(one, torch.Tensor):
            told = one.dtype.is_floating_point or one.dtype is torch.uint8
            count += one.numel() if told else 0
        elif isinstance(one, np.ndarray):
            count += math.prod(one.shape) if one.dtype.kind == "f" or one.dtype == np.uint8 else 0
        elif isinstance(one, list | tuple):
            count += _numbers(one)
    return count
