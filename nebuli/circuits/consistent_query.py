"""`Queries`: SQL over what a circuit's inputs and outputs add up to, at one step of all its members.

Each member pins the tables that a statement names, before each of its steps from the next one on, and reports the step
at which that begins. Before the greatest of these all have them pinned: that is the step. Steps continue meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.circuits.errors import ContentsUnknown, QueryTimedOut, QueryTooLarge
from nebuli.circuits.pin_releases import PinReleases
from nebuli.circuits.sql import Sql
from nebuli.dataflow.zset import WEIGHT, consolidate, insertions, weights_of, without_weight
from nebuli.steps.coordinator.call_connection import TooManyPieces, Unpinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.circuits.sql import Reads
    from nebuli.steps.coordinator.circuit_run import AnyRun

WITHIN_S = 30.0
AT_ONCE = 4
"""So many queries are worked on; others wait."""
READ_BYTES = 1 << 30
"""Bound on the bytes that one query reads of one table of one member."""


_ATTEMPT_S = 5.0
"""A process that has not answered for so long may no longer be a member: the current members are asked."""


class _NotAnswered(Exception):
    """Not all members have."""


class Queries:
    """Answers one after the other, and a few at once. ``tables`` are Z-sets of these schemas."""

    def __init__(self, run: AnyRun, tables: Mapping[str, pa.Schema]) -> None:
        self._run = run
        self._tables = {name: schema.remove(len(schema) - 1) for name, schema in tables.items()}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._sql: Sql | None = None
        self._releases = PinReleases()

    async def ask(self, sql: str, within_s: float = WITHIN_S) -> tuple[int, pa.Table]:
        """Return the result of a statement over all rows of steps below the returned one, and no others.

        After a cancel it may be worked on until the deadline. Raises QueryError, StorageError.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        try:
            async with asyncio.timeout_at(until), self._turns:
                database = await self._database()
                reads = await asyncio.to_thread(
                    database.reads, sql, {name: schema.names for name, schema in self._tables.items()}
                )
                step, tables = await self._read(reads, until)
        except TimeoutError:
            raise QueryTimedOut(
                f"not all members could be read within {within_s:.3g} s: check that the circuit "
                f"runs, and query again"
            ) from None
        async with self._turns:
            left_s = max(until - loop.time(), 0.1)
            return step, await asyncio.to_thread(database.run, sql, tables, self._tables, left_s)

    async def _database(self) -> Sql:
        if self._sql is None:
            self._sql = await asyncio.to_thread(
                Sql
            )  # it takes a tenth of a second, and there may never be a query
        return self._sql

    async def _read(self, reads: Reads, until: float) -> tuple[int, dict[str, pa.Table]]:
        """Tables at one step of all members, in a new attempt if a member was restarted, or members have changed."""
        if not reads.columns:
            return max(self._run.coordinator.complete, self._run.calls.seen), {}
        while True:
            name = secrets.token_hex(8)
            try:
                return await self._read_pinned(name, reads, until)
            except (Unpinned, _NotAnswered):
                continue
            finally:
                self._releases.release(name, [*self._run.calls])

    async def _read_pinned(self, name: str, reads: Reads, until: float) -> tuple[int, dict[str, pa.Table]]:
        within_s = max(until - asyncio.get_running_loop().time(), 0.1)
        lines = list(self._run.calls)
        outputs = {each.id for each in self._run.plan.outputs}
        homes = self._run.plan.homes
        done = max(self._run.coordinator.complete, self._run.calls.seen)
        try:
            async with asyncio.timeout(min(within_s, _ATTEMPT_S)):
                firsts = await asyncio.gather(
                    *(line.pin(name, list(reads.columns), done, within_s) for line in lines)
                )
        except TimeoutError:
            raise _NotAnswered from None
        # An output is at one member, an input comes in anywhere.
        holders = {table: [lines[homes[table]]] if table in outputs else lines for table in reads.columns}
        step = max(firsts)
        try:
            found = await asyncio.gather(
                *(
                    line.pinned(name, step, table, columns, READ_BYTES)
                    for table, columns in reads.columns.items()
                    for line in holders[table]
                )
            )
        except TooManyPieces as error:
            raise QueryTooLarge(f"{error}: name the required columns, or read another table") from None
        parts = iter(found)
        tables = {}
        for table, columns in reads.columns.items():
            batches = [next(parts) for _ in holders[table]]
            tables[table] = await asyncio.to_thread(_contents, table, batches, columns, self._tables[table])
        self._run.calls.has_seen(step)
        return step, tables

    async def close(self) -> None:
        """Let go of everything."""
        await self._releases.close()
        if self._sql is not None:
            await asyncio.to_thread(self._sql.close)


def _contents(
    name: str, parts: Sequence[Sequence[pa.RecordBatch] | None], columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return the sum of all parts of a table, in some of its columns, each row as often as its weight.

    Without columns it has the first one, with nothing in it. Raises ContentsUnknown.
    """
    if any(part is None for part in parts):
        raise ContentsUnknown(
            f"the contents of {name} are not known: they became too large to be kept (--max-state-bytes sets "
            f"the limit), or the state was created without them; read the output from a step, or "
            f"start with a new --state"
        )
    batches = [batch for part in parts for batch in part or () if batch.num_rows]
    if not columns:
        return pa.table([pa.nulls(_count(name, batches), schema.field(0).type)], names=schema.names[:1])
    chosen = pa.schema([schema.field(column) for column in columns])
    plain = [batch for batch in batches if WEIGHT not in batch.schema.names]
    weighted = [batch for batch in batches if WEIGHT in batch.schema.names]
    if weighted and any((weights_of(batch) < 0).any() for batch in weighted):
        # Given by one member, and retracted by another.
        weighted = [consolidate([*weighted, *map(insertions, plain)])]
        plain = []
    expanded = [_expanded(name, batch) for batch in weighted]
    return pa.Table.from_batches([*plain, *expanded]).cast(chosen) if batches else chosen.empty_table()


def _expanded(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    weights, rows = weights_of(batch), without_weight(batch)
    if (weights == 1).all():
        return rows
    if (weights < 0).any():
        row = int(np.argmin(weights))
        raise _taken_back(name, f"the row {rows.slice(row, 1).to_pylist()[0]}", int(weights[row]))
    return rows.take(pa.array(np.repeat(np.arange(len(weights)), weights)))


def _count(name: str, batches: Sequence[pa.RecordBatch]) -> int:
    count = sum(
        int(weights_of(batch).sum()) if WEIGHT in batch.schema.names else batch.num_rows for batch in batches
    )
    if count < 0:
        raise _taken_back(name, "rows", count)
    return count


def _taken_back(name: str, what: str, times: int) -> ContentsUnknown:
    return ContentsUnknown(
        f"{name} has {what} with a total weight of {times}: rows were retracted more often than added; push "
        f"the row with a weight above zero, or query another table"
    )
