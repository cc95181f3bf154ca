"""Under a codec an engine's audit still tells rounding, the codec's too, from KV that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvstore.layout import SlotLayout
from kvstore.spec import KVSpec
from tests.connectors.vllm.engine import EngineFailed, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess

LENGTH = 3 * 64 + 10
CLEAN = 12


def louder(data: bytes, spec: KVSpec, by: float) -> bytes:
    """A full coded block whose every scale is so much larger."""
    group, layout = spec.groups[0], SlotLayout.of(spec, 0)
    strips = np.frombuffer(data, np.uint8).reshape(layout.strips, layout.strip_stride).copy()
    codes = group.block_tokens * group.parts * group.head_dim
    some = slice(codes, codes + group.block_tokens // 16 * group.parts * 4)
    scales = np.ascontiguousarray(strips[:, some]).view(np.float32)
    assert (scales > 0).all()
    strips[:, some] = (scales * np.float32(by)).view(np.uint8)
    return strips.tobytes()


@pytest.mark.parametrize("codec", ["fp8", "int8"])
def test_coded_kv_is_reused_audited_without_alarm_and_found_out_when_it_is_wrong(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path, codec: str
) -> None:
    prompts = [prompt(700 + index, LENGTH) for index in range(CLEAN + 1)]
    extra = {"codec": codec}
    with engine(model("llama"), tmp_path / "first.log", node=node.address, extra=extra) as first:
        first.run(*prompts, tokens=1)
    pool = Pool(node)
    assert pool.spec.codec == codec
    wrong = prompts[-1]
    for index, data in enumerate(pool.get(wrong)):
        pool.replace(wrong, 0, index, louder(data, pool.spec, 1.01))
    extra |= {"audit_rate": 0.8, "audit_seed": 3}
    with engine(model("llama"), tmp_path / "second.log", node=node.address, extra=extra) as second:
        cached = [second.run(tokens, tokens=1).cached[0] for tokens in prompts[:-1]]
        figures = second.figures()
        assert 192 in cached and 0 in cached, "loaded some, audited the others"
        assert figures["audits"] == cached.count(0) and figures["alarms"] == 0
        for _ in range(10):  # until the die says that it is compared
            second.forget()
            second.run(wrong, tokens=1)
            if second.figures()["alarms"]:
                break
        assert second.figures()["alarms"] == 1
        assert "is WRONG" in second.log and "1.0100 x" in second.log


def test_a_codec_that_is_none_of_them_is_refused_by_name(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    with (
        pytest.raises(EngineFailed, match=r"extra_config\.codec: codec 'fp4' is not supported"),
        engine(model("llama"), tmp_path / "e.log", node=node.address, extra={"codec": "fp4"}),
    ):
        pass
