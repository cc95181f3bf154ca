"""What a server was told that changes its KV, beside which weights it has.

It is part of the namespace where it can be named, and refused where it cannot: what is in a file
that nothing names, weights that come from another process, keys that depend on who else is in the
batch (rope.py). Which kernels compute is among it where weights have few bits (kernels.py), and who
stores KV where that has: else they differ by rounding alone. Where experts are is not, for all
copies of one are alike.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP
from sglang.srt.runtime_context import (
    attention_backends,
    get_exec,
    get_lora,
    get_mm,
    get_model,
    get_observability,
    get_serving,
    process_model_config,
)
from sglang.srt.utils.hf_transformers_utils import resolve_image_processor_backend
from sglang.version import __version__

from kvstore.client import processors_digest

from .. import plugins
from ..unsupported import Unsupported
from .kernels import kernels
from .rope import code_of, unsteady

# Settings that change KV, by the part of SGLang's configuration they are in.
_MODEL = (
    *("quantization", "modelopt_quant", "quantize_and_serve", "rl_quant_profile"),
    *("kv_cache_dtype", "json_model_override_args", "model_config_parser"),
)
# What is exchanged between ranks and experts, or put into them, in fewer bits.
_EXPERTS = (
    *("flashinfer_mxfp4_moe_precision", "deepep_dispatcher_output_dtype"),
    *("flashinfer_a2a_dispatch_type", "enable_w4a4_mxfp4_megamoe"),
    "enforce_shared_experts_fusion",
)
# Of the environment: what is quantized, and how; what is left out; whose code computes; what
# becomes of images and videos; what is spoiled, to see whether it is noticed.
_ENVIRONMENT = (
    *("SGLANG_INT4_WEIGHT", "SGLANG_CPU_QUANTIZATION", "SGLANG_QUANT_ALLOW_DOWNCASTING"),
    *("SGLANG_FP8_IGNORED_LAYERS", "SGLANG_FP4_IGNORED_LAYERS", "SGLANG_TRITON_FP8_PREFILL_ATTN"),
    *("SGLANG_HUMMING_ONLINE_QUANT_CONFIG", "SGLANG_HUMMING_INPUT_QUANT_CONFIG"),
    *("SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN", "SGLANG_MOE_NVFP4_DISPATCH"),
    *("SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", "SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION"),
    *("FLASHINFER_NVFP4_4OVER6", "FLASHINFER_NVFP4_4OVER6_E4M3_USE_256"),
    *("SGLANG_DSV4_FP4_EXPERTS", "SGLANG_DSV4_FP4_DEQUANT"),
    *("SGLANG_FORCE_MXFP8_BLOCK_CONVERT_DENSE", "SGLANG_NPU_ARCH35_REQUANT_BLOCK_FP8"),
    *("SGLANG_ROCM_DISABLE_LINEARQUANT", "SGLANG_GFX1250_W4A8_BACKEND"),
    *("SGLANG_AMD_FLYDSL_MEGA_QUANT", "SGLANG_ENABLE_DP_GATHER_FP8"),
    *("SGLANG_MORI_DISPATCH_DTYPE", "SGLANG_MORI_COMBINE_DTYPE"),
    *("SGLANG_FLASHINFER_MEGAMOE_COMBINE_DTYPE", "DEEP_NORMAL_MODE_USE_INT8_QUANT"),
    *("SGLANG_DEEPEP_BF16_DISPATCH", "SGLANG_NIXL_EP_BF16_DISPATCH", "SGLANG_FORCE_FP8_MARLIN"),
    *("SGLANG_USE_AITER_FP8_PER_TOKEN", "SGLANG_OPT_HOPPER_BLOCK_FP8_BF16"),
    "SGLANG_USE_DEEPGEMM_BMM",
    *("SGLANG_AITER_FP8_PREFILL_ATTN", "SGLANG_GFX1250_W4A8_MOE", "AITER_FORCE_A8W4"),
    *("AITER_SITUV2_A8W4", "AITER_SITUV2_A4W4"),
    *("ROCM_QUICK_REDUCE_QUANTIZATION", "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16"),
    "SGLANG_SKIP_SOFTMAX_PREFILL_THRESHOLD_SCALE_FACTOR",
    "SGLANG_SKIP_SOFTMAX_DECODE_THRESHOLD_SCALE_FACTOR",
    *("SGLANG_MINICPM_FORCE_DENSE", "SGLANG_MINICPM_DENSE_AS_SPARSE"),
    *("SGLANG_SIMULATE_UNIFORM_EXPERTS", "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS"),
    *("SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"),
    *("SGLANG_IMAGE_MAX_PIXELS", "SGLANG_RESIZE_RESAMPLE", "VIDEO_MAX_PIXELS"),
    *("SGLANG_KV_CANARY_PERTURB_REQ_TO_TOKEN_PROB", "SGLANG_KV_CANARY_PERTURB_REAL_KV_USED_PROB"),
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_UNUSED_CACHE_PROB",
    "SGLANG_KV_CANARY_PERTURB_REAL_KV_POST_FORWARD_PROB",
    "SGLANG_KV_CANARY_PERTURB_NEXT_TOKEN_SWAP_PROB",
)
# Settings that name a file beside the model, whose contents change KV and are named by nothing.
_FILES = (
    "quantization_param_path",
    "modelopt_checkpoint_restore_path",
    "decrypted_config_file",
)
_NOTHING = (None, "auto", "default", "", "{}", False)
_ADAPTER = "qlora_adapter_name_or_path"  # of bitsandbytes, merged into the weights


def told() -> dict[str, str]:
    """What of the server's settings is to be named. Raises `Unsupported` for what cannot be."""
    model, lora, how = published(get_model), published(get_lora), published(get_exec)
    if lora and (lora.enable_lora or lora.lora_paths):
        raise Unsupported("LoRA: SGLang's page hashes name an adapter, not its weights")
    version = {"sglang": __version__}  # its code of models, and in what order a token's bytes lie
    if model is None:
        return version
    loading = _loading(model)
    files = {name: getattr(model, name) for name in _FILES} | {_ADAPTER: loading.get(_ADAPTER)}
    if how:
        files["kt_weight_path"] = how.moe.kt_weight_path
    for name, path in files.items():
        if path:
            raise Unsupported(f"{name}: what changes KV is in a file that nothing names")
    config = process_model_config()
    if why := unsteady(config):
        raise Unsupported(why)
    said = version | {name: getattr(model, name) for name in _MODEL} | {"code": code_of(config)}
    if said["kv_cache_dtype"] not in _NOTHING:  # else the pool's own dtype says it
        said["dtype"] = model.dtype
    said["pattern"] = loading.get("pattern")  # of a sharded state, which may be one of several
    said["plugins"] = _plugins() or None
    if images := published(get_mm):
        said |= _of_images(images)
    if config.is_multimodal:
        said["processors"] = _processors(model, published(get_serving))
    if how:
        said |= _of_how(how)
        said["kernels"] = kernels(model, config, how) or None
    if seen := published(get_observability):
        said["forward_hooks"] = seen.forward_hooks  # they may change what they see
    said["pages"] = _order_of_pages()
    changed = {name: os.environ[name] for name in _ENVIRONMENT if os.environ.get(name)}
    said["environment"] = json.dumps(changed) if changed else None
    return {name: short(_text(value)) for name, value in said.items() if value not in _NOTHING}


