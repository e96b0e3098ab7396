"""The waiting parts of transactions, as rows of a collection: begins, rows, ends, and the finished ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import zset

from .time_order import Arrived

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

BEGIN, ROW, END, OVER = "begin", "row", "end", "over"
_IMAGES = ("before", "after")


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Rows that came at one time and wait, with their numbers; they are let go of together."""

    numbers: NDArray[np.int64]
    arrived: Arrived


@dataclass(slots=True)
class Waiting:
    """A transaction that is not over: the numbers of its first thing, begin and end; and where its rows are held."""

    first: int
    begin: int | None = None
    end: tuple[int, int] | None = None
    """Its number, and how many rows there have to be."""
    orders: set[int] = field(default_factory=set)
    pieces: list[tuple[Held, int, int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(end - start for _, start, end in self.pieces)


@dataclass(slots=True)
class Part:
    """Some of what is held, and the transaction of each row."""

    held: Held
    places: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Those of the rows."""
        return self.held.numbers[self.places]

    @property
    def arrived(self) -> Arrived:
        """The rows."""
        return self.held.arrived.take(np.asarray(self.places, dtype=np.int64))


def parts_of(some: Iterable[tuple[str, Waiting]]) -> list[Part]:
    """The rows of some transactions, by what they are held in."""
    parts: dict[int, Part] = {}
    for name, waiting in some:
        for held, start, end in waiting.pieces:
            part = parts.setdefault(id(held), Part(held))
            part.places += range(start, end)
            part.names += [name] * (end - start)
    return list(parts.values())


class OutstandingRows:
    """Between changes as they arrive, with columns ``wants``, and the rows of the state.

    A row for each thing that waits: its ``number`` in the order in which all have come, its ``kind``, its
    ``transaction``, and as ``count`` how many rows an end has or which one a row is; of a row, all that it has. Values
    of types that a collection does not have are spelt out: each column of a row before and after separately.
    """

    def __init__(self, wants: pa.Schema) -> None:
        self._wants = wants
        self._row: pa.StructType = wants.field("after").type
        images = [pa.field(f"{image}.{each.name}", each.type) for image in _IMAGES for each in self._row]
        self.schema = pa.schema(
            [
                ("number", pa.int64()),
                ("kind", pa.string()),
                ("transaction", pa.string()),
                ("count", pa.int64()),
                ("part", pa.string()),
                ("address", pa.int64()),
                ("op", pa.string()),
                ("unchanged", pa.string()),
                *((f"has_{image}", pa.bool_()) for image in _IMAGES),
                *images,
            ]
        )

    def marks(self, each: Sequence[tuple[int, str, str, int | None]]) -> pa.RecordBatch:
        """State rows of begins and ends: number, kind, transaction and count of each."""
        numbers, kinds, transactions, counts = zip(*each, strict=True) if each else ([], [], [], [])
        known = {"number": numbers, "kind": kinds, "transaction": transactions, "count": counts}
        return self._batch(len(each), known)

    def rows(self, names: Sequence[str], numbers: NDArray[np.int64], arrived: Arrived) -> pa.RecordBatch:
        """State rows of changes of transactions with these names."""
        rows, count = arrived.rows, len(numbers)
        known: dict[str, Any] = {
            "number": numbers,
            "kind": [ROW] * count,
            "transaction": names,
            "count": rows.column("transaction").flatten()[1],
            "part": [arrived.part(row) for row in range(count)],
            "address": arrived.addresses,
            "op": rows.column("op"),
            "unchanged": [
                json.dumps(each) if each else None for each in rows.column("unchanged").to_pylist()
            ],
        }
        for image in _IMAGES:
            column = rows.column(image)
            known[f"has_{image}"] = column.is_valid()
            for place, each in enumerate(column.flatten()):
                known[f"{image}.{self._row.field(place).name}"] = each
        return self._batch(count, known)

    def of(self, some: Sequence[tuple[str, Waiting]]) -> list[pa.RecordBatch]:
        """All state rows of transactions that wait."""
        marks: list[tuple[int, str, str, int | None]] = []
        for name, waiting in some:
            if waiting.begin is not None:
                marks.append((waiting.begin, BEGIN, name, None))
            if waiting.end is not None:
                marks.append((waiting.end[0], END, name, waiting.end[1]))
        rows = [self.rows(part.names, part.numbers, part.arrived) for part in parts_of(some)]
        return [self.marks(marks), *rows]

    def read(self, state: pa.Table) -> tuple[dict[str, Waiting], list[tuple[int, str]]]:
        """Return the waiting transactions, by the first event of each; and the finished ones, by their numbers."""
        state = state.select(self.schema.names).sort_by("number").combine_chunks()
        rows = zset.empty(self.schema)
        if state.num_rows:
            rows = state.to_batches()[0].cast(self.schema)
        waiting: dict[str, Waiting] = {}
        over: list[tuple[int, str]] = []
        places: dict[str, list[int]] = {}
        things = zip(*(rows.column(place).to_pylist() for place in range(4)), strict=True)
        for place, (number, kind, name, count) in enumerate(things):
            if kind == OVER:
                over.append((number, name))
                continue
            one = waiting.setdefault(name, Waiting(number))
            if kind == BEGIN:
                one.begin = number
            elif kind == END:
                one.end = (number, count)
            else:
                places.setdefault(name, []).append(place)
                if count is not None:
                    one.orders.add(count)
        everything = rows.take(pa.array([place for some in places.values() for place in some], pa.int64()))
        held = Held(everything.column("number").to_numpy(), self._arrived(everything))
        start = 0
        for name, some in places.items():
            waiting[name].pieces.append((held, start, start + len(some)))
            start += len(some)
        return waiting, over

    def _batch(self, count: int, known: dict[str, Any]) -> pa.RecordBatch:
        columns = [
            pa.array(known[each.name], each.type) if each.name in known else pa.nulls(count, each.type)
            for each in self.schema
        ]
        return pa.record_batch(columns, schema=self.schema)

    def _arrived(self, rows: pa.RecordBatch) -> Arrived:
        count = rows.num_rows
        found: dict[str, Any] = {
            "op": rows.column("op"),
            "unchanged": pa.array(
                [each and json.loads(each) for each in rows.column("unchanged").to_pylist()],
                self._wants.field("unchanged").type,
            ),
            "transaction": pa.StructArray.from_arrays(
                [rows.column("transaction"), rows.column("count")],
                fields=list(self._wants.field("transaction").type),
            ),
        }
        for image in _IMAGES:
            found[image] = pa.StructArray.from_arrays(
                [rows.column(f"{image}.{each.name}") for each in self._row],
                fields=list(self._row),
                mask=_not(rows.column(f"has_{image}")),
            )
        columns = [found.get(each.name, pa.nulls(count, each.type)) for each in self._wants]
        parts = rows.column("part").dictionary_encode()
        return Arrived(
            pa.record_batch(columns, schema=self._wants),
            parts.dictionary.to_pylist(),
            parts.indices.to_numpy().astype(np.int64),
            rows.column("address").to_numpy(),
        )


def weighted(batches: Iterable[pa.RecordBatch], weight: int) -> list[pa.RecordBatch]:
    """Z-sets that have every row so often; without those that have none."""
    return [zset.with_weights(each, np.full(each.num_rows, weight)) for each in batches if each.num_rows]


def _not(column: Any) -> Any:
    return pa.array(~np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_))
