"""Staged groups: `GroupChannel` sends an attempt that is not visible, `GroupClient` commits the ones that count."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from xxhash import xxh3_64

from netchannel.core.groups.staged_channel import WINNER
from netchannel.core.sending.outbound import GroupTarget
from netchannel.core.sending.packer import Packer
from netchannel.errors import ChannelClosed, NetChannelError
from netchannel.storage.openers import open_buffer
from netchannel.values import CloseReport, Group, Sealed, check_given, check_kind, is_printable
from netchannel.wire import messages
from netchannel.wire.codec import ArrowEncoder
from netchannel.wire.frames import Scattered
from netchannel.wire.messages import TEXT_LIMIT

from .client import Client
from .sender_channel import SenderChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import pyarrow as pa

    from netchannel.core.client_core import ClientChannel
    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.packer import Ticket
    from netchannel.policies import BufferPolicy, FaultPolicy, Timing
    from netchannel.storage.openers import OpenedBuffer
    from netchannel.tls import Tls
    from netchannel.wire.codec import CodecName, Encoder
    from netchannel.wire.frame_memory import FrameMemory
    from netchannel.wire.frames import Body

NUMBERS = 1 << 63
"""The bound below which epochs and partitions are."""
ATTEMPT_BYTES = 16
WINNERS_LIMIT = 80_000
"""The most attempts that a commit, which is one message, may name."""
_LABEL = 120


def check_group(group: Group) -> Group:
    """Raise ValueError for what cannot be one."""
    application, epoch, partition = group
    _check_application(application)
    for name, number in (("epoch", epoch), ("partition", partition)):
        if not (isinstance(number, int) and not isinstance(number, bool) and 0 <= number < NUMBERS):
            raise ValueError(f"the {name} of a group is {number!r}: expected 0 to {NUMBERS - 1}")
    return group


def _check_application(application: str) -> None:
    check_kind("application", application, str)
    if not 1 <= len(application) <= TEXT_LIMIT or not is_printable(application):
        raise ValueError(
            f"the application {application[:60]!r} has {len(application)} characters: expected 1 to {TEXT_LIMIT}, "
            f"all of them printable"
        )


def attempt_id(channel_id: str, group: Group, attempt: str) -> str:
    """Return the id of an attempt's channel on the wire, which is unique."""
    label = f"{channel_id} {group.epoch}.{group.partition}".encode()[:_LABEL].decode(errors="ignore")
    return f"{label} {attempt}"


class Tally(Packer):
    """A packer that sums what it takes, at the moment when that has a place in the stream.

    ``rows`` is the number of rows of the last encoded body; those of bodies that wait for room are in ``waiting``.
    """

    __slots__ = ("count", "digest", "encoder", "row_count", "size_in_all", "waiting")

    def __init__(self, encoder: RowsEncoder, memory: FrameMemory) -> None:
        super().__init__(memory)
        self.encoder = encoder
        self.digest = xxh3_64()
        self.count = self.row_count = self.size_in_all = 0
        self.waiting: dict[int, int] = {}

    def take(self, body: Body) -> bool:
        """Take a message, and sum it, if there is credit for it."""
        taken = super().take(body)
        if taken:
            self._note(body, b"", self.encoder.rows)
        return taken

    def add(self, body: Body, note: bytes, cost: int) -> None:
        """Take a message, and sum it."""
        super().add(body, note, cost)
        self._note(body, note, self.waiting.get(id(body), self.encoder.rows))

    def _note(self, body: Body, note: bytes, rows: int) -> None:
        digest = xxh3_64()
        for piece in body.pieces if isinstance(body, Scattered) else (body,):
            digest.update(piece)
        self.digest.update(digest.intdigest().to_bytes(8, "little"))
        self.count += 1
        self.row_count += rows
        self.size_in_all += len(body) + len(note)


class RowsEncoder:
    """A channel's encoder, and how many rows the last value had."""

    def __init__(self, encoder: Encoder) -> None:
        self.schema, self.context = encoder.schema, encoder.context
        self.allocations = encoder.allocations
        self.rows = 1
        self._encoder = encoder
        self._counts = isinstance(encoder, ArrowEncoder)

    def as_they_are(self, values: Sequence[Any]) -> bool:
        """False: values do not go as they are, each is counted."""
        return False

    def encode(self, value: Any) -> Body:
        """Make a message's body."""
        body = self._encoder.encode(value)
        self.schema, self.context = self._encoder.schema, self._encoder.context
        if self._counts:
            self.rows = value.num_rows
        return body


