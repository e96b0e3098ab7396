"""What the two faces of the process-wide services share: what does not wait. `process` blocks, `aio` awaits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.errors import NetChannelError
    from netchannel.servers.groups import GroupChannel, SharedGroupClient
    from netchannel.servers.reader import ChannelReader
    from netchannel.servers.receiver import ReceiverServer
    from netchannel.servers.receiver_channel import ReceiverChannel
    from netchannel.servers.retaining import RetainedChannel
    from netchannel.servers.sender import SenderServer
    from netchannel.servers.sender_channel import SenderChannel
    from netchannel.values import (
        ChannelStatistics,
        Group,
        Heads,
        Position,
        RetainPolicy,
        ServerStatistics,
        StagingPolicy,
    )

    from .services import ServiceThread

Face = TypeVar("Face")
GroupFace = TypeVar("GroupFace")
RetainedFace = TypeVar("RetainedFace")


class SenderChannelFace:
    """A `SenderChannel` that lives on ``thread``."""

    def __init__(self, thread: ServiceThread, channel: SenderChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str:
        """As `SenderChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> int:
        """As `SenderChannel.position`."""
        return self._channel.position

    def statistics(self) -> ChannelStatistics:
        """As `SenderChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class GroupChannelFace(SenderChannelFace):
    """A `GroupChannel` that lives on ``thread``."""

    _channel: GroupChannel

    @property
    def group(self) -> Group:
        """As `GroupChannel.group`."""
        return self._channel.group


class GroupClientFace:
    """A `GroupClient` on the process-wide client."""

    def __init__(self, thread: ServiceThread, client: SharedGroupClient) -> None:
        self._thread = thread
        self._client = client

    @property
    def error(self) -> NetChannelError | None:
        """As `GroupClient.error`."""
        return self._client.error


class ReceiverChannelFace:
    """A `ReceiverChannel` that lives on ``thread``."""

    def __init__(self, thread: ServiceThread, channel: ReceiverChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `ReceiverChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> Position | None:
        """As `ReceiverChannel.position`."""
        return self._channel.position

    def statistics(self) -> ChannelStatistics:
        """As `ReceiverChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class RetainedChannelFace:
    """A `RetainedChannel` that lives on ``thread``."""

    def __init__(self, thread: ServiceThread, channel: RetainedChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `RetainedChannel.stream`."""
        return self._channel.stream

    @property
    def latest(self) -> Heads:
        """As `RetainedChannel.latest`."""
        return self._thread.call(lambda: self._channel.latest)

    def statistics(self) -> ChannelStatistics:
        """As `RetainedChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class ChannelReaderFace:
    """A `ChannelReader` that lives on ``thread``, over the process' connections."""

    def __init__(self, thread: ServiceThread, reader: ChannelReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._reader.id

    @property
    def latest(self) -> Heads | None:
        """As `ChannelReader.latest`."""
        return self._reader.latest

    @property
    def error(self) -> NetChannelError | None:
        """As `ChannelReader.error`."""
        return self._reader.error


class SenderServerFace(Generic[Face, GroupFace]):
    """The process-wide `SenderServer`; its channels are made by ``face``, those of groups by ``group_face``."""

    face: Callable[[ServiceThread, SenderChannel], Face]
    group_face: Callable[[ServiceThread, GroupChannel], GroupFace]

    def __init__(self, thread: ServiceThread, server: SenderServer) -> None:
        self._thread = thread
        self._server = server

    def register_channel(self, channel_id: str, to: str, **settings: Any) -> Face:
        """As `SenderServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, to, **settings)
        return type(self).face(self._thread, channel)

    def register_attempt(self, channel_id: str, to: str, group: Group, **settings: Any) -> GroupFace:
        """As `SenderServer.register_attempt`."""
        channel = self._thread.call(self._server.register_attempt, channel_id, to, group, **settings)
        return type(self).group_face(self._thread, channel)

    def statistics(self) -> ServerStatistics[tuple[str, str]]:
        """As `SenderServer.statistics`."""
        return self._server.statistics()


class ReceiverServerFace(Generic[Face, RetainedFace]):
    """The process-wide `ReceiverServer`; its channels are made by ``face``."""

    face: Callable[[ServiceThread, ReceiverChannel], Face]
    retained_face: Callable[[ServiceThread, RetainedChannel], RetainedFace]

    def __init__(self, thread: ServiceThread, server: ReceiverServer) -> None:
        self._thread = thread
        self._server = server

    @property
    def address(self) -> str:
        """As `ReceiverServer.address`."""
        return self._server.address

    def register_channel(self, channel_id: str, **settings: Any) -> Face:
        """As `ReceiverServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, **settings)
        return type(self).face(self._thread, channel)

    def register_staged_channel(self, channel_id: str, policy: StagingPolicy, **settings: Any) -> Face:
        """As `ReceiverServer.register_staged_channel`."""
        channel = self._thread.call(self._server.register_staged_channel, channel_id, policy, **settings)
        return type(self).face(self._thread, channel)

    def retain_channel(self, channel_id: str, policy: RetainPolicy, **settings: Any) -> RetainedFace:
        """As `ReceiverServer.retain_channel`."""
        channel = self._thread.call(self._server.retain_channel, channel_id, policy, **settings)
        return type(self).retained_face(self._thread, channel)

    def statistics(self) -> ServerStatistics[str]:
        """As `ReceiverServer.statistics`."""
        return self._server.statistics()
