"""An engine whose pages a GPU's kernels read: the same tokens, and the same use of the pool.

On a GPU where there is one; else the kernels run in Triton's interpreter, on tensors of the CPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvstore.cli import engine
from kvstore.cli.main import command_line
from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory, Miss
from kvstore.engine import daemon
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.device import CPU, Device
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.reference import Reference, reference_tokens
from kvstore.engine.sequence import Chunk
from kvstore.engine.worker import Worker
from kvstore.errors import ConfigError
from tests.engine.asks import NEW, ask, check
from tests.engine.runs import finish, prompt, request, run
from tests.engine.styles import save_model
from tests.gpu import DEVICE

pytestmark = pytest.mark.usefixtures("fenced")


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.with_kernels(DEVICE)


@pytest.fixture(scope="module")
def on_device(model_dir: Path, device: Device) -> Model:
    return Model.load(model_dir, device=device)


@pytest.mark.parametrize("page_tokens", [5, 64])
def test_chunks_of_prompts_beside_decodes_give_the_reference_tokens(
    on_device: Model, reference: Reference, page_tokens: int
) -> None:
    settings = EngineSettings(
        pages=100, page_tokens=page_tokens, max_batch_tokens=50, max_running=3
    )
    core, wanted = EngineCore(on_device, settings), dict[str, list[int]]()
    for length in (1, 64, 90):
        tokens = prompt(length, seed=length)
        core.add(request(tokens, new=6, name=str(length)))
        wanted[str(length)] = reference.tokens(tokens, 6)
    assert finish(core) == wanted


@pytest.mark.parametrize("style", ["qwen3 with q and k norms", "llama with every bias"])
def test_other_styles_give_the_reference_tokens_too(
    tmp_path: Path, device: Device, style: str
) -> None:
    folder, tokens = save_model(tmp_path, style), prompt(40, vocab=300)
    core = EngineCore.load(folder, EngineSettings(pages=4), device=device)
    assert run(core, tokens, 5) == reference_tokens(folder, tokens, 5)


def test_pages_are_where_the_device_is(on_device: Model) -> None:
    core = EngineCore(on_device, EngineSettings(pages=2))
    assert core.cache.storage.device.type == DEVICE.type


def test_a_step_runs_while_its_device_is_the_threads_own(
    on_device: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[torch.device] = []
    steps = []

    @contextmanager
    def current(self: Device) -> Iterator[None]:
        inside.append(self.place)
        yield
        inside.pop()

    monkeypatch.setattr(Device, "current", current)
    core = EngineCore(on_device, EngineSettings(pages=4))
    logits = core._logits

    def noted(chunks: Sequence[Chunk]) -> torch.Tensor:
        steps.append([*inside])
        return logits(chunks)

    monkeypatch.setattr(core, "_logits", noted)
    run(core, prompt(20), 3)
    assert steps == [[on_device.device.place]] * 3 and not inside


def test_the_second_gpu_is_made_the_threads_own_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device", lambda place: nullcontext(place))
    with replace(CPU, place=second).current() as made:
        assert made == second
    with CPU.current() as made:
        assert made is None, "of a CPU there is one"


@pytest.fixture
def clients(node: Stack, model_dir: Path) -> Iterator[list[Client]]:
    where, spec = InDirectory(node.children["node"].log.parent), spec_of(model_dir)
    made = [Client(where, spec, deadline_seconds=20.0) for _ in range(2)]
    yield made
    for client in made:
        client.close()


def test_what_one_engine_stores_beside_its_steps_another_loads(
    on_device: Model, device: Device, reference: Reference, node: Stack, clients: list[Client]
) -> None:
    tokens = prompt(140, seed=77)
    found = []
    for client in clients:
        core = EngineCore(on_device, EngineSettings(pages=8, max_batch_tokens=70))
        pool = Pool(client, core.cache, device=device)
        worker = Worker(core, pool)
        worker.start()
        asked = ask(worker, "a", tokens)
        assert asked.finish() == reference.tokens(tokens, NEW)
        found.append((asked.use.pool_tokens, asked.use.miss, pool.failures))
        worker.stop(5.0)
        pool.close()
    assert found == [(0, Miss.ABSENT, 0), (140, "", 0)]
    check(node)


def test_the_cpu_is_asked_for_by_its_name() -> None:
    assert Device.named("cpu") is CPU


@pytest.mark.parametrize(
    ("said", "records"), [([], True), (["--graphs"], True), (["--no-graphs"], False)]
)
def test_a_gpu_records_its_decode_steps_unless_it_is_told_not_to(
    device: Device, said: list[str], records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "named", lambda name: device if name == "cuda" else CPU)
    told = ["engine", "--model", ".", "--device", "cuda", *said]
    found = daemon._device(engine._config(command_line().parse_args(told)))
    assert found == (device if records else device.without_graphs())
    assert (found.recording is not None) == records


@pytest.mark.parametrize("name", ["tpu", "mps", "", "cuda:x"])
def test_another_kind_of_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {name}: is one of cpu, cuda, cuda:N"):
        Device.named(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_is_refused_where_there_is_none(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {name}: torch .* finds no CUDA device here"):
        Device.named(name)


@pytest.mark.parametrize(
    ("ranks", "why"),
    [("2", "--tp 2 --device cuda: ranks add up on"), ("1", "finds no CUDA device")],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_command_ends_with_what_would_be_right(ranks: str, why: str, model_dir: Path) -> None:
    moonpool = Path(sys.executable).parent / "moonpool"
    asked = [moonpool, "engine", "--model", model_dir, "--device", "cuda", "--tp", ranks]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=100)
    assert said.returncode == 2 and why in said.stderr and "--" in said.stderr.split(why)[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device cuda:99: there are"):
        Device.named("cuda:99")


def test_a_cpu_is_known_by_its_name_and_how_much_of_it_an_engine_takes() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert re.fullmatch(r"\S.*, 2 threads", CPU.kind)
    finally:
        torch.set_num_threads(before)
