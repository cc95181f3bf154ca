"""KV in HBM: what is put from there comes back byte for byte; what is not verified never does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from kvstore.client import Client, Match, Memory, Miss
from kvstore.errors import Invalid, Unavailable
from kvstore.limits import GiB
from tests.client.coded import coded_spec, come_back, sequence
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.on_device import OnDevice, told_at_once
from tests.client.stored import TOKENS, Stored

Clients = Callable[..., Client]
PIECES = (1, 3)  # blocks that are staged at once
pytestmark = pytest.mark.usefixtures("fenced")


@pytest.fixture(params=["through pinned memory", "straight"])
def way(
    request: pytest.FixtureRequest, transport: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """By which blocks go, whatever their size: straight where the node's memory is mapped, or where
    it moves them over ucx."""
    from kvstore.kernels.gpu.area import Area
    from kvstore.kernels.gpu.straight import Straight

    wanted, taken = {"shm": Straight, "ucx": Area}.get(transport), set()
    if request.param != "straight":
        wanted = None
    for one in (Straight, Area):
        monkeypatch.setattr(one, "scattered", noted(one, taken))
    monkeypatch.setattr("kvstore.transfer.reached.RUN_BYTES_MIN", 0 if wanted else GiB)
    told_at_once(monkeypatch)
    if wanted is None:
        monkeypatch.setattr("kvstore.transfer.gpu_direct.gpu_of", lambda device: None)
    yield request.param
    assert taken == ({wanted} if wanted else set()), "each of these tests loads, by this way alone"


def noted(owner: Any, taken: set[Any]) -> Callable[..., Any]:
    scattered = owner.scattered

    def also(self: Any, *what: Any) -> Any:
        taken.add(owner)
        return scattered(self, *what)

    return also


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize(
    ("dtype", "parts", "out", "back", "out_page", "back_page"),
    [
        ("float32", 2, "phtkd", "pthkd", 16, 8),
        ("bfloat16", 2, "kpthd", "phtkd", 12, 5),
        ("bfloat16", 1, "pthd", "phtd", 4, 16),
    ],
)
def test_a_sequence_comes_back_in_any_layout_and_nothing_else_is_touched(
    client_of: Clients,
    pieces: int,
    dtype: str,
    parts: int,
    out: str,
    back: str,
    out_page: int,
    back_page: int,
    way: str,
) -> None:
    name = f"hbm-{dtype}-{parts}-{pieces}-{way}"
    heads = 1 if parts == 1 else 4
    spec = spec_of(name, dtype=dtype, parts=parts, kv_heads=heads)
    client, tokens = client_of(spec), 37
    truth, chain = truth_of(spec, tokens, 1), client.chain(range(tokens))
    ours = Cache(spec, tokens, axes=out, page_tokens=out_page, kind="torch")
    ours.fill(truth)
    there = OnDevice(ours, client.space.layout, pieces)
    assert client.put(chain, there.memory(client)) == len(chain)
    assert there.landed().holds(truth), "the source is only read"
    theirs = Cache(spec, tokens, axes=back, page_tokens=back_page, kind="torch", seed=2)
    here = OnDevice(theirs, client.space.layout, pieces)
    assert client.get(chain, here.memory(client)) == Match(len(chain), tokens, None)
    assert here.landed().holds(truth)
    assert theirs.untouched(0, tokens)


def test_a_rank_moves_its_own_heads_and_layers(client_of: Clients, way: str) -> None:
    spec = spec_of(f"hbm-rank-{way}")
    client, tokens = client_of(spec), 16
    truth, chain = truth_of(spec, tokens, 3), client.chain(range(tokens))
    whole = Cache(spec, tokens, kind="torch")
    whole.fill(truth)
    client.put(chain, whole.memory(client))
    theirs = Cache(spec, tokens, kind="torch", heads=(1, 2), layers=(1, 2), seed=4)
    here = OnDevice(theirs, client.space.layout, 1)
    assert client.get(chain, here.memory(client)).blocks == 2
    assert here.landed().holds(truth)
    assert theirs.untouched(0, tokens)


@pytest.mark.usefixtures("mapped", "way")
@pytest.mark.parametrize("pieces", PIECES)
def test_a_block_that_fails_its_hash_touches_no_page(stored: Stored, pieces: int) -> None:
    client, layout = stored.client, stored.client.space.layout
    stored.flip(1, layout.head_bytes + 99)
    here = OnDevice(Cache(stored.spec, TOKENS, kind="torch"), layout, pieces)
    found = client.get(stored.chain.between(0, 2), here.memory(client))
    assert found == Match(1, 8, Miss.DAMAGED)
    assert here.landed().holds(stored.truth, 0, 8)
    assert here.cache.untouched(0, 8)


def test_a_codec_codes_what_comes_from_there(client_of: Clients, way: str) -> None:
    spec = coded_spec(f"hbm-fp8-{way}", "fp8", layers=1, kv_heads=2)
    client, tokens = client_of(spec), 40
    truth, chain = sequence(spec, tokens, 5), client.chain(range(tokens))
    ours = Cache(spec, tokens, kind="torch")
    ours.fill(truth)
    assert client.put(chain, OnDevice(ours, client.space.layout, 1).memory(client)) == len(chain)
    here = OnDevice(Cache(spec, tokens, kind="torch", seed=6), client.space.layout, 1)
    assert client.get(chain, here.memory(client)).tokens == tokens
    assert here.landed().holds(come_back(spec, truth))


def test_where_the_gpu_has_no_room_for_a_move_blocks_are_missed_or_not_stored(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    spec = spec_of(f"hbm-full-{way}", layers=1, kv_heads=2)
    client, tokens = client_of(spec), 16
    truth, chain = truth_of(spec, tokens, 7), client.chain(range(tokens))
    ours = Cache(spec, tokens, kind="torch")
    ours.fill(truth)
    client.put(chain, ours.memory(client))
    here = OnDevice(Cache(spec, tokens, kind="torch", seed=8), client.space.layout, 1)
    memory = here.memory(client)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as gpu:
        gpu.setattr(torch, "empty", full)
        gpu.setattr(torch, "zeros", full)
        assert client.get(chain, memory) == Match(0, 0, Miss.UNREACHABLE)
        with pytest.raises(Unavailable, match="CUDA out of memory"):
            client.put(client.chain(range(1, tokens + 1)), memory)
    assert client.get(chain, memory) == Match(2, tokens, None)
    assert here.landed().holds(truth)


@dataclass
class Elsewhere:
    """A tensor, as far as a client looks at one, of some device."""

    device: torch.device

    def data_ptr(self) -> int:
        return 0

    def element_size(self) -> int:
        return 4

    def stride(self) -> tuple[int, ...]:
        return 32 * 8 * 4, 32 * 8, 32, 16, 1

    dtype, shape = torch.float32, (4, 4, 8, 2, 16)


def test_tensors_of_two_devices_or_of_none_that_is_known_are_refused(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(spec_of("hbm-refused", layers=2))

    def described(*devices: str) -> Memory:
        tensors = [Elsewhere(torch.device(one)) for one in devices]
        return client.memory(tensors, "phtkd", [0, 1])

    with pytest.raises(Invalid, match="on cuda:0, cuda:1; they must be on one device"):
        described("cuda:0", "cuda:1")
    with pytest.raises(Invalid, match="is on meta; tensors of CPU and CUDA"):
        described("meta", "meta")
    monkeypatch.setitem(sys.modules, "kvstore.kernels.gpu.staging", None)
    with pytest.raises(Invalid, match=r"pip install 'moonpool\[gpu\]'"):
        described("cuda:0", "cuda:0")
