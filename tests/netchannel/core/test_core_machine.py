"""A pair of cores through any order of what can happen to them, against a model that is a list per stream."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from netchannel import BufferPolicy, FaultPolicy, NetChannelError, Position, ProtocolError, Timing
from netchannel.core.control_connection import ControlLink
from netchannel.core.link import Link
from netchannel.core.receiving.data_receiver import ReceiverData
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.queue import ITEM_COST
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.receiving.tombstones import Tombstones
from netchannel.core.sending.outbound import OutboundChannel
from netchannel.core.sending.send_buffer import Record, SendBuffer
from netchannel.core.sending.sender_core import SenderCore
from netchannel.wire.frames import PACK_LIMIT
from tests.netchannel.test_simulator import nothing, without_dedup, without_resending
from tests.support.sizes import examples
from tests.support.stream_model import Receiving, Sending, Stream
from tests.support.world import World

WITHIN_S = 120.0
"""Virtual seconds in which everything gets through once nothing goes wrong any more."""

sendings = st.sampled_from([0, 0, 0, 1])
"""Which of two producers; the second one is a rival, with streams of its own on the same channel."""

STAYS = ("stays",) * 6
"""Most of the time: a run in which somebody is always leaving shows little."""


class Pair(RuleBasedStateMachine):
    """Two senders' processes and a receiver's, which come and go, with wires that are cut at any byte."""

    @initialize(
        seed=st.integers(0, 2**32),
        chunk=st.sampled_from([20, 300, 1 << 16]),
        explicit=st.booleans(),
        drops=st.booleans(),
        max_messages=st.sampled_from([None, None, 1, 20]),
        max_bytes=st.sampled_from([None, 500, 5000]),
        mark=st.sampled_from([300, 3000]),
        retries=st.tuples(*[st.sampled_from(["forever", "forever", 3.0, 0.0])] * 2),
        accepts_new=st.booleans(),
        attached=st.sampled_from([True, True, False]),
    )
    def begin(
        self,
        seed: int,
        chunk: int,
        explicit: bool,
        drops: bool,
        max_messages: int | None,
        max_bytes: int | None,
        mark: int,
        retries: tuple[Any, Any],
        accepts_new: bool,
        attached: bool,
    ) -> None:
        self.world = World(seed, chunk=chunk, timing=Timing(backoff_limit_s=1.0))
        self.drops = drops and not explicit
        self.kept = BufferPolicy(
            max_bytes=max_bytes,
            max_messages=max_messages,
            when_full="drop_oldest" if self.drops else "block",
        )
        self.queue = BufferPolicy(max_bytes=mark)
        self.sender_fault = FaultPolicy(retries[0])
        self.receiver_fault = FaultPolicy(retries[1], accept_new_stream=accepts_new)
        self.largest = 17 * chunk + 1000
        self.senders: list[SenderCore | None] = [None, None]
        self.receiver: ReceiverCore | None = None
        self.sending = [Sending("a"), Sending("b")]
        self.receiving = Receiving(explicit=explicit)
        self.closed_unseen = False  # a consumer closed the channel before a sender came
        self.over: dict[OutboundChannel | InboundChannel, Any] = {}
        if attached:
            self.register(at_position=False)
            self.open(0, anew=True)
            self.world.settle()

    @property
    def streams(self) -> dict[str, Stream]:
        return {stream.name: stream for sending in self.sending for stream in sending.streams}

    # -- both sides come, in any order

    @rule(which=sendings, anew=st.booleans())
    def open(self, which: int, anew: bool) -> None:
        """A producer registers: with a new stream, or to go on with its last one."""
        sending = self.sending[which]
        if sending.producer is not None:
            return
        if self.senders[which] is None:
            self.senders[which] = self.world.sender(f"sender {which} at {self.world.now}")
        if not sending.streams or (anew and sending.stream.ending is None):
            stream, goes_on = sending.begin_stream(), False
        elif sending.stream.over:
            # It may not know that, and send all of it again.
            stream, goes_on = (sending.begin_stream(), False) if anew else (sending.stream, False)
        else:
            stream, goes_on = sending.stream, True
        core = self.senders[which]
        assert core is not None
        sending.begin(
            self.world.open(
                core, stream=stream.name, buffer=self.kept, fault=self.sender_fault, replayable=goes_on
            )
        )

    @precondition(lambda self: self.receiving.consumer is None)
    @rule(at_position=st.booleans())
    def register(self, at_position: bool) -> None:
        """A consumer registers: where the one before was, or wherever the sender is."""
        if self.receiver is None:
            self.receiver = self.world.receiver()
        receiving = self.receiving
        receiving.begins_at = receiving.position if at_position else None
        if receiving.begins_at is not None:  # which says that everything below is done
            stream = self.streams[receiving.begins_at[0]]
            stream.acknowledged = max(stream.acknowledged, receiving.begins_at[1])
        receiving.begin(
            self.world.inbox(
                self.receiver,
                explicit=receiving.explicit,
                resume_from=None if receiving.begins_at is None else Position(*receiving.begins_at),
                buffer=self.queue,
                fault=self.receiver_fault,
            )
        )
        self.closed_unseen = False

    # -- what the producer does

    def _live(self, which: int) -> Sending:
        """A producer that has a channel."""
        live = [sending for sending in self.sending if sending.producer is not None]
        return live[which % len(live)]

    @precondition(lambda self: any(sending.producer for sending in self.sending))
    @rule(which=sendings, count=st.integers(1, 30), size=st.sampled_from([0, 1, 50, 3, 17]))
    def send(self, which: int, count: int, size: int) -> None:
        sending = self._live(which)
        large = size in (3, 17)
        for _ in range(1 if large else count):
            if not sending.push() or sending.stream.ending is not None:
                return
            value = sending.stream.next_value(size * self.world.chunk if large else size)
            if sending.send(value):
                sending.stream.sent.append(value)

    @precondition(lambda self: any(sending.producer for sending in self.sending))
    @rule(
        which=sendings,
        how=st.sampled_from([*STAYS, "end", "end", "abort", "detach", "give up", "die"]),
        successor=st.booleans(),
    )
    def leave_producer(self, which: int, how: str, successor: bool) -> None:
        """The producer closes, aborts, leaves the stream to a successor, runs out of patience, or is killed."""
        sending = self._live(which)
        channel = sending.channel
        if channel is None or channel.terminal or how in STAYS:
            return
        match how:
            case "end" | "abort":
                if sending.stream.ending is None:
                    sending.stream.ending = "" if how == "end" else "the sensor is gone"
                sending.push()
            case "detach":
                channel.detach(self.world.now)
            case "give up":
                sending.gave_up = True
                channel.give_up("close(grace=0) ran out", self.world.now)
            case _:
                which = self.sending.index(sending)
                sending.producer, self.senders[which] = None, None
                self.world.crash(channel.core)
        self.look()
        if successor:
            self.open(self.sending.index(sending), anew=False)

    # -- what the consumer does

    @precondition(lambda self: self.receiving.consumer is not None)
    @rule(limit=st.integers(1, 20), cancelled=st.booleans())
    def receive(self, limit: int, cancelled: bool) -> None:
        channel = self.receiving.channel
        assert channel is not None
        if cancelled and channel.queue:
            item = channel.take()
            assert item is not None
            channel.put_back(item)
        for _ in range(limit):
            if not self._take(channel):
                return

    def _take(self, channel: InboundChannel) -> bool:
        """Take one message; whether there was one."""
        receiving = self.receiving
        stream = self.streams.get(channel.stream or "")
        try:
            item = channel.take()
        except NetChannelError as error:
            patient = self.receiver_fault.retry == "forever"
            receiving.hear(error, self.streams, patient=patient, lossy=self.drops)
            if channel.terminal:
                receiving.consumer = None
            return False
        if item is None:
            channel.waiting = 1
            channel.check_starved()
            return False
        channel.waiting = 0
        assert stream is not None
        receiving.take(item, stream, accepts_new=self._accepts_new(), lossy=self.drops)
        return True

    def _accepts_new(self) -> bool:
        return self.receiver_fault.accept_new_stream

    @precondition(lambda self: self.receiving.explicit and self.receiving.reading is not None)
    @rule(but=st.integers(0, 5))
    def acknowledge(self, but: int) -> None:
        """Everything that was read, but a few."""
        receiving = self.receiving
        channel, stream = receiving.channel, receiving.reading
        if channel is None or channel.stream != (stream and stream.name) or channel.terminal:
            return
        assert stream is not None
        upto = max(0, receiving.next - but)
        if self._accepts_new():  # it may have been through another stream, unseen, and begin this one again
            upto = min(upto, channel.expected or 0)
        channel.ack(upto, self.world.now)
        stream.acknowledged = max(stream.acknowledged, upto)

    @precondition(lambda self: self.receiving.consumer is not None)
    @rule(how=st.sampled_from([*STAYS, "detach", "close", "die", "die"]), successor=st.booleans())
    def leave_consumer(self, how: str, successor: bool) -> None:
        """The consumer leaves the stream to a successor, wants no more of it, or is killed."""
        receiving, channel = self.receiving, self.receiving.channel
        assert channel is not None
        if how in STAYS:
            return
        stream = self.streams.get(channel.stream or "")
        if how == "die":
            # What was acknowledged at receipt, or ended in a failure, is not sent to a successor.
            if stream is not None and (stream.ending or not receiving.explicit):
                stream.lossy = True
            assert self.receiver is not None
            core, self.receiver, receiving.consumer = self.receiver, None, None
            self.world.crash(core)
            for each in self.streams.values():
                each.buried = False
            if successor:
                self.register(at_position=True)
        elif not channel.terminal:
            receiving.left = True
            if how == "detach":
                channel.detach(self.world.now)
                return
            if stream is not None:
                stream.closed = stream.lossy = stream.buried = True
            self.closed_unseen = stream is None
            channel.close("enough", self.world.now)

    @precondition(lambda self: self.receiving.channel is not None and self.receiving.channel.queue)
    @rule(limit=st.integers(1, 5))
    def restart_consumer(self, limit: int) -> None:
        """It is killed after a few messages, and its successor goes on behind these."""
        self.receive(limit, cancelled=False)
        if self.receiving.consumer is not None:
            self.leave_consumer("die", successor=True)

    # -- what the network does, and time

    @precondition(lambda self: self.world.ends)
    @rule(control=st.booleans(), which=st.integers(0, 3), who=st.sampled_from(["both", "sender", "receiver"]))
    def cut(self, control: bool, which: int, who: str) -> None:
        """A connection is reset, and both ends see it, or one of them."""
        wires = self.world.wires(control=control)
        if not wires:
            return
        end = wires[which % len(wires)]
        if who == "both":
            self.world.cut(end)
            return
        end = end if who == "sender" else end.peer
        if not end.over:
            end.over = True
            self.world.ends.remove(end)
            end.link.lost("reset", self.world.now)

    @rule(steps=st.sampled_from([1, 2, 5, 15, 50, 150]))
    def deliver(self, steps: int) -> None:
        """Some bytes arrive."""
        for _ in range(steps):
            self.world.step()

    @rule(
        seconds=st.sampled_from([0.01, 0.3, 2.0, 12.0]), stalled=st.sampled_from([None, None, None, 0, 1, 2])
    )
    def pass_time(self, seconds: float, stalled: int | None) -> None:
        """Time passes; a process may stand still meanwhile."""
        core = None if stalled is None else [*self.senders, self.receiver][stalled]
        if core is not None:
            self.world.stalled.add(core)
        self.world.pass_time(seconds)
        self.world.stalled.clear()

    # -- what must be true at any time

    @invariant()
    def look(self) -> None:
        for sending in self.sending:
            channel = sending.channel
            if channel is not None:
                if self.closed_unseen:
                    sending.stream.closed = sending.stream.lossy = True
                self._check_sender(channel)
                self._check_over(channel)
            sending.look(patient=self.sender_fault.retry == "forever")
        channel = self.receiving.channel
        if channel is not None:
            self._check_receiver(channel)
            self._check_over(channel)
        for each, (state, error) in self.over.items():
            assert (each.state, each.error) == (state, error)

    def _check_over(self, channel: OutboundChannel | InboundChannel) -> None:
        """A terminal state stays, and waits for nothing."""
        if not channel.terminal:
            return
        self.over.setdefault(channel, (channel.state, channel.error))
        if isinstance(channel, OutboundChannel):
            timers = [channel.retry, channel._retries._timer]
            assert (channel.kept_bytes, channel.link) == (0, None)
        else:
            timers = [channel._retries._timer]
            assert (channel.link, channel.session) == (None, None)
        assert [timer for timer in timers if timer is not None and timer.action is not None] == []

    def _check_sender(self, channel: OutboundChannel) -> None:
        counters = (channel.acknowledged, channel.received, channel.sent, channel.head)
        assert list(counters) == sorted(counters), counters
        self._check_send_buffer(channel)
        stream = self.streams[channel.stream]
        consumer = self.receiving.channel
        if consumer is not None and consumer.stream == channel.stream:
            stream.received = max(stream.received, consumer.expected or 0)
        if channel.terminal:
            return
        assert channel.received <= stream.received, "nobody has received that"
        if self.receiving.explicit:
            assert channel.acknowledged <= stream.acknowledged, "nobody has acknowledged that"
        kept = channel.head - channel.kept_from - channel.send_buffer.gaps
        policy = self.kept
        assert policy.max_messages is None or kept <= policy.max_messages
        assert policy.max_bytes is None or channel.kept_bytes <= policy.max_bytes or kept == 1

    def _check_send_buffer(self, channel: OutboundChannel) -> None:
        """Everything from the first message that is not acknowledged is there, once and in order."""
        if channel.terminal:
            return
        send_buffer: SendBuffer = channel.send_buffer
        records = [*send_buffer.received, *send_buffer.in_flight, *send_buffer.unsent]
        assert all(isinstance(record, Record) for record in records)
        assert sum(record.size for record in records if isinstance(record, Record)) == send_buffer.memory
        places = [channel.kept_from]
        for record in records:
            assert record.first <= places[-1] < record.end if len(places) == 1 else record.first == places[-1]
            places.append(record.end)
        assert places[-1] == channel.head - len(channel.packer.bodies)

    def _check_receiver(self, channel: InboundChannel) -> None:
        queue = channel.queue
        assert channel.acknowledged <= (channel.expected or 0)
        assert queue.waiting == sum(len(chunk.bodies) for chunk in queue._chunks)
        assert queue.cost == sum(chunk.size + ITEM_COST * len(chunk.bodies) for chunk in queue._chunks)
        assert len(queue) - queue.waiting == length_hint(queue.ready) <= len(queue.chunk.bodies)
        assert self.queue.max_bytes is not None
        # What a read brings may be above the mark: a packed frame, or a large message; and one may be put back.
        above = self.world.chunk + max(PACK_LIMIT, self.largest) + self.largest
        assert queue.cost - ITEM_COST * queue.waiting <= self.queue.max_bytes + above

    # -- and in the end

    def teardown(self) -> None:
        """With a whole network and both sides present everything gets through, and nothing is left."""
        if not hasattr(self, "world"):
            return
        # Whoever has not seen a reset sees it now; without this a data connection with nothing on its way may wait.
        for wire in self.world.wires(control=False):
            if wire.peer.over:
                self.world.cut(wire)
        end = self.world.now + WITHIN_S
        while not self._everything_is_over():
            assert self.world.now < end, f"not through within {WITHIN_S} virtual seconds: {self._where()}"
            self._go_on()
        for stream in self.streams.values():
            if stream.over and not (stream.lossy or self.drops):
                assert stream.given == set(range(len(stream.sent)))
        self._leave_nothing()

    def _where(self) -> list[str]:
        """Of all channels, for the one who looks into it."""
        channels = [self.receiving.channel, *[sending.channel for sending in self.sending]]
        return [f"{c.state} on stream {c.stream}: {c.error}" for c in channels if c is not None]

    def _everything_is_over(self) -> bool:
        return (
            all(
                not sending.streams or (sending.stream.over and sending.producer is None)
                for sending in self.sending
            )
            and self._consumer_is_over()
        )

    def _consumer_is_over(self) -> bool:
        channel = self.receiving.channel
        return channel is None or not (channel.queue or channel.ended is not None or channel.terminal)

    def _go_on(self) -> None:
        for which, sending in enumerate(self.sending):
            if sending.producer is None and sending.streams and not sending.stream.over:
                self.open(which, anew=False)
            if sending.producer is not None:
                if sending.stream.ending is None:
                    sending.stream.ending = ""
                sending.push()
        if self.receiving.consumer is None:
            self.register(at_position=True)
        self.world.pass_time(0.5)
        while (channel := self.receiving.channel) is not None and self._take(channel):
            self.world.settle()
        if self.receiving.explicit and self.receiving.reading is not None:
            self.acknowledge(0)
        self.look()

    def _leave_nothing(self) -> None:
        """No connection and no deadline outlives the last channel for long."""
        channel = self.receiving.channel
        if channel is not None:
            channel.detach(self.world.now)
        timing = self.world.timing
        self.world.pass_time(timing.idle_s + timing.leave_s + timing.dead_after_s + timing.token_s + 2.0)
        assert self.world.ends == []
        for core in self.world.cores:
            assert core.timers.next() is None
            if isinstance(core, SenderCore):
                assert core.peers == {}
            elif isinstance(core, ReceiverCore):
                found = core.connections
                left = (
                    core.channels,
                    core.sessions,
                    found.links,
                    found.silent,
                    found.unproven,
                    found.farewells,
                )
                assert not any(left), left


def no_violation(link: Link, error: ProtocolError, now: float) -> None:
    """Nobody changes a bit here: what a core says, the other understands."""
    raise AssertionError(f"{link.core.name} says that {link.remote} broke the protocol: {error}") from error


@pytest.fixture(autouse=True)
def cores_understand_each_other() -> Iterator[None]:
    with (
        mock.patch.object(Link, "violated", no_violation),
        mock.patch.object(ControlLink, "violated", no_violation),
    ):
        yield


def explore(examples: int, *, shrinks: bool = True) -> None:
    """Run the machine. Always the same examples, so that a build does not fail by chance."""
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    run_state_machine_as_test(
        Pair,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            derandomize=True,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_order_of_events_keeps_every_promise() -> None:
    """CH-SEQ-2, CH-SEQ-3, CH-FLT-1, CH-FLT-3, CH-END-4: nothing lost, doubled or reordered, and nothing left."""
    explore(examples(500))


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (SendBuffer, "next_record", without_resending),
        (ReceiverData, "supersede", nothing),
        (Tombstones, "bury", nothing),
        (OutboundChannel, "room", lambda channel, size: channel.placed),
    ],
    ids=["retain until acknowledged", "fencing", "tombstone", "bound of the buffer"],
)
def test_the_machine_notices_what_is_missing(where: Any, name: str, instead: Any) -> None:
    """Negative controls: without the safeguard an order of events is found that breaks a promise."""
    with mock.patch.object(where, name, instead), pytest.raises((AssertionError, KeyError)):
        explore(2000, shrinks=False)


def restarts_in_the_middle_of_a_frame() -> None:
    """One run of the machine, in which some messages come twice."""
    machine = Pair()
    machine.begin(
        seed=1,
        chunk=300,
        explicit=True,
        drops=False,
        max_messages=None,
        max_bytes=None,
        mark=3000,
        retries=("forever", "forever"),
        accepts_new=False,
        attached=True,
    )
    machine.send(0, 10, 1)
    machine.pass_time(0.3, None)
    machine.restart_consumer(3)
    machine.teardown()


def test_the_machine_notices_messages_that_come_twice() -> None:
    """The same for dedup: few orders of events need it, so that one is given."""
    restarts_in_the_middle_of_a_frame()
    with (
        mock.patch.object(InboundChannel, "deliver", without_dedup),
        pytest.raises(AssertionError, match="where 3 was due"),
    ):
        restarts_in_the_middle_of_a_frame()
