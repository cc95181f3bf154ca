"""`moonpool plan`: what a trace has in it, the most that reuse could bring on some hardware, and
how a cluster would serve it, simulated."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvstore.cli import plan_cluster
from kvstore.cli.options import Commands, command
from kvstore.core.hardware import FABRICS, Gpu
from kvstore.core.model_shape import ModelShape
from kvstore.core.priors import kv_room, prefill_prior
from kvstore.errors import ConfigError
from kvstore.percent import percent
from kvstore.planner import bounds, presets, trace
from kvstore.planner.arrivals import DURATION_S_MIN, RATE_MAX, RATE_MIN, SEED_MAX
from kvstore.planner.caution import caution
from kvstore.planner.ceiling import Ceiling, ceiling
from kvstore.planner.cluster import Cluster
from kvstore.planner.digits import digits
from kvstore.planner.kinds import KINDS, made
from kvstore.planner.load import Load, Quantiles, Summary

_TEACHING = """\
Read a trace of requests and say what is in it: how many, how long, how much of
their prompts was in an earlier one, and what a pool could save of their prefill
at the very most. With --prefill N and --decode M, or --cluster FILE, the trace is
also replayed on such a cluster in virtual time: what share of requests is served
in time, how fast, the highest rate that 90 % are in time at, the best split of the
same engines, and what more or less memory would do.

