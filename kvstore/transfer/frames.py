"""What is said on a data connection: fixed structs, then bytes whose number both sides know.

A caller opens with `HELLO`, naming its session, and then makes calls, one after the other. Where
Open named the connection (`ReadAhead` of kv.proto), a READ's answer comes on it uncalled. A call is
a `CALL` and as many handles of `handle_bytes` each; what follows depends on the operation, for n
blocks of a fragment with k strips:

    READ    owner: n status bytes; then of each block that is `MOVED`: its identity and strip table
            (`SlotLayout.root_bytes`), and the k strips, dense, in slot order
    WRITE   owner: n status bytes; caller: of each block that is `MOVED`, k table entries (u64) and
            the k strips; owner: n status bytes again, of what has arrived whole and has its hashes
    LOOK    owner: n times `LOOKED`: what the slot is now, and how many layers are written
    PROBE   owner: `size` zero bytes; then caller the same; owner: one status byte
    ATTACH  caller: `REGION`, and `size` bytes that its agent says of it; owner: one `Attach` byte.
            The connection's regions are numbered from 0 in the order in which they were attached
    PULL    as READ, but the strips are put into region `size` where the caller said (`PLACE`, after
            the handles: of each block's payload) by other means than this connection, a block's
            before its identity and table are sent
    PUSH    as WRITE, but the strips are taken from there, once the table entries have come

A connection that begins with one byte more, `CALLS_KIND`, which is never sealed, is none of these:
after `HELLO` and `WELCOME`, both with `CALLS_MAGIC`, it carries the calls of
`kvstore.rpc.socket_frames`.

All numbers are little endian. Who receives knows every length from its own layout: nothing that is
read here is believed to be a size.
"""

from __future__ import annotations

import enum
import struct

HELLO = struct.Struct("<8s16s16s")  # magic, session, its data token
HELLO_MAGIC = b"MPDATA01"
CALLS_KIND = b"C"  # neither a HELLO nor TLS begins with it
CALLS_MAGIC = b"MPCALL01"
WELCOME = struct.Struct("<8sII")  # magic, `Welcome`, the connection's number; 0: it has none

# op, handle bytes, handles, fragment (4), deadline ms, size
CALL = struct.Struct("<BxHIIIIIIQ")
LOOKED = struct.Struct("<BxxxI")
PLACE = struct.Struct("<Q")  # of a payload in its region, bytes; a multiple of 8
# the caller's agent; where the region lies, its bytes, and what it was registered as: the device,
# and a `Segment`, which callers that know of no kinds leave 0
REGION = struct.Struct("<16sQQIBxxx")


class Op(enum.IntEnum):
    READ = 1
    WRITE = 2
    LOOK = 3
    PROBE = 4
    PULL = 5
    ATTACH = 6
    PUSH = 7


class Segment(enum.IntEnum):
    """What kind of memory a region is."""

    DRAM = 0
    VRAM = 1  # of a GPU


class Attach(enum.IntEnum):
    """What the owner says of an agent and its region."""

    KNOWN = 0
    NOT_SERVED = 1  # the node moves nothing over ucx
    NOT_REACHED = 2  # its agent and this one find no way to each other
    NOT_TRUSTED = 3  # the caller is no node, nor of an open host


class Welcome(enum.IntEnum):
    """What the owner says to who greets it; after all but the first it hangs up."""

    COME_IN = 0
    UNKNOWN = 1  # no such session, or not by this token
    FULL = 2  # as many connections as it serves, or as the session or its tenant may have


class Status(enum.IntEnum):
    """What became of one block of a call."""

    MOVED = 0
    LAPSED = 1  # the pin or window is over, by the owner's clock or its caller's word
    REFUSED = 2  # the handle is not this session's, or not for this
    UNWRITTEN = 3  # a strip of the fragment has not been written
    WRITTEN = 4  # a strip of the fragment has been written before
    DAMAGED = 5  # bytes and hashes that arrived do not agree
    OUT_OF_RANGE = 6  # the fragment reaches outside the window or the block


class Found(enum.IntEnum):
    """What a slot is to whoever holds a handle of it."""

    GONE = 0  # the handle is of no use any more
    FILLING = 1
    ENDED = 2  # given up: nothing will be written that is not
    SEALED = 3
