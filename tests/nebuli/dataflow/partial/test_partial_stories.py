"""What becomes of keys: stories with names, each for what the document on partial state asks for."""

from __future__ import annotations

from typing import Any

import pytest

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial import Base, Build, Data, Down, Edge, Eviction, Output, Place, Stream, Up, View
from placement.errors import UnfitNodes
from placement.plan import DistinctOperator, FilterOperator, JoinOperator, ProjectOperator, UnionOperator
from tests.nebuli.dataflow.partial.library import AUTHORS, BOOKS, STORIES, Library, base, count, rows
from tests.nebuli.dataflow.partial.reference import contents

COUNTED = (BOOKS, count("counts", "books", "genre"), View("per_genre", "counts", ("genre",)))
GROUPS = Place("counts", ("genre",))
TOLD = (
    STORIES,
    AUTHORS,
    JoinOperator(id="told", inputs=("stories", "authors"), on=("author",)),
    View("by_id", "told", ("id",)),
)
STORY_SIDE, AUTHOR_SIDE = (Place("told", ("author",), port) for port in (0, 1))


def outer(how: Any, *inputs: str) -> JoinOperator:
    return JoinOperator(id="told", inputs=inputs, on=("author",), how=how)


def present(library: Library, place: Place) -> int:
    return len(library.partial[place].present)


def test_only_what_is_read_is_kept() -> None:
    """PS-GOAL-1: 10 000 keys are loaded, 3 are read, and of 3 there is state, in the view and above it."""
    library = Library(*COUNTED)
    library.give("books", *((number, f"genre{number}") for number in range(10_000)))
    library.drain()
    assert [present(library, place) for place in library.partial] == [0, 0]
    assert library.rows("per_genre", "genre1", "genre2", "genre3") == {(f"genre{n}", 1): 1 for n in (1, 2, 3)}
    assert [present(library, place) for place in library.partial] == [3, 3]


def test_a_key_without_rows_is_there_once_it_was_read() -> None:
    """PS-GOAL-2: empty is not missing: the second read asks nobody. It can be evicted as any other."""
    library = Library(*COUNTED)
    assert library.rows("per_genre", "poetry") == {}
    asked = library.sent_as("Upquery")
    assert asked == 2
    assert library.read("per_genre", [("poetry",)]).missing.num_rows == 0
    assert library.rows("per_genre", "poetry") == {}
    assert library.sent_as("Upquery") == asked
    library.forget(GROUPS, "poetry")
    library.give("books", (1, "poetry"))
    library.drain()
    assert not library.has("per_genre", "poetry")
    assert library.rows("per_genre", "poetry") == {("poetry", 1): 1}


@pytest.mark.long
def test_writes_to_keys_that_nobody_reads_take_no_memory() -> None:
    """PS-GOAL-3: nor do they ask for anything: PS-UQ-7, PS-UQ-8."""
    library = Library(*COUNTED, *TOLD)
    library.give("books", (1, "poetry"))
    library.give("authors", ("Elena", 1))
    library.give("stories", (7, "Elena"))
    assert library.rows("per_genre", "poetry") == {("poetry", 1): 1}
    assert library.rows("by_id", 7) == {("Elena", 7, 1): 1}
    held, asked = library.partial_bytes, library.sent_as("Upquery")
    for start in range(0, 100_000, 5_000):
        numbers = range(start, start + 5_000)
        library.give("books", *((number, f"genre{number}") for number in numbers))
        library.give("stories", *((1000 + number, f"author{number}") for number in numbers))
        library.drain()
    assert library.partial_bytes <= held
    assert library.sent_as("Upquery") == asked
    assert library.rows("per_genre", "genre99999") == {("genre99999", 1): 1}


