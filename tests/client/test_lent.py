"""Blocks in HBM that a node lends: put and got on the GPU, and had by everybody else from DRAM."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
import numpy as np
import pytest

from kvstore.cli.main import main
from kvstore.client import Client, KVSpec, Match, Miss
from kvstore.errors import Invalid, WindowClosed
from kvstore.limits import KiB
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.coded import coded_spec, come_back, sequence
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.on_device import OnDevice
from tests.gpu import DEVICE
from tests.lending import GPU, lending, stand_in
from tests.nodes import NodeProcess, eventually, mapped, prompt

TOKENS, TIERS = 37, ("hbm", "dram")
Clients = Callable[..., Client]
pytestmark = pytest.mark.usefixtures("fenced")


@pytest.fixture(scope="module")
def lender() -> Iterator[NodeProcess]:
    with lending("16MiB", dram="32MiB", slab="1MiB") as node:
        yield node


@pytest.fixture
def client_of(lender: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    stand_in(monkeypatch)
    with ExitStack() as made:

        def make(spec: KVSpec, node: NodeProcess = lender, **options: Any) -> Client:
            told = {"deadline_seconds": 20.0, "device": DEVICE} | options
            return made.enter_context(Client.at(node.address, spec, **told))

        yield make


def used(client: Client) -> dict[str, int]:
    """Bytes of each tier that are in use, and what was moved and dropped."""
    stats = client.connection.link().admin.Stats(admin_pb2.StatsRequest())
    hbm, dram = (sum(getattr(one, f"{tier}_bytes") for one in stats.tenants) for tier in TIERS)
    counted = {name: stats.counters.get(name, 0) for name in ("demoted_blocks", "evicted_blocks")}
    return {"hbm": hbm, "dram": dram} | counted


def put(client: Client, tokens: int, seed: int) -> tuple[Any, np.ndarray]:
    """A sequence from the GPU; its chain and truth."""
    spec = client.space.spec
    truth = truth_of(spec, tokens, seed)
    chain = client.chain(range(1_000_000 * seed, 1_000_000 * seed + tokens))
    axes = "phtkd" if spec.groups[0].parts == 2 else "phtd"
    ours = Cache(spec, tokens, kind="torch", seed=seed, axes=axes)
    ours.fill(truth)
    there = OnDevice(ours, client.space.layout, 8)
    assert client.put(chain, there.memory(client)) == len(chain)
    return chain, truth


def got(client: Client, chain: Any, *, on_device: bool) -> tuple[Match, Cache]:
    tokens = chain.token_count
    spec = client.space.spec
    axes = "pthkd" if spec.groups[0].parts == 2 else "pthd"
    cache = Cache(spec, tokens, kind="torch", axes=axes, page_tokens=5, seed=9)
    if not on_device:
        return client.get(chain, cache.memory(client)), cache
    here = OnDevice(cache, client.space.layout, 8)
    found = client.get(chain, here.memory(client))
    return found, here.landed()


@pytest.mark.parametrize(("dtype", "parts"), [("float32", 2), ("bfloat16", 2), ("bfloat16", 1)])
def test_what_the_gpu_puts_comes_back_there_and_no_byte_was_in_dram(
    client_of: Clients, dtype: str, parts: int
) -> None:
    heads = 1 if parts == 1 else 4
    spec = spec_of(f"lent-{dtype}-{parts}", dtype=dtype, parts=parts, kv_heads=heads)
    client = client_of(spec)
    before = used(client) if parts == 2 and dtype == "bfloat16" else None
    chain, truth = put(client, TOKENS, 1)
    after = used(client)
    assert after["hbm"] >= len(chain) * client.space.layout.slot_bytes
    if before is not None:
        assert after["dram"] == before["dram"]
    found, cache = got(client, chain, on_device=True)
    assert found == Match(len(chain), TOKENS, None)
    assert cache.holds(truth) and cache.untouched(0, TOKENS)
    assert used(client)["demoted_blocks"] == after["demoted_blocks"], "it stayed where it was"


HOWS = ["shm", "tcp", "another session of the GPU", "memory of the host"]


@pytest.mark.parametrize("how", HOWS)
def test_whoever_does_not_reach_it_has_it_from_dram(client_of: Clients, how: str) -> None:
    client = client_of(spec_of(f"lent-elsewhere-{how}"))
    chain, truth = put(client, TOKENS, 2)
    before = used(client)
    if how == "memory of the host":
        other = client
    elif how == "another session of the GPU":
        other = client_of(client.space.spec)
    else:
        other = client_of(client.space.spec, device=None, transport=how)
    found, cache = got(other, chain, on_device="GPU" in how)
    assert found == Match(len(chain), TOKENS, None)
    assert cache.holds(truth)
    down = 0 if "GPU" in how else len(chain)
    assert used(client)["demoted_blocks"] == before["demoted_blocks"] + down
    found, cache = got(client, chain, on_device=True)
    assert found.tokens == TOKENS and cache.holds(truth), "and the GPU has it from there"


def test_a_codec_codes_what_goes_there(client_of: Clients) -> None:
    spec = coded_spec("lent-fp8", "fp8", layers=1, kv_heads=2)
    client, tokens = client_of(spec), 40
    truth, chain = sequence(spec, tokens, 5), client.chain(range(tokens))
    ours = Cache(spec, tokens, kind="torch")
    ours.fill(truth)
    client.put(chain, OnDevice(ours, client.space.layout, 1).memory(client))
    for on_device in (True, False):
        other = client if on_device else client_of(spec, device=None)
        found, cache = got(other, chain, on_device=on_device)
        assert found.tokens == tokens and cache.holds(come_back(spec, truth))


def test_what_passes_it_is_in_dram_and_some_is_kept_free(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with lending("256KiB", dram="4MiB", slab="64KiB") as node:
        spec = spec_of("lent-full")
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            stored = [put(client, 64, seed) for seed in range(1, 5)]
            whole = 256 * KiB
            eventually(lambda: used(client)["hbm"] <= whole * 7 / 8)
            counted = used(client)
            assert counted["demoted_blocks"] > 0 and counted["evicted_blocks"] == 0
            assert counted["hbm"] > whole / 2 and counted["dram"] > 0
            for chain, truth in stored:
                found, cache = got(client, chain, on_device=True)
                assert found.tokens == 64 and cache.holds(truth)


def test_a_block_that_is_damaged_there_is_a_miss_and_can_be_put_again(
    client_of: Clients,
) -> None:
    client = client_of(spec_of("lent-damaged"))
    chain, truth = put(client, TOKENS, 3)
    region = client.connection.link().transport._lent._region  # type: ignore[attr-defined]
    arena = client.connection.link().opened.arena_bytes
    layout = client.space.layout
    with client.reader(chain, _pages(client).memory(client)) as reader:
        offset = int(reader._opened.slots.offsets[1]) - arena
    region.bytes[offset + layout.head_bytes + 99] ^= 1
    found, cache = got(client, chain.between(0, 2), on_device=True)
    assert found == Match(1, 8, Miss.DAMAGED)
    assert cache.holds(truth, 0, 8) and cache.untouched(0, 8)
    assert client.match(chain).blocks == 1, "the node believes who read it"
    ours = Cache(client.space.spec, TOKENS, kind="torch", seed=3)
    ours.fill(truth)
    assert client.put(chain, OnDevice(ours, layout, 8).memory(client)) == 1
    found, cache = got(client, chain, on_device=True)
    assert found.tokens == TOKENS and cache.holds(truth)


def _pages(client: Client) -> OnDevice:
    return OnDevice(Cache(client.space.spec, TOKENS, kind="torch"), client.space.layout, 8)


def test_memory_of_the_host_is_refused_by_a_client_of_a_gpu(client_of: Clients) -> None:
    client = client_of(spec_of("lent-refused"))
    cache = Cache(client.space.spec, TOKENS, kind="torch")
    with pytest.raises(Invalid, match=r"the memory is elsewhere: use a client with no `device`"):
        client.put(client.chain(range(TOKENS)), cache.memory(client))


def test_a_writer_that_is_followed_or_has_partners_is_given_dram(client_of: Clients) -> None:
    client = client_of(spec_of("lent-followed"))
    chain, before = client.chain(range(TOKENS)), used(client)["hbm"]
    arena = client.connection.link().opened.arena_bytes
    for options in ({"hand_off": True}, {"writer_group": "partners"}):
        with client.writer(chain, **options) as writer:  # which gives them up
            assert (writer._slots.offsets < arena).all()
    with client.writer(chain) as writer:
        assert (writer._slots.offsets >= arena).all()
    assert used(client)["hbm"] == before, "what is given up is given back"


def test_blocks_that_are_held_for_a_reader_stay_where_they_are(client_of: Clients) -> None:
    client = client_of(spec_of("lent-held"))
    chain, truth = put(client, TOKENS, 4)
    before = used(client)
    hold = client.hold(chain)
    assert hold.blocks == len(chain)
    found, cache = got(client, chain, on_device=True)
    assert found.tokens == TOKENS and cache.holds(truth)
    assert used(client) == before
    found, cache = got(client_of(client.space.spec, device=None), chain, on_device=False)
    assert found.tokens == TOKENS and cache.holds(truth)
    assert used(client)["hbm"] == before["hbm"], "its place is held still"
    hold.release()
    assert used(client)["hbm"] < before["hbm"], "let go, it is in DRAM alone"


def test_what_is_there_survives_a_stop_where_there_is_an_ssd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch)
    with lending("4MiB", slab="64KiB", ssd="16MiB") as node:
        spec = spec_of("lent-stopped")
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            chain, truth = put(client, TOKENS, 1)
            assert used(client)["dram"] == 0
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
        node.start()
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            found, cache = got(client, chain, on_device=True)
            assert found == Match(len(chain), TOKENS, None) and cache.holds(truth)
            put(client, TOKENS, 2)
            assert used(client)["hbm"] > 0, "and it lends again"


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_a_node_whose_gpu_is_full_serves_without_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)
    with lending("2GiB") as node:
        spec = spec_of("lent-none")
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            chain, truth = put(client, TOKENS, 1)
            assert used(client)["hbm"] == 0
            found, cache = got(client, chain, on_device=True)
            assert found.tokens == TOKENS and cache.holds(truth)
        assert main(["stat", "--dir", str(node.directory)]) == 0
        assert "hbm       none: cpu has no 2147483648 bytes left" in capsys.readouterr().out
        assert "the node serves without HBM" in node.log


def test_stat_says_what_is_used(
    client_of: Clients, lender: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(spec_of("lent-stat"))
    put(client, TOKENS, 6)
    assert main(["stat", "--dir", str(lender.directory)]) == 0
    assert "of 16.0 MiB in use, of GPU" in capsys.readouterr().out


def test_a_client_that_is_idle_gives_back_what_a_killed_node_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch)
    with lending("4MiB", slab="64KiB") as node:
        spec = spec_of("lent-killed")
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            chain, _ = put(client, TOKENS, 1)
            link, closed = client.connection.link(), list[object]()
            kind = type(link.transport._lent._region)  # type: ignore[attr-defined]
            monkeypatch.setattr(kind, "close", lambda self: closed.append(self))
            writer = client.writer(client.chain(range(TOKENS)))
            pages = _pages(client).memory(client)
            node.kill()
            eventually(lambda: closed)
            assert not link.alive and not link.transport.lends(client.space.layout)
            with pytest.raises(WindowClosed, match="the node that lent this HBM is gone"):
                writer.put(pages)
            assert client.get(chain, pages).miss is Miss.UNREACHABLE
        assert len(closed) == 1, "once, whoever closes it"


def test_a_node_gives_no_slot_there_that_somebody_else_is_to_reach(lender: NodeProcess) -> None:
    """Whatever a caller says: partners and followers may be on the host's other processors."""
    with closing(lender.caller()) as caller:
        caller.register()
        first = caller.opened.arena_bytes

        def above(number: int, **more: Any) -> bool:
            given = caller.ask("Reserve", hbm=True, **caller.about(prompt(800 + number)), **more)
            caller.ask("Abort", handles=given.handles)
            return bool(given.slot_offsets[0] >= first)

        assert not above(0), "who has not mapped the arena reaches no HBM"
        with mapped(caller):
            assert above(1)
            assert not above(2, writer_group="g")
            assert not above(3, hand_off=True)
            part = pb.Fragment(layer_first=0, layers=1, head_first=0, heads=2)
            assert not above(4, fragment=part)


