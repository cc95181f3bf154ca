"""An engine is believed what can be, and what cannot be ends its stream by the field's name."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from kvstore.block import stored_keys
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.reports import BEGIN_SECONDS, Reporter, hashes_of
from kvstore.core.fingerprints import fingerprints
from kvstore.errors import Invalid, Unavailable
from kvstore.kernels.decision import waiting
from kvstore.limits import (
    REPORT_BLOCKS_MAX,
    REPORT_MEASURED_MAX,
    REPORT_REQUESTS_MAX,
    REQUEST_ID_BYTES_MAX,
    RPC_KEYS_MAX,
)
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import Rig
from tests.conductor.reporting import accepted, engine
from tests.nodes import SPEC, prompt

SECRET = bytes(range(32))
OURS: Whose = ("team", SPEC.digest, 0)
Cost = pb.ReportRequest.Cost


class Streams:
    """Streams of reports to one scheduler."""

    def __init__(self) -> None:
        self.rig = Rig()

    def begin(self, name: str = "a", **fields: Any) -> Reporter:
        reporter = Reporter(self.rig.scheduler, "team", lambda: SECRET)
        self.say(reporter, engine=engine(name, **fields))
        return reporter

    def say(self, reporter: Reporter, **fields: Any) -> None:
        reporter.take(pb.ReportRequest(**fields), self.rig.now)
        self.rig.check()

    @property
    def crew(self) -> Any:
        return self.rig.scheduler.crew(OURS)[0]


def prefill(**fields: Any) -> Any:
    return pb.ReportRequest.Prefill(
        **{"new_tokens": 100, "prefix_tokens": 0, "seconds": 0.1, **fields}
    )


def step(**fields: Any) -> Any:
    return pb.ReportRequest.Step(**{"batch": 8, "context_tokens": 1_000, "seconds": 0.02, **fields})


def transfer(**fields: Any) -> Any:
    return pb.ReportRequest.Transfer(**{"bytes": 1 << 20, "seconds": 0.01, **fields})


def load(**fields: Any) -> Any:
    return pb.ReportRequest.Load(**fields)


BAD_ENGINES = [
    ({"engine_id": ""}, "engine.engine_id is 0 bytes"),
    ({"engine_id": "a\nb"}, "engine.engine_id is 3 bytes"),
    ({"engine_id": "a" * 1_025}, "engine.engine_id is 1025 bytes"),
    ({"node_id": ""}, "engine.node_id is 0 bytes"),
    ({"address": "nowhere"}, "engine.address = 'nowhere': write HOST:PORT"),
    ({"address": "h:0"}, "engine.address"),
    ({"address": "h:99999"}, "engine.address"),
    ({"namespace": b"short"}, "engine.namespace is 5 bytes"),
    ({"group": 64}, "engine.group = 64: from 0 to 63"),
    ({"block_tokens": 0}, "engine.block_tokens = 0"),
    ({"block_tokens": 1 << 20}, "engine.block_tokens = 1048576"),
    ({"token_bytes": 0.0}, "engine.token_bytes = 0"),
    ({"token_bytes": math.nan}, "engine.token_bytes = nan"),
    ({"room_tokens": 1 << 50}, "engine.room_tokens"),
    ({"link_bytes_per_second": 0.0}, "engine.link_bytes_per_second = 0"),
    ({"link_bytes_per_second": math.inf}, "engine.link_bytes_per_second = inf"),
    ({"ssd_bytes_per_second": -1.0}, "engine.ssd_bytes_per_second = -1"),
    ({"rack": "r" * 257}, "engine.rack is 257 bytes"),
    ({"nvlink_domain": "a\nb"}, "engine.nvlink_domain is 3 bytes"),
    ({"domain_bytes_per_second": math.nan}, "engine.domain_bytes_per_second = nan"),
    ({"cross_rack_bytes_per_second": -1.0}, "engine.cross_rack_bytes_per_second = -1"),
    ({"prefill": Cost(a=-1.0)}, "engine.prefill.a = -1"),
    ({"decode": Cost(c=math.nan)}, "engine.decode.c = nan"),
    ({"prefill": Cost(b=math.inf)}, "engine.prefill.b = inf"),
    ({"prefill": None, "decode": None}, "engine.prefill and engine.decode are absent"),
]
BAD_REPORTS = [
    ({"prefills": [prefill()] * (REPORT_MEASURED_MAX + 1)}, "prefills: 257 in one message"),
    ({"prefills": [prefill(), prefill(new_tokens=0)]}, "prefills[1].new_tokens = 0"),
    ({"prefills": [prefill(prefix_tokens=1 << 30)]}, "prefills[0].prefix_tokens"),
    ({"prefills": [prefill(seconds=-1.0)]}, "prefills[0].seconds = -1"),
    ({"adapters": [pb.Adapter(name="a\nb")]}, "adapters[0].name"),
    ({"adapters": [pb.Adapter(name="a", weights=b"1")]}, "adapters[0].weights is 1 bytes"),
    ({"adapters": [pb.Adapter(name="a")] * 257}, "adapters: 257"),
    ({"prefills": [prefill(seconds=math.nan)]}, "prefills[0].seconds = nan"),
    ({"steps": [step(batch=0)]}, "steps[0].batch = 0"),
    ({"steps": [step(context_tokens=1 << 60)]}, "steps[0].context_tokens"),
    ({"steps": [step(seconds=1e9)]}, "steps[0].seconds"),
    ({"transfers": [transfer(bytes=0)]}, "transfers[0].bytes = 0"),
    ({"transfers": [transfer(seconds=math.inf)]}, "transfers[0].seconds = inf"),
    ({"load": load(batch=1 << 20)}, "load.batch = 1048576"),
    ({"load": load(context_tokens=1 << 60)}, "load.context_tokens"),
    ({"accepted": [accepted("", 5)]}, "accepted[0].request_id is 0 bytes"),
    ({"accepted": [accepted("r", 0)]}, "accepted[0].tokens = 0"),
    (
        {"accepted": [pb.ReportRequest.Accepted(request_id="r", tokens=5, prefix_tokens=5)]},
        "accepted[0].prefix_tokens = 5: from 0 to 4",
    ),
    (
        {"accepted": [pb.ReportRequest.Accepted(request_id="r", tokens=5, hashes=[b"x"])]},
        "accepted[0].hashes[0] is 1 bytes",
    ),
    (
        {"accepted": [accepted("r", 8, prompt(1, blocks=3))]},
        "accepted[0].hashes: 3 blocks of 4 tokens are more than the prompt's 8",
    ),
    ({"accepted": [accepted("r", 5)] * (REPORT_REQUESTS_MAX + 1)}, "accepted: 4097"),
    ({"began": ["r"] * (REPORT_REQUESTS_MAX + 1)}, "began: 4097"),
    ({"ended": ["r" * (REQUEST_ID_BYTES_MAX + 1)]}, "ended[0] is 257 bytes"),
    ({"decoding": ["a\0b"]}, "decoding[0] is 3 bytes"),
    ({"given_up": ["r", ""]}, "given_up[1] is 0 bytes"),
    ({"held": [bytes(32)] * (REPORT_BLOCKS_MAX + 1)}, "held: 4097 in one message"),
    ({"held": [bytes(32), b"x"]}, "held[1] is 1 bytes"),
    ({"dropped": [bytes(32)] * (REPORT_BLOCKS_MAX + 1)}, "dropped: 4097 in one message"),
    ({"dropped": [b""]}, "dropped[0] is 0 bytes"),
    ({"engine": engine("b")}, "engine was said before"),
]


@pytest.mark.parametrize(("fields", "why"), BAD_ENGINES)
def test_an_engine_that_cannot_be_is_refused_by_the_field(fields: dict[str, Any], why: str) -> None:
    streams = Streams()
    with pytest.raises(Invalid) as caught:
        streams.begin(**fields)
    assert why in str(caught.value)
    with pytest.raises(Unavailable):
        streams.rig.scheduler.crew(OURS)
    streams.rig.check()


@pytest.mark.parametrize(("fields", "why"), BAD_REPORTS)
def test_a_report_that_cannot_be_is_refused_by_the_field_and_nothing_of_it_counts(
    fields: dict[str, Any], why: str
) -> None:
    streams = Streams()
    reporter = streams.begin()
    before = streams.crew.fleet.engines.copy()
    good = {"load": load(batch=3), "accepted": [accepted("good", 5)], "steps": [step()]}
    with pytest.raises(Invalid) as caught:
        streams.say(reporter, **{**good, **fields})
    assert why in str(caught.value)
    assert (streams.crew.fleet.engines == before).all()
    first = Reporter(streams.rig.scheduler, "team", lambda: SECRET)
    if "engine" not in fields:
        with pytest.raises(Invalid):
            streams.say(first, engine=engine("b"), **fields)
        assert list(streams.crew.by_id) == ["a"], "an engine came in with a message that is wrong"


MANY = 100_000  # each of which is an object of its own once it is read
TOO_MANY = {
    "prefills": [pb.ReportRequest.Prefill()] * MANY,
    "steps": [pb.ReportRequest.Step()] * MANY,
    "transfers": [pb.ReportRequest.Transfer()] * MANY,
    "accepted": [pb.ReportRequest.Accepted()] * MANY,
    "began": ["r1"] * MANY,
    "held": [b"h1"] * MANY,
}


@pytest.mark.parametrize("name", [*TOO_MANY, "hashes"])
def test_what_is_too_many_is_counted_and_not_read(name: str) -> None:
    streams = Streams()
    reporter = streams.begin()
    asked = pb.ScheduleRequest(hashes=[b"h1"] * MANY)
    report = pb.ReportRequest(**{name: TOO_MANY[name]} if name in TOO_MANY else {})
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match=f"{name}: {MANY} in one"):
            if name == "hashes":
                hashes_of(name, asked.hashes, MANY, 4)
            else:
                reporter.take(report, streams.rig.now)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < MANY, "a list of them has 8 bytes for each at the least"


def test_a_stream_begins_with_who_reports() -> None:
    streams = Streams()
    with pytest.raises(Invalid, match="engine is absent"):
        streams.say(Reporter(streams.rig.scheduler, "team", lambda: SECRET), load=load(batch=1))


def test_where_a_host_stands_is_said_by_its_first_engine_and_by_no_other_otherwise() -> None:
    streams = Streams()
    first = streams.begin(
        "a", node_id="n", rack="r1", nvlink_domain="d1", domain_bytes_per_second=7e11
    )
    host = first.engine.host if first.engine else 0
    for fields, why in (
        ({"rack": "r2", "nvlink_domain": "d1"}, "engine.rack = 'r2': a, of the same node, says"),
        ({"rack": "r1"}, "engine.nvlink_domain = '': a, of the same node, says 'd1'"),
    ):
        with pytest.raises(Invalid, match=why):
            streams.begin("b", node_id="n", **fields)
    streams.begin("b", node_id="n", rack="r1", nvlink_domain="d1")
    assert streams.crew.fleet.hosts["domain_seconds"][host] == pytest.approx(1 / 7e11)
    assert list(streams.crew.by_id) == ["a", "b"]


def test_one_message_names_so_many_hashes_in_all() -> None:
    streams = Streams()
    reporter, blocks = streams.begin(), RPC_KEYS_MAX // 2 + 1
    one = pb.ReportRequest.Accepted(request_id="r", tokens=1 << 20, hashes=[bytes(32)] * blocks)
    with pytest.raises(Invalid, match="at most 16384 hashes in all"):
        streams.say(reporter, accepted=[one, one])


def test_an_engine_that_was_given_up_meanwhile_is_to_begin_anew() -> None:
    streams = Streams()
    first = streams.begin()
    streams.begin()
    with pytest.raises(Unavailable, match="reports on another stream"):
        streams.say(first, load=load(batch=1))
    first.end(streams.rig.now)
    assert list(streams.crew.by_id) == ["a"], "the end of the first is not the end of the second"


def test_costs_are_learned_from_what_is_measured() -> None:
    streams = Streams()
    reporter = streams.begin(ssd_bytes_per_second=1e9)
    row, hosts = streams.crew.fleet.engines[0], streams.crew.fleet.hosts
    before, links = (row["prefill_b"], row["decode_a"]), hosts.copy()
    for _ in range(20):
        streams.say(
            reporter,
            prefills=[prefill(seconds=0.02)] * 4,
            steps=[step(seconds=0.001)] * 4,
            transfers=[transfer(seconds=0.1), transfer(seconds=0.1, of_ssd=True)],
        )
    assert row["prefill_b"] < 0.5 * before[0] and row["decode_a"] < 0.5 * before[1]
    host = reporter.engine.host if reporter.engine else 0
    for name in ("link_seconds", "ssd_seconds"):
        assert hosts[name][host] > 5 * links[name][host]


def test_what_waits_at_an_engine_is_its_load_whoever_sent_it() -> None:
    streams = Streams()
    reporter, blocks = streams.begin(), prompt(1, blocks=6)
    number = reporter.engine.number if reporter.engine else 0
    keys = stored_keys(SECRET, SPEC.digest, 0, blocks.hashes)
    streams.say(reporter, accepted=[accepted("r", 100, blocks)])
    fleet = streams.crew.fleet
    assert waiting(fleet, number) == (1, pytest.approx(0.11))
    ask = Ask("another", fingerprints(keys), 24, 0.0)
    streams.rig.scheduler.consider(OURS, ask, streams.rig.now)
    assert streams.crew.found.coming[number] == 6
    streams.say(reporter, began=["r"], load=load(batch=2, context_tokens=50))
    assert waiting(fleet, number) == (0, 0.0)
    assert fleet.engines[number]["busy_until"] == pytest.approx(streams.rig.now + 0.11)
    assert fleet.engines[number]["batch"] == 2 and fleet.engines[number]["context"] == 50
    streams.say(reporter, ended=["r"])
    assert fleet.engines[number]["busy_until"] == streams.rig.now
    assert streams.rig.scheduler.crew(OURS)[1].held == (0, 0)


def test_a_prompt_that_another_conductor_sent_is_work_once_however_often_a_stream_begins() -> None:
    streams = Streams()
    streams.begin("stays")
    first = streams.begin("a")
    streams.rig.now += BEGIN_SECONDS
    streams.say(first, accepted=[accepted("r", 100)])
    for _ in range(3):  # its stream breaks, and says anew what waits there
        again = Reporter(streams.rig.scheduler, "team", lambda: SECRET)
        streams.say(again, engine=engine("a"), accepted=[accepted("r", 100)])
    assert streams.crew.roles._work["others"] == 1
    assert len(streams.rig.scheduler.crew(OURS)[1].prompts) == 1


def test_what_an_engine_holds_itself_is_there_for_it_alone_until_it_says_otherwise() -> None:
    streams = Streams()
    first, _second = streams.begin("a"), streams.begin("b")
    blocks = prompt(1, blocks=6)
    keys = stored_keys(SECRET, SPEC.digest, 0, blocks.hashes)

    def there() -> list[int]:
        ask = Ask("another", fingerprints(keys), 24, 0.0)
        streams.rig.scheduler.consider(OURS, ask, streams.rig.now)
        return [int(streams.crew.own[one.number]) for one in streams.crew.by_id.values()]

    streams.say(first, held=blocks.hashes)
    assert there() == [6, 0]
    streams.say(first, dropped=blocks.hashes[4:])
    assert there() == [4, 0]
    streams.say(first, cleared=True, dropped=blocks.hashes[:2], held=blocks.hashes[:2])
    assert there() == [2, 0]
    first.end(streams.rig.now)
    assert there() == [0]


def test_what_it_holds_counts_from_the_first_message_on() -> None:
    streams = Streams()
    reporter = Reporter(streams.rig.scheduler, "team", lambda: SECRET)
    streams.say(reporter, engine=engine("a"), held=prompt(1).hashes)
    assert streams.crew.own_blocks == len(prompt(1))


def test_a_request_that_is_to_be_decoded_counts_until_the_engine_counts_it() -> None:
    streams = Streams()
    reporter = streams.begin()
    ask = Ask("r", fingerprints([]), 500, 0.0)
    streams.rig.scheduler.place(OURS, ask, streams.rig.now)
    row = streams.crew.fleet.engines[0]
    streams.say(reporter, load=load(batch=1, context_tokens=10))
    assert (row["batch"], row["context"]) == (2, 510)
    streams.say(reporter, decoding=["r"], load=load(batch=2, context_tokens=512))
    assert (row["batch"], row["context"]) == (2, 512)


def test_a_request_that_another_engine_decodes_is_owed_by_none() -> None:
    """Its caller got no answer here in time, and another conductor sent it there."""
    streams = Streams()
    reporters = {name: streams.begin(name) for name in ("a", "b")}
    ask = Ask("r", fingerprints([]), 500, 0.0)
    placed = streams.rig.scheduler.place(OURS, ask, streams.rig.now)
    assert isinstance(placed, Decision) and placed.decode is not None
    (other,) = reporters.keys() - {placed.decode.facts.engine_id}
    streams.say(reporters[other], decoding=["r"], load=load(batch=1, context_tokens=500))
    engines = streams.crew.fleet.engines
    assert (engines["batch"].sum(), engines["context"].sum()) == (1, 500)


def test_what_requests_came_to_is_learned_from_whoever_decoded_them() -> None:
    streams = Streams()
    reporter = streams.begin()
    before = streams.crew.answers.tokens
    streams.say(reporter, over=pb.ReportRequest.Over(sequences=2, output_tokens=20))
    assert 10 < streams.crew.answers.tokens < before


def test_room_that_an_engine_reports_is_given_to_one_that_waits() -> None:
    streams = Streams()
    reporter = streams.begin(room_tokens=2_000)
    streams.say(reporter, load=load(batch=1, context_tokens=2_000))
    served: list[Decision] = []
    ask = Ask("r", fingerprints([]), 500, 0.0)
    streams.rig.scheduler.place(OURS, ask, streams.rig.now, served.append)
    streams.say(reporter, load=load(batch=1, context_tokens=1_500))
    assert not served, "it would not have place for what comes behind it"
    streams.say(reporter, load=load(batch=1, context_tokens=500))
    assert [one.decode for one in served] == [reporter.engine]


def test_an_engine_that_only_decodes_is_not_believed_to_prefill() -> None:
    streams = Streams()
    reporter = streams.begin(prefill=None)
    streams.say(reporter, accepted=[accepted("r", 100)], began=["r"], prefills=[prefill()])
    assert streams.rig.scheduler.crew(OURS)[1].held == (0, 0)


def test_a_prompt_that_a_decoder_has_whole_waits_in_no_line_of_who_was_to_prefill_it() -> None:
    streams = Streams()
    prefills, decodes = streams.begin("a", decode=None), streams.begin("b", prefill=None)
    for number in range(5):
        ask = Ask(f"{number}", fingerprints([]), 500, 0.0)
        assert streams.rig.scheduler.schedule(OURS, ask, streams.rig.now).prefill is prefills.engine
    in_flight = streams.rig.scheduler.crew(OURS)[1]
    streams.say(decodes, accepted=[accepted(f"{number}", 500) for number in range(4)])
    assert list(in_flight.prompts) == ["4"], "nobody else said that it has that one"
    streams.say(prefills, accepted=[accepted("4", 500)])
    streams.say(decodes, accepted=[accepted("4", 500)])
    assert list(in_flight.prompts) == ["4"], "it is prefilled all the same"
    streams.rig.check()


def test_the_end_of_a_stream_is_the_end_of_what_it_said() -> None:
    streams = Streams()
    reporter, _other = streams.begin("a"), streams.begin("b")
    streams.say(reporter, accepted=[accepted("r", 100, prompt(1))])
    reporter.end(streams.rig.now)
    streams.rig.check()
    assert streams.rig.scheduler.crew(OURS)[1].held == (0, 0)
    assert list(streams.crew.by_id) == ["b"]
