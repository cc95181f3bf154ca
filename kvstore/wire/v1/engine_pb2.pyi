from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HandOff(_message.Message):
    __slots__ = ("handles", "name", "node_id")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[bytes]
    name: str
    node_id: str
    def __init__(self, handles: _Optional[_Iterable[bytes]] = ..., name: _Optional[str] = ..., node_id: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("priority_ms", "aging", "drop_after_ms")
    PRIORITY_MS_FIELD_NUMBER: _ClassVar[int]
    AGING_FIELD_NUMBER: _ClassVar[int]
    DROP_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    priority_ms: float
    aging: float
    drop_after_ms: int
    def __init__(self, priority_ms: _Optional[float] = ..., aging: _Optional[float] = ..., drop_after_ms: _Optional[int] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "prompt", "turn", "cache_salt", "revision")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    turn: Turn
    cache_salt: str
    revision: str
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., cache_salt: _Optional[str] = ..., revision: _Optional[str] = ...) -> None: ...

class PrefillReply(_message.Message):
    __slots__ = ("hand_off", "done")
    class Done(_message.Message):
        __slots__ = ("reused_tokens", "computed_tokens", "published", "miss")
        REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        PUBLISHED_FIELD_NUMBER: _ClassVar[int]
        MISS_FIELD_NUMBER: _ClassVar[int]
        reused_tokens: int
        computed_tokens: int
        published: bool
        miss: str
        def __init__(self, reused_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., published: bool = ..., miss: _Optional[str] = ...) -> None: ...
    HAND_OFF_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    hand_off: HandOff
    done: PrefillReply.Done
    def __init__(self, hand_off: _Optional[_Union[HandOff, _Mapping]] = ..., done: _Optional[_Union[PrefillReply.Done, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt", "max_new_tokens", "ignore_eos", "without_pool", "hand_off", "turn", "cache_salt", "logprobs", "as_many_as_fit", "revision")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_POOL_FIELD_NUMBER: _ClassVar[int]
    HAND_OFF_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    AS_MANY_AS_FIT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    max_new_tokens: int
    ignore_eos: bool
    without_pool: bool
    hand_off: HandOff
    turn: Turn
    cache_salt: str
    logprobs: int
    as_many_as_fit: bool
    revision: str
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., max_new_tokens: _Optional[int] = ..., ignore_eos: bool = ..., without_pool: bool = ..., hand_off: _Optional[_Union[HandOff, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., cache_salt: _Optional[str] = ..., logprobs: _Optional[int] = ..., as_many_as_fit: bool = ..., revision: _Optional[str] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("logprob", "top_tokens", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("started", "token", "finished", "logprobs")
    class Started(_message.Message):
        __slots__ = ("pool_tokens", "hand_off_tokens", "computed_tokens", "loaded_bytes", "miss")
        POOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
        HAND_OFF_TOKENS_FIELD_NUMBER: _ClassVar[int]
        COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
        LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
        MISS_FIELD_NUMBER: _ClassVar[int]
        pool_tokens: int
        hand_off_tokens: int
        computed_tokens: int
        loaded_bytes: int
        miss: str
        def __init__(self, pool_tokens: _Optional[int] = ..., hand_off_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., loaded_bytes: _Optional[int] = ..., miss: _Optional[str] = ...) -> None: ...
    class Finished(_message.Message):
        __slots__ = ("published_blocks",)
        PUBLISHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        published_blocks: int
        def __init__(self, published_blocks: _Optional[int] = ...) -> None: ...
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: GenerateReply.Started
    token: int
    finished: GenerateReply.Finished
    logprobs: Logprobs
    def __init__(self, started: _Optional[_Union[GenerateReply.Started, _Mapping]] = ..., token: _Optional[int] = ..., finished: _Optional[_Union[GenerateReply.Finished, _Mapping]] = ..., logprobs: _Optional[_Union[Logprobs, _Mapping]] = ...) -> None: ...

class EngineInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineInfoReply(_message.Message):
    __slots__ = ("role", "model", "namespace", "pages", "pages_free", "requests", "revision")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FREE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    role: str
    model: str
    namespace: bytes
    pages: int
    pages_free: int
    requests: int
    revision: str
    def __init__(self, role: _Optional[str] = ..., model: _Optional[str] = ..., namespace: _Optional[bytes] = ..., pages: _Optional[int] = ..., pages_free: _Optional[int] = ..., requests: _Optional[int] = ..., revision: _Optional[str] = ...) -> None: ...
