"""What is full of a graph is bounded: past its bound it fails, and says who, how much and what to do."""

from __future__ import annotations

import pytest

from nebuli.dataflow import StateTooLarge
from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial import Budget, PartialGraph, PartialNode, Place, Stream, View
from placement.partial.sharding import spread
from placement.plan import AggregateOperator, DistinctOperator, JoinOperator, ProjectOperator, Sharding
from tests.nebuli.dataflow.partial.library import BOOKS, Library, base, count, rows

BOUND = 100_000
LOANS = Stream("loans", BOOKS.columns)
MEMBERS = Stream("members", BOOKS.columns)
FULL: dict[str, PartialNode] = {
    "aggregate": count("x", "loans", "title"),
    "values of max": AggregateOperator(id="x", input="loans", aggregates={"m": "max(title)"}),
    "distinct": DistinctOperator(id="x", input="loans"),
    "inner join": JoinOperator(id="x", inputs=("loans", "members"), on=("title",)),
    "full join": JoinOperator(id="x", inputs=("loans", "members"), on=("title",), how="full"),
    "view": View("x", "loans", ("title",)),
}
SIZES = base("sizes", next="int", size="text")
OPERATORS = {name: node for name, node in FULL.items() if not isinstance(node, View)}


def graph(full: PartialNode, max_state_bytes: int) -> PartialGraph:
    key = "m" if isinstance(full, AggregateOperator) and not full.by else "title"
    below = [] if isinstance(full, View) else [View("v", "x", (key,))]
    return PartialGraph([LOANS, MEMBERS, full, *below], max_state_bytes=max_state_bytes)


def lend(running: PartialGraph, first: int) -> None:
    running.write("loans", rows(LOANS, ((first + index, "a genre") for index in range(100))))  # type: ignore[arg-type]
    running.drain()


def bounded(node: PartialNode, max_bytes: int) -> PartialNode:
    return node.model_copy(update={"max_state_bytes": max_bytes})  # type: ignore[union-attr]


@pytest.mark.parametrize("name", FULL)
def test_what_is_full_fails_at_its_bound_and_not_before(name: str) -> None:
    """An operator at its own, whatever the graph's is; a view, which has none, at the graph's."""
    is_view = name == "view"
    running = graph(FULL[name] if is_view else bounded(FULL[name], BOUND), BOUND if is_view else 100 * BOUND)
    held = [0]

    def lend_on() -> None:
        for first in range(0, 100_000, 100):
            lend(running, first)
            held.append(running.nodes["x"].state_bytes)

    with pytest.raises(StateTooLarge) as caught:
        lend_on()
    assert BOUND / 2 < max(held) <= BOUND
    error = caught.value
    assert (error.operator, error.bound) == ("x", BOUND)
    assert BOUND < error.held <= 2 * BOUND
    assert str(error).startswith(
        f"operator x: its state holds {error.held:,} bytes, above its bound of 100,000: "
    )
    assert ("max_state_bytes of the operator" in str(error)) is not is_view
    assert "--max-state-bytes" in str(error)
    assert "'nebuli place' explains why it is full" in str(error)


@pytest.mark.parametrize("name", OPERATORS)
def test_without_a_bound_of_its_own_an_operator_has_the_graphs(name: str) -> None:
    running = graph(FULL[name], 1000)
    with pytest.raises(StateTooLarge, match=r"operator x: .* above its bound of 1,000:"):
        lend(running, 0)


def test_a_base_has_the_graphs_bound() -> None:
    """It may hold just as much."""
    nodes, given = [BOOKS, View("v", "books", ("genre",))], [(number, "a genre") for number in range(100)]
    tried = Library(*nodes)
    tried.give("books", *given)
    held = tried.nodes["books"].state_bytes
    PartialGraph(nodes, max_state_bytes=held).write("books", rows(BOOKS, given))
    with pytest.raises(StateTooLarge, match=rf"operator books: .* holds {held:,} bytes") as caught:
        PartialGraph(nodes, max_state_bytes=held - 1).write("books", rows(BOOKS, given))
    assert "max_state_bytes of the operator" not in str(caught.value)


