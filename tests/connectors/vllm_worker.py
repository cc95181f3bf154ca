"""The worker's half of the vLLM connector, driven as vLLM's worker does, without vLLM: on tensors
of its shapes and strides, filled by layers that write what is known, each layer a CUDA graph of its
own or told one by one, with the connector's calls between.

Import it while `without_vllm.standing_in` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch

from kvstore.client import Chain, KVGroup, KVSpec
from kvstore.engine.connectors.vllm.connector import MoonpoolConnector
from kvstore.engine.connectors.vllm.facts import Facts, GroupFacts
from kvstore.engine.connectors.vllm.messages import Load, Part, Save, Step
from kvstore.engine.connectors.vllm.settings import Settings
from kvstore.engine.connectors.vllm.worker import WorkerSide
from tests.connectors.behind import GPU, Computing
from tests.gpu import DEVICE

PAGE, BLOCK = 16, 64  # tokens of vLLM's block, and of one in the pool
BLOCKS = 8 if GPU else 2  # of a prompt
TOKENS = BLOCKS * BLOCK
LAYERS, HEADS, HEAD_DIM = (4, 8, 128) if GPU else (2, 2, 16)
LATENT = 576 if GPU else 72  # of MLA
PAGES = 2 * TOKENS // PAGE + 5  # a worker has; the first is nobody's, as vLLM has it
POISON = -19_276  # of two bytes


@dataclass(frozen=True)
class Kind:
    """How vLLM lays out its tensors: one a layer, logically (blocks, heads, tokens, content)."""

    backend: str
    order: str  # of layers, blocks, heads, tokens and content in memory, as KVCacheLayout names it
    parts: int = 2  # K and V, each by itself; 1: as the backend has them, whatever they are

    @property
    def heads(self) -> int:
        return 1 if "MLA" in self.backend else HEADS

    @property
    def content(self) -> int:
        """Elements of a token and head."""
        return LATENT if "MLA" in self.backend else 2 * HEAD_DIM

    @property
    def spec(self) -> KVSpec:
        group = KVGroup(
            layers=tuple(range(LAYERS)),
            kv_heads=self.heads,
            head_dim=self.content // self.parts,
            block_tokens=BLOCK,
            parts=self.parts,
            interior="" if self.parts == 2 or self.heads == 1 else f"vllm {self.backend}  {PAGE}",
        )
        return KVSpec(f"{self.backend} {self.order}", "r", "bfloat16", (group,))

    def tensors(self) -> list[torch.Tensor]:
        """Of one worker, views of what vLLM allocates; every element poisoned."""
        sizes = {"L": LAYERS, "B": PAGES, "H": self.heads, "N": PAGE, "C": self.content}
        shape = [sizes[axis] for axis in self.order]
        raw = torch.full((prod(shape),), POISON, dtype=torch.int16, device=DEVICE)
        whole = raw.view(torch.bfloat16).view(shape)
        return list(whole.permute([self.order.index(axis) for axis in "LBHNC"]).unbind(0))


KINDS = {
    "NHD": Kind("FLASH_ATTN", "LBNHC"),
    "HND": Kind("FLASH_ATTN", "LBHNC"),
    "NHD, blocks outermost": Kind("FLASH_ATTN", "BLNHC"),
    "heads before layers": Kind("TRITON_ATTN", "BHLNC"),
    "FlashInfer": Kind("FLASHINFER", "BLHNC", 1),
    "MLA": Kind("FLASH_ATTN_MLA", "LBNHC", 1),
}


def kv_of(kind: Kind, seed: int) -> torch.Tensor:
    """(layers, tokens, heads, content) of a prompt, as bits."""
    generator = torch.Generator().manual_seed(seed)
    shape = (LAYERS, TOKENS, kind.heads, kind.content)
    return torch.randn(shape, generator=generator).bfloat16().view(torch.int16).to(DEVICE)


@dataclass(frozen=True)
class Prompt:
    """A request's tokens, their KV, and the worker's pages that it has."""

    name: str
    tokens: np.ndarray
    kv: torch.Tensor
    pages: tuple[int, ...]

    @classmethod
    def of(cls, kind: Kind, number: int, seed: int) -> Prompt:
        """`seed`: of the pages' order."""
        pages = np.random.default_rng(seed).permutation(np.arange(1, PAGES))[: TOKENS // PAGE]
        tokens = np.arange(TOKENS) * 7 + number
        return cls(f"prompt {number}", tokens, kv_of(kind, number), tuple(pages.tolist()))

    def elsewhere(self, seed: int) -> Prompt:
        pages = np.random.default_rng(seed).permutation(np.arange(1, PAGES))[: len(self.pages)]
        return replace(self, pages=tuple(pages.tolist()))


class Worker:
    """One rank and its tensors. All is called in the thread that makes it, but for loads."""

    def __init__(self, kind: Kind, node: str, computing: Computing, is_graph: bool = False) -> None:
        self.kind, self.computing = kind, computing
        self.tensors = dict(zip(names(), kind.tensors(), strict=True))
        facts = GroupFacts(0, names(), PAGE, 0, kind.heads, True, 0)
        self.facts = Facts(kind.spec, (facts,), kind.order, 1)
        settings = Settings(node=node, save_ms=10_000, deadline_ms=20_000, stall_ms=20_000)
        with computing.current():
            self.side = WorkerSide(settings, self.facts, self.tensors, "engine", 0, 1)
        self.connector: Any = MoonpoolConnector.__new__(MoonpoolConnector)
        self.connector._scheduler, self.connector._worker = None, self.side
        self.client = self.side._client
        self.client.register()  # what connects beside this has ended, before anything is captured
        self.received, self.sent = set[str](), set[str]()
        self.reports: list[Any] = []
        self._number = 0
        # What a step has computed, and where to: graphs read it where it is.
        self._new = torch.zeros_like(kv_of(kind, 0))
        self._at = torch.zeros((2, TOKENS), dtype=torch.int64, device=DEVICE)
        if GPU:
            torch.cuda.synchronize()  # that is all there, whichever stream was told of it
        with computing.current():
            made: Callable[[Any], Any] = computing.captured if is_graph else lambda task: task
            self._pieces = [made(self._piece(layer)) for layer in range(LAYERS)]
        for one in self.tensors.values():
            one.view(torch.int16).fill_(POISON)
        if GPU:
            torch.cuda.synchronize()  # all of that was told to the default stream

    def close(self) -> None:
        self.computing.finish()
        self.side.close()

    def chain(self, prompt: Prompt) -> Chain:
        return self.client.chain(prompt.tokens)

    def part(self, prompt: Prompt, first: int = 0, last: int = BLOCKS) -> Part:
        """Blocks [first, last) of a prompt."""
        chain = self.chain(prompt)
        hashes = chain.hashes[first:last]
        return Part(0, first, hashes, chain.parent(first), prompt.pages, BLOCK)

    def compute(
        self,
        prompt: Prompt,
        first: int = 0,
        last: int = BLOCKS,
        *,
        hand_off: str = "",
        finished: bool = False,
        **more: Any,
    ) -> None:
        """A step that computes these of the blocks, and publishes them."""
        save = Save(prompt.name, (self.part(prompt, first, last),), hand_off, finished)
        count = (last - first) * BLOCK
        self.step(Step(0, saves=[save], prefill_tokens=count, tokens=count, **more), prompt, first)

    def load(self, prompt: Prompt, begin: int = 0, follow: str = "") -> None:
        """A step that computes nothing, and begins to load a prompt's tokens from `begin` on."""
        load = Load(prompt.name, begin, TOKENS, (self.part(prompt, begin // BLOCK),), follow)
        self.step(Step(0, loads=[load]))

    def step(self, step: Step, prompt: Prompt | None = None, first: int = 0) -> None:
        """As vLLM's runner has it: loads are begun once the forward pass was told, and then what
        is stored is stored."""
        self._number += 1
        step.number, connector = self._number, self.connector
        with self.computing.current():
            connector.bind_connector_metadata(step)
            if prompt is not None:
                self.computing.tell(self._told(prompt, first * BLOCK, step.tokens))
                for name, piece in zip(names(), self._pieces, strict=True):
                    connector.wait_for_layer_load(name)
                    self.computing.tell(piece, slow=1)
                    connector.save_kv_layer(name, self.tensors[name], None)
            connector.start_load_kv(None)
            connector.wait_for_save()
            results = connector.get_transfer_results(set())
            self.received |= results.finished_recving
            self.sent |= results.finished_sending
            assert connector.get_block_ids_with_load_errors() == set()
            if (report := connector.build_connector_worker_meta()) is not None:
                self.reports.append(report)
            connector.clear_connector_metadata()

    def overwrite(self, pages: Sequence[int], value: int = 77, slow: int = 1) -> None:
        """What another request's step does to pages it was given, whoever had them before."""
        with self.computing.current():  # as vLLM has it: else who frees it does so too early
            held = torch.tensor(pages, device=DEVICE)

            def write() -> None:
                for one in self.tensors.values():
                    one.view(torch.int16)[held] = value

            self.computing.tell(write, slow)

    def holds(self, prompt: Prompt, begin: int = 0) -> bool:
        """Whether its pages have the prompt's KV from token `begin` on, to the bit, and all other
        tokens what they had."""
        self.computing.finish()
        expected = [torch.full_like(one.view(torch.int16), POISON) for one in self.tensors.values()]
        pages, rows = (one[begin:] for one in self._places(prompt, 0, TOKENS))
        for layer, one in enumerate(expected):
            one.transpose(1, 2)[pages, rows] = prompt.kv[layer, begin:]
        found = [one.view(torch.int16) for one in self.tensors.values()]
        return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))

    def _piece(self, layer: int) -> Callable[[], None]:
        cache = self.tensors[names()[layer]].view(torch.int16).transpose(1, 2)

        def write() -> None:
            cache[self._at[0], self._at[1]] = self._new[layer]

        return write

    def _told(self, prompt: Prompt, first: int, count: int) -> Callable[[], None]:
        """What a step's layers are to compute; what is left of their room goes to no page's."""
        at, kv = self._places(prompt, first, count), prompt.kv[:, first : first + count]

        def copy() -> None:
            self._at.zero_()
            self._at[:, :count] = at
            self._new[:, :count] = kv

        return copy

    def _places(self, prompt: Prompt, first: int, count: int) -> torch.Tensor:
        tokens = np.arange(first, first + count)
        pages = np.array(prompt.pages)[tokens // PAGE]
        return torch.from_numpy(np.stack([pages, tokens % PAGE])).to(DEVICE)


def names() -> tuple[str, ...]:
    return tuple(f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS))
