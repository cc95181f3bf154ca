from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowRequest(_message.Message):
    __slots__ = ("epoch", "sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("begin", "entries", "snapshot", "carried")
    class Begin(_message.Message):
        __slots__ = ("node_id", "epoch", "sequence", "snapshot", "blocks")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_FIELD_NUMBER: _ClassVar[int]
        node_id: str
        epoch: int
        sequence: int
        snapshot: bool
        blocks: int
        def __init__(self, node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., snapshot: bool = ..., blocks: _Optional[int] = ...) -> None: ...
    class Entries(_message.Message):
        __slots__ = ("sequence", "fingerprints", "tiers")
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
        TIERS_FIELD_NUMBER: _ClassVar[int]
        sequence: int
        fingerprints: bytes
        tiers: bytes
        def __init__(self, sequence: _Optional[int] = ..., fingerprints: _Optional[bytes] = ..., tiers: _Optional[bytes] = ...) -> None: ...
    class Carried(_message.Message):
        __slots__ = ("bytes", "seconds", "of_ssd", "source")
        BYTES_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        OF_SSD_FIELD_NUMBER: _ClassVar[int]
        SOURCE_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        seconds: float
        of_ssd: bool
        source: str
        def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., of_ssd: bool = ..., source: _Optional[str] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    begin: FollowReply.Begin
    entries: FollowReply.Entries
    snapshot: FollowReply.Entries
    carried: _containers.RepeatedCompositeFieldContainer[FollowReply.Carried]
    def __init__(self, begin: _Optional[_Union[FollowReply.Begin, _Mapping]] = ..., entries: _Optional[_Union[FollowReply.Entries, _Mapping]] = ..., snapshot: _Optional[_Union[FollowReply.Entries, _Mapping]] = ..., carried: _Optional[_Iterable[_Union[FollowReply.Carried, _Mapping]]] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("namespace", "group", "stored_keys", "source", "durable", "worth")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STORED_KEYS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    WORTH_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    stored_keys: _containers.RepeatedScalarFieldContainer[bytes]
    source: str
    durable: bool
    worth: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., stored_keys: _Optional[_Iterable[bytes]] = ..., source: _Optional[str] = ..., durable: bool = ..., worth: _Optional[_Iterable[float]] = ...) -> None: ...

class TakeReply(_message.Message):
    __slots__ = ("has", "free_bytes")
    HAS_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    has: bytes
    free_bytes: int
    def __init__(self, has: _Optional[bytes] = ..., free_bytes: _Optional[int] = ...) -> None: ...

class DropRequest(_message.Message):
    __slots__ = ("namespace", "group", "stored_keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STORED_KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    stored_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., stored_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DropReply(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: bytes
    def __init__(self, dropped: _Optional[bytes] = ...) -> None: ...

class HoldersRequest(_message.Message):
    __slots__ = ("fingerprints",)
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    fingerprints: bytes
    def __init__(self, fingerprints: _Optional[bytes] = ...) -> None: ...

class HoldersReply(_message.Message):
    __slots__ = ("holders", "approximate")
    class Holder(_message.Message):
        __slots__ = ("node_id", "epoch", "tiers")
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        TIERS_FIELD_NUMBER: _ClassVar[int]
        node_id: str
        epoch: int
        tiers: bytes
        def __init__(self, node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., tiers: _Optional[bytes] = ...) -> None: ...
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    holders: _containers.RepeatedCompositeFieldContainer[HoldersReply.Holder]
    approximate: bool
    def __init__(self, holders: _Optional[_Iterable[_Union[HoldersReply.Holder, _Mapping]]] = ..., approximate: bool = ...) -> None: ...