def test_filling_a_key_reads_and_moves_its_rows_only() -> None:
    """PS-GOAL-4: one response of the key's rows; on the edges of the branch beside it nothing moves."""
    beside = (count("others", "books", "title"), View("per_title", "others", ("title",)))
    library = Library(*COUNTED, *beside)
    library.give("books", *((number, f"genre{number % 1000}") for number in range(5_000)))
    library.drain()
    before = dict(library.sent)
    library.read("per_genre", [("genre7",)])
    responses = []
    while moves := library.moves():
        if isinstance(moves[-1], Down):
            responses.append((moves[-1].edge, library.on_its_way(moves[-1].edge)[0].batch.num_rows))
        library.step(moves[-1])
    assert responses == [(Edge("books", "counts", 0), 5), (Edge("counts", "per_genre", 0), 1)]
    moved = {edge for edge, kind in library.sent if library.sent[edge, kind] != before.get((edge, kind), 0)}
    assert moved == {Edge("books", "counts", 0), Edge("counts", "per_genre", 0)}


def test_an_upquery_goes_up_and_its_response_down_through_the_same_operators() -> None:
    """PS-UQ-1, PS-UQ-2, PS-UQ-4: one response on each edge, filtered and computed as changes are."""
    library = Library(
        BOOKS,
        FilterOperator(id="old", input="books", predicate="title < 100"),
        ProjectOperator(id="named", input="old", columns={"kind": "genre", "next": "title + 1"}),
        View("by_kind", "named", ("kind",)),
    )
    library.give("books", (1, "poetry"), (2, "poetry"), (300, "poetry"), (4, "drama"))
    library.drain()
    library.read("by_kind", [("poetry",)])
    way = [Edge("books", "old", 0), Edge("old", "named", 0), Edge("named", "by_kind", 0)]
    moves = []
    filled = []
    while possible := library.moves():
        moves += possible
        filled += library.step(possible[0])
    assert moves == [*map(Up, way[::-1]), *map(Down, way)]
    (answer,) = filled
    assert contents(answer.rows) == {("poetry", 2): 1, ("poetry", 3): 1}
    assert [library.sent_as("Response", edge) for edge in way] == [1, 1, 1]


def test_keys_are_asked_for_together_and_never_twice_at_once() -> None:
    """PS-UQ-3: 100 keys are one upquery on each edge; what is waited for is not asked for again."""
    library = Library(*COUNTED)
    library.give("books", *((number, f"genre{number}") for number in range(200)))
    library.drain()
    library.read("per_genre", [(f"genre{number}",) for number in range(100)])
    library.read("per_genre", [(f"genre{number}",) for number in range(100)])
    (filled,) = library.drain()
    assert contents(filled.rows) == {(f"genre{number}", 1): 1 for number in range(100)}
    assert (library.sent_as("Upquery"), library.sent_as("Response")) == (2, 2)


def test_a_join_is_answered_from_one_input_when_the_other_one_is_cold() -> None:
    """PS-UQ-9, PS-DU-1: the response lacks the author, asks for her, and is asked for again."""
    library = Library(*TOLD)
    library.give("stories", (7, "Elena"), (8, "Talia"))
    library.give("authors", ("Elena", 3), ("Talia", 5))
    library.drain()
    assert library.rows("by_id", 7) == {("Elena", 7, 3): 1}
    assert (present(library, STORY_SIDE), present(library, AUTHOR_SIDE)) == (1, 1)
    # The path's own upquery twice and the one for the input's stories by author.
    assert library.sent_as("Upquery", Edge("stories", "told", 0)) == 3
    assert library.sent_as("Response", Edge("told", "by_id", 0)) == 1
    # With both inputs warm, one upquery to the one input that has the column: PS-MA-4.
    library.forget(Place("by_id", ("id",)), 7)
    before = library.sent_as("Upquery", Edge("authors", "told", 1))
    assert library.rows("by_id", 7) == {("Elena", 7, 3): 1}
    assert library.sent_as("Upquery", Edge("stories", "told", 0)) == 4
    assert library.sent_as("Upquery", Edge("authors", "told", 1)) == before


