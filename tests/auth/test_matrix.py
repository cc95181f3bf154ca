"""Every RPC x every way to be nobody, or the wrong one: denied. And by whom it is meant for: not.

The rows come from proto/, so a new RPC that nobody has thought about fails here. What is expected
is written down once more, by hand: the table of `kvstore.rpc.access` is what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import grpc
import pytest
from cryptography import x509

from kvstore.config import OPEN, Credentials, TlsConfig
from kvstore.rpc.access import ACCESS, Role
from kvstore.rpc.authority import Authority, Holder
from kvstore.rpc.channel import OPTIONS, open_channel
from kvstore.rpc.identity import TENANT_KEY, TOKEN_KEY
from tests.auth.desk import Desk, serving
from tests.auth.methods import IDS, METHODS, Method
from tests.auth.people import DAY, People
from tests.nodes import NodeProcess, eventually

CODE = grpc.StatusCode
DENIED = {CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED, CODE.UNAVAILABLE}
# service, or service/method -> who may call: roles, where "admin" is a client whose token has the
# admin scope.
MAY = {
    "moonpool.v1.KV": {"client", "admin", "node"},
    "moonpool.v1.Directory": {"node", "conductor"},
    "moonpool.v1.Directory/Take": {"node"},
    "moonpool.v1.Directory/Drop": {"node"},
    "moonpool.v1.Conductor/Match": {"client", "admin", "node"},
    "moonpool.v1.Conductor/Holders": {"node", "conductor"},
    "moonpool.v1.Conductor/Schedule": {"client", "admin", "node"},
    "moonpool.v1.Conductor/GiveUp": {"client", "admin", "node"},
    "moonpool.v1.Conductor/Report": {"client", "admin", "node"},
    "moonpool.v1.Conductor/Explain": {"client", "admin", "node"},
    "moonpool.v1.Conductor/Balance": {"client", "admin", "node"},
    "moonpool.v1.Conductor/Crews": {"client", "admin", "node"},
    "moonpool.v1.Admin": {"admin", "node"},
    "moonpool.v1.Admin/Replicate": {"admin", "node", "conductor"},
    "moonpool.v1.Engine": {"client", "admin", "node"},
}
WHOLE_TABLE = pytest.mark.parametrize("method", METHODS, ids=IDS)


def may(method: Method) -> set[str]:
    return MAY.get(f"{method.service}/{method.name}") or MAY[method.service]


class Channels:
    """One channel for each caller, to the server that serves a method."""

    def __init__(self, people: People, desk: Desk) -> None:
        self.people, self._desk = people, desk
        self._opened: dict[object, grpc.Channel] = {}
        ends = people.token("team-a", seconds=-1)
        revoked = people.token("team-a")
        self.revoked = Credentials(people.client, revoked)
        self.tokens = {"expired": ends, "unknown": people.token("team-a")[:-4] + "0000"}
        self.of_tenant, self.of_admin = people.of("team-a"), people.of("team-b", admin=True)
        assert desk.tenants is not None
        bearer = desk.tenants.bearer
        for token in (revoked, self.of_tenant.token, self.of_admin.token):
            eventually(lambda token=token: bearer(token))
        people.revoke(revoked)
        eventually(lambda: bearer(revoked) is None)

    def to(self, credentials: Credentials) -> grpc.Channel:
        key = credentials.tls, credentials.token
        if key not in self._opened:
            self._opened[key] = open_channel(self._desk.address, credentials)
        return self._opened[key]

    def without_certificate(self) -> grpc.Channel:
        if "none" not in self._opened:
            ca = self.people.node.ca.read_bytes()
            shown = grpc.ssl_channel_credentials(ca)
            self._opened["none"] = grpc.secure_channel(self._desk.address, shown, OPTIONS)
        return self._opened["none"]

    def close(self) -> None:
        for one in self._opened.values():
            one.close()


@pytest.fixture(scope="module")
def channels(people: People, desk: Desk) -> Iterator[Channels]:
    made = Channels(people, desk)
    yield made
    made.close()


def test_every_rpc_of_the_api_has_a_row_and_every_row_an_rpc() -> None:
    ours = {path for path in ACCESS if path.startswith("/moonpool.")}
    assert ours == {method.path for method in METHODS}
    for method in METHODS:
        assert may(method)


@WHOLE_TABLE
def test_whoever_shows_no_certificate_that_counts_does_not_get_in(
    method: Method, channels: Channels, desk: Desk
) -> None:
    people, before = channels.people, len(desk.seen)
    for channel in (
        channels.to(OPEN),
        channels.without_certificate(),
        channels.to(Credentials(people.foreign, channels.of_admin.token)),
        channels.to(Credentials(people.expired, channels.of_admin.token)),
    ):
        assert method.call(channel) is CODE.UNAVAILABLE
    assert len(desk.seen) == before, "a method was called"


@WHOLE_TABLE
def test_a_role_that_may_not_call_a_method_is_denied(
    method: Method, channels: Channels, desk: Desk
) -> None:
    people, before = channels.people, len(desk.seen)
    callers = {
        "client": channels.of_tenant,
        "admin": channels.of_admin,
        "node": Credentials(people.node),
        "conductor": Credentials(people.conductor),
    }
    for role in callers.keys() - may(method):
        assert method.call(channels.to(callers[role])) is CODE.PERMISSION_DENIED, role
    assert len(desk.seen) == before, "a method was called"


@WHOLE_TABLE
def test_a_client_without_a_token_that_counts_is_not_let_in(
    method: Method, channels: Channels, desk: Desk
) -> None:
    before, bare = len(desk.seen), channels.to(Credentials(channels.people.client))
    good = channels.of_tenant.token
    tokens = [
        *("", good, "Bearer ", "Bearer x", f"Bearer {good}0", f"bearer {good}"),
        *(f"Bearer {token}" for token in (*channels.tokens.values(), channels.revoked.token)),
    ]
    wanted = CODE.UNAUTHENTICATED if may(method) & {"client", "admin"} else CODE.PERMISSION_DENIED
    assert method.call(bare) is wanted
    for text in tokens:
        assert method.call(bare, [(TOKEN_KEY, text)]) is wanted, text
        assert method.call(bare, [(TOKEN_KEY, text), (TENANT_KEY, "team-a")]) is wanted, text
    assert len(desk.seen) == before, "a method was called"


@WHOLE_TABLE
def test_whoever_may_call_a_method_gets_in_as_who_it_is(
    method: Method, channels: Channels, desk: Desk
) -> None:
    people, named = channels.people, [(TENANT_KEY, "team-b")]
    callers = {
        # A client's word on whose it is counts for nothing.
        "client": (channels.of_tenant, named, "team-a"),
        "admin": (channels.of_admin, [], "team-b"),
        "node": (Credentials(people.node), named, "team-b"),
        "conductor": (Credentials(people.conductor), named, ""),
    }
    for role in may(method):
        credentials, metadata, tenant = callers[role]
        assert method.call(channels.to(credentials), metadata) is CODE.OK, role
        path, caller = desk.seen[-1]
        assert (path, caller.tenant) == (method.path, tenant)
        assert caller.role is Role("client" if role == "admin" else role)


@WHOLE_TABLE
def test_a_node_that_names_a_tenant_who_is_not_known_is_refused(
    method: Method, channels: Channels
) -> None:
    channel = channels.to(Credentials(channels.people.node))
    wanted = CODE.UNAUTHENTICATED if "node" in may(method) else CODE.PERMISSION_DENIED
    assert method.call(channel, [(TENANT_KEY, "nobody")]) is wanted


@WHOLE_TABLE
def test_without_tls_loopback_may_do_everything_as_the_tenant_it_names(
    method: Method, open_desk: tuple[Desk, grpc.Channel]
) -> None:
    desk, channel = open_desk
    for metadata, tenant in (([], "default"), ([(TENANT_KEY, "team-a")], "team-a")):
        assert method.call(channel, metadata) is CODE.OK
        assert desk.seen[-1][1].tenant == tenant
        assert desk.seen[-1][1].role is Role.OPEN
    assert method.call(channel, [(TENANT_KEY, "nobody")]) is CODE.UNAUTHENTICATED


@pytest.fixture(scope="module")
def open_desk(place: Path, people: People) -> Iterator[tuple[Desk, grpc.Channel]]:
    with (
        serving(None, place / "node" / "metadata.db") as desk,
        open_channel(desk.address, OPEN) as channel,
    ):
        yield desk, channel


@pytest.mark.parametrize(
    "method",
    [one for one in METHODS if one.service.rpartition(".")[2] in ("KV", "Admin", "Directory")],
    ids=lambda one: one.path,
)
def test_the_node_itself_asks_too(
    method: Method, people: People, tls_node: NodeProcess, callers: dict[str, grpc.Channel]
) -> None:
    assert method.call(callers["foreign"]) is CODE.UNAVAILABLE
    if method.service.endswith("Directory"):
        for peer in ("conductor", "node"):
            denied = method.call(callers[peer]) in DENIED
            assert denied == (peer not in may(method)), peer
        for client in ("bare", "tenant", "admin"):
            assert method.call(callers[client]) is CODE.PERMISSION_DENIED
        return
    if "conductor" in may(method):
        assert method.call(callers["conductor"]) not in DENIED
    else:
        assert method.call(callers["conductor"]) is CODE.PERMISSION_DENIED
    assert method.call(callers["bare"]) is CODE.UNAUTHENTICATED
    if method.service.endswith("Admin"):
        assert method.call(callers["tenant"]) is CODE.PERMISSION_DENIED
    else:
        assert method.call(callers["tenant"]) not in DENIED
        assert method.call(callers["node"]) not in DENIED - {CODE.UNAUTHENTICATED}
        assert method.call(callers["node"], [(TENANT_KEY, "team-a")]) not in DENIED
    if method.name not in ("Drain", "MoveOut"):  # or it would stop, or take nothing more
        assert method.call(callers["admin"]) not in DENIED


@pytest.fixture(scope="module")
def callers(people: People, tls_node: NodeProcess) -> Iterator[dict[str, grpc.Channel]]:
    shown = {
        "foreign": Credentials(people.foreign),
        "conductor": Credentials(people.conductor),
        "bare": Credentials(people.client),
        "tenant": people.of("team-a"),
        "admin": people.of("team-a", admin=True),
        "node": Credentials(people.node),
    }
    made = {name: open_channel(tls_node.address, one) for name, one in shown.items()}
    match = next(one for one in METHODS if one.path == "/moonpool.v1.KV/Match")
    for name in ("tenant", "admin"):
        eventually(lambda name=name: match.call(made[name]) not in DENIED)
    yield made
    for one in made.values():
        one.close()


@pytest.mark.parametrize("service", ["grpc.health.v1.Health/Check"])
def test_health_takes_any_certificate_and_no_token(service: str, channels: Channels) -> None:
    ask = channels.to(Credentials(channels.people.client)).unary_unary(f"/{service}")
    assert ask(b"", timeout=20) == b"\x08\x01"  # SERVING
    for shown in (Credentials(channels.people.foreign), OPEN):
        with pytest.raises(grpc.RpcError) as caught:
            channels.to(shown).unary_unary(f"/{service}")(b"", timeout=20)
        assert caught.value.code() is CODE.UNAVAILABLE


def test_a_certificate_without_one_role_of_moonpools_is_nobodys(
    place: Path, channels: Channels
) -> None:
    folder = place / "certs" / "ours"
    for name, uris in {"bare": [], "two": ["moonpool:node/a", "moonpool:client/b"]}.items():
        tls = signed_with(folder, name, uris)
        for method in METHODS:
            got = method.call(channels.to(Credentials(tls)))
            assert got is CODE.UNAUTHENTICATED, (name, method.path)


def signed_with(folder: Path, name: str, uris: list[str]) -> TlsConfig:
    """A certificate of our authority with these URIs, as another tool might make it."""
    stated = [x509.UniformResourceIdentifier(one) for one in uris]
    names = x509.SubjectAlternativeName([*stated, x509.DNSName("localhost")])
    with patch("kvstore.rpc.authority.x509.SubjectAlternativeName", lambda _: names):
        return Authority.open(folder).sign(Holder(Role.CLIENT, name), DAY)
