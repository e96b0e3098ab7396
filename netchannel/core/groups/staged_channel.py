"""A staged channel without I/O: attempts that come, groups that are committed, and what becomes of the rest."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from netchannel.core.receiving.admission import Available, Refusal
from netchannel.core.receiving.inbound import InboundChannel
from netchannel.core.receiving.requests import CommitService
from netchannel.core.receiving.tombstones import Tombstone
from netchannel.core.states import ReceiverState
from netchannel.errors import (
    NetChannelError,
    PositionLost,
    SchemaMismatch,
    StorageFull,
    StreamReplaced,
)
from netchannel.log_texts import log
from netchannel.policies import FaultPolicy
from netchannel.values import AttemptKey
from netchannel.wire import messages

from .attempts import AttemptDecoder
from .epoch_ledger import EpochLedger, answered_by, regression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netchannel.core.link import Job
    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.core.receiving.requests import RequestControl
    from netchannel.core.timers import Timer
    from netchannel.policies import StagingPolicy
    from netchannel.wire.codec import Decoder

    from .attempts import Attempt, SealedFile
    from .group_files import Files, Then

WINNER = struct.Struct("<QQQQ16s")
assert WINNER.size == messages.WINNER_SIZE
"""An attempt that a commit names: partition, messages, bytes, checksum, and which of the partition's it is."""
ATTEMPTS_LIMIT = 10_000
"""Attempts of a channel that are being written at a time."""
APPLICATIONS_LIMIT = 10_000
"""Applications whose last epoch a channel knows."""


class Winner(NamedTuple):
    """An attempt that a commit names, and what it was when it was sealed."""

    partition: int
    messages: int
    size: int
    checksum: int
    attempt: str


def _key(request: messages.Open) -> AttemptKey:
    return AttemptKey(request.application or "", request.epoch or 0, request.partition or 0, request.stream)


def winners_of(data: bytes) -> list[Winner]:
    """The attempts of a commit."""
    return [Winner._make((*fields[:4], fields[4].hex())) for fields in WINNER.iter_unpack(data)]


