"""Data connections of a node that serves over TLS: who is let in, whom a caller tells its secret,
that whoever listens on the way hears no byte of a block, and that sessions outlive certificates."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.client.call_sockets import at_data_port
from kvstore.clock import SystemClock
from kvstore.config import OPEN, Credentials, TlsConfig
from kvstore.errors import SessionEnded, Unavailable
from kvstore.metadata.records import NodeRecord
from kvstore.node.link import Link
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.socket_client import SocketCalls
from kvstore.rpc.tls import Renewing, data_client, data_server
from kvstore.transfer.frames import (
    CALLS_KIND,
    CALLS_MAGIC,
    HELLO,
    HELLO_MAGIC,
    WELCOME,
    Welcome,
)
from kvstore.transfer.lanes import Lanes
from kvstore.transfer.probe import Probe
from kvstore.transfer.stream import DataStream
from kvstore.transfer.tcp import TcpTransport
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth.people import DAY, HOSTS, People, admitted, caller_of, known_at
from tests.client.kv import Cache, spec_of, truth_of
from tests.faults.proxy import Proxy
from tests.nodes import Caller, NodeProcess, eventually, prompt, running, short_directory
from tests.transfer.raw import SECONDS, Raw

HOST = "127.0.0.1"
TOKENS, BLOCK_TOKENS = 64, 32
SPEC = spec_of("over tls", block_tokens=BLOCK_TOKENS)
seeds = itertools.count(1)


@pytest.fixture(scope="module")
def caller(tls_node: NodeProcess, people: People) -> Caller:
    """With a session and its data token, so that a stranger who has both lacks only one thing."""
    return caller_of(tls_node, people, "team-a")


class Kind(NamedTuple):
    """Of a connection: how it begins, in clear text, and what it says sealed."""

    begins: bytes
    magic: bytes

    @property
    def come_in(self) -> bytes:
        return WELCOME.pack(self.magic, Welcome.COME_IN, 0)[:12]  # its number comes after that


DATA, CALLS = Kind(b"", HELLO_MAGIC), Kind(CALLS_KIND, CALLS_MAGIC)
of_each_kind = pytest.mark.parametrize("kind", [DATA, CALLS], ids=["data", "calls"])


def answer(caller: Caller, context: ssl.SSLContext | None, kind: Kind) -> bytes:
    """What the node says to the greeting of a session that it knows, before it hangs up if it
    does: by these certificates, or in clear text."""
    with Raw(caller.opened.data_address) as raw:
        raw.socket.sendall(kind.begins)
        # A refusal is an alert, or a reset where the node left something unread.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            if context is not None:
                raw.socket = context.wrap_socket(raw.socket, server_hostname=HOST)
            raw.socket.sendall(HELLO.pack(kind.magic, caller.session, caller.opened.data_token))
            return raw.socket.recv(WELCOME.size)[:12]
        return b""


# Who is let in


@of_each_kind
def test_a_greeting_in_clear_text_gets_nothing_back_and_is_hung_up_on(
    caller: Caller, kind: Kind
) -> None:
    assert answer(caller, None, kind) == b""


@of_each_kind
def test_a_caller_without_certificate_is_refused(
    caller: Caller, people: People, kind: Kind
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(people.client.ca)
    assert answer(caller, context, kind) == b""


@of_each_kind
@pytest.mark.parametrize("whose", ["foreign", "expired"])
def test_a_certificate_of_another_authority_or_one_that_is_over_is_refused(
    caller: Caller, people: People, whose: str, kind: Kind
) -> None:
    shown: TlsConfig = getattr(people, whose)
    assert answer(caller, data_client(shown), kind) == b""


def test_a_call_is_answered_over_tls_until_the_token_of_its_caller_is_revoked(
    tls_node: NodeProcess, people: People
) -> None:
    token = people.token("team-a")
    credentials = Credentials(people.client, token)
    mine = eventually(lambda: admitted(tls_node, credentials))
    mine.register()
    opened, tls = mine.opened, Renewing(people.client, data_client).latest
    calls = SocketCalls(at_data_port(opened.data_address, mine.session, opened.data_token, tls), "")
    made = calls.take(SECONDS)
    assert isinstance(made, ssl.SSLSocket)
    about = pb.MatchRequest(**mine.about(prompt(1)))
    assert calls.call(made, 0, about, SECONDS).blocks == 0
    people.revoke(token)

    def denied() -> bool:
        again = calls.take(SECONDS)
        if again is None:
            return True
        try:
            calls.call(again, 0, about, SECONDS)
        except (SessionEnded, Unavailable):
            return True
        return False

    eventually(denied)
    calls.close()


def test_the_right_certificate_is_let_in_by_its_sessions_token_and_no_other(
    caller: Caller, people: People
) -> None:
    right = data_client(people.client)
    assert answer(caller, right, DATA) == DATA.come_in
    assert answer(caller, right, CALLS) == CALLS.come_in
    with Raw(caller.opened.data_address) as raw:
        raw.socket = right.wrap_socket(raw.socket, server_hostname=HOST)
        assert raw.greet(caller.session, bytes(16)) == Welcome.UNKNOWN
        assert raw.ended()


# Whom a caller tells its secret


class Impostor:
    """Serves one data connection with a certificate that it should not have."""

    def __init__(self, tls: TlsConfig) -> None:
        self.heard: bytes | None = None  # nothing as long as it is not believed
        self._tls = tls
        self._server = socket.create_server((HOST, 0))
        self._server.settimeout(SECONDS)
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        peer, _ = self._server.accept()
        peer.settimeout(SECONDS)
        with (
            peer,
            contextlib.suppress(OSError),
            data_server(self._tls).wrap_socket(peer, server_side=True) as sealed,
        ):
            self.heard = sealed.recv(HELLO.size)

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._server.close()


@pytest.mark.parametrize(
    ("whose", "why"), [("other authority", "VERIFY_FAILED"), ("other host", "mismatch")]
)
def test_a_caller_tells_its_secret_to_no_data_port_but_the_nodes(
    people: People, tmp_path: Path, whose: str, why: str
) -> None:
    if whose == "other host":
        shown = Authority.open(people.node.ca.parent).sign(
            Holder(Role.NODE, "elsewhere", ("10.0.0.1",)), DAY
        )
    else:
        signed = Authority.make(tmp_path / "theirs", DAY).sign(Holder(Role.NODE, "a", HOSTS), DAY)
        shown = TlsConfig(people.node.ca, signed.cert, signed.key)
    with Impostor(shown) as impostor, pytest.raises(Unavailable, match=why):
        DataStream.connect((HOST, impostor.port), SECONDS, data_client(people.client))
    assert impostor.heard is None


def test_what_is_not_sealed_is_not_taken_for_the_end_of_a_peer(people: People) -> None:
    """It may still write to memory that is kept from others for as long as it may."""
    listening, returned = socket.create_server((HOST, 0)), threading.Event()

    def serve() -> None:
        context = data_server(people.node)
        with listening, context.wrap_socket(listening.accept()[0], server_side=True) as peer:
            socket.socket.sendall(peer, b"what no TLS has said")
            early.append(returned.wait(0.2))

    early: list[bool] = []
    serving = threading.Thread(target=serve)
    serving.start()
    stream = DataStream.connect(listening.getsockname(), SECONDS, data_client(people.client))
    stream.wait_for_end()
    returned.set()
    serving.join(SECONDS)
    stream.close()
    assert early == [False]


# What passes


@pytest.fixture(scope="module")
def open_node() -> Iterator[NodeProcess]:
    with running(dram="64MiB", slab="8MiB") as started:
        yield started


def moved(node: NodeProcess, credentials: Credentials) -> tuple[list[bytes], bytes, bytes]:
    """Blocks stored and loaded by way of a proxy: their strips, and what passed there and back."""
    truth = truth_of(SPEC, TOKENS, next(seeds))
    with Client.at(
        node.address, SPEC, transport="tcp", credentials=credentials, deadline_seconds=SECONDS
    ) as client:
        link: Any = client.connection.link()
        opened = link.opened
        with Proxy(opened.data_address) as proxy:
            proxy.to_server.heard, proxy.to_caller.heard = there, back = bytearray(), bytearray()
            link.transport.close()
            shown = credentials.tls
            tls = None if shown is None else Renewing(shown, data_client).latest
            link.transport = TcpTransport(
                proxy.address, opened.session, opened.data_token, SECONDS, tls
            )
            stored, loaded = (Cache(SPEC, TOKENS) for _ in range(2))
            stored.fill(truth)
            chain = client.chain(np.arange(TOKENS) + 1_000 * next(seeds))
            assert client.put(chain, stored.memory(client)) == len(chain)
            assert client.get(chain, loaded.memory(client)).blocks == len(chain)
            assert loaded.holds(truth)
            link.transport.close()
    blocks = [slice(at, at + BLOCK_TOKENS) for at in range(0, TOKENS, BLOCK_TOKENS)]
    strips = [head[some].tobytes() for layer in truth for head in layer for some in blocks]
    return [opened.data_token, *strips], bytes(there), bytes(back)


def test_blocks_move_over_tls_and_whoever_listens_hears_none_of_their_bytes(
    tls_node: NodeProcess, people: People
) -> None:
    (token, *strips), there, back = moved(tls_node, known_at(tls_node, people, "team-a"))
    for wire in (there, back):
        assert len(wire) > sum(map(len, strips)), "it passed here"
        for secret in (token, *strips):
            for at in range(0, len(secret), 16):
                assert secret[at : at + 16] not in wire


def test_without_tls_a_listener_hears_all_of_it(open_node: NodeProcess) -> None:
    """The test above would see what it says is not there."""
    (token, *strips), there, back = moved(open_node, OPEN)
    assert token in there
    for strip in strips:
        assert strip in there and strip in back


# What is renewed


class Renewable:
    """A node and its callers, whose certificates become those of another authority: nobody believes
    the ones before any more."""

    def __init__(self, place: Path) -> None:
        (place / "node").mkdir()
        self.people = People(place / "certs", place / "node" / "metadata.db")
        self.peer = self.people.certificate(Role.NODE, "b")
        self.node = NodeProcess(place / "node", dram="64MiB", slab="8MiB", tls=self.people.node)
        self._next = Authority.make(place / "next", DAY)

    def renew(self) -> None:
        for shown, holder in (
            (self.people.node, Holder(Role.NODE, "a", HOSTS)),
            (self.peer, Holder(Role.NODE, "b", HOSTS)),
            (self.people.client, Holder(Role.CLIENT, "engine")),
        ):
            signed = self._next.sign(holder, DAY)
            os.replace(signed.cert, shown.cert)
            os.replace(signed.key, shown.key)
        os.replace(signed.ca, self.people.node.ca)


@pytest.fixture
def renewable() -> Iterator[Renewable]:
    with short_directory() as place:
        made = Renewable(place)
        try:
            made.node.start()
            yield made
        finally:
            made.node.close()


def cut(lanes: Lanes) -> None:
    """As when a call fails: what lies idle is hung up, too."""
    with pytest.raises(Unavailable, match="a call failed"), lanes.lane():
        raise Unavailable("a call failed")


def test_a_clients_session_goes_on_by_renewed_certificates_once_its_connections_break(
    renewable: Renewable,
) -> None:
    shown = known_at(renewable.node, renewable.people, "team-a")
    before = data_client(renewable.people.client)
    told: dict[str, Any] = {"transport": "tcp", "credentials": shown, "deadline_seconds": SECONDS}
    with Client.at(renewable.node.address, SPEC, **told) as client:
        stored, loaded = (Cache(SPEC, TOKENS) for _ in range(2))
        stored.fill(truth_of(SPEC, TOKENS, next(seeds)))
        chain = client.chain(np.arange(TOKENS) + 1_000 * next(seeds))
        assert client.put(chain, stored.memory(client)) == len(chain)
        link: Any = client.connection.link()
        renewable.renew()
        cut(link.transport.lanes)
        assert client.get(chain, loaded.memory(client)).blocks == len(chain)
        for_calls = [link._sockets.take(SECONDS) for _ in range(2)]
        assert all(for_calls), "the second is a new one"
        assert client.connection.link() is link
        assert answer(link, before, DATA) == b"", "those before are refused"


def test_a_link_to_a_peer_goes_on_by_renewed_certificates_once_its_connections_break(
    renewable: Renewable,
) -> None:
    shown = known_at(renewable.node, renewable.people, "team-a")
    node_id = renewable.node.caller(credentials=shown).opened.node_id
    record = NodeRecord(node_id, 1, renewable.node.address, {}, ("tcp",), {}, "serving")

    async def main() -> None:
        with ThreadPoolExecutor(2) as threads:
            told = (record, "team-a", "node b", threads, threads)
            link = Link(*told, SystemClock(), Credentials(renewable.peer), None)
            try:
                await link.begin()
                renewable.renew()
                cut(link.lanes)
                assert isinstance((await link.probe())["tcp"], Probe)
                assert link.alive
            finally:
                await link.close()

    asyncio.run(main())
