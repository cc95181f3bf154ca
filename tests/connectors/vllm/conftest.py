"""Real nodes, small real models, and what vLLM makes of prompts without any connector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connectors.vllm.models import MAKERS
from tests.connectors.vllm.vision import paddleocr_vl
from tests.nodes import home, node, shared_node

__all__ = ["home", "node", "shared_node"]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a model, made when it is first asked for."""
    base = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}
    makers = {**MAKERS, "paddleocr_vl": paddleocr_vl}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = makers[name](base / name)
        return made[name]

    return folder
