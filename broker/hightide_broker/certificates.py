"""An authority and certificates for a small cluster, in a directory of PEM files.

`ca.pem` is what everybody believes, `ca-key.pem` what makes certificates, and is to be kept away
from all machines that need none made. `<name>.pem` and `<name>-key.pem` are one holder's; the
common name of a node's is `node-<id>`. Who brings certificates of their own needs nothing of this.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hightide.protocol.words import counted
from hightide_broker.config import ConfigError
from hightide_broker.whole_files import put_file

CA_DAYS, DAYS = 3650, 365
"""How long an authority and a certificate are good for, unless said otherwise."""
EARLY = timedelta(hours=1)
"""Clocks of other machines may be behind."""
CA = "ca"
"""The authority's own name."""
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


class CertificatesRefused(ConfigError):
    """What is asked for cannot be made; the message says why."""


class Shown(NamedTuple):
    """A certificate, as people look at it."""

    file: str
    name: str
    hosts: tuple[str, ...]
    issuer: str
    not_after: datetime

    @property
    def days_left(self) -> int:
        """Whole days; below 0 once it has expired."""
        return (self.not_after - datetime.now(UTC)) // timedelta(days=1)


class Authority:
    """Makes certificates; made by `create_authority` and `open_authority`."""

    def __init__(
        self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._directory = directory
        self._certificate = certificate
        self._key = key

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: int = DAYS) -> Path:
        """A certificate in `<name>.pem`, in place of one that was there; `hosts` are names and
        addresses that its holder serves at. Raises `CertificatesRefused`."""
        check_wish(name)
        names = [_general(host) for host in hosts]
        if timedelta(days=days) > (
            left := self._certificate.not_valid_after_utc - datetime.now(UTC)
        ):
            raise CertificatesRefused(
                f"{counted(days, 'day is', 'days are')} more than the {left.days} that the "
                f"authority has left"
            )
        key = _key_of(self._directory, name)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        uses += [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        builder = (
            _builder(name, self._certificate.subject, key, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            alternative = x509.SubjectAlternativeName(names)
            builder = builder.add_extension(alternative, critical=False)
        return _put(self._directory, name, builder.sign(self._key, hashes.SHA256()))

    def renew(self, *, days: int = DAYS) -> list[Path]:
        """New certificates, for the keys they have, for every holder in the directory whose
        certificate is of this authority."""
        return [
            self.issue(each.name, each.hosts, days=days)
            for each in show_certificates(self._directory)
            if self._made(Path(each.file), each.name)
        ]

    def _made(self, file: Path, name: str) -> bool:
        if file.stem != name or file.stem == CA or not _key_file(self._directory, name).exists():
            return False
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def check_wish(name: str, hosts: Sequence[str] = ()) -> None:
    """Raise `CertificatesRefused` for what cannot be a holder's name, which is a file's as well, or
    a host."""
    for host in hosts:
        _general(host)
    if not _NAME.fullmatch(name) or name.lower() == CA or name.lower().endswith("-key"):
        raise CertificatesRefused(
            f"{name!r} is no name for a certificate: expected letters, digits, . _ @ -"
        )


def create_authority(directory: Path, *, name: str = "hightide") -> Authority:
    """A new authority in a directory that has none; raises `CertificatesRefused`."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("*.pem")) and {*directory.glob("*.pem")} != {_key_file(directory, CA)}:
        raise CertificatesRefused(
            f"{directory} has certificates already: without their authority they are worth nothing"
        )
    key = _key_of(directory, CA)
    subject = _subject(f"{name} authority {datetime.now(UTC):%Y-%m-%d}")
    certificate = (
        _builder("", subject, key, days=CA_DAYS, subject=subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _put(directory, CA, certificate)
    return Authority(directory, certificate, key)


def open_authority(directory: Path) -> Authority:
    """The authority of a directory; raises `CertificatesRefused`."""
    try:
        certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    except FileNotFoundError as error:
        raise CertificatesRefused(f"{directory} has no authority: no ca.pem is there") from error
    except (OSError, ValueError) as error:
        raise CertificatesRefused(f"{directory} has no authority: {error}") from error
    key = _read_key(_key_file(directory, CA))
    if key.public_key() != certificate.public_key():
        raise CertificatesRefused(f"the key of {directory} is not the one of its authority")
    return Authority(directory, certificate, key)


def show_certificates(place: Path) -> list[Shown]:
    """Every certificate in a file, or in the files of a directory, by name; what is none is left
    out."""
    files = sorted(place.glob("*.pem")) if place.is_dir() else [place]
    found = []
    for file in files:
        with suppress(OSError, ValueError):
            first = x509.load_pem_x509_certificates(file.read_bytes())[0]
            found.append(_shown(file, first))
    return found


def _shown(file: Path, certificate: x509.Certificate) -> Shown:
    hosts: tuple[str, ...] = ()
    with suppress(x509.ExtensionNotFound):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = found.value
        hosts = (
            *names.get_values_for_type(x509.DNSName),
            *map(str, names.get_values_for_type(x509.IPAddress)),
        )
    return Shown(
        str(file),
        _common_name(certificate.subject),
        hosts,
        _common_name(certificate.issuer),
        certificate.not_valid_after_utc,
    )


def _common_name(name: x509.Name) -> str:
    values = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if values else ""


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    days: int,
    subject: x509.Name | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject or _subject(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not all(map(_LABEL.fullmatch, host.removeprefix("*.").split("."))):
            raise CertificatesRefused(
                f"{host!r} is no host: expected a name in letters, digits, - and dots, or an "
                f"address"
            ) from None
        return x509.DNSName(host)


def _key_file(directory: Path, name: str) -> Path:
    return directory / f"{name}-key.pem"


def _key_of(directory: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """A holder's key, made if there is none, for its owner alone. One that is there is kept: a
    certificate that is renewed is then one file, which is exchanged whole."""
    path = _key_file(directory, name)
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # Of two who make it at a time, one does.
    return key if put_file(path, secret, mode=0o600, replaces=False) else _read_key(path)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise CertificatesRefused(f"{path} is no key that can be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificatesRefused(f"{path} is not a key that was made here")
    return key


def _put(directory: Path, name: str, certificate: x509.Certificate) -> Path:
    path = directory / f"{name}.pem"
    put_file(path, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    return path
