"""The envelope of rows that take the place of one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow.keys import hashing
from nebuli.dataflow.rows import group_rows
from nebuli.ingestion.errors import DefinitionInvalid, MessageInvalid

from .arrived import Arrived
from .envelope import Changes, Envelope
from .rows_by_key import RowsByKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.addressed import Messages
    from nebuli.ingestion.definition import UpsertEnvelope


class Upsert(Envelope):
    """A row takes the place of the one with its key, or takes it away, where the column ``deleted`` is true.

    Of the rows of one time the last one of each key counts: by raw source, then part, then address. Its state is what
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
                    f"{source}: the column {settings.deleted}, by which rows are deleted, is {schema.types[place]}; "
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
        raise MessageInvalid(f"{place(row)}: column {name} is null, and it is of the key; expected a value")
