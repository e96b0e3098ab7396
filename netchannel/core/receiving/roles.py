"""The roles of those that a receiver's channel deals with, as it sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from netchannel.wire.frames import Buffer

    from .borrower import Borrower

# The channel's own class: its module has these roles, and would be imported back.
Channel = TypeVar("Channel")
Channel_contra = TypeVar("Channel_contra", contravariant=True)


class Feed(Protocol):
    """The origin of a channel's messages, which gets its acknowledgements: a connection, or what stands for one."""

    reading: bool
    acknowledging: bool

    def send(self, *buffers: Buffer) -> None:
        """Send a frame to the sender."""

    def acknowledge(self) -> None:
        """Send at the end of this turn of the loop the acknowledged number."""

    def acknowledge_later(self) -> None:
        """The same, after a little while, with what is acknowledged by then."""

    def upquery(self, body: bytes) -> bool:
        """Ask the sender for something; whether that goes out, to one that takes upqueries."""

    def touched(self) -> None:
        """``reading`` has changed."""

    def supersede(self) -> None:
        """Another one has its place."""

    def leave(self, farewell: Buffer | None, now: float) -> None:
        """The channel is over."""


class Session(Protocol[Channel]):
    """The control connection of a sender, as its channels see it.

    ``line`` is what it has in common with others of the same process, ``peer_features`` what the sender can do,
    ``borrower`` what memory it shares.
    """

    peer: str
    peer_features: frozenset[str]
    line: bytes
    channels: dict[Channel, None]
    borrower: Borrower | None

    def heard(self, now: float) -> None:
        """A byte came from the peer."""


class Retainer(Protocol):
    """A consumer that keeps the stream: it takes what comes as it comes."""

    @property
    def end_kept(self) -> bool:
        """True if the end of the channel's stream is kept, and may be acknowledged."""

    def drain(self, now: float) -> None:
        """The channel has received something."""

    def against(self) -> str:
        """Why no new stream is taken now; empty if one is."""


class Owner(Protocol[Channel_contra]):
    """The owner of a channel, which notifies others of it.

    Messages of more than ``message_limit`` bytes are not taken.
    """

    message_limit: int

    def announce(self, channel_id: str) -> None:
        """Senders of new streams may ask again."""

    def invite(self, channel_id: str) -> None:
        """Senders may ask again."""

    def had_sender(self, channel_id: str) -> bool:
        """True if a stream of the channel was here before, and is over."""

    def released(self, channel: Channel_contra, now: float) -> None:
        """The channel is over."""
