"""A stream that is kept, its sender and its readers, in a world of their own, through faults drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

from netchannel.core.client_core import ClientCore
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.replay.read_client import RangeRead, ReadClient
from netchannel.core.replay.retained_inbound import RetainedInbound
from netchannel.errors import ChannelInUse, ConsumerFenced, NetChannelError, PositionLost
from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy
from netchannel.storage.openers import HistoryOpener
from netchannel.wire import messages
from netchannel.wire.codec import make_decoder
from netchannel.wire.frames import FRAME_LIMIT, PACK_LIMIT
from tests.support.simulated_files import Crash, SimulatedFiles
from tests.support.world import World

LEASE_S = 3.0


class Violation(AssertionError):
    """A promise was broken."""


def body_of(number: int, largest: int) -> bytes:
    """Message ``number``: most are small, some have a frame of their own, a few go in parts."""
    size = {0: 60_000, 7: 0, 8: 5_000, 13: FRAME_LIMIT * 5 // 4}.get(number % 16, number % 11 * 9)
    return b"%d " % number + bytes(min(size, largest))


class Follower:
    """A process that reads under a consumer's name, and checks all that it gets."""

    def __init__(self, play: Play, name: str, holder: str) -> None:
        self.play = play
        self.name = name
        self.holder = holder
        self.position: int | None = None  # everything below is done
        self.acknowledged = 0
        self.heads: messages.Heads | None = None
        self.reading: RangeRead | None = None
        self.core = ClientCore(f"client {holder}", play.world.timing, play.world.wall, play.draw.randbytes)
        play.world.cores.append(self.core)
        self.channel = self.core.register("c", "r:1", FaultPolicy(), play.world.now)
        self.channel.on_lost = self.lost
        self.reader = ReadClient(self.channel, lambda stream: make_decoder("bytes", None), 1 << 30)
        self.ask(messages.Watch, self.pushed)
        self.hold(renew=False)

    def ask(self, kind: type[messages.Question], answered: Any, **fields: Any) -> None:
        def failed(error: NetChannelError, now: float) -> None:
            if isinstance(error, ChannelInUse | ConsumerFenced):
                self.position = None
                self.play.world.timers_of(self.core, 0.5, lambda _: self.hold(renew=False))
            else:
                raise Violation(f"{self.holder} asked {kind.kind!r} and got {error!r}")

        self.channel.ask(kind, answered, failed, self.play.world.now, **fields)

    def hold(self, *, renew: bool) -> None:
        if self.core in self.play.world.cores:
            self.ask(
                messages.Hold, self.held, consumer=self.name, holder=self.holder, renew=renew, fresh=False
            )

    def lost(self, reason: str, now: float) -> None:
        self.reader.control_lost()
        if self.position is not None:
            self.hold(renew=True)

    def pushed(self, message: messages.Heads, now: float) -> None:
        before = self.heads
        if before is not None and message.head < before.head and message.stream == before.stream:
            raise Violation(f"the head went from {before['head']} back to {message['head']}")
        self.heads = message

    def held(self, message: messages.Held, now: float) -> None:
        position = message.position
        known = self.play.done[self.name]
        if not known.acknowledged <= position <= known.read:
            raise Violation(
                f"{self.name} is at {position}, acknowledged {known.acknowledged}, read {known.read}"
            )
        if self.position is None:
            self.position = position

    def act(self) -> None:
        """Read on, check, acknowledge."""
        heads, known = self.heads, self.play.done[self.name]
        if not self.play.begun or self.position is None or heads is None or not heads.stream:
            return
        if self.reading is None and heads.head > self.position:
            until = self.play.draw.randint(self.position + 1, heads.head)
            self.reading = self.reader.read(heads.stream, self.position, until, self.play.world.now)
        if self.reading is None:
            return
        reading = self.reading
        try:
            chunks = reading.take()
        except PositionLost:
            # Somebody else has the name, and was further.
            self.reading, self.position = None, None
            self.hold(renew=False)
            return
        number = self.play.reading_at(self, chunks)
        if number is not None:
            known.read = max(known.read, number)
            self.position = number
            self.acknowledge(number)
        if reading.complete:
            self.reading = None

    def acknowledge(self, upto: int) -> None:
        def acknowledged(message: messages.Acknowledged, now: float) -> None:
            known = self.play.done[self.name]
            if message.position < upto:
                raise Violation(f"{upto} was acknowledged, and it is {message['position']}")
            known.acknowledged = max(known.acknowledged, upto)

        assert self.heads is not None
        fields = {
            "consumer": self.name,
            "holder": self.holder,
            "stream": self.heads.stream,
            "upto": upto,
        }
        self.ask(messages.Acknowledge, acknowledged, **fields)


