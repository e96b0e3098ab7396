"""Reading between cores without I/O: cuts at every byte, answers that are wrong, noise, and what is hostile."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netchannel.core.client_core import ClientControl, ClientCore, PendingQuestion
from netchannel.core.control_connection import FOR_READING, greeting
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.receiving.requests import RequestControl
from netchannel.core.replay.history import MemoryHistory
from netchannel.core.replay.read_client import RangeRead, ReadClient, ReadClientData
from netchannel.core.replay.read_server import REQUEST, REQUESTS_LIMIT, ReadServerData
from netchannel.core.replay.retained_outbound import RetainedOutbound
from netchannel.errors import NetChannelError, ProtocolError
from netchannel.policies import FaultPolicy, RetainPolicy
from netchannel.wire import messages
from netchannel.wire.codec import make_decoder
from netchannel.wire.frames import Kind, blob, pack, signal
from tests.netchannel.core.test_fuzz import MESSAGES, frames_of
from tests.support.sizes import examples
from tests.support.world import End, World

pytestmark = pytest.mark.uvloop

SENT = [b"one", b"", b"three" * 30, bytes(40_000), b"last"]


class Session:
    """A history of five messages where it was made, and a client that reads it."""

    def __init__(self, seed: int = 0, chunk: int = 1 << 17) -> None:
        self.world = World(seed, chunk=chunk)
        self.core: ReceiverCore = self.world.receiver()
        history = MemoryHistory("s", "bytes", 1 << 30)
        self.served = RetainedOutbound(self.core, "c", "bytes", RetainPolicy(), history)
        self.core.offer("c", self.served)
        self.served.begin(history, self.world.now)
        for body in SENT:
            self.served.append(body, body[:1], b"", 1, self.world.now)
        self.served.seal(self.world.now)
        self.client, self.reader = self.new_client()

    def new_client(self) -> tuple[ClientCore, ReadClient]:
        world = self.world
        core = ClientCore("client", world.timing, world.wall, world.random.randbytes)
        world.cores.append(core)
        channel = core.register("c", "r:1", FaultPolicy(), world.now)
        reader = ReadClient(channel, lambda stream: make_decoder("bytes", None), 1 << 20)
        channel.on_lost = lambda reason, now: reader.control_lost()
        return core, reader

    def read(self, first: int = 0, until: int = len(SENT)) -> RangeRead:
        return self.reader.read("s", first, until, self.world.now)

    def all_of(self, reading: RangeRead) -> list[bytes]:
        self.world.run(lambda: reading.over)
        return bodies(reading)

    def end_of(self, kind: type) -> End | None:
        return next((end for end in self.world.ends if type(end.link) is kind), None)

    def reach(self, kind: type, steps: int = 0) -> End | None:
        for step in range(steps + 60):
            end = self.end_of(kind)
            if end is not None and step >= steps:
                return end
            self.world.step()
        return None


def bodies(reading: RangeRead) -> list[bytes]:
    return [bytes(body) for chunk in reading.take() for body in chunk.bodies]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_pieces_of_any_size_are_the_same(chunk: int) -> None:
    """CH-REP-1, CH-BAD-1: byte by byte, or as it comes."""
    session = Session(chunk=chunk)
    assert session.all_of(session.read()) == SENT
    assert session.all_of(session.read(1, 4)) == SENT[1:4]


@pytest.mark.parametrize("kind", [ReadServerData, ReadClientData, RequestControl, ClientControl])
def test_a_cut_at_every_byte(kind: type) -> None:
    """CH-REP-1: of either direction of both connections: all of it comes, once, in order."""
    cuts = 0
    for at in (*range(400), *range(400, 45_000, 997)):
        session = Session()
        reading = session.read(0, 3) if at < 400 else session.read()
        end = session.reach(kind)
        assert end is not None
        passed = 0
        while passed < at and not end.over and not reading.over:
            # Only this connection goes on byte by byte.
            session.world.chunk = min(at - passed, 1 << 17) if end.inbox else 1 << 17
            before = len(end.inbox)
            session.world.step()
            passed += max(0, before - len(end.inbox))
        if not end.over and not reading.over:
            session.world.cut(end)
            cuts += 1
        session.world.chunk = 1 << 17
        assert session.all_of(reading) == SENT[: reading.until]
    assert cuts > 50


def test_a_smaller_client_is_told_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """For good, in the place of what it cannot take."""
    monkeypatch.setattr(ClientControl, "features", ClientControl.features - {"notes"})
    session = Session()
    reading = session.read()
    session.world.run(lambda: reading.over)
    assert type(reading.error) is NetChannelError
    assert "channel 'c': client at client:0 does not accept notes" in str(reading.error)
    assert reading.next == 0


def answer(session: Session, *frames: bytes) -> RangeRead:
    """Attach a reading connection by hand, and answer its range by ``frames``."""
    reading = session.read()
    end = session.reach(ReadClientData)
    assert end is not None
    end.peer.link.output = list  # type: ignore[method-assign,assignment] - it says nothing by itself
    session.world.settle()
    end.inbox += b"".join((signal(Kind.ATTACHED), *frames))
    session.world.settle()
    return reading


def data(first: int, count: int) -> bytes:
    return b"".join(pack([b"x"] * count, {}, first, 0))


WRONG = {
    "a gap": [data(0, 2), data(3, 2)],
    "a double": [data(0, 2), data(1, 2)],
    "one again": [data(0, 2), data(0, 2)],
    "more than was asked for": [data(0, 6)],
    "a late start": [data(1, 4)],
    "an early end": [data(0, 2), signal(Kind.END, sequence=2)],
    "an end too soon": [data(0, 2), signal(Kind.END, sequence=5)],
    "another end": [data(0, 5), signal(Kind.END, sequence=6)],
    "nothing": [signal(Kind.DATA, sequence=0)],
}


@pytest.mark.parametrize("what", WRONG)
def test_other_messages_than_those_are_an_error_and_never_delivered(what: str) -> None:
    """CH-REP-3: what came before them is whole, nothing behind is given out."""
    session = Session()
    reading = answer(session, *WRONG[what])
    assert isinstance(reading.error, ProtocolError)
    if reading.next:
        assert bodies(reading) == [b"x"] * reading.next
    with pytest.raises(ProtocolError):
        reading.take()


def test_without_the_check_of_numbers_a_gap_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control."""
    unchecked = RangeRead.deliver

    def deliver(reading: RangeRead, frame: Any, context: Any) -> None:
        reading.next = frame.sequence
        unchecked(reading, frame, context)

    monkeypatch.setattr(RangeRead, "deliver", deliver)
    assert bodies(answer(Session(), *WRONG["a gap"])) == [b"x"] * 4


