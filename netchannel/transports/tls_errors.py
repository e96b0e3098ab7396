"""Errors of TLS, one sentence for each cause, and whether trying again can help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.errors import HandshakeError
from netchannel.log_texts import printable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from netchannel.tls import Tls

NO_TLS = "the other side does not speak TLS: set tls= there, too"
OLD_TLS = (
    "the other side does not speak TLS 1.3: set tls= there, too, and check that the address is not that of "
    "another program"
)

EXPIRED, NOT_YET_VALID, WRONG_PURPOSE = 10, 9, 26
WRONG_NAME = {62, 64}  # host, IP address
UNKNOWN_AUTHORITY = {2, 7, 18, 19, 20, 21, 24, 30}
"""OpenSSL's X509_V_ERR codes: no issuer, of whatever kind, or one with another key."""

ALERTS = {
    "UNKNOWN_CA": "{refused}, whose authority it does not know: give both sides certificates of one authority",
    "CERTIFICATE_EXPIRED": "{refused}, because it has expired: renew it here, or check that machine's clock",
    "CERTIFICATE_REQUIRED": "it asks for a certificate, but got none that it can use: {certificate}",
    "BAD_CERTIFICATE": "{refused}, because it is not for the dialed host, or not valid yet; see its error or log",
    "UNSUPPORTED_CERTIFICATE": "{refused}, whose extended key usage lacks the required one",
    "CERTIFICATE_REVOKED": "{refused}, because it was revoked",
    "CERTIFICATE_UNKNOWN": "{refused}; see its error or log",
    "ACCESS_DENIED": "{refused}; see its error or log",
}
"""Meanings of the other side's alert about our certificate, by the alert's name (RFC 8446, 6.2)."""

NO_BASIS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presented no certificate: give the other side tls=",
    "UNSUPPORTED_PROTOCOL": OLD_TLS,
    "WRONG_SSL_VERSION": OLD_TLS,
    "ALERT_PROTOCOL_VERSION": OLD_TLS,
    "ALERT_HANDSHAKE_FAILURE": "the other side finds no cipher or kind of key that both support",
    "ALERT_INSUFFICIENT_SECURITY": "the other side finds no cipher or kind of key that is strong enough",
}
"""Why the two cannot even begin, by OpenSSL's reason. Once they have, it only means that something was changed."""


class WrongName(HandshakeError):
    """The receiver's certificate is for other hosts than the one that was dialed."""


class Unproven(HandshakeError):
    """A refusal in clear text on the wire, which any party could have written, and a flipped bit could have made."""


def explain(error: ssl.SSLError, tls: Tls, *, established: bool = False) -> tuple[str, bool]:
    """Return a sentence about the other side, and whether it holds until something is fixed."""
    code = getattr(error, "verify_code", None)
    if code is not None:
        return _of_certificate(code, getattr(error, "verify_message", ""), tls), True
    reason = error.reason or str(error)
    for alert, sentence in ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            refused = f"it refused the certificate {tls.certificate}"
            return sentence.format(refused=refused, certificate=tls.certificate), True
    for cause, sentence in NO_BASIS.items():
        if reason.endswith(cause) and not established:
            return sentence, True
    return reason, False


def _of_certificate(code: int, message: str, tls: Tls) -> str:
    if code == EXPIRED:
        return (
            f"its certificate, or that of its authority, has expired (there, or in {tls.authority}): renew it, or "
            "check this machine's clock"
        )
    if code == NOT_YET_VALID:
        return (
            "its certificate, or that of its authority, is not valid yet: check the clocks of both machines"
        )
    if code in UNKNOWN_AUTHORITY:
        return (
            f"its certificate is not signed by an authority in {tls.authority}: give both sides certificates of one "
            f"authority"
        )
    if code == WRONG_PURPOSE:
        return (
            "its certificate is not for this use: if it has an extended key usage, a sender needs clientAuth in it, "
            "and a receiver serverAuth"
        )
    return f"its certificate is not valid: {message}"


def of_names(host: str, names: Sequence[str] | None) -> str:
    """Return the error for a certificate that is for other hosts, which are named if they are known."""
    if names is not None and not names:
        return (
            f"its certificate names no host, so it does not name {host} (common names do not count): issue it "
            "with its hosts as subject alternative names"
        )
    whose = "for other hosts" if names is None else f"for {printable(', '.join(names[:10]))}"
    return (
        f"its certificate is {whose}, not for {host}: connect to it by one of these names, or give Tls() one of them "
        f"as server_name"
    )