class Known:
    """What has been seen under a consumer's name, whoever held it."""

    def __init__(self) -> None:
        self.read = 0
        self.acknowledged = 0


class PlayWorld(World):
    def timers_of(self, core: Any, seconds: float, action: Any) -> None:
        core.timers.at(self.now + seconds, action)


class Play:
    """One run: a sender, a retainer, consumers ``a`` and ``b``."""

    def __init__(self, seed: int, *, small_disk: bool = False) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        self.world = PlayWorld(seed, chunk=draw.choice([200, 5_000, 1 << 17]))
        self.files = SimulatedFiles(
            seed, capacity=max(PACK_LIMIT, len(self.body(13))) if small_disk else None
        )
        self.disk = draw.random() < 0.7 or small_disk
        self.policy = RetainPolicy(
            max_bytes=draw.choice([20_000, 300_000, 1 << 30]),
            directory="/kept" if self.disk else None,
            lease_s=LEASE_S,
        )
        self.count = draw.choice([0, 1, 60, 200])
        self.fails = draw.random() < 0.2
        self.sender = self.world.sender()
        self.producer = self.world.open(
            self.sender, buffer=BufferPolicy(max_bytes=draw.choice([2_000, 200_000, 1 << 24]))
        )
        self.sent = 0
        self.met: set[str] = set()
        """The faults, with the state of the producer's channel at each."""
        self.core: ReceiverCore
        self.retainer: RetainedInbound
        self.restarts = 0
        self.start_keeper()
        self.done = {"a": Known(), "b": Known()}
        self.begun = False  # both names are known, so that nothing is freed that one of them wants
        self.followers = {"a": Follower(self, "a", "a0"), "b": Follower(self, "b", "b0")}

    def body(self, number: int) -> bytes:
        """Small ones only, where a wire carries few bytes at a time."""
        return body_of(number, self.world.chunk * 20)

    # -- the retainer

    def start_keeper(self) -> None:
        self.core = self.world.receiver()
        histories = HistoryOpener(self.core, "c", "bytes", self.policy, self.files)
        self.retainer = RetainedInbound(
            self.core,
            "c",
            "bytes",
            self.policy,
            make_decoder=lambda: make_decoder("bytes", None),
            open_history=histories.replace,
            buffer=BufferPolicy(max_bytes=self.draw.choice([3_000, 100_000])),
            fault=FaultPolicy(),
        )
        self.retainer.start(histories.kept(), self.world.now)

    def kill_keeper(self, *, power: bool) -> None:
        self.restarts += 1
        self.world.crash(self.core)
        self.world.jobs = [(core, job) for core, job in self.world.jobs if core is not self.core]
        if power:
            self.files.power_on()
        else:
            self.files.kill()
        self.start_keeper()

    # -- what is promised

    def reading_at(self, follower: Follower, chunks: list[Any]) -> int | None:
        """Check what came; the number behind it."""
        number = None
        for chunk in chunks:
            for place, body in enumerate(chunk.bodies):
                number = chunk.first + place
                if bytes(body) != self.body(number):
                    raise Violation(f"{follower.holder} read something else as message {number}")
                if number >= self.sent:
                    raise Violation(f"{follower.holder} read message {number}, {self.sent} were sent")
        return None if number is None else number + 1

    def check(self) -> None:
        history = self.retainer.history
        if history is None:
            return
        lowest = min(known.acknowledged for known in self.done.values())
        promised = min(known.read for known in self.done.values())
        if history.oldest > promised:
            raise Violation(f"what is kept begins at {history.oldest}, the last consumer is at {promised}")
        # Where nothing is kept, one frame is taken, whatever it has.
        bound = max(self.policy.max_bytes, 2 * PACK_LIMIT, len(self.body(13)) + 10)
        if history.index.kept > bound:
            raise Violation(f"{history.index.kept} bytes are kept, {self.policy.max_bytes} may be")
        if history.head < lowest:
            raise Violation(f"{lowest} were acknowledged, {history.head} are kept")

    # -- the run

    def produce(self) -> None:
        channel = self.producer.channel
        if not self.begun and self.sent:
            return
        while self.sent < self.count and channel.room(len(self.body(self.sent))) and channel.placed:
            self.sent += 1  # before it can be seen
            self.producer.send(self.body(self.sent - 1))
            if not self.begun:
                return
        if self.sent == self.count and channel.closing is None:
            channel.finish("out of ink" if self.fails else None)

    @property
    def over(self) -> bool:
        return self.producer.channel.terminal and all(
            known.acknowledged == self.count for known in self.done.values()
        )

    def step(self) -> None:
        busy = True
        try:
            busy = self.world.step()
        except Crash:
            self.kill_keeper(power=True)
        self.produce()
        for follower in self.followers.values():
            follower.act()
        if all(follower.position is not None for follower in self.followers.values()):
            self.begun = True
        self.check()
        if not busy:
            self.world._pass(self.world.now + 0.2)

    def fault(self) -> None:
        draw, world = self.draw, self.world
        kind = draw.choice(["cut", "cut", "cut", "reader", "retainer", "crash", "stall"])
        self.met.add(f"{kind} while {self.producer.channel.state}")
        match kind:
            case "cut" if world.ends:
                world.cut(draw.choice(world.ends))
            case "reader":
                name = draw.choice("ab")
                world.crash(self.followers[name].core)
                holder = draw.choice([self.followers[name].holder, f"{name}{draw.randrange(3)}"])
                self.followers[name] = Follower(self, name, holder)
            case "retainer" if self.disk:
                self.kill_keeper(power=draw.random() < 0.5)
            case "crash" if self.disk:
                self.files.crash_at = draw.randrange(30)
            case "stall":
                name = draw.choice("ab")
                world.stalled ^= {self.followers[name].core}

    def run(self, steps: int = 60_000) -> None:
        faults = self.draw.choice([0, 5, 40])
        while not self.begun:
            self.step()
        due = sorted(self.draw.randrange(3_000) for _ in range(faults))
        for step in range(steps):
            while due and due[0] <= step:
                del due[0]
                self.fault()
            if not due:
                self.world.stalled.clear()
            self.step()
            if not due and self.over:
                break
        else:
            raise Violation(
                f"not over: sent {self.sent} of {self.count}, "
                f"{[(known.read, known.acknowledged) for known in self.done.values()]}"
            )
        self.check_end()

    def check_end(self) -> None:
        world = self.world
        self.files.crash_at = None
        failure = "out of ink" if self.fails else None

        def told() -> bool:
            heads = self.followers["a"].heads
            return heads is not None and heads.ended and heads.oldest == self.count

        world.run(told)
        heads = self.followers["a"].heads
        assert heads is not None
        size = sum(len(self.body(number)) for number in range(self.count))
        found = [heads.head, heads.rows, heads.bytes, heads.failure]
        if found != [self.count, self.count, size, failure]:
            raise Violation(
                f"the heads are {found} at the end, not {[self.count, self.count, size, failure]}"
            )


def play(seed: int) -> None:
    """A run; raises Violation where it breaks a promise."""
    Play(seed).run()
