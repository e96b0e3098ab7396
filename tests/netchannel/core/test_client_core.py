"""Asking a receiver: answered once, asked again after a loss, refused, sent on."""

from __future__ import annotations

from typing import Any

import pytest

from netchannel.core.client_core import ClientChannel, ClientCore
from netchannel.core.receiving.requests import UNANSWERED_BYTES, ChannelService, RequestControl
from netchannel.errors import ChannelBroken, ChannelInUse, HandshakeError, NetChannelError
from netchannel.policies import FaultPolicy
from netchannel.wire import messages
from netchannel.wire.envelope import STRANGER_LIMIT
from tests.support.world import World


class Counting(ChannelService):
    """Holds a position for whoever asks, and keeps count."""

    def __init__(self) -> None:
        self.asked_for: list[str] = []
        self.left_by = 0
        self.silent = False
        self.refuses = ""

    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        self.asked_for.append(message.kind)
        if self.refuses:
            client.deny(message, self.refuses, "not now")
        elif isinstance(message, messages.Forget):
            client.deny(message, "held", "somebody has it")
        elif not isinstance(message, messages.Hold):
            return False
        elif not self.silent:
            client.answer(message, stream="s", position=7)
        return True

    def left(self, client: RequestControl, now: float) -> None:
        self.left_by += 1


class Asker:
    def __init__(
        self, world: World, *, fault: FaultPolicy | None = None, secret: bytes | None = None
    ) -> None:
        self.world = world
        self.core = ClientCore("client", world.timing, world.wall, world.random.randbytes, secret)
        world.cores.append(self.core)
        self.channel: ClientChannel = self.core.register("c", "r:1", fault or FaultPolicy(), world.now)
        self.answers: list[Any] = []
        self.errors: list[NetChannelError] = []

    def hold(self, kind: type[messages.Question] = messages.Hold) -> None:
        fields: dict[str, Any] = {"consumer": "me"}
        if kind is messages.Hold:
            fields |= {"holder": "x", "renew": False, "fresh": False}
        self.channel.ask(
            kind,
            lambda message, now: self.answers.append(message),
            lambda error, now: self.errors.append(error),
            self.world.now,
            **fields,
        )

    @property
    def told(self) -> int:
        return len(self.answers) + len(self.errors)


def test_a_question_is_answered_once() -> None:
    world = World()
    asker, receiver = Asker(world), world.receiver()
    receiver.services.offered["c"] = Counting()
    asker.hold()
    world.run(lambda: asker.told == 1)
    assert asker.answers[0].position == 7
    assert not asker.core.questions


def test_a_question_waits_for_the_receiver_and_for_its_channel() -> None:
    world = World()
    asker = Asker(world)
    asker.hold()
    world.run(lambda: world.now > 1001)
    receiver = world.receiver()
    world.run(
        lambda: (
            bool(receiver.services.clients) and any(client.waiting for client in receiver.services.clients)
        )
    )
    receiver.services.offered["c"] = Counting()
    registered = world.now
    receiver.announce("c")
    world.run(lambda: asker.told == 1)
    assert world.now - registered < 0.05


def test_a_question_is_asked_again_after_a_loss() -> None:
    world = World()
    asker, receiver = Asker(world), world.receiver()
    service = receiver.services.offered["c"] = Counting()
    service.silent = True
    asker.hold()
    world.run(lambda: service.asked_for == ["hold"])
    service.silent = False
    world.cut(next(end for end in world.ends if end.link.core is asker.core))
    world.run(lambda: asker.told == 1)
    assert service.asked_for == ["hold", "hold"]
    assert service.left_by == 1


def test_a_refusal_for_good_is_raised_and_others_wait() -> None:
    world = World()
    asker, receiver = Asker(world), world.receiver()
    receiver.services.offered["c"] = Counting()
    asker.hold(messages.Forget)
    world.run(lambda: asker.told == 1)
    assert isinstance(asker.errors[0], ChannelInUse)
    asker.channel.ask(
        messages.Watch, lambda *_: None, lambda error, now: asker.errors.append(error), world.now
    )
    world.run(lambda: asker.told == 2)
    assert "retain_channel" in str(asker.errors[1])


