"""Offers to senders that asked for channels: tokens, until a data connection presents them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from netchannel.wire.messages import PORTS, TOKEN_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.link import Core
    from netchannel.core.timers import Timer
    from netchannel.wire import messages

    from .inbound import InboundChannel
    from .sessions import ReceiverControl

OFFERS_LIMIT = 100_000
"""Tokens that are out at a time, of all senders."""
COMING = 256
"""Senders that were offered a channel and are still to come with its token, before others are to wait.

Thousands together would stand in the kernel's queue until they give up (after `Timing.handshake_s`) and ask
again, which voids the token of the connection that is accepted next: then no sender is ever attached. A
sender that has not come by that time is not waited for.
"""


class Lease(NamedTuple):
    """A port that listens for one data connection, until it is closed."""

    port: int
    close: Callable[[], None]


@dataclass(slots=True, eq=False)
class Offer:
    """A channel that a sender may have if it comes with the token, and finds it as it was when it asked.

    ``channel`` is what it asked for, None if that is yet to be made (an attempt), and had then been attached
    ``attachments`` times: if another sender has had it since, this sender's knowledge of it may be outdated.
    """

    session: ReceiverControl
    request: messages.Open
    channel: InboundChannel | None
    attachments: int
    expiry: Timer
    lease: Lease | None

    def holds_for(self, channel: InboundChannel | None) -> bool:
        """True if no sender has had the channel since."""
        if channel is None:
            return self.channel is None
        return channel is self.channel and channel.attachments == self.attachments


class Offers:
    """Tokens that are out: one for each channel of a session, good once, and as long as the session lives."""

    def __init__(self, core: Core) -> None:
        self.lease: Callable[[], Lease] | None = (
            None  # where data connections do not go to the dialed address
        )
        self._core = core
        self._offers: dict[bytes, Offer] = {}
        self._coming: dict[bytes, float] = {}  # since when, the oldest first

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def full(self) -> bool:
        """True if there can be no more."""
        return len(self._offers) >= OFFERS_LIMIT

    def room_at(self, now: float) -> float:
        """The time when another may be asked to come: ``now``, or when the first one is not waited for any more."""
        while (
            self._coming and (due := next(iter(self._coming.values())) + self._core.timing.handshake_s) <= now
        ):
            del self._coming[next(iter(self._coming))]
        return now if len(self._coming) < COMING else due

    def make(
        self, session: ReceiverControl, request: messages.Open, channel: InboundChannel | None, now: float
    ) -> tuple[bytes, int | None]:
        """A token, and the port to come to, if the sender dials others. Raises OSError if no port is free."""
        self.void(session, request.channel)
        lease = None if self.lease is None or PORTS not in session.peer_features else self.lease()
        token = self._core.random(TOKEN_SIZE)
        expiry = self._core.timers.at(now + self._core.timing.token_s, lambda _: self._expired(token))
        request = replace(request, schema=None)  # which comes again with the data, and may be large
        attachments = 0 if channel is None else channel.attachments
        self._offers[token] = Offer(session, request, channel, attachments, expiry, lease)
        session.tokens[request.channel] = token
        self._coming[token] = now
        return token, None if lease is None else lease.port

    def take(self, token: bytes) -> Offer | None:
        """Return the offer of ``token``, once."""
        offer = self._offers.pop(token, None)
        self._coming.pop(token, None)
        if offer is None:
            return None
        del offer.session.tokens[offer.request.channel]
        offer.expiry.cancel()
        if offer.lease is not None:
            offer.lease.close()
        return offer

    def _expired(self, token: bytes) -> None:
        self.take(token)

    def void(self, session: ReceiverControl, channel_id: str) -> None:
        """The sender asks again: it does not come with the token that it has."""
        if (token := session.tokens.get(channel_id)) is not None:
            self.take(token)

    def left(self, session: ReceiverControl) -> None:
        """The session is over."""
        for token in list(session.tokens.values()):
            self.take(token)

    def clear(self) -> None:
        """Withdraw all offers: no sender is to come any more."""
        for token in list(self._offers):
            self.take(token)
