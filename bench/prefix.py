"""Time to first token of a prompt that the pool has, in HBM, DRAM or on SSD, beside computing it.

One engine of ours with random weights: Llama-8B-shaped in bfloat16 on a CUDA device where there is
one, else a small model on the CPU with one thread. Prompts of some lengths are published to a node,
which is then started anew, so that their KV is on its SSD alone. Each round has prompts of its own:
each is asked for once, and comes from SSD; once more, and comes from DRAM; and is computed, without
a pool. On a GPU it is then taken out of the pool and published anew, into HBM that the node lends,
comes from there, and is taken out again: no block has to make room for another. Timed is the whole
request to its first token: the pool asked, all but the last token loaded and verified, and what is
left computed. That blocks came from where the row says is checked.

The rows of the longest prompts decide. Where the lines through the lengths cross is told: prefixes
longer than that are quicker loaded. The node's directory is made below TMPDIR, or /var/tmp. It has
memory and disk for what all rounds publish, which --runs decides.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.engine import Say, check_published, prefill, torch_threads
from bench.filling import stats
from bench.guest import NotInstalled
from bench.pool import node_with_ssd
from bench.random_model import BLOCK_TOKENS, LLAMA_8B, namespace_of, random_model, token_bytes
from bench.report import Goal, Report, Row
from bench.rounds import WARM_ROUNDS, Rounds
from kvstore.client import Client
from kvstore.engine.config import ModelConfig
from kvstore.engine.core import EngineCore, EngineSettings, TokenEvent
from kvstore.engine.device import CPU, Device
from kvstore.engine.hooks import NoHooks
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.errors import ConfigError
from kvstore.limits import MiB

RUNS = 5
GOAL = 1.0
SLAB_BYTES = 64 * MiB
DEADLINE_SECONDS = 30.0  # of a client's call: a slow disk is slow, and no miss
STALLED_SECONDS = 60.0  # in which a disk that works has written something
WAYS = ("ssd", "dram", "computed", "hbm")  # the last where there is HBM


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model, and prompts of how many tokens."""

    config: ModelConfig
    prompt_tokens: tuple[int, ...]
    chunk_tokens: int
    hbm: str = "0"  # that the node lends


SMALL = Sizes(
    ModelConfig(
        architecture="LlamaForCausalLM", hidden_size=512, intermediate_size=1408, layers=8,
        heads=8, kv_heads=4, head_dim=64, vocab_size=2048, max_positions=8192, rms_eps=1e-5,
    ),
    (128, 512, 2048), 512,
)  # fmt: skip
LARGE = Sizes(LLAMA_8B, (256, 1024, 4096, 16_384), 8192, "8GiB")


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    on_gpu = torch.cuda.is_available()
    try:
        device = Device.named("cuda" if on_gpu else "cpu")
    except ConfigError as error:
        raise NotInstalled(str(error)) from error
    with torch_threads(1):
        return measured(runs, say, sizes or (LARGE if on_gpu else SMALL), device)


