"""The demo's run: start the stack, drive the workload both ways, spoil some hits, report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tqdm import tqdm

from kvstore.cli.demo.front import through_gateway
from kvstore.cli.demo.report import HEADER, Report, Row
from kvstore.cli.demo.route import dispatcher
from kvstore.cli.demo.workload import Ask, Shape, Workload
from kvstore.cli.options import check_model
from kvstore.cli.parts import FREE, Plan
from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory
from kvstore.config import OPEN
from kvstore.engine.config import ModelConfig
from kvstore.engine.control import Control
from kvstore.engine.make_model import FIRST_WORD_ID, make_model
from kvstore.engine.namespace import spec_of
from kvstore.engine.reference import Reference
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.wire.v1 import admin_pb2, admin_pb2_grpc

QUICK = Shape(chats=2, turns=2, documents=1, questions=2, lone=1, repeats=1)
CONTROLS = 24  # hits that are spoiled


def run_demo(args: argparse.Namespace, directory: Path) -> int:
    """Exit code 0 if every token was identical and the control showed the check can fail."""
    if args.model is not None:
        check_model(args.model)
    folder = args.model or make_model(directory / "model")
    ModelConfig.load(folder)  # one that is none is told before anything is started
    if args.model is None:
        print("The model's weights are random: its text is noise, its KV and arithmetic are real.")
    shape = QUICK if args.quick else Shape()
    print("starting a storage node, a prefill engine and a decode engine ...", flush=True)
    gateway = FREE if args.keep else ""
    plan = Plan(directory / "pool", "1GiB", "32MiB", folder, gateway=gateway)
    with Stack(plan, restart=False) as stack:
        stack.start(lambda one: print(f"  {one.name:<9} {one.address}  pid {one.pid}", flush=True))
        client = Client(
            InDirectory(directory / "pool"), spec_of(folder), label="demo", credentials=OPEN
        )
        with client:
            report = _drive(stack, client, folder, shape, args.seed)
            report.counters = _counters(stack.addresses["node"])
        print(report.summary())
        if args.json:
            args.json.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
        if args.keep:
            address = stack.addresses["gateway"]
            print("the same requests once more, through the gateway ...", flush=True)
            through_gateway(address, folder.resolve().name, [row.ask for row in report.rows])
            print(f"dashboard http://{address}/ (Ctrl-C stops everything)", flush=True)
            stack.watch()
    if not report.good:
        print("the demo did not show what it promises: see above", file=sys.stderr)
    return 0 if report.good else 1


def _say(line: str) -> None:
    """Beside a bar of progress, which is shown to a terminal alone."""
    tqdm.write(line)
    sys.stdout.flush()


def _drive(stack: Stack, client: Client, folder: Path, shape: Shape, seed: int) -> Report:
    report, answers = Report(), dict[str, list[int]]()
    through = dispatcher(stack.addresses["prefill"], stack.addresses["decode"], client)
    reference = Reference(folder)
    words = range(FIRST_WORD_ID, ModelConfig.load(folder).vocab_size)
    asks: list[Ask] = []
    _say(f"{shape.requests} requests, each with the pool and without it")
    _say(HEADER)
    with tqdm(
        total=shape.requests, unit="request", file=sys.stderr, leave=False, disable=None
    ) as bar:
        for ask in Workload(words, shape, seed).requests(lambda a: answers[a.id]):
            pool, none = through.run(ask.request()), through.run(ask.alone())
            answers[ask.id] = pool.tokens
            expected = reference.tokens(ask.prompt, ask.new_tokens)
            row = Row(ask, pool, none, expected)
            report.rows.append(row)
            asks.append(ask)
            _say(row.line())
            bar.update()
    through.close()
    longest = max(len(ask.prompt) for ask in asks)
    control = Control(folder, client, longest, seed)
    wanted = min(CONTROLS, len(asks))
    _say(f"control: {wanted} of them again, with one block or strip of their KV swapped ...")
    with tqdm(
        total=wanted, unit="hit", desc="control", file=sys.stderr, leave=False, disable=None
    ) as bar:
        for ask in reversed(asks):
            if len(report.samples) == wanted:
                break
            sample = control.sample(ask.prompt)
            if sample is not None:
                report.samples.append(sample)
                bar.update()
    return report


def _counters(address: str) -> dict[str, int]:
    with open_channel(address, OPEN) as channel, typed_errors(address):
        stats = admin_pb2_grpc.AdminStub(channel).Stats(admin_pb2.StatsRequest(), timeout=5.0)
    return dict(stats.counters)