class StagedChannel(CommitService):
    """The parts of a staged channel other than its consumer's side (``channel``): its attempts and its files."""

    def __init__(
        self,
        core: ReceiverCore,
        channel: InboundChannel,
        make_files: Callable[[StagedChannel], Files],
        policy: StagingPolicy,
        *,
        make_decoder: Callable[[], Decoder],
        now: float,
    ) -> None:
        self.core = core
        self.channel = channel
        self._policy = policy
        self._make_decoder = make_decoder
        self._attempts: dict[AttemptKey, Attempt] = {}  # that are being written
        self._sealed: dict[AttemptKey, tuple[SealedFile, Timer]] = {}
        self._grew: dict[tuple[str, int], float] = {}  # when an attempt of a group was sealed last
        self._over = ""  # why nothing is taken any more
        self._error: NetChannelError | None = None  # what stands against the consumer's position
        self.files = files = make_files(self)
        self._ended = files.ended
        channel.unsettled = True
        channel.disk_bytes = lambda: self.disk_bytes
        core.registry.staged[channel.id] = core.services.offered[channel.id] = self
        for sealed in files.found:
            self._keep(sealed, now)
        self._begin(now)

    def _begin(self, now: float) -> None:
        channel, files = self.channel, self.files
        self._error = error = self._misplaced()
        channel.feed(files.feeder, files.stream, "its committed groups", files.acknowledged, now)
        if error is not None:
            channel.fail(error, now)
            return
        self.look(now)

    def _misplaced(self) -> NetChannelError | None:
        """Return the objection to ``resume_from``."""
        channel, files = self.channel, self.files
        place = f"channel {channel.id!r} has to continue at number {channel.expected}"
        if channel.stream not in (None, files.stream):
            return StreamReplaced(
                f"{place} of stream {channel.stream!r}, but its files contain stream {files.stream!r}"
            )
        if channel.expected is None:
            return None
        if channel.expected > files.head:
            return StreamReplaced(f"{place}, but only {files.head} messages were committed")
        if channel.expected < files.oldest:
            return PositionLost(f"{place}, but the oldest kept message is {files.oldest}")
        return None

    # -- the consumer

    @property
    def acknowledged(self) -> int:
        """The number below which everything is done: acknowledged explicitly, or read."""
        channel = self.channel
        if self._error is not None:
            return self.files.acknowledged
        return channel.acked if channel.explicit else channel.position or 0

    @property
    def finished(self) -> bool:
        """True if the stream has ended, and all of it is done."""
        return self._ended and not self._over and self.acknowledged == self.files.head

    @property
    def busy(self) -> bool:
        """True if files are in use that are to be closed: no attempt is needed any more then."""
        return self.files.feeder.busy or bool(self._attempts)

    def look(self, now: float) -> None:
        """There may be something to read, or nothing any more."""
        self.files.feeder.request()
        channel = self.channel
        if self._ended and channel.explicit and channel.ended is None and self.files.feeder.at_head:
            channel.end(self.files.head, now)
        self.files.request()

    def settled(self, now: float) -> None:
        """The files are closed."""
        channel, core = self.channel, self.core
        if channel.terminal or channel.ended is not None:
            channel.settle(now)
        else:
            channel.unsettled = False
            channel.end(channel.expected or 0, now)
        if core.services.ledgers.get(channel.id) is self:
            core.services.ledgers[channel.id] = EpochLedger(channel.id, self.files.epochs, self._over)
        core.services.retire(self)

    def consumer_left(self, now: float) -> None:
        """The consumer's side is over."""
        channel, core = self.channel, self.core
        if not channel.explicit:
            channel.hand_back()
        del core.registry.staged[channel.id]
        self._over = (
            f"channel {channel.id!r} accepts no more groups: {channel.error or 'its stream has ended'}"
        )
        for _, timer in self._sealed.values():
            timer.cancel()
        del core.services.offered[channel.id]
        if not self._awaits_successor:
            core.services.ended(channel.id, self)
        for attempt in list(self._attempts.values()):
            if channel.state is ReceiverState.DETACHED:
                attempt.channel.detach(now)
            else:
                attempt.channel.close(self._over, now)
        self.files.leave()

    @property
    def _awaits_successor(self) -> bool:
        """True if a successor can continue from the files on disk."""
        return self.channel.state in (ReceiverState.DETACHED, ReceiverState.BROKEN)

    # -- attempts

    def attempt(self, request: messages.Open) -> InboundChannel | None:
        """The channel of the attempt, if it is being written."""
        known = self._attempts.get(_key(request))
        return None if known is None else known.channel

    def verdict(self, request: messages.Open) -> Tombstone | Refusal | None:
        """Return the objection to a sender of an attempt, if there is one."""
        key = _key(request)
        if (known := self._attempts.get(key)) is not None:
            return self._again(known, request.channel)
        if (found := self._sealed.get(key)) is not None:
            return Tombstone(found[0].count, "end", "it is sealed")
        return self._against(key, request)

    def _again(self, attempt: Attempt, channel_id: str) -> Refusal | None:
        channel, key = attempt.channel, attempt.key
        if channel.terminal:
            text = f"attempt {key.attempt} for partition {key.partition} has ended, and is being removed"
            return Refusal("held", text)
        if channel.id != channel_id:
            text = f"attempt {key.attempt} for partition {key.partition} is being written as channel {channel.id!r}"
            return Refusal("policy", f"{text}: another attempt needs its own identity")
        return None

    def _against(self, key: AttemptKey, request: messages.Open) -> Refusal | None:
        if (regressed := self.regressed(key.application, key.epoch)) is not None:
            return Refusal("regressed", regressed)
        if self._ended:
            return Refusal("ended", f"the stream of channel {self.channel.id!r} has ended")
        if request.lossy:
            return Refusal(
                "policy", "the sender may drop messages (drop_oldest), but an attempt must be complete"
            )
        if len(self._attempts) >= ATTEMPTS_LIMIT:
            text = f"{len(self._attempts)} attempts are being written, the limit is {ATTEMPTS_LIMIT}"
            return Refusal("limit", text)
        return self._unreadable(request)

    def _unreadable(self, request: messages.Open) -> Refusal | None:
        """Return the objection to an attempt that could not be read."""
        if request.codec != self.channel.codec:
            ours, theirs = self.channel.codec, request.codec
            text = f"channel {self.channel.id!r} has the codec {ours!r}, but the attempt has {theirs!r}"
            return Refusal("codec", text)
        try:
            if request.schema is not None:
                self._make_decoder().compare(request.schema)
        except SchemaMismatch as error:
            return Refusal("schema", str(error))
        return None

    def regressed(self, application: str, epoch: int) -> str | None:
        return regression(self.files.epochs, application, epoch)

    def begin(self, request: messages.Open, kept: Available, now: float) -> InboundChannel | Refusal:
        """Return a channel for a sender with an attempt, unless data that it lacks was taken elsewhere."""
        if kept.oldest:
            text = f"{kept.oldest} messages of the attempt were received before the receiver was restarted"
            return Refusal("attempt", f"{text}: messages that were not sealed are lost; begin a new attempt")
        key = _key(request)
        decoder = AttemptDecoder(self._make_decoder())
        channel = InboundChannel(
            self.core,
            self.core,
            request.channel,
            codec=self.channel.codec,
            decoder=decoder,
            explicit=False,
            resume_from=None,
            buffer=self.channel.buffer,
            fault=FaultPolicy(retry=self._policy.orphan_s),
            now=now,
        )
        self._attempts[key] = self.files.begin_attempt(key, channel, decoder)
        return channel

    @property
    def disk_bytes(self) -> int:
        """Bytes of all that is held and kept, and of files that are to be written again."""
        if self.files.settled:
            return 0
        return self.staged_bytes + self.files.kept_bytes + self.files.spare_bytes

    @property
    def staged_bytes(self) -> int:
        """Bytes of the files of all attempts that are not committed; also read by other threads, for statistics."""
        written = sum(attempt.bytes for attempt in list(self._attempts.values()))
        return written + sum(sealed.file_bytes for sealed, _ in list(self._sealed.values()))

    def over_limit(self, attempt: Attempt) -> str:
        """Return why ``attempt`` cannot continue, or None."""
        staged, limit = self.staged_bytes, self._policy.max_staged_bytes
        if staged <= limit:
            return ""
        return (
            f"with {attempt.bytes} bytes of the attempt for partition {attempt.key.partition} of epoch "
            f"{attempt.key.epoch}, {staged} bytes are staged, but max_staged_bytes is {limit}: commit or "
            f"drop staged groups, make smaller groups, or raise the limit"
        )

    def sealed(self, attempt: Attempt, sealed: SealedFile, now: float) -> None:
        """An attempt is on the disk."""
        self.forget(attempt)
        self._keep(sealed, now)

    def _keep(self, sealed: SealedFile, now: float) -> None:
        self._grew[sealed.key.application, sealed.key.epoch] = now
        self._remind(sealed, now + self._policy.orphan_s)

    def _remind(self, sealed: SealedFile, when: float) -> None:
        timer = self.core.timers.at(when, lambda now: self._due(sealed, now))
        self._sealed[sealed.key] = sealed, timer

    def _due(self, sealed: SealedFile, now: float) -> None:
        """Give up an attempt that has waited for long; wait on if others of its group are still being written."""
        key = sealed.key
        group = key.application, key.epoch
        if any((each.application, each.epoch) == group for each in self._attempts):
            self._remind(sealed, now + self._policy.orphan_s)
        elif (when := self._grew[group] + self._policy.orphan_s) > now:
            self._remind(sealed, when)
        else:
            self._orphaned(key)

    def _orphaned(self, key: AttemptKey) -> None:
        """Remove an attempt that was not named; it may still be committed before its turn comes."""

        def step() -> Job | None:
            if key in self._sealed:
                log.warning(
                    "channel %s: %s was sealed %s s ago and not committed: removed",
                    self.channel.id, key, self._policy.orphan_s,
                )  # fmt: skip
                self.files.remove(self._taken([key]))
            return None

        self.files.do(step)

    def _taken(self, keys: list[AttemptKey]) -> list[SealedFile]:
        taken = []
        for key in keys:
            sealed, timer = self._sealed.pop(key)
            timer.cancel()
            taken.append(sealed)
        groups = {(key.application, key.epoch) for key in self._sealed}
        self._grew = {group: when for group, when in self._grew.items() if group in groups}
        return taken

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt that is written no more."""
        del self._attempts[attempt.key]
        self.files.request()

    # -- what clients ask

    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        match message:
            case messages.Commit():
                if (group := (message.application, message.epoch)) in self._grew:
                    self._grew[group] = now  # no orphan: a client that waits for room repeats its question
                self._ask(lambda: self._commit(client, message))
            case messages.Drop():
                self._ask(lambda: self._drop(client, message))
            case messages.Epoch():
                self._ask(lambda: self._epoch(client, message))
            case messages.Forget():
                self._ask(lambda: self._forget(client, message))
            case _:
                return False
        return True

    def _epoch(self, client: RequestControl, message: messages.Epoch) -> None:
        application = message.application
        sizes: dict[tuple[int, int], int] = {}  # a commit takes one of the attempts at a partition
        for (known, epoch, partition, _), (sealed, _) in self._sealed.items():
            if known == application:
                sizes[epoch, partition] = max(sizes.get((epoch, partition), 0), sealed.file_bytes)
        full = self._too_much(sum(sizes.values()))
        client.answer(message, epoch=self.files.epochs.get(application), full=full or None)

    def _ask(self, step: Callable[[], Job | None]) -> None:
        """Take a step in turn with all that changes the files; where these are closed, nothing changes any more."""
        if self.files.settled:
            step()
        else:
            self.files.do(step)

    def _commit(self, client: RequestControl, message: messages.Commit) -> Job | None:
        if answered_by(self.files.epochs, self.channel.id, client, message):
            return None
        if self._over or self._ended:
            self._refuse(client, message)
            return None
        application, epoch = message.application, message.epoch
        winners = winners_of(message.winners)  # not before its turn: they are many times larger in this form
        keys = [AttemptKey(application, epoch, winner.partition, winner.attempt) for winner in winners]
        against = self._too_many(application) or next(self._objections(keys, winners), None)
        if against is not None:
            client.deny(message, against.code, f"channel {self.channel.id!r}: {against.message}")
            return None
        return self._publish(client, message, [self._sealed[key][0] for key in keys])

    def _publish(
        self, client: RequestControl, message: messages.Commit, found: list[SealedFile]
    ) -> Job | None:
        if text := self._too_much(sum(sealed.file_bytes for sealed in found)):
            self.core.services.wait(client, self.channel.id)
            client.deny(message, "full", f"channel {self.channel.id!r}: {text}")
            return None
        application, epoch = message.application, message.epoch

        def then(now: float) -> None:
            client.answer(message, fresh=True)
            self.committed(application, epoch, found, now)

        return self.files.commit(
            application, epoch, found, end=message.end, then=self._written(client, message, then)
        )

    def _written(
        self, client: RequestControl, message: messages.Question, then: Callable[[float], None]
    ) -> Then:
        """``message`` is durable on disk, or has failed to be: answer it."""

        def written(error: NetChannelError | None, now: float) -> None:
            if error is None:
                then(now)
            elif isinstance(error, StorageFull):
                client.deny(message, "full", str(error))
            else:
                client.deny(message, "failed", str(error))
                self.failed(error, now)

        return written

    def _too_many(self, application: str) -> Refusal | None:
        """Why a name cannot be one more that is known."""
        known = self.files.epochs
        if application in known or len(known) < APPLICATIONS_LIMIT:
            return None
        advice = (
            "forget those that will not commit again (GroupClient.forget), or commit under one of their names"
        )
        text = f"{len(known)} applications have committed here, the limit is {APPLICATIONS_LIMIT}: {advice}"
        return Refusal("policy", text)

    def _too_much(self, size: int) -> str:
        """Why ``size`` more bytes cannot be kept now, if they cannot: of one group there is always room."""
        kept, limit = self.files.kept_bytes, self._policy.max_kept_bytes
        if limit is None or not size or not kept or kept + size <= limit:
            return ""
        if self.files.doubtful:
            return ""  # nothing is freed any more: the commit reports why
        return (
            f"{kept} bytes of groups are not yet acknowledged, and {size} more would exceed max_kept_bytes, "
            f"{limit}: wait until the consumer has acknowledged some of them"
        )

    def _refuse(self, client: RequestControl, message: messages.Question) -> None:
        """Refuse a question, as nothing is written down any more, or not by this one."""
        if self._over and self._awaits_successor:
            client.deny(message, "unregistered", self._over)
        else:
            text = f"the stream of channel {self.channel.id!r} has ended: register the channel again for a new stream"
            client.deny(message, "ended", self._over or text)

    def _forget(self, client: RequestControl, message: messages.Forget) -> Job | None:
        application = message.consumer
        if application not in self.files.epochs:
            client.answer(message)
            return None
        if self._over:
            self._refuse(client, message)
            return None
        return self.files.forget(
            application, self._written(client, message, lambda now: client.answer(message))
        )

    def _objections(self, keys: list[AttemptKey], winners: list[Winner]) -> Iterator[Refusal]:
        """Return the objections to a commit."""
        epoch = f"of epoch {keys[0].epoch} of application {keys[0].application!r}" if keys else ""
        for before, key in pairwise(keys):
            if key.partition <= before.partition:
                text = f"partition {key.partition} {epoch} is listed after partition {before.partition}"
                yield Refusal("policy", f"{text}: name one attempt of each partition, in order of partitions")
        decoder = self._make_decoder()
        schema = self.files.schema
        try:
            if schema:
                decoder.learn(schema)
            for key, winner in zip(keys, winners, strict=True):
                sealed = self._sealed.get(key)
                if sealed is None:
                    text = (
                        f"attempt {key.attempt} for partition {key.partition} {epoch} does not exist here, is not "
                        f"sealed, or was sealed for another epoch or application"
                    )
                    yield Refusal("attempt", f"{text}: write the partition again")
                elif winner[1:4] != (sealed[0].count, sealed[0].size, sealed[0].checksum):
                    text = (
                        f"attempt {key.attempt} for partition {key.partition} {epoch} has {sealed[0].count} messages "
                        f"of {sealed[0].size} bytes with the checksum {sealed[0].checksum:016x} here, but its sender "
                        f"sent {winner.messages} messages of {winner.size} bytes with {winner.checksum:016x}"
                    )
                    yield Refusal("attempt", f"{text}: write the partition again")
                elif sealed[0].schema:
                    decoder.learn(sealed[0].schema)
        except SchemaMismatch as error:
            yield Refusal("schema", str(error))

    def committed(self, application: str, epoch: int, winners: list[SealedFile], now: float) -> None:
        """A group is in the channel; what else there is of its epoch, or of one below, is not wanted any more."""
        self._taken([sealed.key for sealed in winners])
        if unwanted := self.unwanted(application, epoch):
            self.files.remove(unwanted)
        self.close_attempts(application, epoch, "is committed without this attempt", now)
        self._ended = self.files.ended
        if self._ended:
            for attempt in list(self._attempts.values()):
                attempt.channel.close(f"the stream of channel {self.channel.id!r} has ended", now)
        if self.files.schema:
            self.channel.learn(self.files.schema)  # where there is no message to bring it, or not yet
        self.look(now)

    def failed(self, error: NetChannelError, now: float) -> None:
        """The disk has failed: nothing can be promised any more."""
        self.channel.fail(error, now)

    def _drop(self, client: RequestControl, message: messages.Drop) -> Job | None:
        if self._over and self._awaits_successor:
            self._refuse(client, message)
            return None
        if self._over:
            client.answer(message)
            return None

        def dropped(error: NetChannelError | None, now: float) -> None:
            self.close_attempts(message.application, message.epoch, "was dropped", now)
            client.answer(message)

        return self.files.drop(self.unwanted(message.application, message.epoch), dropped)

    def unwanted(self, application: str, epoch: int) -> list[SealedFile]:
        """Take the sealed attempts of an epoch, and of those below, out of what may be committed."""
        return self._taken(
            [key for key in self._sealed if key.application == application and key.epoch <= epoch]
        )

    def close_attempts(self, application: str, epoch: int, why: str, now: float) -> None:
        """Notify the senders of attempts in progress that they are no longer wanted."""
        for attempt in list(self._attempts.values()):
            key = attempt.key
            if key.application == application and key.epoch <= epoch:
                attempt.channel.close(f"epoch {epoch} of application {application!r} {why}", now)
