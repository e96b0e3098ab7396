"""The envelope of rows that take the place of one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing, zset
from nebuli.dataflow.rows import group_rows
from nebuli.dataflow.state import KeyedState, Run, consolidated
from nebuli.ingestion.errors import DefinitionInvalid, MessageInvalid

from .envelope import Changes, Envelope
from .time_order import Arrived

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.definition import UpsertEnvelope
    from nebuli.ingestion.message_addresses import Messages


class Upsert(Envelope):
    """A row takes the place of the one with its key, or takes it away, where the column ``deleted`` is true.

    The last row of each key at one time counts: by raw source, then part, then address. Its state is what
    it has put out.
    """

    reads_output: ClassVar[bool] = True

    def __init__(self, schema: pa.Schema, settings: UpsertEnvelope, *, source: str) -> None:
        self.schema = schema
        self._key = settings.key
        self._deleted = settings.deleted
        self._source = source
        self._rows = RowsByKey(schema, settings.key)
        self.wants = schema
        if settings.deleted is not None:
            place = schema.get_field_index(settings.deleted)
            if place < 0:
                self.wants = schema.append(pa.field(settings.deleted, pa.bool_()))
            elif not pa.types.is_boolean(schema.types[place]):
                raise DefinitionInvalid(
                    f"{source}: the column {settings.deleted}, which marks deleted rows, is {schema.types[place]}; "
                    "expected bool"
                )

    def rehydrate(self, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:
        """Begin with what was put out."""
        self._rows.load(output)

    def check(self, messages: Messages) -> None:
        """Raise MessageInvalid for a key with a null."""
        refuse_nulls(messages.rows.select(list(self._key)), lambda row: messages.place(row, self._source))

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """The rows that came instead of those that were there. Raises MessageInvalid for a key with a null."""
        arrived = Arrived.of(messages, self.wants)
        if not arrived.rows.num_rows:
            return Changes([])
        keys = arrived.rows.select(list(self._key))
        refuse_nulls(keys, lambda row: arrived.place(row, self._source))
        last = np.sort(lasts(keys))
        rows = arrived.rows.take(pa.array(last))
        kept = rows
        if self._deleted is not None:
            kept = rows.filter(pc.invert(rows.column(self._deleted).fill_null(False)))
        change = self._rows.replace(rows.select(list(self._key)), kept.select(self.schema.names))
        return Changes([change] if change.num_rows else [])


def lasts(keys: pa.RecordBatch) -> NDArray[np.int64]:
    """The last row of each key."""
    hashes = hashing.hash_rows(keys.columns, keys.num_rows)
    return group_rows(keys.columns, hashes).lasts


def refuse_nulls(keys: pa.RecordBatch, place: Callable[[int], str]) -> None:
    """Raise MessageInvalid for the first null in keys, with the ``place`` of its row."""
    bad = [
        (int(pc.index(pc.is_null(column), True).as_py()), name)
        for name, column in zip(keys.schema.names, keys.columns, strict=True)
        if column.null_count
    ]
    if bad:
        row, name = min(bad)
        raise MessageInvalid(f"{place(row)}: column {name} of the key is null; expected a value")


class RowsByKey:
    """The rows with columns of ``schema``, found by those of ``key``.

    They are kept as sorted runs of Arrow rows, which are merged as they grow: a change costs by its own size, and
    memory is about that of the rows, twice that for a while.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self._schema = schema
        self._key = tuple(key)
        self._state = KeyedState(self._key, consolidated)

    def load(self, rows: pa.Table | None) -> None:
        """Begin with these, instead of what is there."""
        self._state.clear()
        for batch in rows.select(self._schema.names).to_batches() if rows is not None else ():
            self._insert(zset.insertions(batch.cast(self._schema)))

    def find(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with any of these keys, each of which is there once, as a Z-set."""
        hashes = hashing.hash_rows([keys.column(name) for name in self._key], keys.num_rows)
        found = [match.found for match in self._state.lookup(Run(keys, hashes))]
        return zset.consolidate([zset.empty(zset.weighted(self._schema)), *found])

    def replace(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Have ``rows`` be all that there is of ``keys``; each key is once in either. Gives what that changes."""
        change = zset.consolidate([_negated(self.find(keys)), zset.insertions(rows)])
        self._insert(change)
        return change

    def clear(self) -> pa.RecordBatch:
        """Have no rows any more. Gives what that changes."""
        settled, fresh = self._state.runs
        rows = [run.rows for run in (*settled, *fresh)]
        self._state.clear()
        return _negated(zset.consolidate([zset.empty(zset.weighted(self._schema)), *rows]))

    @property
    def nbytes(self) -> int:
        """The memory that it holds."""
        return self._state.nbytes

    def _insert(self, change: pa.RecordBatch) -> None:
        self._state.insert(Run.of(change, self._key))


def _negated(rows: pa.RecordBatch) -> pa.RecordBatch:
    return zset.with_weights(zset.without_weight(rows), -zset.weights_of(rows))
