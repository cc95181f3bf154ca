from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HIT: _ClassVar[Outcome]
    ABSENT: _ClassVar[Outcome]
    UNSEALED: _ClassVar[Outcome]
    UNLISTED: _ClassVar[Outcome]
    EVICTED: _ClassVar[Outcome]
    REMOVED: _ClassVar[Outcome]
    DAMAGED: _ClassVar[Outcome]
    QUARANTINED: _ClassVar[Outcome]
    NO_ROOM: _ClassVar[Outcome]
    LATE: _ClassVar[Outcome]
    UNREACHABLE: _ClassVar[Outcome]
    FORGONE: _ClassVar[Outcome]
HIT: Outcome
ABSENT: Outcome
UNSEALED: Outcome
UNLISTED: Outcome
EVICTED: Outcome
REMOVED: Outcome
DAMAGED: Outcome
QUARANTINED: Outcome
NO_ROOM: Outcome
LATE: Outcome
UNREACHABLE: Outcome
FORGONE: Outcome

class Fragment(_message.Message):
    __slots__ = ("layer_first", "layers", "head_first", "heads")
    LAYER_FIRST_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIRST_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    layer_first: int
    layers: int
    head_first: int
    heads: int
    def __init__(self, layer_first: _Optional[int] = ..., layers: _Optional[int] = ..., head_first: _Optional[int] = ..., heads: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("spec", "namespace")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    spec: str
    namespace: bytes
    def __init__(self, spec: _Optional[str] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    def __init__(self, namespace: _Optional[bytes] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("label", "numa_node")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    label: str
    numa_node: int
    def __init__(self, label: _Optional[str] = ..., numa_node: _Optional[int] = ...) -> None: ...

class NumaRange(_message.Message):
    __slots__ = ("numa_node", "bytes")
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    numa_node: int
    bytes: int
    def __init__(self, numa_node: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SessionEvent(_message.Message):
    __slots__ = ("opened", "drain")
    class Opened(_message.Message):
        __slots__ = ("session", "node_id", "epoch", "shm_socket", "shm_token", "arena_bytes", "host", "data_address", "data_token", "hbm_bytes", "hbm_device", "spread")
        SESSION_FIELD_NUMBER: _ClassVar[int]
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        SHM_SOCKET_FIELD_NUMBER: _ClassVar[int]
        SHM_TOKEN_FIELD_NUMBER: _ClassVar[int]
        ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
        HOST_FIELD_NUMBER: _ClassVar[int]
        DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
        DATA_TOKEN_FIELD_NUMBER: _ClassVar[int]
        HBM_BYTES_FIELD_NUMBER: _ClassVar[int]
        HBM_DEVICE_FIELD_NUMBER: _ClassVar[int]
        SPREAD_FIELD_NUMBER: _ClassVar[int]
        session: bytes
        node_id: str
        epoch: int
        shm_socket: str
        shm_token: bytes
        arena_bytes: int
        host: str
        data_address: str
        data_token: bytes
        hbm_bytes: int
        hbm_device: str
        spread: _containers.RepeatedCompositeFieldContainer[NumaRange]
        def __init__(self, session: _Optional[bytes] = ..., node_id: _Optional[str] = ..., epoch: _Optional[int] = ..., shm_socket: _Optional[str] = ..., shm_token: _Optional[bytes] = ..., arena_bytes: _Optional[int] = ..., host: _Optional[str] = ..., data_address: _Optional[str] = ..., data_token: _Optional[bytes] = ..., hbm_bytes: _Optional[int] = ..., hbm_device: _Optional[str] = ..., spread: _Optional[_Iterable[_Union[NumaRange, _Mapping]]] = ...) -> None: ...
    class Drain(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    opened: SessionEvent.Opened
    drain: SessionEvent.Drain
    def __init__(self, opened: _Optional[_Union[SessionEvent.Opened, _Mapping]] = ..., drain: _Optional[_Union[SessionEvent.Drain, _Mapping]] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes", "last_tokens")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    last_tokens: int
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., last_tokens: _Optional[int] = ...) -> None: ...

class MatchReply(_message.Message):
    __slots__ = ("blocks", "reason")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    reason: Outcome
    def __init__(self, blocks: _Optional[int] = ..., reason: _Optional[_Union[Outcome, str]] = ...) -> None: ...

class ExistsRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ExistsReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[Outcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, str]]] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RemoveReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class PutBlock(_message.Message):
    __slots__ = ("namespace", "group", "hash", "parent", "tokens", "payload_bytes", "dtype", "durable", "replicas")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hash: bytes
    parent: bytes
    tokens: int
    payload_bytes: int
    dtype: str
    durable: bool
    replicas: int
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hash: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., tokens: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., dtype: _Optional[str] = ..., durable: bool = ..., replicas: _Optional[int] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("block", "data")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    block: PutBlock
    data: bytes
    def __init__(self, block: _Optional[_Union[PutBlock, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("stored", "copies")
    class Stored(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STORED: _ClassVar[PutReply.Stored]
        EXISTED: _ClassVar[PutReply.Stored]
    STORED: PutReply.Stored
    EXISTED: PutReply.Stored
    STORED_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedScalarFieldContainer[PutReply.Stored]
    copies: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stored: _Optional[_Iterable[_Union[PutReply.Stored, str]]] = ..., copies: _Optional[_Iterable[int]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace", "group", "hashes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetBlock(_message.Message):
    __slots__ = ("index", "outcome", "tokens", "payload_bytes", "root")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    index: int
    outcome: Outcome
    tokens: int
    payload_bytes: int
    root: bytes
    def __init__(self, index: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., tokens: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., root: _Optional[bytes] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("block", "data")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    block: GetBlock
    data: bytes
    def __init__(self, block: _Optional[_Union[GetBlock, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("session", "namespace", "group", "parent", "hashes", "last_tokens", "writer_group", "fragment", "hand_off", "alone", "origin", "parents", "hbm", "after")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WRITER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    HAND_OFF_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    HBM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    namespace: bytes
    group: int
    parent: bytes
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    last_tokens: int
    writer_group: str
    fragment: Fragment
    hand_off: bool
    alone: bool
    origin: int
    parents: _containers.RepeatedScalarFieldContainer[bytes]
    hbm: bool
    after: bytes
    def __init__(self, session: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., parent: _Optional[bytes] = ..., hashes: _Optional[_Iterable[bytes]] = ..., last_tokens: _Optional[int] = ..., writer_group: _Optional[str] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ..., hand_off: bool = ..., alone: bool = ..., origin: _Optional[int] = ..., parents: _Optional[_Iterable[bytes]] = ..., hbm: bool = ..., after: _Optional[bytes] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("grants", "slot_offsets", "generations", "handles", "hand_offs")
    class Grant(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GRANTED: _ClassVar[ReserveReply.Grant]
        EXISTS: _ClassVar[ReserveReply.Grant]
    GRANTED: ReserveReply.Grant
    EXISTS: ReserveReply.Grant
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    HAND_OFFS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedScalarFieldContainer[ReserveReply.Grant]
    slot_offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    hand_offs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, grants: _Optional[_Iterable[_Union[ReserveReply.Grant, str]]] = ..., slot_offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., handles: _Optional[_Iterable[bytes]] = ..., hand_offs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("target", "data")
    class Target(_message.Message):
        __slots__ = ("session", "handle", "fragment", "payload_bytes", "dtype")
        SESSION_FIELD_NUMBER: _ClassVar[int]
        HANDLE_FIELD_NUMBER: _ClassVar[int]
        FRAGMENT_FIELD_NUMBER: _ClassVar[int]
        PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
        DTYPE_FIELD_NUMBER: _ClassVar[int]
        session: bytes
        handle: bytes
        fragment: Fragment
        payload_bytes: int
        dtype: str
        def __init__(self, session: _Optional[bytes] = ..., handle: _Optional[bytes] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ..., payload_bytes: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    target: WriteRequest.Target
    data: bytes
    def __init__(self, target: _Optional[_Union[WriteRequest.Target, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SealRequest(_message.Message):
    __slots__ = ("session", "handles", "durable", "replicas")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    durable: bool
    replicas: int
    def __init__(self, session: _Optional[bytes] = ..., handles: _Optional[_Iterable[bytes]] = ..., durable: bool = ..., replicas: _Optional[int] = ...) -> None: ...

class SealReply(_message.Message):
    __slots__ = ("sealed", "copies")
    class Sealed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SEALED: _ClassVar[SealReply.Sealed]
        WAITING: _ClassVar[SealReply.Sealed]
        EXISTED: _ClassVar[SealReply.Sealed]
    SEALED: SealReply.Sealed
    WAITING: SealReply.Sealed
    EXISTED: SealReply.Sealed
    SEALED_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    sealed: _containers.RepeatedScalarFieldContainer[SealReply.Sealed]
    copies: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sealed: _Optional[_Iterable[_Union[SealReply.Sealed, str]]] = ..., copies: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session", "handles", "writer_group")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    WRITER_GROUP_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    writer_group: str
    def __init__(self, session: _Optional[bytes] = ..., handles: _Optional[_Iterable[bytes]] = ..., writer_group: _Optional[str] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("session", "namespace", "group", "hashes", "hand_offs", "pin_ms", "writer_group", "writer_node", "lineage", "stored_keys", "read_ahead", "hbm", "unpinned")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    HAND_OFFS_FIELD_NUMBER: _ClassVar[int]
    PIN_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_GROUP_FIELD_NUMBER: _ClassVar[int]
    WRITER_NODE_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STORED_KEYS_FIELD_NUMBER: _ClassVar[int]
    READ_AHEAD_FIELD_NUMBER: _ClassVar[int]
    HBM_FIELD_NUMBER: _ClassVar[int]
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    hand_offs: _containers.RepeatedScalarFieldContainer[bytes]
    pin_ms: int
    writer_group: str
    writer_node: str
    lineage: bool
    stored_keys: _containers.RepeatedScalarFieldContainer[bytes]
    read_ahead: ReadAhead
    hbm: bool
    unpinned: bool
    def __init__(self, session: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., hand_offs: _Optional[_Iterable[bytes]] = ..., pin_ms: _Optional[int] = ..., writer_group: _Optional[str] = ..., writer_node: _Optional[str] = ..., lineage: bool = ..., stored_keys: _Optional[_Iterable[bytes]] = ..., read_ahead: _Optional[_Union[ReadAhead, _Mapping]] = ..., hbm: bool = ..., unpinned: bool = ...) -> None: ...

class ReadAhead(_message.Message):
    __slots__ = ("connections", "fragment")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    connections: _containers.RepeatedScalarFieldContainer[int]
    fragment: Fragment
    def __init__(self, connections: _Optional[_Iterable[int]] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("outcomes", "slot_offsets", "generations", "tokens", "roots", "handles", "parents", "origins", "ahead_blocks")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    SLOT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[Outcome]
    slot_offsets: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    roots: _containers.RepeatedScalarFieldContainer[bytes]
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    parents: _containers.RepeatedScalarFieldContainer[bytes]
    origins: _containers.RepeatedScalarFieldContainer[int]
    ahead_blocks: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, str]]] = ..., slot_offsets: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., roots: _Optional[_Iterable[bytes]] = ..., handles: _Optional[_Iterable[bytes]] = ..., parents: _Optional[_Iterable[bytes]] = ..., origins: _Optional[_Iterable[int]] = ..., ahead_blocks: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session", "handle", "fragment")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handle: bytes
    fragment: Fragment
    def __init__(self, session: _Optional[bytes] = ..., handle: _Optional[bytes] = ..., fragment: _Optional[_Union[Fragment, _Mapping]] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("session", "handles", "suspects")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    suspects: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., handles: _Optional[_Iterable[bytes]] = ..., suspects: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CloseReply(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, held: _Optional[_Iterable[bool]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("session", "namespace", "group", "hashes", "pin_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PIN_MS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    pin_ms: int
    def __init__(self, session: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., pin_ms: _Optional[int] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("outcomes", "handles", "origins")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[Outcome]
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    origins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, str]]] = ..., handles: _Optional[_Iterable[bytes]] = ..., origins: _Optional[_Iterable[int]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("session", "handles", "pin_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    PIN_MS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    pin_ms: int
    def __init__(self, session: _Optional[bytes] = ..., handles: _Optional[_Iterable[bytes]] = ..., pin_ms: _Optional[int] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("session", "handles", "query_tokens", "hit_tokens")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    query_tokens: int
    hit_tokens: int
    def __init__(self, session: _Optional[bytes] = ..., handles: _Optional[_Iterable[bytes]] = ..., query_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QuarantineRequest(_message.Message):
    __slots__ = ("namespace", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    reason: str
    def __init__(self, namespace: _Optional[bytes] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantineReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