def test_an_upquery_goes_on_up_where_it_finds_nothing() -> None:
    """PS-UQ-10: three levels, all of them cold."""
    library = Library(
        BOOKS,
        DistinctOperator(id="once", input="books"),
        count("counts", "once", "genre"),
        View("per_genre", "counts", ("genre",)),
    )
    library.give("books", (1, "poetry"), (1, "poetry"), (2, "poetry"))
    library.drain()
    assert library.rows("per_genre", "poetry") == {("poetry", 2): 1}
    assert [present(library, place) for place in library.partial] == [1, 1, 1]


def test_a_count_that_was_evicted_does_not_begin_anew() -> None:
    """PS-INV-2: 42, evicted, one more, and then read: 43."""
    library = Library(*COUNTED)
    library.give("books", *((number, "poetry") for number in range(42)))
    assert library.rows("per_genre", "poetry") == {("poetry", 42): 1}
    library.forget(GROUPS, "poetry")
    library.give("books", (42, "poetry"))
    library.drain()
    assert not library.has("per_genre", "poetry")
    assert library.rows("per_genre", "poetry") == {("poetry", 43): 1}


def test_an_eviction_goes_down_to_all_that_was_made_of_the_key() -> None:
    """PS-EV-1: and no further: other keys stay, and the next read fills it again."""
    library = Library(*COUNTED, View("again", "counts", ("genre",)))
    library.give("books", (1, "poetry"), (2, "drama"))
    for view in ("per_genre", "again"):
        library.rows(view, "poetry", "drama")
    library.forget(GROUPS, "poetry")
    has = [library.has(view, genre) for view in ("per_genre", "again") for genre in ("poetry", "drama")]
    assert has == [False, True, False, True]
    assert library.rows("again", "poetry") == {("poetry", 1): 1}
    assert not library.has("per_genre", "poetry")


def test_a_story_whose_author_is_missing_now_is_evicted() -> None:
    """PS-ID-1: story 7 goes from Elena to Talia, who is missing: what is below is forgotten."""
    library = Library(*TOLD)
    library.give("authors", ("Elena", 3), ("Talia", 5))
    library.give("stories", (7, "Elena"), (8, "Elena"))
    assert library.rows("by_id", 7, 8) == {("Elena", 7, 3): 1, ("Elena", 8, 3): 1}
    library.take("stories", (7, "Elena"))
    library.give("stories", (7, "Talia"))
    library.drain()
    assert [library.has("by_id", id_) for id_ in (7, 8)] == [False, True]
    assert library.rows("by_id", 7) == {("Talia", 7, 5): 1}


def test_evicting_an_author_evicts_her_stories() -> None:
    """PS-EV-1 across a join: by either input, the stories that an author's rows are part of."""
    for side in (STORY_SIDE, AUTHOR_SIDE):
        library = Library(*TOLD)
        library.give("authors", ("Elena", 3), ("Talia", 5))
        library.give("stories", (7, "Elena"), (8, "Talia"))
        library.rows("by_id", 7, 8)
        library.forget(side, "Elena")
        assert [library.has("by_id", id_) for id_ in (7, 8)] == [False, True]
        library.give("authors", ("Elena", 4))
        library.drain()
        assert library.rows("by_id", 7) == {("Elena", 7, 3): 1, ("Elena", 7, 4): 1}