def dialed(session: Session, *data: bytes) -> End:
    """A stranger's connection."""
    from netchannel.core.link import Link

    class Stranger(Link):
        def get_buffer(self, hint: int) -> memoryview:
            return self.core.slab

        def _received(self, n: int, now: float) -> None:
            said.append(bytes(self.core.slab[:n]))

        def _lost(self, reason: str, now: float) -> None:
            pass

    said: list[bytes] = []
    link = Stranger(session.client, "r:1")
    session.client.dial(link)
    session.world.step()
    end: End = link.adapter
    for each in data:
        end.peer.inbox += each
    session.world.settle()
    end.said = said  # type: ignore[attr-defined]
    return end


def test_a_token_is_good_once_and_while_its_client_is_there() -> None:
    """As for channels: who has no token reads nothing (compare CH-DATA-3)."""
    session = Session()
    assert session.all_of(session.read()) == SENT
    client = next(iter(session.core.services.clients))
    token = session.core.services.token(session.served, client, session.world.now)
    first, second = (
        dialed(session, greeting(FOR_READING), signal(Kind.ATTACH, payload=token)) for _ in range(2)
    )
    assert not first.over
    assert second.over
    for stale in (token, bytes(16), b""):
        end = dialed(session, greeting(FOR_READING), signal(Kind.ATTACH, payload=stale))
        assert b"token" in b"".join(end.said)  # type: ignore[attr-defined]
        assert end.over
    token = session.core.services.token(session.served, client, session.world.now)
    wire = session.end_of(ClientControl)
    assert wire is not None
    session.world.cut(wire)
    session.world.settle()
    assert first.over
    assert dialed(session, greeting(FOR_READING), signal(Kind.ATTACH, payload=token)).over
    token = session.core.services.token(
        session.served, next(iter(session.core.services.clients), client), 0.0
    )
    session.world.pass_time(session.world.timing.token_s + 1)
    assert session.core.services.redeem(token) is None


def test_a_channel_that_is_over_takes_no_memory_while_who_read_it_is_connected() -> None:
    session = Session()
    assert session.all_of(session.read()) == SENT
    served = weakref.ref(session.served)
    session.served.leave(session.world.now, discard=True)
    del session.served
    session.world.pass_time(session.world.timing.token_s + 1)
    gc.collect()
    assert served() is None
    (client,) = session.core.services.clients
    assert client.asks == 0