def measured(runs: int, say: Say, sizes: Sizes, device: Device = CPU) -> Report:
    say("making the model")
    model = random_model(sizes.config, device)
    pages = -(-max(sizes.prompt_tokens) // BLOCK_TOKENS) + 2
    settings = EngineSettings(pages=pages, max_batch_tokens=sizes.chunk_tokens)
    core = EngineCore(model, settings)
    below = os.environ.get("TMPDIR", "/var/tmp")
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-", dir=below) as directory:
        rounds = _Prefixes(core, device, Path(directory), sizes).rounds(runs, say)
    return Report(
        name="prefix",
        unit="ms",
        against=f"computing the prompt on {device.place}",
        ratio_is="time to first token with the pool / computed",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=_rows(rounds, sizes, device),
    )


class _Prefixes:
    """Prompts, and the ways in which an engine comes to their KV."""

    def __init__(self, core: EngineCore, device: Device, directory: Path, sizes: Sizes) -> None:
        self._core, self._device, self._directory = core, device, directory
        self._sizes, self._dice = sizes, np.random.default_rng(1)
        self._spec = namespace_of("prefix", sizes.config)
        self._ways = WAYS if sizes.hbm != "0" else WAYS[:-1]
        self._room = 0  # bytes of the node's DRAM, and of its SSD

    def rounds(self, runs: int, say: Say) -> dict[int, Rounds]:
        """Of each length the seconds of each way."""
        prompts = [
            {length: self._prompt(length) for length in self._sizes.prompt_tokens}
            for _ in range(WARM_ROUNDS + runs)
        ]
        self._room = room_for(self._sizes, len(prompts))
        with self._node(), self._client() as client:
            for number, each in enumerate(prompts):
                say(f"publishing, {number + 1} of {len(prompts)}")
                for prompt in each.values():
                    self._published(client, prompt)
            every = (len(client.chain(prompt)) for each in prompts for prompt in each.values())
            _wait_for_disk(client, sum(every), say)
        found = {length: {way: list[float]() for way in self._ways} for length in prompts[0]}
        with self._node(), self._client() as client, self._client(on_device=True) as near:
            for number, each in enumerate(prompts):
                say(f"round {number + 1} of {len(prompts)}")
                for length, prompt in each.items():
                    took = self._round(client, prompt)
                    if "hbm" in self._ways:
                        took += (self._from_hbm(near, prompt),)
                    for way, seconds in zip(self._ways, took, strict=True):
                        if number >= WARM_ROUNDS:
                            found[length][way].append(seconds)
        return {length: Rounds(of) for length, of in found.items()}

    def _node(self) -> AbstractContextManager[None]:
        room, hbm = self._room, self._sizes.hbm
        return node_with_ssd(self._directory, str(room), SLAB_BYTES, room, hbm)

    def _client(self, *, on_device: bool = False) -> Client:
        """One that reaches the node's HBM, or one that does not."""
        device = self._device.place if on_device else None
        told = {"label": "bench prefix", "deadline_seconds": DEADLINE_SECONDS, "device": device}
        return Client.at(self._directory, self._spec, **told)

    def _prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._dice.integers(1, self._sizes.config.vocab_size, length).tolist())

    def _published(self, client: Client, prompt: tuple[int, ...]) -> None:
        _, _, use, pool = self._loaded(client, prompt)
        check_published(pool, use.published_blocks, len(client.chain(prompt)))

    def _round(self, client: Client, prompt: tuple[int, ...]) -> tuple[float, float, float]:
        blocks, before = len(client.chain(prompt)), stats(client).counters["promoted_blocks"]
        from_ssd, first, use, _ = self._loaded(client, prompt)
        came = stats(client).counters["promoted_blocks"] - before
        from_dram, again, used, _ = self._loaded(client, prompt)
        still = stats(client).counters["promoted_blocks"] - before
        computed, token = self._timed(prompt)
        if use.pool_tokens < len(prompt) or used.pool_tokens < len(prompt):
            raise RuntimeError(f"{use.pool_tokens} of {len(prompt)} tokens came: {use.miss}")
        if (came, still) != (blocks, blocks):
            raise RuntimeError(f"of {blocks} blocks {came} came from SSD, then {still - came}")
        if first != again or (self._sizes.config.dtype == "float32" and first != token):
            raise RuntimeError("the first token is not the one that is computed")
        return from_ssd, from_dram, computed

    def _from_hbm(self, client: Client, prompt: tuple[int, ...]) -> float:
        chain = client.chain(prompt)
        client.remove(chain)
        self._published(client, prompt)
        before = _moved(client)
        seconds, _, use, _ = self._loaded(client, prompt)
        if use.pool_tokens < len(prompt) or _moved(client) != before:
            raise RuntimeError(
                f"{use.pool_tokens} of {len(prompt)} tokens came from HBM: {use.miss}"
            )
        if stats(client).hbm.used_bytes < len(chain) * client.space.layout.slot_bytes:
            raise RuntimeError("what was published did not go to HBM")
        client.remove(chain)
        return seconds

    def _loaded(self, client: Client, prompt: tuple[int, ...]) -> tuple[float, int, PoolUse, Pool]:
        pool, use = Pool(client, self._core.cache, device=self._device), PoolUse()
        self._core.hooks = pool
        pool.expect("bench", use)
        try:
            return *self._timed(prompt), use, pool
        finally:
            self._core.hooks = NoHooks()
            pool.close()

    def _timed(self, prompt: tuple[int, ...]) -> tuple[float, int]:
        """Seconds to the first token, and which it is."""
        began = time.perf_counter()
        events = prefill(self._core, prompt)
        took = time.perf_counter() - began
        return took, next(one.token for one in events if isinstance(one, TokenEvent))


