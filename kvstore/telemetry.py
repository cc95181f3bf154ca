"""Everything that a process of Moonpool counts, measures and times: the one list, and the totals.

A name ends in its unit. Tokens are counted as a pair, asked for and found, so that a ratio can be
taken over any span of time; what a ratio hides is counted by its reason. No label names a tenant, a
prompt or a caller.

`NODE`, `CONDUCTOR`, `ENGINE` and `GATEWAY` are what each kind of process has. Prometheus sees a
name behind `moonpool_`, and a counter's before `_total`; what the `CONNECTOR` adds to vLLM's own
metrics is spelled as those are.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

SECONDS = (  # a bucket's upper end at most 1.5 times the one before, so that p99 can be read
    *(0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 1.6, 2.4, 3.2, 4.8, 6.4, 10, 15, 20, 30, 40, 60),
    *(90, 120),
)


_OF_VLLM, _OF_CONNECTOR = "moonpool:", "connector_"


class Kind(enum.StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A line of the list."""

    name: str
    kind: Kind
    text: str
    label: str = ""  # what its values are told apart by; empty: it has one
    prefix: str = "moonpool_"

    @property
    def exposed(self) -> str:
        """As Prometheus has it."""
        name = self.name.removeprefix(_OF_CONNECTOR) if self.prefix == _OF_VLLM else self.name
        return self.prefix + name + ("_total" if self.kind is Kind.COUNTER else "")


def _counter(name: str, text: str, label: str = "") -> Metric:
    return Metric(name, Kind.COUNTER, text, label)


def _gauge(name: str, text: str, label: str = "") -> Metric:
    return Metric(name, Kind.GAUGE, text, label)


def _seconds(name: str, text: str, label: str = "") -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, label)


def _of_vllm(name: str, kind: Kind, text: str, label: str = "") -> Metric:
    """In vLLM's own /metrics, spelled as it spells its own."""
    return Metric(f"{_OF_CONNECTOR}{name}", kind, text, label, _OF_VLLM)


def _list(*metrics: Metric) -> Mapping[str, Metric]:
    return {one.name: one for one in metrics}


