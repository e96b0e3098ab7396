"""The table: what is sent, by whom, what is shown of it, and what is to be reached against whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .running import Contestant
from .targets import AtLeast, AtMost, Target, Within
from .work import Work

KIB, MIB = 1 << 10, 1 << 20

OURS = "netchannel"
NATS = "NATS"
SHARED = "zenoh, shared memory"


def _peer(module: str, *, broker: bool = False, **options: object) -> Contestant:
    return Contestant(f".contestants.{module}", options, broker=broker)


def _scenario(
    module: str, *, pairs: int = 1, alone: bool = False, follows: str = "", **options: object
) -> Contestant:
    return Contestant(f".scenarios.{module}", options, pairs=pairs, alone=alone, follows=follows)


PEERS = {
    OURS: _peer("ours"),
    "pyzmq": _peer("zeromq"),
    "zenoh": _peer("eclipse_zenoh"),
    SHARED: _peer("eclipse_zenoh", shared_memory=True),
    NATS: _peer("nats_core", broker=True),
    "grpc.aio": _peer("grpcaio"),
    "Arrow Flight": _peer("flight"),
    "asyncio streams": _peer("streams"),
    "uvloop protocol": _peer("uvloop_echo"),
    "raw socket": _peer("raw"),
    "raw socket, cubic": _peer("raw", congestion="cubic"),
}

SPEED = ("messages_per_s", "MB_per_s")
TRIP = ("p50_us", "p99_us", "p99.9_us")
LATENCY = (*TRIP, "messages_per_s")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``base``: whom the others are put beside, by the first of ``columns``. ``sides``: the functions that a contestant's
    processes call. ``quick``: options that a first look has instead.
    """

    name: str
    work: Work
    contestants: Mapping[str, Contestant]
    columns: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    base: str = OURS
    sides: tuple[str, str] = ("receive", "send")
    quick: Mapping[str, object] = field(default_factory=dict)


def _peers(*names: str) -> dict[str, Contestant]:
    return {name: PEERS[name] for name in (OURS, *names)}


def _speed(ratio: float, *beside: str) -> AtLeast:
    return AtLeast(ratio, beside, "messages_per_s", OURS)


def _throughput(name: str, work: Work, beside: tuple[str, ...], *targets: Target) -> Row:
    return Row(name, work, _peers(*beside), SPEED, targets)


MESSAGING = ("pyzmq", "zenoh", "grpc.aio", "asyncio streams", NATS)
BULK = ("Arrow Flight", "pyzmq", "raw socket")
SAME = {"same_sockets": True}

THROUGHPUT = (
    _throughput("64 B", Work(64), MESSAGING, _speed(1.3, *MESSAGING)),
    _throughput("1 KiB", Work(KIB), MESSAGING, _speed(1.1, *MESSAGING)),
    _throughput(
        "64 KiB",
        Work(64 * KIB),
        ("pyzmq", "zenoh", NATS, "Arrow Flight", "raw socket"),
        _speed(1.5, "pyzmq", "zenoh", NATS, "Arrow Flight"),
        _speed(0.9, "raw socket"),
    ),
    _throughput(
        "1 MiB Arrow batches",
        Work(MIB, arrow=True, options=SAME),
        BULK,
        _speed(0.9, "raw socket"),
        _speed(2, "Arrow Flight"),
    ),
    _throughput(
        "8 MiB Arrow batches",
        Work(8 * MIB, arrow=True, options=SAME),
        BULK,
        _speed(0.85, "raw socket"),
        _speed(2, "Arrow Flight"),
    ),
    _throughput(
        "1 MiB Arrow batches, as each chooses",
        Work(MIB, arrow=True),
        ("Arrow Flight", "pyzmq", SHARED, "raw socket, cubic"),
        _speed(4, "Arrow Flight"),
        _speed(1.3, "pyzmq"),
    ),
    _throughput(
        "8 MiB Arrow batches, as each chooses",
        Work(8 * MIB, arrow=True),
        ("Arrow Flight", "pyzmq", SHARED, "raw socket, cubic"),
        _speed(4, "Arrow Flight"),
    ),
)

TRIPS = (
    Row(
        "round trip of 64 B",
        Work(64),
        _peers("uvloop protocol", "pyzmq", NATS),
        TRIP,
        (
            AtMost(1.3, "uvloop protocol", "p50_us", OURS),
            AtMost(1.3, "uvloop protocol", "p99_us", OURS),
            AtMost(1, "pyzmq", "p50_us", OURS),
            AtMost(1, "pyzmq", "p99_us", OURS),
        ),
        sides=("echo", "ask"),
    ),
)

