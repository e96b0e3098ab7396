"""Messages of a stream of a NATS server with JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.ingestion.errors import AddressGone, IngestionError, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD, Addresses, Messages
from nebuli.ingestion.source_reader import SourceReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.js.api import StreamConfig, StreamInfo
    from numpy.typing import NDArray

    from nebuli.ingestion.definition import NatsOrigin

    from .nats_pull import NatsPull, Taken

SCHEMA = pa.schema([pa.field(PAYLOAD, pa.binary()), pa.field("subject", pa.string())])
_PART = ""
_ALONE_S = 0.5
"""After so long without a message it is looked whether there is one."""


class NatsStream(SourceReader):
    """Messages of a stream, at their sequences in it; of all its subjects, or of those that match.

    The server keeps nothing for a reader. Messages dropped by the stream's limits are gone: a lagging reader gets an
    error. A stream that drops acknowledged messages, or one message and not those before it, cannot be read again. With
    ``purge`` in its definition, `release` purges everything below the last message before an address: that one stays,
    as it shows that no later one is gone. In `next`, there may be no row, if the stream advanced without one of the
    subject.
    """

    def __init__(self, origin: NatsOrigin, *, name: str) -> None:
        self._origin, self._name = origin, name
        self._pull: NatsPull | None = None
        self._at = 0
        self._created: object = None

    @property
    def schema(self) -> pa.Schema:
        """The payload, and the subject that it was sent to."""
        return SCHEMA

    @property
    def reads(self) -> str:
        """The stream, and where."""
        where = f"stream {self._origin.stream}" if self._pull is None else self._pull.where
        return where if self._origin.subject is None else f"{self._origin.subject} of {where}"

    async def open(self, at: Mapping[str, int]) -> None:
        """Begin at a sequence, or, without one, with the first message that the stream has."""
        self._pull = pull = _pull(self._origin, self._name)
        try:
            await pull.connect()
            info = await pull.info()
            self._check(info.config)
            self._created = info.created
            self._at = at.get(_PART, max(info.state.first_seq, 1))
            self._kept(info)
            await pull.start(self._least)
        except BaseException:
            await self.close()
            raise

    @property
    def _least(self) -> int:
        """Return the lowest possible sequence of the next message; there is none below 1."""
        return max(self._at, 1)

    def _check(self, config: StreamConfig) -> None:
        """Raise SourceUnusable where the same sequence is not always the same message, as long as it is there."""
        if config.retention != "limits":
            raise self._unusable(
                f"its retention is {config.retention}, which deletes messages after they are read; expected 'limits'"
            )
        if config.max_msgs_per_subject > 0:
            raise self._unusable(
                f"it keeps {config.max_msgs_per_subject} messages of each subject (max_msgs_per_subject), "
                "which leaves gaps; expected a limit for all subjects: max_msgs, max_bytes or max_age"
            )
        drops = {"allow_rollup_hdrs": config.allow_rollup_hdrs, "allow_msg_ttl": config.allow_msg_ttl}
        if allowed := [name for name, is_allowed in drops.items() if is_allowed]:
            raise self._unusable(
                f"it allows messages that delete other messages, or messages that expire "
                f"({' and '.join(allowed)}), which leaves gaps; expected a stream that allows neither"
            )
        if self._origin.purge and (config.deny_purge or config.sealed):
            raise self._unusable(
                "it cannot be purged (deny_purge or sealed is set); expected a source without 'purge'"
            )

    def _kept(self, info: StreamInfo) -> None:
        """Raise AddressGone where the stream does not have what is at our address, or is another one."""
        first, last = info.state.first_seq, info.state.last_seq
        if info.created != self._created:
            raise self._gone(
                f"the stream was deleted, and another one of the same name created at {info.created}"
            )
        if last < self._at - 1:
            raise self._gone(
                f"the stream ends at {last + 1}, before that message, so it is another stream of the same name"
            )
        if first > self._least:
            raise self._gone(f"the stream begins at {first}")

    # -- reading

    async def next(self) -> Messages:
        """Those that are here, once some are; none, where the stream is further without one of the subject."""
        pull = self._opened()
        while True:
            try:
                count = await pull.wait(_ALONE_S)
            except IngestionError:
                self._kept(await pull.info())  # a stream that is another one takes its consumers with it
                raise
            info = await pull.info()
            self._check(info.config)  # which may be altered at any time
            if count := self._sure(pull.sequences(count), info):
                return self._batch(pull.take(count))
            self._kept(info)
            end = info.state.last_seq + 1
            if end > self._at and not await pull.has_from(self._least):
                self._kept(await pull.info())  # or what was there has been dropped since
                pull.skip(end)
                return self._none_below(end)

    def _sure(self, sequences: NDArray[np.int64], info: StreamInfo) -> int:
        """How many of these can be given, which came before ``info`` was asked for: all, or those before a gap.

        Missing ones between them did not match, or were deleted; but those below the first one in the stream may have
        been dropped before they came.
        """
        expected = np.arange(self._least, self._least + len(sequences))
        unlike = np.flatnonzero(sequences != expected)
        if info.created != self._created:
            return 0
        if len(unlike) and expected[unlike[0]] < info.state.first_seq:
            return int(unlike[0])
        return len(sequences)

    def _batch(self, taken: list[Taken]) -> Messages:
        rows = pa.record_batch(
            [
                pa.array([each.data for each in taken], pa.binary()),
                pa.array([each.subject for each in taken], pa.string()),
            ],
            schema=SCHEMA,
        )
        sequences = np.array([each.sequence for each in taken], dtype=np.int64)
        lower, self._at = self._at, taken[-1].sequence + 1
        return Messages(_PART, lower, self._at, sequences, rows)

    def _none_below(self, end: int) -> Messages:
        lower, self._at = self._at, end
        return Messages(_PART, lower, end, np.empty(0, np.int64), pa.RecordBatch.from_pylist([], SCHEMA))

    async def ends(self) -> Addresses:
        """Return the address after the last message, even if it does not match."""
        info = await self._opened().info()
        return {_PART: info.state.last_seq + 1}

    # -- what the server keeps

    async def release(self, before: Mapping[str, int]) -> None:
        """Purge the stream, if the definition has it so."""
        last = before.get(_PART, 0) - 1
        if not self._origin.purge or last <= 1:
            return
        pull = self._opened()
        info = await pull.info()
        is_above = info.created == self._created and info.state.first_seq < last
        if is_above and await pull.has(last):  # it stays, and the stream begins with it
            await pull.purge(last)

    async def close(self) -> None:
        """Let the connection go, and the consumer with it."""
        pull, self._pull = self._pull, None
        if pull is not None:
            await pull.close()

    def _opened(self) -> NatsPull:
        assert self._pull is not None, "open() comes first"
        return self._pull

    def _unusable(self, why: str) -> SourceUnusable:
        return SourceUnusable(f"{self._name}: {self.reads}: {why}")

    def _gone(self, why: str) -> AddressGone:
        return AddressGone(
            f"{self._name}: {self.reads}: the next message, at {self._at}, is gone: {why}; create the source "
            f"again from the messages that the stream still has"
        )


def _pull(origin: NatsOrigin, name: str) -> NatsPull:
    try:
        from .nats_pull import NatsPull
    except ImportError as error:
        raise SourceUnusable(f"{name}: a NATS source needs nats-py: pip install 'nebuli[nats]'") from error
    return NatsPull(origin, name)
