"""A staged channel without I/O: attempts that come, groups that are committed, and what becomes of the rest."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import (
    ChannelBroken,
    NetChannelError,
    PositionLost,
    ProtocolError,
    SchemaMismatch,
    StreamReplaced,
)
from netchannel.storage import AttemptKey, StorageFull
from netchannel.values import FaultPolicy

from .admission import Refusal
from .attempts import Attempt, AttemptDecoder
from .feeding import Feeder
from .inbound import InboundChannel
from .link import Job, log
from .requests import Service
from .staged_files import Keeper
from .states import ReceiverState
from .tombstones import Tombstone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netchannel.codec import Decoder
    from netchannel.storage import SealedAttempt, StagingStore
    from netchannel.values import StagingPolicy

    from .messages import Message
    from .receiver import ReceiverCore
    from .requests import RequestControl
    from .timers import Timer

WINNER = struct.Struct("<QQQQ16s")
"""An attempt that a commit names: partition, messages, bytes, checksum, and which of the partition's it is."""
ATTEMPTS_LIMIT = 10_000
"""Attempts of a channel that are being written at a time."""
OVER_LIMIT = 1000
"""Channels that are over, and still answer whether something was committed."""


class Winner(NamedTuple):
    """An attempt that a commit names, and what it was when it was sealed."""

    partition: int
    messages: int
    size: int
    checksum: int
    attempt: str


def winners_of(data: bytes) -> list[Winner]:
    """The attempts of a commit. Raises ProtocolError."""
    if len(data) % WINNER.size:
        raise ProtocolError(f"the winners of a commit have {len(data)} bytes: {WINNER.size} are one")
    return [Winner._make((*fields[:4], fields[4].hex())) for fields in WINNER.iter_unpack(data)]


