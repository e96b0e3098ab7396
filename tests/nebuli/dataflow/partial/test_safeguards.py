"""What the scan is worth: each safeguard is taken out, and then it finds what is wrong.

With all of them in, the same runs are right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nebuli.dataflow.aggregates.aggregate import Aggregate
from nebuli.dataflow.joins.outer_join import OuterJoin
from nebuli.dataflow.partial.graph_node import GraphNode, Waiting
from nebuli.dataflow.partial.grouping_node import GroupingNode
from nebuli.dataflow.partial.join_node import JoinNode, _HeldUp
from nebuli.dataflow.partial.key_sets import tuples_of
from nebuli.dataflow.partial.keyed_rows import KeyedRows
from nebuli.dataflow.partial.partial_graph import PartialGraph
from nebuli.dataflow.partial.shard_nodes import MergerNode, SharderNode
from nebuli.dataflow.partial.traffic import Ask, Eviction, Response, Send
from nebuli.dataflow.partial.union_node import UnionNode
from nebuli.dataflow.zset import empty
from tests.nebuli.dataflow.partial.shapes import SHAPES, run

RUNS, LONG_RUNS = 12, 4
Patch = Callable[[pytest.MonkeyPatch], None]


def run_all() -> None:
    """Short runs, and then long ones, in which a key goes, comes again and changes."""
    for seed in range(RUNS):
        for nodes in SHAPES.values():
            run(nodes, seed)
    for seed in range(LONG_RUNS):
        for nodes in SHAPES.values():
            run(nodes, seed, actions=200)


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_with_all_safeguards_the_runs_are_right(name: str) -> None:
    """PS-INV-1, PS-INV-2, PS-INV-3, PS-INV-4: under every schedule that is drawn, at every moment."""
    for seed in range(RUNS):
        run(SHAPES[name], seed)


def keep_changes_of_missing_keys(patch: pytest.MonkeyPatch) -> None:
    """PS-INV-2 gone."""
    patch.setattr(KeyedRows, "apply", lambda rows, changes: rows._insert(changes) or changes)


def give_changes_on_that_lack_a_join_key(patch: pytest.MonkeyPatch) -> None:
    """PS-ID-1 gone: what cannot be changed below is not forgotten."""
    change = JoinNode.change

    def without_evictions(node: JoinNode, port: int, batch: pa.RecordBatch) -> Iterator[Any]:
        return (e for e in change(node, port, batch) if not isinstance(getattr(e, "message", None), Eviction))

    patch.setattr(JoinNode, "change", without_evictions)


def have_responses_overtake(patch: pytest.MonkeyPatch) -> None:
    """PS-INV-3 gone: a response comes before what was sent before it."""
    do = PartialGraph._do

    def hurried(graph: Any, instructions: Any) -> Any:
        listed = list(instructions)
        filled = do(graph, listed)
        for each in listed:
            if isinstance(each, Send) and isinstance(each.message, Response):
                for queue in (graph._down[each.edge], graph.ideal[each.edge]):
                    _to_the_front(queue)
        return filled

    patch.setattr(PartialGraph, "_do", hurried)


def _to_the_front(queue: deque[Any]) -> None:
    if queue:
        queue.appendleft(queue.pop())


def tell_nobody_of_evictions(patch: pytest.MonkeyPatch) -> None:
    """PS-INV-4 gone: what is made of a key stays below."""
    patch.setattr(GraphNode, "evictions", lambda *_: iter(()))


def tell_only_paths_by_the_join_key(patch: pytest.MonkeyPatch) -> None:
    """PS-INV-4 gone for paths through a join: rows below stay, of which a part was evicted."""
    forget = JoinNode.forget

    def quietly(node: JoinNode, port: int, place: Any, keys: pa.RecordBatch) -> Iterator[Any]:
        foreign = {
            path.number for index, _ in enumerate(node._sides) for path in node.paths.through(node.id, index)
        }
        return (each for each in forget(node, port, place, keys) if each.message.path not in foreign)  # type: ignore[union-attr]

    patch.setattr(JoinNode, "forget", quietly)


def let_responses_pass_that_lack_join_keys(patch: pytest.MonkeyPatch) -> None:
    """PS-UQ-9 gone."""
    passed = JoinNode._passed

    def anyway(node: JoinNode, *settings: Any) -> list[Any]:
        with pytest.MonkeyPatch.context() as here:
            here.setattr(JoinNode, "_whole", lambda _, keys: np.ones(keys.num_rows, dtype=np.bool_))
            return list(passed(node, *settings))

    patch.setattr(JoinNode, "_passed", anyway)


def check_only_the_other_input(patch: pytest.MonkeyPatch) -> None:
    """Half of PS-UQ-9 gone: the input that a response comes from need not have the join keys."""
    passed = JoinNode._passed

    def half(node: JoinNode, port: int, *settings: Any) -> list[Any]:
        def whole(_: JoinNode, keys: pa.RecordBatch) -> Any:
            return np.logical_and.reduce([s.has(keys) for i, s in enumerate(node._sides) if i != port])

        with pytest.MonkeyPatch.context() as here:
            here.setattr(JoinNode, "_whole", whole)
            return list(passed(node, port, *settings))

    patch.setattr(JoinNode, "_passed", half)


def forget_changes_between_pieces(patch: pytest.MonkeyPatch) -> None:
    """Half of PS-MA-3 gone: what comes after an input's piece."""
    patch.setattr(UnionNode, "change", lambda node, _, batch: node.everywhere(batch))


