"""All tables of a run, but Spark's and those of queries and planning."""

from __future__ import annotations

from dataclasses import replace

from .busy import BUSY
from .peers import ALLOCATED, CUBIC, EITHER, NATS, OURS, PEERS, SHARED
from .row import Row
from .running import RECEIVER_CORE, SENDER_CORE, Contestant
from .targets import AtLeast, AtMost, Target, Within
from .work import Work

KIB, MIB = 1 << 10, 1 << 20

SPEED = ("messages_per_s", "MB_per_s")
TRIP = ("p50_us", "p99_us", "p99.9_us")
LATENCY = (*TRIP, "messages_per_s")


def _scenario(module: str, *, alone: bool = False, follows: str = "", **options: object) -> Contestant:
    return Contestant(f".scenarios.{module}", options, alone=alone, follows=follows)


def _peers(*names: str) -> dict[str, Contestant]:
    return {name: PEERS[name] for name in (OURS, *names)}


def _speed(ratio: float, *beside: str) -> AtLeast:
    return AtLeast(ratio, beside, "messages_per_s", OURS)


def _throughput(name: str, work: Work, beside: tuple[str, ...], *targets: Target) -> Row:
    rounds, tries = (3, 1) if work.arrow else (4, 2)
    return Row(name, work, _peers(*beside), SPEED, targets, rounds=rounds, tries=tries)


MESSAGING = ("pyzmq", "zenoh", "grpc.aio", "asyncio streams", NATS)
BULK = ("Arrow Flight", "pyzmq", "raw socket")
CHOOSING = ("Arrow Flight", "pyzmq", SHARED, CUBIC)
SAME = {"same_sockets": True}

THROUGHPUT = (
    _throughput("64 B", Work(64), MESSAGING, _speed(1.3, *MESSAGING)),
    _throughput("1 KiB", Work(KIB), MESSAGING, _speed(1.5, *MESSAGING)),
    _throughput(
        "64 KiB",
        Work(64 * KIB),
        ("pyzmq", "zenoh", NATS, "Arrow Flight", "raw socket"),
        _speed(1.5, "pyzmq", "zenoh", NATS, "Arrow Flight"),
        _speed(1, "raw socket"),
    ),
    _throughput(
        "1 MiB Arrow batches",
        Work(MIB, arrow=True, options=SAME),
        BULK,
        _speed(1, "raw socket"),
        _speed(1, "pyzmq"),
        _speed(1.5, "Arrow Flight"),
    ),
    _throughput(
        "8 MiB Arrow batches",
        Work(8 * MIB, arrow=True, options=SAME),
        BULK,
        _speed(1, "raw socket"),
        _speed(1, "pyzmq"),
        _speed(1.1, "Arrow Flight"),
    ),
    _throughput(
        "1 MiB Arrow batches, as each chooses",
        Work(MIB, arrow=True),
        (ALLOCATED, *CHOOSING),
        _speed(2, CUBIC),
        _speed(4, "Arrow Flight"),
        _speed(1, SHARED),
        AtLeast(1, (SHARED,), "messages_per_s", ALLOCATED),
    ),
    _throughput(
        "8 MiB Arrow batches, as each chooses",
        Work(8 * MIB, arrow=True),
        (ALLOCATED, *CHOOSING),
        _speed(2, CUBIC),
        _speed(4, "Arrow Flight"),
        _speed(1, SHARED),
        AtLeast(1, (SHARED,), "messages_per_s", ALLOCATED),
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
        rounds=4,
    ),
)

OUR_CALLS = Contestant(".contestants.our_calls", settings=EITHER)

CALLS = (
    Row(
        "call of 64 B",
        Work(64),
        {OURS: OUR_CALLS, "uvloop protocol": PEERS["uvloop protocol"], "grpc.aio": PEERS["grpc.aio"]},
        TRIP,
        (Within(120, "p50_us", OURS), AtMost(0.5, "grpc.aio", "p50_us", OURS)),
        sides=("echo", "ask"),
        rounds=4,
    ),
    Row(
        "calls of 64 B, 100 at once",
        Work(64, options={"at_once": 100}),
        {OURS: OUR_CALLS, "grpc.aio": PEERS["grpc.aio"]},
        ("messages_per_s",),
        (_speed(3, "grpc.aio"),),
        sides=("echo", "ask_at_once"),
        rounds=4,
    ),
)

