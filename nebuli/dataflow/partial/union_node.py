"""Unions: input is passed on, and responses of all inputs are merged before they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.partial.graph_node import GraphNode, Waiting, only
from nebuli.dataflow.partial.key_sets import parted, reordered
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.partial.traffic import Ask, Eviction, Response, Send, Upquery
from nebuli.dataflow.zset import together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.dataflow.partial.traffic import Instruction
    from placement.partial.places import Path, Paths, Place


class UnionNode(GraphNode):
    """Asks all inputs, and answers once all have answered, with the response of each and its later changes.

    Until then a key's pieces are kept here, one for each input, as partial state is: a change of an input that has
    answered is added to its piece, that of one that has not is not. All changes are passed on at once in any case.
    """

    def __init__(self, id_: str, schema: pa.Schema, paths: Paths, inputs: int) -> None:
        super().__init__(id_, schema, paths)
        self._inputs = inputs
        self._gatherings: dict[Place, _Gathering] = {}

    def add(self, place: Place) -> None:
        """Put responses together by its columns."""
        if place not in self._gatherings:
            pieces = [KeyedRows(self.schema, place.columns, full=False) for _ in range(self._inputs)]
            self._gatherings[place] = _Gathering(pieces)

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Pass it on, and add it to the pieces of awaited keys."""
        for gathering in self._gatherings.values():
            gathering.pieces[port].apply(batch)
        yield from self.everywhere(batch)

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Keep the piece; if it is the last one of a key, answer the nodes that have asked."""
        place = self.paths[response.path].target
        gathering = self._gatherings[place]
        asked = gathering.waiting.of(response.keys)
        _, asked = parted(asked, gathering.pieces[port].has(asked))
        gathering.pieces[port].fill(asked, only(self.paths[response.path].columns[-1], response, asked))
        whole = asked
        for piece in gathering.pieces:
            whole, _ = parted(whole, piece.has(whole))
        for number, keys in gathering.waiting.take(whole):
            path = self.paths[number]
            rows = together(self.schema, [piece.lookup(keys) for piece in gathering.pieces])
            yield Send(path.edges[0], Response(number, reordered(keys, path.from_source), rows))
        for piece in gathering.pieces:
            piece.evict(whole)

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Ask all inputs for what is not asked for already."""
        path = self.paths[upquery.path]
        keys = reordered(upquery.keys, path.to_source)
        yield from self.asking(path.source, self._gatherings[path.source].waiting.add(keys, path.number))

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Nodes below have to forget the keys; the input's pieces are invalid: it is asked again."""
        yield from self.evictions(place, keys)
        gone, _ = self._gatherings[place].pieces[port].evict(keys)
        if gone.num_rows:
            path = self._from_input(place, port)
            yield Ask(path.edges[-1], Upquery(path.number, gone))

    def forget_all(self, port: int, place: Place) -> Iterator[Instruction]:
        """The same of all keys; those that have none of the input's pieces yet are asked for again by ``awaited``."""
        for path in self.paths.beginning(place):
            yield Send(path.edges[0], Eviction(path.number, None))
        yield from self.forget(port, place, self._gatherings[place].pieces[port].present.all()[0])

    def awaited(self) -> Iterator[Upquery]:
        """The pieces that are to come."""
        for place, gathering in self._gatherings.items():
            keys = gathering.waiting.all()
            for path in self.paths.ending(place):
                missing = keys.filter(pa.array(~gathering.pieces[path.edges[-1].port].has(keys)))
                if missing.num_rows:
                    yield Upquery(path.number, missing)

    def _from_input(self, place: Place, port: int) -> Path:
        return next(path for path in self.paths.ending(place) if path.edges[-1].port == port)

    @property
    def state_bytes(self) -> int:
        """The memory that pieces hold."""
        return sum(piece.nbytes for each in self._gatherings.values() for piece in each.pieces)


class _Gathering:
    def __init__(self, pieces: list[KeyedRows]) -> None:
        self.pieces = pieces
        self.waiting = Waiting(pieces[0].types)