def test_a_union_asks_all_its_inputs_and_waits_for_all() -> None:
    """PS-MA-1, PS-MA-2: with one piece of two, who reads still waits, and nothing has gone down."""
    left, right = base("left", k="int", x="int"), base("right", k="int", x="int")
    library = Library(
        left, right, UnionOperator(id="both", inputs=("left", "right")), View("by_k", "both", ("k",))
    )
    library.give("left", (1, 10), (2, 20))
    library.give("right", (1, 11))
    library.drain()
    library.read("by_k", [(1,)])
    library.step(Up(Edge("both", "by_k", 0)))
    assert [
        library.sent_as("Upquery", Edge(each, "both", port)) for port, each in enumerate(("left", "right"))
    ] == [1, 1]
    library.step(Up(Edge("left", "both", 0)))
    assert library.step(Down(Edge("left", "both", 0))) == []
    assert not library.has("by_k", 1)
    assert library.moves() == [Up(Edge("right", "both", 1))]
    (filled,) = library.drain()
    assert contents(filled.rows) == {(1, 10): 1, (1, 11): 1}
    assert library.sent_as("Response", Edge("both", "by_k", 0)) == 1


def test_a_join_asks_one_input_for_each_key_and_makes_each_row_once() -> None:
    """PS-MA-4: by the join's key too, whatever of the inputs is warm; both are asked if both are cold."""
    by_author = View("by_author", "told", ("author",))
    inputs = [Edge("stories", "told", 0), Edge("authors", "told", 1)]
    for cold in ([STORY_SIDE], [AUTHOR_SIDE], [STORY_SIDE, AUTHOR_SIDE]):
        library = Library(*TOLD, by_author)
        library.give("authors", ("Elena", 3))
        library.give("stories", (7, "Elena"), (8, "Elena"))
        right = {("Elena", 7, 3): 1, ("Elena", 8, 3): 1}
        assert library.rows("by_author", "Elena") == right
        for side in cold:
            library.forget(side, "Elena")
        before = [library.sent_as("Upquery", edge) for edge in inputs]
        assert library.rows("by_author", "Elena") == right
        asked = [library.sent_as("Upquery", edge) - was for edge, was in zip(inputs, before, strict=True)]
        assert asked == [STORY_SIDE in cold, AUTHOR_SIDE in cold]


def test_an_outer_join_asks_the_input_whose_rows_are_all_given() -> None:
    """PS-MA-5: by that one's columns; the row is there with nulls until its first match comes, and after its last."""
    for how, inputs in (("left", ("stories", "authors")), ("right", ("authors", "stories"))):
        library = Library(STORIES, AUTHORS, outer(how, *inputs), View("by_id", "told", ("id",)))
        library.give("stories", (7, "Elena"), (8, None))
        library.drain()
        as_given = ("id", "karma") if how == "left" else ("karma", "id")

        def row(id_: int, author: str | None, karma: int | None, order: tuple[str, ...] = as_given) -> Any:
            return (author, *({"id": id_, "karma": karma}[name] for name in order))

        assert library.rows("by_id", 7, 8) == {row(7, "Elena", None): 1, row(8, None, None): 1}
        (path,) = (path for path in library.plan.paths if path.target == Place("by_id", ("id",)))
        assert path.source == Place("stories", ("id",))
        before = library.sent_as("Upquery")
        library.give("authors", ("Elena", 3), ("Elena", 4))
        library.drain()
        assert library.rows("by_id", 7) == {row(7, "Elena", 3): 1, row(7, "Elena", 4): 1}
        library.take("authors", ("Elena", 3))
        library.drain()
        assert library.rows("by_id", 7) == {row(7, "Elena", 4): 1}
        library.take("authors", ("Elena", 4))
        library.drain()
        assert library.rows("by_id", 7, 8) == {row(7, "Elena", None): 1, row(8, None, None): 1}
        assert library.sent_as("Upquery") == before, "what was written asks for nothing"


