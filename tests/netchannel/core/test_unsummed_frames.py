"""Where both ends know that there is one connection between them, large frames go without a checksum."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.receiving.requests import RequestControl
from netchannel.core.receiving.sessions import ReceiverControl
from netchannel.core.replay.read_server import ReadServerData
from netchannel.core.states import SenderState
from netchannel.wire.frames import HEADER, HEADER_SIZE, WHOLE_LIMIT, Buffer, Kind
from tests.netchannel.core.replay.test_replay_core import SENT, Session
from tests.support.world import End, World

ONE, OTHER = b"1" * 16, b"2" * 16
BODIES = [bytes(100_000), bytes(WHOLE_LIMIT + 1), b"small", b"too"]

pytestmark = pytest.mark.uvloop


class Heard(World):
    """Keeps what came to the receiver's ends of data connections."""

    def __init__(self, shown: tuple[bytes, bytes]) -> None:
        super().__init__()
        self.shown = shown
        self.said = bytearray()

    def _carry(self, end: End, buffers: list[Buffer]) -> None:
        if isinstance(end.link, ReceiverData):
            self.said += b"".join(buffers)
        super()._carry(end, buffers)


def checksums(said: bytes) -> Iterator[int]:
    """Of each frame with messages."""
    start = 0
    while start < len(said):
        checksum, _, kind, _, _, length, *_ = HEADER.unpack_from(said, start)
        if kind in {Kind.DATA, Kind.PART}:
            yield checksum
        start += HEADER_SIZE + length


def sent(shown: tuple[bytes, bytes]) -> list[int]:
    """The checksums of the frames with messages."""
    world = Heard(shown)
    consumer = world.inbox(world.receiver())
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    world.said.clear()
    for body in BODIES:
        producer.send(body, note=b"n" if body == BODIES[0] else b"")
    world.settle()
    consumer.read()
    assert [bytes(value) for value in consumer.values] == BODIES
    return list(checksums(bytes(world.said)))


def test_the_same_ends_need_no_checksums() -> None:
    """Bodies that are sent from where they are are not read once more to sum them; what is packed has been copied."""
    first, _, *pieces, last = sent((ONE, ONE))
    assert (first, set(pieces)) == (0, {0})
    assert last


@pytest.mark.parametrize("shown", [(ONE, OTHER), (ONE, b""), (b"", ONE), (b"", b"")])
def test_any_other_ends_need_checksums(shown: tuple[bytes, bytes]) -> None:
    assert all(sent(shown))


def test_a_receiver_that_does_not_look_at_ends_is_shown_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReceiverControl, "features", ReceiverControl.features - {"ends"})
    assert all(sent((ONE, ONE)))


@pytest.mark.parametrize(("shown", "vouched"), [((ONE, ONE), True), ((ONE, OTHER), False)])
def test_a_changed_bit_of_a_body_is_found_unless_the_transport_vouches(
    shown: tuple[bytes, bytes], vouched: bool
) -> None:
    """What is said of that on the page of the protocol: there a checksum is not looked at."""
    world = World()
    world.shown = shown
    consumer = world.inbox(world.receiver())
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    data = next(end for end in world.ends if isinstance(end.link, ReceiverData))
    producer.send(b"body" * 10_000)
    producer.channel.seal()
    world._write_now(producer.channel.link)  # type: ignore[arg-type]
    data.inbox[-1] ^= 1
    world.run(lambda: producer.channel.acknowledged == 1)
    consumer.read()
    (body,) = consumer.values
    assert (bytes(body) == b"body" * 10_000) is not vouched
    assert producer.channel.attachments == (1 if vouched else 2)


@pytest.mark.parametrize("shown", [(ONE, ONE), (ONE, OTHER)])
def test_headers_are_checked_everywhere(shown: tuple[bytes, bytes]) -> None:
    world = World()
    world.shown = shown
    consumer = world.inbox(world.receiver())
    producer = world.open(world.sender())
    world.run(lambda: producer.channel.state is SenderState.ATTACHED)
    data = next(end for end in world.ends if isinstance(end.link, ReceiverData))
    producer.send(b"x")
    producer.channel.seal()
    world._write_now(producer.channel.link)  # type: ignore[arg-type]
    data.inbox[20] ^= 1  # of the number of the message
    world.run(lambda: producer.channel.attachments == 2)
    world.settle()
    consumer.read()
    assert consumer.values == [b"x"]


@pytest.mark.parametrize(("shown", "summed"), [((ONE, ONE), False), ((ONE, OTHER), True), ((b"", b""), True)])
def test_who_reads_shows_the_ends_too(shown: tuple[bytes, bytes], summed: bool) -> None:
    session = Session()
    session.world.shown = shown
    reading = session.read()
    assert session.all_of(reading) == SENT
    end = session.end_of(ReadServerData)
    assert end is not None
    assert isinstance(end.link, ReadServerData)
    assert end.link._summed is summed
    assert end.peer.link._parser.summed is summed  # type: ignore[attr-defined]


def test_a_retaining_end_that_does_not_look_at_ends_is_shown_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestControl, "features", frozenset())
    session = Session()
    session.world.shown = (ONE, ONE)
    assert session.all_of(session.read()) == SENT
    end = session.end_of(ReadServerData)
    assert end is not None
    assert isinstance(end.link, ReadServerData)
    assert end.link._summed
