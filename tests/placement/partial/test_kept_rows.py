"""What is said of the state of a query with views, once it is placed."""

from __future__ import annotations

from typing import Any

import pytest

from nebuli.dataflow.partial import PartialGraph
from placement import Kept, check_stepped, decompose, kept_by, kept_in_steps, place, planned_of
from placement.view_nodes import Base
from tests.nebuli.dataflow.partial.library import rows
from tests.nebuli.dataflow.partial.reference import contents
from tests.support.documents import op, query
from topology import parse_topology

TOPOLOGY = parse_topology("""
logical:
  - name: books
    schema: [{name: title, type: int64}, {name: genre, type: string}]
  - name: stories
    schema: [{name: id, type: int64}, {name: author, type: string}]
  - name: authors
    schema: [{name: author, type: string}, {name: karma, type: int64}]
  - name: loans
    schema: [{name: title, type: int64}, {name: at, type: timestamp}]
nodes:
  - address: a:1
    links: {downstream: [c:1]}
    physical:
      - {logical: books, type: CSV, path: books.csv, base: true}
      - {logical: stories, type: CSV, path: stories.csv, base: true}
      - {logical: loans, type: TCP, address: "x:9"}
  - address: b:1
    links: {downstream: [c:1]}
    physical: [{logical: authors, type: Collection, store: s, collection: authors}]
  - address: c:1
    sinks: [{name: out, type: Print, mode: changes}]
""")
BOOKS, STORIES, AUTHORS, LOANS = (
    op("source", name, logical=name) for name in ("books", "stories", "authors", "loans")
)
COUNTS = op("aggregate", "counts", input="books", by=["genre"], aggregates={"n": "count(*)"})


def view(id_: str, input_: str, *key: str) -> dict[str, Any]:
    return op("view", id_, input=input_, key=key)


def kept(*operators: dict[str, Any]) -> list[Kept]:
    return kept_by(planned_of(decompose(place(query(*operators), TOPOLOGY)).fragments[0]))


def test_in_steps_all_of_it_is_full():
    """PS-UQ-6"""
    join = op("join", "both", inputs=["stories", "books"], on=["genre"])
    stories = op("project", "stories", input="raw", columns={"id": "id", "genre": "author"})
    operators = BOOKS, op("source", "raw", logical="stories"), stories, join, view("found", "both", "genre")
    sink = op("distinct", "d", input="books"), op("sink", "s", input="d", sink="out")
    plan = check_stepped(query(*operators, *sink), TOPOLOGY)
    assert sorted(kept_in_steps(plan), key=lambda each: (each.operator, each.input or "")) == [
        Kept("both", "books", ("genre",), "full", "the query runs in steps"),
        Kept("both", "stories", ("genre",), "full", "the query runs in steps"),
        Kept("d", None, ("title", "genre"), "full", "the query runs in steps"),
        Kept("found", None, ("genre",), "full", "the query runs in steps"),
    ]


def test_groups_that_are_read_by_what_they_are_grouped_by_are_partial():
    """PS-EL-2, PS-EL-3: books per genre; and the base gets an index, so that no upquery scans it."""
    assert kept(BOOKS, COUNTS, view("per_genre", "counts", "genre")) == [
        Kept("books", None, ("genre",), "base", "all rows, with an index that fills counts by genre"),
        Kept("counts", None, ("genre",), "partial", "filled from books by genre"),
        Kept("per_genre", None, ("genre",), "partial", "filled from counts by genre"),
    ]


def test_what_is_read_by_a_result_is_full_and_so_is_all_that_it_is_made_of():
    """PS-EL-5, PS-EL-4: genres with so many books. The view of the same groups by their genre is partial beside."""
    result = "'n' is a result of counts, which does not group by it"
    above = f"of_size by n needs every row of it: {result}"
    assert kept(BOOKS, COUNTS, view("per_genre", "counts", "genre"), view("of_size", "per_genre", "n")) == [
        Kept("books", None, (), "base", "all rows; no operator requests them again"),
        Kept("counts", None, ("genre",), "full", above),
        Kept("per_genre", None, ("genre",), "partial", "filled from counts by genre"),
        Kept("of_size", None, ("n",), "full", result),
    ]


def test_a_count_of_all_is_full():
    """PS-EL-1: an aggregate without groups is not worth it."""
    count = op("aggregate", "all", input="books", aggregates={"n": "count(*)"})
    states = {each.operator: each.state for each in kept(BOOKS, count, view("v", "all", "n"))}
    assert states == {"books": "base", "all": "full", "v": "full"}


def test_without_provenance_a_view_is_full_and_right():
    """PS-UQ-5, PS-UQ-6: its column is computed, and so it has everything from the beginning."""
    next_ = op("project", "p", input="books", columns={"next": "title + 1", "genre": "genre"})
    operators = (BOOKS, next_, view("v", "p", "next"))
    assert kept(*operators)[-1] == Kept("v", None, ("next",), "full", "'next' is computed by p: title + 1")
    (fragment,) = decompose(place(query(*operators), TOPOLOGY)).fragments
    graph = PartialGraph(fragment.views)
    base = fragment.views[0]
    assert isinstance(base, Base)
    graph.write("books", rows(base, [(1, "poetry"), (2, "drama")]))
    graph.drain()
    reading = graph.read("v", [(3,)])
    assert (contents(reading.rows), reading.missing.num_rows) == ({(3, "drama"): 1}, 0)


