"""What is partial and what is not, and why."""

from __future__ import annotations

import pytest

from placement.partial.places import Place
from placement.partial.provenance import planned
from placement.plan import (
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    PartialNode,
    ProjectOperator,
    UnionOperator,
    WindowOperator,
)
from placement.view_nodes import Base, Output, Stream, View
from tests.nebuli.dataflow.partial.library import AUTHORS, BOOKS, STORIES, base, count
from topology import Column, DataType

COUNTS = count("counts", "books", "genre")
TOLD = JoinOperator(id="told", inputs=("stories", "authors"), on=("author",))
FULL: dict[str, tuple[list[PartialNode], dict[str, str]]] = {
    "PS-EL-1: an aggregate without groups": (
        [BOOKS, count("all", "books"), View("v", "all", ("n",))],
        {
            "v by n": "'n' is a result of all, which does not group by it",
            "all by nothing": "v by n needs every row of it: 'n' is a result of all, which does not group "
            "by it",
        },
    ),
    "PS-EL-5: groups by their result, which makes full what is above (PS-EL-4)": (
        [BOOKS, COUNTS, View("v", "counts", ("n",)), View("per_genre", "counts", ("genre",))],
        {
            "v by n": "'n' is a result of counts, which does not group by it",
            "counts by genre": "v by n needs every row of it: 'n' is a result of counts, which does not "
            "group by it",
        },
    ),
    "PS-UQ-5: a computed column": (
        [
            BOOKS,
            ProjectOperator(id="p", input="books", columns={"next": "title + 1", "genre": "genre"}),
            View("v", "p", ("genre", "next")),
        ],
        {"v by genre, next": "'next' is computed by p: title + 1"},
    ),
    "columns of both inputs of a join": (
        [STORIES, AUTHORS, TOLD, View("v", "told", ("id", "karma"))],
        {
            "v by id, karma": "id and karma come from different inputs of told",
            **{
                f"input {port} of told by author": "v by id, karma needs every row of it: id and karma come "
                "from different inputs of told"
                for port in (0, 1)
            },
        },
    ),
    "no key": ([BOOKS, View("v", "books", ())], {"v by nothing": "it is read without a key"}),
    "the same column twice": (
        [
            BOOKS,
            ProjectOperator(id="p", input="books", columns={"a": "title", "b": "title"}),
            View("v", "p", ("a", "b")),
        ],
        {"v by a, b": "a and b are the same column in the input of p"},
    ),
    "one input of a union": (
        [
            BOOKS,
            ProjectOperator(id="p", input="books", columns={"title": "title + 1", "genre": "genre"}),
            UnionOperator(id="u", inputs=("books", "p")),
            View("v", "u", ("title",)),
            View("w", "u", ("genre",)),
        ],
        {"v by title": "'title' is computed by p: title + 1"},
    ),
    "the key of a join, which makes one of its inputs full": (
        [
            base("sizes", n="int", name="text"),
            BOOKS,
            COUNTS,
            JoinOperator(id="named", inputs=("counts", "sizes"), on=("n",)),
            View("v", "named", ("genre",)),
        ],
        {
            "input 0 of named by n": "'n' is a result of counts, which does not group by it",
            "counts by genre": "named, of counts, by n needs every row of it: 'n' is a result of counts, which "
            "does not group by it",
        },
    ),
}
FULL |= {
    f"PS-MA-5: {how} join by {', '.join(key)}": (
        [STORIES, AUTHORS, TOLD.model_copy(update={"how": how}), View("v", "told", key)],
        {
            f"v by {', '.join(key)}": why,
            **{
                f"input {port} of told by author": f"v by {', '.join(key)} needs every row of it: {why}"
                for port in (0, 1)
            },
        },
    )
    for how, key, why in [
        (
            "left",
            ("karma",),
            "karma comes from authors, and left join told also returns rows without a match in authors",
        ),
        (
            "right",
            ("id",),
            "id comes from stories, and right join told also returns rows without a match in stories",
        ),
        (
            "left",
            ("author", "karma"),
            (
                "author and karma come from authors, and left join told also returns rows without a "
                "match in authors"
            ),
        ),
        (
            "full",
            ("id",),
            "id comes from stories, and full join told also returns rows without a match in stories",
        ),
        ("left", ("id", "karma"), "id and karma come from different inputs of told"),
    ]
}
LOANS = Stream(
    "loans", (Column(name="title", type=DataType.INT64), Column(name="at", type=DataType.TIMESTAMP))
)
LENT = JoinOperator(id="lent", inputs=("loans", "titles"), on=("title",))
TITLES = DistinctOperator(id="titles", input="books")
NO_BASE = "it reads loans, which is not a base"
OF_NO_BASE = f"lent needs every row of it: {NO_BASE}"
FULL |= {
    "PS-EL-4: what a stream comes to, beside what can be asked, which is full by that": (
        [LOANS, BOOKS, TITLES, LENT, View("v", "lent", ("genre",)), View("titled", "titles", ("title",))],
        {
            "input 0 of lent by title": NO_BASE,
            "input 1 of lent by title": NO_BASE,
            "titles by title, genre": OF_NO_BASE,
            "titles by title": OF_NO_BASE,
            "v by genre": NO_BASE,
        },
    ),
    "PS-EL-4: what a sink takes": (
        [BOOKS, COUNTS, View("per_genre", "counts", ("genre",)), Output("out", "counts")],
        {
            "counts by genre": "sink out, which is computed from it, reads every row",
        },
    ),
    "PS-EL-4: a window, what it is made of and what is made of it": (
        [
            Base("times", LOANS.columns),
            DistinctOperator(id="once", input="times"),
            WindowOperator(id="w", input="once", time="at", size="1 hour"),
            count("per_hour", "w", "window_start"),
            View("v", "per_hour", ("window_start",)),
            View("titled", "once", ("title",)),
        ],
        {
            "once by title, at": "window w, which is computed from it, reads every row",
            "once by title": "window w, which is computed from it, reads every row",
            "per_hour by window_start": "it reads window w, whose rows are dropped when the window closes",
            "v by window_start": "it reads window w, whose rows are dropped when the window closes",
        },
    ),
}