def test_ranges_asked_for_ahead_are_bounded() -> None:
    session = Session()
    session.all_of(session.read())
    client = next(iter(session.core.services.clients))
    for count in (REQUESTS_LIMIT, REQUESTS_LIMIT + 1):
        token = session.core.services.token(session.served, client, session.world.now)
        ranges = [signal(Kind.REQUEST, sequence=0, payload=REQUEST.pack(1))] * count
        end = dialed(session, greeting(FOR_READING), signal(Kind.ATTACH, payload=token), *ranges)
        assert end.over is (count > REQUESTS_LIMIT)


LINKS = [RequestControl, ReadServerData, ClientControl, ReadClientData]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([5, 100, 1 << 17]),
    st.sampled_from(LINKS),
    st.integers(0, 40),
    st.binary(min_size=1, max_size=200),
    st.sampled_from(["insert", "replace", "repeat"]),
)
def test_noise_anywhere_costs_a_connection_and_nothing_else(
    seed: int, chunk: int, kind: type, steps: int, noise: bytes, how: str
) -> None:
    """CH-BAD-1: all that was asked for comes, once, in order."""
    session = Session(seed, chunk)
    reading = session.read()
    end = session.reach(kind, steps)
    if end is not None:
        place = session.world.random.randint(0, len(end.inbox))
        match how:
            case "insert":
                end.inbox[place:place] = noise
            case "replace":
                end.inbox[place : place + len(noise)] = noise
            case "repeat" if kind in (RequestControl, ClientControl):
                end.inbox[place:place] = end.inbox[: len(noise)]
    assert session.all_of(reading) == SENT


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(LINKS),
    st.data(),
    st.just(0) | st.integers(0, 40),
)
def test_what_is_well_formed_and_hostile_harms_nobody_else(
    seed: int, kind: type, data: st.DataObject, steps: int
) -> None:
    """CH-BAD-1: a typed error, or data, for who is attacked; another client is served."""
    session = Session(seed)
    session.consumer = session  # type: ignore[attr-defined] - tokens of an attack are of channels
    session.channel = session  # type: ignore[attr-defined]
    session.token = bytes(16)  # type: ignore[attr-defined]
    reading = session.read()
    parts = MESSAGES if kind in (RequestControl, ClientControl) else frames_of([*Kind])
    end = session.reach(kind, steps)
    if end is not None:
        place = session.world.random.choice([0, len(end.inbox)])
        attack = data.draw(st.lists(parts, min_size=1, max_size=5))
        end.inbox[place:place] = b"".join(part(session) for part in attack)  # type: ignore[arg-type]
    session.world.pass_time(3)
    if reading.complete:
        assert len(bodies(reading)) == len(SENT)
    if session.served.history.oldest == 0:  # nobody has acknowledged it in the attacked one's name
        _, session.reader = session.new_client()
        assert session.all_of(session.read()) == SENT


def test_a_schema_that_has_no_end_is_not_taken() -> None:
    """CH-BAD-1: nor dictionaries, beyond the limit of a message."""
    for kind in (Kind.SCHEMA, Kind.CONTEXT):
        session = Session()
        pieces = b"".join(bytes(piece) for piece in blob(kind, bytes(3 << 20)))
        reading = answer(session, pieces)
        assert not reading.over
        assert session.end_of(ReadClientData) is None or session.all_of(reading) == SENT


@pytest.mark.parametrize("kind", [messages.Watch, messages.Read])
def test_a_client_has_no_more_watches_and_tokens_than_it_may(
    kind: type[messages.Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netchannel.core.receiving.requests.HELD_LIMIT", 3)
    session = Session()
    world, channel = session.world, session.reader.channel
    answers: list[Any] = []
    errors: list[NetChannelError] = []

    def ask() -> PendingQuestion:
        fields = {"stream": "s"} if kind is messages.Read else {}
        return channel.ask(
            kind,
            lambda answer, now: answers.append(answer),
            lambda error, now: errors.append(error),
            world.now,
            **fields,
        )

    questions = [ask() for _ in range(4)]
    world.run(lambda: len(errors) == 1)
    assert len(answers) == 3
    assert "the limit is 3" in str(errors[0])
    if kind is messages.Watch:
        channel.tell(messages.Unwatch, request=questions[0].number)
    else:
        expiry = world.now + world.timing.token_s
        world.run(lambda: world.now > expiry)
    ask()
    world.run(lambda: len(answers) == 4)
