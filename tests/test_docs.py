"""The docs are run: every bash and python block of the guide, and what the README points at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from kvstore.attach.reasons import Reasons
from kvstore.block import Miss
from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from tests.attach.pages import Pages, page
from tests.client.kv_events.publisher import Publisher
from tests.etcd import free_port, need_etcd

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "deploy" / "guide"


def blocks(page: Path, language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S))


def shell(script: str, directory: Path, home: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, "MOONPOOL_DIR": str(home)},
        capture_output=True,
        text=True,
        timeout=300,  # the first that simulates compiles what does, on a busy machine for minutes
    )


@contextmanager
def node() -> Iterator[Path]:
    """A directory in which a node serves."""
    with (
        tempfile.TemporaryDirectory(prefix="mp") as home,
        Stack(Plan(Path(home), "64MiB", "4MiB", None), restart=False) as stack,
    ):
        stack.start()
        yield Path(home)


def test_the_commands_of_the_run_page_run(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(blocks(GUIDE / "run.md", "bash"), tmp_path, Path(home))
    assert ran.returncode == 0, ran.stderr


def test_the_commands_of_the_cluster_page_run(tmp_path: Path) -> None:
    need_etcd()
    script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + blocks(
        GUIDE / "cluster.md", "bash"
    )
    for port in ("2379", "2380"):
        assert port in script
        script = script.replace(port, str(free_port()))
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(script, Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    assert "default: weight 2, no quota" in ran.stdout
    assert re.search(r"fetched_blocks +3\b", ran.stdout)


def test_the_commands_of_the_page_on_copies_run(tmp_path: Path) -> None:
    script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + blocks(
        GUIDE / "copies.md", "bash"
    )
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(script, Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    assert "3 of 3 blocks are at 2 nodes" in ran.stdout
    assert "moved 2 of 5 blocks; 3 were elsewhere too, 0 are left" in ran.stdout
    assert "2 of 2 blocks, 128 of 128 tokens" in ran.stdout
    assert "5 blocks dropped at 1 of 1 nodes" in ran.stdout


def test_the_commands_of_the_security_page_run(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(blocks(GUIDE / "security.md", "bash"), tmp_path, Path(home))
    assert ran.returncode == 0, ran.stderr
    assert "serving" in ran.stdout, "the operator saw the node's figures"
    assert "takes a token of the admin scope" not in ran.stderr
    assert "the token is not known here, or it is over" in ran.stderr


def test_the_commands_of_the_conductor_page_run(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(blocks(GUIDE / "conductor.md", "bash"), Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    said = "prefill-0 at 127.0.0.1:7500, first token after 226 ms, then 8.7 ms each"
    assert said in ran.stdout and f"`{said}`" in (GUIDE / "conductor.md").read_text()
    assert "prefill-0 gives the first token in 226 ms" in ran.stdout


def test_the_commands_of_the_dashboard_page_run(tmp_path: Path) -> None:
    page = GUIDE / "dashboard.md"
    script = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n" + blocks(page, "bash")
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(script, Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    cached = re.findall(r'"cached_tokens": (\d+)', ran.stdout)
    assert cached == ["192", "192", "0"] and '`"cached_tokens": 192` twice' in page.read_text()


def test_the_dashboard_page_says_what_helps_for_every_reason_of_a_miss() -> None:
    told = re.findall(r"^\| `([\w ]+)` \|", (GUIDE / "dashboard.md").read_text(), re.M)
    of_vllm = {"cheaper to compute", "self_test", "audit", "refuse", "unheard"}
    assert sorted(told) == sorted({"whole", *Miss} | of_vllm)


def test_the_commands_of_the_serve_page_run(tmp_path: Path) -> None:
    page = GUIDE / "serve.md"
    script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + blocks(page, "bash")
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(script, Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    for cached in (0, 192):
        said = f"8 tokens for 200, of which {cached} were cached"
        assert said in ran.stdout and f"`{said}`" in page.read_text()


def test_the_commands_of_the_planning_page_run(tmp_path: Path) -> None:
    ran = shell(blocks(GUIDE / "planning.md", "bash"), tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "3 in 9 s, 0.22 a second" in ran.stdout
    assert '"reusing": 2' in ran.stdout
    assert "simulated: 1 prefill on 1 x H100-SXM + 1 decode" in ran.stdout
    assert "the same engines, split otherwise" in ran.stdout


def test_the_commands_of_the_sizing_page_run_and_its_table_is_what_they_print(
    tmp_path: Path,
) -> None:
    page = GUIDE / "sizing.md"
    ran = shell(blocks(page, "bash"), tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "KV         131,072 bytes a token of Meta-Llama-3-8B" in ran.stdout
    assert "nothing is in the way of a node here" in ran.stdout
    ten, hundred = (
        next(line for line in ran.stdout.splitlines() if name in line).split()[-2]
        for name in ("TCP 10 Gb/s", "RDMA 100 Gb/s")
    )
    (tmp_path / "table.py").write_text(blocks(page, "python"))
    table = subprocess.run(
        [sys.executable, "table.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert table.stdout.count("\n") >= 8 and table.stdout in page.read_text()
    assert (ten, hundred) == ("0.0%", "100.0%")


def test_the_commands_of_the_deploy_page_run(tmp_path: Path) -> None:
    ran = shell(blocks(GUIDE / "deploy.md", "bash"), tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    for name in ("ca.pem", "node-pool.key", "conductor-pool.pem", "client-engine.pem"):
        assert (tmp_path / "pki" / name).exists()
    for name in ("node-a.pem", "conductor-a.key", "client-engine.pem"):
        assert (tmp_path / "certs" / name).exists()


def test_the_commands_of_the_attach_page_run(tmp_path: Path) -> None:
    script = blocks(GUIDE / "attach.md", "bash")
    with Pages(page(queries=0.0, hits=0.0)) as server, Publisher() as publisher:
        for said, there in (
            ("http://127.0.0.1:8001", server.url),
            ("tcp://127.0.0.1:5557", publisher.endpoint),
            (",replay=tcp://127.0.0.1:5558", ""),
            ("--minutes 10", "--minutes 0.02"),
        ):
            assert said in script
            script = script.replace(said, there)
        ran = shell(script, tmp_path, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "A pool with 68.72 GB of DRAM and 1,100 GB of SSD" in ran.stdout


def test_the_attach_page_names_every_reason() -> None:
    told = re.findall(r"^\| `(\w+)` \|", (GUIDE / "attach.md").read_text(), re.M)
    assert told == [one.name for one in fields(Reasons)]


def test_the_commands_of_the_any_language_page_run() -> None:
    script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + blocks(
        GUIDE / "any-language.md", "bash"
    )
    with tempfile.TemporaryDirectory(prefix="mp") as home:
        ran = shell(script, Path(home), Path(home))
    assert ran.returncode == 0, ran.stderr
    assert "3 of 3 blocks, 150 of 150 tokens" in ran.stdout
    assert "0 of 3 blocks, 0 of 150 tokens; the next is removed" in ran.stdout


@pytest.mark.parametrize(("name", "says"), [("python.md", "0 0 absent\n"), ("codecs.md", "")])
def test_the_python_of_a_page_runs(tmp_path: Path, name: str, says: str) -> None:
    with node() as home:
        script = blocks(GUIDE / name, "python")
        assert '"./pool"' in script
        page = tmp_path / "page.py"
        page.write_text(script.replace('"./pool"', repr(str(home))))
        ran = subprocess.run(
            [sys.executable, str(page)], capture_output=True, text=True, timeout=100
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == says


def test_every_link_and_path_of_the_readme_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link
    for path in re.findall(r"`((?:kvstore|deploy|proto|bench|engine|kernels)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    assert {"demo", "test"} <= named <= targets