class GroupChannel(SenderChannel):
    """An attempt at one partition of a staged group. Made by `SenderServer.register_attempt`.

    Messages are held at the receiver, invisible until `GroupClient.commit` names the result of `seal`.
    Each registration is a separate attempt. An attempt that is not sealed is dropped by `abort`, by `close`,
    when the server is left, and when the receiver restarts, which raises `AttemptLost`.
    """

    def __init__(
        self,
        core: OutboundChannel,
        encoder: RowsEncoder,
        clock: Callable[[], float],
        *,
        channel_id: str,
        group: Group,
    ) -> None:
        super().__init__(core, encoder, clock)
        self.group = group
        self._rows_of = encoder
        self._id = channel_id
        tally = core.packer
        assert isinstance(tally, Tally)
        self._tally = tally
        self._sealed: Sealed | None = None

    @property
    def id(self) -> str:
        """The id of the channel that the group is for."""
        return self._id

    async def _append(self, body: Body, note: bytes) -> Ticket | None:
        self._tally.waiting[id(body)] = self._rows_of.rows
        try:
            return await super()._append(body, note)
        finally:
            self._tally.waiting.pop(id(body), None)

    async def seal(self) -> Sealed:
        """End the attempt, and wait until the receiver has all of it on its disk.

        Raises ChannelClosed if the attempt was given up, AttemptLost if the receiver was restarted meanwhile,
        ChannelClosedByPeer if the receiver does not accept it (e.g. too much is staged), and the error that broke the
        channel. After a cancelled call, sealing continues: call `seal` again.
        """
        if self._sealed is None:
            if self.core.aborted:
                self.core.check_open()
            await super().close()
            tally = self._tally
            self._sealed = Sealed(
                self.group.partition, self.stream, tally.count, tally.row_count, tally.size_in_all,
                tally.digest.intdigest(),
            )  # fmt: skip
        return self._sealed

    async def close(self, grace: float | None = None) -> CloseReport:
        """Drop the attempt, unless it is sealed.

        The receiver is notified within ``grace`` seconds, or not at all.
        """
        if self._sealed is None and not self.core.terminal:
            within_s = self.core.core.timing.leave_s
            await self._fail("closed without a seal", within_s if grace is None else min(grace, within_s))
        return CloseReport(self.core.acknowledged)

    async def detach(self) -> None:
        """Raise, because an attempt has no successor: ChannelClosed if it has ended, else NetChannelError."""
        self.core.check_open()
        raise NetChannelError(
            f"an attempt for channel {self.id!r} cannot be detached, because it has no successor: seal or "
            f"abort it; to try the partition again, register another attempt"
        )


def as_winners(sealed: Sequence[Sealed]) -> bytes:
    """The attempts of a commit on the wire, in the order of their partitions. Raises ValueError, TypeError."""
    if len(sealed) > WINNERS_LIMIT:
        raise ValueError(
            f"a commit names {len(sealed)} attempts, and the limit is {WINNERS_LIMIT}: make fewer partitions"
        )
    for each in sealed:
        if not isinstance(each, Sealed):
            raise TypeError(f"a winner is {str(each)[:80]!r}: expected the result of seal()")
    ordered = sorted(sealed, key=lambda each: each.partition)
    twice = [a.partition for a, b in pairwise(ordered) if a.partition == b.partition]
    if twice:
        raise ValueError(
            f"the winners contain two attempts for partition {twice[0]}: name one attempt for each partition"
        )
    return b"".join(map(_as_winner, ordered))


def _as_winner(sealed: Sealed) -> bytes:
    try:
        attempt = bytes.fromhex(sealed.attempt)
        if len(attempt) == ATTEMPT_BYTES:
            return WINNER.pack(sealed.partition, sealed.count, sealed.bytes, sealed.checksum, attempt)
    except (TypeError, ValueError, struct.error):
        pass
    raise ValueError(f"a winner is {str(sealed)[:300]}: expected the unchanged result of seal()")