def test_who_holds_a_block_there_reads_it_only_once_it_is_opened(client_of: Clients) -> None:
    """Its bytes are not in the arena: nobody is told that they are damaged, or given others."""
    client = client_of(spec_of("lent-pinned"))
    chain, truth = put(client, TOKENS, 10)
    link, before = client.connection.link(), used(client)
    about = {"namespace": client.space.digest, "hashes": chain.hashes[:1]}
    pinned = link.kv.Pin(pb.PinRequest(session=link.session, **about), timeout=20.0)
    asked = pb.ReadRequest(session=link.session, handle=pinned.handles[0])
    with pytest.raises(
        grpc.RpcError, match="in HBM, whose bytes go by no stream: Open or Reserve it"
    ):
        list(link.kv.Read(asked, timeout=20.0))
    opened = pb.OpenRequest(session=link.session, hbm=True, **about)
    with pytest.raises(grpc.RpcError, match="in HBM"):
        asked.handle = link.kv.Open(opened, timeout=20.0).handles[0]
        list(link.kv.Read(asked, timeout=20.0))
    assert used(client) == before
    found, cache = got(client, chain, on_device=True)
    assert found.tokens == TOKENS and cache.holds(truth)


def test_what_is_acknowledged_as_durable_survives_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with lending("4MiB", slab="64KiB", ssd="16MiB") as node:
        spec = spec_of("lent-durable")
        with Client.at(node.address, spec, deadline_seconds=20.0, device=DEVICE) as client:
            truth, chain = truth_of(spec, TOKENS, 1), client.chain(range(TOKENS))
            ours = Cache(spec, TOKENS, kind="torch")
            ours.fill(truth)
            writer, link = client.writer(chain), client.connection.link()
            writer.put(OnDevice(ours, client.space.layout, 8).memory(client))
            assert (writer._slots.offsets >= link.opened.arena_bytes).all()
            request = pb.SealRequest(session=link.session, handles=writer._handles, durable=True)
            client.connection.call(lambda link: link.kv.Seal, request)
            assert used(client)["hbm"] == 0 and used(client)["demoted_blocks"] == len(chain)
            node.kill()
        node.start()
        with Client.at(node.address, spec, deadline_seconds=20.0) as client:
            found, cache = got(client, chain, on_device=False)
            assert found == Match(len(chain), TOKENS, None) and cache.holds(truth)


