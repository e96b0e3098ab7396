"""The channels that a process receives on, and what is left of those that are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .tombstones import Tombstones

if TYPE_CHECKING:
    from netchannel.core.calls.callees import Callees
    from netchannel.wire import messages

    from .admission import Available, Refusal
    from .inbound import InboundChannel
    from .requests import ChannelServices
    from .tombstones import Tombstone


class Staged(Protocol):
    """A channel that takes groups: its answers to senders of attempts at them."""

    def attempt(self, request: messages.Open) -> InboundChannel | None:
        """The channel of the attempt, if it is being written."""

    def verdict(self, request: messages.Open) -> Tombstone | Refusal | None:
        """Return the objection to a sender of an attempt, if there is one."""

    def begin(self, request: messages.Open, kept: Available, now: float) -> InboundChannel | Refusal:
        """Return a channel for a sender that has come with an attempt."""


class Registry:
    """Channels by their ids, those among them that take groups, what is done for clients, and services to call."""

    def __init__(self, services: ChannelServices, callees: Callees) -> None:
        self.channels: dict[str, InboundChannel] = {}
        self.staged: dict[str, Staged] = {}
        self.services = services
        self.callees = callees
        self.tombstones = Tombstones()
        services.is_channel = self.channels.__contains__

    def announce(self, channel_id: str) -> None:
        """Invite the senders that were denied the channel to ask again, as it is registered now."""
        self.tombstones.registered(channel_id)
        self.services.invite(channel_id)
