"""Certificates and keys for mutual TLS: `Tls` names the files, `Credentials` holds their current contents."""

from __future__ import annotations

import os
import re
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from .errors import CertificateError
from .log_texts import log

if TYPE_CHECKING:
    from os import PathLike

Role = Literal["sender", "receiver"]

_PEM = re.compile(rb"(?m)^-----BEGIN ([A-Z0-9 ]+)-----")
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python gives no name."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS 1.3, by three files in PEM form.

    ``certificate`` is the certificate of this process, followed by intermediate certificates, if any; ``key`` belongs
    to it and has no passphrase. ``authority`` holds the certificates of the authorities that sign the certificates of
    the other sides. A sender checks that the receiver's certificate is for the host that it dials, or for
    ``server_name``.

    The files are read when a server is made, and again for the next connection after one of them has changed.
    """

    certificate: str | PathLike[str]
    key: str | PathLike[str]
    authority: str | PathLike[str]
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "authority"):
            value = getattr(self, name)
            if not isinstance(value, str | os.PathLike):
                raise TypeError(f"{name} is {value!r}: expected the path of a file in PEM form")
        if self.server_name is not None and not isinstance(self.server_name, str):
            raise TypeError(f"server_name is {self.server_name!r}: expected a host name, or None")
        if self.server_name == "":
            raise ValueError("server_name is empty: give None to use the name of the host that is dialed")


class Expiry(NamedTuple):
    """Expiry of a certificate, and of the last of its authorities, in seconds since 1970 UTC."""

    certificate: float
    authority: float


class Credentials:
    """The material of one role for its handshakes, as the files are now.

    Raises CertificateError if they are unusable.
    """

    def __init__(self, tls: Tls, role: Role) -> None:
        self.tls = tls
        self._role = role
        self._stamp = _stamp(tls)
        self._context = _load(tls, role)

    def context(self) -> ssl.SSLContext:
        """The context for the next handshake. Changed files that are unusable are not used, and logged once."""
        stamp = _stamp(self.tls)
        if stamp != self._stamp:
            self._stamp = stamp  # taken first: what changes while it is read is read again
            try:
                self._context = _load(self.tls, self._role)
            except CertificateError as error:
                log.warning("%s; the previously read files stay in use", error)
            else:
                log.info("the %s's certificate %s was read again", self._role, self.tls.certificate)
        return self._context

    def any_name(self) -> ssl.SSLContext:
        """Return a context that accepts an authority's certificate for any host: only to identify a server."""
        context = _load(self.tls, self._role)
        context.check_hostname = False
        return context


