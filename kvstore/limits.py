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
# Places of a server. Of each kind one tenant gets three quarters at most: kvstore/core/turns.py.
RPC_UNARY_MAX = 20  # calls whose message is received and answered at once; others wait
RPC_WAITING_MAX = 512  # that wait for that; more are refused
RPC_UNARY_SECONDS = 10.0  # from its admission to its answer: a caller that stalls is hung up on
RPC_BULK_MAX = 32  # streams of blocks' bytes at once; more are refused
RPC_STREAMS_MAX = 384  # other streams, sessions among them; more are refused
RPC_OPEN_STREAMS_MAX = 16  # of health and reflection, which take no token; more are refused
RPC_CALLS_MAX = 2_048  # of any kind, those among them that are just being refused
RPC_ARRIVALS_MAX = 16_384  # calls that came and were not looked at yet, a few KiB each
RPC_CONNECTION_CALLS_MAX = 304  # at once on one connection: its caller waits with more by itself
RPC_CONNECTIONS_MAX = 2_048  # half of the files a node opens: each costs some 20 KiB
RPC_HANDSHAKE_SECONDS = 10.0  # a connection that has not said who it is by then is closed
RPC_RATE_MAX = 1_000.0  # calls a second of one tenant while others call; alone it may have all
RPC_BURST_MAX = 2_000.0  # calls that a tenant may save up for
RPC_OWED_MAX = RPC_BURST_MAX  # that it may owe before those that end a hold are refused as well
# Blocks that cost a node's loop no more than one such call does, looked up and written. An engine
# that loads a prompt of 128k tokens in blocks of 16 spends 200 calls on it, and one of an 8B model
# has 16 GiB: five a second are more than a host moves.
RPC_NAMED_A_CALL, RPC_WRITTEN_A_CALL = 128, 64
# Likewise, of a conductor's loop: blocks that it is asked about, and requests given up.
RPC_SCHEDULED_A_CALL, RPC_GIVEN_UP_A_CALL = 1_024, 512
RPC_PART_KEYS = 2_048  # that a node's loop looks up in one go, in 2 to 5 ms
SOCKET_CALLS_MAX = 3  # sockets that one session makes calls on; with more at once it uses gRPC
SOCKET_CALL_BYTES = 16 * KiB  # of a call on one that are received before it is admitted
PUT_CHUNK_BYTES_MAX = 1 * MiB  # put and get stream in pieces of this size; bulk rides shm
ROOM_WAITERS_MAX = 8  # calls that wait for room in a full pool, of one tenant three quarters
ROOM_SECONDS_MAX = 5.0  # that one waits, whatever its deadline: it holds a place among the calls
FETCH_SECONDS_MAX = 5.0  # that another node has for what is asked of it in one go
BROUGHT_SECONDS_MAX = 3.0  # that a call waits for each of HBM, disk and others, at any deadline
FETCH_STRIPE_BYTES_MAX = 16 * MiB  # that another node is asked for in one go, if blocks allow it
FETCH_PEER_BYTES_MAX = (
    64 * MiB
)  # on their way from one other node at once; the rest wait their turn
FETCH_PEER_STRIPES_MAX = 4  # likewise: each takes a thread here and some of its connections there
COPY_SECONDS_MAX = 5.0  # that one waits for its blocks to be copied to other nodes
REPLICAS_MAX = 8  # nodes that one put can ask for
LIST_MAX = 1_000_000  # blocks that one List names
OFFERS_MAX = 256  # puts whose copies are on their way at once, of one tenant three quarters
TAKE_SECONDS_MAX = 8.0  # that a node takes blocks for one call of another's
TAKES_MAX = 4  # such calls at once, each of another node's; of one tenant three quarters
TAKE_BLOCKS_MAX = 1_024  # blocks that one such call is to move; it may name more that are there
MOVE_OUT_SECONDS_MAX = 3_600  # that a node which leaves moves blocks
MOVE_OUT_BLOCKS_MAX = 131_072  # of those worth most: 128 bytes each, 128 GiB at a MiB a block
STREAMED_BLOCKS_MAX = 4_096  # blocks in one Put stream: bounds what one caller can queue
DATA_CALL_BLOCKS_MAX = 1_024  # of one call on a data connection
DATA_CONNECTIONS_MAX = 96  # that a node serves at once, a thread each; of one tenant three quarters
DATA_GREETINGS_MAX = 32  # connections beside them that have not said yet whose they are
DATA_GREETING_SECONDS = 2.0  # in which they do
DATA_SESSION_CONNECTIONS_MAX = 8  # of one session, so that no caller takes all there are
DATA_STREAMS = 4  # connections of one caller to one node: what one call is spread over at most
DATA_STAGING_BYTES = 2 * MiB  # a caller's, for each of them: what a processor's cache can hold
DATA_RATE_MIN = 64 * KiB  # bytes a second: whoever is slower holds slots up, and had better compute
NODE_OWN_BYTES = 300 * MiB  # that a node takes beside its arena: guide and `doctor` plan with it
PROBE_BYTES_MIN, PROBE_BYTES_MAX = 64 * KiB, 16 * MiB  # each way; a fast link takes more to tell
CONTACT_BYTES_MAX = 4 * MiB  # each way, of one probe of a peer that a node meets
CONTACTS_SHOWN_MAX = 64  # of those, in Stats: the worst
REGISTERED_BYTES_MAX = 64 * GiB  # at a time: larger pieces fail in the field
UCX_BLOB_BYTES_MAX = 16 * KiB  # that an agent says of itself and one region: some 120 a device
UCX_REGIONS_MAX = 16  # that one data connection attaches
UCX_AGENTS_UNUSED_MAX = 64  # known to a node though no connection speaks of them
UCX_LOADS_MAX = 4_096  # regions of one agent, some KiB each, until it is dropped when unused
UCX_RUNS_MAX = 1_024  # of one request to NIXL
UCX_ASIDE_BYTES = 16 * MiB  # of a piece of memory in which blocks of another node land
UCX_ASIDE_PIECES = 4  # as many calls of a node bring blocks over ucx at once
UCX_GPU_PIECE_BYTES = 32 * MiB  # of a GPU's memory, in which blocks land that come over ucx
UCX_GPU_PIECES = 2  # as many calls of a process move blocks there at once
UCX_MOVE_SECONDS = 5.0  # that one such request may take
COPY_THREADS_MAX = 4  # that share one move within a host: more wait for the same memory
COPY_SHARE_BYTES_MIN = 4 * MiB  # of each: for less, handing it over takes as long as it saves
STALL_SECONDS = 10.0  # a caller that moves no byte for so long is hung up on
REMOTE_WINDOW_SECONDS = 60.0  # of a session that maps no memory, in which no byte of it has moved
STRIP_BYTES_MAX = 64 * MiB  # hashed in one go, which holds up a node's other callers