def test_a_match_of_a_key_that_is_missing_is_dropped() -> None:
    """PS-MA-5: nobody has a row that it would change; and an author that is evicted takes her stories along."""
    library = Library(STORIES, AUTHORS, outer("left", "stories", "authors"), View("by_id", "told", ("id",)))
    library.give("stories", (7, "Elena"), (8, "Talia"))
    library.drain()
    assert library.rows("by_id", 7) == {("Elena", 7, None): 1}
    sent = library.sent_as("Data", Edge("told", "by_id", 0))
    library.give("authors", ("Talia", 5))
    library.drain()
    assert library.sent_as("Data", Edge("told", "by_id", 0)) == sent
    library.forget(AUTHOR_SIDE, "Elena")
    assert not library.has("by_id", 7)
    library.give("authors", ("Elena", 3))
    library.drain()
    assert library.rows("by_id", 7, 8) == {("Elena", 7, 3): 1, ("Talia", 8, 5): 1}


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_by_its_own_key_an_outer_join_asks_both_inputs_and_makes_each_row_once(how: Any) -> None:
    """PS-MA-4, PS-MA-5: also by the key null, which matches nothing."""
    rows_of = {
        "left": {("Elena", 7, 3): 1, (None, 9, None): 1, ("Talia", 8, None): 1},
        "right": {("Elena", 7, 3): 1, (None, None, 6): 1, ("Nora", None, 5): 1},
    }
    by_author = View("by_author", "told", ("author",))
    library = Library(STORIES, AUTHORS, outer(how, "stories", "authors"), by_author)
    library.give("stories", (7, "Elena"), (8, "Talia"), (9, None))
    library.give("authors", ("Elena", 3), ("Nora", 5), (None, 6))
    library.drain()
    expected = rows_of[how] if how != "full" else rows_of["left"] | rows_of["right"]
    for _ in range(2):
        assert library.rows("by_author", "Elena", "Talia", "Nora", None) == expected
        library.forget(STORY_SIDE, "Elena", "Talia", None)
        library.forget(AUTHOR_SIDE, "Nora", None)
        assert not library.has("by_author", "Elena")


def test_a_full_view_of_an_outer_join_is_right() -> None:
    """PS-MA-5, PS-UQ-6: by a column that is null where nothing matches, which cannot be asked for."""
    library = Library(
        STORIES, AUTHORS, outer("full", "stories", "authors"), View("by_karma", "told", ("karma",))
    )
    library.give("stories", (7, "Elena"), (8, "Elena"), (9, None))
    library.give("authors", ("Talia", 5))
    library.drain()
    alone = {("Elena", 7, None): 1, ("Elena", 8, None): 1, (None, 9, None): 1}
    assert library.rows("by_karma", None) == alone
    library.give("authors", ("Elena", 3))
    library.drain()
    assert library.rows("by_karma", None, 3) == {(None, 9, None): 1, ("Elena", 7, 3): 1, ("Elena", 8, 3): 1}
    library.take("authors", ("Elena", 3), ("Talia", 5))
    library.drain()
    assert library.rows("by_karma", None, 3, 5) == alone
    library.add([View("again", "told", ("id", "karma"))])
    library.drain()
    assert library.rows("again", (7, None), (9, None)) == {("Elena", 7, None): 1, (None, 9, None): 1}
    assert library.sent_as("Upquery") == 0


def test_what_waits_for_a_join_key_holds_up_nothing_else() -> None:
    """PS-DU-2: story 7 waits for Elena, whose base does not answer; story 8 and a change go past it."""
    library = Library(*TOLD)
    library.give("authors", ("Elena", 3), ("Talia", 5))
    library.give("stories", (7, "Elena"), (8, "Talia"))
    library.rows("by_id", 8)
    library.forget(Place("by_id", ("id",)), 8)
    library.read("by_id", [(7,), (8,)])
    slow = Up(Edge("authors", "told", 1))
    filled = []

    def all_but_the_slow() -> None:
        while moves := [move for move in library.moves() if move != slow]:
            filled.extend(library.step(moves[-1]))

    all_but_the_slow()
    assert [contents(each.rows) for each in filled] == [{("Talia", 8, 5): 1}]
    library.give("stories", (8, "Talia"))
    all_but_the_slow()
    assert contents(library.read("by_id", [(8,)]).rows) == {("Talia", 8, 5): 2}
    filled += library.drain()
    assert contents(filled[-1].rows) == {("Elena", 7, 3): 1}