LATENCIES = tuple(
    Row(
        f"latency of 1 KiB at {rate:,} a second".replace(",", " "),
        Work(KIB, rate=rate),
        _peers("pyzmq", "asyncio streams", "zenoh", NATS),
        LATENCY,
    )
    for rate in (1_000, 10_000, 50_000)
)

ONE, THOUSAND = "1 channel", "1 000 channels"
IDLE = "idle channels"
SEVEN, EIGHT = "seven alone", "beside a stalled one"
STEADY, AWAY = "consumer there", "consumer away, then there"
DURABLE, PLAIN = "durable buffer", "plain file"

CHANNELS = (
    Row(
        "channels: 64 KiB over several",
        Work(64 * KIB, different=4, seconds=2, warm_up=0.5),
        {
            ONE: _scenario("many", channels=1),
            "10 channels": _scenario("many", channels=10),
            "100 channels": _scenario("many", channels=100),
            THOUSAND: _scenario("many", channels=1_000),
        },
        SPEED,
        (AtLeast(0.8, (ONE,), "messages_per_s", THOUSAND),),
        base=ONE,
    ),
    Row(
        "channels: idle",
        Work(64, options={"channels": 10_000}),
        {IDLE: _scenario("idle")},
        ("channels", "open_s", "sender_KiB", "receiver_KiB", "both_KiB"),
        (Within(32, "both_KiB", IDLE), Within(15, "open_s", IDLE)),
        base=IDLE,
        quick={"channels": 1_000},
    ),
    *(
        Row(
            f"channels: four of {name} messages over two processes at each end",
            Work(size, different=8),
            {
                ONE: _scenario("many", channels=1),
                "2 + 2 processes": _scenario("many", channels=2, pairs=2),
                "2 + 2 processes, one node": _scenario("many", channels=2, pairs=2, node=True),
            },
            SPEED,
            base=ONE,
        )
        for name, size in {"1 KiB": KIB, "64 KiB": 64 * KIB}.items()
    ),
)

STALL = (
    Row(
        "a stalled consumer, 64 KiB",
        Work(64 * KIB, different=8, options={"channels": 7}),
        {
            SEVEN: _scenario("stall", stalled=False),
            EIGHT: _scenario("stall", stalled=True),
            f"{SEVEN}, half load": _scenario("stall", stalled=False, follows=SEVEN),
            f"{EIGHT}, half load": _scenario("stall", stalled=True, follows=SEVEN),
        },
        ("messages_per_s", "p50_us", "p99_us"),
        (
            AtLeast(0.95, (SEVEN,), "messages_per_s", EIGHT),
            AtMost(1.2, f"{SEVEN}, half load", "p99_us", f"{EIGHT}, half load"),
        ),
        base=SEVEN,
    ),
)

DISK = (
    Row(
        "disk: 64 KiB messages, spilled",
        Work(64 * KIB, warm_up=0, options={"MB": 1_000}),
        {STEADY: _scenario("spill", away=False), AWAY: _scenario("spill", away=True)},
        ("MB_per_s", "taken_MB_per_s", "disk_MB"),
        (
            AtLeast(0.8, (STEADY,), "MB_per_s", AWAY),
            AtLeast(0.8, (STEADY,), "taken_MB_per_s", AWAY, beside_measure="MB_per_s"),
        ),
        base=STEADY,
        quick={"MB": 200},
    ),
    Row(
        "disk: durable buffer of 1 KiB messages",
        Work(KIB),
        {
            DURABLE: _scenario("durable", times=64),
            PLAIN: _scenario("plain_file", alone=True, follows=DURABLE),
        },
        ("durable_MB_per_s", "bytes_per_sync"),
        (AtLeast(0.7, (PLAIN,), "durable_MB_per_s", DURABLE),),
        base=PLAIN,
    ),
)

ENCRYPTED = "over TLS"
TLS = tuple(
    Row(
        f"TLS: {name}",
        work,
        {OURS: PEERS[OURS], ENCRYPTED: _scenario("encrypted")},
        SPEED,
    )
    for name, work in {
        "1 KiB": Work(KIB),
        "64 KiB": Work(64 * KIB),
        "1 MiB Arrow batches": Work(MIB, arrow=True),
    }.items()
)

ROWS = (*THROUGHPUT, *TRIPS, *LATENCIES, *CHANNELS, *STALL, *DISK, *TLS)
