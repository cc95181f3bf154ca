"""What `moonpool attach` does, imported when it is called: it loads a compiler, as clients do."""

from __future__ import annotations

import argparse
import json
import math
import sys

from tqdm import tqdm

from kvstore.address import is_host_and_port
from kvstore.attach import compared, lengths, scrape
from kvstore.attach.answer import answer, so_far
from kvstore.attach.pool import Size
from kvstore.attach.watch import Engine, Watch
from kvstore.client.kv_events.subscription import Source
from kvstore.config import parse_bytes
from kvstore.errors import ConfigError, Invalid
from kvstore.limits import ATTACH_ENGINES_MAX, ATTACH_MINUTES_MAX
from kvstore.percent import percent
from kvstore.planner import presets

_PARTS = ("kv", "replay", "topic")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.minutes <= ATTACH_MINUTES_MAX:
        raise ConfigError(
            f"--minutes {args.minutes:g}: wants more than 0, at most {ATTACH_MINUTES_MAX:g}"
        )
    size, link = _size(args), presets.named("--fabric", args.fabric, presets.LINKS).cost
    traced = lengths.of_trace(args.trace) if args.trace else None
    before = compared.read(args.before) if args.before else None
    watch = Watch(_engines(args.engine))
    interrupted = False
    try:
        watch.start()
        _watch(watch, 60 * args.minutes)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        watch.stop()
    wrong = None
    try:
        known = lengths.of_log(args.requests) if args.requests else traced
    except Invalid as error:  # what was seen is told all the same
        known, wrong = None, error
    report = answer(watch, known, size, link, before)
    print(json.dumps(report.as_json) if args.json else report)
    if wrong is not None:
        raise wrong
    return 130 if interrupted else 0


def _watch(watch: Watch, seconds: float) -> None:
    with tqdm(
        total=math.ceil(seconds),
        unit="s",
        file=sys.stderr,
        leave=False,
        disable=None,
    ) as progress:

        def shown() -> None:
            asked, reasons = so_far(watch)
            share = percent(asked.hits / asked.queries) if asked.queries else "none"
            said = [f"{share} of {asked.queries:,} tokens found"]
            said += [f"{100 * n / asked.queries:.0f}% {why}" for why, n in reasons.most if n]
            progress.set_postfix_str(", ".join(said), refresh=False)
            progress.update(1)

        watch.look(seconds, shown)


def _engines(texts: list[str]) -> list[Engine]:
    if len(texts) > ATTACH_ENGINES_MAX:
        raise ConfigError(f"--engine: given {len(texts)} times, at most {ATTACH_ENGINES_MAX}")
    found = [_engine(text) for text in texts]
    for name, seen in (
        ("address", [one.url for one in found]),
        ("kv", [one.source.endpoint for one in found]),
    ):
        if len(set(seen)) < len(seen):
            raise ConfigError(f"--engine: two have one {name}: give each server once")
    return found


def _engine(text: str) -> Engine:
    url, *parts = text.split(",")
    scrape.check_url(url)
    said: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in _PARTS or not value or name in said:
            raise ConfigError(f"--engine {text[:256]}: {part!r} is none of kv=, replay=, topic=")
        said[name] = value
    for name in ("kv", "replay"):
        if name in said and (right := _amiss(said[name])):
            raise ConfigError(f"--engine {url}: {name}= wants {right}, not {said[name][:256]!r}")
    if "kv" not in said:
        raise ConfigError(f"--engine {url}: give kv=, where the server publishes its KV events")
    return Engine(
        url.rstrip("/"), Source(said["kv"], said.get("replay", ""), said.get("topic", ""))
    )


def _amiss(endpoint: str) -> str:
    """What is wanted instead; empty where it can be listened to."""
    protocol, _, place = endpoint.partition("://")
    if protocol == "tcp" and place.startswith("*:"):
        return "the host by which it is reached, as in tcp://127.0.0.1:5557"
    right = is_host_and_port(place) if protocol == "tcp" else protocol == "ipc" and place
    return "" if right else "an endpoint like tcp://127.0.0.1:5557"


def _size(args: argparse.Namespace) -> Size | None:
    """The pool that is told of, if one is."""
    if args.dram is None:
        for name in ("ssd", "model", "kv_bytes_per_token"):
            if getattr(args, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option}: is of a pool that is told of: give --dram as well")
        return None
    if (args.model is None) == (args.kv_bytes_per_token is None):
        raise ConfigError("--dram: how many blocks fit? give --model or --kv-bytes-per-token")
    if args.model is not None:
        token = presets.model("--model", args.model).kv_bytes_per_token
    else:
        token = args.kv_bytes_per_token
    if not 0 < token <= 1 << 30:
        raise ConfigError(f"--kv-bytes-per-token {token}: wants bytes of all layers, more than 0")
    ssd = 0 if args.ssd is None else parse_bytes("--ssd", args.ssd)
    return Size(parse_bytes("--dram", args.dram), ssd, token)
