"""Aggregates and distinct: groups by key, with the state to compute their next change from changed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.partial.graph_node import GraphNode, Waiting, answer, only
from nebuli.dataflow.partial.key_sets import parted, reordered
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.zset import empty, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nebuli.dataflow.aggregates.aggregate import Aggregate
    from nebuli.dataflow.partial.traffic import Instruction, Response, Upquery
    from placement.partial.places import Paths, Place


class GroupingNode(GraphNode):
    """Has the groups of some keys, for each of the places that it is asked by.

    Each place has groups of its own, which know nothing of those of the others: where their keys are of some of the
    columns that it groups by, all groups of a key are there or none. A group that several have changes alike in all, as
    they get the same messages, and so is forwarded once. If it is full, its places share one.
    """

    def __init__(
        self, id_: str, schema: pa.Schema, paths: Paths, make: Callable[[], Aggregate], *, full: bool
    ) -> None:
        super().__init__(id_, schema, paths)
        self.full = full
        self._make = make
        self._all = _Groups(make()) if full else None
        self._groups: dict[Place, _Groups] = {}

    def add(self, place: Place) -> None:
        """Have groups be found by its columns."""
        if place in self._groups:
            return
        rows = KeyedRows(self.schema, place.columns, full=self.full)
        if self._all is None:
            self._groups[place] = _Groups(self._make(), {place: rows})
            return
        if self._all.found:
            rows.apply(self.rows)
        self._all.found[place] = rows
        self._groups[place] = self._all

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows that it has given, if it is full."""
        assert self._all is not None, "it is full"
        return next(iter(self._all.found.values())).all()

    def begin(self) -> pa.RecordBatch:
        """Return its output before any row: a row only without columns to group by."""
        return empty(self.schema) if self._all is None else self._all.begun(self.schema)

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Give the groups on that change, of keys that are here."""
        before: list[_Groups] = []
        changes = [empty(self.schema)]
        for groups in dict.fromkeys(self._groups.values()):
            rows, _ = parted(batch, groups.has(batch))
            if rows.num_rows:
                changed = groups.changed(rows, self.schema)
                given = np.zeros(changed.num_rows, dtype=np.bool_)
                for other in before:
                    given |= other.has(changed)
                changes.append(changed.filter(pa.array(~given)))
            before.append(groups)
        yield from self.everywhere(pa.concat_batches(changes))

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Keys are filled: answer the nodes that have asked for them."""
        place = self.paths[response.path].target
        groups = self._groups[place]
        asked = groups.waiting.of(response.keys)
        columns = self.paths[response.path].columns[-1]
        groups.fill(place, asked, only(columns, response, asked), self.schema)
        for number, keys in groups.waiting.take(asked):
            yield answer(self.paths[number], keys, groups.found[place])

    def awaited(self) -> Iterator[Upquery]:
        """Return the keys that nodes below wait for."""
        for place, groups in self._groups.items():
            yield from self.upqueries(place, groups.waiting.all())

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Answer with the keys that are here, and ask for the others."""
        path = self.paths[upquery.path]
        groups, keys = self._groups[path.source], reordered(upquery.keys, path.to_source)
        rows = groups.found[path.source]
        here, missing = parted(keys, rows.used_now(rows.hashed(keys)))
        if here.num_rows:
            yield answer(path, here, rows)
        yield from self.asking(path.source, groups.waiting.add(missing, path.number))

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Forget the groups; nodes below have to as well."""
        yield from self.evictions(place, self._groups[place].forget(place, keys))

    @property
    def kept(self) -> dict[Place, KeyedRows]:
        """All places."""
        return {place: groups.found[place] for place, groups in self._groups.items()}

    @property
    def state_bytes(self) -> int:
        """The memory that it holds."""
        return super().state_bytes + sum(each.state_bytes for each in self._operators)

    @property
    def full_bytes(self) -> int:
        """The part of it that evictions cannot shrink: all or nothing."""
        return self.state_bytes if self.full else 0

    @property
    def gone_bytes(self) -> int:
        """The part of it that evictions have left and that will be freed."""
        return super().gone_bytes + sum(each.gone_bytes for each in self._operators)

    @property
    def _operators(self) -> list[Aggregate]:
        return [groups.operator for groups in dict.fromkeys(self._groups.values())]


class _Groups:
    """The groups of some keys: what the operator keeps of them, and the rows that it has given, by place."""

    def __init__(self, operator: Aggregate, found: dict[Place, KeyedRows] | None = None) -> None:
        self.operator = operator
        self.found = found or {}
        self.waiting = Waiting([] if not self.found else next(iter(self.found.values())).types)

    def has(self, rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which rows are of keys that are here; all places that share them have the same."""
        return next(iter(self.found.values())).has_keys_of(rows)

    def changed(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        changes = together(schema, self.operator.push(0, batch))
        self.operator.check()  # what views have can be read from now on
        for rows in self.found.values():
            rows.apply(changes)
        return changes

    def begun(self, schema: pa.Schema) -> pa.RecordBatch:
        changes = together(schema, self.operator.begin())
        for rows in self.found.values():
            rows.apply(changes)
        return changes

    def fill(self, place: Place, keys: pa.RecordBatch, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        rows = together(schema, self.operator.fill(batch) if batch.num_rows else ())
        self.found[place].fill(keys, rows)

    def forget(self, place: Place, keys: pa.RecordBatch) -> pa.RecordBatch:
        gone, rows = self.found[place].evict(keys)
        if rows.num_rows:
            self.operator.forget(rows)
        return gone