def add_changes_before_the_piece(patch: pytest.MonkeyPatch) -> None:
    """The other half: what comes of an input before its piece is added to another's."""

    def twice(node: UnionNode, port: int, batch: pa.RecordBatch) -> Iterator[Any]:
        for gathering in node._gatherings.values():
            for piece in gathering.pieces:
                piece.apply(batch)
        yield from node.everywhere(batch)

    patch.setattr(UnionNode, "change", twice)


def answer_with_a_part(patch: pytest.MonkeyPatch) -> None:
    """PS-MA-2 gone: the first piece is taken for all."""
    respond = UnionNode.respond

    def at_once(node: UnionNode, port: int, response: Response) -> Iterator[Any]:
        for other, piece in enumerate(node._gatherings[node.paths[response.path].target].pieces):
            missing = response.keys.filter(pa.array(~piece.has(response.keys)))
            if missing.num_rows and other != port:
                piece.fill(missing, response.batch.slice(0, 0))
        yield from respond(node, port, response)

    patch.setattr(UnionNode, "respond", at_once)


def keep_pieces_that_were_evicted(patch: pytest.MonkeyPatch) -> None:
    """A piece stays as it was when its source does not hear of changes any more."""
    forget = UnionNode.forget

    def keeping(node: UnionNode, port: int, place: Any, keys: pa.RecordBatch) -> Iterator[Any]:
        pieces, node._gatherings[place].pieces = node._gatherings[place].pieces, [_Nothing()] * node._inputs  # type: ignore[list-item]
        instructions = [each for each in forget(node, port, place, keys) if not isinstance(each, Ask)]
        node._gatherings[place].pieces = pieces
        return iter(instructions)

    patch.setattr(UnionNode, "forget", keeping)


class _Nothing:
    def evict(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, None]:
        return keys.slice(0, 0), None


