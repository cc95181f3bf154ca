"""Loads into pages that another request may have had a moment ago."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvstore.engine.connectors.vllm.health import health_of
from kvstore.engine.connectors.vllm.loads import Loads
from kvstore.engine.connectors.vllm.messages import Load, Part
from kvstore.engine.connectors.vllm.trace import Trace


class Ordered(Loads):
    """Says when a load would write, after what its caches say of the device."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        cache = SimpleNamespace(told=lambda: self, facts=SimpleNamespace(page_tokens=4))
        caches: Any = (cache,)
        super().__init__(caches, 1, 1.0, health_of("nowhere"), Trace(""))

    def synchronize(self) -> None:
        self.order.append("the device has done what it was told")

    def _load(self, load: Load, part: Part, asked: float) -> int:
        self.order.append("pages are written")
        return load.end


def test_no_page_is_written_before_the_device_is_done_with_who_had_it() -> None:
    order: list[str] = []
    loads = Ordered(order)
    part = Part(group=0, first=0, hashes=(b"hash",), parent=b"", pages=(7,), last_tokens=4)
    loads.start(Load("a", 0, 4, (part,)))
    loads.close()
    assert order == ["the device has done what it was told", "pages are written"]
    assert loads.finished(0.0)["a"].good == 4 and not loads.bad_pages()