@pytest.mark.parametrize("why", ["another GPU", "no such handle", "torch does not", "no device"])
def test_who_cannot_open_it_has_its_blocks_in_dram(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    from kvstore.kernels.gpu import exported

    causes = {
        "no such handle": exported.CudaError("cuIpcOpenMemHandle: CUDA error 201"),
        "torch does not": RuntimeError("CUDA driver version is insufficient"),
    }

    def refused(*what: object) -> object:
        raise causes[why]

    if why == "another GPU":
        monkeypatch.setattr(exported, "name_of", lambda device: "another GPU")
    if why in causes:
        monkeypatch.setattr(exported, "opened", refused)
    options = {"device": None} if why == "no device" else {}
    client = client_of(spec_of(f"lent-not-{why}"), **options)
    before = used(client)["hbm"]
    chain, truth = put(client, TOKENS, 8)
    found, cache = got(client, chain, on_device=True)
    assert found.tokens == TOKENS and cache.holds(truth)
    assert used(client)["hbm"] == before


def test_of_the_arena_cuda_is_told_of_dram_alone(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it lie heads, few and far between: to pin all that would take it all."""
    from kvstore.kernels.gpu import registered

    made, told = registered.Registered.__init__, list[int]()

    def noted(self: Any, memory: np.ndarray, device: Any, **more: Any) -> None:
        told.append(len(memory))
        made(self, memory, device, **more)

    monkeypatch.setattr(registered.Registered, "__init__", noted)
    monkeypatch.setattr("kvstore.transfer.reached.RUN_BYTES_MIN", 0)
    client = client_of(spec_of("lent-known"), device=None)
    chain, _ = put(client, 8, 9)
    assert got(client, chain, on_device=True)[0].tokens == 8
    assert told == [client.connection.link().opened.arena_bytes]