def let_readers_wait(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told what was filled."""
    patch.setattr(Waiting, "take", lambda *_: ())


def give_groups_on_from_each_place(patch: pytest.MonkeyPatch) -> None:
    """A group that is found by two indices changes twice below."""

    def change(node: GroupingNode, _: int, batch: pa.RecordBatch) -> Iterator[Any]:
        changes = [empty(node.schema)]
        for groups in dict.fromkeys(node._groups.values()):
            rows = batch.filter(pa.array(groups.has(batch)))
            if rows.num_rows:
                changes.append(groups.changed(rows, node.schema))
        yield from node.everywhere(pa.concat_batches(changes))

    patch.setattr(GroupingNode, "change", change)


def keep_what_makes_up_groups_that_were_evicted(patch: pytest.MonkeyPatch) -> None:
    """What was counted is counted again when the key is filled again."""
    patch.setattr(Aggregate, "forget", lambda *_: None)


def tell_only_paths_by_the_input_that_evicts(patch: pytest.MonkeyPatch) -> None:
    """What is below of one input's rows stays when the other one forgets what they were joined with."""
    forget = JoinNode.forget

    def half(node: JoinNode, port: int, place: Any, keys: pa.RecordBatch) -> Iterator[Any]:
        others = [index for index, _ in enumerate(node._sides) if index != place.port]
        foreign = {path.number for index in others for path in node.paths.through(node.id, index)}
        return (each for each in forget(node, port, place, keys) if each.message.path not in foreign)  # type: ignore[union-attr]

    patch.setattr(JoinNode, "forget", half)


def do_not_ask_again(patch: pytest.MonkeyPatch) -> None:
    """PS-DU-3 gone: a response was thrown away, and nobody sends it again."""
    patch.setattr(_HeldUp, "freed", lambda *_: {})


def let_rows_without_a_match_stay(patch: pytest.MonkeyPatch) -> None:
    """PS-MA-5 gone: the other input's rows are as they were, whatever becomes of their matches."""
    patch.setattr(OuterJoin, "changed", OuterJoin.matched)


def count_on_what_was_evicted(patch: pytest.MonkeyPatch) -> None:
    """A key that is filled again has the rows twice that match it, and loses its last one never."""
    patch.setattr(OuterJoin, "discount", lambda *_: None)


def wait_for_all_shards(patch: pytest.MonkeyPatch) -> None:
    """PS-EX-2 gone: one shard is asked, and the merger puts its answer by until the others have answered, too."""
    respond = MergerNode.respond

    def buffering(node: MergerNode, port: int, response: Response) -> Iterator[Any]:
        heard = vars(node).setdefault("heard", {})
        for key in tuples_of(response.keys):
            heard.setdefault((response.path, key), set()).add(port)
        whole = all(len(ports) == node._inputs for ports in heard.values())
        return respond(node, port, response) if whole or not node._narrow else iter(())

    patch.setattr(MergerNode, "respond", buffering)


def ask_one_shard_by_whatever_columns(patch: pytest.MonkeyPatch) -> None:
    """The other side of PS-EX-2 gone: what is asked for does not say which shard has it, and one is asked."""
    upqueries = UnionNode.upqueries

    def only_the_first(node: UnionNode, place: Any, keys: pa.RecordBatch) -> Iterator[Any]:
        given = upqueries(node, place, keys)
        return islice(given, 1) if isinstance(node, MergerNode) else given

    patch.setattr(MergerNode, "upqueries", only_the_first)
    patch.setattr(UnionNode, "awaited", lambda _: iter(()))


def give_each_shard_all_of_a_response(patch: pytest.MonkeyPatch) -> None:
    """PS-EX-2 gone: who has asked gets the rows of the other shards as well."""
    patch.setattr(SharderNode, "only_of", lambda _, edge, rows: rows)


def give_each_shard_all_changes(patch: pytest.MonkeyPatch) -> None:
    """Rows are in several shards."""
    patch.setattr(SharderNode, "change", lambda node, _, batch: node.everywhere(batch))


def forget_nothing_of_a_shard(patch: pytest.MonkeyPatch) -> None:
    """PS-INV-4 gone where an answer was narrow: what a shard forgets stays below."""
    forget = MergerNode.forget

    def keeping(node: MergerNode, port: int, place: Any, keys: pa.RecordBatch) -> Iterator[Any]:
        return iter(()) if place in node._narrow else forget(node, port, place, keys)

    patch.setattr(MergerNode, "forget", keeping)


SAFEGUARDS: dict[Patch, str] = {
    keep_changes_of_missing_keys: "rows of missing keys",
    give_changes_on_that_lack_a_join_key: "wrong|missing above",
    have_responses_overtake: "wrong",
    tell_nobody_of_evictions: "missing above",
    tell_only_paths_by_the_join_key: "wrong|missing above",
    let_responses_pass_that_lack_join_keys: "wrong|missing above",
    check_only_the_other_input: "wrong|missing above",
    forget_changes_between_pieces: "wrong",
    add_changes_before_the_piece: "wrong",
    answer_with_a_part: "wrong|missing above",
    let_readers_wait: "waiting still",
    give_groups_on_from_each_place: "wrong",
    keep_what_makes_up_groups_that_were_evicted: "wrong",
    tell_only_paths_by_the_input_that_evicts: "wrong|missing above",
    do_not_ask_again: "waiting still",
    let_rows_without_a_match_stay: "wrong",
    count_on_what_was_evicted: "wrong",
    wait_for_all_shards: "waiting still",
    ask_one_shard_by_whatever_columns: "waiting still",
    give_each_shard_all_of_a_response: "wrong",
    give_each_shard_all_changes: "wrong|rows of missing",
    forget_nothing_of_a_shard: "missing above",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("take_out", "found"), SAFEGUARDS.items(), ids=[each.__name__ for each in SAFEGUARDS]
)
def test_without_a_safeguard_a_run_is_wrong(take_out: Patch, found: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        take_out(patch)
        with pytest.raises(AssertionError, match=found):
            run_all()


@pytest.mark.long
def test_a_union_that_keeps_pieces_which_were_evicted_is_wrong_in_some_order() -> None:
    """It is seldom, so all orders are tried."""
    from tests.nebuli.dataflow.partial.test_interleavings import (
        test_an_eviction_of_one_piece_of_a_union_while_the_other_is_waited_for as all_orders,
    )

    with pytest.MonkeyPatch.context() as patch:
        keep_pieces_that_were_evicted(patch)
        with pytest.raises(AssertionError, match=r"wrong|missing above"):
            all_orders()
