"""The checker, by histories whose anomalies are those of Adya's definitions and of Elle's paper, and by brute force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import history as histories
from .checker import check
from .history import Append, Operation, Outcome, Read, Transaction

X, Y = 1, 2


def a(key: int, element: int) -> Append:
    return Append(key, element)


def r(key: int, *elements: int) -> Read:
    return Read(key, elements)


def t(
    name: str,
    *operations: Operation,
    at: tuple[int, int | None] = (0, 100),
    outcome: Outcome = "ok",
) -> Transaction:
    """A transaction; unless it is said otherwise, all are at the same time."""
    return Transaction(name, outcome, at[0], at[1], operations)


def kinds(*history: Transaction) -> set[str]:
    return {each.kind for each in check(history)}


# -- what is in single reads


def test_a_clean_history_has_nothing() -> None:
    """A serial one; one whose transactions overlap, and whose order is not that of their beginnings."""
    assert (
        kinds(
            t("T1", a(X, 1), at=(0, 1)), t("T2", r(X, 1), a(X, 2), at=(2, 3)), t("T3", r(X, 1, 2), at=(4, 5))
        )
        == set()
    )
    assert kinds(t("T1", r(X, 1, 2)), t("T2", r(X, 1), a(X, 2), r(X, 1, 2)), t("T3", r(X), a(X, 1))) == set()


def test_g1a_an_aborted_read() -> None:
    """Adya's G1a: what was read is of a transaction that has failed."""
    history = [t("T1", a(X, 1), outcome="fail"), t("T2", r(X, 1))]
    assert kinds(*history) == {"G1a, aborted read"}
    assert kinds(replace(history[0], outcome="info", ended=None), history[1]) == set()  # it has happened


def test_g1b_an_intermediate_read() -> None:
    """Adya's G1b: a version that its transaction has overwritten."""
    assert kinds(t("T1", a(X, 1), a(X, 2)), t("T2", r(X, 1))) == {"G1b, intermediate read"}
    assert kinds(t("T1", a(X, 1), r(X, 1), a(X, 2)), t("T2", r(X, 1, 2))) == set()


def test_a_transaction_that_does_not_see_what_it_did() -> None:
    assert "internal" in kinds(t("T1", a(X, 1), r(X)))
    assert "internal" in kinds(t("T1", a(X, 1)), t("T2", a(X, 2), r(X, 2, 1)))
    assert "internal" in kinds(t("T1", a(X, 1)), t("T2", r(X), r(X, 1)))
    assert "internal" in kinds(t("T1", r(X), a(X, 1), a(X, 2), r(X, 1)))
    assert kinds(t("T1", a(X, 1)), t("T2", a(X, 2), r(X, 1, 2), a(X, 3), r(X, 1, 2, 3))) == set()


def test_an_element_that_stands_twice_in_a_list() -> None:
    assert "duplicate element" in kinds(t("T1", a(X, 1)), t("T2", r(X, 1, 1)))


def test_an_element_from_nowhere() -> None:
    assert "garbage" in kinds(t("T1", a(X, 1)), t("T2", r(X, 7)))
    assert "garbage" in kinds(t("T1", a(Y, 1)), t("T2", r(X, 1)))


def test_orders_that_do_not_fit() -> None:
    """Elle: one of two reads of a list has to be the other's beginning."""
    history = [t("T1", a(X, 1)), t("T2", a(X, 2)), t("T3", r(X, 1, 2)), t("T4", r(X, 2))]
    assert kinds(*history) == {"incompatible order"}


def test_an_append_that_was_acknowledged_and_is_lost() -> None:
    history = [t("T1", a(X, 1), at=(0, 1)), t("T2", r(X), at=(2, 3))]
    assert "lost append" in kinds(*history)
    assert kinds(replace(history[0], outcome="info", ended=None), history[1]) == set()  # nobody knows
    assert kinds(replace(history[0], ended=2), history[1]) == set()  # it may have come later
    assert "lost append" in kinds(t("T0", a(X, 9), at=(0, 1)), *history, t("T3", r(X, 9), at=(4, 5)))


# -- cycles


def test_g0_a_write_cycle() -> None:
    """Adya's G0: two transactions append to two keys, in another order in each."""
    history = [t("T1", a(X, 1), a(Y, 1)), t("T2", a(X, 2), a(Y, 2)), t("T3", r(X, 1, 2)), t("T4", r(Y, 2, 1))]
    (found,) = check(history)
    assert found.kind == "G0"
    assert found.text == (
        "a cycle of 2 transactions:\n"
        "    T1 [append 1 1, append 2 1]\n"
        "        appended 1 to 1 before T2 appended 2 (ww)\n"
        "    T2 [append 1 2, append 2 2]\n"
        "        appended 2 to 2 before T1 appended 1 (ww)"
    )


