"""The gate's simulations reach what many of them reach."""

from __future__ import annotations

import pytest

from tests.curated import SIMULATORS, Reached, all_of, chosen, cover

SEEDS = [(name, seed) for name, seeds in chosen().items() for seed in seeds]


@pytest.mark.parametrize(("name", "seed"), SEEDS, ids=lambda each: str(each).replace(" ", "-"))
def test_a_chosen_seed_keeps_every_promise(name: str, seed: int) -> None:
    """CH-SEQ-2, CH-SEQ-3, CH-DUR-3, CH-END-4, CH-REP-1, CH-REP-3, ST-COL-1, ST-SH-4, ST-ING-1: or it raises."""
    assert SIMULATORS[name].run(seed)


@pytest.mark.long
@pytest.mark.parametrize("name", SIMULATORS)
def test_the_chosen_seeds_reach_whatever_all_candidates_reach(name: str) -> None:
    """If this fails, `python -m tests.curated` chooses others."""
    run, candidates = SIMULATORS[name]
    kept = chosen()[name]
    reached = {seed: run(seed) for seed in candidates}
    assert all_of({seed: reached[seed] for seed in kept}) == all_of(reached)


def test_a_cover_has_the_fewest_seeds_of_a_small_case() -> None:
    reached: dict[int, Reached] = {
        1: frozenset("ab"),
        2: frozenset("cd"),
        3: frozenset("abc"),
        4: frozenset("d"),
        5: frozenset("ad"),
    }
    assert cover(reached) == [2, 3]
