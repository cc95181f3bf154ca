"""Who is calling: the one place where a call gets its caller, and with it its tenant.

Over TLS a caller is what its certificate says (a SAN URI like `moonpool:node/a`). A client's tenant
is its bearer token's; a node, which acts for callers of its own, names a tenant, and nobody else is
believed in that. Without TLS a server is open to its own host only: it listens on loopback, and its
callers are the tenant `default` unless they name another. A request's body never says whose it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvstore.config import DEFAULT_TENANT, TlsConfig
from kvstore.errors import ConfigError, Denied, Unauthenticated
from kvstore.limits import NAME_BYTES_MAX
from kvstore.rpc.access import ACCESS, Role, Rule

TENANT_KEY, TOKEN_KEY, TOKEN_SCHEME = "moonpool-tenant", "authorization", "Bearer "
_URI = "moonpool:"
_HOST = re.compile(r"\[[0-9a-fA-F:.%]+\]|[^\s/:@\[\]]+")


class Bearer(Protocol):
    """What a token that counts stands for."""

    @property
    def tenant(self) -> str: ...

    @property
    def admin(self) -> bool: ...


class Tenancy(Protocol):
    """The tenants and tokens that a server knows."""

    def bearer(self, token: str) -> Bearer | None:
        """Whom the token stands for now; None if it is unknown, revoked or over."""
        ...

    def knows(self, tenant: str) -> bool: ...


class DefaultOnly:
    """No tokens, and one tenant: of a server that is open, or that keeps nobody's blocks."""

    def bearer(self, token: str) -> Bearer | None:
        return None

    def knows(self, tenant: str) -> bool:
        return tenant == DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is. `tenant` is empty where a node or conductor acts for itself."""

    role: Role
    name: str
    tenant: str
    token: str = field(default="", repr=False)

    @property
    def who(self) -> str:
        """Whom its places and calls are counted for."""
        return self.tenant or f"{self.role.value}/{self.name}"


CALLER: ContextVar[Caller] = ContextVar("moonpool caller")  # set for each call, in its task


def caller_of(context: Any) -> Caller:
    """The caller of the call whose method asks."""
    found = CALLER.get(None)
    if found is None:
        raise Unauthenticated("this call did not come through a server that asks who calls")
    return found


def tenant_of(context: Any) -> str:
    """The tenant of a call; `Unauthenticated` if it acts for none."""
    caller = caller_of(context)
    if not caller.tenant:
        raise Unauthenticated(f"a {caller.role.value} names its caller's tenant in {TENANT_KEY}")
    return caller.tenant


class Door:
    """Says who calls a server, and whether they may call what they call."""

    def __init__(self, tls: bool, tenancy: Tenancy, access: Mapping[str, Rule] = ACCESS) -> None:
        self._tls, self._access = tls, access
        self.tenancy = tenancy

    def admit(self, method: str, context: Any) -> Caller:
        """The caller of a method, or the `Denied` that says why not. Looks at no message."""
        rule = self._access.get(method)
        if rule is None:
            raise Denied(f"{method} is in no table of who may call it, so nobody may")
        shown = {str(key): value for key, value in context.invocation_metadata() or ()}
        if not self._tls:
            return Caller(Role.OPEN, "", self._named(shown) or DEFAULT_TENANT)
        role, name = role_in(context.auth_context().get("peer_uri", ()))
        if role not in rule.roles:
            allowed = ", ".join(sorted(one.value for one in rule.roles))
            raise Denied(f"a {role.value} may not call {method}; allowed are: {allowed}")
        if rule.enough:
            return Caller(role, name, "")
        if role is not Role.CLIENT:
            return Caller(role, name, self._named(shown) if role is Role.NODE else "")
        token = _token_in(shown)
        bearer = self.tenancy.bearer(token)
        if bearer is None:
            raise Unauthenticated(
                "the token is not known here, or it is over: `moonpool token new` makes another"
            )
        if rule.admin and not bearer.admin:
            raise Denied(f"{method} takes a token of the admin scope: `moonpool token new --admin`")
        return Caller(role, name, bearer.tenant, token)

    def still(self, caller: Caller) -> bool:
        """Whether a caller that was let in would be now."""
        return not caller.token or self.tenancy.bearer(caller.token) is not None

    def _named(self, shown: Mapping[str, Any]) -> str:
        """The tenant that a caller who is believed in it names; empty for none."""
        named = str(shown.get(TENANT_KEY, ""))
        if named and not self.tenancy.knows(named):
            raise Unauthenticated(f"tenant {named[:NAME_BYTES_MAX]!r} is not known here")
        return named


def role_in(uris: Any) -> tuple[Role, str]:
    """The role and name that the URIs of a certificate state."""
    stated = [str(bytes(one), "utf-8", "replace") for one in uris]
    ours = [one.removeprefix(_URI) for one in stated if one.startswith(_URI)]
    if len(ours) != 1:
        raise Unauthenticated(
            f"the certificate states {len(ours)} roles of Moonpool's; it takes one, as `moonpool "
            "certs` writes it"
        )
    kind, _, name = ours[0].partition("/")
    roles = {one.value: one for one in Role if one is not Role.OPEN}
    if kind not in roles or not name:
        raise Unauthenticated(
            f"the certificate's role is {ours[0][:NAME_BYTES_MAX]!r}; roles are "
            + ", ".join(f"{one}/NAME" for one in roles)
        )
    return roles[kind], name


def role_uri(role: Role, name: str) -> str:
    """What a certificate says of its holder's role."""
    return f"{_URI}{role.value}/{name}"


def _token_in(shown: Mapping[str, Any]) -> str:
    text = shown.get(TOKEN_KEY, "")
    if not isinstance(text, str) or not text.startswith(TOKEN_SCHEME):
        raise Unauthenticated(
            f"a client shows a token: metadata {TOKEN_KEY} = '{TOKEN_SCHEME}...', or MOONPOOL_TOKEN"
        )
    return text.removeprefix(TOKEN_SCHEME)


def listen_address(address: str, tls: TlsConfig | None = None) -> str:
    """`address` if callers may be served there, else a `ConfigError`: beyond this host they are
    served over TLS only."""
    if not (on_loopback(_listened_host(address)) or tls):
        raise ConfigError(
            f"--listen = {address!r}: callers of other hosts are served over TLS only. Make "
            "certificates with `moonpool certs`, then name them with --tls-ca, --tls-cert and "
            "--tls-key; or listen on 127.0.0.1"
        )
    return address


def loopback_address(address: str) -> str:
    """The same of who has no TLS, and so serves this host alone."""
    if not on_loopback(_listened_host(address)):
        raise ConfigError(
            f"--listen = {address!r}: it serves callers of this host alone, without TLS: listen on "
            "127.0.0.1"
        )
    return address


def _listened_host(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen = {address!r}: write HOST:PORT, like 127.0.0.1:7410")
    return host


def on_loopback(host: str) -> bool:
    """Whether callers of this host alone reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def announced_host(listen: str, advertise: str) -> str:
    """The host under which others reach what listens there."""
    host = listen.rpartition(":")[0]
    if advertise:
        if not _HOST.fullmatch(advertise):
            raise ConfigError(
                f"--advertise = {advertise!r}: write a host alone, like 10.0.0.1, a.example.org or "
                "[2001:db8::1]; its port is that of --listen"
            )
        return advertise
    if host.strip("[]") in ("0.0.0.0", "::"):
        raise ConfigError(
            f"--listen = {listen!r} is every address of this host: name the one at which others "
            "reach it with --advertise HOST"
        )
    return host