def expiry(tls: Tls) -> Expiry:
    """Expiry of what the files hold, even if past. Raises CertificateError for files that are unusable otherwise."""
    _check_contents(tls)
    try:
        shown = _shown(tls, "sender")
    except ssl.SSLError as error:
        raise CertificateError(f"the certificate {tls.certificate} cannot be used: {error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, "authority", tls.authority)
    ends = [ssl.cert_time_to_seconds(str(authority["notAfter"])) for authority in context.get_ca_certs()]
    return Expiry(ssl.cert_time_to_seconds(str(shown["notAfter"])), max(ends, default=0.0))


def _stamp(tls: Tls) -> list[tuple[int, int, int] | None]:
    """Return a stamp that shows if the files are still the same: three system calls, a few microseconds."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in (tls.certificate, tls.key, tls.authority):
        try:
            found = Path(path).stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return stamps


def _load(tls: Tls, role: Role) -> ssl.SSLContext:
    _check_contents(tls)
    _check_own(tls, role)
    context = _with_certificate(tls, role)
    _trust(context, "authority", tls.authority)
    _check_authorities(context, tls)
    if role == "sender":
        context.check_hostname = True
        context.hostname_checks_common_name = False
    else:
        context.num_tickets = 0  # nothing is resumed: a returning peer shows its certificate again
    return context


def _check_contents(tls: Tls) -> None:
    _check_content("certificate", tls.certificate, "CERTIFICATE")
    _check_content("key", tls.key, "PRIVATE KEY")
    _check_content("authority", tls.authority, "CERTIFICATE")


def _check_content(name: str, path: str | PathLike[str], wanted: str) -> None:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CertificateError(f"the {name} {path} cannot be read: {error.strerror}") from error
    found = [label.decode() for label in _PEM.findall(content)]
    if not any(label.endswith(wanted) for label in found):
        holds = f"it contains {found[0]}" if found else "it contains no such block"
        raise CertificateError(
            f"the {name} {path} is not a file in PEM form with '-----BEGIN {wanted}-----': {holds}; give Tls() its "
            f"files in the order certificate, key, authority"
        )
    if wanted == "PRIVATE KEY" and b"ENCRYPTED" in content:
        raise CertificateError(
            f"the key {path} has a passphrase, and this process cannot prompt for it: write it without one "
            f"(openssl pkey -in {path} -out ...), readable by this user only"
        )


def _with_certificate(tls: Tls, role: Role) -> ssl.SSLContext:
    """Return a TLS 1.3 context that shows the certificate, asks for the other's, and trusts no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if role == "sender" else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # Any certificate in the authority's file is trusted, also one that is signed by another authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_cert_chain(tls.certificate, tls.key, password="")  # or a terminal would be asked for one
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificateError(
                f"the key {tls.key} does not belong to the certificate {tls.certificate}: give the key that the "
                f"certificate was made with"
            ) from error
        _trust(context, "certificate", tls.certificate)  # shows if it is this one that is damaged
        raise CertificateError(f"the key {tls.key} is damaged: {error}") from error
    return context


def _trust(context: ssl.SSLContext, name: str, path: str | PathLike[str]) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise CertificateError(f"the {name} {path} is damaged: {error}") from error


def _check_authorities(context: ssl.SSLContext, tls: Tls) -> None:
    """Raise CertificateError if none of them is valid any more."""
    ends = [str(authority["notAfter"]) for authority in context.get_ca_certs()]
    if ends and all(time.time() >= ssl.cert_time_to_seconds(end) for end in ends):
        raise CertificateError(f"the authority {tls.authority} expired on {ends[-1]}: renew it")


def _check_own(tls: Tls, role: Role) -> None:
    """Raise CertificateError if the certificate is not valid now, or not for this role."""
    try:
        shown = _shown(tls, role)
    except ssl.SSLCertVerificationError as error:
        usage = "clientAuth" if role == "sender" else "serverAuth"
        raise CertificateError(
            f"the certificate {tls.certificate} is not valid for a {role}: {error.verify_message}; if it has "
            f"an extended key usage, {usage} must be in it"
        ) from error
    except ssl.SSLError as error:
        raise CertificateError(f"the certificate {tls.certificate} cannot be used: {error}") from error
    begins, ends = str(shown["notBefore"]), str(shown["notAfter"])
    if time.time() >= ssl.cert_time_to_seconds(ends):
        raise CertificateError(f"the certificate {tls.certificate} expired on {ends}: renew it")
    if time.time() < ssl.cert_time_to_seconds(begins):
        raise CertificateError(
            f"the certificate {tls.certificate} is not valid before {begins}: is this machine's clock right?"
        )


def _shown(tls: Tls, role: Role) -> dict[str, object]:
    """Return the certificate as the other side will see it: one handshake with ourselves, in memory."""
    there: Role = "receiver" if role == "sender" else "sender"
    shows, looks = _with_certificate(tls, role), _with_certificate(tls, there)
    shows.verify_mode = ssl.CERT_NONE
    _trust(looks, "certificate", tls.certificate)
    looks.verify_flags |= _NO_CHECK_TIME
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    showing = shows.wrap_bio(one, other, server_side=role == "receiver")
    looking = looks.wrap_bio(other, one, server_side=role == "sender")
    for _ in range(3):  # each side has as many turns as a handshake takes, and one more
        for side in (showing, looking):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = looking.getpeercert()
    assert certificate
    return dict(certificate)
