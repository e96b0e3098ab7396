"""The table: what is sent, who sends it, and what is to be reached against whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from .work import Work

MIB = 1 << 20


@dataclass(frozen=True)
class Contestant:
    """A module of `contestants`, with options of its own."""

    module: str
    options: dict[str, object] = field(default_factory=dict)


OURS = "netchannel"
CONTESTANTS = {
    OURS: Contestant("ours"),
    "pyzmq": Contestant("zeromq"),
    "zenoh": Contestant("eclipse_zenoh"),
    "zenoh, shared memory": Contestant("eclipse_zenoh", {"shared_memory": True}),
    "grpc.aio": Contestant("grpcaio"),
    "Arrow Flight": Contestant("flight"),
    "asyncio streams": Contestant("streams"),
    "raw socket": Contestant("raw"),
    "raw socket, cubic": Contestant("raw", {"congestion": "cubic"}),
}


@dataclass(frozen=True)
class Target:
    """At least ``ratio`` times the best of ``beside``."""

    ratio: float
    beside: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    work: Work
    beside: tuple[str, ...]
    targets: tuple[Target, ...]


MESSAGING = ("pyzmq", "zenoh", "grpc.aio", "asyncio streams")
ROWS = (
    Row("64 B", Work(64), MESSAGING, (Target(1.3, MESSAGING),)),
    Row("1 KiB", Work(1024), MESSAGING, (Target(1.1, MESSAGING),)),
    Row(
        "64 KiB",
        Work(1 << 16),
        ("pyzmq", "zenoh", "Arrow Flight", "raw socket"),
        (Target(1.5, ("pyzmq", "zenoh", "Arrow Flight")), Target(0.9, ("raw socket",))),
    ),
    Row(
        "1 MiB Arrow batches",
        Work(MIB, arrow=True, options={"same_sockets": True}),
        ("Arrow Flight", "pyzmq", "raw socket"),
        (Target(0.9, ("raw socket",)), Target(2, ("Arrow Flight",))),
    ),
    Row(
        "8 MiB Arrow batches",
        Work(8 * MIB, arrow=True, options={"same_sockets": True}),
        ("Arrow Flight", "pyzmq", "raw socket"),
        (Target(0.85, ("raw socket",)), Target(2, ("Arrow Flight",))),
    ),
    Row(
        "1 MiB Arrow batches, as each chooses",
        Work(MIB, arrow=True),
        ("Arrow Flight", "pyzmq", "zenoh, shared memory", "raw socket, cubic"),
        (Target(4, ("Arrow Flight",)), Target(1.3, ("pyzmq",))),
    ),
)
