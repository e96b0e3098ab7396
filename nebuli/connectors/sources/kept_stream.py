"""Following a kept channel on an event loop: where to begin, what comes, what is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import netchannel
from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError, InputError, InputGone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from netchannel import ChannelReader, Heads, Position
    from topology import ChannelSource as Settings

__all__ = ["KeptStream", "as_text", "of_text"]

_log = logging.getLogger("nebuli.connectors")

_QUEUED = 2
"""Parts that are read ahead; each is of what has come at once, some MiB at most."""
_SILENCE_S = 10.0
"""After so long a log line reports that the retaining process is not there yet."""
_LOOK_S = 1.0
"""How often to check for another stream, while there is nothing after the last message of this one."""
_AGAIN_S = 0.25
_IN_USE_S = 60.0
"""How long a consumer's name is waited for that another holder has: longer than a lease lasts, with a host's death."""
_LAST_S = 2.0
"""How long the last acknowledgement may take that was asked for before the end."""
_SESSION = secrets.token_hex(8)
"""With the process' number, as processes are forked, the holder of names here: a source may be read twice at once."""


def as_text(position: Position) -> str:
    """STREAM/SEQUENCE."""
    return f"{position.stream}/{position.sequence}"


def of_text(text: str, place: str) -> Position:
    """The position that `as_text` has written. Raises InputError for any other text."""
    stream, slash, number = text.rpartition("/")
    if not (stream and slash and number.isascii() and number.isdigit()):
        raise InputError(f"{place}: {text[:80]!r} is not a position of a channel: expected STREAM/SEQUENCE")
    return netchannel.Position(stream, int(number))


