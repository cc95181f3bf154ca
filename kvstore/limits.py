"""Every limit has its one home here, with its reason; related limits are asserted together."""

from __future__ import annotations

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

HASH_BYTES = 32  # BLAKE3, the width of a block hash and of a stored key
ROOT_BYTES = 16  # xxh3-128 over (key, strip table)
HANDLE_BYTES_MAX = 80  # an HMAC-sealed claim on one slot

RPC_KEYS_MAX = 16_384  # a million tokens at 64 a block, in one call
RPC_MESSAGE_BYTES_MAX = 2 * MiB  # every message: bounds what callers can make a node hold
RPC_REPLY_BYTES_MAX = 4 * MiB  # a Reserve of RPC_KEYS_MAX blocks answers with two handles for each
RPC_CALLS_MAX = 48  # calls at once beside the sessions' streams; more are refused at once
RPC_UNARY_MAX = 16  # of those, whose message is received and answered at once; others wait
RPC_UNARY_SECONDS = 10.0  # from its admission to its answer: a caller that stalls is hung up on
RPC_BULK_MAX = 24  # streams of blocks' bytes at once; more are refused at once
PUT_CHUNK_BYTES_MAX = 1 * MiB  # put and get stream in pieces of this size; bulk rides shm
ROOM_WAITERS_MAX = 8  # calls that wait for room in a full pool; more are refused at once
ROOM_SECONDS_MAX = 5.0  # that one waits, whatever its deadline: it holds a place among the calls
STREAMED_BLOCKS_MAX = 4_096  # blocks in one Put stream: bounds what one caller can queue
STRIP_BYTES_MAX = 64 * MiB  # hashed in one go, which holds up a node's other callers

BLOCK_TOKENS_MAX = 65_536
STRIPS_MAX = 65_536  # layers x KV heads of one block
BLOCK_BYTES_MAX = 1 * GiB
LAYERS_MAX = 4_096
GROUPS_MAX = 64
ROPE_FACTS_MAX = 64  # settings of the position encoding named in one spec
NAME_BYTES_MAX = 1_024  # model id, revision, tenant, session label

SESSIONS_MAX = 256  # open sessions a node serves at once
HOLDS_MAX = 131_072  # pins at a node, and write windows: each costs it some 300 bytes
NAMESPACES_MAX = 4_096
SPECS_BYTES_MAX = 1 * MiB  # of all namespaces a node knows, as text: Stats answers with them
SHARES_MAX = 256  # tenants with a share of their own: Stats answers with them too
PIN_MS_DEFAULT = 30_000
PIN_MS_MAX = 600_000
HAND_OFF_MS_MAX = 600_000  # a hand-off handle older than this opens nothing
PARTNERS_SECONDS = 10.0  # a sealed fragment waits so long for the rest of its block
LEASE_MS_DEFAULT = 2_000  # a node whose lease is gone is suspect after this
SCRUB_RATE_DEFAULT = 16 * MiB  # bytes a second: a TiB in 18 hours, half a percent of one core

assert RPC_KEYS_MAX * HASH_BYTES < RPC_MESSAGE_BYTES_MAX
assert RPC_KEYS_MAX * HANDLE_BYTES_MAX < RPC_MESSAGE_BYTES_MAX
assert RPC_KEYS_MAX * (2 * HANDLE_BYTES_MAX + 32) < RPC_REPLY_BYTES_MAX
assert PUT_CHUNK_BYTES_MAX < RPC_MESSAGE_BYTES_MAX
assert RPC_UNARY_MAX + RPC_BULK_MAX <= RPC_CALLS_MAX
assert ROOM_WAITERS_MAX < RPC_UNARY_MAX  # else no call that ends a hold gets in
assert ROOM_WAITERS_MAX < RPC_BULK_MAX
assert ROOM_SECONDS_MAX < RPC_UNARY_SECONDS
assert RPC_KEYS_MAX < HOLDS_MAX
assert (
    2 * SPECS_BYTES_MAX + 400 * NAMESPACES_MAX + (NAME_BYTES_MAX + 64) * SHARES_MAX
    <= RPC_REPLY_BYTES_MAX
)
assert PIN_MS_DEFAULT <= PIN_MS_MAX
