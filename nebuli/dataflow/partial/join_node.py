"""Joins: each input has its rows by the join's key, and each input's keys may be missing.

For a path by the join's own key it is the source: it answers once all inputs have the key, and asks one after the other
for it, beginning with the first. So a response is made once, of all inputs at one moment.

Any other path, by columns of one input, passes through, and is foreign here: a response of that input continues, joined
with the others, if all inputs have the join keys of its rows: they then get every later change that matters to its
receiver, and can send the evictions for nodes below if one of them forgets a join key. If a join key is missing, the
response is dropped: it does not hold for the moment at which that key will be there. The join asks for the join keys,
and when they have come for the response again. Nothing waits for that but the keys themselves.

A row that changes while its join key is missing at any input can be nothing to a path by the join's key, as the key is
missing below as well. For foreign paths it can: a row with a key of theirs that is there below may come to have a join
key that is missing here. An eviction of that key is sent instead of the row.

An outer join is foreign to paths by columns of an input whose rows are all given, and to no others: a column that is
null where that input's rows have no match does not show where these are. A row's match is known wherever both inputs
have its join key. For such an input a key with nulls is a key like any; it has no match.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow.partial.graph_node import GraphNode, Waiting, only
from nebuli.dataflow.partial.key_sets import (
    among,
    batch_of,
    distinct,
    from_tuples,
    keys_in,
    parted,
    reordered,
    tuples_of,
)
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.partial.traffic import Ask, Eviction, Response, Send, Upquery
from nebuli.dataflow.zset import together
from placement.partial.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from nebuli.dataflow.joins.join import Join
    from nebuli.dataflow.partial.key_sets import Key
    from nebuli.dataflow.partial.traffic import Instruction
    from placement.partial.places import Path, Paths


class JoinNode(GraphNode):
    """A join on ``on``; ``inputs`` are the schemas of its state for each input, ``full`` lists the full ones."""

    def __init__(
        self,
        id_: str,
        schema: pa.Schema,
        paths: Paths,
        *,
        join: Join,
        on: Sequence[str],
        inputs: Sequence[pa.Schema],
        full: Sequence[bool],
    ) -> None:
        super().__init__(id_, schema, paths)
        self._join = join
        self._on = tuple(on)
        self._sides = [
            KeyedRows(kept, on, full=is_full, rows=rows)
            for kept, is_full, rows in zip(inputs, full, join.inputs, strict=True)
        ]
        self._asked: list[set[Key]] = [set() for _ in inputs]
        self._waiting = Waiting(self._sides[0].types)
        self._held_up = _HeldUp()

    def change(self, port: int, batch: pa.RecordBatch) -> Iterator[Instruction]:
        """Give on what rows make whose join key all inputs have; of others, forget what they would have changed."""
        rows = self._join.matchable(port, batch)
        known, lost = parted(rows, self._whole(self._join_keys(rows)))
        if lost.num_rows:
            for path in self.paths.through(self.id, port):
                yield self._eviction(path, lost)
        if known.num_rows:
            for joined in self._join.changed(port, known):
                yield from self.everywhere(joined)
        self._join.count(port, self._sides[port].apply(rows))

    def respond(self, port: int, response: Response) -> Iterator[Instruction]:
        """Fill an input, or join what passes."""
        path = self.paths[response.path]
        rows = self._join.matchable(port, response.batch)
        if path.target.node == self.id:
            asked = self._asked_of(port, response.keys)
            rows = only(path.columns[-1], Response(path.number, response.keys, rows), asked)
            self._sides[port].fill(asked, rows)
            self._join.count(port, rows)
            self._asked[port].difference_update(tuples_of(asked))
            yield from self._settled(port, asked)
        else:
            yield from self._passed(port, path, response.keys, rows)

    def asked(self, upquery: Upquery) -> Iterator[Instruction]:
        """Answer what is asked for by the join's key; else the input has to."""
        path = self.paths[upquery.path]
        if path.source.node != self.id:
            yield from super().asked(upquery)
            return
        keys = reordered(upquery.keys, path.to_source)
        self._waiting.add(keys, path.number)
        yield from self._served(keys)

    def forget(self, port: int, place: Place, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Forget keys of an input, and have all be forgotten below that any input's rows with them are part of."""
        assert place.port is not None, "only the rows of an input are kept"
        side = self._sides[place.port]
        gone, _ = parted(keys, side.has(keys))
        if not gone.num_rows:
            return
        yield from self.evictions(Place(self.id, self._on), gone)
        for index, each in enumerate(self._sides):
            for path in self.paths.through(self.id, index):
                rows = each.lookup(gone)
                if rows.num_rows:
                    yield self._eviction(path, rows)
        side.evict(gone)
        self._join.discount(place.port, gone)

    def awaited(self) -> Iterator[Upquery]:
        """The join keys that are to come."""
        for port, asked in enumerate(self._asked):
            keys = from_tuples(asked, self._sides[port].types)
            yield from self.upqueries(Place(self.id, self._on, port), keys)

    @property
    def kept(self) -> dict[Place, KeyedRows]:
        """The inputs."""
        return {Place(self.id, self._on, port): side for port, side in enumerate(self._sides)}

    @property
    def state_bytes(self) -> int:
        """The memory that it holds, with what is counted of keys."""
        return super().state_bytes + sum(counts.nbytes for counts in self._join.counts.values())

    @property
    def full_bytes(self) -> int:
        """The part of it that belongs to full inputs."""
        counts = (counts.nbytes for port, counts in self._join.counts.items() if self._sides[port].full)
        return sum(side.nbytes for side in self._sides if side.full) + sum(counts)

    @property
    def gone_bytes(self) -> int:
        """The part of it that evictions have left and that will be freed."""
        return super().gone_bytes + sum(counts.gone_bytes for counts in self._join.counts.values())

    def contents(self) -> pa.RecordBatch:
        """All rows that it has given, if all inputs are full."""
        return together(self.schema, self._join.made_of(lambda port: self._sides[port].all()))

    def _join_keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return batch_of([rows.column(name) for name in self._on])

    def _whole(self, keys: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which keys all inputs have."""
        whole = np.ones(keys.num_rows, dtype=np.bool_)
        for side in self._sides:
            whole &= side.has(keys)
        return whole

    def _eviction(self, path: Path, rows: pa.RecordBatch) -> Instruction:
        """Have the keys of a path through here be forgotten that rows of its input have."""
        keys = keys_in(rows, path.names_out_of(self.id))
        return Send(path.out_of(self.id), Eviction(path.number, keys))

    def _settled(self, port: int, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Keys of an input are filled: answer what waits for them, and ask again for what was thrown away."""
        yield from self._served(self._waiting.of(keys))
        for number, again in self._held_up.freed(port, keys).items():
            path = self.paths[number]
            upquery = Upquery(number, from_tuples(again, _types_through(path, self)))
            yield Ask(path.into(self.id), upquery)

    def _served(self, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Answer those of the keys that all inputs have; for the others ask the first input that has not."""
        probe = self._sides[0].hashed(keys)
        here = [side.used_now(probe) for side in self._sides]
        whole, rest = parted(keys, np.logical_and.reduce(here))
        for number, found in self._waiting.take(whole) if whole.num_rows else ():
            path = self.paths[number]
            rows = together(self.schema, self._join.made_of(self._looked_up(found)))
            yield Send(path.edges[0], Response(number, reordered(found, path.from_source), rows))
        before = np.ones(keys.num_rows, dtype=np.bool_)
        for port, there in enumerate(here) if rest.num_rows else ():
            missing, _ = parted(keys, before & ~there)
            if missing.num_rows:
                yield from self._ask(port, missing)
            before &= there

    def _looked_up(self, keys: pa.RecordBatch) -> Callable[[int], pa.RecordBatch]:
        """The rows of an input with these keys."""
        return lambda port: self._sides[port].lookup(keys)

    def _asked_of(self, port: int, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the keys that an input was asked for."""
        return from_tuples(
            (key for key in tuples_of(keys) if key in self._asked[port]), self._sides[port].types
        )

    def _ask(self, port: int, keys: pa.RecordBatch) -> Iterator[Instruction]:
        """Ask for keys of an input, if they are not asked for already."""
        listed = tuples_of(keys)
        fresh = [key for key in listed if key not in self._asked[port]]
        self._asked[port].update(fresh)
        asked = keys if len(fresh) == len(listed) else from_tuples(fresh, self._sides[port].types)
        yield from self.asking(Place(self.id, self._on, port), asked)

    def _passed(
        self, port: int, path: Path, keys: pa.RecordBatch, rows: pa.RecordBatch
    ) -> Iterator[Instruction]:
        """A response for nodes below: forward the keys whose rows have join keys that are here."""
        names = path.names_out_of(self.id)
        _, lacking = parted(rows, self._whole(self._join_keys(rows)))
        held_up = keys_in(lacking, names)
        if held_up.num_rows:
            keys = keys.filter(pa.array(~among(keys, held_up)))
            rows = rows.filter(pa.array(~among(batch_of([rows.column(name) for name in names]), held_up)))
        if keys.num_rows:
            joined = together(self.schema, self._join.matched(port, rows))
            yield Send(path.out_of(self.id), Response(path.number, keys, joined))
        if held_up.num_rows:
            yield from self._hold_up(path, lacking)

    def _hold_up(self, path: Path, rows: pa.RecordBatch) -> Iterator[Instruction]:
        """Ask for what rows of a response lack, and remember which of its keys wait for what."""
        names = path.names_out_of(self.id)
        pairs = distinct(batch_of([rows.column(name) for name in (*names, *self._on)]))
        join_keys = batch_of(pairs.columns[len(names) :])
        for port, side in enumerate(self._sides):
            missing = pa.array(~side.has(join_keys))
            for pair in tuples_of(pairs.filter(missing)):
                self._held_up.add(path.number, pair[: len(names)], port, pair[len(names) :])
            yield from self._ask(port, distinct(join_keys.filter(missing)))


def _types_through(path: Path, node: GraphNode) -> list[pa.DataType]:
    """The types of a path's columns, which passes the node."""
    return [node.schema.field(name).type for name in path.names_out_of(node.id)]


class _HeldUp:
    """Keys of responses that were thrown away, and the join keys that each waits for, by input."""

    def __init__(self) -> None:
        self._wait_for: defaultdict[tuple[int, Key], set[tuple[int, Key]]] = defaultdict(set)
        self._waited_for: defaultdict[tuple[int, Key], set[tuple[int, Key]]] = defaultdict(set)

    def add(self, path: int, key: Key, port: int, join_key: Key) -> None:
        self._wait_for[path, key].add((port, join_key))
        self._waited_for[port, join_key].add((path, key))

    def freed(self, port: int, join_keys: pa.RecordBatch) -> dict[int, list[Key]]:
        """The keys, by path, that now have nothing more to wait for."""
        free: dict[int, list[Key]] = {}
        for join_key in tuples_of(join_keys) if self._waited_for else ():
            for path, key in self._waited_for.pop((port, join_key), ()):
                left = self._wait_for[path, key]
                left.discard((port, join_key))
                if not left:
                    del self._wait_for[path, key]
                    free.setdefault(path, []).append(key)
        return free
