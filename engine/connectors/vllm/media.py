"""Images, sound and videos in requests, each by a digest of what the encoder is given of it.

vLLM calls one by a hash of what was sent, or as its sender does (`multi_modal_uuids`), and keeps
what came of it under that. So one name that stood for two contents, or for one that is not known,
is nobody's here: which of them vLLM computes with is not known.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
import torch

from kvstore.client import Medium

from ..vllm_images import images_of
from .digest import digest
from .keys import Nameless

KNOWN_MAX = 16_384  # names, and what they stand for

ABSENT = "images, sound or videos that do not come with the request"
TWO = "images, sound or videos of which two have one name"


class _Known(NamedTuple):
    """What a name stands for."""

    item: Any  # vLLM's, if that is still there
    digest: bytes  # empty: it is nobody's
    why: str = ""

    def is_of(self, item: Any) -> bool:
        return item is not None and self.item() is item


class Media:
    """Of one engine's requests."""

    def __init__(self, encoder: str, refused: str = "", *, adapted: bool = False) -> None:
        """`encoder`: what decides what becomes of them, beside the model's name; `refused`: why
        none of them is kept; `adapted`: LoRA adapters may change the encoder."""
        self._encoder, self._refused, self.adapted = encoder, refused, adapted
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the last seen last

    @classmethod
    def of_engine(cls, config: Any) -> Media:
        model, lora = config.model_config, config.lora_config
        if model.multimodal_config is None:
            return cls("")
        try:
            adapted = lora is not None and lora.enable_tower_connector_lora
            return cls(images_of(model), _refused(config), adapted=adapted)
        except AttributeError as error:  # of a later vLLM, whose prompts of text need none of this
            return cls("", f"images of a vLLM whose configuration has no {error.name}")

    def seen(self, features: Iterable[Any]) -> set[str]:
        """Those of a request that comes, whatever becomes of it; which names are nobody's since."""
        lost = set[str]()
        for one in () if self._refused else features:
            known = self._known.get(one.identifier)
            if known is None or (
                known.digest and (one.data is None or known.item() is not one.data)
            ):
                found = self._anew(one)
                if known is not None and known.digest != found.digest:
                    found = _Known(None, b"", TWO)
                    lost.add(one.identifier)
                known = found
            self._known[one.identifier] = known
            self._known.move_to_end(one.identifier)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return lost

    def of(self, features: Iterable[Any]) -> list[Medium]:
        """Those of a request whose were seen. Raises `Nameless`."""
        found = list[Medium]()
        for one in features:
            known = self._known.get(one.identifier, _Known(None, b"", self._refused or ABSENT))
            if not known.digest:
                raise Nameless(known.why)
            found.append(Medium(one.mm_position.offset, one.mm_position.length, known.digest))
        return found

    def _anew(self, feature: Any) -> _Known:
        place = feature.mm_position
        try:
            said = {name: one.data for name, one in feature.data.items()}
            # A request may leave out embeddings that another engine has, and with a cache in shared
            # memory the workers alone have the bytes. What is there then names nothing.
            if _numbers(list(said.values())) < place.length:
                return _Known(None, b"", ABSENT)
            found = digest([self._encoder, feature.modality, place.length, place.is_embed, said])
            return _Known(ref(feature.data), found)
        except (AttributeError, TypeError, RuntimeError) as error:
            return _Known(None, b"", f"{feature.modality}s that have no digest ({error})")


def _refused(config: Any) -> str:
    """Why an engine's images cannot be named, or nothing."""
    model, told = config.model_config, config.model_config.multimodal_config
    if model.is_mm_prefix_lm:
        return "images of a model whose image tokens attend to those behind them"
    if told.is_multimodal_pruning_enabled() and model.uses_mrope:
        # vLLM learns where what is behind a video stands as it encodes that: not after a hit.
        return "videos that are pruned (--video-pruning-rate), which decide where the rest stands"
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
