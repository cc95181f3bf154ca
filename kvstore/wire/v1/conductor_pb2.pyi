from kvstore.wire.v1 import directory_pb2 as _directory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFILL: _ClassVar[Phase]
    DECODE: _ClassVar[Phase]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AS_IT_IS: _ClassVar[Role]
    PREFILLS: _ClassVar[Role]
    DECODES: _ClassVar[Role]
    BOTH: _ClassVar[Role]
PREFILL: Phase
DECODE: Phase
AS_IT_IS: Role
PREFILLS: Role
DECODES: Role
BOTH: Role

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

class ScheduleRequest(_message.Message):
    __slots__ = ("request_id", "namespace", "group", "hashes", "tokens", "waited_ms", "phase", "ttft_ms", "tpot_ms", "wait_ms", "client", "max_new_tokens", "not_at", "as_many_as_fit")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NOT_AT_FIELD_NUMBER: _ClassVar[int]
    AS_MANY_AS_FIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    namespace: bytes
    group: int
    hashes: _containers.RepeatedScalarFieldContainer[bytes]
    tokens: int
    waited_ms: int
    phase: Phase
    ttft_ms: int
    tpot_ms: int
    wait_ms: int
    client: str
    max_new_tokens: int
    not_at: _containers.RepeatedScalarFieldContainer[str]
    as_many_as_fit: bool
    def __init__(self, request_id: _Optional[str] = ..., namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ..., tokens: _Optional[int] = ..., waited_ms: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., ttft_ms: _Optional[int] = ..., tpot_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., client: _Optional[str] = ..., max_new_tokens: _Optional[int] = ..., not_at: _Optional[_Iterable[str]] = ..., as_many_as_fit: bool = ...) -> None: ...

class ScheduleReply(_message.Message):
    __slots__ = ("prefill", "decode", "split", "wait_ms", "ttft_ms", "tpot_ms", "priority_ms", "aging", "drop_after_ms", "approximate")
    class Place(_message.Message):
        __slots__ = ("engine_id", "address", "data_parallel_rank", "node_id")
        ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        engine_id: str
        address: str
        data_parallel_rank: int
        node_id: str
        def __init__(self, engine_id: _Optional[str] = ..., address: _Optional[str] = ..., data_parallel_rank: _Optional[int] = ..., node_id: _Optional[str] = ...) -> None: ...
    class Split(_message.Message):
        __slots__ = ("there_blocks", "coming_blocks", "read_blocks", "fetched_blocks", "fetched_from", "computed_tokens", "own_blocks", "shared_blocks")
        THERE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        COMING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        READ_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        FETCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        FETCHED_FROM_FIELD_NUMBER: _ClassVar[int]
        COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        OWN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        there_blocks: int
        coming_blocks: int
        read_blocks: int
        fetched_blocks: int
        fetched_from: str
        computed_tokens: int
        own_blocks: int
        shared_blocks: int
        def __init__(self, there_blocks: _Optional[int] = ..., coming_blocks: _Optional[int] = ..., read_blocks: _Optional[int] = ..., fetched_blocks: _Optional[int] = ..., fetched_from: _Optional[str] = ..., computed_tokens: _Optional[int] = ..., own_blocks: _Optional[int] = ..., shared_blocks: _Optional[int] = ...) -> None: ...
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_MS_FIELD_NUMBER: _ClassVar[int]
    AGING_FIELD_NUMBER: _ClassVar[int]
    DROP_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    APPROXIMATE_FIELD_NUMBER: _ClassVar[int]
    prefill: ScheduleReply.Place
    decode: ScheduleReply.Place
    split: ScheduleReply.Split
    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    priority_ms: float
    aging: float
    drop_after_ms: int
    approximate: bool
    def __init__(self, prefill: _Optional[_Union[ScheduleReply.Place, _Mapping]] = ..., decode: _Optional[_Union[ScheduleReply.Place, _Mapping]] = ..., split: _Optional[_Union[ScheduleReply.Split, _Mapping]] = ..., wait_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., priority_ms: _Optional[float] = ..., aging: _Optional[float] = ..., drop_after_ms: _Optional[int] = ..., approximate: bool = ...) -> None: ...

