from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PurgeRequest(_message.Message):
    __slots__ = ("namespace", "tenant")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tenant: str
    def __init__(self, namespace: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class PurgeReply(_message.Message):
    __slots__ = ("dropped_blocks",)
    DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    dropped_blocks: int
    def __init__(self, dropped_blocks: _Optional[int] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("bytes_per_second",)
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    def __init__(self, bytes_per_second: _Optional[int] = ...) -> None: ...

class ScrubReply(_message.Message):
    __slots__ = ("blocks", "blocks_done", "bytes_done", "damaged", "unread")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    blocks_done: int
    bytes_done: int
    damaged: int
    unread: int
    def __init__(self, blocks: _Optional[int] = ..., blocks_done: _Optional[int] = ..., bytes_done: _Optional[int] = ..., damaged: _Optional[int] = ..., unread: _Optional[int] = ...) -> None: ...

class MoveOutRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class MoveOutReply(_message.Message):
    __slots__ = ("blocks", "elsewhere", "moved", "left", "nodes")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    elsewhere: int
    moved: int
    left: int
    nodes: int
    def __init__(self, blocks: _Optional[int] = ..., elsewhere: _Optional[int] = ..., moved: _Optional[int] = ..., left: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes", "tenant", "copies")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    tenant: str
    copies: int
    def __init__(self, namespace: _Optional[str] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., tenant: _Optional[str] = ..., copies: _Optional[int] = ...) -> None: ...

class ReplicateReply(_message.Message):
    __slots__ = ("blocks", "blocks_done", "whole", "least")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_DONE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    blocks_done: int
    whole: int
    least: int
    def __init__(self, blocks: _Optional[int] = ..., blocks_done: _Optional[int] = ..., whole: _Optional[int] = ..., least: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("namespace", "dropped_blocks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    dropped_blocks: int
    def __init__(self, namespace: _Optional[bytes] = ..., dropped_blocks: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("node_id", "epoch", "state", "arena_bytes", "slab_bytes", "slabs", "slabs_empty", "blocks", "blocks_unlisted", "windows", "pins", "sessions", "resident_bytes", "counters", "namespaces", "ssd", "tenants", "contacts", "hbm", "numa")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    SLABS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_UNLISTED_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SSD_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    CONTACTS_FIELD_NUMBER: _ClassVar[int]
    HBM_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    epoch: int
    state: str
    arena_bytes: int
    slab_bytes: int
    slabs: int
    slabs_empty: int
    blocks: int
    blocks_unlisted: int
    windows: int
    pins: int
    sessions: int
    resident_bytes: int
    counters: _containers.ScalarMap[str, int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStats]
    ssd: _containers.RepeatedCompositeFieldContainer[SsdStats]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    contacts: _containers.RepeatedCompositeFieldContainer[ContactStats]
    hbm: HbmStats
    numa: _containers.RepeatedCompositeFieldContainer[NumaStats]
    def __init__(self, node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., state: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., slab_bytes: _Optional[int] = ..., slabs: _Optional[int] = ..., slabs_empty: _Optional[int] = ..., blocks: _Optional[int] = ..., blocks_unlisted: _Optional[int] = ..., windows: _Optional[int] = ..., pins: _Optional[int] = ..., sessions: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStats, _Mapping]]] = ..., ssd: _Optional[_Iterable[_Union[SsdStats, _Mapping]]] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ..., contacts: _Optional[_Iterable[_Union[ContactStats, _Mapping]]] = ..., hbm: _Optional[_Union[HbmStats, _Mapping]] = ..., numa: _Optional[_Iterable[_Union[NumaStats, _Mapping]]] = ...) -> None: ...

class NumaStats(_message.Message):
    __slots__ = ("numa_node", "slabs", "slabs_empty")
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    SLABS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    numa_node: int
    slabs: int
    slabs_empty: int
    def __init__(self, numa_node: _Optional[int] = ..., slabs: _Optional[int] = ..., slabs_empty: _Optional[int] = ...) -> None: ...

class HbmStats(_message.Message):
    __slots__ = ("device", "size_bytes", "used_bytes", "cause")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    device: str
    size_bytes: int
    used_bytes: int
    cause: str
    def __init__(self, device: _Optional[str] = ..., size_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class ContactStats(_message.Message):
    __slots__ = ("node_id", "epoch", "address", "seconds_ago", "transports")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    epoch: int
    address: str
    seconds_ago: float
    transports: _containers.RepeatedCompositeFieldContainer[TransportStats]
    def __init__(self, node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., address: _Optional[str] = ..., seconds_ago: _Optional[float] = ..., transports: _Optional[_Iterable[_Union[TransportStats, _Mapping]]] = ...) -> None: ...

class TransportStats(_message.Message):
    __slots__ = ("name", "round_trip_seconds", "there_bytes_per_second", "back_bytes_per_second", "complaint", "error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    THERE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BACK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    round_trip_seconds: float
    there_bytes_per_second: float
    back_bytes_per_second: float
    complaint: str
    error: bool
    def __init__(self, name: _Optional[str] = ..., round_trip_seconds: _Optional[float] = ..., there_bytes_per_second: _Optional[float] = ..., back_bytes_per_second: _Optional[float] = ..., complaint: _Optional[str] = ..., error: bool = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("name", "weight", "bytes_max", "dram_bytes", "ssd_bytes", "hbm_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DRAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SSD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HBM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    bytes_max: int
    dram_bytes: int
    ssd_bytes: int
    hbm_bytes: int
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., bytes_max: _Optional[int] = ..., dram_bytes: _Optional[int] = ..., ssd_bytes: _Optional[int] = ..., hbm_bytes: _Optional[int] = ...) -> None: ...

class SsdStats(_message.Message):
    __slots__ = ("path", "size_bytes", "files", "retired_files", "cause")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FILES_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    files: int
    retired_files: int
    cause: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., files: _Optional[int] = ..., retired_files: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class NamespaceStats(_message.Message):
    __slots__ = ("namespace", "model", "spec", "blocks", "block_bytes", "quarantined")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    model: str
    spec: str
    blocks: int
    block_bytes: int
    quarantined: str
    def __init__(self, namespace: _Optional[bytes] = ..., model: _Optional[str] = ..., spec: _Optional[str] = ..., blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., quarantined: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("namespace", "limit")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    limit: int
    def __init__(self, namespace: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("namespace", "group", "block", "parent", "tokens", "root", "pins", "listed")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    block: str
    parent: str
    tokens: int
    root: bytes
    pins: int
    listed: bool
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., block: _Optional[str] = ..., parent: _Optional[str] = ..., tokens: _Optional[int] = ..., root: _Optional[bytes] = ..., pins: _Optional[int] = ..., listed: bool = ...) -> None: ...