@pytest.mark.parametrize(("nodes", "why"), FULL.values(), ids=FULL)
def test_what_cannot_be_traced_is_full_and_so_is_all_above_it(
    nodes: list[PartialNode], why: dict[str, str]
) -> None:
    """PS-EL-1, PS-EL-4, PS-EL-5, PS-UQ-5: and it is said why."""
    assert {str(place): reason for place, reason in planned(nodes).full.items()} == why


def test_groups_read_by_what_they_are_grouped_by_are_partial() -> None:
    """PS-EL-2: also by some of it, and then by an index of these columns above too."""
    plan = planned([BOOKS, count("c", "books", "title", "genre"), View("v", "c", ("genre",))])
    assert (plan.full, set(plan.partial)) == ({}, {Place("c", ("genre",)), Place("v", ("genre",))})


def test_a_path_ends_at_the_nearest_place_with_its_columns_as_index() -> None:
    """PS-MA-4: at a join by its own key, past it on the one side that has other columns."""
    plan = planned(
        [
            STORIES,
            AUTHORS,
            TOLD,
            ProjectOperator(id="p", input="told", columns={"who": "author", "number": "id"}),
            FilterOperator(id="f", input="p", predicate="number > 0"),
            View("by_who", "f", ("who",)),
            View("by_number", "f", ("number",)),
            View("by_both", "f", ("number", "who")),
        ]
    )
    sources = {path.target.node: path.source for path in plan.paths if path.target.port is None}
    assert sources == {
        "by_who": Place("told", ("author",)),
        "by_number": Place("stories", ("id",)),
        "by_both": Place("stories", ("id", "author")),
    }


def test_an_outer_join_is_passed_towards_the_input_whose_rows_are_all_given() -> None:
    """PS-MA-5: also by a part of its key, which both inputs have; a full one has no such input."""
    columns = dict.fromkeys(("a", "b", "x"), "int")
    left, right = base("left", **columns), base("right", **{**columns, "y": "int"})
    sources = {}
    for how in ("inner", "left", "right", "full"):
        join = JoinOperator(id="j", inputs=("left", "right"), on=("a", "b"), how=how)
        plan = planned([left, right, join, View("v", "j", ("a",)), View("w", "j", ("b", "a"))])
        sources[how] = {path.target.node: path.source for path in plan.paths if path.target.port is None}
        if how == "full":
            why = plan.full[Place("v", ("a",))]
            assert (
                why
                == "a is part of the key of full join j, but no input of the join contains all of its values"
            )
    by_key = Place("j", ("a", "b"))
    assert sources == {
        "inner": {"v": Place("left", ("a",)), "w": by_key},
        "left": {"v": Place("left", ("a",)), "w": by_key},
        "right": {"v": Place("right", ("a",)), "w": by_key},
        "full": {"w": by_key},
    }
    by_its_key = planned([left, right, join, View("w", "j", ("b", "a"))])
    assert (by_its_key.full, {path.source for path in by_its_key.paths if path.target.node == "w"}) == (
        {},
        {by_key},
    )
