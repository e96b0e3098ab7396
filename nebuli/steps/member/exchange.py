"""The state of an exchange for each other member, and whether that member is still there."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import netchannel
from nebuli.steps.errors import (
    ExchangeBusy,
    ExchangeClosed,
    ExchangeFailed,
    ExchangeLate,
    PartDamaged,
    PeerLeft,
    PeerLost,
    PeerMissing,
    WrongStep,
    as_reason,
    lost_in,
)
from netchannel import BufferPolicy, EndOfChannel, NetChannelError
from netchannel.transports import schemes

from .part_messages import NOTE, PartDecoder, PartEncoder, Unreadable

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from nebuli.steps.errors import MemberError
    from netchannel import Message as Received
    from netchannel import ReceiverServer, SenderServer

    from .part_messages import Message


GOODBYE_S = 0.5
"""How long to wait until connected members are notified that this member leaves."""
_ASK_S = 1.0
_IN_ORDER = "this member has closed the exchange after its last step"


class Peer:
    """Another member: the channels to it and from it, and what they remember."""

    __slots__ = (
        "address",
        "asking",
        "away_looks",
        "decoder",
        "early",
        "encoder",
        "ended",
        "inbox",
        "member",
        "outbox",
        "parted",
        "wanted",
    )

    def __init__(
        self, member: int, address: str, outbox: netchannel.SenderChannel, inbox: netchannel.ReceiverChannel
    ) -> None:
        self.member = member
        self.address = address
        self.outbox = outbox
        self.inbox = inbox
        self.encoder = PartEncoder()
        self.decoder = PartDecoder()
        self.early: netchannel.Message | None = (
            None  # of an exchange that is not begun: nothing is read after it
        )
        self.wanted: asyncio.Future[None] | None = None  # done once it is taken
        self.ended: netchannel.NetChannelError | None = (
            None  # nothing more comes from it, which was reported in order
        )
        self.parted = False  # it takes nothing more, which was reported in order
        self.away_looks = 0  # how often in succession it was seen without a connection
        self.asking: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """The channel to it has a connection."""
        return self.outbox.statistics().state == "attached"

    def take_early(self) -> None:
        """Early parts are taken: continue reading."""
        self.early = None
        if self.wanted is not None and not self.wanted.done():
            self.wanted.set_result(None)

    def lost(self, at: str, error: netchannel.NetChannelError, others: Mapping[int, str]) -> ExchangeFailed:
        """Return the meaning of the end of one of its channels.

        ``others`` are the addresses of all members but this one.

        A member that gives up because of a third one reports that, and then it is the third that is lost.
        """
        match error:
            case netchannel.EndOfChannel():
                return PeerLeft(self.member, self.address, at, "it has ended this epoch without an error")
            case netchannel.ChannelFailed(said=said) | netchannel.ChannelClosedByPeer(said=said):
                third = lost_in(said)
                if third is None or third[0] not in others:
                    return PeerLeft(self.member, self.address, at, said)
                member, why = third
                return PeerLost(member, others[member], at, f"{why} (seen by member {self.member})")
        return PeerLost(self.member, self.address, at, str(error))

    async def dismiss(self, reason: str | None) -> None:
        """End both channels: in order without a ``reason``, else as failed. Does not wait for an absent member."""
        with suppress(netchannel.NetChannelError):  # what is over already is as it should be
            if reason is None:
                await self.outbox.close(GOODBYE_S)
            elif self.connected:
                await self._abort(reason)
            await self.outbox.close(0)  # if it is not notified
        await self.inbox.close(reason or _IN_ORDER, GOODBYE_S)

    async def _abort(self, reason: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self.outbox.abort(reason)

    async def ask_after(self) -> None:
        """Find out what is with it while the channel to it has no connection; ends soon, or as that is back.

        Raises what has ended the channel, but for an end in order; ConnectionRefusedError or FileNotFoundError if
        nothing listens at its address.
        """
        try:
            async with asyncio.timeout(_ASK_S):
                await schemes.connect(self.address, _HangUp)
                await self.outbox.attached()
        except netchannel.ChannelClosedByPeer as error:
            if error.said != _IN_ORDER:
                raise
            self.parted = True
        except (ConnectionRefusedError, FileNotFoundError):
            raise
        except OSError:  # also what is too late: whether it is gone is not known
            return


class _HangUp(asyncio.BufferedProtocol):
    """Connects, and leaves: there is a listener."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


