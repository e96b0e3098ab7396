"""One run: processes, faults and applications, until everything is delivered."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from unittest.mock import patch

from netchannel import Timing
from netchannel.core.receiving import inbound
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.sending import data_sender, outbound, packer
from netchannel.core.sending.lender import GRAIN
from netchannel.core.sending.sender_core import SenderCore
from netchannel.core.states import RECEIVER_TABLE, SENDER_TABLE
from tests.support.simulated_files import Crash, SimulatedFiles
from tests.support.world import End

from .applications import Receiving, Sending
from .network import FaultyWorld
from .oracle import Questions, Violation
from .plans import Shared, draw_plan

FAULTS = 6
MESSAGES = 220
TURNS = 60_000
"""A run that is not through after so many turns hangs."""
NODE = "unix:node"


@dataclass
class Report:
    """What a run met; ``digest`` is equal for runs that did the same."""

    seed: int
    digest: str = ""
    delivered: int = 0
    faults: int = 0
    virtual_s: float = 0.0
    met: Counter[str] = field(default_factory=Counter)
    transitions: set[tuple[str, str, str]] = field(default_factory=set)


class Simulation:
    """A sender's process, a receiver's, and what goes wrong between them, all drawn from ``seed``.

    In every fourth run the receiver is a member of a node, of which the sender knows the address of another process.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.report = Report(seed)
        self.world = FaultyWorld(seed, Timing(backoff_limit_s=1.0))
        self.world.chunk = self.random.choice([50, 1000, 1 << 16])
        self.world.latency_s = self.random.choice([0.0, 0.0, 0.0, 0.1, 2.0])
        self.files = SimulatedFiles(seed)
        self.sender: SenderCore | None = None
        self.receiver: ReceiverCore | None = None
        self.front: ReceiverCore | None = (
            None  # whose address the sender knows, if that is not the receiver's
        )
        self._ports = count(2) if seed % 4 == 0 else None
        channels = self.random.choice([1, 1, 2])
        patience_s = 3.0 + 30 * self.world.latency_s  # else no way is short enough
        plans = [draw_plan(self.random, f"c{n}", MESSAGES // channels, patience_s) for n in range(channels)]
        self.shared = [Shared(plan, self.files, met=self.report.met) for plan in plans]
        if seed % 5 == 4:  # in the others, no consumer asks for anything
            for shared in self.shared:
                shared.questions = Questions(Random(f"{seed} of upqueries on {shared.plan.channel_id}"))
        # From so many bytes on, bodies go through memory of this size, in half of the runs.
        self.chance = Random(f"{seed} of memory")
        self.shared_from = self.chance.choice([1 << 30, 1 << 30, 50, 300])
        self.memory_size = self.chance.choice([1, 10, 50, 200]) * GRAIN
        self.sending = [Sending(self.world, shared) for shared in self.shared]
        self.receiving = [Receiving(self.world, shared, self.random, self.chance) for shared in self.shared]
        self._trace = hashlib.blake2b(digest_size=16)
        goal = channels * (MESSAGES // channels)
        self._faults_at = sorted(self.random.randrange(goal) for _ in range(FAULTS))
        self._power_cut_due = False

    def run(self) -> Report:
        """To the end of every stream. Raises Violation."""
        for _ in range(TURNS):
            self._turn()
            if all(sending.done for sending in self.sending):
                break
        else:
            raise Violation(f"it hangs: {[s.left for s in self.sending]} messages are left")
        self._settle()
        for receiving in self.receiving:
            receiving.let_go()
        for questions in filter(None, [shared.questions for shared in self.shared]):
            self._meet("upqueries arrive", questions.answered > 0)
            self._meet("upqueries are lost", bool(questions.out))
        self.report.digest = self._trace.hexdigest()
        self.report.virtual_s = self.world.now - 1000.0
        self.report.delivered = sum(
            stream.given for shared in self.shared for stream in shared.streams.values()
        )
        return self.report

    def note(self, what: str) -> None:
        """Something of the run that another run of the same seed repeats."""
        self._trace.update(f"{self.world.now:.9f} {what}\n".encode())

    # -- turns

    def _turn(self) -> None:
        random = self.random
        self._start_what_is_down()
        for sending, receiving in zip(self.sending, self.receiving, strict=True):
            if self.sender is not None and self.sender not in self.world.stalled and random.random() < 0.5:
                self._with_power(lambda sending=sending: sending.turn(self.sender))  # type: ignore[misc]
            if (
                self.receiver is not None
                and self.receiver not in self.world.stalled
                and random.random() < 0.5
            ):
                receiving.turn(self.receiver)
        busy = self._with_power(self.world.step)
        if (
            self._faults_at
            and sum(s.shared.plan.messages - s.left for s in self.sending) >= self._faults_at[0]
        ):
            self._faults_at.pop(0)
            self._fault()
        if not busy and random.random() < 0.5:
            self.world.let_time_pass()

    def _settle(self) -> None:
        """The consumers hear of every end."""
        for _ in range(TURNS):
            if all(self._read_to_the_end(n) for n in range(len(self.shared))):
                return
            self._turn()
        raise Violation("a consumer has not heard of the end")

    def _read_to_the_end(self, index: int) -> bool:
        last = [stream for stream in self.shared[index].streams.values() if stream.total is not None][-1]
        receiving = self.receiving[index]
        if last.name in receiving.closed or last.name in receiving.unheard:
            return True
        return last.ended or bool(last.lossy)

    def _with_power(self, action: Callable[[], bool | None]) -> bool:
        try:
            return bool(action())
        except Crash:
            self._power_cut()
            return True

    def _start_what_is_down(self) -> None:
        if self.sender is None and self.random.random() < 0.05:
            self.sender = self.world.sender(f"sender {self.world.now:.3f}")
            self._share(self.sender)
        if self.receiver is None and self.random.random() < 0.05:
            self.receiver = self._start_receiver()
        if self._ports is not None and self.front is None and self.random.random() < 0.05:
            self.front = self.world.receiver("r:1", members=NODE)

    def _start_receiver(self) -> ReceiverCore:
        """At the address that the sender knows, or as a member of the node that has it, at another port each time."""
        if self._ports is None:
            receiver = self.world.receiver()
        else:
            receiver = self.world.receiver(f"r:{next(self._ports)}", node=NODE)
        self._share(receiver)
        return receiver

    def _share(self, core: SenderCore | ReceiverCore) -> None:
        """Now and then there is no memory to be had, or it cannot be used."""
        self.world.share(core, self.memory_size, works=lambda: self.chance.random() < 0.9)

    # -- faults

    def _fault(self) -> None:
        for fault in self.random.sample(FAULT_TABLE, len(FAULT_TABLE)):
            if fault(self):
                self.report.met[fault.__name__] += 1
                self.report.faults += 1
                self.note(fault.__name__)
                return

    def _wires(self, *, control: bool) -> list[End]:
        return self.world.wires(control=control)

    def _look(self, cut: list[End]) -> None:
        """Name what is lost with these connections."""
        for end in cut:
            if end.link.control:
                self._meet(
                    "a body is in use as its memory goes", any(each.keeps_shared for each in self.receiving)
                )
                continue
            for sending, receiving in zip(self.sending, self.receiving, strict=True):
                out, into = sending.channel, receiving.channel
                if out is None or into is None or out.link is not end.link or into.stream != out.stream:
                    continue
                expected = into.expected or 0
                self._meet("an acknowledgement is lost", into.acknowledged > out.acknowledged)
                self._meet("messages in flight are lost", out.sent > expected)
                self._meet(
                    "references in flight are lost", any(number > expected for number, _ in out.link._ahead)
                )
                self._meet("a frame is torn", bool(end.peer.inbox))
                self._meet("an end is lost", bool(out.link and out.link.end_sent))

    def _meet(self, what: str, condition: bool) -> None:
        if condition:
            self.report.met[what] += 1

    def cut_data(self) -> bool:
        """A data connection is reset."""
        wires = self._wires(control=False)
        if not wires:
            return False
        wire = self.random.choice(wires)
        self._look([wire])
        self.world.cut(wire)
        return True

    def cut_control(self) -> bool:
        """The control connection is reset; its data connections look alive a moment longer."""
        for wire in self._wires(control=True):
            self.world.cut(wire)
            return True
        return False

    def hang_up(self) -> bool:
        """The sender's side loses its connections; what they carried arrives later, perhaps behind what comes next."""
        for wire in self._wires(control=False) + self._wires(control=True):
            self.world.hang_up(wire, self.random.random() * 4)
        return True

    def outrun(self) -> bool:
        """The next control connection is lost once something was asked, which arrives behind its successor's."""
        self.world.outrun_s = self.random.random() * 4
        return self.cut_control()

    def replay(self) -> bool:
        """What was said on a control connection is said again, at any time later."""
        for _ in range(self.random.randint(1, 4)):
            self.world.after(self.random.random() * 5, self.world.replay)
        return True

    def flap(self) -> bool:
        """All connections are cut, again and again for a while."""
        for n in range(self.random.randint(3, 12)):
            self.world.after(n * self.random.random() * 0.3, self._cut_all)
        return True

    def _cut_all(self) -> None:
        wires = self._wires(control=False) + self._wires(control=True)
        self._look(wires)
        for wire in wires:
            if not wire.over:
                self.world.cut(wire)

    def black_hole(self) -> bool:
        """Nothing gets through any more, and nobody is told: half-open on both sides."""
        if self.receiver is None:
            return False
        self.world.swallow(self.receiver)
        return True

    def firewall(self) -> bool:
        """New data connections are let through by nobody for a while, while the control connection lives."""
        self.world.data_blocked = True
        self.world.after(self.random.random() * 20, lambda: setattr(self.world, "data_blocked", False))
        self.cut_data()
        return True

    def delay(self) -> bool:
        """The way gets long for a while."""
        self.world.delay_s = self.random.choice([0.01, 0.2, 2.0])
        self.world.after(self.random.random() * 8, lambda: setattr(self.world, "delay_s", 0.0))
        return True

    def flip(self) -> bool:
        """A bit changes on the way."""
        return self.world.flip()

    def stall_sender(self) -> bool:
        """The sender's process stands still."""
        return self._stall(self.sender)

    def stall_receiver(self) -> bool:
        """The receiver's process stands still."""
        return self._stall(self.receiver)

    def stall_front(self) -> bool:
        """The process that has the node's address stands still."""
        return self._stall(self.front)

    def _stall(self, core: SenderCore | ReceiverCore | None) -> bool:
        if core is None:
            return False
        seconds = self.random.choice([0.5, 4.0, 20.0])
        self._meet("a stall outlives the heartbeat budget", seconds > self.world.timing.dead_after_s)
        self.world.stalled.add(core)
        self.world.after(seconds, lambda: self.world.stalled.discard(core))
        return True

    def kill_sender(self) -> bool:
        """kill -9 of the sender: the kernel hangs up, and keeps what was written."""
        if self.sender is None:
            return False
        self._sender_gone()
        self.files.kill()
        return True

    def power_cut(self) -> bool:
        """The sender's machine loses power, within one of the next operations of its disk if there is one."""
        if self.sender is None:
            return False
        self.files.crash_at = self.random.randrange(12)
        sender = self.sender
        self.world.after(1.0, lambda: self._power_cut() if self.sender is sender else None)
        return True

    def _power_cut(self) -> None:
        self._meet(
            "a write is torn by a power cut", self.files.crash_at is not None and self.files.crash_at < 0
        )
        self._sender_gone(quietly=self.random.random() < 0.5)
        self.files.crash()
        self.files.power_on()

    def _sender_gone(self, *, quietly: bool = False) -> None:
        sender, self.sender = self.sender, None
        if sender is None:
            return
        closing = [s.channel for s in self.sending if s.channel is not None and s.channel.closing is not None]
        self._meet("the sender dies before its end is acknowledged", bool(closing))
        if quietly:
            self.world.vanish(sender)
            self._meet("a peer vanishes without a word", True)
        else:
            self.world.crash(sender)
        self.world.jobs = [(core, job) for core, job in self.world.jobs if core is not sender]
        for sending in self.sending:
            sending.crashed()

    def kill_receiver(self) -> bool:
        """kill -9 of the receiver."""
        receiver, self.receiver = self.receiver, None
        if receiver is None:
            return False
        for receiving in self.receiving:
            channel = receiving.channel
            if channel is not None:
                unread = len(channel.queue) > 0 and not channel.explicit
                self._meet("a receiver crashes with messages that it had acknowledged", unread)
                self._meet(
                    "a receiver crashes after its acknowledgement", channel.explicit and channel.acked > 0
                )
            receiving.crashed()
        # A process of the same machine is not gone without a word: the kernel closes its socket.
        if self._ports is None and self.random.random() < 0.3:
            self.world.vanish(receiver)
            self._meet("a peer vanishes without a word", True)
        else:
            self.world.crash(receiver)
        return True

    def kill_front(self) -> bool:
        """kill -9 of the process that has the node's address."""
        front, self.front = self.front, None
        if front is None:
            return False
        self.world.crash(front)
        return True

    def disk_stands_still(self) -> bool:
        """No job of the disk ends for a while."""
        self.world.disk_works = False
        self.world.after(self.random.random() * 10, lambda: setattr(self.world, "disk_works", True))
        return True

    def disk_full(self) -> bool:
        """There is no space for a while."""
        self.files.capacity = 0
        self.world.after(self.random.random() * 10, lambda: setattr(self.files, "capacity", None))
        return True

    def clock_jump(self) -> bool:
        """Somebody sets the clock of a machine."""
        self.world.clock_offset_s = self.random.choice([-1e6, -100.0, 3600.0])
        return True

    def detach_sender(self) -> bool:
        """The producer leaves its stream to a successor."""
        self.random.choice(self.sending).detaching = True
        return True

    def detach_receiver(self) -> bool:
        """The consumer leaves its stream to a successor."""
        self.random.choice(self.receiving).detach()
        return True

    def detach_both(self) -> bool:
        """The consumer leaves and is away for a while, in which the producer, who is denied, leaves as well."""
        sending, receiving = self.random.choice(list(zip(self.sending, self.receiving, strict=True)))
        receiving.away = True
        receiving.detach()
        self.world.after(10.0, lambda: setattr(receiving, "away", False))
        self.world.after(self.random.uniform(0.1, 9.0), lambda: setattr(sending, "detaching", True))
        return True

    def give_up(self) -> bool:
        """The producer's patience ends: `close(grace)`."""
        channel = self.random.choice(self.sending).channel
        if channel is None or channel.terminal:
            return False
        channel.give_up("close(grace=0) ran out", self.world.now)
        return True

    def close_receiver(self) -> bool:
        """The consumer wants no more of this stream."""
        self.random.choice(self.receiving).close()
        return True

    def abort_sender(self) -> bool:
        """The producer fails."""
        self.random.choice(self.sending).abort()
        return True


FAULT_TABLE: list[Callable[[Simulation], bool]] = [
    Simulation.cut_data,
    Simulation.cut_data,
    Simulation.cut_control,
    Simulation.hang_up,
    Simulation.outrun,
    Simulation.replay,
    Simulation.flap,
    Simulation.black_hole,
    Simulation.firewall,
    Simulation.delay,
    Simulation.flip,
    Simulation.stall_sender,
    Simulation.stall_receiver,
    Simulation.kill_sender,
    Simulation.power_cut,
    Simulation.kill_receiver,
    Simulation.kill_front,
    Simulation.stall_front,
    Simulation.disk_stands_still,
    Simulation.disk_full,
    Simulation.clock_jump,
    Simulation.detach_sender,
    Simulation.detach_receiver,
    Simulation.detach_both,
    Simulation.give_up,
    Simulation.close_receiver,
    Simulation.abort_sender,
]


class _Recorder(dict):  # type: ignore[type-arg]
    """A table that notes what is asked of it."""

    def __init__(self, side: str, table: dict, asked: set) -> None:  # type: ignore[type-arg]
        super().__init__(table)
        self._side, self._asked = side, asked

    def __getitem__(self, pair):  # type: ignore[no-untyped-def]
        self._asked.add((self._side, *map(str, pair)))
        return super().__getitem__(pair)


@contextmanager
def noted(transitions: set[tuple[str, str, str]]) -> Iterator[None]:
    """Every transition of a channel is put into ``transitions``."""
    outbound.SENDER_TABLE = _Recorder("sender", SENDER_TABLE, transitions)
    inbound.RECEIVER_TABLE = _Recorder("receiver", RECEIVER_TABLE, transitions)
    try:
        yield
    finally:
        outbound.SENDER_TABLE, inbound.RECEIVER_TABLE = SENDER_TABLE, RECEIVER_TABLE


def simulate(seed: int) -> Report:
    """Run ``seed``. Raises Violation, with the seed in its message."""
    logging.getLogger("netchannel").setLevel(logging.CRITICAL)
    simulation = Simulation(seed)
    try:
        with (
            noted(simulation.report.transitions),
            patch.object(data_sender, "SHARED_FROM", simulation.shared_from),
            patch.object(outbound, "SHARED_FROM", simulation.shared_from),
            patch.object(packer, "ALONE", min(packer.ALONE, simulation.shared_from)),
            patch.object(data_sender, "AHEAD_LIMIT", simulation.chance.choice([0, 1000, 1 << 20])),
        ):
            return simulation.run()
    except Violation as error:
        raise Violation(f"seed {seed}: {error}") from error
    finally:
        logging.getLogger("netchannel").setLevel(logging.NOTSET)
