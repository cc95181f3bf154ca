"""What prefills and decode steps cost, and how much KV there is room for, before any was seen.

A roofline: work divided by what the hardware does a second, times the share that engines reach
(`kvstore.core.hardware`). It is there to start fits from and to plan with; it is meant to be right
within a factor of two, and for decode steps of a MoE of two and a half. Symbols: W weights that a
token is multiplied with, L layers, H hidden size, g GPUs, F FLOP/s of one, M bytes a second of its
memory, N of its link, one direction.

Tensor parallelism splits weights over g GPUs and adds two all-reduces a layer. Each passes
2 (g - 1) / g times its data through a GPU's link (ring; Patarasuk and Yuan, 2009, section 3).
"""

from __future__ import annotations

import math

from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.hardware import SEEN, Efficiency, Gpu
from kvstore.core.model_shape import ModelShape
from kvstore.errors import Invalid

ACTIVATION_BYTES = 2  # bf16, whatever weights are stored in
REDUCES_A_LAYER = 2  # after attention and after the MLP
# The batch at which a decode prior, which is linear, meets a step, which is not: reading hides
# multiplying up to some hundred sequences, and those of a MoE share more experts the more they are.
BATCH_MET = 128
GPUS_MAX = 1 << 10


def prefill_prior(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int = 1, efficiency: Efficiency = SEEN
) -> PrefillCost:
    """a: overhead, latency of all-reduces, each weight read once (of a MoE: all of them).
    b: 2 W / (g F) and all-reduces of 2 L H activations. c: FLOPs of attention / (g F).

    Raises `Invalid` for a degree that the model cannot be split by. Whether it fits is not asked.
    """
    _check_split(shape, tensor_parallel)
    flops = tensor_parallel * gpu.flops(shape.parameter_bytes)
    matmul = 2 * shape.layer_parameters / (flops * efficiency.matmul)
    # Keys and values are bf16 when they are multiplied, so the peak is that of bf16.
    pairs = tensor_parallel * gpu.bf16_flops * efficiency.attention
    return PrefillCost(
        a=efficiency.prefill_seconds
        + _reduce_latency(shape, tensor_parallel, efficiency)
        + shape.weight_bytes / _read(gpu, tensor_parallel, efficiency),
        b=matmul + reduced(shape, gpu, tensor_parallel, efficiency),
        c=shape.attention_flops / pairs,
    )


def decode_prior(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int = 1, efficiency: Efficiency = SEEN
) -> DecodeCost:
    """a and b: overhead, all-reduces, and the longer of reading the weights that a batch touches
    / (g M) and multiplying with them, 2 W and the head's FLOPs / (g F), as the chord of that from
    1 to `BATCH_MET` sequences. c: KV of a token / (M times the GPUs that share it).

    Raises `Invalid` for a degree that the model cannot be split by. Whether it fits is not asked.
    """
    _check_split(shape, tensor_parallel)
    read = _read(gpu, tensor_parallel, efficiency)
    weights = shape.layer_parameters + shape.vocabulary * shape.hidden
    flops = tensor_parallel * gpu.flops(shape.parameter_bytes) * efficiency.matmul

    def longer(batch: int) -> float:
        return max(shape.decode_bytes(batch, 0) / read, batch * 2 * weights / flops)

    slope = (longer(BATCH_MET) - longer(1)) / (BATCH_MET - 1)
    shards = shape.kv_shards(tensor_parallel)
    return DecodeCost(
        a=efficiency.decode_seconds
        + _reduce_latency(shape, tensor_parallel, efficiency)
        + max(0.0, longer(1) - slope),
        b=slope + reduced(shape, gpu, tensor_parallel, efficiency),
        c=shape.kv_bytes_per_token / _read(gpu, shards, efficiency),
    )


def weights_read(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int = 1, efficiency: Efficiency = SEEN
) -> tuple[float, float]:
    """Seconds that reading takes of the weights that each step has to do with, and of all routed
    experts, of which it is those that its tokens take."""
    read = _read(gpu, tensor_parallel, efficiency)
    always = shape.decode_bytes(0, 0)
    return always / read, (shape.step_bytes_max - always) / read


def kv_room(
    shape: ModelShape, gpu: Gpu, tensor_parallel: int = 1, efficiency: Efficiency = SEEN
) -> int:
    """Tokens of KV that fit beside the weights: of the memory that engines fill, what the weights
    leave, divided by the bytes of a token on each GPU.

    Raises `Invalid` if there is no room for one, naming how many GPUs would have.
    """
    _check_split(shape, tensor_parallel)
    if room := _room(shape, gpu, tensor_parallel, efficiency):
        return room
    degrees = (g for g in range(1, GPUS_MAX + 1) if _splits(shape, g))
    enough = next((g for g in degrees if _room(shape, gpu, g, efficiency)), None)
    advice = f"take {enough}" if enough else "no number of them would do"
    weights = f"{shape.weight_bytes / 1e9:.1f} GB of weights"
    raise Invalid(f"{shape.name}, {weights}, does not fit {tensor_parallel} x {gpu.name}: {advice}")


def _room(shape: ModelShape, gpu: Gpu, tensor_parallel: int, efficiency: Efficiency) -> int:
    left = gpu.memory_bytes * efficiency.memory_used - shape.weight_bytes / tensor_parallel
    token = shape.kv_bytes_per_token / shape.kv_shards(tensor_parallel)
    return max(0, math.floor(left / token))


def _read(gpu: Gpu, gpus: int, efficiency: Efficiency) -> float:
    """Bytes a second that so many GPUs read of their memory."""
    return gpus * gpu.memory_bytes_per_second * efficiency.memory


def reduced(shape: ModelShape, gpu: Gpu, gpus: int = 1, efficiency: Efficiency = SEEN) -> float:
    """Seconds a token in all-reduces."""
    passed = 2 * (gpus - 1) / gpus * shape.hidden * ACTIVATION_BYTES
    link = gpu.link_bytes_per_second * efficiency.link
    return REDUCES_A_LAYER * shape.layers * passed / link


def _reduce_latency(shape: ModelShape, gpus: int, efficiency: Efficiency) -> float:
    return REDUCES_A_LAYER * shape.layers * efficiency.reduce_seconds if gpus > 1 else 0.0


def _check_split(shape: ModelShape, tensor_parallel: int) -> None:
    if not (1 <= tensor_parallel <= GPUS_MAX and _splits(shape, tensor_parallel)):
        heads = f"{shape.heads} heads and {shape.kv_heads} KV heads"
        right = ", ".join(str(gpus) for gpus in range(1, GPUS_MAX + 1) if _splits(shape, gpus))
        raise Invalid(
            f"tensor_parallel {tensor_parallel} does not divide {shape.name}, which has {heads}:"
            f" take one of {right}"
        )


def _splits(shape: ModelShape, gpus: int) -> bool:
    """Whether each GPU gets as many heads, and each KV head is on one GPU or on as many others."""
    shared = shape.kv_heads % gpus == 0 or gpus % shape.kv_heads == 0
    return shape.heads % gpus == 0 and (shared or shape.latent is not None)
