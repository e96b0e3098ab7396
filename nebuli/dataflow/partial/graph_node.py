"""The common part of all nodes of a graph, and the stateless nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.partial.key_sets import among, batch_of, from_tuples, reordered, tuples_of
from nebuli.dataflow.partial.traffic import Ask, Data, Eviction, Response, Send, Upquery
from nebuli.dataflow.zset import together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nebuli.dataflow.operators import Operator
    from nebuli.dataflow.partial.base_index import BaseIndex
    from nebuli.dataflow.partial.key_sets import Key
    from nebuli.dataflow.partial.keyed_rows import KeyedRows
    from nebuli.dataflow.partial.traffic import Instruction, Message
    from placement.partial.places import Edge, Path, Paths, Place


class GraphNode(ABC):
    """A node: it takes one message of one edge, or one upquery, and returns the messages to send.

    ``schema`` is that of the Z-sets that it gives out. Instructions are lazy: they are exhausted before the node is
    called again.
    """

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths) -> None:
        self.id = id_
        self.schema = schema
        self.paths = paths
        self.outputs: list[Edge] = []

    def receive(self, port: int, message: Message) -> Iterator[Instruction]:
        """Take the next message of an input."""
        match message:
            case Data(batch):
                yield from self.change(port, batch)
            case Response():
                yield from self.respond(port, message)
            case Eviction(number, keys):
                path = self.paths[number]
                if path.target.node != self.id:
                    yield Send(path.out_of(self.id), message)
                elif keys is None:
                    yield from self.forget_all(port, path.target)
                else:
                    yield from self.forget(port, path.target, keys)

    @abstractmethod
    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Take a change of an input."""

    @abstractmethod
    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Take a response, for this node or for one below."""

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Evict these keys of a place, if present, and notify nodes below."""
        return iter(())

    def forget_all(self, port: int, place: Place) -> Iterator[Instruction]:
        """Have all keys of a place be missing."""
        return self.forget(port, place, self.kept[place].present.all()[0])

    def awaited(self) -> Iterator[Upquery]:
        """Return outstanding upqueries, as they would be sent now."""
        return iter(())

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Answer an upquery that came up one of the outputs, or pass it on."""
        yield Ask(self.paths[upquery.path].into(self.id), upquery)

    @property
    def kept(self) -> dict[Place, KeyedRows]:
        """The places of which keys can be evicted, and what they have."""
        return {}

    @property
    def state_bytes(self) -> int:
        """The memory that it holds."""
        return sum(rows.nbytes for rows in self.kept.values())

    @property
    def full_bytes(self) -> int:
        """The part of it that is full, which evictions cannot shrink."""
        return sum(rows.nbytes for rows in self.kept.values() if rows.full)

    @property
    def partial_bytes(self) -> int:
        """The rest of it: the part that evictions can shrink, and its bookkeeping."""
        return self.state_bytes - self.full_bytes

    @property
    def gone_bytes(self) -> int:
        """The part of it that evictions have left and that will be freed."""
        return sum(rows.gone_bytes for rows in self.kept.values())

    def everywhere(self, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """A change goes down all outputs."""
        if batch.num_rows:
            for edge in self.outputs:
                yield Send(edge, Data(batch))

    def evictions(self, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Return evictions of keys missing at a place, in its columns, for the nodes filled from it."""
        if keys.num_rows:
            for path in self.paths.beginning(place):
                yield Send(path.edges[0], Eviction(path.number, reordered(keys, path.from_source)))

    def asking(self, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Ask for keys of a place by all paths that end there."""
        for upquery in self.upqueries(place, keys):
            yield Ask(self.paths[upquery.path].edges[-1], upquery)

    def upqueries(self, place: Place, keys: pa.RecordBatch) -> Iterator[Upquery]:
        """Return upqueries for keys of a place, by all paths that end there."""
        if keys.num_rows:
            for path in self.paths.ending(place):
                yield Upquery(path.number, keys)


class Passing(GraphNode):
    """A stateless operator: changes and responses are the same to it."""

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths, operator: Operator) -> None:
        super().__init__(id_, schema, paths)
        self._operator = operator

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Give on what the operator makes of it."""
        for each in self.made_of(batch):
            yield from self.everywhere(each)

    def made_of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return the operator's output for rows."""
        return self._operator.push(0, batch)

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Do the same, for the node that has asked."""
        rows = together(self.schema, self.made_of(response.batch))
        edge = self.paths[response.path].out_of(self.id)
        yield Send(edge, Response(response.path, response.keys, rows))


def only(columns: Sequence[str], response: Response, keys: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a response that have one of these of its keys; they are found by ``columns``."""
    if keys.num_rows == response.keys.num_rows:
        return response.batch
    rows = batch_of([response.batch.column(name) for name in columns])
    return response.batch.filter(pa.array(among(rows, keys)))


def answer(path: Path, keys: pa.RecordBatch, rows: KeyedRows | BaseIndex) -> Instruction:
    """The response of the path's source: all that it has of these keys, which are in the source's columns."""
    return Send(path.edges[0], Response(path.number, reordered(keys, path.from_source), rows.lookup(keys)))


class Waiting:
    """Keys of a place that were asked for and are not there yet, and the numbers of the paths that wait for each."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = types
        self._paths: defaultdict[Key, dict[int, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, key: Key) -> bool:
        return key in self._paths

    def add(self, keys: pa.RecordBatch, path: int) -> pa.RecordBatch:
        """The path waits for the keys; returns those that were not waited for until now."""
        listed = tuples_of(keys)
        fresh = [key for key in listed if key not in self._paths]
        for key in listed:
            self._paths[key][path] = None
        return keys if len(fresh) == len(listed) else from_tuples(fresh, self._types)

    def all(self) -> pa.RecordBatch:
        """All keys that are waited for."""
        return from_tuples(self._paths, self._types)

    def of(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the keys that are waited for."""
        waited = [key for key in tuples_of(keys) if key in self._paths]
        return keys if len(waited) == keys.num_rows else from_tuples(waited, self._types)

    def take(self, keys: pa.RecordBatch) -> Iterable[tuple[int, pa.RecordBatch]]:
        """The keys are there: return the waiting paths, each with its keys."""
        by_path: defaultdict[int, list[Key]] = defaultdict(list)
        for key in tuples_of(keys):
            for path in self._paths.pop(key, ()):
                by_path[path].append(key)
        return [
            (path, keys if len(listed) == keys.num_rows else from_tuples(listed, self._types))
            for path, listed in by_path.items()
        ]
