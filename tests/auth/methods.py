"""Every RPC there is, read from proto/, and one call of each with an empty message."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from tests import tree

SECONDS = 30.0


@dataclass(frozen=True)
class Method:
    service: str
    name: str
    descriptor: Any

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    @property
    def request(self) -> Any:
        return GetMessageClass(self.descriptor.input_type)

    @property
    def reply(self) -> Any:
        return GetMessageClass(self.descriptor.output_type)

    def call(self, channel: grpc.Channel, metadata: Any = (), **fields: Any) -> grpc.StatusCode:
        """The status of a call, or OK once it answers: no stream is read to its end."""
        streams = self.descriptor.client_streaming, self.descriptor.server_streaming
        kind = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }[streams]
        ask = kind(self.path, self.request.SerializeToString, self.reply.FromString)
        sent = self.request(**fields)
        try:
            answer = ask(iter([sent]) if streams[0] else sent, timeout=SECONDS, metadata=metadata)
            if streams[1]:
                next(answer, None)
                answer.cancel()
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


def every_method() -> Iterator[Method]:
    """Of each service of each file of proto/."""
    for path in sorted((Path(tree.ROOT) / "proto/moonpool/v1").glob("*.proto")):
        module = importlib.import_module(f"kvstore.wire.v1.{path.stem}_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            for one in service.methods:
                yield Method(service.full_name, one.name, one)


METHODS = list(every_method())
IDS = [f"{one.service.rpartition('.')[2]}.{one.name}" for one in METHODS]
