"""Unary calls on a socket of one host: the messages and errors of gRPC's, without its turns.

A gRPC call costs its two processes some twenty times what a round trip through a Unix socket does,
and an engine makes two or three of them for each prompt. Who connects shows the token of a session,
so that a connection is a caller's from its beginning; then it sends one call, and reads its answer
before it sends the next. Numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import Any

from kvstore.wire.v1 import kv_pb2 as pb

WELCOME = b"MPCALLS1"  # what a node answers a token that it knows
# Bytes that follow, method, bytes of those that are a traceparent behind the message, milliseconds
# that the call may take.
CALL = struct.Struct("<IHHI")
ANSWER = struct.Struct("<IHHI")  # bytes that follow, status code, 0, milliseconds to retry after
OK = 0  # status code: a message follows. Else the error's class, a line feed, and its text

SERVICE = "moonpool.v1.KV"  # whose calls they are
# By number: the calls that engines make for each prompt. All others go over gRPC.
METHODS: tuple[tuple[str, Any, Any], ...] = (
    ("Match", pb.MatchRequest, pb.MatchReply),
    ("Exists", pb.ExistsRequest, pb.ExistsReply),
    ("Reserve", pb.ReserveRequest, pb.ReserveReply),
    ("Seal", pb.SealRequest, pb.SealReply),
    ("Abort", pb.AbortRequest, pb.AbortReply),
    ("Open", pb.OpenRequest, pb.OpenReply),
    ("Close", pb.CloseRequest, pb.CloseReply),
    ("Pin", pb.PinRequest, pb.PinReply),
    ("Renew", pb.RenewRequest, pb.RenewReply),
    ("Unpin", pb.UnpinRequest, pb.UnpinReply),
)