def test_what_is_partial_is_not_bounded_but_for_its_budget() -> None:
    """However little its operator may have: that is of what cannot be evicted."""
    library = Library(BOOKS, bounded(count("c", "books", "genre"), 1), View("v", "c", ("genre",)))
    library.give("books", *((number, f"genre{number}") for number in range(1000)))
    right = {(f"genre{number}", 1): 1 for number in range(1000)}
    assert library.rows("v", *(f"genre{number}" for number in range(1000))) == right
    library.give("books", (1000, "genre0"))
    library.drain()
    assert library.partial_bytes > 10_000


def mixed(how: str, max_bytes: int) -> Library:
    """A join that has all books by what is computed of them, and of the sizes only those that were asked for."""
    join = JoinOperator.model_validate(
        {"id": "j", "type": "join", "inputs": ["sizes", "p"], "on": ["next"], "how": how}
    )
    computed = ProjectOperator(id="p", input="books", columns={"next": "title + 1", "genre": "genre"})
    return Library(BOOKS, SIZES, computed, bounded(join, max_bytes), View("v", "j", ("size",)))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_of_a_join_the_input_that_is_full_is_bounded_and_the_other_one_evicted(how: str) -> None:
    library = mixed(how, BOUND)
    join = library.nodes["j"]
    assert {place for place, kept in join.kept.items() if kept.full} == {Place("j", ("next",), 1)}
    library.give("books", *((number, "a genre") for number in range(1000)))
    library.drain()
    all_full = join.full_bytes
    assert all_full > 10_000
    assert library.partial_bytes < 1000
    library.give("sizes", *((number, f"size{number}") for number in range(1, 1001)))
    library.drain()
    found = {(number, f"size{number}", "a genre"): 1 for number in range(1, 51)}
    assert library.rows("v", *(f"size{number}" for number in range(1, 51))) == found
    assert join.full_bytes <= 1.5 * all_full  # which lookups may have given an index
    assert library.partial_bytes > 1000
    budget = Budget(2 * library.partial_bytes)
    assert budget.max_bytes < join.full_bytes
    assert budget.enforce(library) == 0  # what is full is none of its business
    library.give("books", *((number, "a genre") for number in range(1000, 20_000)))
    with pytest.raises(StateTooLarge, match=r"operator j: .* above its bound of 100,000:"):
        library.drain()


def test_the_error_of_a_shard_names_its_operator() -> None:
    by_title = bounded(count("c", "loans", "title"), 1000).model_copy(  # type: ignore[union-attr]
        update={"shard": Sharding(into=2)}
    )
    nodes = {node.id: node for node in (LOANS, by_title, View("v", "c", ("title",)))}
    schemas = PartialGraph([LOANS, count("c", "loans", "title")]).plan.schemas
    running = PartialGraph(spread(nodes, schemas).operators.values())
    with pytest.raises(StateTooLarge, match=r"^operator c: .* above its bound of 1,000:"):
        lend(running, 0)


def test_what_is_full_is_not_added_if_the_rows_so_far_are_above_its_bound() -> None:
    """And the graph goes on as before."""
    library = Library(BOOKS, count("c", "books", "genre"), View("v", "c", ("genre",)))
    library.give("books", *((number, f"genre{number}") for number in range(1000)))
    library.drain()
    more = [bounded(count("d", "books", "title"), 1000), View("w", "d", ("n",))]
    with pytest.raises(DataflowError, match=r"operator d: .* above its bound of 1,000:"):
        library.add(more)
    assert library.rows("v", "genre7") == {("genre7", 1): 1}
    library.add([bounded(count("d", "books", "title"), 10 * BOUND), more[1]])
    library.drain()
    assert library.rows("w", 1) == {(number, 1): 1 for number in range(1000)}