def test_g1c_a_circular_flow() -> None:
    """Adya's G1c: each of two has read what the other has appended."""
    assert kinds(t("T1", a(X, 1), r(Y, 1)), t("T2", a(Y, 1), r(X, 1))) == {"G1c"}


def test_g_single_a_read_of_two_moments() -> None:
    """Read skew: T2 has T1's append to X, and lacks its append to Y."""
    assert kinds(t("T1", a(X, 1), a(Y, 1)), t("T2", r(X, 1), r(Y)), t("T3", r(Y, 1))) == {"G-single"}


def test_g_single_a_lost_update() -> None:
    """Both have read the same, and appended to it."""
    history = [t("T1", r(X), a(X, 1)), t("T2", r(X), a(X, 2)), t("T3", r(X, 1, 2))]
    assert kinds(*history) == {"G-single"}
    assert kinds(*history[:2]) == {"G2"}  # nobody has read which of both was first: neither is possible


def test_g2_a_write_skew() -> None:
    """Each lacks what the other has appended; without reads of it, too, since both were acknowledged."""
    history = [t("T1", r(X), a(Y, 1)), t("T2", r(Y), a(X, 1))]
    assert kinds(*history, t("T3", r(X, 1), r(Y, 1))) == {"G2"}
    assert kinds(*history) == {"G2"}


def test_real_time() -> None:
    """A read of what was before a transaction that had ended; serializable, and not strictly so."""
    history = [t("T1", a(X, 1), at=(0, 1)), t("T2", r(X), at=(2, 3)), t("T3", r(X, 1), at=(4, 5))]
    assert kinds(*history) == {"G-single, real time"}
    early = replace(history[1], began=0)
    assert kinds(history[0], early, history[2]) == set()


def test_real_time_between_reads() -> None:
    """The later one has read less; who appended was told nothing. Both ways round through several transactions."""
    unknown = t("T1", a(X, 1), at=(0, None), outcome="info")
    assert kinds(unknown, t("T2", r(X, 1), at=(1, 2)), t("T3", r(X), at=(3, 4))) == {"G-single, real time"}
    between = [t(f"B{number}", r(Y), at=(3 + number, 4 + number)) for number in range(5)]
    assert kinds(unknown, t("T2", r(X, 1), at=(1, 2)), *between, t("T3", r(X), at=(20, 21))) == {
        "G-single, real time"
    }


def test_two_appends_that_had_ended_one_before_the_other() -> None:
    history = [t("T1", a(X, 1), at=(0, 1)), t("T2", a(X, 2), at=(2, 3)), t("T3", r(X, 2, 1), at=(4, 5))]
    assert kinds(*history) == {"G0, real time"}


def test_what_one_of_its_elements_shows_has_happened_as_a_whole() -> None:
    """T1 was told nothing; its append to X was read, and a later read of Y lacks the other."""
    unknown = t("T1", a(X, 1), a(Y, 1), at=(0, None), outcome="info")
    assert kinds(unknown, t("T2", r(X, 1), at=(1, 2)), t("T3", r(Y), at=(3, 4))) == {"G-single, real time"}
    assert kinds(unknown, t("T3", r(Y), at=(3, 4))) == set()


def test_a_history_in_which_elements_are_not_unique_shows_nothing() -> None:
    with pytest.raises(ValueError, match="append the same element"):
        check([t("T1", a(X, 1)), t("T2", a(X, 1))])
    with pytest.raises(ValueError, match="appends an element twice"):
        check([t("T1", a(X, 1), a(X, 1))])


def test_a_kept_history_is_the_same(tmp_path: Path) -> None:
    history = [
        t("T1", a(X, 1), Read(X), outcome="info", at=(0, None)),
        t("T2", r(X, 1), r(Y), at=(3, 1 << 60)),
    ]
    histories.write(history, tmp_path / "h")
    assert histories.read(tmp_path / "h") == history


# -- against the definition: a serial order that explains it


def performed(
    transaction: Transaction, lists: dict[int, tuple[int, ...]]
) -> tuple[dict[int, tuple[int, ...]], tuple[Operation, ...]]:
    """The lists after it, and what it reads."""
    lists = dict(lists)
    done: list[Operation] = []
    for each in transaction.operations:
        if isinstance(each, Append):
            lists[each.key] = (*lists.get(each.key, ()), each.element)
            done.append(each)
        else:
            done.append(Read(each.key, lists.get(each.key, ())))
    return lists, tuple(done)