BLOCK_TOKENS_MAX = 65_536
STRIPS_MAX = 65_536  # layers x KV heads of one block
SSD_FILES_MAX = 131_072  # that a path may grow to: all are open, and made one after the other
BLOCK_BYTES_MAX = 1 * GiB
LAYERS_MAX = 4_096
GROUPS_MAX = 64
ROPE_FACTS_MAX = 64  # settings of the position encoding named in one spec
NAME_BYTES_MAX = 1_024  # model id, revision, tenant, session label
LABEL_BYTES_MAX = (
    256  # of a rack, an NVLink domain or a LoRA adapter: kept of every engine that reports
)

# Objects that a process of ours makes before it looks for garbage among them, and looks
# until it looks among older ones: a call makes thousands, and what it makes stays.
GARBAGE_YOUNG, GARBAGE_MIDDLE, GARBAGE_OLD = 50_000, 20, 100

SESSIONS_MAX = 344  # open sessions a node serves at once, of one tenant three quarters
HOLDS_MAX = 131_072  # pins at a node, and write windows, 300 bytes each; of one tenant 3 quarters
NAMESPACES_MAX = 4_096
SPECS_BYTES_MAX = 1 * MiB  # of all namespaces a node knows, as text: Stats answers with them
SHARES_MAX = 256  # tenants with a share of their own: Stats answers with them too
TENANTS_MAX = 1_024  # tenants a node knows; Stats answers with those that have blocks
TENANT_NAME_BYTES_MAX = 64
TOKENS_MAX = 16_384  # tokens a node knows, some 300 bytes each
TOKEN_DAYS_DEFAULT = 90
TOKEN_DAYS_MAX = 3_650
DEADLINE_SECONDS_MIN, DEADLINE_SECONDS_MAX = 1e-3, 86_400.0  # that a client waits for its node
PIN_MS_DEFAULT = 30_000
PIN_MS_MAX = 600_000
HAND_OFF_MS_MAX = 600_000  # a hand-off handle older than this opens nothing
PARTNERS_SECONDS = 10.0  # a sealed fragment waits so long for the rest of its block
LEASE_MS_DEFAULT = 2_000  # a node whose lease is gone is suspect after this
FOLLOWERS_MAX = 16  # of a node's directory at once: conductors are few; more are refused
FOLLOW_ENTRIES_MAX = 64 * KiB  # blocks in one message of a node's directory: 9 bytes each
FOLLOW_SILENCE_SECONDS = (
    3.0  # a node that its followers hear nothing of is suspect: it beats each 1
)
FOLLOW_STALL_SECONDS = 30.0  # a follower that takes no message for so long is hung up on
NODES_MAX = 4_096  # that a conductor follows: each costs it a connection and a task
NODE_BLOCKS_MAX = 64 * MiB  # that it believes one node to hold
INDEX_BLOCKS_MAX = 256 * MiB  # that it knows of in all: some 21 bytes each
HOLDERS_MAX = 64  # named in one answer, those with the most
SUSPECT_SECONDS = 60.0  # what a node had stays known for so long after its lease went
CARRIED_KEPT = 8  # measures of a host's transfers that a second's message has: 4 us each
CHANGES_KEPT = 512 * KiB  # of a node's directory, for who was away: 9 bytes each
NOT_AT_MAX = 64  # engines that one request is not to be sent to
REPORTS_MAX = 1_536  # engines that report to one conductor, of one tenant three quarters
CREWS_MAX = 256  # kinds of them, by tenant, namespace and group; of one tenant three quarters
SWITCHING_KEPT = 256  # engines that switch, of a crew, whose role is remembered once they are gone
LINK_SPEEDS = (1e3, 1e15)  # bytes a second that a link is believed to carry: no time is 0 or NaN
REPORT_SILENCE_SECONDS = 3.0  # an engine that was not heard of for so long is sent nothing
CREW_GATHERS_SECONDS = 10.0  # in which all engines of a kind report to whoever heard of none
REPORT_MEASURED_MAX = 256  # prefills in one message, steps, transfers: each costs some 50 us
REPORT_REQUESTS_MAX = 4_096  # ids in each list of one message; engines of ours say so many in all
REPORT_BLOCKS_MAX = 4_096  # of an engine's own, held and dropped each, in one message: some 5 ms
ENGINE_ADAPTERS_MAX = 256  # LoRA adapters of one engine that are remembered, 400 bytes each
CREW_ADAPTERS_MAX = 1_024  # of all engines that one answer tells of
ENGINE_BLOCKS_MAX = 1 * MiB  # of its own that one engine is believed to hold
OWN_BLOCKS_MAX = 32 * MiB  # of all engines, of one crew three quarters: some 21 bytes each
REQUEST_ID_BYTES_MAX = 256
CLIENTS_MAX = 1_024  # of one crew, that are told apart: looked at at every decision, 10 us
CLIENT_BYTES_MAX = 256
IN_FLIGHT_MAX = 131_072  # requests on their way, or run, of one crew three quarters: 1 KiB each
EXPECTED_BLOCKS_MAX = 2 * MiB  # blocks of those that are counted, likewise: 100 bytes each
PLACE_WAITERS_MAX = 10  # calls that wait for room to decode; of more each is refused at once
SENT_SECONDS = 10.0  # in which an engine says that it has a request, else it does not count there
IN_FLIGHT_SECONDS = 600.0  # for which one counts that it has, unless it says more of it
TTFT_MS_DEFAULT, TPOT_MS_DEFAULT = 30_000, 100  # the targets of Mooncake's published figures
TARGET_MS_MAX = 86_400_000  # until a first token
DECISIONS_KEPT = 4_096  # that can be explained, some 3 KiB each
TOP_LOGPROBS_MAX = 20  # likeliest tokens that are told of beside one: OpenAI's, and vLLM's too
SERVE_CHOICES_MAX = 16  # answers to one prompt: the same text so often
SERVE_STOPS_MAX, SERVE_STOP_CHARACTERS_MAX = 4, 256  # texts that one answer stops at
SERVE_TOP_LOGPROBS_MAX = 5  # of a completion; of a chat the above: both are OpenAI's
SERVE_LOGPROBS_MAX = 1 << 20  # of one call, its answers' tokens and those beside them
SERVE_LOGPROBS_HELD_MAX = 8 << 20  # of all calls under way, some 100 bytes each
SERVE_MESSAGES_MAX = 1_024  # of one conversation
SERVE_REQUESTS_MAX = 256  # prompts that a gateway has on their way, a thread each; more are refused
SERVE_PROMPTS_MAX = 16  # of one call over HTTP
SERVE_BODY_BYTES_MAX = 2 * MiB  # of such a call: what all that are read hold is half a GiB
SERVE_BODY_SECONDS = 10.0  # in which it comes: a caller that stalls holds a place
SERVE_HEAD_SECONDS = 10.0  # likewise what comes before it, of a connection that begins to ask
SERVE_HEAD_BYTES_MAX = 64 * KiB  # of that
SERVE_AHEAD_BYTES_MAX = 64 * KiB  # that a connection says before the last answer is whole
SERVE_STALL_SECONDS = 10.0  # in which a caller reads some of its answer
SERVE_CONNECTIONS_MAX = 1_024  # of HTTP at once, some 100 KiB each; more are refused
SERVE_KEYS_MAX, SERVE_KEYS_BYTES_MAX = 4_096, 1 * MiB  # each call is compared with all: 1 ms
SERVE_EVENT_BYTES_MAX = 16 * MiB  # of an answer over HTTP: the first has all ids of the prompt
SERVE_REFUSAL_BYTES_MAX = 64 * KiB  # of its words where it refuses; the rest is not read
SERVE_DRAIN_SECONDS = 10.0  # that answers under way have once the gateway is to stop
METRICS_CALLS_MAX = 16  # that read one process's metrics at once; more are hung up on
METRICS_HEAD_BYTES_MAX = 8 * KiB  # of such a call
METRICS_SECONDS_MAX = 2.0  # that it takes, at most
ATTACH_ENGINES_MAX = 256  # that are looked at together: a thread and a socket each
ATTACH_BLOCKS_MAX = 4 * MiB  # of theirs that are told apart, some 300 bytes each
ATTACH_STEPS_MAX = 4 * MiB  # of theirs that a pool's replay goes through, some 100 bytes each
ATTACH_BODY_BYTES_MAX = 8 * MiB  # that one says of its counters, of which most say 100 KiB
ATTACH_CALL_SECONDS = 5.0  # in which it does
ATTACH_MINUTES_MAX = 1_440.0  # more is not remembered anyhow
SCRUB_RATE_DEFAULT = 16 * MiB  # bytes a second: a TiB in 18 hours, half a percent of one core

