"""Lists that grow, in shards of a store: each transaction is one append to all shards, at a time of its own.

A key's list is a row of the shard that the key is of. A transaction reads what the shards contain up to their upper,
and appends what it changes in them, expecting that upper: it happens if no other one was first, else it is computed
anew. A list that changes is one row less and one more.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store import Shard, StorageError, Store
from nebuli.store.errors import SinceMismatch, Unclear, UpperMismatch

from .following import Follower
from .history import Append, Operation, Read

SHARDS = 2
SCHEMA = weighted(pa.schema([("key", pa.int64()), ("elements", pa.string())]))
_ATTEMPTS = 4
"""Of an append of which it is not known whether it happened."""
_TRIES = 200
"""Of a transaction, while others are first."""
_LONG = 16
"""One in so many lists is written with spaces behind it, so that some appends need blobs."""
_SPACES = 1 << 16


class TriedInVain(Exception):
    """Others were first, all the time; the transaction has not happened."""


class Lists:
    """What one node knows of the lists. Opened by `opened`; its transactions may run at once."""

    moves = 40
    """Times after which it moves its holds."""
    lease_s = 0.5
    """So long its holds last: if it is stopped for longer it may find that the since has passed it."""

    def __init__(self, store: Store, shards: Sequence[Shard], node: str) -> None:
        self._store = store
        self._shards = shards
        self._node = node
        self._followers: list[Follower] = []
        self._lists: dict[int, Counter[str]] = defaultdict(Counter)
        self._held = 0
        self._reading = asyncio.Lock()

    @classmethod
    async def opened(cls, store: Store, node: str) -> Lists:
        """Those of the store, made if they are not there: at time 0 there are none."""
        shards = [await store.create_shard(f"lists {number}", SCHEMA) for number in range(SHARDS)]
        lists = cls(store, shards, node)
        while lists.upper == 0:
            try:
                await store.append([each.part([], 0, 1) for each in shards])
            except UpperMismatch:
                await lists.learn()
        return lists

    @property
    def upper(self) -> int:
        """The next transaction's time, as far as is known here."""
        return self._shards[0].upper

    async def learn(self) -> None:
        """Learn what others have done by now: what has ended when this is called is seen by all that follows."""
        await self._shards[0].refresh()

    async def transact(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        """The operations with what they have read. Raises TriedInVain, StorageError; if Unclear, it may have happened.

        One that only reads appends nothing, and so has to learn first what is there; any other is told by its append.
        """
        if all(isinstance(each, Read) for each in operations):
            await self.learn()
        for _ in range(_TRIES):
            at, done, changes = await self._computed(operations)
            if not any(changes) or await self._appended(changes, at):
                return done
            await self.learn()
        raise TriedInVain(f"others were first {_TRIES} times, the last time at {self.upper}: try again")

    async def _computed(
        self, operations: Sequence[Operation]
    ) -> tuple[int, tuple[Operation, ...], list[list[tuple[int, str, int]]]]:
        """At which time, with what for a result, and which rows change in each shard."""
        async with self._reading:
            at = self.upper
            await self._advance(at)
            read: dict[int, tuple[int, ...]] = {}
            done: list[Operation] = []
            for each in operations:
                elements = read.get(each.key)
                if elements is None:
                    elements = _elements(self._lists[each.key])
                if isinstance(each, Append):
                    elements += (each.element,)
                    done.append(each)
                else:
                    done.append(Read(each.key, elements))
                read[each.key] = elements
            changes: list[list[tuple[int, str, int]]] = [[] for _ in self._shards]
            for key in {each.key for each in operations if isinstance(each, Append)}:
                rows = changes[key % SHARDS]
                rows += [(key, text, -weight) for text, weight in self._lists[key].items() if weight]
                rows.append((key, _text(read[key]), 1))
            return at, tuple(done), changes

    async def _appended(self, changes: Sequence[Sequence[tuple[int, str, int]]], at: int) -> bool:
        """Whether the changes are what happened at ``at``. Raises StorageError."""
        parts = [
            shard.part([(at, _rows(changed))] if changed else [], at, at + 1)
            for shard, changed in zip(self._shards, changes, strict=True)
        ]
        failure: Unclear | None = None
        for append_id in self.ids():
            try:
                await self._store.append(parts, append_id=append_id)
            except UpperMismatch:
                return False
            except Unclear as error:
                failure = error
            except StorageError:
                if failure is None:
                    raise  # else it was this attempt that has not happened
            else:
                return True
        assert failure is not None
        raise failure

    def ids(self) -> Iterator[bytes]:
        """The id of each attempt of an append: always the same."""
        return repeat(os.urandom(16), _ATTEMPTS)

    # -- what is in the shards

    async def _advance(self, upper: int) -> None:
        """Know all that is below ``upper``. Raises StorageError."""
        if not self._followers:
            await self._begin(upper)
        try:
            for each in self._followers:
                await each.hear(upper)
        except SinceMismatch:  # it was stopped for longer than its holds last
            self._followers = []
            await self._begin(upper)
        for each in self._followers:
            self._add(each.taken(upper))
        if upper >= self._held + self.moves:
            await self._hold(upper)

    async def _begin(self, upper: int) -> None:
        """A snapshot of all, and from there on what changes."""
        await self._hold(upper)
        self._lists.clear()
        tables = [await each.snapshot(upper - 1) for each in self._shards]
        for table in tables:
            self._add(table.to_batches())
        self._followers = [Follower(each, upper) for each in self._shards]

    async def _hold(self, upper: int) -> None:
        """Keep what is needed to go on from ``upper``, and let go what is not."""
        for each in self._shards:
            await each.hold(self._node, upper - 1, lease_s=self.lease_s)
        self._held = upper

    def _add(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for key, text, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self._lists[key][text] += weight
                if not self._lists[key][text]:
                    del self._lists[key][text]


def _elements(rows: Counter[str]) -> tuple[int, ...]:
    """The list that the rows of a key are: there is one, once, or none.

    Of others that should not be there the last elements are read, too, so that clients see them.
    """
    lists = [tuple(json.loads(text)) for text, weight in rows.items() for _ in range(min(weight, 2))]
    first, *others = sorted(lists, key=len, reverse=True) or [()]
    return (*first, *(each[-1] for each in others))


def _text(elements: Sequence[int]) -> str:
    text = json.dumps(elements)
    return text + " " * _SPACES if len(elements) % _LONG == 0 else text


def _rows(changed: Sequence[tuple[int, str, int]]) -> pa.RecordBatch:
    return pa.record_batch([list(column) for column in zip(*changed, strict=True)], schema=SCHEMA)
