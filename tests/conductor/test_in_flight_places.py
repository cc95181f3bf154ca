"""What is in flight is bounded, for all tenants together and so that each leaves others some."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kvstore.core.turns import Places
from kvstore.errors import Overloaded
from tests.conductor.crews import Rig, chain


def limit(places: Places, total: int) -> None:
    places.total = places.free = total


def test_more_requests_than_are_kept_track_of_are_refused() -> None:
    rig = Rig()
    engine = rig.engine("a")
    limit(rig.in_flight._request_places, 4)
    for request in ("a", "b", "c"):
        rig.in_flight.send(request, engine, 1.0, chain(1), rig.now, 1.0)
    with pytest.raises(Overloaded, match="3 requests of team are in flight"):
        rig.in_flight.send("d", engine, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.send("c", engine, 1.0, chain(1), rig.now, 1.0)
    rig.in_flight.accepted("d", engine, 1.0, chain(1), rig.now)
    assert len(rig.in_flight.prompts) == 3, "an engine that has more goes on being chosen"
    rig.check()


def test_engines_of_several_models_are_one_tenants_that_leaves_another_its_places() -> None:
    rig, several = Rig(), [("team", bytes([number]) * 32, 0) for number in range(4)]
    engines = [rig.engine("a", whose) for whose in several]
    places = rig.scheduler.crew(several[0])[1]._request_places
    limit(places, 100)
    for whose, engine in zip(several, engines, strict=True):
        for number in range(100):
            with suppress(Overloaded):
                in_flight = rig.scheduler.crew(whose)[1]
                in_flight.send(f"r{number}", engine, 1.0, chain(1), rig.now, 1.0)
    assert places.free == 25, "as many as engines of one model leave"
    rig.check()
    for whose, engine in zip(several, engines, strict=True):
        rig.scheduler.leave(whose, engine, rig.now)
    assert places.free == 100


def test_blocks_beyond_what_is_kept_are_not_counted_on_and_their_prompts_are() -> None:
    rig = Rig()
    engine = rig.engine("a")
    limit(rig.in_flight._block_places, 70)
    rig.in_flight.send("a", engine, 1.0, chain(1, 64), rig.now, 1.0)
    rig.in_flight.send("b", engine, 1.0, chain(2, 64), rig.now, 1.0)
    assert rig.in_flight.held == (2, 32)
    rig.check()
