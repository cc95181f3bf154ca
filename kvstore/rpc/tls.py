"""TLS as every Moonpool process speaks it: both sides show a certificate of one authority.

What is renewed on disk is used by the next connection, without a restart. A server looks at its
files at each handshake; files that do not fit together (a renewal that is half done) change
nothing, and the log says so.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import grpc

from kvstore.config import TlsConfig
from kvstore.errors import ConfigError, Unauthenticated
from kvstore.rpc.access import Role
from kvstore.rpc.identity import role_in

log = logging.getLogger(__name__)

T = TypeVar("T")
ServerCredentials: TypeAlias = Any  # grpc has no types
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


def channel_credentials(tls: TlsConfig) -> Any:
    """What a caller shows and whom it believes, as its files say now."""
    ca, cert, key = _read(tls)
    return grpc.ssl_channel_credentials(ca, key, cert)


def data_server(tls: TlsConfig) -> ssl.SSLContext:
    """For data connections that callers make: they show a certificate too. As its files say now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, tls)


def data_client(tls: TlsConfig) -> ssl.SSLContext:
    """For data connections to a node, whose certificate must name the host that is called."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def _loaded(context: ssl.SSLContext, tls: TlsConfig) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise ConfigError(f"--tls-cert = {tls.cert}, with its key and CA: {error}") from error
    return context


def check_role(tls: TlsConfig, role: Role) -> None:
    """Raise `ConfigError` unless the certificate is one of that role."""
    from cryptography import x509  # a process that serves has it; a client need not

    _, cert, _ = _read(tls)
    try:
        leaf = x509.load_pem_x509_certificate(cert)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        found, _ = role_in([one.encode() for one in uris])
    except (ValueError, x509.ExtensionNotFound, Unauthenticated) as error:
        raise ConfigError(f"--tls-cert = {tls.cert}: {error}") from None
    if found is not role:
        raise ConfigError(
            f"--tls-cert = {tls.cert} is a certificate of a {found.value}; a {role.value} serves "
            f"here: `moonpool certs --{role.value} NAME` makes one"
        )


def valid_between(tls: TlsConfig) -> tuple[float, float]:
    """From when until when its certificate holds, in seconds since 1970. Raises `ConfigError` where
    the files cannot be read, or do not belong together."""
    from cryptography import x509

    _, cert, key = _read(tls)
    _check_pair(tls, cert, key)
    leaf = x509.load_pem_x509_certificate(cert)
    return leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()


class Renewing(Generic[T]):
    """What is made of the certificates on disk: anew once they have changed, and as it was for as
    long as they do not fit together. Any thread may ask."""

    def __init__(self, tls: TlsConfig, make: Callable[[TlsConfig], T]) -> None:
        self._tls, self._make = tls, make
        self._lock = threading.Lock()
        self._stamp, self._made = stamp(tls), make(tls)
        self._complaint = ""

    def latest(self) -> T:
        with self._lock:
            try:
                found = stamp(self._tls)  # before the reading: what changes meanwhile is read next
                if found != self._stamp:
                    self._made, self._stamp = self._make(self._tls), found
                    log.info("certificates renewed from %s", self._tls.cert)
                self._complaint = ""
            except ConfigError as error:
                if str(error) != self._complaint:  # not once for each handshake
                    log.warning("the certificates on disk are not used: %s", error)
                self._complaint = str(error)
            return self._made


class ServerTls:
    """The certificates of one server."""

    def __init__(self, tls: TlsConfig) -> None:
        self._files = Renewing(tls, _configuration)
        self._used = self._files.latest()

    def credentials(self) -> ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._used, self._renewed, require_client_authentication=True
        )

    def _renewed(self) -> Any:
        """What the files say if it is new, else None. gRPC asks at each handshake."""
        latest = self._files.latest()
        if latest is self._used:
            return None
        self._used = latest
        return latest


def _configuration(tls: TlsConfig) -> Any:
    ca, cert, key = _read(tls)
    _check_pair(tls, cert, key)
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)


def _check_pair(tls: TlsConfig, cert: bytes, key: bytes) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        public = x509.load_pem_x509_certificate(cert).public_key()
        fits = load_pem_private_key(key, None).public_key() == public
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{tls.cert} and {tls.key} are not PEM of a certificate: {error}"
        ) from None
    if not fits:
        raise ConfigError(f"{tls.key} is not the key of {tls.cert}")


def _read(tls: TlsConfig) -> tuple[bytes, bytes, bytes]:
    found = []
    for name, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        try:
            found.append(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"TLS {name} = {path} cannot be read: {error.strerror}") from None
    return found[0], found[1], found[2]


def stamp(tls: TlsConfig) -> Stamp:
    """Another one once a file was written anew. Raises `ConfigError` where one cannot be read."""
    try:
        stats = [os.stat(path) for path in (tls.ca, tls.cert, tls.key)]
    except OSError as error:
        raise ConfigError(f"TLS file {error.filename}: {error.strerror}") from None
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)
