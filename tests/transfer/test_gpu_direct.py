"""Blocks between a node and a GPU's memory, nothing on the way: what comes, and what does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, Match, Miss
from kvstore.errors import AlreadyWritten, Unavailable
from kvstore.layout import IDENTITY_OFFSET, TABLE_OFFSET
from kvstore.limits import UCX_GPU_PIECES
from kvstore.transfer import gpu_area
from kvstore.transfer.frames import Attach, Op
from kvstore.transfer.gpu_direct import GpuDirect
from kvstore.transfer.protocol import Slots
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_lane import UcxLane
from tests.client.coded import coded_spec, come_back, sequence
from tests.client.kv import POISON, Cache, spec_of, truth_of
from tests.client.on_device import OnDevice
from tests.client.stored import TOKENS, Stored
from tests.gpu import DEVICE
from tests.nodes import NodeProcess, eventually
from tests.transfer.gpu_rig import (
    BLOCKS,
    Clients,
    client_of,
    node,
    on_device,
    own_node,
    put,
    room_for,
    small,
    ways,
)
from tests.transfer.ucx_rig import ONE, SECONDS, mover_of

pytest.importorskip("nixl_cu12")

__all__ = ["client_of", "node", "own_node", "ways"]


@pytest.mark.parametrize("codec", ["none", "fp8"])
def test_blocks_go_and_come_straight_more_of_them_than_an_area_holds(
    client_of: Clients, ways: list[str], monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    coded = codec != "none"
    spec = coded_spec("gpu-fp8", codec, layers=2, kv_heads=2) if coded else small("gpu-none")
    client, tokens = client_of(spec), 4 * spec.groups[0].block_tokens + 5
    room_for(monkeypatch, client.space.layout)
    truth = sequence(spec, tokens, 1) if coded else truth_of(spec, tokens, 1)
    sent: list[Any] = []
    monkeypatch.setattr("kvstore.kernels.gpu.staging.Staging.gathered", sent.append)
    chain, here = put(client, truth), on_device(client, tokens=tokens, axes="pthkd", seed=3)
    assert client.get(chain, here.memory(client)) == Match(len(chain), tokens, None)
    assert here.landed().holds(come_back(spec, truth) if coded else truth)
    assert here.cache.untouched(0, tokens)
    assert set(ways) == {"straight"} and not sent, "nothing was staged on the host"
    host = Cache(spec, tokens, seed=4, kind="torch")
    assert client.get(chain, host.memory(client)).blocks == len(chain), "hashes are as everywhere"


def test_a_rank_moves_its_own_heads_and_layers(
    client_of: Clients, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(spec_of("gpu-rank"))
    room_for(monkeypatch, client.space.layout)
    truth = truth_of(client.space.spec, TOKENS, 2)
    chain = put(client, truth)
    here = on_device(client, heads=(1, 2), layers=(1, 2), seed=5)
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth)
    assert here.cache.untouched(0, TOKENS)
    assert set(ways) == {"straight"}


def test_ranks_lay_their_layers_beside_one_another(client_of: Clients) -> None:
    client = client_of(small("gpu-layers"))
    truth, chain = truth_of(client.space.spec, TOKENS, 3), client.chain(range(TOKENS))
    with client.writer(chain) as writer:
        for layer in (0, 1):
            cache = Cache(client.space.spec, TOKENS, kind="torch", layers=(layer, 1))
            cache.fill(truth)
            mine = OnDevice(cache, client.space.layout, 8).memory(client)
            writer.put(mine, mine.fragment)
        writer.seal()
    here = on_device(client, seed=6)
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth)


def test_what_the_node_refuses_is_a_named_error_and_the_way_stays(
    client_of: Clients, ways: list[str]
) -> None:
    client = client_of(small("gpu-refused-store"))
    truth, chain = truth_of(client.space.spec, TOKENS, 4), client.chain(range(TOKENS))
    source = on_device(client)
    source.cache.fill(truth)
    source = OnDevice(source.cache, client.space.layout, 8)
    with client.writer(chain) as writer:
        writer.put(source.memory(client))
        writer._stored[:] = False  # the client would say so itself
        with pytest.raises(AlreadyWritten):
            writer.put(source.memory(client))
        writer.seal()
    here = on_device(client)
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth) and set(ways) == {"straight"}


@pytest.mark.parametrize("where", ["payload", "table", "identity"])
def test_a_block_that_is_damaged_in_its_slot_touches_no_page(
    node: NodeProcess, client_of: Clients, ways: list[str], where: str
) -> None:
    stored = Stored(client_of(small(f"gpu-damaged-{where}"), transport="shm"))
    layout = stored.client.space.layout
    at = {"payload": layout.head_bytes + 99, "table": TABLE_OFFSET + 11}
    stored.flip(1, at.get(where, IDENTITY_OFFSET + 3))
    client = client_of(stored.spec)
    here = on_device(client, seed=7)
    assert client.get(stored.chain, here.memory(client)) == Match(1, 8, Miss.DAMAGED)
    assert here.landed().holds(stored.truth, 0, 8)
    assert (second_block(here.cache) == POISON).all()
    assert set(ways) == {"straight"}
    client.get(stored.chain.between(0, 1), on_device(client).memory(client))
    wrong_bytes = where == "payload"  # by a table that is right: this way may be at fault
    assert ways[-1] == ("pinned" if wrong_bytes else "straight")


def second_block(cache: Cache) -> np.ndarray:
    """All bytes of its tokens."""
    at = cache._pages[8:16], cache._rows[8:16]
    return np.concatenate([cache._canonical(raw)[at].ravel() for raw in cache._raw])


def test_a_mover_that_dies_in_a_call_costs_that_call_and_no_page(
    own_node: NodeProcess,
    client_of: Clients,
    ways: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvstore.kernels.gpu.area import Area

    client = client_of(small("gpu-killed"), own_node)
    truth = truth_of(client.space.spec, TOKENS, 7)
    chain, here, scattered = put(client, truth), on_device(client, seed=10), Area.scattered

    def then_killed(self: Area, *what: Any) -> Any:
        found = scattered(self, *what)
        mover_of(own_node).kill()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Area, "scattered", then_killed)
        found = client.get(chain, here.memory(client))
    assert found == Match(0, 0, Miss.UNREACHABLE)
    assert here.landed().holds(truth, 0, 8 * BLOCKS)
    assert here.cache.untouched(0, 8 * BLOCKS)
    gpu = gpu_area.gpu_of(DEVICE)
    assert gpu is not None
    eventually(lambda: gpu.pieces.free == UCX_GPU_PIECES, SECONDS)
    ways.clear()
    there = on_device(client, seed=11)
    eventually(lambda: _got(client, chain, there), SECONDS)  # a mover is started again
    assert there.landed().holds(truth)
    assert set(ways) == {"pinned"}, "the node is left alone with it for a while"


def _got(client: Client, chain: Any, there: OnDevice) -> bool:
    try:
        return client.get(chain, there.memory(client)).tokens == TOKENS
    except Unavailable:
        return False


def test_a_node_is_told_to_take_blocks_once_the_gpu_is_done_with_them(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs up on who keeps it waiting, and the GPU may be another's for a while."""
    from kvstore.kernels.gpu.area import Area

    client, gathered, call = client_of(small("gpu-order")), Area.gathered, UcxLane._call
    seen: list[Any] = []

    def then_noted(self: Area, *what: Any) -> Any:
        made = gathered(self, *what)
        seen.append("gathered")
        return made

    def noted(self: UcxLane, op: Op, *what: Any) -> None:
        seen.append(op)
        call(self, op, *what)

    monkeypatch.setattr(Area, "gathered", then_noted)
    monkeypatch.setattr(UcxLane, "_call", noted)
    put(client, truth_of(client.space.spec, TOKENS, 19))
    assert seen == ["gathered", Op.PUSH] * (len(seen) // 2) and len(seen) >= 4


class OneLane:
    """Lanes that are one, to a node which says what a test has it say."""

    def __init__(self, lane: UcxLane) -> None:
        self._lane = lane

    @contextmanager
    def lane(self) -> Iterator[UcxLane]:
        try:
            yield self._lane
        except BaseException:
            self._lane.close()
            raise


def test_what_is_damaged_on_its_way_out_is_not_stored_and_the_next_goes_another_way(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.kernels.gpu.area import Area
    from kvstore.kernels.gpu.staging import Staging

    client, gathered, staged = client_of(small("gpu-spoiled")), Area.gathered, Staging.gathered
    out: list[str] = []

    def then_spoiled(self: Area, places: Any, *more: Any) -> Any:
        made = gathered(self, places, *more)
        self.memory[int(places.blocks.payload_offsets[0])] ^= 1
        out.append("straight")
        return made

    def noted(self: Staging, *what: Any) -> None:
        out.append("pinned")
        staged(self, *what)

    monkeypatch.setattr(Area, "gathered", then_spoiled)
    monkeypatch.setattr(Staging, "gathered", noted)
    truth = truth_of(client.space.spec, TOKENS, 12)
    with pytest.raises(Unavailable, match="damaged on their way"):
        put(client, truth)
    chain, here = put(client, truth, TOKENS), on_device(client, seed=15)
    assert out[-1] == "pinned" and "straight" in out
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth)


def test_the_piece_of_a_call_that_was_cut_is_nobodys_until_the_node_has_hung_up(
    client_of: Clients,
) -> None:
    client = client_of(small("gpu-cut"))
    memory, layout = on_device(client).memory(client), client.space.layout
    ours, node_side = socket.socketpair()
    node_side.send(bytes([Attach.KNOWN] * 2))
    lane = UcxLane(DataStream(ours, stall_seconds=0.1))
    direct: Any = GpuDirect(OneLane(lane), "a node")  # type: ignore[arg-type]
    handles, roots = np.array([bytes(8)], dtype=object), np.zeros((1, 16), np.uint8)
    slots = Slots(ONE, ONE.view(np.uint64), np.array([8], np.int32), handles, roots)
    asked = (layout, slots, memory, ONE, layout.whole)
    assert direct.takes(*asked).all()
    gpu = gpu_area.gpu_of(DEVICE)
    assert gpu is not None and gpu.pieces.free == UCX_GPU_PIECES
    with pytest.raises(Unavailable, match="stood still"):
        direct.load(*asked)
    assert gpu.pieces.free == UCX_GPU_PIECES - 1
    assert not direct.takes(*asked).any(), "the node is left alone with it for a while"
    node_side.close()
    eventually(lambda: gpu.pieces.free == UCX_GPU_PIECES, SECONDS)
    assert shared_agent().knows(gpu.shown), "it stays registered"


class Deaf:
    """A connection to a node that does not take the area, which it takes a while to say."""

    def __init__(self, others: Event) -> None:
        self.asked, self._others = 0, others

    def show(self, shown: Any) -> None:
        self.asked += 1
        self._others.wait(SECONDS)
        raise Unavailable("it stood still")


def test_a_node_that_does_not_answer_is_waited_for_once(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(small("gpu-deaf"))
    memory, layout = on_device(client).memory(client), client.space.layout
    others, began = Event(), Barrier(2)
    deaf = Deaf(others)
    direct: Any = GpuDirect(None, "a deaf node")  # type: ignore[arg-type]
    monkeypatch.setattr(GpuDirect, "_lane", lambda _: nullcontext(deaf))
    handles, roots = np.array([bytes(8)], dtype=object), np.zeros((1, 16), np.uint8)
    slots = Slots(ONE, ONE.view(np.uint64), np.array([8], np.int32), handles, roots)
    tried = gpu_area.Gpu.tries

    def both_try(self: gpu_area.Gpu, address: str) -> bool:
        found = tried(self, address)
        with suppress(BrokenBarrierError):  # the second comes where it is not kept out
            began.wait(0.2)
        others.set()
        return found

    monkeypatch.setattr(gpu_area.Gpu, "tries", both_try)
    with ThreadPoolExecutor(2) as threads:
        takes = partial(direct.takes, layout, slots, memory, ONE)
        found = list(threads.map(takes, [layout.whole] * 2))
    assert not np.concatenate(found).any()
    assert deaf.asked == 1


def test_a_call_keeps_to_its_piece(client_of: Clients, ways: list[str]) -> None:
    client = client_of(small("gpu-piece"))
    truth = truth_of(client.space.spec, TOKENS, 11)
    put(client, truth)
    gpu = gpu_area.gpu_of(DEVICE)
    assert gpu is not None
    for first in range(UCX_GPU_PIECES):
        taken = gpu.pieces.take()
        held = gpu.area.memory[taken : taken + gpu.pieces.size]
        held.fill_(POISON)
        chain, here = put(client, truth, (1 + first) * TOKENS), on_device(client, seed=14)
        assert client.get(chain, here.memory(client)).tokens == TOKENS
        assert here.landed().holds(truth) and set(ways) == {"straight"}
        assert (held == POISON).all(), "it is another's"
        other = gpu.pieces.take()
        gpu.pieces.give(taken)
        gpu.pieces.give(other)  # which is the next to be taken


def test_calls_at_once_have_pieces_of_their_own(client_of: Clients, ways: list[str]) -> None:
    client = client_of(small("gpu-crowd"))
    truth = truth_of(client.space.spec, TOKENS, 9)
    chain = put(client, truth)

    def got(seed: int) -> bool:
        here = on_device(client, seed=seed)
        found = client.get(chain, here.memory(client))
        return found.tokens == TOKENS and here.landed().holds(truth)

    # As many threads as pieces: all go straight, as the interpreter of kernels has one turn alone.
    with ThreadPoolExecutor(UCX_GPU_PIECES) as threads:
        assert all(threads.map(got, range(2 * UCX_GPU_PIECES)))
    assert set(ways) == {"straight"}