LATENCIES = tuple(
    Row(
        f"latency of 1 KiB at {rate:,} a second".replace(",", " "),
        Work(KIB, rate=rate, seconds=1, warm_up=0.3),
        _peers("pyzmq", "asyncio streams", "zenoh", NATS),
        LATENCY,
        (AtMost(1.2, "pyzmq", "p50_us", OURS), AtMost(1.2, "pyzmq", "p99_us", OURS)),
    )
    for rate in (1_000, 10_000, 50_000)
)

ONE, THOUSAND, TEN_THOUSAND = "1 channel", "1 000 channels", "10 000 channels"
IDLE = "idle channels"
SEVEN, EIGHT = "seven alone", "with a stalled one"
STEADY, AWAY = "consumer there", "consumer away, then there"
DURABLE, PLAIN = "durable buffer", "plain file"

FIRST_CORE, SECOND_CORE = (RECEIVER_CORE, RECEIVER_CORE), (SENDER_CORE, SENDER_CORE)
ONE_CORE, TWO_CORES = "1 channel, both ends on one core", "1 channel, a core for each end"
EACH_A_CORE = "2 + 2 processes, a core for each pair"
OF_A_NODE = f"{EACH_A_CORE}, one node"


def _over_cores(name: str, size: int) -> Row:
    """Both ends of a channel on one core, and twice that on two cores."""
    one = {ONE_CORE: (FIRST_CORE,), TWO_CORES: ((RECEIVER_CORE, SENDER_CORE),)}
    two = {EACH_A_CORE: False, OF_A_NODE: True}
    contestants = {
        each: replace(_scenario("many", channels=1), cores=cores) for each, cores in one.items()
    } | {
        each: replace(_scenario("many", channels=2, node=node), cores=(FIRST_CORE, SECOND_CORE))
        for each, node in two.items()
    }
    targets = [
        target
        for each in two
        for target in (
            AtLeast(1.8, (ONE_CORE,), "messages_per_s", each),
            AtMost(1.1, ONE_CORE, "cpu_us_per_message", each),
        )
    ]
    return Row(
        f"channels: four of {name} messages over two processes at each end",
        Work(size, different=8),
        contestants,
        (*SPEED, "cpu_us_per_message"),
        tuple(targets),
        base=ONE_CORE,
    )


CHANNELS = (
    Row(
        "channels: 64 KiB over several",
        Work(64 * KIB, different=4, seconds=2, warm_up=0.5),
        {
            ONE: _scenario("many", channels=1),
            "10 channels": _scenario("many", channels=10),
            "100 channels": _scenario("many", channels=100),
            THOUSAND: _scenario("many", channels=1_000),
            # As long as it takes to touch the memory of all their buffers for the first time, and then some.
            TEN_THOUSAND: replace(_scenario("many", channels=10_000, least_messages=1), lasts=(8, 4)),
        },
        SPEED,
        (AtLeast(0.9, (ONE,), "messages_per_s", THOUSAND),),
        base=ONE,
        rounds=2,
        slow=(TEN_THOUSAND,),
    ),
    Row(
        "channels: idle",
        Work(64, options={"channels": 10_000}),
        {IDLE: _scenario("idle")},
        ("channels", "open_s", "sender_KiB", "receiver_KiB", "both_KiB"),
        (Within(24, "both_KiB", IDLE), Within(5, "open_s", IDLE)),
        base=IDLE,
        rounds=2,
        quick={"channels": 1_000},
    ),
    *(_over_cores(name, size) for name, size in {"1 KiB": KIB, "64 KiB": 64 * KIB}.items()),
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
            AtLeast(0.97, (SEVEN,), "messages_per_s", EIGHT),
            AtMost(1.1, f"{SEVEN}, half load", "p99_us", f"{EIGHT}, half load"),
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

ENCRYPTED, TLS_SOCKET = "netchannel over TLS", "TLS socket"
TLS = tuple(
    Row(
        f"TLS: {name}",
        work,
        {
            ENCRYPTED: replace(_scenario("encrypted"), settings=PEERS[OURS].settings),
            OURS: PEERS[OURS],
            TLS_SOCKET: PEERS[TLS_SOCKET],
        },
        SPEED,
        (AtLeast(0.9, (TLS_SOCKET,), "messages_per_s", ENCRYPTED),),
        base=ENCRYPTED,
    )
    for name, work in {
        "1 KiB": Work(KIB),
        "64 KiB": Work(64 * KIB),
        "1 MiB Arrow batches": Work(MIB, arrow=True),
    }.items()
)

ROWS = (*THROUGHPUT, *BUSY, *TRIPS, *CALLS, *LATENCIES, *CHANNELS, *STALL, *DISK, *TLS)