@pytest.mark.parametrize("questions", [1, 4])
def test_questions_that_are_refused_are_asked_again_each_by_itself(questions: int) -> None:
    world = World()
    asker, receiver = Asker(world), world.receiver()
    service = receiver.services.offered["c"] = Counting()
    service.refuses = "full"
    for _ in range(questions):
        asker.hold()
    start = world.now
    most = questions * (1 + 20 / (world.timing.backoff_limit_s / 2))
    world.run(lambda: world.now - start > 20 or len(service.asked_for) > most)
    assert len(service.asked_for) <= most
    service.refuses = ""
    world.run(lambda: asker.told == questions)
    assert len(asker.answers) == questions


def test_a_channel_that_a_member_denies_is_looked_for_at_the_node_once_in_a_while() -> None:
    """However many questions the member refuses, while the node sends them on to it."""
    world = World()
    asker = Asker(world)
    world.receiver(members="unix:/node")
    member = world.receiver("r:2", node="unix:/node")
    member.register("c", **_settings(world))
    world.settle()
    del member.channels["c"]  # and the node has not been told
    for _ in range(4):
        asker.hold()
    start, moved = world.now, []
    asker.channel.on_lost = lambda reason, now: moved.append(reason)
    most = 2 * (1 + 5 / (world.timing.backoff_s / 2))
    world.run(lambda: world.now - start > 5 or len(moved) > most)
    assert 2 < len(moved) <= most


