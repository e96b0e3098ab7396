"""Runs a core on an event loop: writes the output of its links, dials, and keeps its deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import uvloop

from netchannel.address import TcpAddress
from netchannel.core.link import Closing
from netchannel.errors import HandshakeError
from netchannel.log_texts import log
from netchannel.statistics import Measured

from . import schemes
from .connection_binding import ends_of
from .host_memory import within_host
from .lag import Lag
from .tcp import keep_alive, keep_little_unsent, limit_silence, use_congestion_control
from .vectored_writes import write_all

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from netchannel.core.link import Core, Job, Link

    from .interface import MakeProtocol

    Connect = Callable[[str, MakeProtocol], Awaitable[None]]

HIGH_WATER, LOW_WATER = 1 << 20, 1 << 18
"""Bytes in a transport's own buffer at which it pauses and resumes writing."""
CROWD = 256
"""More connections than this do not fit a processor's cache: what belongs to one has left it when the loop is back."""
NEVER = math.inf

DISK_THREADS = 4


class LinkProtocol(asyncio.BufferedProtocol):
    """Gives a link to a transport. ``make_link`` is called with the remote's name once there is a connection."""

    def __init__(self, runner: Runner, make_link: Callable[[str], Link]) -> None:
        self._runner = runner
        self._make_link = make_link
        self._link: Link
        self._transport: asyncio.Transport
        self._reading = True
        self._room = 0  # of the buffer that is received into

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        self._link = self._make_link(_remote(transport))
        self._link.adapter = self
        self._link.local = within_host(transport.get_extra_info("socket"))
        self._runner.protocols[self] = None
        self._set_options(transport.get_extra_info("socket"))
        self._link.connected(self._runner.clock())
        self.apply()

    def _set_options(self, sock: socket.socket | None) -> None:
        if sock is None:
            return
        with contextlib.suppress(OSError):  # of one that is lost already, as its transport is about to report
            keep_alive(sock)
            if self._runner.congestion_control is not None:
                use_congestion_control(sock, self._runner.congestion_control)
            # Never on data connections: there a consumer that stalls looks to the kernel like a dead peer.
            if self._link.control:
                limit_silence(sock, self._runner.core.timing.dead_after_s)
                keep_little_unsent(sock)

    def get_buffer(self, sizehint: int) -> memoryview:
        buffer = self._link.get_buffer(sizehint)
        self._room = len(buffer)
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        link, runner = self._link, self._runner
        runner.bytes_received += nbytes
        visit: list[Callable[[], None]] | None = None
        # After a full buffer more is about to come, which is better taken together.
        if nbytes < self._room or len(runner.protocols) > CROWD:
            visit = runner.core.visit = []
        try:
            link.received(nbytes, runner.clock())
            if link.replacement is not None:
                self._link = link.replacement
                self._set_options(self._transport.get_extra_info("socket"))
        finally:  # also of those that received something before the failure
            runner.core.visit = None
            if visit:
                runner.finish(visit)

    def pause_writing(self) -> None:
        self._link.writable = False

    def resume_writing(self) -> None:
        self._link.writable = True
        if self._link.closing is Closing.OPEN:
            self.apply()
        else:  # not from within the write that is done now, at whose end asyncio would report the loss once more
            self._runner.core.touch(self._link)

    def connection_lost(self, exc: Exception | None) -> None:
        self._runner.protocols.pop(self, None)
        reason = _why(exc)
        if self._link.closing is not Closing.OPEN:
            reason = "closed by this side"
        if isinstance(exc, HandshakeError):
            self._link.refused(exc, self._runner.clock())
        self._link.lost(reason, self._runner.clock())
        self._runner.check_done()

    @property
    def descriptor(self) -> int | None:
        """The socket's, if there is one."""
        sock = self._transport.get_extra_info("socket")
        return None if sock is None else int(sock.fileno())

    @property
    def ends(self) -> bytes:
        """Return data that both ends of the connection know, and no party between them."""
        return ends_of(self._transport)

    def abort(self) -> None:
        """Close at once, whatever the link has requested."""
        self._link.closing = Closing.ABORT
        self._transport.abort()

    def apply(self) -> None:
        """Do what the link wants: write, read or not, close."""
        link, transport = self._link, self._transport
        if (
            link.closing is Closing.ABORT
        ):  # also one that was to be closed after bytes that the peer does not take
            # Asyncio fails to abort a transport that it has closed after its last bytes.
            if self in self._runner.protocols:
                transport.abort()
            return
        if transport.is_closing():
            return
        if link.reading is not self._reading:
            self._reading = link.reading
            if link.reading:
                transport.resume_reading()
            else:
                transport.pause_reading()
        while link.writable and (buffers := link.output()):
            if len(buffers) == 1:
                self._runner.bytes_sent += len(buffers[0])
                transport.write(buffers[0])
            else:
                self._runner.bytes_sent += sum(map(len, buffers))
                write_all(transport, buffers)
            if not link.more or transport.is_closing():
                break
        if link.closing is Closing.FLUSH and link.writable:
            transport.close()


