"""A dispatcher over servers that have LoRA adapters: which are asked, and for what."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kvstore.block import chain
from kvstore.config import OPEN
from kvstore.content import adapted, salted, together
from kvstore.errors import Unavailable
from kvstore.gateway.dispatch import TRIES_MAX, Dispatcher
from kvstore.gateway.lacking import KEPT_SECONDS, Lacking
from kvstore.gateway.needs import Lacks
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Ask, One, Space
from tests.gateway.engine_doubles import Nobody
from tests.gateway.openai_server import Double, serving
from tests.gateway.test_vllm import TOKENS, WHOLE, Names, run
from tests.nodes import SPEC

WEIGHTS, PROMPT = b"w" * 32, tuple(range(10))


def test_a_server_is_asked_for_the_adapter_by_its_name_and_for_the_model_by_none() -> None:
    server = Double(WHOLE)
    with serving(server):
        for adapter in ("french", ""):
            tokens, _ = run(Nobody(), server.address, adapter=adapter)
            assert tokens == TOKENS
    assert [one.body.get("model") for one in server.asked] == ["french", None]


def test_engines_that_compute_under_no_adapter_are_not_asked_to() -> None:
    server = Double(WHOLE)
    others = ("127.0.0.1:9", "sglang://127.0.0.1:9")
    with serving(server):
        tokens, outcome = run(Nobody(), *others, server.address, adapter="french")
        assert tokens == TOKENS and outcome.engines == [server.address]
        for planner, engines in ((Nobody(), others), (Names("127.0.0.1:9"), ())):
            with pytest.raises(
                Unavailable, match=r"no vLLM server is known now.*'french'"
            ) as caught:
                run(planner, *engines, adapter="french")
            assert caught.value.retry_after_ms, "its operator says that there are some"


def lacking() -> Double:
    return Double([{"error": {"message": "The model `french` does not exist."}}], status=404)


def test_where_servers_do_not_have_it_others_are_asked_however_many_they_are() -> None:
    has, lack = Double(WHOLE), [lacking() for _ in range(TRIES_MAX + 1)]
    with serving(has, *lack):
        addresses = [*(one.address for one in lack), has.address]
        tokens, outcome = run(Nobody(), *addresses, adapter="french")
        assert tokens == TOKENS and outcome.engines == addresses
        with pytest.raises(Lacks, match="does not exist"):
            run(Nobody(), *addresses[:-1], adapter="french")


def test_where_the_server_of_a_plan_has_it_not_one_that_conductors_know_of_is_asked() -> None:
    lack, has = lacking(), Double(WHOLE)
    with serving(lack, has):
        planner = Names(lack.address)  # idle as it is, it is named again
        dispatcher = Dispatcher(planner, Known(lack.address, has.address), (), OPEN)
        with closing(dispatcher):
            for refused in ([], [lack.address], [lack.address]):
                outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS), adapter="french"))
                assert outcome.engines == [lack.address, has.address]
                first, last = planner.not_at[0], planner.not_at[-1]
                assert (first, last) == (refused, [lack.address]), "it is said to conductors"
                planner.not_at.clear()
            lack.events, lack.status = WHOLE, 200
            outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS)))
            assert outcome.engines == [lack.address], "it serves the model as before"
            assert planner.not_at == [[]]


def test_where_no_conductor_answers_servers_that_have_it_not_are_not_asked_each_time() -> None:
    lack, has = [lacking() for _ in range(2)], Double(WHOLE)
    with serving(has, *lack):
        addresses = [*(one.address for one in lack), has.address]
        with closing(Dispatcher(Nobody(), Known(*addresses), addresses, OPEN)) as dispatcher:

            def sent_to() -> list[str]:
                request = Request("r", PROMPT, len(TOKENS), adapter="french")
                return dispatcher.run(request).engines

            assert sent_to() == addresses
            assert [sent_to() for _ in range(3)] == [[has.address]] * 3
            has.status, has.events = lack[0].status, lack[0].events
            with pytest.raises(Lacks):
                sent_to()  # where none has it all are asked again
            assert [len(one.asked) for one in lack] == [2, 2]


def test_that_a_server_has_it_not_is_soon_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("kvstore.gateway.lacking.time", SimpleNamespace(monotonic=lambda: now))
    lacking = Lacking()
    for at, one in enumerate("abc"):
        now = 100.0 + 10.0 * at
        lacking.add("french", one)
    lacking.add("greek", "a")
    assert lacking.of("french") == {*"abc"} and lacking.of("greek") == {"a"}
    assert lacking.of("klingon") == set()
    lacking.add("french", "a")  # it says so anew
    now = 100.0 + KEPT_SECONDS + 5.0
    assert lacking.of("french") == {*"abc"}
    now = 110.0 + KEPT_SECONDS + 5.0
    assert lacking.of("french") == {*"ac"}
    now = 1_000.0
    assert lacking.of("french") == lacking.of("greek") == set()


class Known(One):
    """What conductors say: engines at these addresses."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(SPEC)
        self._all = (replace(Space.of(SPEC), samples=True),)
        self._addresses = addresses

    def addresses(self) -> Set[str]:
        return {*self._addresses}


