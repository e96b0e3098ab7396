"""What a peer may send that it should not, into each kind of connection, at each moment of its life.

The cores without I/O: nothing but typed errors, no hang, no memory for a claim.
"""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netchannel.core.connections import IncomingConnection
from netchannel.core.control_connection import FOR_CONTROL, FOR_DATA, FOR_MEMBERS, greeting, with_check
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.receiving.node_members import MemberControl
from netchannel.core.receiving.node_membership import NodeControl
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.sending.data_sender import SenderData
from netchannel.core.sending.sender_core import SenderControl
from netchannel.core.states import ReceiverState, SenderState
from netchannel.errors import ProtocolError
from netchannel.wire import frames
from netchannel.wire.frames import Kind, signal
from netchannel.wire.messages import MESSAGES as KINDS
from netchannel.wire.messages import TOKEN_SIZE
from tests.support.dialed import LIMIT, Dialed, body_of, data, frame, schema_of, streamed
from tests.support.forged import forged
from tests.support.sizes import examples
from tests.support.world import Consumer, End, Producer, World

LINKS = [
    IncomingConnection,
    ReceiverControl,
    ReceiverData,
    SenderControl,
    SenderData,
    MemberControl,
    NodeControl,
]
STEPS = 60
"""As many rounds of everybody as the sessions here take, from the first dial to the last goodbye."""


class Session:
    """Three messages on their way in a world of their own, to a receiver or to a member of a node."""

    def __init__(
        self,
        seed: int,
        chunk: int,
        *,
        secret: bytes | None = None,
        explicit: bool = False,
        replayable: bool = False,
        is_member: bool = False,
    ) -> None:
        self.world = World(seed, chunk=chunk)
        if is_member:
            self.world.receiver("r:1", secret=secret, members="unix:node")
            self.receiver = self.world.receiver("r:2", secret=secret, node="unix:node")
        else:
            self.receiver = self.world.receiver(secret=secret)
        self.sender = self.world.sender(secret=secret)
        self.consumer = self.world.inbox(self.receiver, explicit=explicit)
        self.producer = self.world.open(self.sender, replayable=replayable)
        self.sent = [b"one", b"", bytes(20_000)]
        self.produce()

    @property
    def token(self) -> bytes:
        """One that the receiver has given and would take; else one that it would not."""
        return next(iter(self.receiver.open_requests.offers._offers), bytes(TOKEN_SIZE))

    def produce(self) -> None:
        """Send everything, once the numbers are known."""
        channel = self.producer.channel
        if channel.placed and channel.closing is None and not channel.terminal:
            for body in self.sent:
                self.producer.send(body)
            channel.finish()

    def reach(self, kind: type, steps: int) -> End | None:
        """The receiving end of a link of that kind, after so many steps or as soon as there is one."""
        for step in range(steps + STEPS):
            found = [end for end in self.world.ends if type(end.link) is kind]
            if found and step >= steps:
                return found[0]
            self.world.step()
            self.produce()
        return None


def transfer(world: World, producer: Producer, consumer: Consumer) -> list[bytes]:
    """Let a stream come to its end."""

    def over() -> bool:
        consumer.read()
        return producer.channel.terminal

    world.run(over)
    consumer.read()
    return consumer.values


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 100, 1000, 1 << 17]),
    st.sampled_from(LINKS),
    st.integers(0, STEPS),
    st.binary(min_size=1, max_size=300),
    st.sampled_from(["insert", "replace", "repeat"]),
    st.sampled_from([None, b"open sesame"]),
    st.booleans(),
)
def test_noise_anywhere_costs_a_connection_and_nothing_else(
    seed: int,
    chunk: int,
    kind: type,
    steps: int,
    noise: bytes,
    how: str,
    secret: bytes | None,
    is_member: bool,
) -> None:
    """CH-BAD-1: bytes that are inserted, replaced or repeated: all messages arrive, once, in order."""
    session = Session(seed, chunk, secret=secret, is_member=is_member or kind in (MemberControl, NodeControl))
    end = session.reach(kind, steps)
    if end is not None:
        place = session.world.random.randint(0, len(end.inbox))
        match how:
            case "insert":
                end.inbox[place:place] = noise
            case "replace":
                end.inbox[place : place + len(noise)] = noise
            case "repeat":
                end.inbox[place:place] = end.inbox[: len(noise)]
    assert transfer(session.world, session.producer, session.consumer) == session.sent