class StagedChannel(Service):
    """What a staged channel has beside its consumer's side (``channel``): its attempts and its files.

    Raises SchemaMismatch if ``channel`` does not take what is committed already.
    """

    def __init__(
        self,
        core: ReceiverCore,
        channel: InboundChannel,
        store: StagingStore,
        policy: StagingPolicy,
        *,
        make_decoder: Callable[[], Decoder],
        now: float,
    ) -> None:
        self.core = core
        self.channel = channel
        self.store = store
        self._policy = policy
        self._make_decoder = make_decoder
        self._attempts: dict[str, Attempt] = {}  # that are being written, by the ids of their channels
        self._sealed: dict[AttemptKey, tuple[SealedAttempt, Timer]] = {}
        self._grew: dict[tuple[str, int], float] = {}  # when an attempt of a group was sealed last
        self._over = ""  # why nothing is taken any more
        self._ended = store.state.ended
        self._error: NetChannelError | None = None  # what stands against the consumer's position
        self.keeper = Keeper(self, store)
        self.feeder = Feeder(channel, store, self.keeper.request, self._left)
        channel.unsettled = True
        channel.disk_bytes = lambda: self.disk_bytes
        core.staged[channel.id] = core.services[channel.id] = self
        for sealed in store.found:
            self._keep(sealed, now)
        self._begin(now)

    def _begin(self, now: float) -> None:
        channel, store = self.channel, self.store
        self._error = error = self._misplaced()
        channel.feed(self.feeder, store.stream, "its committed groups", store.acknowledged, now)
        if error is not None:
            channel.fail(error, now)
            return
        self.feeder.request()
        self._look(now)

    def _misplaced(self) -> NetChannelError | None:
        """What stands against ``resume_from``."""
        channel, store = self.channel, self.store
        place = f"channel {channel.id!r} is to go on at number {channel.expected}"
        if channel.stream not in (None, store.stream):
            return StreamReplaced(
                f"{place} of stream {channel.stream!r}, and its files hold {store.stream!r}"
            )
        if channel.expected is None:
            return None
        if channel.expected > store.state.head:
            return StreamReplaced(f"{place}, and only {store.state.head} messages were committed")
        if channel.expected < store.oldest:
            return PositionLost(f"{place}, and the oldest message that is kept is {store.oldest}")
        return None

    # -- the consumer

    @property
    def acknowledged(self) -> int:
        """Everything below is done: acknowledged explicitly, or read."""
        channel = self.channel
        if self._error is not None:
            return self.store.acknowledged
        return channel.acked if channel.explicit else channel.position or 0

    @property
    def finished(self) -> bool:
        """The stream has ended, and all of it is done."""
        return self._ended and not self._over and self.acknowledged == self.store.state.head

    @property
    def busy(self) -> bool:
        """Whether files are in use that are to be closed: nobody needs an attempt any more then."""
        return self.feeder.busy or bool(self._attempts)

    def _look(self, now: float) -> None:
        """There may be something to read, or nothing any more."""
        self.feeder.request()
        channel = self.channel
        if self._ended and channel.explicit and channel.ended is None and self.feeder.at_head:
            channel.end(self.store.state.head, now)
        self.keeper.request()

    def settled(self, now: float) -> None:
        """The files are closed."""
        channel = self.channel
        if channel.terminal or channel.ended is not None:
            channel.settle(now)
        else:
            channel.unsettled = False
            channel.end(self.channel.expected or 0, now)

    def _left(self, now: float) -> None:
        """The consumer's side is over."""
        channel, core = self.channel, self.core
        del core.staged[channel.id]
        self._over = f"channel {channel.id!r} takes no more groups: {channel.error or 'its stream has ended'}"
        for _, timer in self._sealed.values():
            timer.cancel()
        del core.services[channel.id]
        if not self._awaits_successor:
            core.over[channel.id] = self
            if len(core.over) > OVER_LIMIT:
                del core.over[next(iter(core.over))]
        for attempt in list(self._attempts.values()):
            if channel.state is ReceiverState.DETACHED:
                attempt.channel.detach(now)
            else:
                attempt.channel.close(self._over, now)
        self.keeper.leave()

    @property
    def _awaits_successor(self) -> bool:
        """Whether another one can go on with what is on the disk."""
        return self.channel.state in (ReceiverState.DETACHED, ReceiverState.BROKEN)

    # -- attempts

    def open(self, request: Message, now: float) -> InboundChannel | Refusal | Tombstone:
        """Somebody wants to send an attempt: the channel for it, or what stands against it."""
        known = self.core.channels.get(request["channel"])
        key = AttemptKey(
            request["application"] or "", request["epoch"] or 0, request["partition"] or 0, request["stream"]
        )
        if known is not None:
            attempt = self._attempts.get(known.id)
            if attempt is not None and attempt.key == key:
                return known
            return Refusal("policy", f"channel {known.id!r} is another one than this attempt")
        if (found := self._sealed.get(key)) is not None:
            return Tombstone(found[0].count, "end", "it is sealed")
        against = self._against(key, request)
        return self._opened(key, request, now) if against is None else against

    def _against(self, key: AttemptKey, request: Message) -> Refusal | None:
        if (regressed := self.regressed(key.application, key.epoch)) is not None:
            return regressed
        if self._ended:
            return Refusal("ended", f"the stream of channel {self.channel.id!r} has ended")
        if request["oldest"]:
            text = f"{request['oldest']} messages of the attempt were taken by a receiver that has been restarted"
            return Refusal("attempt", f"{text}: what was not sealed is gone; begin another attempt")
        if len(self._attempts) >= ATTEMPTS_LIMIT:
            text = f"{len(self._attempts)} attempts are being written, the limit is {ATTEMPTS_LIMIT}"
            return Refusal("limit", text)
        return None

    def regressed(self, application: str, epoch: int) -> Refusal | None:
        """What stands against an attempt whose epoch is committed, or below one that is; also when all is over."""
        last = self.store.state.epochs.get(application, -1)
        if epoch > last:
            return None
        text = f"epoch {epoch} of application {application!r} is over: epoch {last} is committed"
        return Refusal("regressed", text)

    def _opened(self, key: AttemptKey, request: Message, now: float) -> InboundChannel:
        decoder = AttemptDecoder(self._make_decoder())
        channel = InboundChannel(
            self.core,
            request["channel"],
            codec=self.channel.codec,
            decoder=decoder,
            explicit=False,
            resume_from=None,
            buffer=self.channel.buffer,
            fault=FaultPolicy(retry=self._policy.orphan_s),
            now=now,
        )
        channel.into = self.channel.id
        self.core.channels[channel.id] = channel
        self._attempts[channel.id] = Attempt(self, channel, decoder, self.store.attempt(key))
        return channel

    @property
    def disk_bytes(self) -> int:
        """Of all that is held and kept."""
        return 0 if self.keeper.settled else self.staged_bytes + self.store.disk_bytes

    @property
    def staged_bytes(self) -> int:
        """Bytes of all attempts that are not committed; also read by other threads, for statistics."""
        written = sum(attempt.bytes for attempt in list(self._attempts.values()))
        return written + sum(sealed.size for sealed, _ in list(self._sealed.values()))

    def over_limit(self, attempt: Attempt) -> str:
        """Why ``attempt`` cannot go on, if it cannot."""
        staged, limit = self.staged_bytes, self._policy.max_staged_bytes
        if staged <= limit:
            return ""
        return (
            f"with {attempt.bytes} bytes of the attempt for partition {attempt.key.partition} of epoch "
            f"{attempt.key.epoch}, {staged} bytes are staged, and max_staged_bytes is {limit}: commit or drop what is "
            f"there, make smaller groups, or raise it"
        )

    def sealed(self, attempt: Attempt, sealed: SealedAttempt, now: float) -> None:
        """An attempt is on the disk."""
        self.forget(attempt)
        if attempt.channel.terminal or self._over:
            self.keeper.remove([sealed])
        else:
            self._keep(sealed, now)

    def _keep(self, sealed: SealedAttempt, now: float) -> None:
        self._grew[sealed.key.application, sealed.key.epoch] = now
        self._remind(sealed, now + self._policy.orphan_s)

    def _remind(self, sealed: SealedAttempt, when: float) -> None:
        timer = self.core.timers.at(when, lambda now: self._due(sealed, now))
        self._sealed[sealed.key] = sealed, timer

    def _due(self, sealed: SealedAttempt, now: float) -> None:
        """It has waited for long: for others of its group, if these are still being written."""
        key = sealed.key
        group = key.application, key.epoch
        if any((each.key.application, each.key.epoch) == group for each in self._attempts.values()):
            self._remind(sealed, now + self._policy.orphan_s)
        elif (when := self._grew[group] + self._policy.orphan_s) > now:
            self._remind(sealed, when)
        else:
            self._orphaned(key)

    def _orphaned(self, key: AttemptKey) -> None:
        """Nobody has named it: when its turn comes, it may be committed all the same."""

        def step() -> Job | None:
            if key in self._sealed:
                log.warning(
                    "channel %s: %s was sealed %s s ago and not committed: removed",
                    self.channel.id, key, self._policy.orphan_s,
                )  # fmt: skip
                self.keeper.remove(self._taken([key]))
            return None

        self.keeper.do(step)

    def _taken(self, keys: list[AttemptKey]) -> list[SealedAttempt]:
        taken = []
        for key in keys:
            sealed, timer = self._sealed.pop(key)
            timer.cancel()
            taken.append(sealed)
        groups = {(key.application, key.epoch) for key in self._sealed}
        self._grew = {group: when for group, when in self._grew.items() if group in groups}
        return taken

    def forget(self, attempt: Attempt) -> None:
        """It is written no more."""
        self._attempts.pop(attempt.channel.id, None)
        self.keeper.request()

    # -- what clients ask

    def asked(self, client: RequestControl, message: Message, now: float) -> bool:
        application = message.get("application", "")
        if not application and message["t"] in ("commit", "drop", "epoch"):
            raise ProtocolError(f"{client.peer} asks for groups of an application without a name")
        match message["t"]:
            case "commit":
                winners = winners_of(message["winners"])
                self._ask(lambda: self._commit(client, message, winners))
            case "drop":
                self._ask(lambda: self._drop(client, message))
            case "epoch":
                self._ask(lambda: client.answer(message, epoch=self.store.state.epochs.get(application)))
            case _:
                return False
        return True

    def _ask(self, step: Callable[[], Job | None]) -> None:
        """In turn with all that changes the files; where these are closed, nothing changes any more."""
        if self.keeper.settled:
            step()
        else:
            self.keeper.do(step)

    def _commit(self, client: RequestControl, message: Message, winners: list[Winner]) -> Job | None:
        application, epoch = message["application"], message["epoch"]
        last = self.store.state.epochs.get(application)
        if last == epoch:
            client.answer(message, fresh=False)
            return None
        if last is not None and epoch < last:
            text = f"epoch {epoch} of application {application!r} is below epoch {last}, which is committed"
            client.deny(message, "regressed", f"channel {self.channel.id!r}: {text}")
            return None
        if self._over and self._awaits_successor:
            client.deny(message, "unregistered", self._over)
            return None
        if self._over or self._ended:
            text = f"the stream of channel {self.channel.id!r} has ended: register it again for a new one"
            client.deny(message, "ended", self._over or text)
            return None
        keys = [AttemptKey(application, epoch, winner.partition, winner.attempt) for winner in winners]
        against = next(self._objections(keys, winners), None)
        if against is not None:
            client.deny(message, against.code, f"channel {self.channel.id!r}: {against.message}")
            return None
        found = [self._sealed[key][0] for key in keys]
        return _Commit(self, client, message, found)

    def _objections(self, keys: list[AttemptKey], winners: list[Winner]) -> Iterator[Refusal]:
        """What stands against a commit."""
        epoch = f"of epoch {keys[0].epoch} of application {keys[0].application!r}" if keys else ""
        for before, key in pairwise(keys):
            if key.partition <= before.partition:
                text = f"partition {key.partition} {epoch} is named behind partition {before.partition}"
                yield Refusal("policy", f"{text}: name one attempt of each, in their order")
        decoder = self._make_decoder()
        schema = self.store.state.schema
        try:
            if schema:
                decoder.learn(schema)
            for key, winner in zip(keys, winners, strict=True):
                sealed = self._sealed.get(key)
                if sealed is None:
                    text = (
                        f"attempt {key.attempt} for partition {key.partition} {epoch} is not here, or not sealed, or "
                        f"was sealed for another epoch or application"
                    )
                    yield Refusal("attempt", f"{text}: write the partition again")
                elif winner[1:4] != (sealed[0].count, sealed[0].size, sealed[0].checksum):
                    text = (
                        f"attempt {key.attempt} for partition {key.partition} {epoch} has {sealed[0].count} messages "
                        f"of {sealed[0].size} bytes with the checksum {sealed[0].checksum:016x} here, and was sent as "
                        f"{winner.messages} of {winner.size} with {winner.checksum:016x}"
                    )
                    yield Refusal("attempt", f"{text}: write the partition again")
                elif sealed[0].schema:
                    decoder.learn(sealed[0].schema)
        except SchemaMismatch as error:
            yield Refusal("schema", str(error))

    def committed(self, application: str, epoch: int, winners: list[SealedAttempt], now: float) -> None:
        """A group is in the channel; what else there is of its epoch, or of one below, is not wanted any more."""
        self._taken([sealed.key for sealed in winners])
        if unwanted := self.unwanted(application, epoch):
            self.keeper.remove(unwanted)
        self.close_attempts(application, epoch, "is committed without this attempt", now)
        self._ended = self.store.state.ended
        if self._ended:
            for attempt in list(self._attempts.values()):
                attempt.channel.close(f"the stream of channel {self.channel.id!r} has ended", now)
        self._look(now)

    def failed(self, error: NetChannelError, now: float) -> None:
        """The disk has failed: nothing can be promised any more."""
        self.channel.fail(error, now)

    def _drop(self, client: RequestControl, message: Message) -> Job | None:
        if self._over:
            client.answer(message)
            return None
        return _Drop(self, client, message)

    def unwanted(self, application: str, epoch: int) -> list[SealedAttempt]:
        """Take the sealed attempts of an epoch, and of those below, out of what may be committed."""
        return self._taken(
            [key for key in self._sealed if key.application == application and key.epoch <= epoch]
        )

    def close_attempts(self, application: str, epoch: int, why: str, now: float) -> None:
        """Tell the senders of attempts that are being written that nobody wants them."""
        for attempt in list(self._attempts.values()):
            key = attempt.key
            if key.application == application and key.epoch <= epoch:
                attempt.channel.close(f"epoch {epoch} of application {application!r} {why}", now)