class KeptStream:
    """The messages of ``reader``, from one place to the end of its stream. Everything but ``arrived`` is the loop's.

    ``arrived`` has iterators of messages, or at its end why there are no more; it is taken from by any one thread,
    which then reports that by `taken`. ``wake`` is called when there is more.
    """

    def __init__(self, settings: Settings, reader: ChannelReader, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._reader = reader
        self._wake = wake
        self.stream = ""
        """The stream that is followed; known once something has arrived."""
        self.first: Position | None = None
        """Where to begin; None: by the consumer, or else the settings."""
        self.rows_to_skip = 0
        """Rows after that place that are not wanted; once something has arrived, those that are left to drop."""
        self.arrived: deque[Iterator[netchannel.Message] | Signal | FragmentError] = deque()
        self._room = asyncio.Event()
        self._closing = asyncio.Event()
        self._released: Position | None = None
        self._acknowledged: Position | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Bring and acknowledge, until `close`."""
        try:
            async with self._reader:
                work = [self._follow()] if self._settings.consumer is None else [self._follow(), self._obey()]
                tasks = [asyncio.create_task(self._told(each)) for each in work]
                await self._closing.wait()
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._acknowledge_last()
        except (netchannel.NetChannelError, ValueError) as error:  # a name or an address that cannot be one
            self._put(InputError(f"{self._settings.reads}: {error}"))
            await self._closing.wait()

    def close(self) -> None:
        """End `run`."""
        self._closing.set()

    def taken(self) -> None:
        """Something was taken from ``arrived``."""
        self._room.set()

    def release(self, upto: Position) -> None:
        """Acknowledge what is before that under the consumer's name, if there is one."""
        self._released = upto
        self._news.set()

    async def _told(self, work: Coroutine[None, None, None]) -> None:
        """Run it; an error arrives after the earlier messages."""
        place = self._settings.reads
        try:
            await work
        except FragmentError as error:
            self._put(error)
        except netchannel.ConsumerFenced as error:
            self._put(InputGone(f"{place}: {error}; {self._advice()}"))
        except netchannel.NetChannelError as error:
            self._put(InputError(f"{place}: {error}"))
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this task
            self._put(FragmentError(f"{place}: {type(error).__name__}: {error}"))

    def _put(self, item: Iterator[netchannel.Message] | Signal | FragmentError) -> None:
        self.arrived.append(item)
        self._wake()

    # -- what comes

    async def _follow(self) -> None:
        stream, number = await self._place()
        self.stream = stream
        while True:
            heads = await self._heads(number)
            self._check(heads, stream, number)
            if heads.head > number:
                await self._bring(netchannel.Position(stream, number), heads.head)
                number = heads.head
            elif heads.failure is not None:
                raise InputError(
                    f"{self._settings.reads}: its producer has aborted stream {stream} at message {number}: "
                    f"{heads.failure}"
                )
            elif heads.ended:
                self._put(Signal.END)
                return

    async def _heads(self, number: int) -> Heads:
        """Return the heads, once there is something after ``number``, or now and then."""
        try:
            return await self._reader.heads_within(number, _LOOK_S)
        except TimeoutError:
            return await self._reader.heads()

    async def _bring(self, first: Position, until: int) -> None:
        reader = self._reader
        try:
            reading = await reader.begin(first, until)
            try:
                while chunks := await reader.more(reading):
                    self._put(reader.decoded(reading, chunks))
                    while len(self.arrived) >= _QUEUED:
                        self._room.clear()
                        if len(self.arrived) >= _QUEUED:
                            await self._room.wait()
            finally:
                reader.cancel(reading)
        except (netchannel.PositionLost, netchannel.StreamReplaced) as error:
            self._check(await reader.heads(), *first)
            raise InputGone(f"{self._settings.reads}: {error}") from error

    def _check(self, heads: Heads, stream: str, number: int) -> None:
        """Raise InputGone where message ``number`` of ``stream`` is not there, and will not be."""
        place = self._settings.reads
        if heads.stream != stream:
            there = f"stream {heads.stream}, up to message {heads.head}" if heads.stream else "no stream"
            raise InputGone(
                f"{place}: the query needs message {number} of stream {stream} next, but the "
                f"stream was replaced by {there}; {self._advice()}"
            )
        if number < heads.oldest:
            raise InputGone(
                f"{place}: the query needs message {number} of stream {stream} next, but the "
                f"oldest kept message is {heads.oldest}: earlier messages were acknowledged by "
                f"all consumers, and deleted; {self._advice()}"
            )
        if number > heads.head:
            raise InputGone(
                f"{place}: the query needs message {number} of stream {stream} next, but the "
                f"stream has only {heads.head} messages: the process that retains it has lost "
                f"some; {self._advice()}"
            )

    def _advice(self) -> str:
        if self._settings.consumer is None:
            return (
                "restart the query from scratch; give the source a consumer, for which messages are kept "
                "until they are acknowledged"
            )
        return (
            f"restart the query from scratch, and let no other process acknowledge as consumer "
            f"{self._settings.consumer!r}, or forget that consumer"
        )

    # -- where to begin

    async def _place(self) -> Position:
        heads = await self._first_heads()
        if self.first is not None:
            self._check(heads, *self.first)
            return self.first
        if not heads.stream:
            raise InputError(f"{self._settings.reads} has no stream: {heads.failure}")
        if self._settings.consumer is not None:
            return await self._behind_rows(await self._consumers_place())
        number = heads.head if self._settings.begin == "latest" else heads.oldest
        if number and self.rows_to_skip:
            raise InputGone(
                f"{self._settings.reads}: {self.rows_to_skip} rows of stream {heads.stream} were read already, "
                f"but it is unknown with which message they begin: reading would now begin at message "
                f"{number}; {self._advice()}"
            )
        return await self._behind_rows(netchannel.Position(heads.stream, number))

    async def _first_heads(self) -> Heads:
        try:
            return await self._reader.heads_within(None, _SILENCE_S)
        except TimeoutError:
            _log.warning(
                "%s: the channel is not retained at this address; the query waits until it is",
                self._settings.reads,
            )
            return await self._reader.heads()

    async def _consumers_place(self) -> Position:
        """Return the end of the consumer's acknowledged messages."""
        while True:
            heads = await self._reader.heads()
            place = netchannel.Position(heads.stream, await self._hold())
            try:
                await self._reader.locate(place)
            except netchannel.StreamReplaced:  # meanwhile: the number may be of either
                continue
            return place

    async def _behind_rows(self, place: Position) -> Position:
        while self.rows_to_skip:
            found = await self._reader.locate(place, max_rows=self.rows_to_skip)
            if found.until == place.sequence or found.rows > self.rows_to_skip:
                break  # some of the next message
            place = place._replace(sequence=found.until)
            self.rows_to_skip -= found.rows
        return place

    # -- the consumer

    async def _hold(self) -> int:
        """Take the consumer's name, also from a predecessor whose process was killed, once its lease is over."""
        consumer = self._settings.consumer
        assert consumer is not None
        holder = self._settings.holder or f"nebuli {os.getpid()} {_SESSION}"
        loop = asyncio.get_running_loop()
        until = loop.time() + _IN_USE_S
        told = False
        while True:
            try:
                return await self._reader.hold(consumer, holder=holder)
            except netchannel.ChannelInUse as error:
                if loop.time() > until:
                    raise InputError(
                        f"{self._settings.reads}: {error}; two queries that run at the same time need two "
                        f"consumers"
                    ) from error
                if not told:
                    _log.info("%s: %s; the query waits", self._settings.reads, error)
                    told = True
            await asyncio.sleep(_AGAIN_S)

    async def _obey(self) -> None:
        """Acknowledge what is released."""
        await self._hold()
        while True:
            await self._news.wait()
            self._news.clear()
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        released, consumer = self._released, self._settings.consumer
        if released is None or consumer is None or released == self._acknowledged:
            return
        with suppress(netchannel.StreamReplaced):  # which only one can be whose messages are all acknowledged
            await self._reader.ack(consumer, released)
        self._acknowledged = released

    async def _acknowledge_last(self) -> None:
        """Acknowledge the last released position, if it is not yet; if that fails, the next reader will do it."""
        with suppress(TimeoutError, netchannel.NetChannelError):
            async with asyncio.timeout(_LAST_S):
                await self._acknowledge()