# -- what is well formed, and means nothing good

NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 5, 2**16, 2**20, 2**30, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
TEXTS = st.sampled_from(
    [
        "",
        "c",
        "s",
        "bytes",
        "arrow",
        "end",
        "failed",
        "closed",
        "policy",
        "unregistered",
        "\n\0\x1b[2J",
        "x" * 5000,
    ]
)
VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    str: TEXTS,
    bytes: st.sampled_from([b"", bytes(16), bytes(70_000)]),
    bool: st.booleans(),
}


@st.composite
def message(draw: st.DrawFn, kind: str) -> bytes:
    """Of that kind: mostly as it is declared, and else with a field that no declaration allows, or is left out."""
    fields: dict[str, Any] = {"t": kind}
    wrong = draw(st.booleans() | st.just(False))
    for name, type_, rule, optional in KINDS[kind].fields:
        value = VALUES[type_] if wrong else VALUES[type_].filter(rule.holds)
        fields[name] = 1 if name == "version" else draw(value | st.none() if optional or wrong else value)
    left_out = draw(st.sampled_from(sorted(fields)))
    if wrong or fields[left_out] is None:
        del fields[left_out]
    return forged(fields)


def as_it_is(data: bytes) -> Part:
    return lambda _: data


Part = Callable[[Session], bytes]
"""A piece of an attack, made when it is under way."""
MESSAGES = st.sampled_from(sorted(KINDS)).flatmap(message).map(as_it_is)
PAYLOADS = st.sampled_from([b"", bytes(8), bytes(16), b"text", bytes(1 << 12), bytes(1 << 17)])


@st.composite
def frames_of(draw: st.DrawFn, kinds: list[Kind]) -> Part:
    """Any frame whose checksums are right, with the token that is good now or another payload."""
    payload = draw(PAYLOADS | st.none())
    fields = {
        "flags": draw(st.integers(0, 3)),
        "count": draw(st.sampled_from([0, 1, 2, 2**16, 2**32 - 1])),
        "sequence": draw(NUMBERS),
        "extent": draw(NUMBERS),
    }
    kind = draw(st.sampled_from(kinds))

    def made(session: Session) -> bytes:
        body = session.token if payload is None else payload
        return frames._joined(frames._fields(kind, len(body), **fields), body)

    return made


GREETINGS = st.tuples(
    st.sampled_from([b"NETC", b"HTTP"]), st.integers(0, 255), st.integers(0, 255), st.integers(0, 255)
).map(lambda parts: with_check(parts[0] + bytes(parts[1:]) + b"-"))


def hostile(kind: type) -> st.SearchStrategy[list[Part]]:
    """What keeps to the form of such a connection, and for the most part to who says what."""
    if kind is IncomingConnection:
        first = GREETINGS | st.sampled_from([*map(greeting, (FOR_CONTROL, FOR_DATA, FOR_MEMBERS))])
        return st.tuples(first.map(as_it_is), MESSAGES | frames_of([*Kind])).map(list)
    if kind in (ReceiverControl, SenderControl, MemberControl, NodeControl):
        return st.lists(MESSAGES, min_size=1, max_size=5)
    ours = [each for each in Kind if (each >= Kind.ATTACHED) == (kind is SenderData)]
    return st.lists(frames_of(ours) | frames_of([*Kind]), min_size=1, max_size=5)