class GroupClient:
    """Commits groups into the channel ``channel_id`` of the receiver at ``to``; an async context manager.

    Every call is repeated until the receiver has answered, even after lost connections, for as long as ``fault``
    allows (by default forever). If the receiver has no space for a commit yet, the commit waits without a limit, and
    the reason is logged once. Another process can repeat any of these calls: each takes effect only once.
    """

    def __init__(
        self,
        to: str,
        channel_id: str,
        *,
        secret: str | None = None,
        tls: Tls | None = None,
        fault: FaultPolicy | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._to = to
        self._id = channel_id
        self._fault = fault
        self._client = Client(secret=secret, tls=tls, timing=timing)
        self._channel: ClientChannel | None = None

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            self._channel = self._client.register(self._id, self._to, self._fault)
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel = None
        await self._client.__aexit__(kind, error, trace)

    @property
    def error(self) -> NetChannelError | None:
        """The error that ended this client; all later calls raise it, and a new client is needed.

        None while the client works.
        """
        return None if self._channel is None else self._channel.error

    async def commit(
        self, application: str, epoch: int, winners: Sequence[Sealed], *, end: bool = False
    ) -> bool:
        """Publish the attempts that ``winners`` name, atomically, in the order of their partitions.

        Returns True if this call has published them durably. Returns False, without another effect, if this epoch was
        committed before. All other attempts of this epoch, and of lower epochs, are dropped. With ``end`` the stream
        ends after this group.

        Raises:
            EpochRegressed: a later epoch of the application is committed.
            AttemptLost: a winner is missing, not sealed, or differs from what was sealed: nothing of the group is
                published.
            SchemaMismatch: a winner has another schema than the channel.
            ChannelClosed: the stream has ended, or its consumer has closed it.
            ChannelBroken: the receiver's disk has failed, or ``fault`` gave up: commit again to learn the outcome.
        """
        group = check_group(Group(application, epoch, 0))
        check_given("end", end, bool)
        committed: messages.Committed = await self._ask(
            messages.Commit,
            application=group.application,
            epoch=epoch,
            winners=as_winners(winners),
            end=end,
        )
        return committed.fresh

    async def drop(self, application: str, epoch: int) -> None:
        """Remove the uncommitted attempts of this epoch, and of lower epochs."""
        group = check_group(Group(application, epoch, 0))
        await self._ask(messages.Drop, application=group.application, epoch=epoch)

    async def last_epoch(self, application: str) -> int | None:
        """The last committed epoch of the application; None before its first commit."""
        return (await self._epoch(application)).epoch

    async def waits_for(self, application: str) -> str | None:
        """Return the reason why a commit of all sealed attempts of the application would wait now, or None.

        Callers can use it to wait before the commit instead of within it. Returns None, too, if the receiver does not
        report the reason.
        """
        return (await self._epoch(application)).full

    async def _epoch(self, application: str) -> messages.EpochIs:
        _check_application(application)
        found: messages.EpochIs = await self._ask(messages.Epoch, application=application)
        return found

    async def forget(self, application: str) -> None:
        """Delete the record of an application's epochs, which may then start again; committed groups stay.

        A channel records at most 10,000 applications. Use it only if no commit of the application will be repeated,
        e.g. after a finished job: a repeated commit would find no record of the first one. Raises ChannelClosed once
        the stream has ended and is read.
        """
        _check_application(application)
        await self._ask(messages.Forget, consumer=application)

    async def _ask(self, kind: type[messages.Question], **fields: Any) -> Any:
        if self._channel is None:
            raise ChannelClosed("this GroupClient is not running: use it within 'async with'")
        return await self._client.ask(self._channel, kind, **fields)


class SharedGroupClient(GroupClient):
    """A client among many on connections that others use too; it lives until `close`."""

    def __init__(self, client: Client, to: str, channel_id: str, fault: FaultPolicy | None) -> None:
        self._client = client
        self._channel = client.register(channel_id, to, fault)

    def close(self) -> None:
        """Ask no more."""
        if self._channel is not None and self._client.runner is not None:
            self._channel.close(self._client.runner.clock())


def open_attempt(
    policy: BufferPolicy, channel_id: str, codec: CodecName, schema: pa.Schema | None, group: Group
) -> tuple[OpenedBuffer, RowsEncoder, str]:
    """Return the settings of an attempt's channel, and its id on the wire.

    Raises ValueError for a group that cannot be, and for a buffer that does not go with one.
    """
    check_group(group)
    if policy.directory is not None or policy.when_full == "drop_oldest":
        raise ValueError(
            f"an attempt of a group has no successor, and its messages must not be lost, so its buffer cannot "
            f"be {policy}: omit directory= and when_full='drop_oldest'"
        )
    opened = open_buffer(policy, channel_id, codec, schema, None)
    encoder = RowsEncoder(opened.encoder)

    def prepare(channel: OutboundChannel) -> None:
        opened.prepare(channel)
        channel.group = GroupTarget(channel_id, *group)
        channel.packer = Tally(encoder, channel.core.frames)

    return opened._replace(prepare=prepare), encoder, attempt_id(channel_id, group, opened.stream)
