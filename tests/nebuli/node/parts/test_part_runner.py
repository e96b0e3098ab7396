"""What the fragment of a query with views may keep of keys that were read."""

from __future__ import annotations

from typing import Any

import pytest

from nebuli.dataflow.partial import View
from nebuli.node.parts.part_runner import PartRunner, budget_of
from placement import decompose, place
from placement.partial.view_additions import addition_of, with_addition
from placement.plan import ViewOperator
from tests.nebuli.dataflow.partial.library import BOOKS, Library, count
from tests.support.documents import op, query
from topology import parse_topology

WORKER = 50_000
GENRES = [f"genre{number}" for number in range(2000)]


def view(id_: str, **said: Any) -> ViewOperator:
    return ViewOperator.model_validate({"id": id_, "type": "view", "input": "c", "key": ["genre"], **said})


@pytest.mark.parametrize(
    ("said", "together"),
    [
        ([], WORKER),
        ([{}], WORKER),
        ([{"max_bytes": 100}, {}], WORKER),
        ([{"max_bytes": 100}], 100),
        ([{"max_bytes": 100}, {"max_bytes": 200}], 300),
        ([{"max_bytes": WORKER}, {"max_bytes": 200}], WORKER),
        ([{"evict": "random"}, {"max_bytes": 200}], WORKER),
    ],
)
def test_all_partial_state_has_what_all_views_say_or_what_the_worker_says(
    said: list[dict[str, Any]], together: int
) -> None:
    views = [view(f"v{number}", **each) for number, each in enumerate(said)]
    assert budget_of(views, WORKER).max_bytes == together


def test_each_view_keeps_what_it_says_and_the_others_what_was_read() -> None:
    library = Library(
        BOOKS, count("c", "books", "genre"), *(View(id_, "c", ("genre",)) for id_ in ("a", "b"))
    )
    for id_ in ("a", "b"):
        library.rows(id_, *GENRES)
    budget_of([view("a", max_bytes=10_000), view("b")], 1 << 30).enforce(library)
    library.drain()
    assert library.nodes["a"].state_bytes <= 11_000
    assert all(library.has("b", genre) and library.has("c", genre) for genre in GENRES)
    for id_ in ("a", "b"):
        library.rows(id_, *GENRES)
    budget_of([view("a", max_bytes=10_000), view("b", max_bytes=10_000)], 1 << 30).enforce(library)
    library.drain()
    assert library.partial_bytes <= 22_000


@pytest.mark.parametrize("evict", ["random", "least_recently_used"])
def test_evict_counts_without_max_bytes(evict: str) -> None:
    library = Library(BOOKS, count("c", "books", "genre"), View("v", "c", ("genre",)))
    for genre in GENRES[:400]:
        library.rows("v", genre)
    half = library.partial_bytes // 2
    budget_of([view("v", evict=evict)], half).enforce(library)
    library.drain()
    oldest = sum(library.has("v", genre) for genre in GENRES[:50])
    assert (oldest > 5) is (evict == "random")


TOPOLOGY = parse_topology("""
logical: [{name: books, schema: [{name: title, type: int64}, {name: genre, type: string}]}]
nodes: [{address: "a:1", physical: [{logical: books, type: CSV, path: books.csv, base: true}]}]
""")


def test_a_full_view_has_no_part_in_the_budget_and_one_that_is_added_has() -> None:
    """What is full cannot be evicted, whatever its ``max_bytes`` says."""
    counts = op("aggregate", "counts", input="books", by=["genre"], aggregates={"n": "count(*)"})
    full = op("view", "full", input="counts", key=["n"], max_bytes=20_000)
    partial = op("view", "v", input="full", key=["genre"], max_bytes=1000)
    books = op("source", "books", logical="books")
    fragments = decompose(place(query(books, counts, full, partial), TOPOLOGY)).fragments
    addition = addition_of(
        '{"operators": [{"id": "w", "type": "view", "input": "full", "key": ["genre"], "max_bytes": 500}]}',
        fragments,
    )
    for (fragment,), together in ((fragments, 1000), (with_addition(fragments, addition), 1500)):
        runner = PartRunner("id", fragment, lambda: None, max_state_bytes=WORKER)
        assert runner._budget.max_bytes == together
