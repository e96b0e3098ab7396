"""One run: a sender's and a receiver's process over the public API, faults, and what must be true in the end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import secrets
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from netchannel import Timing, Tls
from netchannel.core.sending import data_sender, outbound, packer
from netchannel.core.sending.lender import GRAIN
from netchannel.servers import identity, receiver, sender, sender_channel
from netchannel.storage import SegmentLog, openers
from netchannel.transports import runner, schemes, tls_transport
from tests.simulator.oracle import Violation
from tests.simulator.plans import Kind, Shared, draw_plan
from tests.simulator.simulation import Report, noted
from tests.support.authority import Authority
from tests.support.shared_memory import Meetings, SimulatedMemory
from tests.support.simulated_files import Crash, SimulatedFiles

from .disk import Disk
from .loop import ProcessLoop, Room
from .network import Network, Socket
from .plugs import EncryptedSocket
from .programs import Program, ReceivingProgram, SendingProgram
from .receiving import Receiving
from .sending import Sending

ADDRESS = "127.0.0.1:1"
FAULTS = 6
MESSAGES = 120
STEPS = 200_000
PATIENCE_S = 900.0
"""A run that takes longer than this, after its last fault, hangs."""


class Process:
    """A process that is started, killed, left and started again until its ``main`` returns."""

    def __init__(self, simulation: Simulation, name: str, program: Program) -> None:
        self.simulation = simulation
        self.name = name
        self.program = program
        self.loop: ProcessLoop | None = None
        self.main: asyncio.Task[None] | None = None
        self.done = False

    def start(self) -> None:
        """Begin, unless it is there or done."""
        if self.loop is None and not self.done:
            self.loop = ProcessLoop(self.simulation.room, self.name)
            self.simulation.loops.append(self.loop)
            self.main = self.loop.create_task(self.program.run())

    def check(self) -> None:
        """Raise what its program raised; note that it is done, and what it has left behind."""
        if self.main is None or not self.main.done():
            return
        assert self.loop is not None
        self.main.result()
        if left := self.loop.left_over():
            raise Violation(f"{self.name} has left {left}")
        self.loop.kill()
        self.loop, self.main, self.done = None, None, True

    def gone(self) -> ProcessLoop | None:
        """It is killed: its loop."""
        loop, self.loop, self.main = self.loop, None, None
        self.program.killed()
        return loop


class Simulation:
    """All of it, drawn from ``seed``; over TLS if there is a certificate."""

    def __init__(self, seed: int, tls: Tls | None) -> None:
        self.random = Random(seed)
        self.report = Report(seed)
        self.room = Room(seed)
        self.network = Network(self.room, is_real=tls is not None)
        if tls is not None:  # a handshake has its time, and is longer than the narrowest way
            self.network.window = max(self.network.window, 5000)
        self.files = SimulatedFiles(seed)
        self.disk = Disk(self.files)
        self.loops: list[ProcessLoop] = []  # that there ever were
        channels = self.random.choice([1, 1, 2])
        patience_s = 3.0 + 30 * self.network.latency_s  # else no way is short enough
        plans = [draw_plan(self.random, f"c{n}", MESSAGES // channels, patience_s) for n in range(channels)]
        # What is durable is tried again until it is heard, and never is if there is no time to.
        shortest_s = 1.0 if any(plan.kind is Kind.DURABLE for plan in plans) else 0.0
        leave_s = self.random.choice([shortest_s, 1.0, 5.0])
        leave_s += 30 * self.network.latency_s if leave_s else 0.0
        self.timing = Timing(backoff_limit_s=1.0, leave_s=leave_s)
        self.shared = [Shared(plan, self.files, met=self.report.met) for plan in plans]
        self.chance = Random(f"{seed} of memory")
        self.shared_from = self.chance.choice([1 << 30, 50, 300])
        self.memory_size = self.chance.choice([1, 10, 50, 200]) * GRAIN
        self.meetings = Meetings()
        self.sending = [Sending(shared, ADDRESS, self.random) for shared in self.shared]
        self.receiving = [Receiving(shared, self.random, self.note, self.chance) for shared in self.shared]
        self.sender = Process(self, "the sender", SendingProgram(self.sending, self.timing, tls))
        self.receiver = Process(
            self, "the receiver", ReceivingProgram(self.receiving, self.timing, ADDRESS, self._all_heard, tls)
        )
        self._trace = hashlib.blake2b(digest_size=16)
        goal = channels * (MESSAGES // channels)
        self._faults_at = sorted(self.random.randrange(goal + 1) for _ in range(FAULTS))
        self._last_fault_at = self.room.now

    def note(self, what: str) -> None:
        """Something of the run that another run of the same seed repeats."""
        self._trace.update(f"{self.room.now:.9f} {what}\n".encode())

    def share(self, size: int) -> SimulatedMemory | None:
        """As `make_shared_memory`, for the process whose loop runs; there is none for a server with TLS."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        if not size:
            return None
        chance = self.chance
        return SimulatedMemory(
            self.meetings, self.memory_size, later=loop.soon, works=lambda: chance.random() < 0.9
        )

    def _all_heard(self) -> bool:
        return self.sender.done and all(each.heard_all() for each in self.receiving)

    # -- the run

    def run(self) -> Report:
        """To the end of every stream. Raises Violation."""
        self.sender.start()
        self.room.after(self.random.random() * self.random.choice([0.0, 2.0]), self.receiver.start)
        for _ in range(STEPS):
            self._step()
            if self.sender.done and self.receiver.done:
                break
            if self.room.now > self._last_fault_at + PATIENCE_S:
                raise Violation(f"it hangs: {self._where()}")
        else:
            raise Violation(f"it goes on and on: {self._where()}")
        for receiving in self.receiving:
            receiving.let_go()
        self._check_problems()
        self.report.digest = self._trace.hexdigest()
        self.report.virtual_s = self.room.now - 1000.0
        self.report.delivered = sum(
            stream.given for shared in self.shared for stream in shared.streams.values()
        )
        return self.report

    def _step(self) -> None:
        with suppress(Crash):
            self.room.step()
        self.network.carry()
        if self.files.crash_at is not None and self.files.crash_at < 0:
            self._lose_power()
        if self.room.problems:
            self._check_problems()
        self.sender.check()
        self.receiver.check()
        if self._faults_at and self._progress() >= self._faults_at[0]:
            self._faults_at.pop(0)
            # Not at the message itself, but anywhere behind it.
            self.room.after(self.random.random() * self.random.choice([0.0, 0.01, 1.0]), self._fault)
        if self.sender.done and not self.receiver.done and self._all_heard():
            self.receiver.program.leave()

    def _check_problems(self) -> None:
        if self.room.problems:
            raise Violation("; ".join(self.room.problems))

    def _progress(self) -> int:
        return sum(each.shared.plan.messages - each.left for each in self.sending)

    def _where(self) -> str:
        """What everybody waits for."""
        lines = [f"left are {[each.left for each in self.sending]}, virtual time {self.room.now:.1f}"]
        for process in (self.sender, self.receiver):
            lines.append(f"{process.name}: done {process.done}")
            for task in asyncio.all_tasks(process.loop) if process.loop is not None else ():
                frames = task.get_stack()
                places = [f"{frame.f_code.co_name}:{frame.f_lineno}" for frame in frames]
                lines.append(f"  {task.get_name()} {task.get_coro()} {places}")
        channels = [each.channel for each in (*self.sending, *self.receiving)]
        lines += [f"  {channel!r} {channel.statistics()}" for channel in channels if channel is not None]
        return "\n".join(lines)

    # -- faults

    def _fault(self) -> None:
        if self.sender.done and self.receiver.done:
            return
        for fault in self.random.sample(FAULT_TABLE, len(FAULT_TABLE)):
            if fault(self):
                self.report.met[fault.__name__] += 1
                self.report.faults += 1
                self.note(fault.__name__)
                self._last_fault_at = self.room.now
                return

    def _some(self) -> Socket | None:
        sockets = self.network.connected()
        return self.random.choice(sockets) if sockets else None

    def cut(self) -> bool:
        """A connection is reset, for both ends, or for one: the other hears of it behind what is under way."""
        here = self._some()
        if here is None:
            return False
        self._cut(here, both=self.random.random() < 0.5)
        return True

    def _cut(self, here: Socket, *, both: bool) -> None:
        there = here.peer
        assert there is not None
        here.hear_reset()
        if both:
            there.hear_reset()
        else:
            here.carry(self.random.choice([there.hear_end, there.hear_reset]), self.random.random() * 4)
            here.carry(
                there.hear_reset, self.random.random() * 4
            )  # as an answer to whatever it sends behind the end

    def cut_all(self) -> bool:
        """All connections are cut, again and again for a while."""
        for n in range(self.random.randint(1, 8)):
            self.room.after(n * self.random.random() * 0.3, self._cut_each)
        return True

    def _cut_each(self) -> None:
        for each in self.network.connected():
            self._cut(each, both=True)

    def end(self) -> bool:
        """Something in between ends a connection as if the other side had closed it."""
        here = self._some()
        if here is None:
            return False
        here.hear_end()
        if self.random.random() < 0.5 and here.peer is not None:
            here.peer.hear_end()
        self.room.after(self.random.random() * 10, partial(self._cut, here, both=True))
        return True

    def deafen(self) -> bool:
        """One way of a connection carries nothing any more, or both; nobody is told."""
        here = self._some()
        if here is None or here.peer is None:
            return False
        here.deaf = True
        here.peer.deaf = self.random.random() < 0.5
        # In time the kernel gives up, of what is not acknowledged or is probed in vain: no heartbeat is on data's ways.
        self.room.after(self.random.random() * 60, partial(_time_out, here))
        return True

    def black_hole(self) -> bool:
        """So are all connections; and new ones hang for a while."""
        for each in self.network.connected():
            each.deaf = True
        self.network.hangs_until = self.room.now + self.random.random() * 12
        return True

    def delay(self) -> bool:
        """The way gets long for a while."""
        self.network.delay_s = self.random.choice([0.01, 0.2, 2.0])
        self.room.after(self.random.random() * 8, lambda: setattr(self.network, "delay_s", 0.0))
        return True

    def refuse(self) -> bool:
        """Nobody is let in for a while, and who is in is out."""
        self.network.refuses_until = self.room.now + self.random.random() * 8
        self._cut_each()
        return True

    def dial_slowly(self) -> bool:
        """Connections are made, but may take longer than anybody waits for them."""
        self.network.slow_dials = 0.7
        self.room.after(20 * self.random.random(), lambda: setattr(self.network, "slow_dials", 0.0))
        self._cut_each()
        return True

    def run_out_of_descriptors(self) -> bool:
        """Connections wait in the backlog for a while."""
        self.network.no_descriptors_until = self.room.now + self.random.random() * 4
        self._cut_each()
        return True

    def flip(self) -> bool:
        """A bit changes on the way."""
        if self.network.is_real:  # where nothing stays on the way that could be read
            here = self._some()
            if here is not None:
                here.spoilt = self.random.random(), self.random.randrange(8)
            return here is not None
        sockets = [each for each in self.network.connected() if each.inbox]
        if not sockets:
            return False
        inbox = self.random.choice(sockets).inbox
        inbox[int(self.random.random() * len(inbox))] ^= 1 << self.random.randrange(8)
        return True

    def stall(self) -> bool:
        """A process stands still."""
        loop = self.random.choice([self.sender, self.receiver]).loop
        if loop is None:
            return False
        loop.stalled = True
        self.room.after(self.random.choice([0.5, 4.0, 20.0]), lambda: setattr(loop, "stalled", False))
        return True

    def disk_stands_still(self) -> bool:
        """No job of the disk ends for a while."""
        self.disk.stands_until = self.room.now + self.random.random() * 10
        return True

    def disk_full(self) -> bool:
        """There is no space for a while."""
        self.files.capacity = 0
        self.room.after(self.random.random() * 10, lambda: setattr(self.files, "capacity", None))
        return True

    def kill_sender(self) -> bool:
        """kill -9 of the sender: the kernel closes its sockets."""
        return self._kill_sender(self.random.choice(["close", "reset"]))

    def _kill_sender(self, how: str) -> bool:
        loop = self.sender.gone()
        if loop is None:
            return False
        self.network.kill(loop, how)
        self.files.kill()
        for each in self.sending:
            each.crashed()
        self.room.after(self.random.random() * self.random.choice([0.01, 3.0]), self.sender.start)
        return True

    def power_cut(self) -> bool:
        """The sender's machine loses power, within one of the next operations of its disk if there is one."""
        if self.sender.loop is None:
            return False
        self.files.crash_at = self.random.randrange(12)
        loop = self.sender.loop
        self.room.after(1.0, lambda: self._lose_power() if self.sender.loop is loop else None)
        return True

    def _lose_power(self) -> None:
        self._kill_sender(self.random.choice(["close", "vanish"]))
        self.files.crash()
        self.files.power_on()

    def kill_receiver(self) -> bool:
        """kill -9 of the receiver, or its machine is gone without a word."""
        loop = self.receiver.gone()
        if loop is None:
            return False
        self.network.kill(loop, self.random.choice(["close", "reset", "vanish"]))
        for each in self.receiving:
            each.crashed()
        self.room.after(self.random.random() * self.random.choice([0.01, 3.0]), self.receiver.start)
        return True

    def leave_sender(self) -> bool:
        """An exception leaves the sender's context, and it is made anew."""
        return self.sender.program.leave()

    def leave_receiver(self) -> bool:
        """An exception leaves the receiver's context, and it is made anew."""
        return self.receiver.program.leave()

    def detach_sender(self) -> bool:
        """The producer leaves its stream to a successor."""
        sending = self.random.choice(self.sending)
        sending.wishes.append(sending.detach)
        return True

    def fail_sender(self) -> bool:
        """The producer aborts."""
        sending = self.random.choice(self.sending)
        sending.wishes.append(sending.fail)
        return True

    def detach_receiver(self) -> bool:
        """The consumer leaves its stream to a successor."""
        receiving = self.random.choice(self.receiving)
        receiving.wishes.append(receiving.detach)
        return True

    def close_receiver(self) -> bool:
        """The consumer wants no more."""
        receiving = self.random.choice(self.receiving)
        receiving.wishes.append(receiving.close)
        return True