def test_joins_are_asked_on_the_side_that_the_columns_come_from():
    """PS-EL-3: names of columns are those at the ancestor, with those here beside. A collection is a base as it is."""
    joined = [op("join", "told", inputs=["stories", "authors"], on=["author"])]
    renamed = op("project", "p", input="told", columns={"number": "id", "karma": "karma"})
    assert kept(STORIES, AUTHORS, *joined, renamed, view("v", "p", "number")) == [
        Kept(
            "stories",
            None,
            ("author",),
            "base",
            "all rows, with an index that fills told, of stories, by author",
        ),
        Kept("stories", None, ("id",), "base", "all rows, with an index that fills v by number"),
        Kept(
            "authors",
            None,
            ("author",),
            "base",
            "all rows, with an index that fills told, of authors, by author",
        ),
        Kept("told", "stories", ("author",), "partial", "filled from stories by author"),
        Kept("told", "authors", ("author",), "partial", "filled from authors by author"),
        Kept("v", None, ("number",), "partial", "filled from stories by id (here number)"),
    ]


def test_a_union_is_asked_on_all_sides():
    titles = op("project", "p", input="stories", columns={"title": "id", "genre": "author"})
    union = op("union", "u", inputs=["books", "p"])
    assert kept(BOOKS, STORIES, titles, union, view("v", "u", "title"))[-1] == Kept(
        "v", None, ("title",), "partial", "filled from books by title and stories by id (here title)"
    )


WINDOW = op("window", "w", input="loans", time="at", size="1 hour")
BY_HOUR = op("aggregate", "by_hour", input="w", by=["window_start"], aggregates={"n": "count(*)"})
FULL = {
    "what no base gives": (
        [
            BOOKS,
            LOANS,
            op("join", "lent", inputs=["loans", "books"], on=["title"]),
            view("v", "lent", "genre"),
        ],
        {"it reads loans, which is not a base"},
    ),
    "what is by windows": (
        [LOANS, WINDOW, BY_HOUR, view("v", "by_hour", "window_start")],
        {"it reads window w, whose rows are dropped when the window closes"},
    ),
    "what a sink takes": (
        [BOOKS, COUNTS, op("sink", "s", input="v", sink="out"), view("v", "counts", "genre")],
        {"sink s, which is computed from it, reads every row"},
    ),
}


@pytest.mark.parametrize(("operators", "reasons"), FULL.values(), ids=FULL)
def test_what_forces_state_to_be_full(operators: list[dict[str, Any]], reasons: set[str]):
    """PS-EL-4: each of these has all operators above it keep all that they have. Where all is full, that is fine."""
    found = [each for each in kept(*operators) if each.state != "base" and each.operator != "v"]
    assert {each.state for each in found} == {"full"}
    assert {each.why for each in found} == reasons


def test_without_views_nothing_is_said():
    assert kept(BOOKS, op("sink", "s", input="books", sink="out")) == []


def test_of_shards_it_is_said_which_a_lookup_asks():
    """PS-EX-2: by the columns that they are divided by one, by others all; one row is for all shards."""
    groups = {**COUNTS, "by": ["genre", "title"], "shard": {"into": 3, "by": ["genre"]}}
    for key, which in (
        (("genre",), "in one of 3 shards, selected by genre"),
        (("genre", "title"), "in one of 3 shards, selected by genre"),
        (("title",), "in all 3 shards, because the shards are divided by genre"),
    ):
        names = ", ".join(key)
        assert kept(BOOKS, groups, view("v", "counts", *key)) == [
            Kept(
                "books",
                None,
                _as_in_books(key),
                "base",
                f"all rows, with an index that fills counts by {names}",
            ),
            Kept("counts", None, key, "partial", f"in each of 3 shards, filled from books by {names}"),
            Kept("v", None, key, "partial", f"filled from counts by {names}, {which}"),
        ]


def test_of_shards_that_are_full_the_reason_names_their_operator():
    divided = {**COUNTS, "shard": {"into": 2}}
    result = "'n' is a result of counts, which does not group by it"
    computed = op("project", "p", input="counts", columns={"next": "n + 1", "genre": "genre"})
    assert kept(BOOKS, divided, view("v", "counts", "n")) == [
        Kept("books", None, (), "base", "all rows; no operator requests them again"),
        Kept(
            "counts", None, ("genre",), "full", f"in each of 2 shards, v by n needs every row of it: {result}"
        ),
        Kept("v", None, ("n",), "full", result),
    ]
    assert kept(BOOKS, divided, computed, view("v", "p", "next"))[-1].why == "'next' is computed by p: n + 1"
    left = op("join", "told", inputs=["stories", "authors"], on=["author"], how="left", shard={"into": 2})
    assert kept(STORIES, AUTHORS, left, view("v", "told", "karma"))[-1].why == (
        "karma comes from authors, and left join told also returns rows without a match in authors"
    )
    assert kept(STORIES, AUTHORS, left, view("v", "told", "id"))[0].why == (
        "all rows, with an index that fills told, of stories, by author"
    )


def test_of_shards_of_which_nothing_is_known_all_are_asked():
    groups = {**COUNTS, "by": ["genre", "title"], "shard": {"into": 2, "by": ["genre"]}}
    titles = op("project", "titles", input="counts", columns={"title": "title", "n": "n"})
    *_, last = kept(BOOKS, groups, titles, view("v", "titles", "title"))
    assert (
        last.why
        == "filled from counts by title, in all 2 shards, because no key determines the shard of a row"
    )


def _as_in_books(key: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in ("title", "genre") if name in key)