BUFFER_BYTES = 1 << 20
LOOK_S = 0.1
"""How often a member that waits looks whether the others are still there."""


@dataclass(slots=True)
class _CurrentExchange:
    """The exchange that this member is at."""

    step: int
    index: int
    deadline: float
    awaited: dict[int, Peer]
    """The members whose part is not whole yet."""
    parts: list[pa.RecordBatch | None]
    arrived: asyncio.Future[None]

    def __str__(self) -> str:
        return f"in step {self.step}, exchange {self.index}"


class Exchange:
    """All exchanges of this member with the others, over one channel for each ordered pair.

    ``addresses`` are where the members' receivers are reached, this one's too, in the order of the members.
    ``buffer_bytes`` bounds what is on its way at each end of each channel. An exchange that takes longer than
    ``deadline_s`` fails, and so does one with a member that has been without a connection for ``away_s``.

    After an error, or a cancelled `all_to_all`, it is closed: its tasks and channels are gone, the others get the
    reason, and every later call raises `ExchangeClosed`. The servers continue; an exchange of a later epoch can be
    opened at once.
    """

    def __init__(  # noqa: PLR0917 - they identify it, in this order everywhere
        self,
        sender: SenderServer,
        receiver: ReceiverServer,
        circuit: str,
        epoch: int,
        member: int,
        addresses: Sequence[str],
        *,
        buffer_bytes: int = BUFFER_BYTES,
        away_s: float = 5.0,
        deadline_s: float = 300.0,
    ) -> None:
        if not 0 <= member < len(addresses):
            raise ValueError(
                f"member {member} of {len(addresses)}: expected a number from 0 to {len(addresses) - 1}"
            )
        self._sender = sender
        self._receiver = receiver
        self._name = f"{circuit}/{epoch}"
        self._member = member
        self._addresses = tuple(addresses)
        self._others = {number: at for number, at in enumerate(addresses) if number != member}
        self._buffer = BufferPolicy(max_bytes=buffer_bytes)
        self._away_s = away_s
        self._deadline_s = deadline_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._peers: dict[int, Peer] = {}  # in the order in which they are sent to
        self._pumps: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._scope: asyncio.Timeout | None = None  # of the call that is to be interrupted by a failure
        self._current: _CurrentExchange | None = None
        self._at = (-1, 0)  # the last exchange
        self._failure: MemberError | None = None
        self._told = False  # the failure was raised
        self._leaving: asyncio.Task[None] | None = None

    # -- its life

    async def open(self, deadline_s: float) -> None:
        """Make the channels, and wait until all others have theirs.

        Raises:
            PeerMissing: one was not there within ``deadline_s``.
            ChannelInUse: this epoch is open on these servers already.
            ExchangeFailed: one was there, and left again.
            ExchangeClosed: it was opened before.
        """
        if self._loop is not None or self._failure is not None:
            raise await self._refusal("it was opened before")
        self._loop = asyncio.get_running_loop()
        try:
            await self._interruptible(self._meet_all(), deadline_s)
        except TimeoutError:
            peer = next((peer for peer in self._peers.values() if not peer.connected), self._first)
            self._fail(PeerMissing(peer.member, peer.address, self._name, deadline_s))
            raise await self._why() from None
        except BaseException as error:
            await self._give_up(error)
            raise
        self._timer = self._loop.call_later(LOOK_S, self._look)

    async def _meet_all(self) -> None:
        # Each begins with the one after it, so that not all send to the same one first.
        for number in sorted(self._others, key=lambda other: (other - self._member) % len(self._addresses)):
            self._peers[number] = peer = await self._meet(number)
            self._pumps.append(asyncio.create_task(self._pump(peer)))
        for peer in self._peers.values():
            await self._attached(peer)

    async def _meet(self, number: int) -> Peer:
        inbox = self._receiver.register_channel(
            f"{self._name}/{number}>{self._member}", codec="bytes", buffer=self._buffer
        )
        address = self._addresses[number]
        try:
            outbox = self._sender.register_channel(
                f"{self._name}/{self._member}>{number}", to=address, codec="bytes", buffer=self._buffer
            )
        except BaseException:
            await inbox.close()
            raise
        return Peer(number, address, outbox, inbox)

    @property
    def _first(self) -> Peer:
        return next(iter(self._peers.values()))

    async def _attached(self, peer: Peer) -> None:
        try:
            await peer.outbox.attached()
        except NetChannelError as error:
            raise peer.lost("before the first step", error, self._others) from error

    async def close(self) -> None:
        """End all channels in order, and wait a little until the others know. Nothing of it is left."""
        self._end(None, ExchangeClosed(self._name, "this member has closed it"))
        await self._why()

    async def abort(self, reason: str) -> None:
        """Give up: the others get the reason, and their exchanges fail with `PeerLeft`. Nothing of it is left."""
        self._end(reason, ExchangeClosed(self._name, f"this member has aborted it: {reason}"))
        await self._why()

    def _fail(self, error: ExchangeFailed) -> None:
        self._end(as_reason(error), error)

    async def _give_up(self, error: BaseException) -> None:
        """A call is left by something else than a failure of the exchange."""
        if isinstance(error, ExchangeFailed):
            self._fail(error)
        else:
            what = "cancelled" if isinstance(error, asyncio.CancelledError) else f"left by {error!r}"
            reason = f"a call of this member was {what}"
            self._end(reason, ExchangeClosed(self._name, reason))
        await self._why()

    def _end(self, reason: str | None, why: MemberError) -> None:
        """End it: waiting tasks are interrupted, and the others get ``reason``."""
        if self._leaving is not None:
            return
        self._failure = why
        loop = asyncio.get_running_loop()
        self._leaving = loop.create_task(self._dismiss(reason))
        if self._scope is not None:
            self._scope.reschedule(loop.time())

    async def _dismiss(self, reason: str | None) -> None:
        """Release everything: tasks, timers and channels."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._pumps, *(peer.asking for peer in self._peers.values() if peer.asking is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(peer.dismiss(reason) for peer in self._peers.values()))
        self._pumps.clear()
        self._peers.clear()

    async def _why(self) -> MemberError:
        """Return the error that has ended it, once nothing is left of it; the caller gets it."""
        assert self._leaving is not None
        assert self._failure is not None
        await asyncio.shield(self._leaving)
        self._told = True
        return self._failure

    async def _refusal(self, otherwise: str) -> MemberError:
        """Return why a call cannot begin: the failure since the last one, if it was not reported yet."""
        if self._failure is None:
            return ExchangeClosed(self._name, otherwise)
        if isinstance(self._failure, ExchangeFailed) and not self._told:
            return await self._why()
        reason = self._failure.reason if isinstance(self._failure, ExchangeClosed) else str(self._failure)
        return ExchangeClosed(self._name, reason)

    async def _interruptible(self, work: Coroutine[Any, Any, None], within_s: float | None = None) -> None:
        """Do ``work``. Raises TimeoutError if it takes too long, or the exchange ends meanwhile."""
        try:
            async with asyncio.timeout(within_s) as self._scope:
                await work
        finally:
            self._scope = None

    # -- an exchange

    async def all_to_all(
        self,
        step: int,
        index: int,
        parts: Sequence[pa.RecordBatch | None],
        senders: Collection[int] | None = None,
        receivers: Collection[int] | None = None,
    ) -> list[pa.RecordBatch | None]:
        """Send each receiver its part, and get this member's from each sender; all at once.

        ``parts`` are by the number of the member that gets them, all of one schema; None means none. ``senders`` and
        ``receivers`` take part, None: all members; the others' values must be the same. The result is by the number of
        the sending member: batches as they were sent, this member's own as it was given, and None for members that sent
        none, or do not take part. A member that receives nothing continues once its channels have taken its parts.
        Members pass exchanges in the same order, (step, index) rising.

        Raises:
            ExchangeClosed, ExchangeBusy: nothing was sent.
            PeerLost, PeerLeft, WrongStep, PartDamaged, ExchangeLate: it is closed now, see `ExchangeFailed`.
            ValueError: not one part for each member, or (step, index) is not above the last.

        A call that is cancelled closes the exchange too: others may have some of the parts.
        """
        if self._timer is None or self._failure is not None:
            raise await self._refusal("it was not opened")
        current = self._begin(step, index, parts, senders, receivers)
        try:
            await self._interruptible(self._exchange(current, parts, senders, receivers))
        except TimeoutError:
            raise await self._why() from None
        except BaseException as error:
            await self._give_up(error)
            raise
        finally:
            self._current = None
        return current.parts

    def _begin(
        self,
        step: int,
        index: int,
        parts: Sequence[pa.RecordBatch | None],
        senders: Collection[int] | None,
        receivers: Collection[int] | None,
    ) -> _CurrentExchange:
        if self._current is not None:
            raise ExchangeBusy((self._current.step, self._current.index), (step, index))
        if (step, index) <= self._at:
            raise ValueError(
                f"step {step}, exchange {index} is not after step {self._at[0]}, exchange {self._at[1]}"
            )
        if len(parts) != len(self._addresses):
            raise ValueError(f"{len(parts)} parts for {len(self._addresses)} members: expected one for each")
        self._at = (step, index)
        came: list[pa.RecordBatch | None] = [None] * len(parts)
        awaited: dict[int, Peer] = {}
        if receivers is None or self._member in receivers:
            if senders is None:
                awaited = dict(self._peers)
            else:
                awaited = {number: peer for number, peer in self._peers.items() if number in senders}
            if senders is None or self._member in senders:
                came[self._member] = parts[self._member]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._deadline_s
        self._current = _CurrentExchange(step, index, deadline, awaited, came, loop.create_future())
        return self._current

    async def _exchange(
        self,
        current: _CurrentExchange,
        parts: Sequence[pa.RecordBatch | None],
        senders: Collection[int] | None,
        receivers: Collection[int] | None,
    ) -> None:
        sends = senders is None or self._member in senders
        large = await self._send_small(current, parts, receivers) if sends else []
        for peer in list(current.awaited.values()):
            if peer.early is not None and self._take(peer, peer.early):
                peer.take_early()
            elif peer.ended is not None:
                raise peer.lost(str(current), peer.ended, self._others)
        if large:
            await self._send_large(current, large)
        if current.awaited:
            await current.arrived

    async def _send_small(
        self,
        current: _CurrentExchange,
        parts: Sequence[pa.RecordBatch | None],
        receivers: Collection[int] | None,
    ) -> list[tuple[Peer, Iterator[Message]]]:
        """Send those that are one message, and return the rest.

        They have room: a member that has not taken earlier parts lags, and needs nothing more from here.
        """
        large: list[tuple[Peer, Iterator[Message]]] = []
        for number, peer in self._peers.items():
            if receivers is not None and number not in receivers:
                continue
            messages = peer.encoder.messages(current.step, current.index, parts[number])
            if isinstance(messages, tuple):
                await self._send_to(peer, current, (messages,))
            else:
                large.append((peer, messages))
        return large

    async def _send_large(
        self, current: _CurrentExchange, large: Sequence[tuple[Peer, Iterator[Message]]]
    ) -> None:
        """Side by side, as each channel has room."""
        tasks = [asyncio.create_task(self._send_to(peer, current, messages)) for peer, messages in large]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_to(
        self, peer: Peer, current: _CurrentExchange, messages: Iterator[Message] | Sequence[Message]
    ) -> None:
        send = peer.outbox.send
        try:
            for body, note in messages:
                await send(body, note)
        except NetChannelError as error:
            raise peer.lost(str(current), error, self._others) from error

    # -- what comes

    async def _pump(self, peer: Peer) -> None:
        """Take what comes from one member, as long as it is for the exchange that this one is at."""
        receive = peer.inbox.recv_message
        try:
            while True:
                message = await receive()
                if not self._take(peer, message):
                    peer.early, peer.wanted = message, asyncio.get_running_loop().create_future()
                    await peer.wanted
        except EndOfChannel as error:
            peer.ended = error
            if self._current is not None and peer.member in self._current.awaited:
                self._fail(peer.lost(self._where, error, self._others))
        except NetChannelError as error:
            self._fail(peer.lost(self._where, error, self._others))
        except ExchangeFailed as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - any error: the exchange waits for this task
            why = f"{type(error).__name__}: {error}"
            self._fail(PartDamaged(peer.member, peer.address, self._where, why))

    def _take(self, peer: Peer, message: Received) -> bool:
        """Take a message of the exchange; False if nothing is wanted from this member now. Raises ExchangeFailed."""
        current = self._current
        if current is None or peer.member not in current.awaited:
            return False
        try:
            step, size, index, flags = NOTE.unpack(message.note)
            if step != current.step or index != current.index:
                raise WrongStep(peer.member, peer.address, (step, index), (current.step, current.index))
            whole = peer.decoder.add(index, size, flags, message.batch)
        except (Unreadable, struct.error) as error:
            raise PartDamaged(peer.member, peer.address, str(current), str(error)) from error
        if whole is not None:
            current.parts[peer.member] = whole[0]
            del current.awaited[peer.member]
            if not current.awaited and not current.arrived.done():
                current.arrived.set_result(None)
        return True

    # -- whether the others are there

    def _look(self) -> None:
        """Now and then: a task that waits for one member has to notice that another one is lost."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        current = self._current
        if current is not None and asyncio.get_running_loop().time() > current.deadline:
            self._fail(self._late(current))
            return
        for peer in self._peers.values():
            if current is None or peer.parted or peer.connected:
                peer.away_looks = 0
                continue
            peer.away_looks += 1  # and not by the clock: while this process is stopped, nothing can come back
            if peer.away_looks * LOOK_S >= self._away_s:
                why = f"there was no connection to it for {self._away_s:g} s"
                self._fail(PeerLost(peer.member, peer.address, str(current), why))
                return
            if peer.asking is None or peer.asking.done():
                peer.asking = asyncio.create_task(self._ask_after(peer))

    def _late(self, current: _CurrentExchange) -> ExchangeLate:
        missing = sorted(current.awaited)
        late = self._peers[missing[0]] if missing else self._slowest
        return ExchangeLate(
            late.member,
            late.address,
            str(current),
            missing=missing,
            of=len(current.parts),
            waited_s=self._deadline_s,
        )

    @property
    def _slowest(self) -> Peer:
        return max(self._peers.values(), key=lambda peer: peer.outbox.statistics().buffered_bytes)

    async def _ask_after(self, peer: Peer) -> None:
        try:
            await peer.ask_after()
        except (ConnectionRefusedError, FileNotFoundError) as error:
            why = f"nothing listens there any more ({error}): its process has ended"
            self._fail(PeerLost(peer.member, peer.address, self._where, why))
        except NetChannelError as error:
            self._fail(peer.lost(self._where, error, self._others))

    @property
    def _where(self) -> str:
        return "between two exchanges" if self._current is None else str(self._current)
