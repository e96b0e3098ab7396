"""Authorities that sign certificates of every kind, good and bad."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from netchannel import Tls
from netchannel.tls import Credentials
from netchannel.transports import Listener, MakeProtocol, schemes
from netchannel.transports.tls_transport import TlsDialer, tls_protocol_factory

HOUR = datetime.timedelta(hours=1)
Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def _usual_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def _algorithm(key: Key) -> hashes.SHA256 | None:
    return hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None  # the other has its own


class Authority:
    """Signs what it is asked for; its files are in ``directory``."""

    def __init__(
        self,
        directory: Path,
        name: str = "authority",
        signer: Authority | None = None,
        ends: datetime.timedelta = 24 * HOUR,
        make_key: Callable[[], Key] = _usual_key,
    ) -> None:
        self._directory = directory
        self._make_key = make_key
        self._key = make_key()
        self._name = _named(name)
        signer = signer or self
        certificate = (
            _unsigned(self._name, signer._name, self._key, -3 * HOUR, ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(signer._key, _algorithm(signer._key))
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def intermediate(self, name: str) -> Authority:
        """One that is signed by this one."""
        return Authority(self._directory, name, self)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        begins: datetime.timedelta = -HOUR,
        ends: datetime.timedelta = HOUR,
        usages: Sequence[x509.ObjectIdentifier] = (CLIENT, SERVER),
        trusts: Authority | None = None,
        server_name: str | None = None,
    ) -> Tls:
        """A certificate and its key, as files of that name; whoever has it trusts this authority, or another."""
        key = self._make_key()
        builder = _unsigned(_named(name), self._name, key, begins, ends)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
            )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self._key, _algorithm(self._key))
        files = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return Tls(*files, (trusts or self).file, server_name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: Key,
    begins: datetime.timedelta,
    ends: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )


class TlsTransport:
    """``tls:host:port``, for what has an address only to say how it wants to be carried."""

    def __init__(self, tls: Tls) -> None:
        self._dialer = TlsDialer(Credentials(tls, "sender"))
        self._credentials = Credentials(tls, "receiver")

    def check(self, address: str) -> None:
        self._dialer.check(address.removeprefix("tls:"))

    async def connect(self, address: str, make_protocol: MakeProtocol) -> None:
        await self._dialer.connect(address.removeprefix("tls:"), make_protocol)

    async def listen(self, address: str, make_protocol: MakeProtocol) -> Listener:
        listener = await schemes.listen(
            address.removeprefix("tls:"), tls_protocol_factory(self._credentials, make_protocol)
        )
        listener.address = f"tls:{listener.address}"
        return listener
