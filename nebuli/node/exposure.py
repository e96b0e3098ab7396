"""Checks if a worker would accept any client from another machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nebuli.node.worker_process import WorkerSettings

__all__ = ["Exposed", "check_http_not_exposed", "check_not_exposed", "is_loopback"]


class Exposed(Exception):
    """The worker would accept any client; the message names option, address and remedy."""


def check_not_exposed(settings: WorkerSettings) -> None:
    """Raise `Exposed` where other machines can connect, and neither TLS nor a secret is asked for."""
    if settings.trust.tls is not None or settings.trust.secret is not None:
        return
    for option, address in (("data", settings.data), ("grpc", settings.grpc)):
        if not is_loopback(address):
            raise Exposed(
                f"--{option} {address} can be reached from other machines, and without TLS and a secret any "
                "client can read and write files as this worker does: name tls or a secret in the topology, "
                "or give --secret-file FILE; --insecure starts it anyway"
            )


def check_http_not_exposed(settings: WorkerSettings) -> None:
    """Raise `Exposed` for --http; nothing else than TLS or a secret lets other machines in there."""
    asked = settings.trust.tls is not None or settings.trust.secret is not None
    if settings.http is not None and not asked and not is_loopback(settings.http):
        raise Exposed(
            f"--http {settings.http} can be reached from other machines, and without TLS and a secret any "
            f"client can push rows and end queries: name tls or a secret in the topology, or give "
            f"--secret-file FILE"
        )


def is_loopback(address: str) -> bool:
    """True if a host is this one. An unknown one cannot be bound either, which has its own error."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    # The zone of a link-local IPv6 address follows a percent sign.
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
