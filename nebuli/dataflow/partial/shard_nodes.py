"""Shards of an operator: what gives each its rows, and what puts together what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nebuli.dataflow import hashing
from nebuli.dataflow.partial.graph_node import GraphNode, Waiting, only
from nebuli.dataflow.partial.key_sets import batch_of, parted, reordered
from nebuli.dataflow.partial.traffic import Ask, Data, Eviction, Response, Send, Upquery
from nebuli.dataflow.partial.union_node import UnionNode
from nebuli.dataflow.steps.exchange_parts import owners_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from nebuli.dataflow.partial.traffic import Instruction, Message
    from placement.partial.places import Edge, Paths, Place


def shards_of(columns: Sequence[pa.Array], rows: int, shards: int) -> NDArray[np.int64]:
    """The shard of each row, by the columns that rows are divided by: the same in all processes."""
    return owners_of(hashing.hash_rows(batch_of(columns).columns, rows), shards)


class SharderNode(GraphNode):
    """Gives each row to the shard that its columns ``by`` say; ``shards`` are the nodes that read it, in their order.

    A response is for the shard that has asked: it gets its rows, and the others get nothing.
    """

    def __init__(
        self, id_: str, schema: pa.Schema, paths: Paths, by: Sequence[str], shards: Sequence[str]
    ) -> None:
        super().__init__(id_, schema, paths)
        self._by = tuple(by)
        self._shards = {shard: number for number, shard in enumerate(shards)}

    def receive(self, port: int, message: Message) -> Iterator[Instruction]:
        """An eviction goes to its path's shard only if that can have the keys."""
        if not isinstance(message, Eviction) or message.keys is None:
            yield from super().receive(port, message)
            return
        path = self.paths[message.path]
        keys, names = message.keys, path.names_out_of(self.id)
        if set(self._by) <= set(names):
            columns = [keys.column(names.index(name)) for name in self._by]
            keys, _ = parted(keys, self._is_of(path.out_of(self.id), columns, keys.num_rows))
        if keys.num_rows:
            yield Send(path.out_of(self.id), Eviction(message.path, keys))

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Each shard gets its rows, and one without any gets nothing."""
        numbers = self._numbers(self._columns_of(batch), batch.num_rows)
        for edge in self.outputs:
            rows, _ = parted(batch, numbers == self._shards[edge.consumer])
            if rows.num_rows:
                yield Send(edge, Data(rows))

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """The shard that has asked gets its rows."""
        edge = self.paths[response.path].out_of(self.id)
        yield Send(edge, Response(response.path, response.keys, self.only_of(edge, response.batch)))

    def only_of(self, edge: Edge, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that belong to the shard that an edge leads to."""
        return parted(rows, self._is_of(edge, self._columns_of(rows), rows.num_rows))[0]

    def _columns_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows.column(name) for name in self._by]

    def _is_of(self, edge: Edge, columns: Sequence[pa.Array], rows: int) -> NDArray[np.bool_]:
        return np.asarray(self._numbers(columns, rows) == self._shards[edge.consumer])

    def _numbers(self, columns: Sequence[pa.Array], rows: int) -> NDArray[np.int64]:
        return shards_of(columns, rows, len(self._shards))


class MergerNode(UnionNode):
    """A union of shards that are divided by the columns ``by``, in the order of its inputs.

    Asked by columns that have all of these it asks one shard for each key, and answers as that does, with nothing kept:
    no other has rows of the key, or changes of it. Asked by others, or if nothing is known of the shards, it does as
    any union.
    """

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths, inputs: int, by: Sequence[str]) -> None:
        super().__init__(id_, schema, paths, inputs)
        self._by = tuple(by)
        self._narrow: dict[Place, Waiting] = {}

    def add(self, place: Place) -> None:
        """Answer by its columns."""
        if not self._by or not set(self._by) <= set(place.columns):
            super().add(place)
        elif place not in self._narrow:
            self._narrow[place] = Waiting([self.schema.field(name).type for name in place.columns])

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Where the shard is known its answer is forwarded at once."""
        place = self.paths[response.path].target
        if place not in self._narrow:
            yield from super().respond(port, response)
            return
        waiting = self._narrow[place]
        names = self.paths[response.path].columns[-1]
        for number, keys in waiting.take(waiting.of(response.keys)):
            path = self.paths[number]
            rows = only(names, response, keys)
            yield Send(path.edges[0], Response(number, reordered(keys, path.from_source), rows))

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Ask the shard of each key, or all shards."""
        path = self.paths[upquery.path]
        if path.source not in self._narrow:
            yield from super().asked(upquery)
            return
        keys = reordered(upquery.keys, path.to_source)
        for each in self._upqueries(path.source, self._narrow[path.source].add(keys, path.number)):
            yield Ask(self.paths[each.path].edges[-1], each)

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Nodes below have to forget the keys."""
        if place in self._narrow:
            yield from self.evictions(place, keys)
        else:
            yield from super().forget(port, place, keys)

    def forget_all(self, port: int, place: Place) -> Iterator[Instruction]:
        """The same of all keys: which of them are of this shard is known below only by the keys that are there."""
        if place not in self._narrow:
            yield from super().forget_all(port, place)
            return
        for path in self.paths.beginning(place):
            yield Send(path.edges[0], Eviction(path.number, None))

    def awaited(self) -> Iterator[Upquery]:
        """Return the upqueries that shards have not answered."""
        yield from super().awaited()
        for place, waiting in self._narrow.items():
            yield from self._upqueries(place, waiting.all())

    def _upqueries(self, place: Place, keys: pa.RecordBatch) -> Iterator[Upquery]:
        """Return upqueries to the shards for their keys of a place."""
        columns = [keys.column(place.columns.index(name)) for name in self._by]
        numbers = shards_of(columns, keys.num_rows, self._inputs)
        for path in self.paths.ending(place):
            own, _ = parted(keys, numbers == path.edges[-1].port)
            if own.num_rows:
                yield Upquery(path.number, own)
