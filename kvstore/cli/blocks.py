"""`moonpool put`, `get`, `match`, `rm`: blocks by their tokens, over gRPC alone.

These use nothing but what proto/ offers any language: streams of bytes, no shared memory.
"""

from __future__ import annotations

import argparse
import json
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from kvstore.block import Chain, chain
from kvstore.cli.options import Commands, add_node, command, locator
from kvstore.cli.output import written
from kvstore.errors import Invalid, KVStoreError
from kvstore.layout import SlotLayout
from kvstore.limits import PUT_CHUNK_BYTES_MAX
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.spec import KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc

DEADLINE_SECONDS = 60.0
MISS = 3


def add(commands: Commands) -> None:
    for name, text, example, run in (
        (
            "put",
            "store the KV of a token sequence, read from a file in slot order",
            "moonpool put kv.bin --spec spec.json --tokens tokens.json",
            run_put,
        ),
        (
            "get",
            "fetch the KV of a token sequence's cached prefix into a file",
            "moonpool get kv.bin --spec spec.json --tokens tokens.json",
            run_get,
        ),
        (
            "match",
            "say how much of a token sequence is in the pool, and why no more",
            "moonpool match --spec spec.json --tokens 1,2,3,4",
            run_match,
        ),
        (
            "rm",
            "take the blocks of a token sequence out of the pool",
            "moonpool rm --spec spec.json --tokens tokens.json",
            run_rm,
        ),
    ):
        parser = command(commands, name, text, example)
        if name in ("put", "get"):
            parser.add_argument(
                "file",
                type=Path,
                help="blocks one after another, each [layer][kv head][token][K then V], dense",
            )
        add_node(parser)
        parser.add_argument(
            "--spec", type=Path, required=True, metavar="FILE", help="KVSpec, see `moonpool spec`"
        )
        parser.add_argument(
            "--tokens",
            required=True,
            metavar="IDS|FILE",
            help="token ids: 1,2,3 or a file with a JSON list",
        )
        parser.add_argument("--group", type=int, default=0, help="KV group (default: %(default)s)")
        parser.set_defaults(run=run)


class _Call:
    """What all four commands begin with: the blocks that are meant, and a stub to ask."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.spec = _spec_of(args.spec)
        if not 0 <= args.group < len(self.spec.groups):
            raise Invalid(f"--group {args.group}: the spec has 0..{len(self.spec.groups) - 1}")
        self.group: int = args.group
        self.layout = SlotLayout.of(self.spec, self.group)
        tokens, size = tokens_of(args.tokens), self.layout.block_tokens
        self.blocks: Chain = chain(self.spec.digest, self.group, tokens, size)
        self.address = locator(args).find()
        self.stub = kv_pb2_grpc.KVStub(open_channel(self.address))
        self.ask("Register", pb.RegisterRequest(spec=self.spec.canonical()))

    def ask(self, method: str, request: Any) -> Any:
        with typed_errors(self.address):
            return getattr(self.stub, method)(request, timeout=DEADLINE_SECONDS)

    def about(self) -> dict[str, Any]:
        return {
            "namespace": self.spec.digest,
            "group": self.group,
            "hashes": list(self.blocks.hashes),
        }


def run_put(args: argparse.Namespace) -> int:
    call = _Call(args)
    size = sum(call.layout.block_bytes(n) for n in call.blocks.tokens)
    found = args.file.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "is a directory" if stat.S_ISDIR(found.st_mode) else "is no regular file"
        raise Invalid(f"{args.file}: {kind}: name a file of KV, whose size is known beforehand")
    if found.st_size != size:
        raise Invalid(f"{args.file} has {found.st_size} bytes; the KV of these tokens has {size}")
    with args.file.open("rb") as source:
        try:
            reply = call.ask("Put", _parts(call, source))
        except KVStoreError:
            if not source.read(1) and (left := size - source.tell()) > 0:
                raise Invalid(f"{args.file} was cut off meanwhile: {left} bytes are gone") from None
            raise
    stored = list(reply.stored).count(pb.PutReply.STORED)
    print(f"stored {stored} of {len(call.blocks)} blocks, {len(call.blocks) - stored} were there")
    return 0


def _parts(call: _Call, source: Any) -> Iterator[pb.PutRequest]:
    for i, (one, tokens) in enumerate(zip(call.blocks.hashes, call.blocks.tokens, strict=True)):
        left = call.layout.block_bytes(tokens)
        block = pb.PutBlock(
            namespace=call.spec.digest,
            group=call.group,
            hash=one,
            parent=call.blocks.parent(i),
            tokens=tokens,
            payload_bytes=left,
            dtype=call.spec.stored,
        )
        yield pb.PutRequest(block=block)
        while left:
            data = source.read(min(left, PUT_CHUNK_BYTES_MAX))
            if not data:
                return  # gRPC would hide what is raised here; the node says that it ends too soon
            left -= len(data)
            yield pb.PutRequest(data=data)


def run_get(args: argparse.Namespace) -> int:
    call = _Call(args)
    hits, miss = 0, ""
    with ExitStack() as opened, typed_errors(call.address):
        target: BinaryIO | None = None  # until something is there: a miss leaves the file as it was
        for part in call.ask("Get", pb.GetRequest(**call.about())):
            if part.HasField("data"):
                target = target or opened.enter_context(written(args.file))
                target.write(part.data)
            elif part.block.outcome == pb.HIT:
                hits += 1
            else:
                miss = pb.Outcome.Name(part.block.outcome).lower()
                break
    _report(hits, call.blocks, miss)
    return MISS if miss else 0


def run_match(args: argparse.Namespace) -> int:
    call = _Call(args)
    request = pb.MatchRequest(**call.about(), last_tokens=call.blocks.tokens[-1])
    reply = call.ask("Match", request)
    miss = "" if reply.reason == pb.HIT else pb.Outcome.Name(reply.reason).lower()
    _report(reply.blocks, call.blocks, miss)
    return MISS if miss else 0


def run_rm(args: argparse.Namespace) -> int:
    call = _Call(args)
    print(f"removed {call.ask('Remove', pb.RemoveRequest(**call.about())).removed} blocks")
    return 0


def _report(hits: int, blocks: Chain, miss: str) -> None:
    tokens = sum(blocks.tokens[:hits])
    why = f"; the next is {miss}" if miss else ""
    print(f"{hits} of {len(blocks)} blocks, {tokens} of {blocks.token_count} tokens{why}")


def _spec_of(path: Path) -> KVSpec:
    try:
        return KVSpec.parse(path.read_text())
    except (Invalid, UnicodeDecodeError) as error:
        raise Invalid(f"--spec {path}, which `moonpool spec` would make: {error}") from None


def tokens_of(given: str) -> list[int]:
    """Token ids from the command line, or from a file with a JSON list."""
    try:
        raw = json.loads(f"[{given}]") if re.fullmatch(r"[\d,\s]+", given) else _read(given)
    except (OSError, ValueError) as error:
        wanted = "neither ids like 1,2,3 nor a file with a JSON list of them"
        raise Invalid(f"--tokens {given!r} is {wanted}: {error}") from None
    if not isinstance(raw, list) or not raw or not all(type(t) is int and t >= 0 for t in raw):
        raise Invalid("--tokens: a list of at least one token id, each 0 or more")
    return raw


def _read(path: str) -> Any:
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    return json.loads(text)
