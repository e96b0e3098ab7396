"""The envelope of changes as Debezium writes them, and as the reader of Postgres does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nebuli.dataflow import hashing, zset
from nebuli.dataflow.rows import equal_values, group_rows
from nebuli.ingestion.errors import MessageInvalid

from .envelope import Changes, Envelope
from .time_order import Arrived
from .upsert import RowsByKey, refuse_nulls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nebuli.ingestion.definition import DebeziumEnvelope
    from nebuli.ingestion.message_addresses import Messages

_PUTS, _DELETES, _TRUNCATES = ("c", "r", "u"), "d", "t"
_OPS = (*_PUTS, _DELETES, _TRUNCATES)
_UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's default for a value that is long, was not changed, and thus was not sent to it."""
TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64())])


def changes_of(schema: pa.Schema) -> pa.Schema:
    """The columns of changes of rows with ``schema``, and of the begins and ends of their transactions.

    As Debezium names them; ``unchanged`` are names of columns that ``after`` does not have because they were not
    changed, as reported by a reader that sees it.
    """
    row = pa.struct(list(schema))
    return pa.schema(
        [
            ("op", pa.string()),
            ("before", row),
            ("after", row),
            ("unchanged", pa.list_(pa.string())),
            ("transaction", TRANSACTION),
            ("status", pa.string()),
            ("id", pa.string()),
            ("event_count", pa.int64()),
        ]
    )