def still_served(session: Session) -> None:
    """What is left of the stream comes to rest; other peers of both sides are served."""
    world, secret = session.world, session.sender.secret
    for _ in range(3):
        session.produce()
        world.pass_time(1)
    session.consumer.read()
    bystander = world.inbox(session.receiver, "other")
    fresh = world.open(world.sender("fresh", secret=secret), "other")
    elsewhere = world.inbox(world.receiver("r:9", secret=secret), "other")
    used = world.open(session.sender, "other", "r:9")
    for producer, consumer in ((fresh, bystander), (used, elsewhere)):
        producer.send(b"x")
        producer.channel.finish()
        assert transfer(world, producer, consumer) == [b"x"]


@settings(max_examples=examples(500), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(LINKS).flatmap(lambda kind: st.tuples(st.just(kind), hostile(kind))),
    st.just(0) | st.integers(0, STEPS),
    st.fixed_dictionaries(
        {
            "secret": st.sampled_from([None, b"open sesame"]),
            "explicit": st.booleans(),
            "replayable": st.booleans(),
            "is_member": st.booleans(),
        }
    ),
)
def test_what_is_well_formed_and_hostile_harms_nobody_else(
    seed: int, attack: tuple[type, list[Part]], steps: int, variant: dict[str, Any]
) -> None:
    """CH-BAD-1: the stream that is attacked ends in data or a typed error; other peers of both sides are served."""
    kind, parts = attack
    variant["is_member"] |= kind in (MemberControl, NodeControl)
    session = Session(seed, 1 << 17, **variant)
    end = session.reach(kind, steps)
    if end is not None:
        place = session.world.random.choice([0, len(end.inbox)])
        end.inbox[place:place] = b"".join(part(session) for part in parts)
    still_served(session)


# -- what is received is what can be read

PLAIN = pa.record_batch({"n": pa.array([1, 2, 3])})
SHARED = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()})
LARGE = pa.record_batch({"n": pa.array([0] * LIMIT, pa.int64())})
BODIES = [
    *(b"", b"junk", body_of(PLAIN), body_of(PLAIN)[:-8], schema_of(PLAIN)),
    *(streamed(PLAIN, "zstd")[-1], streamed(LARGE, "lz4")[-1], streamed(SHARED)[-1]),
]
CONTEXTS = [
    b"",
    b"".join(streamed(SHARED)[:-1]),
    b"".join(streamed(SHARED)),
    schema_of(SHARED),
    schema_of(PLAIN),
]
COUNTS = st.integers(0, 3)
PIECES = st.one_of(
    st.builds(
        lambda bodies, first: data(*bodies, first=first),
        st.lists(st.sampled_from(BODIES), min_size=1, max_size=3),
        COUNTS,
    ),
    st.builds(
        lambda body, kind, first, count, flags, extent: frame(
            kind, body, sequence=first, count=count, flags=flags, extent=extent
        ),
        st.sampled_from([*BODIES, *CONTEXTS]),
        st.sampled_from([Kind.DATA, Kind.PART, Kind.SCHEMA, Kind.CONTEXT, Kind.GAP, Kind.BLOCKED, Kind.END]),
        COUNTS,
        COUNTS,
        st.sampled_from([0, 1, 2]),
        st.sampled_from([0, 8, *map(len, BODIES)]),
    ),
    st.builds(
        lambda whole, kind, first: (
            frame(kind, sequence=first, extent=len(whole)) + frame(kind, whole, sequence=first, count=1)
        ),
        st.sampled_from([*BODIES, *CONTEXTS]),
        st.sampled_from([Kind.PART, Kind.SCHEMA, Kind.CONTEXT]),
        COUNTS,
    ),
)


