"""A collection that has a query's rows, each once: inserted, as result or changes, or written at times of steps."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from nebuli.connectors.endpoints import Output
from nebuli.connectors.errors import OutputError, OutputGone
from nebuli.dataflow import WEIGHT
from nebuli.python_values import one_batch
from nebuli.store.collections.collections import Collections
from nebuli.store.collections.errors import (
    CollectionExists,
    CollectionUnknown,
    RenditionRefused,
    RowsMismatch,
)
from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from nebuli.store.collections.controller import CollectionStatus
    from topology import CollectionSink as Settings

__all__ = ["CollectionOutput"]

_log = logging.getLogger("nebuli.connectors")

_TIMES = "times/"
"""Prefix of positions that are times."""
_T = TypeVar("_T")


class CollectionOutput(Output):
    """`Resumable`, `DatedOutput` and `OnceOutput`: a query in steps writes at its steps' times, any other one inserts.

    In mode ``final`` it inserts all rows at once with `publish`, under the query's id as the producer: an insert of a
    query that started over, or was killed before it knew of its insert, has no effect.

    For inserts, a position names a producer and its last insert. Repeated inserts after a position are the same, with
    the same numbers, and have no effect. For writes at times, it is the first time that is not written: repeated writes
    are compared. The collection is made, if it is not there; and then has the times that the query gives. One whose
    times the store gives is inserted into all the same.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._place = settings.writes
        self._producer, self._sequence = f"sink/{os.urandom(8).hex()}", 0
        self._first = 0  # what has a lower number is there
        self._has_times = False
        self._at_times: _AtTimes | None = None
        self._result: list[pa.RecordBatch] | None = [] if settings.mode == "final" else None
        self._schema: pa.Schema
        self._resumed: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._collections: Collections | None = None

    @property
    def directory(self) -> Path | None:
        """Temporary files go where they always do."""
        return None

    def resume(self, position: str) -> None:
        """Continue as this producer, after its last insert, or from a time on.

        Raises OutputError for a malformed position.
        """
        producer, slash, number = position.rpartition("/")
        if not (producer and slash and number.isdigit()):
            raise OutputError(f"{self._place}: {position[:80]!r} is not a position of a collection")
        self._resumed = position
        if not producer.startswith(_TIMES):
            self._producer, self._sequence = producer, int(number)

    def identify(self, query: str) -> None:
        """Insert under the id of this query; called before `open`."""
        self._producer = query

    def give_times(self) -> None:
        """Have `at` called; called before `open`."""
        self._has_times = True

    @property
    def is_dated(self) -> bool:
        """True if rows are written at times; known once it is open."""
        return self._at_times is not None

    def sync(self) -> str:
        """Have complete rows written, all else is durable already; returns the position after them."""
        if self._at_times is None:
            return f"{self._producer}/{self._sequence}"
        self._do(self._at_times.write(self._opened))
        return self._at_times.position

    def open(self, schema: pa.Schema) -> None:
        """Open the store; have the collection there. Raises OutputError, OutputGone."""
        self._schema = schema
        self._loop = loop = asyncio.new_event_loop()
        self._thread = Thread(target=loop.run_forever, name=self._place, daemon=True)
        self._thread.start()
        try:
            self._collections = self._wait(self._entered(schema))
        except CollectionUnknown as error:
            self._end()
            raise OutputGone(f"{self._place}: {error}") from error
        except StorageError as error:
            self._end()
            raise OutputError(f"{self._place}: {error}") from error
        except BaseException:
            self._end()
            raise

    async def _entered(self, schema: pa.Schema) -> Collections:
        rows = pa.schema([each for each in schema if each.name != WEIGHT])
        collections = Collections(self._settings.store)
        await collections.__aenter__()
        try:
            name = self._settings.collection
            if self._resumed is None:
                with suppress(CollectionExists):
                    await collections.create(name, rows, timed="writers" if self._has_times else "store")
            found = await collections.describe(name)
            if not found.schema.equals(rows):
                raise RowsMismatch(name, found.schema, rows)
            self._at_times = await self._begun(collections, found)
            if self._at_times is None:
                self._first = await collections.next_sequence(name, self._producer)
                if self._first <= self._sequence and self._sequence:
                    raise OutputGone(
                        f"{self._place}: inserted rows are missing: the collection was replaced "
                        f"by another of this name, or by an older copy"
                    )
        except BaseException:
            await collections.__aexit__(None, None, None)
            raise
        return collections

    async def _begun(self, collections: Collections, found: CollectionStatus) -> _AtTimes | None:
        """Return the writer at times; None if rows are inserted. Raises OutputError."""
        name, rendition = found.name, self._settings.rendition
        is_timed = found.timed == "writers" or rendition is not None
        if not is_timed and (self._resumed is None or not self._resumed.startswith(_TIMES)):
            return None
        if not self._has_times:
            what = f"rendition {rendition}" if rendition else "collection whose writers assign the times"
            raise OutputError(
                f"{self._place}: to write a {what}, a query needs times, and only a query in steps has "
                f"them: run the query in steps (--stepped), or insert into a collection whose times the "
                f"store assigns"
            )
        if self._resumed is not None:
            if not self._resumed.startswith(_TIMES) or not is_timed:
                raise OutputGone(
                    f"{self._place}: this is not the collection that was written before, but "
                    f"another of the same name"
                )
            written, _, from_ = self._resumed.removeprefix(_TIMES).rpartition("/")
            return _AtTimes(name, written, int(from_))
        if rendition is None:
            rendition = found.active
        elif rendition not in {each.name for each in found.renditions}:
            with suppress(RenditionRefused):  # another one was first
                await collections.new_rendition(name, rendition=rendition)
            found = await collections.describe(name)
        (upper,) = (each.upper for each in found.renditions if each.name == rendition)
        if upper:
            raise OutputError(
                f"{self._place}: rendition {rendition} was written up to {upper} by another "
                f"query, or by this query with another state: a start from scratch would "
                f"write the rows a second time; give the sink a new rendition, and hand over to "
                f"that rendition, or drop the collection"
            )
        return _AtTimes(name, rendition, 0)

    def write(self, batch: pa.RecordBatch) -> None:
        """Insert rows, if they are not there, durable at return; or keep them until `at` or `publish`."""
        if self._at_times is not None:
            self._at_times.rows.append(batch)
            return
        if self._result is not None:
            self._result.append(batch)
            return
        self._sequence += 1
        if self._sequence < self._first:
            return
        name = self._settings.collection
        self._do(self._opened.insert(name, batch, producer=self._producer, sequence=self._sequence))

    def at(self, time: int) -> None:
        """The written rows are of this time, and are stored with the next `sync`."""
        assert self._at_times is not None, "it is asked first"
        self._at_times.at(time)

    @property
    def _opened(self) -> Collections:
        assert self._collections is not None, "it is opened first"
        return self._collections

    def publish(self) -> None:
        """Insert the result, in mode ``final``, and close. Raises OutputError."""
        if self._result is not None:
            self._insert_once(self._result)
        self._close()

    def _insert_once(self, result: list[pa.RecordBatch]) -> None:
        name = self._settings.collection
        if self._first:
            _log.info(
                "%s has the result of query %s already: this insert has no effect",
                self._place,
                self._producer,
            )
        table = pa.Table.from_batches(result, self._schema)
        try:
            rows = one_batch(table)
        except ValueError as error:
            raise OutputError(
                f"{self._place}: the result has a column of more than 2 GiB, which is too large for one insert; set "
                f"the sink's mode to 'changes'"
            ) from error
        self._do(self._opened.insert(name, rows, producer=self._producer, sequence=0))

    def discard(self) -> None:
        """Close: written rows stay, and are not written again by a resumed run."""
        self._close()

    def _close(self) -> None:
        collections, self._collections = self._collections, None
        if collections is not None:
            with suppress(StorageError):
                self._wait(collections.__aexit__(None, None, None))
        self._end()

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _do(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._wait(work)
        except StorageError as error:
            raise OutputError(f"{self._place}: {error}") from error

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _AtTimes:
    """A writer at times into a rendition, whose first unwritten time is ``upper``. ``rows`` have no time yet."""

    def __init__(self, name: str, rendition: str, upper: int) -> None:
        self.rows: list[pa.RecordBatch] = []
        self._name = name
        self._rendition = rendition
        self._written = self._upper = upper
        self._updates: list[tuple[int, pa.RecordBatch]] = []

    @property
    def position(self) -> str:
        """Where it is written from next."""
        return f"{_TIMES}{self._rendition}/{self._written}"

    def at(self, time: int) -> None:
        """Give the rows their time."""
        if self.rows:
            self._updates.append((time, pa.concat_batches(self.rows)))
        self.rows = []
        self._upper = time + 1

    async def write(self, collections: Collections) -> None:
        """Write what has a time. Raises StorageError."""
        if self._upper == self._written:
            return
        await collections.write(
            self._name, self._updates, self._written, self._upper, rendition=self._rendition
        )
        self._written, self._updates = self._upper, []
