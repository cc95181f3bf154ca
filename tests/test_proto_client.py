"""A client in any language needs proto/ and nothing else.

This one has stubs that protoc makes of proto/ here, in a process that never imports kvstore; it
makes its hashes from the comment in kv.proto and finds the services by reflection.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tree
from tests.nodes import running

CLIENT = '''
import json, struct, sys
import blake3, grpc
from moonpool.v1 import kv_pb2 as pb, kv_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
kv = kv_pb2_grpc.KVStub(channel)

reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
    iter([reflection_pb2.ServerReflectionRequest(list_services="")])
)
names = {one.name for one in next(reflected).list_services_response.service}
assert {"moonpool.v1.KV", "moonpool.v1.Admin", "grpc.health.v1.Health"} <= names, names
health = health_pb2_grpc.HealthStub(channel)
for name in ("", "moonpool.v1.KV", "moonpool.v1.Admin"):
    found = health.Check(health_pb2.HealthCheckRequest(service=name))
    assert found.status == health_pb2.HealthCheckResponse.SERVING, name

LAYERS, HEADS, TOKENS, DIM, ITEM = 2, 2, 4, 8, 2
group = {"layers": [0, 1], "kv_heads": HEADS, "head_dim": DIM, "block_tokens": TOKENS,
         "parts": 2, "reuse": "chain"}
spec = {"model": "elsewhere", "revision": "r1", "dtype": "float16", "groups": [group], "rope": {},
        "codec": "none", "draft_model": "", "hash_version": 1}
text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
namespace = kv.Register(pb.RegisterRequest(spec=text)).namespace
assert kv.Register(pb.RegisterRequest(spec=text, namespace=namespace)).namespace == namespace

def chain(tokens):
    """As kv.proto says."""
    parent, hashes = struct.pack("<I", 0) + bytes(28), []
    for start in range(0, len(tokens), TOKENS):
        some = tokens[start : start + TOKENS]
        said = parent + struct.pack("<I", len(some)) + struct.pack(f"<{len(some)}I", *some)
        parent = blake3.blake3(said, key=namespace).digest()
        hashes.append(parent)
    return hashes

def size(tokens):
    return LAYERS * HEADS * tokens * 2 * DIM * ITEM

def data(seed, tokens=TOKENS):
    return bytes((seed + i) % 256 for i in range(size(tokens)))

session_stream = kv.Session(pb.SessionRequest(label="another language"))
opened = next(session_stream).opened
session = opened.session
assert opened.node_id and opened.epoch and opened.arena_bytes and opened.shm_socket

# One-step form: Put, Match, Exists, Get.
hashes = chain(list(range(10)))  # two full blocks and a tail of two tokens
counts = [4, 4, 2]
def parts():
    for i, block in enumerate(hashes):
        yield pb.PutRequest(block=pb.PutBlock(
            namespace=namespace, hash=block, parent=hashes[i - 1] if i else b"",
            tokens=counts[i], payload_bytes=size(counts[i]), dtype="float16"))
        whole = data(i, counts[i])
        yield pb.PutRequest(data=whole[:100])
        yield pb.PutRequest(data=whole[100:])
assert list(kv.Put(parts()).stored) == [pb.PutReply.STORED] * 3
found = kv.Match(pb.MatchRequest(namespace=namespace, hashes=hashes, last_tokens=2))
assert (found.blocks, found.reason) == (3, pb.HIT)
longer = chain(list(range(8)) + [99, 98, 97, 96])
found = kv.Match(pb.MatchRequest(namespace=namespace, hashes=longer))
assert (found.blocks, found.reason) == (2, pb.ABSENT)
got = []
for part in kv.Get(pb.GetRequest(namespace=namespace, hashes=[*hashes, longer[2]])):
    if part.HasField("block"):
        got.append([part.block.outcome, part.block.tokens, part.block.payload_bytes, b""])
        assert len(part.block.root) == (16 if part.block.outcome == pb.HIT else 0)
    else:
        got[-1][3] += part.data
wanted = [[pb.HIT, n, size(n), data(i, n)] for i, n in enumerate(counts)]
assert got == [*wanted, [pb.ABSENT, 0, 0, b""]]

# Two-step form: Reserve, Write by layers, Seal; a reader follows by the hand-off.
reserved = kv.Reserve(pb.ReserveRequest(
    session=session, namespace=namespace, parent=hashes[1], hashes=[longer[2]], hand_off=True))
assert list(reserved.grants) == [pb.ReserveReply.GRANTED]
follow = kv.Open(pb.OpenRequest(
    session=session, namespace=namespace, hashes=[longer[2]], hand_offs=reserved.hand_offs))
assert list(follow.outcomes) == [pb.HIT] and follow.roots[0] == b""
layer = size(TOKENS) // LAYERS
for number in range(LAYERS):
    target = pb.WriteRequest.Target(
        session=session, handle=reserved.handles[0], payload_bytes=layer, dtype="float16",
        fragment=pb.Fragment(layer_first=number, layers=1))
    some = data(7)[number * layer : (number + 1) * layer]
    kv.Write(iter([pb.WriteRequest(target=target), pb.WriteRequest(data=some)]))
    early = kv.Read(pb.ReadRequest(session=session, handle=follow.handles[0],
                                   fragment=pb.Fragment(layer_first=number, layers=1)))
    assert b"".join(part.data for part in early) == some
sealed = kv.Seal(pb.SealRequest(session=session, handles=reserved.handles)).sealed
assert list(sealed) == [pb.SealReply.SEALED]
again = kv.Reserve(pb.ReserveRequest(
    session=session, namespace=namespace, parent=hashes[1], hashes=[longer[2]]))
assert list(again.grants) == [pb.ReserveReply.EXISTS] and again.handles[0] == b""

# Open, Read, Close; Pin, Renew, Unpin; Abort; Remove.
read = kv.Open(pb.OpenRequest(session=session, namespace=namespace, hashes=longer))
assert list(read.outcomes) == [pb.HIT] * 3 and len(set(read.generations)) == 3
for handle, seed in zip(read.handles, (0, 1, 7)):
    whole = kv.Read(pb.ReadRequest(session=session, handle=handle))
    assert b"".join(part.data for part in whole) == data(seed)
handles = [*read.handles, *follow.handles]
assert all(kv.Close(pb.CloseRequest(session=session, handles=handles)).held)
pins = kv.Pin(pb.PinRequest(session=session, namespace=namespace, hashes=hashes, pin_ms=5000))
assert list(pins.outcomes) == [pb.HIT] * 3
kv.Renew(pb.RenewRequest(session=session, handles=pins.handles, pin_ms=9000))
kv.Unpin(pb.UnpinRequest(session=session, handles=pins.handles))
given_up = kv.Reserve(pb.ReserveRequest(
    session=session, namespace=namespace, hashes=chain([5, 5, 5, 5])))
kv.Abort(pb.AbortRequest(session=session, handles=given_up.handles))
outcomes = kv.Exists(pb.ExistsRequest(namespace=namespace, hashes=chain([5, 5, 5, 5]))).outcomes
assert list(outcomes) == [pb.ABSENT]
assert kv.Remove(pb.RemoveRequest(namespace=namespace, hashes=hashes)).removed == 3
outcomes = kv.Exists(pb.ExistsRequest(namespace=namespace, hashes=longer)).outcomes
assert list(outcomes) == [pb.REMOVED, pb.REMOVED, pb.UNLISTED]

# An error says what is wrong; its class is in the trailing metadata.
try:
    kv.Match(pb.MatchRequest(namespace=namespace, hashes=[b"short"]))
    raise SystemExit("it was not refused")
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata())["moonpool-error"] == "Invalid"
    assert "hashes[0] is 5 bytes" in error.details()
session_stream.cancel()
assert not [name for name in sys.modules if name.split(".")[0] == "kvstore"]
print("done")
'''


def test_another_language_can_do_everything_from_proto_alone(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools, which has protoc, is not installed")
    source, stubs = tree.ROOT / "proto", tmp_path / "stubs"
    stubs.mkdir()
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}"]
    made = [f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
    names = [str(path.relative_to(source)) for path in source.rglob("*.proto")]
    subprocess.run([*compiler, *made, *names], check=True, capture_output=True, timeout=60)
    (tmp_path / "client.py").write_text(CLIENT)
    with running() as node:
        found = subprocess.run(
            [sys.executable, str(tmp_path / "client.py"), node.address],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(stubs)},
        )
        assert found.stdout == "done\n", found.stderr
        stats = node.caller().stats()
    assert (stats.windows, stats.pins) == (0, 0)
