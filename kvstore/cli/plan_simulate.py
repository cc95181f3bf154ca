"""The part of `moonpool plan` that simulates: it runs the replays and tells what came of them."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvstore.cli.compiling import said_compiling
from kvstore.percent import percent
from kvstore.planner import page, replay
from kvstore.planner.answers import Answers, answer
from kvstore.planner.cluster import Cluster
from kvstore.planner.digits import gigabytes
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome, Times
from kvstore.planner.policies import POLICIES, named
from kvstore.planner.rates import Rates, number
from kvstore.planner.reasons import why
from kvstore.planner.search import SHARE

_SHOWN_SECONDS = 0.1


def simulated(args: argparse.Namespace, load: Load, cluster: Cluster) -> Answers:
    policy = named(args.policy or "ours")
    others = [named(name) for name in POLICIES if name != policy.name] if args.compare else []
    with (
        # Shown from the first replay on: what is said of compiling has lines of its own.
        tqdm(
            unit="replay", file=sys.stderr, leave=False, disable=None, delay=_SHOWN_SECONDS
        ) as bar,
        ExitStack() as first,
    ):
        if not replay.compiled():
            first.enter_context(said_compiling("the simulator"))

        def replayed() -> None:
            first.close()
            bar.update()

        return answer(load, cluster, policy, others, args.seed, replayed)


def said(found: Answers) -> dict[str, Any]:
    """What is to be said in JSON."""
    return {"simulated": asdict(found) | {"why": why(found), "share_wanted": SHARE}}


def write(args: argparse.Namespace, found: Answers, load: Load, cluster: Cluster) -> None:
    """The page. Raises OSError, which names the option, where it cannot be written."""
    try:
        _write(args.html, page.html(found, load.describe(), str(args.trace), cluster))
    except OSError as error:
        text = error.strerror or str(error)
        raise OSError(error.errno, text, f"--html {args.html}") from None


def _write(path: Path, text: str) -> None:
    """All of it or none: half a page looks like one."""
    if path.exists() and not path.is_file():  # /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link stays one
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")  # as it says of itself, whatever the locale is
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def tell(found: Answers, cluster: Cluster) -> None:
    told = found.outcome
    targets = (
        f"{cluster.ttft_seconds:g} s to the first token, {cluster.tpot_seconds * 1e3:g} ms each"
    )
    print(f"\nsimulated: {found.cluster}; {cluster.fabric.name}; {found.policy} decides")
    print(f"  in time             {percent(told.share):>8} of requests ({targets})")
    if found.healthy is not None:
        print(f"  did no engine die   {percent(found.healthy.share):>8}")
    print(f"  first token         {_times(told.ttft, 1, 's')}")
    print(f"  each after it       {_times(told.tpot, 1e3, 'ms')}")
    print(f"  goodput             {told.goodput:>8,.0f} tokens/s of requests in time")
    ways = {"local": told.hits.local, "fetched": told.hits.fetched, "SSD": told.hits.ssd}
    parts = ", ".join(f"{percent(share)} {name}" for name, share in ways.items())
    hits = percent(told.hits.all)
    print(f"  found in the pool   {hits:>8} of prompt tokens that were prefilled ({parts})")
    if told.carried.all:
        print(f"  moved between hosts {_moved(told, cluster)}")
    quarters = ", ".join(percent(one, 0) for one in told.quartiles)
    print(f"  by prompt length    {quarters} in time, the shortest quarter first")
    ended = ", ".join(f"{count:,} {name}" for name, count in told.ended.items() if count)
    print(f"  what became of them {ended.replace('_', ' ')}")
    print(
        f"  engines             prefill works {percent(told.prefill_busy, 0)} of the time,"
        f" KV fills {percent(told.decode_full, 0)} of decode's room"
    )
    if told.switches:
        print(f"  roles               engines switched {told.switches} times")
    print(f"  predicted TTFT      off by {percent(told.error, 0)} of it")
    print(f"  highest rate        {_rate(found.highest, found.rates)} with {SHARE:.0%} in time")
    _tell_splits(found)
    _tell_phases(found)
    _tell_memory(found)
    if found.curves[1:]:
        print("\nother policies, at their highest rate")
        for curve in sorted(found.curves, key=lambda one: -one.highest):
            print(f"  {curve.policy:<14} {_rate(curve.highest, found.rates)}")
    print(f"\n{why(found)}")


def _moved(told: Outcome, cluster: Cluster) -> str:
    ways = {"over links": told.carried.link}
    if cluster.domains:
        ways["over NVLink"] = told.carried.domain
    if cluster.racks:
        ways["between racks"] = told.carried.far
    each = ", ".join(f"{gigabytes(size)} {name}" for name, size in ways.items())
    return f"{each}; links carry {percent(told.links_busy, 0)} of what they can"


def _tell_splits(found: Answers) -> None:
    if not found.splits:
        return
    print("\nthe same engines, split otherwise")
    for split in found.splits:
        rate, known = _rate(split.highest, found.rates), not found.rates.ends_at(split.highest)
        best = "   best" if known and split is found.best_split else ""
        print(f"  {split.prefill:>4} prefill {split.decode:>4} decode {rate}{best}")
    if found.together is not None:
        print(f"  every one does both      {_rate(found.together.highest, found.rates)}")
        mine = found.healthy or found.outcome  # what engines would do otherwise is told of such
        told = {"as asked": mine, "every one both": found.together.outcome}
        print("\nat the load's own rate      TTFT p50      p99      TPOT p50      p99   in time")
        for name, one in told.items():
            ttft, tpot = _pair(one.ttft, 1, "s"), _pair(one.tpot, 1e3, "ms")
            print(f"  {name:<20} {ttft} {tpot} {percent(one.share):>9}")


def _tell_phases(found: Answers) -> None:
    if not found.parallelism:
        return
    print("\nGPUs of an engine, each phase alone")
    for one in found.parallelism.tried:
        each = f"{one.each_gpu:.3g} a GPU"
        rate = _rate(one.highest, found.rates)
        print(f"  {one.tensor_parallel:>4} {one.role:<8} {rate}   {each}")
    if found.parallelism.cluster:
        rate = _rate(found.parallelism.highest, found.rates)
        print(f"  {found.parallelism.cluster}: {rate.strip()}")


def _tell_memory(found: Answers) -> None:
    for name, size, some in (
        ("DRAM", "dram_bytes", found.memory),
        ("SSD ", "ssd_bytes", found.ssd),
    ):
        if some:
            print(f"\n{name} a host       found   in time   mean TTFT")
        for one in some:
            ttft = "-" if one.ttft is None else f"{one.ttft:.2f} s"
            large = gigabytes(getattr(one, size))
            print(f"  {large:>10} {percent(one.hits):>10} {percent(one.share):>9} {ttft:>11}")


def _times(times: Times | None, unit: float, name: str) -> str:
    if times is None:
        return "       - of nobody"
    mean, p50, p99 = (f"{one * unit:.2f}" for one in (times.mean, times.p50, times.p99))
    return f"{mean:>8} {name} on average, {p50} at p50, {p99} at p99"


def _pair(times: Times | None, unit: float, name: str) -> str:
    if times is None:
        return f"{'-':>12} {'-':>8}"
    return f"{times.p50 * unit:>9.3g} {name:<2} {times.p99 * unit:>8.3g}"


def _rate(rate: float, rates: Rates) -> str:
    if not rate:
        return f"    {rates.none}"
    return f"{number(rate):>8} requests/s{' or more' if rates.ends_at(rate) else ''}"
