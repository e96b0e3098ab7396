"""Calls, as a receiver's connection of a client sees them: whatever that client says."""

from __future__ import annotations

from typing import Any

import pytest

from netchannel.core.calls import callees
from netchannel.core.calls.bodies import SMALL
from netchannel.core.calls.callees import BODIES_LIMIT, CALLS_LIMIT
from netchannel.core.control_connection import FOR_REQUESTS, greeting
from netchannel.core.link import Closing, Link
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.receiving.requests import RequestControl
from netchannel.wire.declarations import Message
from netchannel.wire.envelope import MessageParser, encode
from netchannel.wire.messages import CALL_LIMIT, PIECE_LIMIT, Call, CallPiece, Cancel, Hello
from tests.support.calling import Called
from tests.support.forged import proof
from tests.support.world import World


class Stranger:
    """A client that says what it likes, and hears what is said."""

    def __init__(self, world: World, core: ReceiverCore) -> None:
        self.world = world
        self.link: Link = core.accept("somebody")
        self.link.connected(world.now)
        self._parser = MessageParser()
        self.heard: list[Any] = []
        hello = Hello(version=1, node="n", dead_after_ms=5000, nonce=bytes(16), secret=False)
        self._say(greeting(FOR_REQUESTS) + encode(hello))
        written = b"".join(bytes(each) for each in self.link.output())
        self._say(proof(hello.nonce, written, role="client"))
        self.listen()

    def _say(self, said: bytes) -> None:
        while said:
            buffer = self.link.get_buffer(len(said))
            size = min(len(said), len(buffer))
            buffer[:size] = said[:size]
            self.link.received(size, self.world.now)
            self.link, said = self.link.replacement or self.link, said[size:]

    def say(self, *messages: Message) -> list[Any]:
        """What is answered."""
        self._say(b"".join(map(encode, messages)))
        return self.listen()

    def listen(self) -> list[Any]:
        """What has been said since."""
        heard: list[Any] = []
        while buffers := self.link.output():
            written = b"".join(bytes(each) for each in buffers)
            heard += [each for each in self._parser.received(memoryview(written)) if each.kind != "ping"]
        self.heard += heard
        return heard

    @property
    def calls(self) -> callees.IncomingCalls:
        assert isinstance(self.link, RequestControl)
        return self.link.calls


def call(request: int, body: bytes = b"x", service: str = "s", size: int | None = None) -> Call:
    return Call(service=service, request=request, size=len(body) if size is None else size, body=body)


def flooded(world: World) -> tuple[Called, Stranger, list[Any]]:
    """A client that asks more than it may."""
    receiver = world.receiver()
    service, stranger = Called(receiver, silent=True), Stranger(world, receiver)
    return service, stranger, stranger.say(*(call(number) for number in range(2 * CALLS_LIMIT)))


def test_no_more_calls_are_worked_on_than_a_connection_may_have() -> None:
    """Of a client that does not count: the others are refused for now, and none of them is kept."""
    service, stranger, heard = flooded(World())
    assert service.most == CALLS_LIMIT
    assert [each.code for each in heard] == ["busy"] * CALLS_LIMIT
    assert stranger.calls.unanswered == CALLS_LIMIT
    service.answer_all()
    assert len(stranger.listen()) == CALLS_LIMIT
    assert stranger.calls.unanswered == 0


def test_the_test_above_finds_a_receiver_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control."""
    monkeypatch.setattr(callees, "CALLS_LIMIT", 1 << 30)
    service, _, _ = flooded(World())
    assert service.most > CALLS_LIMIT


def test_no_more_bytes_are_taken_than_a_connection_may_have() -> None:
    """By what is claimed, before it has come; small ones are taken all the same."""
    world = World()
    receiver = world.receiver()
    stranger = Stranger(world, receiver)
    Called(receiver, silent=True)
    heard = stranger.say(call(1, size=BODIES_LIMIT), call(2, size=SMALL + 1), CallPiece(request=2, body=b"?"))
    assert [(each.request, each.code) for each in heard] == [(2, "busy")]
    assert stranger.say(call(3, bytes(SMALL))) == []
    assert stranger.calls.unanswered == 2
    assert f"{BODIES_LIMIT}" in heard[0].message


def test_no_call_is_begun_while_too_much_waits_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read what it asks for costs the memory of its last answers, and no more."""
    monkeypatch.setattr(callees, "UNSENT_LIMIT", 4 * PIECE_LIMIT)
    world = World()
    receiver = world.receiver()
    stranger = Stranger(world, receiver)
    begun = []

    def begin(each: callees.IncomingCall) -> None:
        begun.append(each)
        each.answer(bytes(2 * PIECE_LIMIT))

    receiver.provide(callees.Callee("s", begin))
    stranger.link.writable = False
    stranger._say(b"".join(encode(call(number)) for number in range(20)))
    assert len(begun) == 3
    assert stranger.calls.pieces.bytes == 6 * PIECE_LIMIT
    stranger.link.writable = True
    heard = stranger.listen()
    assert len(begun) == 20
    assert sum(len(each.body) for each in heard) == 20 * 2 * PIECE_LIMIT
    assert stranger.calls.unanswered == 0