class Debezium(Envelope):
    """Changes of rows with a ``key``: each is the last word on its row, so that one that comes twice changes nothing.

    c, r and u: ``after`` takes the place of the row with its key, and where ``before`` has another key, of that one,
    too; d: the row with the key of ``before`` goes; t: all rows go. Messages about the begin and end of a transaction
    are ignored.

    An u need not have what was not changed: a column that is named in ``unchanged``, or is a text or binary with
    Debezium's __debezium_unavailable_value, stays as it was.

    Debezium is to write the change alone, without a schema: value.converter.schemas.enable=false.
    """

    reads_output: ClassVar[bool] = True

    def __init__(self, schema: pa.Schema, settings: DebeziumEnvelope, *, source: str) -> None:
        self.schema = schema
        self._key = list(settings.key)
        self._source = source
        self.wants = changes_of(schema)
        self._rows = RowsByKey(schema, settings.key)

    def rehydrate(self, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:
        """Begin with what was put out."""
        self._rows.load(output)

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        """Return the result of the changes. Raises MessageInvalid for one that does not identify its row."""
        arrived = Arrived.of(messages, self.wants)
        change = self.changed(arrived.take(self.checked(arrived)))
        return Changes([change] if change.num_rows else [])

    def checked(self, arrived: Arrived) -> NDArray[np.int64]:
        """Which of these are changes of rows, each with all that it takes; the others are about transactions."""
        rows = arrived.rows
        ops = rows.column("op")
        known = pc.is_in(ops, value_set=pa.array(_OPS))
        about = pc.and_(pc.is_null(ops), pc.is_valid(rows.column("status")))
        for row in _where(pc.invert(pc.or_(known, about)))[:1]:
            op = ops[int(row)].as_py()
            said = "neither op nor status" if op is None else f"op {op!r}"
            raise MessageInvalid(
                f"{arrived.place(int(row), self._source)}: {said}; expected an op of c, r, u, d or t, or the "
                "status of a transaction; JSON from Debezium needs value.converter.schemas.enable=false"
            )
        for image, wanted in (("after", _PUTS), ("before", (_DELETES,))):
            has_to = pc.is_in(ops, value_set=pa.array(wanted))
            there = pc.is_valid(rows.column(image))
            for row in _where(pc.and_(has_to, pc.invert(there)))[:1]:
                raise MessageInvalid(
                    f"{arrived.place(int(row), self._source)}: op {ops[int(row)].as_py()!r} has no {image}, "
                    "which identifies the changed row; configure the database to send it (in Postgres: REPLICA "
                    "IDENTITY)"
                )
            is_used = pc.and_(there, pc.or_(has_to, pc.equal(ops, "u")))
            places = _where(is_used)
            keys = _fields(rows.column(image), self._key).take(pa.array(places))
            used = arrived.take(places)
            refuse_nulls(keys, partial(used.place, source=self._source))
        return _where(known)

    def changed(self, arrived: Arrived) -> pa.RecordBatch:
        """The Z-set that changes come to, one after the other, which were `checked`; what they leave is kept."""
        ops = arrived.rows.column("op")
        truncates = _where(pc.equal(ops, _TRUNCATES))
        if len(truncates):
            arrived = arrived.take(np.arange(truncates[-1] + 1, len(ops)))
        touches = self._touches(arrived)
        last = np.sort(touches.lasts)
        rows = self._images(touches, arrived, last, is_empty=len(truncates) > 0)
        keys = touches.keys.take(pa.array(last))
        if len(truncates):  # not before here, where nothing can be wrong any more
            return zset.consolidate([self._rows.clear(), self._rows.replace(keys, rows)])
        return self._rows.replace(keys, rows)

    def _touches(self, arrived: Arrived) -> _Touches:
        """Every change as what it does to rows: one of its key is put or taken away, and one of its old key before."""
        rows = arrived.rows
        puts = np.asarray(
            pc.is_in(rows.column("op"), value_set=pa.array(_PUTS)).to_numpy(zero_copy_only=False)
        )
        before, after = (_fields(rows.column(image), self._key) for image in ("before", "after"))
        with_before = _where(pc.and_(pc.is_valid(rows.column("before")), pc.equal(rows.column("op"), "u")))
        old, new = (each.take(pa.array(with_before)) for each in (before, after))
        is_moved = np.zeros(len(with_before), dtype=np.bool_)
        for one, other in zip(old.columns, new.columns, strict=True):
            is_moved |= ~equal_values(one, other)
        moved = with_before[is_moved]
        put, deleted = np.flatnonzero(puts), np.flatnonzero(~puts)
        order = np.argsort(np.concatenate([2 * moved, 2 * put + 1, 2 * deleted + 1]), kind="stable")
        keys = pa.concat_batches(
            [before.take(pa.array(moved)), after.take(pa.array(put)), before.take(pa.array(deleted))]
        ).take(pa.array(order))
        images = np.concatenate([np.full(len(moved), -1), put, np.full(len(deleted), -1)])[order]
        changes = np.concatenate([moved, put, deleted])[order]
        return _Touches.of(keys, images, changes)

    def _images(
        self, touches: _Touches, arrived: Arrived, which: NDArray[np.int64], *, is_empty: bool
    ) -> pa.RecordBatch:
        """The rows that some of the touches put, with what an u does not have from the row that was there."""
        after = _fields(arrived.rows.column("after"), self.schema.names)
        put = touches.images[which]
        put = put[put >= 0]
        missing = self._unchanged(arrived.rows, after)
        if not missing:
            return after.take(pa.array(put)).cast(self.schema)
        nothing = zset.empty(self.schema)
        keys = touches.keys.take(pa.array(touches.lasts))
        there = nothing if is_empty else zset.without_weight(self._rows.find(keys))
        images = pa.concat_batches([after.cast(self.schema), there])
        sources = self._sources(touches, arrived, there.select(self._key), missing)
        columns = [
            column.take(pa.array(sources[name][put] if name in sources else put))
            for name, column in zip(images.schema.names, images.columns, strict=True)
        ]
        return pa.record_batch(columns, schema=self.schema)

    def _sources(
        self, touches: _Touches, arrived: Arrived, there: pa.RecordBatch, missing: Mapping[int, Sequence[str]]
    ) -> dict[str, NDArray[np.int64]]:
        """Return, by column that is missing somewhere, the place of each change's value.

        Among these, or, after them, the earlier ones.

        Raises MessageInvalid where there is no row that it could stay as it was in.
        """
        count = arrived.rows.num_rows
        sources = {name: np.arange(count) for names in missing.values() for name in names}
        current: dict[int, dict[str, int] | None] = {}
        all_keys = pa.concat_batches([touches.keys, there])
        ids = _groups(all_keys).ids
        for row, group in enumerate(ids[len(touches.images) :].tolist()):
            current[group] = dict.fromkeys(sources, count + row)
        moved_from: tuple[int, dict[str, int] | None] = (-1, None)
        pairs = zip(ids.tolist(), touches.images.tolist(), touches.changes.tolist(), strict=False)
        for group, image, change in pairs:
            if image < 0:
                moved_from = (change, current.pop(group, None))
                continue
            old = moved_from[1] if moved_from[0] == change else current.get(group)
            now = dict.fromkeys(sources, change)
            for name in missing.get(change, ()):
                if old is None:
                    raise MessageInvalid(
                        f"{arrived.place(change, self._source)}: column {name} is left out as unchanged, but "
                        "no earlier row with this key is known; begin with a snapshot, or set REPLICA IDENTITY "
                        "FULL"
                    )
                now[name] = sources[name][change] = old[name]
            current[group] = now
        return sources

    def _unchanged(self, rows: pa.RecordBatch, after: pa.RecordBatch) -> dict[int, list[str]]:
        """By the number of a change, the columns that it does not have."""
        missing: dict[int, list[str]] = {}
        names = rows.column("unchanged")
        is_update = pc.equal(rows.column("op"), "u")
        for row in _where(
            pc.and_(is_update, pc.greater(pc.list_value_length(names).fill_null(0), 0))
        ).tolist():
            missing[row] = [name for name in names[row].as_py() if name in self.schema.names]
        for name, column in zip(after.schema.names, after.columns, strict=True):
            if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                left_out = pc.equal(column, pa.scalar(_UNAVAILABLE).cast(column.type)).fill_null(False)
                for row in _where(pc.and_(is_update, left_out)).tolist():
                    missing.setdefault(row, []).append(name)
        return missing


@dataclass(frozen=True, slots=True)
class _Touches:
    """The changes of rows, in order: the key, the change whose ``after`` is put, or -1, and its change.

    ``lasts`` is the last of each key.
    """

    keys: pa.RecordBatch
    images: NDArray[np.int64]
    changes: NDArray[np.int64]
    lasts: NDArray[np.int64]

    @classmethod
    def of(cls, keys: pa.RecordBatch, images: NDArray[np.int64], changes: NDArray[np.int64]) -> _Touches:
        return cls(keys, images, changes, _groups(keys).lasts)


def _groups(keys: pa.RecordBatch) -> Any:
    return group_rows(keys.columns, hashing.hash_rows(keys.columns, keys.num_rows))


def _fields(rows: pa.StructArray, names: Sequence[str]) -> pa.RecordBatch:
    """Some columns of rows, null where there is no row."""
    places = {field.name: place for place, field in enumerate(rows.type)}
    columns = rows.flatten()
    return pa.record_batch([columns[places[name]] for name in names], list(names))


def _where(which: Any) -> NDArray[np.int64]:
    return np.flatnonzero(which.fill_null(False).to_numpy(zero_copy_only=False))