def _why(lost: Exception | None) -> str:
    """Return why a connection is lost.

    The system's error for unacknowledged bytes is that of a dial without an answer.
    """
    if lost is None:
        return "the other side hung up"
    if isinstance(lost, TimeoutError):
        return f"messages sent to it are not acknowledged ({lost})"
    return str(lost) or type(lost).__name__


def _throw(error: BaseException) -> None:
    raise error


def _remote(transport: asyncio.Transport) -> str:
    """The other side's name."""
    match transport.get_extra_info("peername"):
        case (str(host), int(port), *_):
            return str(TcpAddress(host, port))
        case str(name) if name:
            return name
    # A client of a Unix socket has no address: it is named after the one that it has dialed.
    own = transport.get_extra_info("sockname")
    return f"unix:{own}" if isinstance(own, str) and own else "a peer without a name"


class Runner:
    """The event loop's side of one core, which dials by ``connect``, as a transport has it.

    ``congestion_control`` is TCP's, of connections within this host.
    """

    def __init__(
        self, core: Core, congestion_control: str | None = None, connect: Connect = schemes.connect
    ) -> None:
        self.core = core
        self._connect = connect
        self.congestion_control = congestion_control
        self.loop = asyncio.get_running_loop()
        # uvloop's own clock counts whole milliseconds, more than a round trip takes; both are the system's monotonic.
        self.clock = time.monotonic if isinstance(self.loop, uvloop.Loop) else self.loop.time
        self.lag = Lag()
        self.bytes_sent = self.bytes_received = 0
        self.protocols: dict[LinkProtocol, None] = {}  # in the order in which they came
        self._dialing: dict[asyncio.Task[None], Link] = {}
        self._pump_due = self._alarm_due = NEVER
        self._alarm: asyncio.TimerHandle | None = None
        self._done: asyncio.Event | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._jobs = 0
        core.on_work = self._schedule
        core.on_urgent = self._apply
        core.timers.on_earlier = self._set_alarm

    def _schedule(self) -> None:
        if self._pump_due == NEVER:
            self._pump_due = self.clock()
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Do everything that the events of a turn of the loop have left to do, once per turn at most."""
        now = self.clock()
        self.lag.note(now - self._pump_due, now)
        core = self.core
        due, core.due = core.due, {}
        for worker in due:
            if (job := worker.begin()) is not None:
                self._execute(job)
        self._pump_due = NEVER
        if core.due:
            self._schedule()
        dials, core.dials = core.dials, []
        for link in dials if self._done is None else ():  # what is stopping would not end a new connection
            task = self.loop.create_task(self._dial(link), name=f"netchannel dials {link.remote}")
            self._dialing[task] = link
            task.add_done_callback(self._dialed)
        dirty, core.dirty = core.dirty, {}
        for link in dirty:
            self._apply(link)
        self.check_done()

    def _apply(self, link: Link) -> bool:
        """Let the link's connection do what it wants; whether there is one."""
        adapter = link.adapter
        if adapter is None:
            return False
        try:
            adapter.apply()
        except Exception:  # noqa: BLE001 - one connection's; all others continue
            log.exception("%s: a connection is closed after an error", self.core.name)
            adapter.abort()
        return True

    def finish(self, visit: list[Callable[[], None]]) -> None:
        """Call what a visit has left to do: at once, unless it is a task that has made the visit."""
        if asyncio.current_task(self.loop) is not None:
            for action in visit:
                self.loop.call_soon(action)
            return
        left = iter(visit)
        for action in left:
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - it is the loop's, as of any task that it wakes itself
                # Some loops take an exception from here for a failure of the connection, and the program
                # continues.
                self.loop.call_soon(_throw, error)
                break
        for action in left:
            self.loop.call_soon(action)

    def _execute(self, job: Job) -> None:
        # Several threads: the syncs of many channels go to the disk together, and a slow one holds up no other.
        if self._threads is None:
            self._threads = ThreadPoolExecutor(DISK_THREADS, "netchannel disk")
        self._jobs += 1
        future = self._threads.submit(job.run)
        future.add_done_callback(lambda future: self.loop.call_soon_threadsafe(self._executed, job, future))

    def _executed(self, job: Job, future: Future[None]) -> None:
        self._jobs -= 1
        if (error := future.exception()) is not None:
            log.error("%s: a disk job failed", self.core.name, exc_info=error)
        job.done(self.clock())
        self.check_done()

    async def _dial(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self.core.timing.handshake_s):
                await self._connect(link.remote, lambda: LinkProtocol(self, lambda _: link))
        except HandshakeError as error:
            if link.adapter is None:
                link.refused(error, self.clock())
            self._not_connected(link, str(error))
        except TimeoutError:
            self._not_connected(link, f"no connection within {self.core.timing.handshake_s} s")
        except (OSError, ValueError) as error:
            self._not_connected(link, str(error))
        except asyncio.CancelledError:
            self._not_connected(link, "closed by this side")
            raise

    def _not_connected(self, link: Link, reason: str) -> None:
        if link.adapter is None:
            link.lost(reason, self.clock())

    def _dialed(self, task: asyncio.Task[None]) -> None:
        link = self._dialing.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: dialing %s failed", self.core.name, link.remote, exc_info=error)
            self._not_connected(link, f"its transport failed: {error!r}")
        self.check_done()

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            if self._alarm_due <= when:
                return
            self._alarm.cancel()
        self._alarm_due = when
        self._alarm = self.loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        # The loop may ring a little early, by its clock's resolution. Its timer may be cancelled since.
        now, due, self._alarm_due = self.clock(), self._alarm_due, NEVER
        self.lag.note(max(0.0, now - due), now)
        now = max(now, due)
        self.core.timers.run(now)
        if (when := self.core.timers.next()) is not None:
            self._set_alarm(when)

    def measured(self, now: float) -> Measured:
        """Return the counters kept here, in addition to those of the core and its channels.

        May be called from any thread.
        """
        # Seen from another thread while the loop is held up, what is due is not noted yet.
        overdue_s = now - min(self._pump_due, self._alarm_due)
        return Measured(
            at=now,
            connections=len(self.protocols),
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            loop_lag_s=max(self.lag.last_s, overdue_s),
            loop_lag_max_s=max(self.lag.greatest_s(now), overdue_s),
        )

    def descriptors(self) -> list[int]:
        """File descriptors of all connections."""
        return [found for protocol in self.protocols if (found := protocol.descriptor) is not None]

    def check_done(self) -> None:
        """Notify `stop` when nothing is connected or dialing any more."""
        if self._done is not None and not (self.protocols or self._dialing or self._jobs or self.core.due):
            self._done.set()

    async def stop(self) -> None:
        """Close all connections at once, and wait until they are gone and the disk's jobs are done.

        These have no deadline: a thread that waits for a disk cannot be stopped, and must not be left.
        """
        self._done = asyncio.Event()
        for task in list(self._dialing):
            task.cancel()
        for protocol in list(self.protocols):
            protocol.abort()
        self.check_done()
        await self._done.wait()
        if self._threads is not None:
            self._threads.shutdown()
        if self._alarm is not None:
            self._alarm.cancel()
        self.core.timers.on_earlier = lambda when: None
        self.core.on_work = lambda: None
        self.core.on_urgent = lambda link: False