def scaled() -> dict[str, str]:
    """What of a server decides how KV is put into eight bits: which fp8 AMD's GPUs have, whatever
    they are told, and who stores it, for not everybody applies a checkpoint's scales."""
    said: dict[str, str] = {}
    if torch.version.hip:
        from sglang.kernels.ops.quantization.fp8_kernel import fp8_dtype

        said["fp8"] = str(fp8_dtype).removeprefix("torch.")
    if published(get_exec):
        said["attention"] = "/".join(str(one) for one in attention_backends())
    return {name: short(value) for name, value in said.items()}


def elsewhere(model: Any) -> str:
    """Which setting has weights come from elsewhere than the model's folder or commit, if any."""
    if model.weight_cache_mode != "off":
        return f"weight_cache_mode {model.weight_cache_mode}"
    if model.checkpoint_engine_wait_weights_before_ready:
        return "checkpoint_engine_wait_weights_before_ready"
    return ""


def short(text: str) -> str:
    """Text as it is, or its digest where it would not fit among a spec's names."""
    fits = len(text.encode()) <= 64
    return text if fits else hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def published(bag: Any) -> Any:
    """A server's resolved settings; None outside a server."""
    try:
        return bag()
    except ValueError:
        return None


def _of_how(how: Any) -> dict[str, Any]:
    """Of what is said about kernels, that which changes more than their rounding."""
    said = {name: getattr(how.moe, name) for name in _EXPERTS}
    if how.moe.ep_dispatch_algorithm == "fake":  # which asks experts at random
        said["ep_dispatch_algorithm"] = "fake"
    said["enable_quant_communications"] = how.comm.enable_quant_communications
    said["enable_tf32_matmul"] = how.features.enable_tf32_matmul
    # Beside precision: an image's tokens then stand in a row, as those of a text do.
    said["rl_on_policy_target"] = how.deterministic.rl_on_policy_target
    precise = how.kernel.enable_precise_embedding_interpolation  # where an image's patches stand
    return said | {"enable_precise_embedding_interpolation": precise}


def _plugins() -> list[str]:
    """Those that SGLang loads in the process that computes."""
    said, platform = envs.SGLANG_PLUGINS.get(), envs.SGLANG_PLATFORM.get()
    only = [one.strip() for one in said.split(",")] if said else None
    return [
        *plugins.loaded([GENERAL_PLUGINS_GROUP], "sglang", only),
        *plugins.loaded([PLATFORM_PLUGINS_GROUP], "sglang", [platform] if platform else only),
    ]


def _of_images(images: Any) -> dict[str, Any]:
    """What becomes of images and videos. A page's hash names what came of them, unless its request
    says what it is to name (`mm_hashes`), which then is what they were."""
    backend = resolve_image_processor_backend(images)
    return {"mm_process_config": images.mm_process_config, "image_processor_backend": backend}


def _processors(model: Any, serving: Any) -> str:
    """What a checkpoint says becomes of images, sound and videos: of where they stand too, which no
    hash of a page names."""
    path = (serving and serving.tokenizer_path) or model.model_path
    if Path(path).is_dir():
        return processors_digest(path)
    return "" if path == model.model_path else str(path)  # else what names the weights names them


def _order_of_pages() -> str | None:
    """In which order the numbers of a page lie on the device, if not as by default: they are copied
    as they lie."""
    if envs.SGLANG_USE_HND_KVCACHE.get():
        return "hnd"
    order = str(envs.SGLANG_AITER_KV_CACHE_LAYOUT.get()).lower()
    return order if torch.version.hip and order != "nhd" else None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)


def _loading(model: Any) -> dict[str, Any]:
    said = model.model_loader_extra_config or {}
    return dict(json.loads(said)) if isinstance(said, str) else dict(said)