PROCESS = (
    _gauge("process_info", "1, of the kind of process that it is", "process"),
    _gauge("resident_bytes", "memory of the process, what it shares with others included"),
    _gauge("uptime_seconds", "since it began to serve"),
    _gauge(
        "certificate_left_seconds",
        "until the certificate on disk that it shows is over; below 0 since. Without one: nothing",
    ),
)
NODE = _list(
    *PROCESS,
    _counter("query_tokens", "tokens asked for by Match, or that an engine says it looked for"),
    _counter("hit_tokens", "of those, tokens found, or loaded as the engine says"),
    _counter("peer_hit_tokens", "of those found by Match, tokens that other nodes have"),
    _counter("match_miss", "Match calls that ended before the last block", "reason"),
    _counter("open_hit_blocks", "blocks opened for reading"),
    _counter("open_miss_blocks", "blocks that could not be opened", "reason"),
    _counter("sealed_blocks", "blocks that became readable"),
    _counter("sealed_bytes", "payload bytes of those"),
    _counter("duplicate_blocks", "blocks another writer had sealed first"),
    _counter("aborted_blocks", "blocks given up before their seal, by their writer or its end"),
    _counter("evicted_blocks", "blocks that made room for others"),
    _counter("stored_blocks", "blocks written to SSD, synced and recorded"),
    _counter(
        "passed_blocks", "times that a block was worth less than what it would displace on SSD"
    ),
    _counter("unstored_blocks", "blocks that were to be and were not: dropped, no room, failure"),
    _counter("promoted_blocks", "blocks read from SSD into DRAM"),
    _counter("demoted_blocks", "blocks copied from HBM into DRAM"),
    _counter("fetched_blocks", "blocks brought from other nodes and sealed here"),
    _counter("taken_blocks", "of those, that another node asked this one to take"),
    _counter("hedged_blocks", "of those asked of other nodes, asked of a second: one was late"),
    _counter("copied_blocks", "times that another node had a block after it was asked to take it"),
    _counter("moved_blocks", "blocks that another node took because this one is to leave"),
    _counter(
        "followed_blocks", "blocks followed while another node's writer wrote them, and sealed here"
    ),
    _counter("fetched_bytes", "payload bytes of blocks that were asked of other nodes"),
    _counter("probes", "transports to other nodes that were measured: Stats has what came of it"),
    _counter("probe_failures", "of those, that did not work"),
    _counter("probe_warnings", "of those, far slower than the best of their link"),
    _counter("ssd_failures", "times that a file of the SSD tier was retired, or all of a path"),
    _counter("removed_blocks", "blocks a caller removed"),
    _counter("purged_blocks", "blocks that went with their namespace or tenant"),
    _counter("damaged_blocks", "blocks dropped because their bytes no longer had their hash"),
    _counter("scrubbed_blocks", "copies of blocks that the scrubber verified, sound or not"),
    _counter("scrubbed_bytes", "bytes of slots that it read for that"),
    _counter("put_bytes", "payload bytes received by Put and Write"),
    _counter("get_bytes", "payload bytes sent by Get and Read"),
    _counter("opened_bytes", "payload bytes opened for transfer through shared memory"),
    _counter("data_sent_bytes", "bytes sent from slots over data connections"),
    _counter("data_received_bytes", "payload bytes laid into slots from data connections"),
    _counter("ucx_sent_bytes", "payload bytes put from slots into callers' memory over ucx"),
    _counter("ucx_fetched_bytes", "of fetched_bytes, those that came over ucx and had their hash"),
    _counter("ucx_failures", "times that ucx to another node did not work, and tcp took its place"),
    _counter("ucx_received_bytes", "payload bytes taken from callers' memory into slots over ucx"),
    _counter("quarantines", "namespaces in which an engine found wrong KV"),
    _counter("expired_pins", "pins that ended by the node's clock"),
    _counter("expired_windows", "write windows of remote sessions that stood still"),
    _counter("data_refusals", "data connections that were not let in: too many, or nobody known"),
    _counter("overloaded", "times that what was held left no room for a call's blocks"),
    _counter("sessions", "sessions begun"),
    _counter(
        "task_failures",
        "times that what a node does by itself ended in a way that nobody foresaw, and began again",
    ),
    _gauge("blocks", "sealed, in any tier"),
    _gauge("tier_bytes", "bytes that blocks take, in whole slots", "tier"),
    _gauge("tier_capacity_bytes", "bytes that there is room for", "tier"),
    _gauge("windows", "blocks that are being written"),
    _gauge("pins", "blocks held by readers"),
    _gauge("open_sessions", "clients that have one"),
)
CONDUCTOR = _list(
    *PROCESS,
    _counter("decisions", "answers to Schedule, by what they were", "answer"),
    _seconds("decision_seconds", "of those that say where a prompt is to be prefilled"),
    _gauge("followed_nodes", "nodes whose directories are known"),
    _gauge("known_blocks", "places of blocks that are known"),
    _gauge("reporting_engines", "engines that may be sent requests"),
)
ENGINE = _list(
    *PROCESS,
    _counter(
        "prompt_tokens",
        "of prompts that were run, by where their KV came from: `hand_off` is all that was loaded "
        "of one that another engine prefills, which counts it too",
        "source",
    ),
    _counter("output_tokens", "made"),
    _counter(
        "prompts",
        "run and looked up in the pool, by why no more of them was loaded: `whole` if all was",
        "miss",
    ),
    _counter("loaded_bytes", "of KV, from the pool or a prefill"),
    _counter("failed_requests", "of those that were let in"),
    _counter("preemptions", "of answers that gave their pages up for a while, for one before them"),
    _seconds("prompt_wait_seconds", "from a prompt's coming to when it began to load or compute"),
    _seconds("load_seconds", "that a prompt's KV took to come, by from where", "source"),
    _seconds("prefill_seconds", "that what was left of a prompt took to compute"),
    _seconds("step_seconds", "of a decode step: what a token takes"),
    _gauge("running_requests", "in the batch or in line"),
    _gauge("pages", "of KV, by what they are", "state"),
)
GATEWAY = _list(
    *PROCESS,
    _counter("requests", "that were answered, by how", "answer"),
    _counter("request_prompt_tokens", "of answers whose engine said what it had, each once"),
    _counter("request_cached_tokens", "of those, tokens whose KV was in the pool and was loaded"),
    _counter("request_expected_tokens", "of those, tokens that the conductor expected there"),
    _counter("request_output_tokens", "given to callers"),
    _counter("retries", "times that a request went on elsewhere: its engine had gone"),
    _seconds("time_to_first_token_seconds", "from a request's coming"),
    _seconds("expected_time_to_first_token_seconds", "as the conductor thought"),
    _seconds("time_per_output_token_seconds", "of an answer, after its first token: the mean"),
    _seconds("request_seconds", "from a request's coming to its last token"),
    _gauge("open_requests", "that are on their way"),
)
CONNECTOR = _list(
    *(
        _of_vllm(name, Kind.COUNTER, text)
        for name, text in (
            ("query_tokens", "tokens of admitted requests looked for: not in vLLM's own cache"),
            ("hit_tokens", "of those, tokens taken from the pool"),
            ("loaded_tokens", "of those, tokens loaded, verified and used"),
            ("followed_tokens", "tokens handed over, verified and used: another engine looked"),
            ("failed_tokens", "tokens of both that did not come, or not in time: computed instead"),
            ("saved_blocks", "blocks published"),
            ("late_saves", "steps whose blocks were not stored at once: the node had no room yet"),
            ("self_tests", "hits that were computed and compared because their origin was new"),
            ("audits", "hits that were drawn at random, computed and compared"),
            ("alarms", "comparisons that found wrong KV"),
        )
    ),
    _of_vllm("miss", Kind.COUNTER, "admitted requests whose hit ended early, by why", "reason"),
    _of_vllm("load_seconds", Kind.HISTOGRAM, "from asking for a request's load to its end"),
    _of_vllm(
        "ttft_saved_seconds",
        Kind.GAUGE,
        "time to first token that loading has saved, estimated without bias from hits drawn at "
        "random and computed",
    ),
    _of_vllm(
        "gpu_saved_seconds",
        Kind.GAUGE,
        "of prefill that loading has saved, from the first step of a prompt to its first token, "
        "times the engine's GPUs, estimated in the same way; prefills side by side count each",
    ),
)
BY_PROCESS = {"node": NODE, "conductor": CONDUCTOR, "engine": ENGINE, "gateway": GATEWAY}