def explained(order: Sequence[Transaction]) -> bool:
    """Whether this serial order gives all reads."""
    lists: dict[int, tuple[int, ...]] = {}
    for each in order:
        lists, done = performed(each, lists)
        if each.outcome == "ok" and done != each.operations:
            return False
    return True


def is_strict(order: Sequence[Transaction]) -> bool:
    """Whether nothing stands before what had ended when it began."""
    return not any(
        later.ended is not None and later.ended < earlier.began
        for place, earlier in enumerate(order)
        for later in order[place + 1 :]
    )


def is_strictly_serializable(history: Sequence[Transaction]) -> bool:
    """By the definition: what failed has not happened, what nobody knows has or has not."""
    known = [each for each in history if each.outcome == "ok"]
    unknown = [each for each in history if each.outcome == "info"]
    return any(
        is_strict(order) and explained(order)
        for chosen in range(1 << len(unknown))
        for order in permutations(known + [each for bit, each in enumerate(unknown) if chosen >> bit & 1])
    )


@st.composite
def serial(draw: st.DrawFn, most: int) -> list[Transaction]:
    """What a store that does one after the other tells clients whose transactions overlap.

    Each happens at a moment of its own, between its beginning and its end.
    """
    elements = count(1)
    lists: dict[int, tuple[int, ...]] = defaultdict(tuple)
    history = []
    for number in range(draw(st.integers(1, most))):
        moment = 10 * number
        kinds_ = draw(st.lists(st.tuples(st.booleans(), st.sampled_from([X, Y])), min_size=1, max_size=3))
        asked = tuple(Append(key, next(elements)) if is_append else Read(key) for is_append, key in kinds_)
        began, ended = moment - draw(st.integers(1, 40)), moment + draw(st.integers(1, 40))
        outcome = draw(st.sampled_from(["ok", "ok", "ok", "fail", "info"]))
        transaction = Transaction(f"T{number}", "ok", began, ended, asked)
        after, done = performed(transaction, lists)
        if outcome == "ok":
            lists, transaction = after, replace(transaction, operations=done)
        elif outcome == "info":
            lists = after if draw(st.booleans()) else lists
            transaction = replace(transaction, outcome="info", ended=None)
        else:
            transaction = replace(transaction, outcome="fail")
        history.append(transaction)
    return history


@given(serial(30), st.randoms())
def test_a_serial_execution_passes_whatever_overlaps(history: list[Transaction], random: Random) -> None:
    random.shuffle(history)
    assert check(history) == []


def disturbed(draw: st.DrawFn, history: Sequence[Transaction]) -> Iterator[Transaction]:
    """The same with some reads, moments and outcomes changed; and a last one, which reads all."""
    for each in history:
        operations = list(each.operations)
        for place, operation in enumerate(operations):
            if isinstance(operation, Read) and operation.elements and draw(st.integers(0, 3)) == 0:
                length = draw(st.integers(0, len(operation.elements)))
                operations[place] = Read(operation.key, operation.elements[:length])
        moved = draw(st.sampled_from([0, 0, 0, -50, 50]))
        ended = None if each.ended is None else each.ended + moved
        yield replace(each, began=each.began + moved, ended=ended, operations=tuple(operations))


@st.composite
def doubtful(draw: st.DrawFn) -> list[Transaction]:
    """Histories of which some are strictly serializable, and others not. The last transaction reads all."""
    history = list(disturbed(draw, draw(serial(5))))
    lists: dict[int, tuple[int, ...]] = {}
    for each in draw(st.permutations(history)) if draw(st.integers(0, 3)) == 0 else history:
        if each.outcome != "fail":
            lists, _ = performed(each, lists)
    last = Transaction("last", "ok", 1000, 1001, (Read(X, lists.get(X, ())), Read(Y, lists.get(Y, ()))))
    return [*history, last]


@given(doubtful())
def test_it_finds_something_where_no_serial_order_explains_it_and_only_there(
    history: list[Transaction],
) -> None:
    """Where the last one has read all lists, an order of versions is known, and the checker misses nothing."""
    assert (check(history) == []) == is_strictly_serializable(history)


@given(doubtful())
def test_it_never_finds_anything_where_a_serial_order_explains_it(history: list[Transaction]) -> None:
    """Where nobody has read the lists in the end, the more so."""
    if is_strictly_serializable(history[:-1]):
        assert check(history[:-1]) == []
