"""Why a node cannot be reached, and what to do about it.

It knocks at the address by itself, as gRPC's own words name neither the cause nor the cure.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl

from kvstore.address import host_and_port, named
from kvstore.config import TlsConfig
from kvstore.errors import KVStoreError, Unavailable
from kvstore.rpc.tls import data_client

KNOCK_SECONDS = 3.0
ANSWER_SECONDS = 3.0  # in which a node says something to whom it has let in

_SETTINGS = "MOONPOOL_TLS_CA, MOONPOOL_TLS_CERT, MOONPOOL_TLS_KEY and a token"


def cause(address: str, tls: TlsConfig | None, error: KVStoreError) -> str:
    """In one sentence each, for a call that failed with `error`."""
    if not isinstance(error, Unavailable):
        return str(error)  # it answered, and said what it wants
    host, _ = host_and_port(address)
    try:
        with knock(address) as peer:
            found = _without_tls(peer) if tls is None else _with_tls(peer, host, tls)
    except OSError as failure:
        return _unreached(address, host, failure)
    return found or f"it is there and does not answer as it should: {error}"


def knock(address: str) -> socket.socket:
    """A connection on which nothing was said yet. Raises `OSError`."""
    with named():
        return socket.create_connection(host_and_port(address), KNOCK_SECONDS)


def _unreached(address: str, host: str, failure: OSError) -> str:
    if isinstance(failure, socket.gaierror):
        return (
            f"no address is known here of {host}: have the node announce a name or address that "
            "every host knows (--advertise)"
        )
    if isinstance(failure, TimeoutError):
        return (
            f"{address} does not answer: open its port in the firewall, or have the node announce "
            "an address of this network (--advertise)"
        )
    if isinstance(failure, ConnectionRefusedError):
        beyond = (
            "; a node of another host has to listen beyond loopback (--listen, with certificates)"
            if loopback(host)
            else ""
        )
        return f"nothing listens at {address}: start the node that did{beyond}"
    return f"{address} cannot be reached: {failure.strerror or failure}"


def _without_tls(peer: socket.socket) -> str:
    """A cause, if it is TLS that the node wants; else nothing."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is said to it
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        anyone.wrap_socket(peer).close()
    except ssl.SSLError as refusal:
        if "ALERT" not in (refusal.reason or ""):
            return ""  # it speaks something else
    except OSError:
        return ""
    return f"it serves over TLS, and this host shows no certificate: set {_SETTINGS}"


def _with_tls(peer: socket.socket, host: str, tls: TlsConfig) -> str:
    """A cause, if a certificate is at fault; else nothing."""
    context = data_client(tls)
    context.set_alpn_protocols(["h2"])
    try:
        sealed = context.wrap_socket(peer, server_hostname=host)
    except ssl.SSLCertVerificationError as refusal:
        if refusal.verify_code in _NAMES:
            return (
                f"its certificate is not for {host}: make one with `moonpool certs --node NAME "
                f"--host {host}`, or call the node by a name that it has"
            )
        return (
            f"its certificate is not believed ({refusal.verify_message}): it takes one that is "
            f"signed by MOONPOOL_TLS_CA = {tls.ca} and not over"
        )
    except TimeoutError:
        return ""  # it says nothing at all
    except OSError:
        return "it serves without TLS: unset MOONPOOL_TLS_CA, MOONPOOL_TLS_CERT, MOONPOOL_TLS_KEY"
    # A node that lets us in speaks first; one that does not hangs up, and need not say why.
    with sealed:
        try:
            sealed.settimeout(ANSWER_SECONDS)
            let_in = sealed.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            let_in = False
        except TimeoutError:
            return ""
    if let_in:
        return ""
    return (
        f"it does not believe MOONPOOL_TLS_CERT = {tls.cert}: that is over, or signed by another "
        "authority than the node's"
    )


_NAMES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
