"""A channel that is kept: its messages in the stream's order, each once, from any position."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import uvloop

import netchannel
from nebuli.access_files import TrustUnusable, secret_at, tls_of
from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import FragmentError, InputError, InputGone
from nebuli.connectors.policies import tried
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.connectors.sources.kept_stream import KeptStream, as_text, of_text
from nebuli.dataflow import WEIGHT, zset
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from topology import ChannelSource as Settings
    from topology import Schema

__all__ = ["KeptChannelSource"]


class KeptChannelSource(Source):
    """Reads what a channel keeps, to the clean end of its stream; `Rereadable`: it begins anywhere in it.

    A thread of its own has the connections, from the first `poll` to `close`, and reads some MiB ahead. A batch is of
    whole messages, so that a position, "STREAM/SEQUENCE" of the next one, lies between batches.
    """

    def __init__(self, settings: Settings, columns: Schema, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._place = settings.reads
        self._columns = ArrowColumns(
            arrow_schema(columns), self._place, "channel", timestamps=settings.timestamps
        )
        self._wake = wake
        self._first: netchannel.Position | None = None
        self._position: netchannel.Position | None = None
        self._stream: KeptStream | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._messages: Iterator[netchannel.Message] = iter(())
        self._is_checked = False  # the schema, of which a stream has one

    def seek(self, position: str) -> None:
        """Begin at a position. Raises InputError for a malformed one."""
        self._first = self._position = of_text(position, self._place) if position else None

    @property
    def position(self) -> str:
        """The stream, and the number of its message that comes next; empty before it is known."""
        return "" if self._position is None else as_text(self._position)

    def release(self, position: str) -> None:
        """Acknowledge what is before it, where there is a consumer; that is not waited for.

        To be called between `open` and `close`: otherwise it is left to the next reader.
        """
        if position and self._stream is not None:
            self._tell(self._stream.release, of_text(position, self._place))

    def open(self) -> None:
        """Read the secret and certificates; the retaining process need not be there yet."""
        settings = self._settings
        try:
            reader = netchannel.ChannelReader(
                settings.address,
                settings.channel,
                secret=None if settings.secret is None else secret_at(settings.secret),
                tls=None if settings.tls is None else tls_of(settings.tls),
                fault=tried(settings.fault),
            )
        except (TrustUnusable, netchannel.NetChannelError) as error:
            raise InputError(f"{self._place}: {error}") from error
        self._stream = KeptStream(settings, reader, self._wake)
        self._stream.first = self._first

    def skip(self, rows: int) -> None:
        """Begin after so many rows; after those that the consumer has acknowledged, if there is one."""
        assert self._stream is not None
        self._stream.rows_to_skip = rows

    def poll(self) -> pa.RecordBatch | Signal:
        """The rows of the messages that have come, each with weight 1."""
        stream = self._stream
        assert stream is not None
        if self._thread is None:
            self._start(stream)
        batches: list[pa.RecordBatch] = []
        rows = 0
        while rows < MAX_BATCH_ROWS and (message := self._next(stream)) is not None:
            self._position = netchannel.Position(stream.stream, message.sequence + 1)
            batch = self._new(stream, message.batch)
            rows += batch.num_rows
            batches.append(batch)
        if rows:
            whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            return zset.insertions(self._columns.of(whole))
        return self._why_none(stream)

    def close(self, reason: str) -> None:
        """Let go of the connections, and of the thread; what was released just before is acknowledged first."""
        thread, self._thread = self._thread, None
        stream, self._stream = self._stream, None
        if thread is not None and stream is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(stream.close)
            thread.join()
            self._loop.close()

    def _start(self, stream: KeptStream) -> None:
        self._loop = loop = uvloop.new_event_loop()
        self._thread = Thread(
            target=lambda: loop.run_until_complete(stream.run()), name=self._place, daemon=True
        )
        self._thread.start()

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the thread's loop call it; before there is one, nothing else calls it."""
        if self._loop is None:
            function(*arguments)
        else:
            self._loop.call_soon_threadsafe(function, *arguments)

    def _next(self, stream: KeptStream) -> netchannel.Message | None:
        """The next message that has come; None: nothing now, or nothing any more."""
        try:
            while (message := next(self._messages, None)) is None:
                item = stream.arrived[0] if stream.arrived else Signal.LATER
                if isinstance(item, Signal | FragmentError):
                    return None
                self._messages = item
                stream.arrived.popleft()
                self._tell(stream.taken)
        except netchannel.NetChannelError as error:  # the bytes are not a message of the stream
            raise InputError(f"{self._place}: {error}") from error
        return message

    def _why_none(self, stream: KeptStream) -> Signal:
        last = stream.arrived[0] if stream.arrived else Signal.LATER
        if isinstance(last, FragmentError):
            raise last
        if last is Signal.END and stream.rows_to_skip:
            raise InputGone(
                f"{self._place}: stream {stream.stream} ends {stream.rows_to_skip} rows before "
                f"the position that the query had reached: the stream was replaced, or now begins "
                f"at another message; restart the query from scratch"
            )
        return last if isinstance(last, Signal) else Signal.LATER

    def _new(self, stream: KeptStream, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that were not given before. Raises InputError where they are not the logical source's."""
        if not self._is_checked:
            self._check(batch.schema)
            self._is_checked = True
        known = min(stream.rows_to_skip, batch.num_rows)
        stream.rows_to_skip -= known
        return batch.slice(known)

    def _check(self, found: pa.Schema) -> None:
        if WEIGHT in found.names:
            raise InputError(
                f"{self._place}: the stream has a column {WEIGHT}, so it contains changes; only a channel "
                "of rows can be read"
            )
        self._columns.check(found)