FAULT_TABLE: list[Callable[[Simulation], bool]] = [
    Simulation.cut,
    Simulation.cut,
    Simulation.cut_all,
    Simulation.end,
    Simulation.deafen,
    Simulation.black_hole,
    Simulation.delay,
    Simulation.refuse,
    Simulation.dial_slowly,
    Simulation.dial_slowly,
    Simulation.run_out_of_descriptors,
    Simulation.flip,
    Simulation.stall,
    Simulation.disk_stands_still,
    Simulation.disk_full,
    Simulation.kill_sender,
    Simulation.power_cut,
    Simulation.kill_receiver,
    Simulation.leave_sender,
    Simulation.leave_receiver,
    Simulation.detach_sender,
    Simulation.fail_sender,
    Simulation.detach_receiver,
    Simulation.close_receiver,
]


def _time_out(here: Socket) -> None:
    for each in (here, here.peer):
        if each is not None and not each.closed:
            each.break_down(errno.ETIMEDOUT)


class _Problems(logging.Handler):
    """Errors in the log are problems."""

    def __init__(self, room: Room) -> None:
        super().__init__(logging.ERROR)
        self._room = room

    def emit(self, record: logging.LogRecord) -> None:
        self._room.problems.append(f"logged: {self.format(record)}")


@contextmanager
def _in_place(simulation: Simulation) -> Iterator[None]:
    """Nothing of the product knows real time, real files, real threads or real luck; and limits are in reach."""
    random, room, files = simulation.random, simulation.room, simulation.files
    luck = Random(simulation.report.seed)
    stream = (f"{luck.getrandbits(128):032x}" for _ in iter(int, 1))
    high = random.choice([0, 2000, 1 << 16])
    handler = _Problems(room)
    loggers = [logging.getLogger("netchannel"), logging.getLogger("asyncio")]
    with ExitStack() as stack:
        put = lambda where, name, what: stack.enter_context(patch.object(where, name, what))  # noqa: E731
        put(secrets, "token_bytes", luck.randbytes)
        put(identity, "os", SimpleNamespace(getpid=lambda: 1))
        put(identity, "socket", SimpleNamespace(gethostname=lambda: "host"))
        put(identity, "time", SimpleNamespace(time_ns=lambda: int(room.now * 1e9)))
        put(runner, "ThreadPoolExecutor", simulation.disk.pool)
        put(openers, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=next(stream))))
        put(openers, "SegmentLog", SimpleNamespace(open=partial(_open, files)))
        put(openers, "TemporaryFiles", lambda directory: _Spill())
        put(runner, "HIGH_WATER", high)
        put(runner, "LOW_WATER", high // 4)
        put(data_sender, "SHARED_FROM", simulation.shared_from)
        put(outbound, "SHARED_FROM", simulation.shared_from)
        put(packer, "ALONE", min(packer.ALONE, simulation.shared_from))
        put(data_sender, "AHEAD_LIMIT", simulation.chance.choice([0, 1000, 1 << 20]))
        put(sender, "make_shared_memory", simulation.share)
        put(receiver, "make_shared_memory", simulation.share)
        put(data_sender, "WRITE_LIMIT", random.choice([500, 5000, 1 << 20]))
        put(sender_channel, "YIELD_AFTER", random.choice([500, 5000, 1 << 19]))
        stack.enter_context(patch.dict(schemes._table, tcp=simulation.network))
        put(tls_transport, "dial", simulation.network.dial_real)
        put(ssl.SSLContext, "sslsocket_class", EncryptedSocket)
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            stack.callback(setattr, logger, "propagate", logger.propagate)
            stack.callback(logger.removeHandler, handler)
            logger.setLevel(logging.ERROR)
            logger.propagate = False
            logger.addHandler(handler)
        yield


class _Spill(SimulatedFiles):
    def close(self) -> None:
        """They are gone."""


def _open(disk: SimulatedFiles, directory: Any, channel_id: str, **settings: Any) -> SegmentLog:
    return SegmentLog.open(directory, channel_id, **{"files": disk, **settings, "segment_bytes": 6000})


def simulate(seed: int) -> Report:
    """Run ``seed``; one in ten goes over TLS. Raises Violation, with the seed in its message."""
    with tempfile.TemporaryDirectory() as directory:
        # Signatures of this kind are all of one length: how long a handshake is does not hang on what is drawn in it.
        authority = Authority(Path(directory), make_key=Ed25519PrivateKey.generate)
        simulation = Simulation(seed, authority.issue("node") if seed % 10 == 9 else None)
        with noted(simulation.report.transitions), _in_place(simulation):
            try:
                return simulation.run()
            except (Exception, asyncio.CancelledError) as error:
                what = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
                raise Violation(f"seed {seed}: {what}") from error
            finally:
                with patch.object(sys, "unraisablehook", lambda unraisable: None):
                    for loop in simulation.loops:
                        loop.bury()
                    simulation.network.close()