def room_for(sizes: Sizes, rounds: int) -> int:
    """Bytes of whole slabs for what so many rounds publish: beside the slots a slab has a rest."""
    kv = rounds * sum(sizes.prompt_tokens) * token_bytes(sizes.config)
    return (kv * 5 // 4 // SLAB_BYTES + 4) * SLAB_BYTES


def _wait_for_disk(client: Client, blocks: int, say: Say) -> None:
    """Until the node has written them: one that stops waits for its disk for seconds only."""
    written, since = 0, time.monotonic()
    while written < blocks:
        now = stats(client).counters["stored_blocks"]
        if now > written:
            written, since = now, time.monotonic()
            say(f"{written} of {blocks} blocks are on SSD")
        elif time.monotonic() - since > STALLED_SECONDS:
            raise RuntimeError(f"only {written} of {blocks} blocks were written to SSD")
        time.sleep(0.5)


def _moved(client: Client) -> tuple[int, int]:
    """Blocks that came to DRAM, from SSD and from HBM."""
    counters = stats(client).counters
    return counters["promoted_blocks"], counters["demoted_blocks"]


def break_even(lengths: Sequence[int], loaded: Sequence[float], computed: Sequence[float]) -> float:
    """Tokens from which on loading is the quicker, between the lengths by straight lines; 0 where
    it is at the shortest, infinite where it is not at the longest."""
    gains = [there - here for here, there in zip(loaded, computed, strict=True)]
    slower = [at for at, gain in enumerate(gains) if gain <= 0]
    if not slower:
        return 0.0
    last = slower[-1]
    if last == len(gains) - 1:
        return float("inf")
    share = -gains[last] / (gains[last + 1] - gains[last])
    return lengths[last] + share * (lengths[last + 1] - lengths[last])


def _rows(rounds: dict[int, Rounds], sizes: Sizes, device: Device) -> tuple[Row, ...]:
    rows, longest = list[Row](), max(rounds)

    def medians(way: str) -> list[float]:
        return [one.median(way) for one in rounds.values()]

    for way in ("hbm", "dram", "ssd"):
        if way not in rounds[longest].seconds:
            continue
        edge = break_even(list(rounds), medians(way), medians("computed"))
        for length, one in rounds.items():
            size = length * token_bytes(sizes.config)
            rows.append(
                Row(
                    name=f"{length} tokens from {way.upper()}",
                    sizes={"prompt_tokens": length, "kv_bytes": size, "on": str(device.place)},
                    runs=one.count,
                    value=1e3 * one.median(way),
                    limit=1e3 * one.median("computed"),
                    ratio=one.ratio(way, "computed"),
                    spread=one.spread(way, "computed"),
                    counted=length == longest,
                    also={
                        "gb_per_second": size / one.median(way) / 1e9,
                        "break_even_tokens": edge if np.isfinite(edge) else None,
                    },
                )
            )
    return tuple(rows)