Looked = float | Mapping[str, float]


class Telemetry:
    """What one process counted and timed since it started, and what it looks up when asked."""

    def __init__(self, listed: Mapping[str, Metric]) -> None:
        self.listed = listed
        self._totals: Counter[tuple[str, str]] = Counter()
        self._times: dict[tuple[str, str], Times] = {}
        self._looked_up: dict[str, Callable[[], Looked]] = {}

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        """Of a counter. `label` says what of, where the list has one."""
        self._check(name, Kind.COUNTER, label)
        self._totals[name, label] += amount

    def observe(self, name: str, seconds: float, label: str = "") -> None:
        self._check(name, Kind.HISTOGRAM, label)
        times = self._times.get((name, label))
        if times is None:
            times = self._times[name, label] = Times()
        times.add(seconds)

    def look_up(self, name: str, look: Callable[[], Looked]) -> None:
        """A gauge is what `look` says when somebody asks: of one with a label, by that."""
        assert self.listed[name].kind is Kind.GAUGE
        self._looked_up[name] = look

    def totals(self) -> dict[str, int]:
        """Of counters, by `name` or `name.label`; all without a label are there from the start."""
        found = {
            one.name: 0
            for one in self.listed.values()
            if one.kind is Kind.COUNTER and not one.label
        }
        return found | {
            f"{name}.{label}" if label else name: total
            for (name, label), total in self._totals.copy().items()
        }

    def values(self, name: str) -> dict[str, float]:
        """Of a counter or a gauge, by label."""
        metric = self.listed[name]
        if metric.kind is Kind.GAUGE:
            look = self._looked_up.get(name)
            found = {} if look is None else look()
            return dict(found) if isinstance(found, Mapping) else {"": found}
        totals = self._totals.copy()  # at once: another thread may add meanwhile
        found = {label: float(total) for (one, label), total in totals.items() if one == name}
        return found or ({} if metric.label else {"": 0.0})

    def times(self, name: str) -> dict[str, Times]:
        """Of a histogram, by label."""
        found = {label: times for (one, label), times in self._times.copy().items() if one == name}
        return found or ({} if self.listed[name].label else {"": Times()})

    def _check(self, name: str, kind: Kind, label: str) -> None:
        metric = self.listed.get(name)
        assert metric is not None and metric.kind is kind, f"telemetry lists no {kind} {name}"
        assert bool(label) == bool(metric.label), f"{name} is told apart by {metric.label!r}"


class Times:
    """How many took how long, in the buckets of `SECONDS`."""

    def __init__(self) -> None:
        self.total = 0.0
        self._counts = [0] * (len(SECONDS) + 1)

    def add(self, seconds: float) -> None:
        self.total += seconds
        self._counts[bisect_left(SECONDS, seconds)] += 1

    def at_most(self) -> Iterator[tuple[float, int]]:
        """How many took no longer than each bucket's end; the last end is infinite."""
        return zip((*SECONDS, float("inf")), accumulate(self._counts), strict=True)
