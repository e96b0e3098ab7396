"""The channels that a query reads, as its driver sees them: how far they go, and the holder of the consumer's name."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from netchannel import ChannelBroken, ChannelInUse, ConsumerFenced, NetChannelError, Position, StreamReplaced
from spark_bridge.clients import make_reader
from spark_bridge.errors import CheckpointReplaced, DataLost, SparkBridgeError
from spark_bridge.tasks.task import log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from netchannel import Heads, Located
    from netchannel.process.blocking import BlockingChannelReader
    from spark_bridge.options import Connection, ReadOptions, Source

    from .admission import Limits
    from .offsets import Entry

HANDOVER_S = 16.0
"""How long to wait at most for a name held by another: 5 s until a lost connection is noticed, 10 s of its lease.

A query that comes back from its checkpoint has the name at once.
"""
_ASK_S = 0.5
REST_S = 60.0
"""Seconds at least between looks for a server that is gone after the end of its stream, as a finished producer is."""
BRIEF_S = 2.0
"""Seconds that each of these looks lasts: too short for a warning about a missing answer."""
REASON_S = 1.0
"""How much longer than its timeout a server is waited for, so that the client, which knows why, gives up first."""


@dataclass(slots=True)
class _Watched:
    """A channel by one reader: with another one, all of this starts over."""

    source: Source
    reader: BlockingChannelReader
    held: bool = False
    taking: threading.Thread | None = None
    acknowledged: Position | None = None
    rests_since: float | None = None  # after the end of its stream, its server being gone
    over: str | None = None  # the stream that has ended and was read; then the reader may be a brief one


def _brief(connection: Connection) -> Connection:
    return replace(connection, timeout_s=min(BRIEF_S, connection.timeout_s))


class Channels:
    """The channels of a read. Connections are made at the first call that needs them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._watched: dict[str, _Watched] = {}
        self._silent: set[str] = set()  # channels that were logged as empty

    def _all(self) -> dict[str, _Watched]:
        if not self._watched:
            self._watched = {source.key: self._watch(source) for source in self._options.connection.sources}
        return self._watched

    def _watch(self, source: Source) -> _Watched:
        return _Watched(source, make_reader(self._options.connection, source))

    def latest(self) -> dict[str, Heads]:
        """The newest heads that have been pushed here; costs nothing. Channels without a stream are left out.

        So is one whose server is away for longer than the timeout: it is waited for. Raises what no time will change,
        such as another secret, and DataLost for a channel that has failed before it had a stream.
        """
        found = {}
        for source in self._options.connection.sources:
            here = self._all()[source.key]
            if here.reader.error is not None:
                self._begin_anew(source, here.reader)
            elif here.rests_since is not None and here.reader.latest is not None:
                here.reader.close()  # the server is there again: from now on it is waited for as ever
                self._watched[source.key] = self._watch(source)
            elif (heads := here.reader.latest) is not None and self._has_stream(source.key, heads):
                self._silent.discard(source.key)
                found[source.key] = heads
        return found

    def _begin_anew(self, source: Source, reader: BlockingChannelReader) -> None:
        """Begin again after a reader that has given up."""
        error = reader.error
        if not isinstance(error, ChannelBroken):
            assert error is not None
            raise type(error)(*error.args)
        over = self._watched[source.key].over
        if over is not None:
            self._look_again(source, over)
            return
        if source.key not in self._silent:
            self._silent.add(source.key)
            log.warning("%s: %s; waiting for the channel", source.key, error)
        reader.close()
        self._watched[source.key] = self._watch(source)

    def _look_again(self, source: Source, over: str) -> None:
        """True if another stream has begun where one has ended, quietly and now and then."""
        here, now = self._watched[source.key], time.monotonic()
        if here.rests_since is None:
            log.info("%s: its stream has ended, and its server no longer answers", source.key)
            here.rests_since = now
        if now - here.rests_since >= REST_S:
            here.reader.close()
            reader = make_reader(_brief(self._options.connection), source)
            self._watched[source.key] = _Watched(source, reader, rests_since=now, over=over)

    def _has_stream(self, key: str, heads: Heads) -> bool:
        if heads.stream:
            return True
        error = DataLost(
            f"channel {key!r} has failed before any message was kept: {heads.failure}. Register the channel again at "
            f"its server; to read without this channel, start the query with failOnDataLoss=false"
        )
        if self._options.fail_on_data_loss:
            raise error
        if key not in self._silent:
            self._silent.add(key)
            log.warning("%s", error)
        return False

    def heads(self) -> dict[str, Heads]:
        """The heads of all channels, waited for.

        Raises:
            netchannel.ChannelBroken: a server is away for too long, or does not keep the channel.
            SparkBridgeError: a channel has no stream yet.
        """
        deadline = time.monotonic() + self._options.connection.timeout_s + REASON_S
        for source in self._options.connection.sources:
            try:
                self._all()[source.key].reader.heads(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                raise unheard(self._options.connection, source) from error
        return self.latest()

    def locate(self, key: str, first: Position, limits: Limits) -> Located:
        """How far ``limits`` go in a channel."""
        return self._all()[key].reader.locate(first, max_rows=limits.rows, max_bytes=limits.bytes)

    def since(self, key: str, at: datetime, heads: Heads) -> int:
        """The first message of ``heads`` that was sent at a time or later.

        Where that may be one of those that are gone it is number 0, so that they are missed.
        """
        moment = self._all()[key].reader.moment(at)
        return moment.since if moment.stream == heads.stream and moment.since > heads.oldest else 0

    def before(self, key: str, at: datetime, heads: Heads) -> int:
        """Return the number after the last message of ``heads`` that was sent before a time."""
        moment = self._all()[key].reader.moment(at)
        return min(moment.before, heads.head) if moment.stream == heads.stream else heads.head

    def hold_soon(self, key: str, holder: str, *, fresh: bool) -> None:
        """Take the consumer's name as soon as the server is there, without waiting: what comes is kept for it then.

        Errors are raised by the next `hold`, or by `latest`.
        """
        here = self._all()[key]
        if here.held or here.taking is not None:
            return

        def take() -> None:
            with suppress(NetChannelError):
                here.reader.hold(self._options.consumer, holder=holder, fresh=fresh)
                here.held = True

        here.taking = threading.Thread(target=take, name="netchannel hold", daemon=True)
        here.taking.start()

    def settle(self, timeout_s: float) -> None:
        """Wait for the requests of `hold_soon`, so long at most.

        A server that has answered has sent its heads before.
        """
        deadline = time.monotonic() + timeout_s
        for each in self._all().values():
            if each.taking is not None:
                each.taking.join(max(0.0, deadline - time.monotonic()))

    def hold(self, key: str, holder: str, *, fresh: bool) -> None:
        """Take the consumer's name, once; ``fresh``: for a query that has committed nothing yet.

        Raises:
            CheckpointReplaced: it is fresh, and another query has read under this name.
            SparkBridgeError: another query holds it.
        """
        here = self._all()[key]
        if here.held:
            return
        deadline = time.monotonic() + min(HANDOVER_S, self._options.connection.timeout_s)
        while True:
            try:
                here.reader.hold(self._options.consumer, holder=holder, fresh=fresh)
            except ConsumerFenced as error:
                raise self._used(key, error) from error
            except ChannelInUse as error:
                if time.monotonic() > deadline:
                    raise _in_use(key, self._options.consumer, str(error)) from error
                threading.Event().wait(_ASK_S)
            else:
                here.held = True
                return

    def _used(self, key: str, error: ConsumerFenced) -> CheckpointReplaced:
        name, source = self._options.consumer, self._all()[key].source
        return CheckpointReplaced(
            f"channel {key!r} was read as consumer {name!r} by another query, while this query has no checkpoint yet: "
            f"{error}. Give this query its own name with the option consumer, and list both names in the "
            f"server's RetainPolicy(consumers=...), so that messages are kept for both queries. If the other query "
            f"will never run again, free its name by netchannel.channel_reader({source.endpoint!r}, "
            f"{source.channel!r}).forget({name!r}). If this is the same query, and its checkpoint was deleted or "
            f"moved, restore the checkpoint"
        )

    def acknowledge(self, entries: Mapping[str, Entry], heads: Mapping[str, Heads]) -> None:
        """Free what Spark has committed, and wait until that is done. Costs nothing for what is done already.

        The first offset of a query is not acknowledged: Spark has committed nothing yet.
        """
        for key, entry in entries.items():
            if entry.stream is None or entry.first is None:
                continue
            here, known = self._all()[key], heads.get(key)
            here.over = entry.stream if entry.ended else None
            if known is None or known.stream != entry.stream:
                continue
            position = Position(entry.stream, entry.sequence)
            if here.acknowledged == position:
                continue
            if known.oldest <= entry.sequence <= known.head:
                self.hold(key, entry.holder, fresh=False)
                try:
                    self._acknowledge(key, here.reader, position, entry.holder)
                except StreamReplaced:
                    continue  # the heads were old: the next ones show the state of the stream
            here.acknowledged = position

    def _acknowledge(self, key: str, reader: BlockingChannelReader, position: Position, holder: str) -> None:
        consumer = self._options.consumer
        try:
            reader.ack(consumer, position)
        except ConsumerFenced:
            try:
                reader.hold(consumer, holder=holder)  # the server has forgotten it, or another holder has it
            except ChannelInUse as error:
                raise _in_use(key, consumer, str(error)) from error
            reader.ack(consumer, position)

    def close(self) -> None:
        """Give the connections up."""
        for each in self._watched.values():
            each.reader.close()
        self._watched.clear()


def unheard(connection: Connection, source: Source) -> SparkBridgeError:
    """Return the error for a channel without a stream in time."""
    return SparkBridgeError(
        f"no answer for channel {source.channel!r} at {source.endpoint} within {connection.timeout_s} s "
        f"(connectTimeout): has a stream started there?"
    )


def _in_use(key: str, consumer: str, why: str) -> SparkBridgeError:
    return SparkBridgeError(
        f"another query, or another load() of this query, reads channel {key!r} as consumer {consumer!r}, or has "
        f"only just stopped: {why}. Give each query its own name with the option consumer. The name of a stopped "
        f"query is free after at most {HANDOVER_S:.0f} s; give a connectTimeout of at least this time to wait for it"
    )
