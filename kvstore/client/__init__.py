"""The pool as its callers see it: `Client` blocks; `AsyncClient` has its main calls
to await, and runs any other.

client = Client.at("127.0.0.1:7410", spec)
chain = client.chain(token_ids)
match = client.match(chain)                      # how much of the prefix is there, and why no more
reader = client.reader(chain, memory)            # load it into paged KV, verified
writer = client.writer(chain, first=match.blocks)  # and publish what was computed, layer by layer
"""

from kvstore.block import Chain, Keyed, Miss, chain, foreign
from kvstore.client.aio import AsyncClient
from kvstore.client.client import Client, Match
from kvstore.client.hold import Hold
from kvstore.client.memory import DENSE, PAGED
from kvstore.client.pinned import Pinned
from kvstore.client.reader import Reader
from kvstore.client.weights import processors_digest, weights_digest, weights_files
from kvstore.client.windows import Windows
from kvstore.client.writer import Writer
from kvstore.config import Credentials, Stands, TlsConfig
from kvstore.content import Medium, adapted, salted, shown, together
from kvstore.errors import (
    Denied,
    Invalid,
    KVStoreError,
    Lapsed,
    Overloaded,
    SessionEnded,
    Unavailable,
)
from kvstore.layout import Fragment
from kvstore.limits import NAME_BYTES_MAX
from kvstore.naming import PAGES, Names, names_of, request_of
from kvstore.rpc.locator import FixedAddress, InDirectory, Locator, located
from kvstore.spec import KVGroup, KVSpec
from kvstore.transfer.protocol import Memory

__all__ = [
    "DENSE",
    "NAME_BYTES_MAX",
    "PAGED",
    "PAGES",
    "AsyncClient",
    "Chain",
    "Client",
    "Credentials",
    "Denied",
    "FixedAddress",
    "Fragment",
    "Hold",
    "InDirectory",
    "Invalid",
    "KVGroup",
    "KVSpec",
    "KVStoreError",
    "Keyed",
    "Lapsed",
    "Locator",
    "Match",
    "Medium",
    "Memory",
    "Miss",
    "Names",
    "Overloaded",
    "Pinned",
    "Reader",
    "SessionEnded",
    "Stands",
    "TlsConfig",
    "Unavailable",
    "Windows",
    "Writer",
    "adapted",
    "chain",
    "foreign",
    "located",
    "names_of",
    "processors_digest",
    "request_of",
    "salted",
    "shown",
    "together",
    "weights_digest",
    "weights_files",
]
