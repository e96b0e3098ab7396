"""Facts about a worker, for a check of a fleet's health."""

from __future__ import annotations

import os
import platform
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli import __version__
from nebuli.rpc import worker_pb2 as wire
from netchannel.errors import CertificateError
from netchannel.tls import expiry

if TYPE_CHECKING:
    from nebuli.rpc.trust import Trust

__all__ = ["inspect"]

_TCP = Path("/proc/sys/net/ipv4")


def inspect(address: str, trust: Trust) -> wire.InspectReply:
    """Return the facts about this process, whose channels others reach at ``address``."""
    reply = wire.InspectReply(
        address=address,
        version=__version__,
        python=platform.python_version(),
        files=len(os.listdir("/dev/fd")) - 1,  # noqa: PTH208 - the listing's own is one of them
        files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        congestion_control=_said("tcp_congestion_control"),
        congestion_controls=_said("tcp_available_congestion_control").split(),
        tls=trust.tls is not None,
        secret=trust.secret is not None,
    )
    if trust.tls is not None:
        reply.certificate, reply.authority = str(trust.tls.certificate), str(trust.tls.authority)
        try:
            ends = expiry(trust.tls)
        except CertificateError as error:
            reply.tls_error = str(error)
        else:
            reply.certificate_ends, reply.authority_ends = int(ends.certificate), int(ends.authority)
    reply.time = int(time.time() * 1e6)  # last: time spent before must not count as the clock's
    return reply


def _said(name: str) -> str:
    try:
        return (_TCP / name).read_text("utf-8").strip()
    except OSError:  # another system, or one that hides it
        return ""