class Kinds(Known):
    """Servers of two kinds, of which one has loaded the adapter already."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(*addresses)
        (one,) = self._all
        self._all = (replace(one, adapters={"french": WEIGHTS}), replace(one, namespace=b"o" * 32))
        self.compared: list[list[int]] = []

    def first(self, asks: Sequence[Ask]) -> int:
        self.compared.append([len(one.hashes) for one in asks])
        return len(asks) - 1


def test_servers_of_all_kinds_are_compared_though_those_of_one_have_loaded_the_adapter() -> None:
    has = Double(WHOLE)
    with serving(has):
        spaces = Kinds(has.address)
        with closing(Dispatcher(Names(has.address), spaces, (), OPEN)) as dispatcher:
            dispatcher.run(Request("r", PROMPT, len(TOKENS), adapter="french"))
    assert spaces.compared == [[3, 0]], "blocks, and those of who has not loaded it have no names"


@pytest.mark.parametrize("address", ["127.0.0.1:9", "sglang://127.0.0.1:9"])
def test_a_plan_that_names_who_computes_the_model_alone_is_not_followed(address: str) -> None:
    """Engines of several kinds may share a namespace, and one may have come just now."""
    has, planner = Double(WHOLE), Names(address)
    with serving(has), closing(Dispatcher(planner, Known(has.address), (), OPEN)) as dispatcher:
        outcome = dispatcher.run(Request("r", PROMPT, len(TOKENS), adapter="french"))
    assert outcome.engines == [has.address] and planner.phases, "the planner was asked"


def test_a_server_that_answers_by_another_model_has_it_not() -> None:
    named = [{**one, "model": "tiny"} if isinstance(one, dict) else one for one in WHOLE]
    other, has = Double(named), Double(WHOLE)
    with serving(other, has):
        tokens, outcome = run(Nobody(), other.address, has.address, adapter="french")
        assert tokens == TOKENS and outcome.engines == [other.address, has.address]
        assert run(Nobody(), other.address)[0] == TOKENS


def test_a_server_that_went_away_is_no_reason_to_say_that_none_has_it() -> None:
    """It may have it, and be there again soon, whether one that has it not is asked before it or
    after it."""
    gone, lack = "http://127.0.0.1:9", lacking()
    with serving(lack):
        for servers in ((gone,), (gone, lack.address), (lack.address, gone)):
            with pytest.raises(Unavailable) as caught:
                run(Nobody(), "127.0.0.1:9", *servers, adapter="french")
            assert not isinstance(caught.value, Lacks)


def test_blocks_under_an_adapter_are_named_by_its_weights() -> None:
    space = Space(b"n" * 32, 1, 4, adapters={"french": WEIGHTS, "mixed": b""})
    under = Request("r", PROMPT, 4, salt="s", adapter="french")
    extra = together(salted("s"), adapted(WEIGHTS))
    assert list(space.asked(under).hashes) == list(chain(b"n" * 32, 1, PROMPT, 4, extra).hashes)
    for adapter in ("mixed", "unheard of"):
        asked = space.asked(Request("r", PROMPT, 4, adapter=adapter))
        assert not asked.hashes and asked.tokens == len(PROMPT), "nobody knows what to look for"
