"""The state of an exchange for each other member, and whether that member is still there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import netchannel
from nebuli.steps.errors import PeerLeft, PeerLost, lost_in
from nebuli.steps.member.part_messages import PartDecoder, PartEncoder
from netchannel.transports import schemes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.steps.errors import ExchangeFailed

GOODBYE_S = 0.5
"""How long to wait until connected members are notified that this member leaves."""
_ASK_S = 1.0
_IN_ORDER = "this member has closed the exchange, after its last exchange"


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
                return PeerLeft(self.member, self.address, at, "it has ended this epoch in order")
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