def test_a_response_that_lacks_something_is_asked_for_again_until_nothing_is() -> None:
    """PS-DU-3: evicted again and again, and changed meanwhile: the answer is right when it comes."""
    library = Library(*TOLD)
    library.give("authors", ("Elena", 3))
    library.give("stories", (7, "Elena"))
    library.drain()
    library.read("by_id", [(7,)])
    for karma in range(4, 8):
        while not (present(library, STORY_SIDE) and present(library, AUTHOR_SIDE)):
            assert library.step(library.moves()[-1]) == []
        library.evict(AUTHOR_SIDE, library.partial[AUTHOR_SIDE].present.all()[0])
        library.give("authors", ("Elena", karma))
    (filled,) = library.drain()
    assert contents(filled.rows) == {("Elena", 7, karma): 1 for karma in range(3, 8)}
    assert library.sent_as("Response", Edge("told", "by_id", 0)) == 1


def test_unions_of_unions_answer_once() -> None:
    """PS-EX-1: each union puts together what is above it: one response leaves it, whatever it has asked."""
    bases = [base(f"shard{number}", k="int") for number in range(4)]
    library = Library(
        *bases,
        UnionOperator(id="low", inputs=("shard0", "shard1")),
        UnionOperator(id="high", inputs=("shard2", "shard3")),
        UnionOperator(id="all", inputs=("low", "high")),
        View("by_k", "all", ("k",)),
    )
    for each in bases:
        library.give(each.id, (1,), (2,))
    library.drain()
    assert library.rows("by_k", 1) == {(1,): 4}
    ways = [Edge("low", "all", 0), Edge("high", "all", 1), Edge("all", "by_k", 0)]
    assert [library.sent_as("Response", edge) for edge in ways] == [1, 1, 1]
    assert library.sent_as("Response") == 7


def test_each_index_is_filled_on_its_own() -> None:
    """PS-MU-1: groups by one column and by another, and each of them while the other is being filled."""
    library = Library(
        BOOKS,
        count("counts", "books", "genre", "title"),
        View("per_genre", "counts", ("genre",)),
        View("per_title", "counts", ("title",)),
    )
    library.give("books", (1, "poetry"), (2, "poetry"), (1, "drama"))
    library.drain()
    library.read("per_genre", [("poetry",)])
    library.step(library.moves()[0])
    library.read("per_title", [(1,)])
    library.give("books", (1, "poetry"))
    answers = {each.view: contents(each.rows) for each in library.drain()}
    assert answers == {
        "per_genre": {("poetry", 1, 2): 1, ("poetry", 2, 1): 1},
        "per_title": {("poetry", 1, 2): 1, ("drama", 1, 1): 1},
    }
    library.forget(Place("counts", ("genre",)), "poetry")
    assert (library.has("per_genre", "poetry"), library.has("per_title", 1)) == (False, True)
    library.give("books", (1, "poetry"))
    library.drain()
    assert library.rows("per_title", 1) == {("poetry", 1, 3): 1, ("drama", 1, 1): 1}


def test_a_new_view_can_be_read_at_once() -> None:
    """PS-AFT-1: it is added without a row being moved, while others are; more and more of what is read is there."""
    library = Library(*COUNTED)
    library.give("books", *((number, f"genre{number % 10}") for number in range(1_000)))
    library.read("per_genre", [("genre1",)])
    on_their_way, sent = library.moves(), dict(library.sent)
    library.add([count("titles", "books", "title"), View("per_title", "titles", ("title",))])
    assert (library.moves(), dict(library.sent)) == ([*on_their_way, Build("books")], sent)
    assert library.rows("per_title", 17) == {(17, 1): 1}
    hits = [
        1 - library.read("per_title", [(n % 5,) for n in range(20)]).missing.num_rows / 5
        for _ in (1, 2)
        if [library.drain()]
    ]
    assert hits == [0.0, 1.0]
    library.give("books", (17, "new"))
    library.drain()
    assert library.rows("per_title", 17) == {(17, 2): 1}