@settings(max_examples=examples(500), deadline=None)
@given(
    st.sampled_from(
        [("bytes", None), ("arrow", None), ("arrow", schema_of(PLAIN)), ("arrow", schema_of(SHARED))]
    ),
    st.sampled_from([(False, False), (True, False), (False, True)]),
    st.lists(PIECES, max_size=8),
)
def test_whatever_is_received_can_be_read(
    form: tuple[Any, bytes | None], how: tuple[bool, bool], pieces: list[bytes]
) -> None:
    """CH-BAD-1: each number below what is acknowledged decodes within the limit, or ends the channel, or was a gap."""
    (codec, schema), (explicit, lossy) = form, how
    dialed = Dialed(codec, schema=schema, explicit=explicit, lossy=lossy)
    dialed.say(dialed.data, b"".join(pieces))
    channel = dialed.channel
    read = 0
    while channel.queue and (item := channel.take()) is not None:
        try:
            value = channel.decoder.decode(item.body, item.context, LIMIT)
        except ProtocolError as error:  # of the right form, as those of another schema are
            channel.unreadable(item.sequence, error, dialed.world.now)
            assert isinstance(channel.error, ProtocolError)
            assert not channel.queue
            return
        assert value.nbytes <= LIMIT
        read += 1
    assert channel.expected == read + channel.dropped
    assert lossy or not channel.dropped
    told = dialed.answers()
    most = 0 if explicit else channel.expected
    assert all(number <= most for kind, number in told if kind is Kind.ACK)
    assert Kind.FINISHED not in dict(told) or channel.ended == most


@pytest.mark.parametrize("kind", [SenderData, ReceiverData])
@pytest.mark.parametrize("replayable", [False, True])
def test_every_frame_with_numbers_at_their_limits(kind: type, replayable: bool) -> None:
    """CH-BAD-1: as the first frame of a connection, and as a later one: no sum leaves its field."""
    for each, sequence, count, attached in itertools.product(
        Kind, [2**63 - 1, 2**64 - 1], [0, 2**32 - 1], [False, True]
    ):
        session = Session(0, 1 << 17, replayable=replayable)
        end = session.reach(kind, 0)
        assert end is not None
        while attached and session.producer.channel.state is not SenderState.ATTACHED:
            session.world.step()
        token = session.token if each is Kind.ATTACH else b""
        end.inbox[:0] = signal(each, sequence=sequence, count=count, payload=token)
        still_served(session)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize()


def test_a_claim_costs_no_memory() -> None:
    """CH-BAD-1: five messages that are to have 1 GiB each, of which nothing comes."""
    world = World()
    receiver, sender = world.receiver(), world.sender()
    names = [f"c{number}" for number in range(5)]
    consumers = [world.inbox(receiver, name) for name in names]
    producers = [world.open(sender, name) for name in names]
    world.run(lambda: all(producer.channel.state is SenderState.ATTACHED for producer in producers))
    before = resident_bytes()
    for end in world.ends:
        if type(end.link) is ReceiverData:
            end.inbox += frames._joined(frames._fields(Kind.PART, 0, extent=receiver.message_limit), b"")
            end.inbox += bytes(4) + frames._fields(Kind.PART, frames.FRAME_LIMIT, count=1) + b"x"
    world.settle()
    assert all(consumer.channel.state is ReceiverState.ATTACHED for consumer in consumers)
    assert resident_bytes() - before < 100 << 20


@pytest.mark.parametrize("kind", [Kind.ATTACH, Kind.DATA])
def test_who_has_shown_no_token_is_refused_by_a_header(kind: Kind) -> None:
    """CH-BAD-1: even of ordinary size, a frame is not waited for."""
    session = Session(0, 1 << 17)
    end = session.reach(ReceiverData, 0)
    assert end is not None
    end.inbox[:0] = bytes(4) + frames._fields(kind, frames.TOKEN_FRAME_LIMIT + 1)
    link = end.link
    session.world._read(end)
    assert f"claims {frames.TOKEN_FRAME_LIMIT + 1} bytes" in link.cause
    assert transfer(session.world, session.producer, session.consumer) == session.sent
