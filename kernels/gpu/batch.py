"""What the programs are told of one call, once nothing in it reaches outside of anything; and each
of them launched with that, some way."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from ..shapes import CODECS, ITEM_BYTES, Geometry, Pages
from ..strips import Blocks
from . import xxh3
from .codec_programs import decode_group, encode_group
from .launch import Launch, group_shape, strip_shape
from .pages import checked, common, on
from .strip_programs import enter_strip, gather_strip, scatter_strip, verify_strip
from .tuned import launch_of

WORD_BYTES = 8
PAIR_BYTES = 2 * WORD_BYTES


class Batch:
    """Strips of a span of some blocks, in words of 8 bytes; engines' steps in `unit` bytes."""

    def __init__(
        self, arena: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
        block_table: NDArray[np.integer], span: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        payloads, tables, tokens, starts = checked(
            arena, geometry, blocks, pages, block_table, span
        )
        coding, self.coded = geometry.coding, geometry.coding is not None
        unit = ITEM_BYTES[coding.item] if coding else WORD_BYTES
        slots = _slots(arena, geometry, payloads, tables)
        steps = (pages.page_stride, pages.head_stride, pages.token_stride, pages.part_stride)
        multiple = common([*steps, geometry.run_bytes, *pages.layer_addresses.tolist()], PAIR_BYTES)
        if multiple < unit:
            what = coding.item if coding else "8 bytes"
            raise ValueError(f"the pages' strides, runs and addresses are not multiples of {what}")
        self._paired = slots == PAIR_BYTES and bool(coding or multiple == PAIR_BYTES)
        sizes = _sizes(geometry, tokens)
        if len(sizes) and sizes.min() < xxh3.BYTES_MIN:
            least = f"here it must have {xxh3.BYTES_MIN} at least"
            raise ValueError(f"a strip has {sizes.min()} bytes; {least}")
        words = [one // WORD_BYTES for one in (payloads, tables, sizes)]
        described = np.stack([words[0], tokens, starts, words[1], words[2]])
        self._device, self._count = arena.device, len(tokens)
        self._groups = -(-geometry.block_tokens // geometry.group_tokens) if coding else 1
        self._each = span[1] * span[3]
        self.strips = self._count * self._each
        self._arena, self._memory = arena, arena.view(torch.int64)
        self._secret = xxh3.keys(self._device)
        layers, table, self._blocks = on(self._device, block_table, pages, described)
        self._pages = layers, table
        strip_words = geometry.strip_stride // WORD_BYTES
        self._sizes = (self._count, strip_words, geometry.kv_heads, *span)
        self._steps = tuple(step // unit for step in steps)
        run = geometry.run_bytes // unit
        self._form: dict[str, Any] = {
            "PAGE_TOKENS": pages.page_tokens,
            "PARTS": geometry.parts,
            "RUN": run,
        }
        self._strip_shape = strip_shape(geometry.strip_stride)
        if coding:
            group, items = coding.group_tokens, triton.next_power_of_2(run)
            self._codec: dict[str, Any] = {
                "GROUP": group,
                "TOKENS": triton.next_power_of_2(group),
                "ITEMS": items,
                "FP8": coding.codec == CODECS[1],
                "ITEM": list(ITEM_BYTES).index(coding.item),
                "PAIRED": multiple == PAIR_BYTES,
                # What rounds is one operation of IEEE 754: nothing may be fused.
                "enable_fp_fusion": False,
            }
            self._group_shape = group_shape(coding.codec, unit, group * items)

    @cached_property
    def good(self) -> torch.Tensor:
        """(strips,): what `scatter_strip` and `verify_strip` say of each."""
        return torch.empty(self.strips, dtype=torch.bool, device=self._device)

    @property
    def good_blocks(self) -> torch.Tensor:
        return self.good.reshape(self._count, self._each).all(dim=1)

    def shape(self, program: str) -> str:
        """By which that program's launch is looked up."""
        return self._group_shape if program.endswith("_group") else self._strip_shape

    def launch(self, program: str) -> Launch:
        """The one for this device and these strips."""
        return launch_of(self._device, program, self.shape(program))

    def gather_strip(self, launch: Launch) -> None:
        gather_strip[(self.strips,)](
            self._memory, *self._pages, self._blocks, self._secret, *self._sizes, *self._steps,
            **self._form, **self._turns(launch),
        )  # fmt: skip

    def scatter_strip(self, launch: Launch) -> None:
        scatter_strip[(self.strips,)](
            self._memory, *self._pages, self._blocks, self._secret, self.good, *self._sizes,
            *self._steps, **self._form, **self._turns(launch),
        )  # fmt: skip

    def verify_strip(self, launch: Launch) -> None:
        verify_strip[(self.strips,)](
            self._memory, self._blocks, self._secret, self.good, *self._sizes,
            **self._turns(launch),
        )  # fmt: skip

    def enter_strip(self, launch: Launch) -> None:
        enter_strip[(self.strips,)](
            self._memory, self._blocks, self._secret, *self._sizes,
            **self._turns(launch),
        )  # fmt: skip

    def _turns(self, launch: Launch) -> dict[str, Any]:
        """How a program goes through its strip."""
        return {
            "BLOCK": launch.block,
            "PAIRED": self._paired,
            "STAGES": launch.stages,
            **launch.how,
        }

    def encode_group(self, launch: Launch) -> None:
        encode_group[(self.strips * self._groups,)](
            self._arena, *self._pages, self._blocks, self._groups, *self._sizes, *self._steps,
            **self._form, **self._codec, **launch.how,
        )  # fmt: skip

    def decode_group(self, launch: Launch) -> None:
        """Of strips that are `good`."""
        decode_group[(self.strips * self._groups,)](
            self._arena, *self._pages, self._blocks, self.good, self._groups, *self._sizes,
            *self._steps, **self._form, **self._codec, **launch.how,
        )  # fmt: skip


def _sizes(geometry: Geometry, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of each block's strips; most blocks have as many tokens as others."""
    sizes = np.full(len(tokens), geometry.strip_stride, np.int64)
    if not len(tokens) or tokens.min() == geometry.block_tokens:  # of which none has more
        return sizes
    for short in np.flatnonzero(tokens != geometry.block_tokens).tolist():
        sizes[short] = geometry.strip_bytes(int(tokens[short]))
    return sizes


def _slots(
    arena: torch.Tensor, geometry: Geometry,
    payloads: NDArray[np.int64], tables: NDArray[np.int64],
) -> int:  # fmt: skip
    """The largest power of two, up to a pair of words, that all strips in slots begin at multiples
    of. Raises `ValueError` unless it is a word, and so of the tables."""
    room = arena.numel() - 8 * geometry.strips
    if len(tables) and not 0 <= tables.min() <= tables.max() <= room:
        raise ValueError(f"table_offsets reach outside the arena's {arena.numel()} bytes")
    each = [arena.data_ptr(), geometry.strip_stride, *payloads.tolist()]
    multiple = common(each, PAIR_BYTES)
    if common([multiple, arena.numel(), *tables.tolist()], WORD_BYTES) < WORD_BYTES:
        raise ValueError("payloads, tables and strips in the arena must be at multiples of 8 bytes")
    return multiple
