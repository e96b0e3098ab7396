"""Whether a worker would let in whoever can connect to it from another machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nebuli.node.worker_process import WorkerSettings

__all__ = ["Exposed", "check_http_not_exposed", "check_not_exposed", "is_loopback"]


class Exposed(Exception):
    """The worker would let in everybody; the message names option and address, and says what to do."""


def check_not_exposed(settings: WorkerSettings) -> None:
    """Raise `Exposed` where other machines can connect, and neither TLS nor a secret is asked for."""
    if settings.trust.tls is not None or settings.trust.secret is not None:
        return
    for option, address in (("data", settings.data), ("grpc", settings.grpc)):
        if not is_loopback(address):
            raise Exposed(
                f"--{option} {address} can be reached from other machines, and without TLS and a secret whoever "
                f"connects can read and write files as this worker does: name tls or a secret in the topology, or give "
                f"--secret-file FILE; --insecure starts it all the same"
            )


def check_http_not_exposed(settings: WorkerSettings) -> None:
    """Raise `Exposed` for --http; nothing else than TLS or a secret lets other machines in there."""
    asked = settings.trust.tls is not None or settings.trust.secret is not None
    if settings.http is not None and not asked and not is_loopback(settings.http):
        raise Exposed(
            f"--http {settings.http} can be reached from other machines, and without TLS and a secret whoever connects "
            f"can push rows and end queries: name tls or a secret in the topology, or give --secret-file FILE"
        )


def is_loopback(address: str) -> bool:
    """Whether a host is this one. One that nobody knows cannot be bound either, which says so in its own words."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True
    # Of an IPv6 address of a link the zone is behind a percent sign.
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)
