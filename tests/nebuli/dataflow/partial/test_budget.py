"""How much partial state there may be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nebuli.dataflow import hashing
from nebuli.dataflow.partial import (
    Budget,
    PartialGraph,
    Pick,
    Place,
    View,
    ViewBudget,
    at_random,
    least_recently_used,
)
from nebuli.dataflow.partial.key_sets import tuples_of
from tests.nebuli.dataflow.partial.library import BOOKS, Library, count
from tests.nebuli.dataflow.partial.shadowed import Shadowed
from tests.nebuli.dataflow.partial.shapes import SHAPES, run
from tests.nebuli.dataflow.partial.test_partial_stories import TOLD

MEGABYTE = 1_000_000


@pytest.mark.long
@pytest.mark.parametrize(
    "pick", [least_recently_used, at_random(1)], ids=["least recently used", "at random"]
)
def test_state_stays_within_its_budget_and_reads_are_right(pick: Pick) -> None:
    """PS-EV-2: of four megabytes one may be kept: never is it more than a tenth above while reads and writes go on."""
    library = Library(BOOKS, count("c", "books", "genre", "title"), View("v", "c", ("genre",)), *TOLD)
    library.give("books", *((number, f"genre{number % 10_000}") for number in range(40_000)))
    library.give("stories", *((number, f"author{number}") for number in range(10_000)))
    library.give("authors", *((f"author{number}", number) for number in range(10_000)))
    library.drain()
    budget = Budget(MEGABYTE, {view: ViewBudget(pick=pick) for view in ("v", "by_id")})
    draw, gone, held = random.Random(2), 0, list[int]()
    for turn in range(60):
        genres = [draw.randrange(10_000) for _ in range(300)]
        right = {(f"genre{n}", n + more, 1): 1 for n in genres for more in range(0, 40_000, 10_000)}
        assert library.rows("v", *(f"genre{number}" for number in set(genres))) == right
        stories = {draw.randrange(10_000) for _ in range(100)}
        assert library.rows("by_id", *stories) == {
            (f"author{number}", number, number): 1 for number in stories
        }
        gone += budget.enforce(library)
        held.append(library.partial_bytes)
        library.drain()
        if turn % 10 == 0:
            library.give("stories", (turn, "nobody"))
            library.take("stories", (turn, "nobody"))
    assert max(held) <= 1.1 * MEGABYTE
    assert max(held) > 0.5 * MEGABYTE
    assert gone > 1000


def test_many_keys_that_have_gone_take_nothing_from_those_that_come() -> None:
    """PS-EV-2: what was kept of ten thousand keys is given back, and a few are hits again within a small budget."""
    library = Library(BOOKS, count("c", "books", "genre"), View("v", "c", ("genre",)))
    library.rows("v", *(f"genre{number}" for number in range(10_000)))
    budget = Budget(20_000)
    budget.enforce(library)
    library.drain()
    few = [(f"genre{number}",) for number in range(20)]
    library.read("v", few)
    library.drain()
    budget.enforce(library)
    library.drain()
    assert not library.read("v", few).missing.num_rows
    assert library.partial_bytes <= 20_000


def test_what_was_used_last_stays() -> None:
    """PS-EV-2: the key that is read all the time is the last to go; at random any may."""
    library = Library(BOOKS, count("c", "books", "genre"), View("v", "c", ("genre",)))
    library.give("books", *((number, f"genre{number}") for number in range(400)))
    library.drain()
    library.rows("v", "genre0")
    for number in range(1, 400):
        library.rows("v", f"genre{number}")
        library.read("v", [("genre0",)])
    library.drain()
    keys = library.partial[library.nodes["v"].place].present  # type: ignore[attr-defined]
    oldest = set(least_recently_used(keys, 200).column(0).to_pylist())
    assert oldest == {f"genre{number}" for number in range(1, 201)}
    assert len(set(at_random(0)(keys, 200).column(0).to_pylist()) - oldest) > 50


def test_what_is_read_below_is_not_forgotten_above() -> None:
    """PS-EV-2: reads of a view come no further than the view; the groups that it was filled from are in use too."""
    library = Library(BOOKS, count("c", "books", "genre"), View("v", "c", ("genre",)))
    library.give("books", *((number, f"genre{number}") for number in range(400)))
    library.drain()
    library.rows("v", *(f"genre{number}" for number in range(400)))
    for number in range(0, 400, 2):
        library.read("v", [(f"genre{number}",)])
    assert Budget(int(library.partial_bytes * 0.9)).enforce(library) < 200
    library.drain()
    assert all(library.has("v", f"genre{number}") for number in range(0, 400, 2))
    assert not all(library.has("v", f"genre{number}") for number in range(1, 400, 2))


def test_a_budget_of_nothing_leaves_no_key() -> None:
    library = Library(*TOLD)
    library.give("stories", (7, "Elena"))
    library.give("authors", ("Elena", 3))
    library.rows("by_id", 7)
    assert Budget(0).enforce(library) == 3
    library.drain()
    assert {len(rows.present) for rows in library.partial.values()} == {0}
    assert library.rows("by_id", 7) == {("Elena", 7, 3): 1}


def present(library: PartialGraph) -> dict[Place, set[tuple[Any, ...]]]:
    return {place: set(tuples_of(rows.present.all()[0])) for place, rows in library.partial.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "pick", [least_recently_used, at_random(1)], ids=["least recently used", "at random"]
)
def test_a_budget_of_one_view_takes_no_keys_but_its_own(pick: Pick, seed: int) -> None:
    """PS-EV-2: it holds, reads of it are right, and whatever others have, above or beside it, they keep."""
    library = Library(
        BOOKS,
        count("c", "books", "genre"),
        View("small", "c", ("genre",)),
        View("beside", "c", ("genre",)),
        View("below", "small", ("genre",)),
        View("other", "books", ("title",)),
    )
    library.give("books", *((number, f"genre{number % 2000}") for number in range(4000)))
    library.drain()
    small, draw = library.nodes["small"], random.Random(seed)
    (of_small,) = small.kept
    max_bytes = draw.randrange(10_000, 30_000)
    budget, gone, held = Budget(1 << 30, {"small": ViewBudget(max_bytes, pick)}), 0, []
    for _ in range(40):
        for view in draw.sample(["small", "small", "beside", "below", "other"], 2):
            numbers = {draw.randrange(2000) for _ in range(100)}
            if view == "other":
                assert library.rows(view, *numbers) == {(number, f"genre{number}"): 1 for number in numbers}
            else:
                right = {(f"genre{number}", 2): 1 for number in numbers}
                assert library.rows(view, *(f"genre{number}" for number in numbers)) == right
        before = present(library)
        gone += budget.enforce(library)
        library.drain()
        after = present(library)
        assert after.pop(of_small) <= before.pop(of_small)
        assert after == before
        held.append(small.state_bytes)
    assert gone > 200
    assert max_bytes / 2 < max(held) <= 1.1 * max_bytes


def test_of_views_that_say_different_things_each_gets_what_it_says() -> None:
    """PS-EV-2: and where all together hold too much, others' keys go as well."""
    library = Library(
        BOOKS, count("c", "books", "genre"), *(View(name, "c", ("genre",)) for name in ("a", "b", "free"))
    )
    genres = [f"genre{number}" for number in range(2000)]
    said = {"a": ViewBudget(20_000), "b": ViewBudget(60_000, at_random(1)), "free": ViewBudget()}
    for max_bytes in (1 << 30, 100_000):
        for view in said:
            library.rows(view, *genres)
        Budget(max_bytes, said).enforce(library)
        library.drain()
        held = {view: library.nodes[view].state_bytes for view in said}
        assert held["a"] <= 22_000
        assert held["b"] <= 66_000
        is_enough = max_bytes > MEGABYTE
        assert all(library.has("free", genre) for genre in genres) is is_enough
        assert not is_enough or (held["a"] > 5_000 and held["b"] > 20_000)
        assert library.partial_bytes <= 1.1 * max_bytes
    assert len(library.partial) == 4


