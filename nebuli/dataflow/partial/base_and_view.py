"""The ends of a graph: bases, where rows come in, and views, where they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow.partial.base_index import BaseIndex
from nebuli.dataflow.partial.graph_node import GraphNode, Waiting, answer, only
from nebuli.dataflow.partial.key_sets import reordered
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.partial.traffic import Filled, Send

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from nebuli.dataflow.partial.traffic import Instruction, Response, Upquery
    from placement.partial.places import Paths, Place

_READER = -1
"""The number of a view's readers, which wait like a path."""


class BaseNode(GraphNode):
    """Has all its rows, by each of the columns that it is asked for."""

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths) -> None:
        super().__init__(id_, schema, paths)
        self._indices: dict[tuple[str, ...], BaseIndex] = {(): BaseIndex(schema, ())}

    def index(self, columns: Sequence[str]) -> None:
        """Have the rows be found by these columns: by scans, until ``work`` has been done often enough."""
        if tuple(columns) in self._indices:
            return
        index = BaseIndex(self.schema, columns)
        index.owe(next(iter(self._indices.values())).batches())
        self._indices.pop((), None)  # rows without an index are kept while there is none
        self._indices[tuple(columns)] = index

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows."""
        return next(iter(self._indices.values())).all()

    @property
    def indices(self) -> list[tuple[str, ...]]:
        """The columns that rows are found by."""
        return [columns for columns in self._indices if columns]

    @property
    def is_settled(self) -> bool:
        """True if no row is still to be taken into indices."""
        return all(index.is_settled for index in self._indices.values())

    def work(self) -> None:
        """Take a bounded part of these rows in."""
        for index in self._indices.values():
            if not index.is_settled:
                index.work()
                return

    @property
    def state_bytes(self) -> int:
        """The memory that it holds."""
        return sum(index.nbytes for index in self._indices.values())

    @property
    def full_bytes(self) -> int:
        """All of it."""
        return self.state_bytes

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Rows are added or retracted."""
        for index in self._indices.values():
            index.apply(batch)
        yield from self.everywhere(batch)

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Nothing is above."""
        raise AssertionError("a base sends no upqueries")

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Send the rows again."""
        path = self.paths[upquery.path]
        keys = reordered(upquery.keys, path.to_source)
        yield answer(path, keys, self._indices[path.source.columns])


class ViewNode(GraphNode):
    """Has the rows of keys that were read; its input is forwarded to nodes below."""

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths, place: Place, *, full: bool) -> None:
        super().__init__(id_, schema, paths)
        self.place = place
        self.rows = KeyedRows(schema, place.columns, full=full)
        self._waiting = Waiting(self.rows.types)
        self.changes = 0
        """How often its rows may have changed."""
        self.evicted = 0
        """How many keys it has had to forget."""

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Keep what changes keys that are here, and give on all of it."""
        self.changes += 1
        self.rows.apply(batch)
        yield from self.everywhere(batch)

    def read(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch, list[Instruction]]:
        """The rows of those of the keys that are here, the keys that are not, and what is to be asked for them."""
        if not self.place.columns:  # without a key everything is asked for, and such a view is full
            return self.rows.all(), keys, []
        rows, missing = self.rows.read(keys)
        if not missing.num_rows:
            return rows, missing, []
        fresh = self._waiting.add(missing, _READER)
        return rows, missing, list(self.asking(self.place, fresh))

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Keys are filled: notify readers; or forward them to a node below."""
        path = self.paths[response.path]
        if path.target.node != self.id:
            yield Send(path.out_of(self.id), response)
            return
        self.changes += 1
        asked = self._waiting.of(response.keys)
        self.rows.fill(asked, only(self.place.columns, response, asked))
        for _, keys in self._waiting.take(asked):
            yield Filled(self.id, keys, self.rows.lookup(keys))

    def awaited(self) -> Iterator[Upquery]:
        """Return the keys that readers wait for."""
        return self.upqueries(self.place, self._waiting.all())

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """No node below has them."""
        self.changes += 1
        gone, _ = self.rows.evict(keys)
        self.evicted += gone.num_rows
        return iter(())

    @property
    def kept(self) -> dict[Place, KeyedRows]:
        """The view itself."""
        return {self.place: self.rows}