def test_a_full_view_is_added_with_the_rows_so_far() -> None:
    """PS-UQ-6: it has no key to be filled by, so it gets everything; not while something is on its way."""
    library = Library(
        BOOKS, FilterOperator(id="old", input="books", predicate="title < 3"), View("v", "old", ("genre",))
    )
    library.give("books", (1, "poetry"), (2, "drama"), (3, "drama"))
    more = [count("sizes", "old", "genre"), View("of_size", "sizes", ("n",))]
    with pytest.raises(DataflowError, match="drain the graph"):
        library.add(more)
    library.drain()
    library.add(more)
    library.give("books", (0, "drama"))
    library.drain()
    assert contents(library.read("of_size", [(2,)]).rows) == {("drama", 2): 1}


def test_what_is_partial_does_not_become_full_for_a_new_view() -> None:
    library = Library(*COUNTED)
    with pytest.raises(
        DataflowError, match=r"the full state of counts by genre, .*'n' is a result of counts"
    ):
        library.add([View("of_size", "counts", ("n",))])
    library.give("books", (1, "poetry"))
    assert library.rows("per_genre", "poetry") == {("poetry", 1): 1}


def test_what_the_graph_cannot_do_is_said() -> None:
    library = Library(*COUNTED)
    with pytest.raises(DataflowError, match="'counts' is not a base; expected books"):
        library.write("counts", rows(BOOKS, []))
    with pytest.raises(DataflowError, match="a batch has the columns"):
        library.write("books", rows(STORIES, []))
    with pytest.raises(DataflowError, match="'books' is not a view; expected per_genre"):
        library.read("books", [])
    with pytest.raises(
        DataflowError, match="books by genre is not partial; expected one of counts by genre, per"
    ):
        library.evict(Place("books", ("genre",)), rows(BOOKS, []))
    with pytest.raises(
        UnfitNodes, match="operator more: its key has the unknown column 'x'; expected one of genre, n"
    ):
        library.add([View("more", "counts", ("x",))])
    with pytest.raises(UnfitNodes, match=r"operator more: it reads 'nobody'.*; expected one of books"):
        library.add([View("more", "nobody", ("n",))])
    with pytest.raises(DataflowError, match="the full state of counts by genre, but this state is partial"):
        library.add([View("more", "per_genre", ("n",))])
    with pytest.raises(UnfitNodes, match="two nodes have this id"):
        library.add([Base("books", ())])


def test_an_eviction_that_meets_a_response_on_its_edge_takes_back_what_that_has_filled() -> None:
    """PS-INV-4: they are in order: the key is filled, and then missing, and who has read has been told."""
    library = Library(*COUNTED)
    library.give("books", (1, "poetry"))
    library.drain()
    library.read("per_genre", [("poetry",)])
    below = Edge("counts", "per_genre", 0)
    while not library.on_its_way(below):
        library.step(library.moves()[0])
    library.evict(GROUPS, library.partial[GROUPS].present.all()[0])
    assert [type(each) for each in library.on_its_way(below)][1:] == [Eviction]
    assert contents(library.step(Down(below))[0].rows) == {("poetry", 1): 1}
    assert library.has("per_genre", "poetry")
    library.give("books", (2, "poetry"))
    library.drain()
    assert not library.has("per_genre", "poetry")
    assert library.rows("per_genre", "poetry") == {("poetry", 2): 1}


def test_bases_get_the_indices_that_paths_end_at() -> None:
    """PS-EL-3: of each path the columns by which it asks."""
    library = Library(*TOLD, View("by_karma", "told", ("karma",)))
    indices = {id_: set(library.nodes[id_].indices) for id_ in ("stories", "authors")}
    assert indices == {"stories": {("author",), ("id",)}, "authors": {("author",), ("karma",)}}


