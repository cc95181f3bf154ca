from kvstore.wire.v1 import directory_pb2 as _directory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PoolMatchRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PoolMatchReply(_message.Message):
    __slots__ = ("blocks", "holders", "approximate")
    class Holder(_message.Message):
        __slots__ = ("node_id", "address", "blocks", "dram_blocks")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_FIELD_NUMBER: _ClassVar[int]
        DRAM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        node_id: str
        address: str
        blocks: int
        dram_blocks: int
        def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., blocks: _Optional[int] = ..., dram_blocks: _Optional[int] = ...) -> None: ...
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    holders: _containers.RepeatedCompositeFieldContainer[PoolMatchReply.Holder]
    approximate: bool
    def __init__(self, blocks: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[PoolMatchReply.Holder, _Mapping]]] = ..., approximate: bool = ...) -> None: ...
