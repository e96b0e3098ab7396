"""Who sends messages from one process to another, and the settings of each, of which its best one counts."""

from __future__ import annotations

from collections.abc import Mapping

from .running import FREE, PINNED, Contestant, Setting

OURS, NEBULI = "netchannel", "nebuli"
ALLOCATED = "netchannel, allocated memory"
NATS = "NATS"
SHARED = "zenoh, shared memory"
CUBIC = "raw socket, cubic"

EITHER = (PINNED, FREE)
ZEROMQ = (*EITHER, Setting("free, long queues", free=True, options={"long_queues": True}))
ZENOH = (*EITHER, Setting("free, larger buffers", free=True, options={"larger_buffers": True}))


def _peer(
    module: str, *, broker: bool = False, settings: tuple[Setting, ...] = EITHER, **options: object
) -> Contestant:
    name = f".contestants.{module}"
    return Contestant(name, options, broker=broker, settings=settings, may_fail=True)


PEERS: Mapping[str, Contestant] = {
    OURS: Contestant(".contestants.ours", settings=EITHER),
    ALLOCATED: Contestant(".contestants.ours", {"allocated": True}, settings=EITHER),
    "pyzmq": _peer("zeromq", settings=ZEROMQ),
    "zenoh": _peer("eclipse_zenoh", settings=ZENOH),
    SHARED: _peer("eclipse_zenoh", shared_memory=True),
    NATS: _peer("nats_core", broker=True),
    "grpc.aio": _peer("grpcaio"),
    "Arrow Flight": _peer("flight"),
    "asyncio streams": _peer("streams"),
    "uvloop protocol": _peer("uvloop_echo"),
    "raw socket": _peer("raw"),
    CUBIC: _peer("raw", congestion="cubic"),
    "TLS socket": _peer("tls_socket"),
}
