"""Reads of the views that a part of a graph has, as clients ask for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.partial import View
from nebuli.dataflow.partial.key_sets import batch_of as as_keys
from nebuli.dataflow.partial.key_sets import distinct, key_schema_of, tuples_of, with_one_zero_each
from nebuli.dataflow.partial.part_encoding import KEY_BYTES, key_sizes, sendable
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import empty, weighted
from nebuli.views.shown_rows import expanded, found_bytes, found_one_bytes, version_of
from nebuli.views.view_calls import (
    NEVER,
    Changed,
    Describe,
    Description,
    Get,
    Refused,
    Watch,
    batch_of,
    bytes_of,
    question_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from threading import Lock

    from numpy.typing import NDArray

    from nebuli.dataflow.partial import Filled, PartialGraph, Reading
    from nebuli.dataflow.partial.key_sets import Key

__all__ = ["ViewReads"]

_LONGEST_S = 3600.0
"""So few rows are looked at by Python."""


@dataclass(slots=True)
class _Waiting:
    """A client that waits for some of the keys; ``rows`` has those of the keys that have come."""

    keys: set[Key]
    rows: dict[Key, pa.RecordBatch]
    some: asyncio.Future[None]


@dataclass(slots=True)
class ViewCounts:
    """Counts of reads of a view: keys, and of these the ones that were there at once."""

    lookups: int = 0
    hits: int = 0


@dataclass(slots=True)
class _View:
    node: View
    schema: pa.Schema
    """The schema of its rows, the weight last."""
    description: Description
    key_schema: pa.Schema
    known: int
    """The number of known keys in the description."""
    counts: ViewCounts = field(default_factory=ViewCounts)
    waiting: defaultdict[Key, list[_Waiting]] = field(default_factory=lambda: defaultdict(list))
    watchers: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ViewReads:
    """Answers what is asked of views. To be used on the loop.

    The graph is moved by another thread: both have ``lock`` while they are at it. That thread is woken by ``wake`` when
    something is to be asked for, and has `filled` and `changed` called on the loop.
    """

    def __init__(self, query: str, graph: PartialGraph, lock: Lock, wake: Callable[[], None]) -> None:
        self._graph = graph
        self._lock = lock
        self._wake = wake
        self.is_reading = False
        """True if a client reads, or waits to read: the thread that moves the graph yields, as a lock is not fair."""
        self._query = query
        self._views: dict[str, _View] = {}
        for node in graph.plan.nodes.values():
            if isinstance(node, View) and graph.is_here(node.id):
                self.add(node.id)

    def add(self, id_: str) -> None:
        """Have one more view, which the graph has got."""
        node = self._graph.plan.nodes[id_]
        assert isinstance(node, View)
        schema = weighted(arrow_schema(self._graph.plan.schemas[node.id]))
        is_partial = any(place.node == node.id for place in self._graph.plan.partial)
        shown = _without_weight(schema).serialize().to_pybytes()
        key_schema = key_schema_of([schema.field(name).type for name in node.key])
        description = Description(self._query, id_, shown, node.key, is_partial)
        self._views = {**self._views, id_: _View(node, schema, description, key_schema, description.known)}

    @property
    def watched(self) -> set[str]:
        """The views that are watched for changes. From any thread."""
        return {id_ for id_, view in self._views.items() if view.watchers}

    @property
    def counts(self) -> dict[str, ViewCounts]:
        """Return the counts of reads so far, by view. From any thread."""
        return {id_: view.counts for id_, view in self._views.items()}

    def answer(self, view: str, body: bytes) -> bytes | Awaitable[bytes]:
        """The answer to a call about a view. Raises ViewFailed, if the question is malformed."""
        found = self._views[view]
        match question_of(body):
            case Describe():
                return bytes_of(found.description)
            case Get(known=known) | Watch(known=known) if known != found.known:
                return bytes_of(found.description)
            case Get(keys, within_s, again):
                return self._get(found, keys, within_s, again=again)
            case Watch(keys, version, within_s):
                return self._watch(found, keys, version, within_s)

    def filled(self, filled: Iterable[Filled]) -> None:
        """Keys that were missing have come."""
        for each in filled:
            view = self._views[each.view]
            keys = tuples_of(each.keys)
            rows, counts = _by_key(each.keys, each.rows, view.node.key)
            ends = np.cumsum(counts)
            for key, end, count in zip(keys, ends, counts, strict=True):
                for waiting in view.waiting.pop(key, ()):
                    waiting.rows[key] = rows.slice(end - count, count)
                    waiting.keys.discard(key)
                    if not waiting.some.done():
                        waiting.some.set_result(None)

    def changed(self, views: Iterable[str]) -> None:
        """Some keys of these have other rows than before, or are missing."""
        for id_ in views:
            self._views[id_].news.set()
            self._views[id_].news = asyncio.Event()

    def _read(self, view: _View, keys: pa.RecordBatch) -> Reading:
        self.is_reading = True
        try:
            with self._lock:
                reading = self._graph.read_batch(view.node.id, keys)
        finally:
            self.is_reading = False
        if reading.missing.num_rows:
            self._wake()
        return reading

    def _get(self, view: _View, data: bytes, within_s: float, *, again: bool) -> bytes | Awaitable[bytes]:
        keys = with_one_zero_each(batch_of(data, view.key_schema))
        if sendable(keys).num_rows < keys.num_rows:
            return bytes_of(_too_large(keys))
        if distinct(keys).num_rows < keys.num_rows:
            return bytes_of(Refused(f"{keys.num_rows} keys, some of which are equal: give each key once"))
        reading = self._read(view, keys)
        missing = reading.missing.num_rows
        if not again:
            view.counts.lookups += keys.num_rows
            view.counts.hits += keys.num_rows - missing
        if missing == keys.num_rows and missing and within_s > 0:
            return self._get_missing(view, keys, reading.missing, within_s)
        if keys.num_rows == 1 and not missing:
            return found_one_bytes(reading.rows)
        rows, counts = _by_key(keys, reading.rows, view.node.key)
        if missing:
            gone = {*tuples_of(reading.missing)}
            counts[[index for index, key in enumerate(tuples_of(keys)) if key in gone]] = -1
        return found_bytes(rows, counts, counts >= 0)

    async def _get_missing(
        self, view: _View, keys: pa.RecordBatch, missing: pa.RecordBatch, within_s: float
    ) -> bytes:
        waiting = self._wait_for(view, missing)
        await self._come(view, waiting, within_s)
        found = [waiting.rows.get(key) for key in tuples_of(keys)]
        counts = np.array([-1 if rows is None else rows.num_rows for rows in found], dtype=np.int32)
        rows = pa.concat_batches([empty(view.schema), *(each for each in found if each is not None)])
        return found_bytes(rows, counts, np.zeros(len(found), dtype=np.bool_))

    def _wait_for(self, view: _View, missing: pa.RecordBatch) -> _Waiting:
        """Begin to wait; at once after the read, so that nothing is missed."""
        keys = tuples_of(missing)
        waiting = _Waiting(set(keys), {}, asyncio.get_running_loop().create_future())
        for key in keys:
            view.waiting[key].append(waiting)
        return waiting

    async def _come(self, view: _View, waiting: _Waiting, within_s: float) -> None:
        """Wait until some have come, but not for longer than that."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(within_s, 0.0), _LONGEST_S)):
                    await waiting.some
        finally:
            for key in waiting.keys:
                others = [each for each in view.waiting.pop(key, ()) if each is not waiting]
                if others:
                    view.waiting[key] = others

    async def _watch(self, view: _View, data: bytes, version: int, within_s: float) -> bytes:
        keys = with_one_zero_each(batch_of(data, view.key_schema))
        if keys.num_rows != 1:
            return bytes_of(Refused(f"expected one key to watch, got {keys.num_rows}"))
        if not sendable(keys).num_rows:
            return bytes_of(_too_large(keys))
        until = asyncio.get_running_loop().time() + min(max(within_s, 0.0), _LONGEST_S)
        is_first = version == NEVER
        view.watchers += 1
        try:
            while True:
                news = view.news
                rows = await self._rows_of(view, keys, until, counted=is_first)
                is_first = False
                if rows is None:
                    return bytes_of(Changed(version, b""))
                now = version_of(rows)
                if now != version:
                    return bytes_of(Changed(now, expanded(rows).serialize().to_pybytes()))
                try:
                    async with asyncio.timeout_at(until):
                        await news.wait()
                except TimeoutError:
                    return bytes_of(Changed(version, b""))
        finally:
            view.watchers -= 1

    async def _rows_of(
        self, view: _View, keys: pa.RecordBatch, until: float, *, counted: bool
    ) -> pa.RecordBatch | None:
        """The rows of one key, once they are there; None: they were not in time. Maybe it counts as a lookup."""
        reading = self._read(view, keys)
        if counted:
            view.counts.lookups += 1
            view.counts.hits += 1 - reading.missing.num_rows
        if not reading.missing.num_rows:
            return reading.rows
        waiting = self._wait_for(view, reading.missing)
        await self._come(view, waiting, until - asyncio.get_running_loop().time())
        return next(iter(waiting.rows.values()), None)


def _by_key(
    keys: pa.RecordBatch, rows: pa.RecordBatch, columns: Sequence[str]
) -> tuple[pa.RecordBatch, NDArray[np.int32]]:
    """The rows in the order of their keys, and how many each key has."""
    if keys.num_rows == 1:
        return rows, np.array([rows.num_rows], dtype=np.int32)
    index = {key: number for number, key in enumerate(tuples_of(keys))}
    of_rows = tuples_of(as_keys([rows.column(name) for name in columns]))
    owners = np.fromiter((index[key] for key in of_rows), dtype=np.int64, count=rows.num_rows)
    order = np.argsort(owners, kind="stable")
    return rows.take(pa.array(order)), np.bincount(owners, minlength=keys.num_rows).astype(np.int32)


def _without_weight(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema][:-1])


def _too_large(keys: pa.RecordBatch) -> Refused:
    return Refused(f"a key of {max(key_sizes(keys)):,} bytes; expected at most {KEY_BYTES:,}")