class _Commit(Job):
    def __init__(
        self, owner: StagedChannel, client: RequestControl, message: Message, winners: list[SealedAttempt]
    ) -> None:
        self._owner = owner
        self._client = client
        self._message = message
        self._winners = winners
        # Until it is known that it was done.
        self._error: NetChannelError | None = ChannelBroken("the commit was interrupted: commit again")

    def run(self) -> None:
        message = self._message
        try:
            self._owner.store.commit(
                message["application"], message["epoch"], self._winners, end=message["end"]
            )
            self._error = None
        except NetChannelError as error:
            self._error = error

    def done(self, now: float) -> None:
        message, error = self._message, self._error
        if error is None:
            self._client.answer(message, fresh=True)
            self._owner.committed(message["application"], message["epoch"], self._winners, now)
        elif isinstance(error, StorageFull):
            self._client.deny(message, "full", str(error))
        else:
            self._client.deny(message, "failed", str(error))
            self._owner.failed(error, now)
        self._owner.keeper.ended()


class _Drop(Job):
    def __init__(self, owner: StagedChannel, client: RequestControl, message: Message) -> None:
        self._owner = owner
        self._client = client
        self._message = message
        self._unwanted = owner.unwanted(message["application"], message["epoch"])

    def run(self) -> None:
        self._owner.store.remove(self._unwanted, durably=True)

    def done(self, now: float) -> None:
        message = self._message
        self._owner.close_attempts(message["application"], message["epoch"], "was dropped", now)
        self._client.answer(message)
        self._owner.keeper.ended()