def test_what_is_large_may_come_in_the_same_bytes_as_the_handshake() -> None:
    """From a receiver that is busy: its limit for strangers is over once the client's hello is read."""
    world = World()
    asker = Asker(world)
    downs = []
    asker.channel.on_lost = lambda reason, now: downs.append(reason)
    asker.channel.ask(
        messages.Commit,
        lambda message, now: asker.answers.append(message),
        lambda error, now: asker.errors.append(error),
        world.now,
        application="a",
        epoch=0,
        winners=bytes(STRANGER_LIMIT // 48 * 48 + 48),
        end=False,
    )
    receiver = world.receiver()
    receiver.services.offered["c"] = Counting()
    world.run(lambda: asker.told == 1)
    assert "does not accept groups" in str(asker.errors)
    assert not downs


def test_what_a_client_asks_before_it_is_answered_is_bounded() -> None:
    """The rest waits at the client, and its turn comes."""
    world = World()
    asker, receiver = Asker(world), world.receiver()
    waiting: list[Any] = []

    class Slow(ChannelService):
        def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
            waiting.append(message)
            return True

    receiver.services.offered["c"] = Slow()
    winners = bytes(4_000_032)
    for epoch in range(10):
        asker.channel.ask(
            messages.Commit,
            lambda message, now: asker.answers.append(message),
            lambda error, now: asker.errors.append(error),
            world.now,
            application="a",
            epoch=epoch,
            winners=winners,
            end=False,
        )
    world.settle()
    assert len(waiting) == UNANSWERED_BYTES // 4_000_032
    world.pass_time(10)
    assert len(waiting) == UNANSWERED_BYTES // 4_000_032
    (client,) = receiver.services.clients
    for answered in range(10):
        world.run(lambda answered=answered: len(waiting) > answered)
        client.answer(waiting[answered], fresh=True)
    world.run(lambda: asker.told == 10)
    assert sorted(message.epoch for message in waiting) == list(range(10))
    assert len(asker.answers) == 10


@pytest.mark.parametrize("registered", [False, True])
def test_what_is_told_is_not_answered(registered: bool) -> None:
    """Where the channel does not do that, or is not there, as well."""
    world = World()
    asker, receiver = Asker(world), world.receiver()
    said: list[Any] = []
    asker.channel.peer.answered = lambda message, now: said.append(message)  # type: ignore[method-assign]
    if registered:
        receiver.services.offered["c"] = Counting()
    world.settle()
    asker.channel.tell(messages.Unwatch, request=1)
    asker.channel.tell(messages.Yield, request=0, consumer="me", holder="x")
    world.settle()
    assert not said
    assert not any(client.waiting for client in receiver.services.clients)


def test_a_receiver_that_is_away_is_given_up_by_the_policy() -> None:
    world = World()
    asker = Asker(world, fault=FaultPolicy(retry=3.0))
    asker.hold()
    start = world.now
    world.run(lambda: asker.told == 1)
    assert isinstance(asker.errors[0], ChannelBroken)
    assert 3 <= world.now - start < 4
    assert "connection refused" in str(asker.errors[0])


def test_a_receiver_that_is_away_is_waited_for_where_the_policy_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    asker = Asker(world, fault=FaultPolicy(retry=3.0, on_failure="wait"))
    asker.hold()
    world.pass_time(600)
    (told,) = [text for text in caplog.messages if "still waiting" in text]
    assert told.startswith("channel c at r:1 gave no answer for 3.0 s: ")
    assert "connection refused" in told
    world.receiver().services.offered["c"] = Counting()
    world.run(lambda: asker.told == 1)
    assert asker.errors == []


@pytest.mark.parametrize("retry", [0, 3.0])
def test_a_receiver_without_room_is_waited_for_and_given_up_only_when_it_is_gone(
    retry: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumer stands still: it says so whenever it is asked, so it is not away."""
    world = World()
    receiver = world.receiver()
    service = receiver.services.offered["c"] = Counting()
    service.refuses = "full"
    asker = Asker(world, fault=FaultPolicy(retry=retry))
    for turn in range(2):
        asker.hold()
        world.pass_time(60)
        assert asker.told == turn
        service.refuses = ""
        world.run(lambda turn=turn: asker.told == turn + 1)
        service.refuses = "full"
    assert asker.errors == []
    assert [text for text in caplog.messages if "still waiting" in text] == [
        "channel c at r:1 has no room yet: not now; still waiting"
    ] * 2
    asker.hold()
    world.pass_time(60)
    start = world.now
    world.crash(receiver)
    world.run(lambda: asker.told == 3)
    assert isinstance(asker.errors[0], ChannelBroken)
    assert retry <= world.now - start < retry + 1


def test_another_secret_is_refused_for_good() -> None:
    world = World()
    asker = Asker(world, secret=b"one")
    world.receiver(secret=b"another")
    asker.hold()
    world.run(lambda: asker.told == 1)
    assert isinstance(asker.errors[0], HandshakeError)


def test_a_channel_of_another_process_of_the_node_is_asked_for_there() -> None:
    world = World()
    asker = Asker(world)
    world.receiver(members="unix:/node")
    member = world.receiver("r:2", node="unix:/node")
    member.register("c", **_settings(world))
    member.services.offered["c"] = Counting()
    asker.hold()
    world.run(lambda: asker.told == 1)
    assert asker.channel.peer.address == "r:2"


def test_the_connection_is_closed_after_the_last_client() -> None:
    world = World()
    asker, receiver = Asker(world), world.receiver()
    receiver.services.offered["c"] = Counting()
    asker.hold()
    world.run(lambda: asker.told == 1)
    asker.channel.close(world.now)
    world.run(lambda: not world.ends and not asker.core.peers)
    assert not receiver.services.clients


def _settings(world: World) -> dict[str, Any]:
    from netchannel.policies import BufferPolicy
    from netchannel.wire.codec import make_decoder

    return {
        "codec": "bytes",
        "decoder": make_decoder("bytes", None),
        "explicit": True,
        "resume_from": None,
        "buffer": BufferPolicy(),
        "fault": FaultPolicy(),
        "now": world.now,
    }