assert RPC_KEYS_MAX * HASH_BYTES < RPC_MESSAGE_BYTES_MAX
assert RPC_KEYS_MAX * HANDLE_BYTES_MAX < RPC_MESSAGE_BYTES_MAX
assert RPC_KEYS_MAX * (2 * HANDLE_BYTES_MAX + 32) < RPC_REPLY_BYTES_MAX
assert PUT_CHUNK_BYTES_MAX < RPC_MESSAGE_BYTES_MAX
assert 2 * RPC_KEYS_MAX // RPC_WRITTEN_A_CALL < RPC_BURST_MAX  # two lists of them
assert 2 * RPC_KEYS_MAX // RPC_WRITTEN_A_CALL < RPC_OWED_MAX  # what looks up may owe already
_RPC_PLACES = (
    RPC_UNARY_MAX + RPC_WAITING_MAX + RPC_BULK_MAX + RPC_STREAMS_MAX + RPC_OPEN_STREAMS_MAX
)
assert 2 * _RPC_PLACES <= RPC_CALLS_MAX
assert SESSIONS_MAX <= RPC_STREAMS_MAX
assert ROOM_WAITERS_MAX < RPC_UNARY_MAX * 3 // 4  # else no call that ends a hold gets in
assert ROOM_WAITERS_MAX < RPC_BULK_MAX * 3 // 4
assert ROOM_SECONDS_MAX < RPC_UNARY_SECONDS
assert PLACE_WAITERS_MAX < RPC_UNARY_MAX * 3 // 4  # else nobody is sent to prefill meanwhile
assert FETCH_STRIPE_BYTES_MAX <= FETCH_PEER_BYTES_MAX
assert 3 * BROUGHT_SECONDS_MAX < RPC_UNARY_SECONDS  # one after the other
assert RPC_KEYS_MAX < HOLDS_MAX // 4 * 3 // 4  # of what one tenant leaves, of another the same
assert DATA_CALL_BLOCKS_MAX <= RPC_KEYS_MAX
assert DATA_STREAMS <= DATA_SESSION_CONNECTIONS_MAX < DATA_CONNECTIONS_MAX
assert DATA_GREETING_SECONDS < STALL_SECONDS < REMOTE_WINDOW_SECONDS
assert FETCH_STRIPE_BYTES_MAX <= UCX_ASIDE_BYTES
assert UCX_MOVE_SECONDS < STALL_SECONDS
assert (
    2 * SPECS_BYTES_MAX
    + 400 * NAMESPACES_MAX
    + (NAME_BYTES_MAX + 64) * SHARES_MAX
    + (TENANT_NAME_BYTES_MAX + 64) * TENANTS_MAX
    + 700 * CONTACTS_SHOWN_MAX
    <= RPC_REPLY_BYTES_MAX
)
assert PROBE_BYTES_MIN <= CONTACT_BYTES_MAX <= PROBE_BYTES_MAX
assert 9 * FOLLOW_ENTRIES_MAX < 1 * MiB < RPC_REPLY_BYTES_MAX
assert HOLDERS_MAX * (RPC_KEYS_MAX + NAME_BYTES_MAX) < RPC_REPLY_BYTES_MAX
assert 9 * RPC_KEYS_MAX < RPC_MESSAGE_BYTES_MAX
assert TAKE_SECONDS_MAX < RPC_UNARY_SECONDS and COPY_SECONDS_MAX < RPC_UNARY_SECONDS
assert TAKES_MAX < RPC_UNARY_MAX // 4  # else takes keep the calls of readers out
assert (HASH_BYTES + 8) * RPC_KEYS_MAX < RPC_MESSAGE_BYTES_MAX
assert TAKE_BLOCKS_MAX <= RPC_KEYS_MAX
assert 1e3 * DEADLINE_SECONDS_MAX < 2**32  # milliseconds, in the head of a call on a socket
assert PIN_MS_DEFAULT <= PIN_MS_MAX
assert RPC_STREAMS_MAX <= REPORTS_MAX < RPC_CONNECTIONS_MAX
assert (
    REPORT_REQUESTS_MAX * (REQUEST_ID_BYTES_MAX + 24)
    + (RPC_KEYS_MAX + REPORT_BLOCKS_MAX) * (HASH_BYTES + 4)
    + ENGINE_ADAPTERS_MAX * (LABEL_BYTES_MAX + HASH_BYTES + 8)
    < RPC_MESSAGE_BYTES_MAX
)
assert (2 * REPORT_BLOCKS_MAX + RPC_KEYS_MAX) * (HASH_BYTES + 4) < RPC_MESSAGE_BYTES_MAX
assert CREW_ADAPTERS_MAX * (LABEL_BYTES_MAX + HASH_BYTES + 8) < RPC_MESSAGE_BYTES_MAX
assert ENGINE_BLOCKS_MAX < OWN_BLOCKS_MAX
assert REPORT_SILENCE_SECONDS < SENT_SECONDS < IN_FLIGHT_SECONDS
assert 4 * SERVE_LOGPROBS_MAX <= 3 * SERVE_LOGPROBS_HELD_MAX, "one client has three quarters"
assert SERVE_TOP_LOGPROBS_MAX <= TOP_LOGPROBS_MAX
assert SERVE_PROMPTS_MAX <= SERVE_REQUESTS_MAX < SERVE_CONNECTIONS_MAX