@pytest.mark.parametrize("others", ["nobody", "one that says the same", "one that says another thing"])
def test_which_keys_go_is_said_by_the_views_that_are_made_of_a_place(others: str) -> None:
    """PS-EV-2: without a budget of their own, too; where they do not agree the least recently used go."""
    any_ = at_random(1)
    said = {"v": ViewBudget(pick=any_)}
    if others != "nobody":
        said["w"] = ViewBudget(pick=any_ if "same" in others else least_recently_used)
    library = Library(BOOKS, count("c", "books", "genre"), *(View(name, "c", ("genre",)) for name in said))
    genres = [f"genre{number:03}" for number in range(400)]
    for genre in genres:
        for view in said:
            library.rows(view, genre)
    groups = library.nodes["c"]
    (of_groups,) = groups.kept
    while len(present(library)[of_groups]) > 300:
        Budget(int(library.partial_bytes * 0.95), said).enforce(library)  # as keys below go, too
        library.drain()
    oldest = sum(library.has("c", genre) for genre in genres[:100])
    if others == "one that says another thing":
        assert oldest <= 10
    else:
        assert 40 < oldest < 90


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_evictions_for_views_keep_all_invariants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the views' own keys goes, at any moment, and whatever is on its way."""
    for each in ("_BATCH_BYTES", "_COLUMN_BYTES"):
        monkeypatch.setattr(hashing, each, 0)
    gone = 0

    class Small(Shadowed):
        """Its views lose their keys, one after the other."""

        _steps = 0

        def step(self, move):  # type: ignore[no-untyped-def, override]
            nonlocal gone
            filled = super().step(move)
            self._steps += 1
            views = [id_ for id_, node in self.plan.nodes.items() if isinstance(node, View)]
            view = views[self._steps % len(views)]
            before = present(self)
            now = Budget(1 << 30, {view: ViewBudget(1, at_random(self._steps))}).enforce(self)
            changed = {place.node for place, keys in present(self).items() if keys != before[place]}
            assert changed == ({view} if now else set())
            gone += now
            return filled

    for seed in range(4):
        run(SHAPES[name], seed, graph=Small)
    of_views = {node.id for node in SHAPES[name] if isinstance(node, View)}
    assert (gone > 0) == any(place.node in of_views for place in Small(SHAPES[name]).partial)


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_evictions_by_a_budget_keep_all_invariants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("_BATCH_BYTES", "_COLUMN_BYTES"):
        monkeypatch.setattr(hashing, each, 0)  # else the budget would be what one read takes
    gone = 0

    class Tight(Shadowed):
        """Loses a fifth now and then: not for ever, as a read may need all that there is room for."""

        def step(self, move):  # type: ignore[no-untyped-def, override]
            nonlocal gone
            filled = super().step(move)
            self._steps += 1
            if self._steps % 12 == 0 and self._steps < 600 and self.partial_bytes > 500:
                gone += Budget(self.partial_bytes * 4 // 5).enforce(self)
            return filled

        _steps = 0

    for seed in range(4):
        run(SHAPES[name], seed, graph=Tight)
    assert gone