def test_a_full_view_is_right() -> None:
    """PS-UQ-6: what is full has everything from the beginning, and reads of it never wait."""
    library = Library(
        BOOKS,
        count("counts", "books", "genre"),
        View("of_size", "counts", ("n",)),
        View("per_genre", "counts", ("genre",)),
    )
    library.give("books", (1, "poetry"), (2, "poetry"), (3, "drama"))
    library.drain()
    assert contents(library.read("of_size", [(2,), (1,)]).rows) == {("poetry", 2): 1, ("drama", 1): 1}
    assert library.rows("per_genre", "drama") == {("drama", 1): 1}
    library.take("books", (2, "poetry"))
    library.drain()
    assert contents(library.read("of_size", [(2,), (1,)]).rows) == {("poetry", 1): 1, ("drama", 1): 1}
    assert library.rows("per_genre", "poetry") == {("poetry", 1): 1}


def test_one_row_for_no_rows() -> None:
    """PS-EL-1: what is counted without groups is there before anything has come."""
    library = Library(BOOKS, count("all", "books"), View("v", "all", ()))
    library.drain()
    assert contents(library.read("v", [()]).rows) == {(0,): 1}
    library.give("books", (1, "poetry"))
    library.drain()
    assert contents(library.read("v", [()]).rows) == {(1,): 1}


def test_what_a_stream_and_a_base_make_is_right() -> None:
    """PS-UQ-6: the rows of a stream come once, and what is made of them has them all; others are asked for as ever."""
    stream = Stream("stories", STORIES.columns)
    library = Library(
        stream, AUTHORS, TOLD[2], View("by_id", "told", ("id",)), View("known", "authors", ("author",))
    )
    library.write("stories", rows(STORIES, [(1, "Elena"), (2, "Talia")]))
    library.give("authors", ("Elena", 5))
    library.drain()
    assert library.rows("by_id", 1, 2) == {("Elena", 1, 5): 1}
    library.give("authors", ("Talia", 7))
    library.drain()
    assert library.rows("by_id", 1, 2) == {("Elena", 1, 5): 1, ("Talia", 2, 7): 1}
    assert library.sent_as("Upquery") == 0
    assert library.rows("known", "Talia") == {("Talia", 7): 1}
    assert library.sent_as("Upquery", Edge("authors", "known", 0)) == 1


def test_what_comes_of_a_stream_is_kept_by_nobody() -> None:
    library = Library(Stream("stories", STORIES.columns))
    with pytest.raises(
        DataflowError, match="the rows of stories were not kept: add the operators that read it"
    ):
        library.add([View("by_id", "stories", ("id",))])


def test_an_output_has_every_row_come_to_it() -> None:
    library = Library(*COUNTED, Output("out", "counts"))
    library.give("books", (1, "poetry"))
    library.drain()
    assert library.sent_as("Data", Edge("counts", "out", 0)) == 1
    assert library.rows("per_genre", "poetry") == {("poetry", 1): 1}
    library.add([Output("later", "books")])
    (message,) = library.on_its_way(Edge("books", "later", 0))
    assert isinstance(message, Data)
    assert contents(message.batch) == {(1, "poetry"): 1}


def test_a_full_view_that_cannot_take_the_rows_so_far_is_not_added() -> None:
    """The graph is as it was, and goes on."""
    library = Library(*COUNTED)
    library.give("books", (1, "crime"))
    library.drain()
    inverse = ProjectOperator(id="inverse", input="books", columns={"q": "100 // (title - 1)"})
    with pytest.raises(DataflowError, match="zero"):
        library.add([inverse, View("by_q", "inverse", ("q",))])
    library.give("books", (2, "crime"))
    assert library.rows("per_genre", "crime") == {("crime", 2): 1}