Formats are Mooncake's (JSON lines with hash_ids of 512 tokens), Qwen-Bailian's
(16 tokens) and Azure's (CSV, which says nothing of what prompts share). Instead
of a file, a name makes a load up. What engines take is worked out from the model's
shape and the GPU's data sheet; it is meant to be right within a factor of two.
The simulator is compiled once on a machine, for one to several minutes.
"""
_RATE, _DURATION_S = 10.0, 600.0  # of a load that is made up
_MACHINE_GPUS = 8


def add(commands: Commands) -> None:
    plan = command(
        commands,
        "plan",
        "what a trace has in it, what reuse could bring, and how a cluster would serve it",
        "moonpool plan conversation_trace.jsonl --model llama-3-70b --gpu h100"
        " --tensor-parallel 4\n"
        "  moonpool plan multi-turn --rate 5 --prefill 2 --decode 2 --html plan.html",
    )
    plan.description = _TEACHING
    plan.add_argument(
        "trace", metavar="FILE", help=f"the trace, or a load made up: {', '.join(KINDS)}"
    )
    plan.add_argument(
        "--format",
        choices=[trace.AUTO, *trace.FORMATS],
        default=trace.AUTO,
        help="of the file (default: told by its first line)",
    )
    plan.add_argument(
        "--model",
        metavar="NAME",
        help=f"one of {', '.join(presets.MODELS)}, or a folder with a model's config.json"
        " (default llama-3-8b)",
    )
    plan.add_argument(
        "--gpu", metavar="NAME", help=f"one of {', '.join(presets.CARDS)} (default h100)"
    )
    plan.add_argument(
        "--tensor-parallel", type=int, metavar="N", help="GPUs of one engine (default 1)"
    )
    plan.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests a second: a trace is played so much faster or slower (default: its own,"
        f" and {_RATE:g} for a load made up)",
    )
    plan.add_argument(
        "--duration", type=float, metavar="S", help=f"of a load made up (default {_DURATION_S:g})"
    )
    plan.add_argument("--seed", type=int, default=1, metavar="N", help="of all chance (default 1)")
    plan.add_argument("--json", action="store_true", help="one JSON object")
    plan_cluster.add(plan)
    plan.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    simulated = plan_cluster.wanted(args)
    _check_numbers(args)
    shape = presets.model("--model", args.model or "llama-3-8b")
    gpu = presets.named("--gpu", args.gpu or "h100", presets.CARDS)
    degree = 1 if args.tensor_parallel is None else args.tensor_parallel
    cluster: Cluster | None = None
    if simulated:
        plan_cluster.check(args)
        cluster = plan_cluster.cluster(args, shape, gpu, degree)
        pool = next(one for one in cluster.pools if one.prefills)
        shape, gpu, degree = cluster.shape, pool.gpu, pool.tensor_parallel
    cost = prefill_prior(shape, gpu, degree)
    kv_room(shape, gpu, degree)  # a model that does not fit is told of before the trace is read
    load = _load(args, simulated)
    summary, most = load.describe(), ceiling(load, shape, cost, FABRICS)
    if cluster and not summary.rate:
        raise ConfigError(
            f"{args.trace}: all requests come at one time: no rate can be asked about, and a"
            " cluster is asked about rates: leave the cluster out, or take a longer trace"
        )
    for failure in cluster.failures if cluster else ():
        if failure.at_seconds > summary.duration_s:
            ends = f"the last request comes after {digits(summary.duration_s)} s"
            raise ConfigError(f"a failure at {failure.at_seconds:g} s meets nobody: {ends}")
    said: dict[str, Any] = {"load": asdict(summary), "ceiling": asdict(most)}
    said["kv_bytes_per_token"] = shape.kv_bytes_per_token
    if not args.json:
        _tell_load(load, summary)
        print(f"KV         {shape.kv_bytes_per_token:,} bytes a token of {shape.name}")
        _tell_ceiling(most, shape, gpu, degree, load)
    if cluster:
        # Late: it loads a compiler, which nothing else here needs.
        from kvstore.cli import plan_simulate

        found = plan_simulate.simulated(args, load, cluster)
        said |= plan_simulate.said(found)
    # They took minutes: no answer is lost with a page that cannot be written, nor a page with a
    # reader that went away.
    try:
        if args.json:
            print(json.dumps(said))
        elif cluster:
            plan_simulate.tell(found, cluster)
    finally:
        if cluster and args.html:
            plan_simulate.write(args, found, load, cluster)
    return 0


def _check_numbers(args: argparse.Namespace) -> None:
    """By the names of the options, before anything is read. Raises ConfigError."""
    bounds.whole("--seed", args.seed, 0, SEED_MAX)
    if args.rate is not None:
        bounds.number("--rate", args.rate, RATE_MIN, RATE_MAX)
    if args.duration is not None:
        bounds.number("--duration", args.duration, DURATION_S_MIN, bounds.SECONDS_MAX)


def _load(args: argparse.Namespace, simulated: bool) -> Load:
    """Of a trace that is simulated, requests that were rounded to one time come one after another:
    queues are of such, and every figure is then of the same load."""
    if args.trace in KINDS:
        if args.format != trace.AUTO:
            raise ConfigError(f"--format: is of a file, and {args.trace} is a load made up")
        rate = _RATE if args.rate is None else args.rate
        duration_s = _DURATION_S if args.duration is None else args.duration
        return made(args.trace, rate, duration_s, args.seed)
    if args.duration is not None:
        raise ConfigError("--duration: is of a load made up: a trace is as long as it is")
    if not Path(args.trace).exists():
        raise ConfigError(f"{args.trace}: no such file, and no load made up: {', '.join(KINDS)}")
    load = trace.read(Path(args.trace), args.format, args.seed if simulated else None)
    if args.rate is None:
        return load
    own = load.describe().rate
    if not own:
        raise ConfigError("--rate: all requests of the trace come at one time: it has none")
    return load.scaled(args.rate / own)


def _tell_load(load: Load, summary: Summary) -> None:
    print(f"requests   {summary.requests:,}{_times(summary)}")
    print(f"prompts    {_tokens(summary.input_tokens)}")
    print(f"answers    {_tokens(summary.output_tokens)}")
    where = f"in an earlier one, in whole blocks of {load.block_tokens}"
    print(f"reuse      {percent(summary.hit_rate_max)} of prompt tokens were {where}")
    if told := caution(summary.requests):
        print(f"note       {told}")


def _tell_ceiling(most: Ceiling, shape: ModelShape, gpu: Gpu, degree: int, load: Load) -> None:
    print(f"\nprefill of {shape.name} on {degree} x {gpu.name}, by its data sheet")
    if degree > _MACHINE_GPUS:
        linked = "are taken to be linked as those of one machine: over a network it takes longer"
        print(f"  {degree} GPUs {linked}")
    whole, least = digits(most.prefill_s), digits(most.prefill_least_s)
    print(f"  nothing reused          {whole:>8} s{_engines(most.engines)}")
    print(f"  all reused that can be  {least:>8} s{_engines(most.engines_least)}")
    if most.break_even is None:
        print("\nNo prompt begins as another did: a pool has nothing to give here.")
        return
    share = most.reusing / len(load)
    print(f"\nfetching, for the {percent(share)} of prompts that have something to fetch")
    enough = f"{most.break_even / 1e9:.2f} GB/s"
    print(f"  a link of {enough} or more brings half of them sooner than they are computed")
    print(f"  {'link':<16} {'fetching is sooner':>20} {'prefill saved at most':>24}")
    for one in most.fetches:
        print(f"  {one.fabric:<16} {percent(one.pays_share):>20} {percent(one.saved_share):>24}")


def _times(summary: Summary) -> str:
    if not summary.rate:
        return ", all at one time" if summary.requests > 1 else ""
    rate = f"{summary.rate:,.2f}" if summary.rate >= 0.1 else f"{summary.rate:.2g}"
    return f" in {digits(summary.duration_s)} s, {rate} a second"


def _engines(count: float) -> str:
    return f"   {count:.2f} engines busy on average" if count else ""


def _tokens(of: Quantiles) -> str:
    return f"{of.mean:,.0f} tokens on average, {of.p50:,.0f} at p50, {of.p99:,.0f} at p99"
