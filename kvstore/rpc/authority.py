"""A certificate authority of one folder: for trying TLS out, and for whoever has no other.

Certificates state a role as `kvstore.rpc.identity` reads it. Each is made with a key of its own
(P-256), readable by its owner alone; nothing that is there is ever overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvstore.config import TlsConfig
from kvstore.errors import ConfigError
from kvstore.rpc.access import Role
from kvstore.rpc.identity import role_uri

_NAME = "Moonpool throw-away authority"
_DNS_NAME = re.compile(r"(\*\.)?([\w-]+\.)*(?!\d+$)[\w-]+", re.ASCII)
_BACK = datetime.timedelta(hours=1)  # before now: clocks of hosts differ
_SECRET, _PUBLIC = 0o600, 0o644
_CLIENT, _SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a certificate is for, and the hosts where it serves."""

    role: Role
    name: str
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = self.name.isascii() and all(one.isalnum() or one in "-_." for one in self.name)
        if not self.name or not plain:  # a certificate's URI is ASCII
            raise ConfigError(f"--{self.role.value} = {self.name!r}: use letters, digits and - _ .")
        for one in self.hosts:
            _host(one)

    def files(self, folder: Path) -> TlsConfig:
        stem = f"{self.role.value}-{self.name}"
        return TlsConfig(folder / "ca.pem", folder / f"{stem}.pem", folder / f"{stem}.key")


class Authority:
    """Signs certificates with the key in its folder."""

    def __init__(
        self, folder: Path, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._folder, self._cert, self._key = folder, cert, key

    @classmethod
    def make(cls, folder: Path, lifetime: datetime.timedelta) -> Self:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, name = ec.generate_private_key(ec.SECP256R1()), _named(_NAME)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        cert = (
            _builder(name, name, key, _after(lifetime))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_both(folder / "ca.key", key, folder / "ca.pem", cert)
        return cls(folder, cert, key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The authority that was made in a folder."""
        try:
            cert = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{folder} holds no authority that can sign: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{folder / 'ca.key'} is no key that `moonpool certs` made")
        if key.public_key() != cert.public_key():
            what = f"{folder / 'ca.key'} is not the key of {folder / 'ca.pem'}"
            raise ConfigError(f"{what}: nobody would believe what it signs")
        return cls(folder, cert, key)

    @property
    def ends(self) -> datetime.datetime:
        return self._cert.not_valid_after_utc

    def sign(self, holder: Holder, lifetime: datetime.timedelta) -> TlsConfig:
        """A certificate and its key, as files of the folder; a lifetime below 0 is over already.
        None outlives the authority: nobody would believe it."""
        files, key = holder.files(self._folder), ec.generate_private_key(ec.SECP256R1())
        uri = x509.UniformResourceIdentifier(role_uri(holder.role, holder.name))
        serves = holder.role is not Role.CLIENT
        usages = [_CLIENT, _SERVER] if serves else [_CLIENT]
        if self.ends <= _after(datetime.timedelta()):
            over = f"{self._folder / 'ca.pem'} is over since {self.ends:%Y-%m-%d}"
            raise ConfigError(f"{over}: make another authority, in another folder")
        subject, ends = _named(f"{holder.role.value} {holder.name}"), _after(lifetime)
        cert = (
            _builder(subject, self._cert.subject, key, min(ends, self.ends))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([uri, *map(_host, holder.hosts)]), critical=False
            )
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write_both(files.key, key, files.cert, cert)
        return files


def check_absent(paths: Sequence[Path]) -> None:
    """Raise unless none of these files is there: a key that is overwritten is lost."""
    if found := [str(path) for path in paths if path.exists()]:
        raise ConfigError(f"{', '.join(found)}: there already; delete it, or use another folder")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - _BACK)
        .not_valid_after(ends)
    )


def _after(lifetime: datetime.timedelta) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + lifetime


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(text):
        raise ConfigError(
            f"--host = {text!r}: write a name or an address alone, like a.example.org, 10.0.0.1 or "
            "2001:db8::1, without a port"
        )
    return x509.DNSName(text)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write_both(
    key_path: Path, key: ec.EllipticCurvePrivateKey, cert_path: Path, cert: x509.Certificate
) -> None:
    """Or neither, as on a full disk: one of them alone would only be in the way of the next."""
    _write(key_path, _key_pem(key), _SECRET)
    try:
        _write(cert_path, cert.public_bytes(serialization.Encoding.PEM), _PUBLIC)
    except BaseException:
        key_path.unlink()
        raise


def _write(path: Path, data: bytes, mode: int) -> None:
    """To a new file, which is there whole or not at all."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{path}: there already; delete it, or use another folder") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        path.unlink()
        error.filename = str(path)
        raise