class GiveUpRequest(_message.Message):
    __slots__ = ("namespace", "group", "request_ids")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GiveUpReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("engine", "load", "prefills", "steps", "transfers", "accepted", "began", "ended", "decoding", "given_up", "cleared", "dropped", "held", "over", "leaves", "adapters")
    class Cost(_message.Message):
        __slots__ = ("a", "b", "c")
        A_FIELD_NUMBER: _ClassVar[int]
        B_FIELD_NUMBER: _ClassVar[int]
        C_FIELD_NUMBER: _ClassVar[int]
        a: float
        b: float
        c: float
        def __init__(self, a: _Optional[float] = ..., b: _Optional[float] = ..., c: _Optional[float] = ...) -> None: ...
    class Engine(_message.Message):
        __slots__ = ("engine_id", "address", "node_id", "namespace", "group", "block_tokens", "token_bytes", "room_tokens", "prefill", "decode", "link_bytes_per_second", "ssd_bytes_per_second", "data_parallel_rank", "elastic", "rack", "nvlink_domain", "domain_bytes_per_second", "cross_rack_bytes_per_second", "revision", "kind", "naming", "followed")
        ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        NODE_ID_FIELD_NUMBER: _ClassVar[int]
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
        TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
        ROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
        PREFILL_FIELD_NUMBER: _ClassVar[int]
        DECODE_FIELD_NUMBER: _ClassVar[int]
        LINK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        SSD_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
        ELASTIC_FIELD_NUMBER: _ClassVar[int]
        RACK_FIELD_NUMBER: _ClassVar[int]
        NVLINK_DOMAIN_FIELD_NUMBER: _ClassVar[int]
        DOMAIN_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        CROSS_RACK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        REVISION_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        NAMING_FIELD_NUMBER: _ClassVar[int]
        FOLLOWED_FIELD_NUMBER: _ClassVar[int]
        engine_id: str
        address: str
        node_id: str
        namespace: bytes
        group: int
        block_tokens: int
        token_bytes: float
        room_tokens: int
        prefill: ReportRequest.Cost
        decode: ReportRequest.Cost
        link_bytes_per_second: float
        ssd_bytes_per_second: float
        data_parallel_rank: int
        elastic: Role
        rack: str
        nvlink_domain: str
        domain_bytes_per_second: float
        cross_rack_bytes_per_second: float
        revision: str
        kind: str
        naming: str
        followed: bool
        def __init__(self, engine_id: _Optional[str] = ..., address: _Optional[str] = ..., node_id: _Optional[str] = ..., namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., block_tokens: _Optional[int] = ..., token_bytes: _Optional[float] = ..., room_tokens: _Optional[int] = ..., prefill: _Optional[_Union[ReportRequest.Cost, _Mapping]] = ..., decode: _Optional[_Union[ReportRequest.Cost, _Mapping]] = ..., link_bytes_per_second: _Optional[float] = ..., ssd_bytes_per_second: _Optional[float] = ..., data_parallel_rank: _Optional[int] = ..., elastic: _Optional[_Union[Role, str]] = ..., rack: _Optional[str] = ..., nvlink_domain: _Optional[str] = ..., domain_bytes_per_second: _Optional[float] = ..., cross_rack_bytes_per_second: _Optional[float] = ..., revision: _Optional[str] = ..., kind: _Optional[str] = ..., naming: _Optional[str] = ..., followed: bool = ...) -> None: ...
    class Load(_message.Message):
        __slots__ = ("batch", "context_tokens")
        BATCH_FIELD_NUMBER: _ClassVar[int]
        CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        batch: int
        context_tokens: int
        def __init__(self, batch: _Optional[int] = ..., context_tokens: _Optional[int] = ...) -> None: ...
    class Prefill(_message.Message):
        __slots__ = ("new_tokens", "prefix_tokens", "seconds")
        NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
        PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        new_tokens: int
        prefix_tokens: int
        seconds: float
        def __init__(self, new_tokens: _Optional[int] = ..., prefix_tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...
    class Step(_message.Message):
        __slots__ = ("batch", "context_tokens", "seconds")
        BATCH_FIELD_NUMBER: _ClassVar[int]
        CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        batch: int
        context_tokens: int
        seconds: float
        def __init__(self, batch: _Optional[int] = ..., context_tokens: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...
    class Transfer(_message.Message):
        __slots__ = ("bytes", "seconds", "of_ssd")
        BYTES_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        OF_SSD_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        seconds: float
        of_ssd: bool
        def __init__(self, bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., of_ssd: bool = ...) -> None: ...
    class Accepted(_message.Message):
        __slots__ = ("request_id", "tokens", "prefix_tokens", "hashes")
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        TOKENS_FIELD_NUMBER: _ClassVar[int]
        PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
        HASHES_FIELD_NUMBER: _ClassVar[int]
        request_id: str
        tokens: int
        prefix_tokens: int
        hashes: _containers.RepeatedScalarFieldContainer[bytes]
        def __init__(self, request_id: _Optional[str] = ..., tokens: _Optional[int] = ..., prefix_tokens: _Optional[int] = ..., hashes: _Optional[_Iterable[bytes]] = ...) -> None: ...
    class Over(_message.Message):
        __slots__ = ("sequences", "output_tokens")
        SEQUENCES_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        sequences: int
        output_tokens: int
        def __init__(self, sequences: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREFILLS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DECODING_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    engine: ReportRequest.Engine
    load: ReportRequest.Load
    prefills: _containers.RepeatedCompositeFieldContainer[ReportRequest.Prefill]
    steps: _containers.RepeatedCompositeFieldContainer[ReportRequest.Step]
    transfers: _containers.RepeatedCompositeFieldContainer[ReportRequest.Transfer]
    accepted: _containers.RepeatedCompositeFieldContainer[ReportRequest.Accepted]
    began: _containers.RepeatedScalarFieldContainer[str]
    ended: _containers.RepeatedScalarFieldContainer[str]
    decoding: _containers.RepeatedScalarFieldContainer[str]
    given_up: _containers.RepeatedScalarFieldContainer[str]
    cleared: bool
    dropped: _containers.RepeatedScalarFieldContainer[bytes]
    held: _containers.RepeatedScalarFieldContainer[bytes]
    over: ReportRequest.Over
    leaves: bool
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, engine: _Optional[_Union[ReportRequest.Engine, _Mapping]] = ..., load: _Optional[_Union[ReportRequest.Load, _Mapping]] = ..., prefills: _Optional[_Iterable[_Union[ReportRequest.Prefill, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[ReportRequest.Step, _Mapping]]] = ..., transfers: _Optional[_Iterable[_Union[ReportRequest.Transfer, _Mapping]]] = ..., accepted: _Optional[_Iterable[_Union[ReportRequest.Accepted, _Mapping]]] = ..., began: _Optional[_Iterable[str]] = ..., ended: _Optional[_Iterable[str]] = ..., decoding: _Optional[_Iterable[str]] = ..., given_up: _Optional[_Iterable[str]] = ..., cleared: bool = ..., dropped: _Optional[_Iterable[bytes]] = ..., held: _Optional[_Iterable[bytes]] = ..., over: _Optional[_Union[ReportRequest.Over, _Mapping]] = ..., leaves: bool = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights: bytes
    def __init__(self, name: _Optional[str] = ..., weights: _Optional[bytes] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BalanceRequest(_message.Message):
    __slots__ = ("namespace", "group", "engine_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    group: int
    engine_id: str
    def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., engine_id: _Optional[str] = ...) -> None: ...

class BalanceReply(_message.Message):
    __slots__ = ("crews",)
    class Split(_message.Message):
        __slots__ = ("prefill", "decode")
        PREFILL_FIELD_NUMBER: _ClassVar[int]
        DECODE_FIELD_NUMBER: _ClassVar[int]
        prefill: int
        decode: int
        def __init__(self, prefill: _Optional[int] = ..., decode: _Optional[int] = ...) -> None: ...
    class Crew(_message.Message):
        __slots__ = ("namespace", "group", "now", "best", "prefill_load", "decode_load", "best_load", "sentence", "engine_id", "role", "held")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        NOW_FIELD_NUMBER: _ClassVar[int]
        BEST_FIELD_NUMBER: _ClassVar[int]
        PREFILL_LOAD_FIELD_NUMBER: _ClassVar[int]
        DECODE_LOAD_FIELD_NUMBER: _ClassVar[int]
        BEST_LOAD_FIELD_NUMBER: _ClassVar[int]
        SENTENCE_FIELD_NUMBER: _ClassVar[int]
        ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        HELD_FIELD_NUMBER: _ClassVar[int]
        namespace: bytes
        group: int
        now: BalanceReply.Split
        best: BalanceReply.Split
        prefill_load: float
        decode_load: float
        best_load: float
        sentence: str
        engine_id: str
        role: Role
        held: bool
        def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., now: _Optional[_Union[BalanceReply.Split, _Mapping]] = ..., best: _Optional[_Union[BalanceReply.Split, _Mapping]] = ..., prefill_load: _Optional[float] = ..., decode_load: _Optional[float] = ..., best_load: _Optional[float] = ..., sentence: _Optional[str] = ..., engine_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., held: bool = ...) -> None: ...
    CREWS_FIELD_NUMBER: _ClassVar[int]
    crews: _containers.RepeatedCompositeFieldContainer[BalanceReply.Crew]
    def __init__(self, crews: _Optional[_Iterable[_Union[BalanceReply.Crew, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "request")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    request: ScheduleRequest
    def __init__(self, request_id: _Optional[str] = ..., request: _Optional[_Union[ScheduleRequest, _Mapping]] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("considered", "sentence", "plan", "ttft_error", "ttft_bias")
    class Considered(_message.Message):
        __slots__ = ("engine_id", "cost", "wait_ms", "ready_ms", "work_ms", "first_token_ms", "reused_blocks", "fetched_blocks", "read_blocks", "error", "own_blocks", "fetched_from")
        ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
        COST_FIELD_NUMBER: _ClassVar[int]
        WAIT_MS_FIELD_NUMBER: _ClassVar[int]
        READY_MS_FIELD_NUMBER: _ClassVar[int]
        WORK_MS_FIELD_NUMBER: _ClassVar[int]
        FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
        REUSED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        FETCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        READ_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        OWN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        FETCHED_FROM_FIELD_NUMBER: _ClassVar[int]
        engine_id: str
        cost: float
        wait_ms: float
        ready_ms: float
        work_ms: float
        first_token_ms: float
        reused_blocks: int
        fetched_blocks: int
        read_blocks: int
        error: float
        own_blocks: int
        fetched_from: str
        def __init__(self, engine_id: _Optional[str] = ..., cost: _Optional[float] = ..., wait_ms: _Optional[float] = ..., ready_ms: _Optional[float] = ..., work_ms: _Optional[float] = ..., first_token_ms: _Optional[float] = ..., reused_blocks: _Optional[int] = ..., fetched_blocks: _Optional[int] = ..., read_blocks: _Optional[int] = ..., error: _Optional[float] = ..., own_blocks: _Optional[int] = ..., fetched_from: _Optional[str] = ...) -> None: ...
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TTFT_ERROR_FIELD_NUMBER: _ClassVar[int]
    TTFT_BIAS_FIELD_NUMBER: _ClassVar[int]
    considered: _containers.RepeatedCompositeFieldContainer[ExplainReply.Considered]
    sentence: str
    plan: ScheduleReply
    ttft_error: float
    ttft_bias: float
    def __init__(self, considered: _Optional[_Iterable[_Union[ExplainReply.Considered, _Mapping]]] = ..., sentence: _Optional[str] = ..., plan: _Optional[_Union[ScheduleReply, _Mapping]] = ..., ttft_error: _Optional[float] = ..., ttft_bias: _Optional[float] = ...) -> None: ...

class CrewsRequest(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: str
    def __init__(self, revision: _Optional[str] = ...) -> None: ...

class CrewsReply(_message.Message):
    __slots__ = ("crews", "left")
    class Crew(_message.Message):
        __slots__ = ("namespace", "group", "block_tokens", "revision", "engines", "over_http", "naming", "addresses", "adapters")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
        REVISION_FIELD_NUMBER: _ClassVar[int]
        ENGINES_FIELD_NUMBER: _ClassVar[int]
        OVER_HTTP_FIELD_NUMBER: _ClassVar[int]
        NAMING_FIELD_NUMBER: _ClassVar[int]
        ADDRESSES_FIELD_NUMBER: _ClassVar[int]
        ADAPTERS_FIELD_NUMBER: _ClassVar[int]
        namespace: bytes
        group: int
        block_tokens: int
        revision: str
        engines: int
        over_http: int
        naming: str
        addresses: _containers.RepeatedScalarFieldContainer[str]
        adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
        def __init__(self, namespace: _Optional[bytes] = ..., group: _Optional[int] = ..., block_tokens: _Optional[int] = ..., revision: _Optional[str] = ..., engines: _Optional[int] = ..., over_http: _Optional[int] = ..., naming: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...
    CREWS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    crews: _containers.RepeatedCompositeFieldContainer[CrewsReply.Crew]
    left: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, crews: _Optional[_Iterable[_Union[CrewsReply.Crew, _Mapping]]] = ..., left: _Optional[_Iterable[str]] = ...) -> None: ...