def test_calls_that_come_and_go_leave_nothing_while_no_turn_is_taken() -> None:
    world = World()
    receiver = world.receiver()
    stranger = Stranger(world, receiver)
    receiver.provide(callees.Callee("s", lambda each: each.answer(bytes(CALL_LIMIT))))
    stranger.link.writable = False
    for number in range(0, 1000, 2):
        stranger._say(encode(call(number)) + encode(call(number + 1)) + encode(Cancel(request=number + 1)))
    assert stranger.calls.unanswered <= 502
    assert len(stranger.calls._turns) <= 500


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([call(1), call(1)], "sent a new call with the number 1 of an unanswered call"),
        ([call(1), CallPiece(request=1, body=b"y")], "sent more bytes for call 1 than the announced 1"),
        (
            [call(1, size=2), CallPiece(request=1, body=b"yz")],
            "a body of 2 bytes arrived in pieces of 3",
        ),
    ],
    ids=str,
)
def test_calls_against_the_rules_end_the_connection(said: list[Message], why: str) -> None:
    world = World()
    receiver = world.receiver()
    Called(receiver, silent=True)
    stranger = Stranger(world, receiver)
    (error,) = stranger.say(*said)
    assert error.kind == "error"
    assert why in error.message
    assert not error.permanent
    assert stranger.link.closing is Closing.FLUSH


def test_what_comes_for_calls_that_nobody_knows_is_passed_over() -> None:
    """A piece of what was refused, and a cancel that meets the answer."""
    world = World()
    receiver = world.receiver()
    stranger = Stranger(world, receiver)
    (denied,) = stranger.say(
        call(1, size=2), CallPiece(request=1, body=b"y"), Cancel(request=1), Cancel(request=9)
    )
    assert (denied.code, denied.channel, denied.request) == ("unregistered", "s", 1)
    Called(receiver)
    available, answer = stranger.say(call(2))
    assert (available.kind, available.service) == ("available", "s")
    assert (answer.kind, answer.request, answer.body) == ("returned", 2, b"x")


def test_a_cancelled_call_is_answered_once() -> None:
    """While its body comes, while it is worked on, while its answer is sent."""
    world = World()
    receiver = world.receiver()
    service, stranger = Called(receiver, silent=True), Stranger(world, receiver)
    heard = stranger.say(call(1, size=2), Cancel(request=1), CallPiece(request=1, body=b"y"))
    assert [(each.request, each.code) for each in heard] == [(1, "cancelled")]
    assert stranger.say(call(2), Cancel(request=2)) == []
    (work,) = service.work
    assert work.stopped_by is not None
    work.refuse(*work.stopped_by)
    assert [(each.request, each.code) for each in stranger.listen()] == [(2, "cancelled")]
    service.work.clear()
    stranger.say(call(3))
    service.work[0].answer(bytes(3 * PIECE_LIMIT))
    assert len(stranger.link.output()) == 1
    stranger._say(encode(Cancel(request=3)))
    assert [each.kind for each in stranger.listen()] == ["deny"]
    assert stranger.calls.unanswered == 0
    assert stranger.calls.pieces.bytes == 0


def test_a_connection_that_is_gone_leaves_no_work_behind() -> None:
    world = World()
    receiver = world.receiver()
    service, stranger = Called(receiver, silent=True), Stranger(world, receiver)
    stranger.say(call(1), call(2, size=2), call(3, service="nobody's"))
    stranger.link.lost("reset", world.now)
    assert service.stopped == 1
    assert not service.callee.calls
    service.work[0].answer(b"nobody hears it")
    assert receiver.callees.waitlist._waiting == {}
