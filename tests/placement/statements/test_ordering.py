"""A SELECT without a sink: by which of its columns rows are sorted, and how many are printed."""

from __future__ import annotations

import pytest

from placement import InvalidQuery, read_statement
from placement.statements.ordering import Ordering, SortKey
from tests.placement.statements.odd_tables import TOPOLOGY


def ordering(statement: str) -> Ordering:
    found = read_statement(statement, TOPOLOGY).ordering
    assert found is not None
    return found


def keys(statement: str) -> list[tuple[int, str]]:
    """The columns, and how each is sorted; nulls are the last unless that is said."""
    said = {
        (False, False): "",
        (True, False): "desc",
        (False, True): "nulls first",
        (True, True): "desc nulls first",
    }
    return [(each.column, said[each.is_descending, each.nulls_first]) for each in ordering(statement).keys]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("k", [(0, "")]),
        ("2 DESC, 1", [(1, "desc"), (0, "")]),
        ("K NULLS FIRST", [(0, "nulls first")]),
        ("m DESC NULLS FIRST, k", [(1, "desc nulls first"), (0, "")]),
        ("ALL DESC", [(0, "desc"), (1, "desc")]),
        ("n + 1", [(1, "")]),
        ("x", [(2, "")]),
        ("x, upper(g) DESC, k", [(2, ""), (3, "desc"), (0, "")]),
    ],
)
def test_rows_are_sorted_by_what_is_selected_and_by_what_is_not(
    order: str, expected: list[tuple[int, str]]
) -> None:
    statement = f"SELECT k, n + 1 AS m FROM t ORDER BY {order}"
    assert keys(statement) == expected
    assert ordering(statement).width == 2


def test_groups_are_sorted_by_aggregates() -> None:
    assert keys("SELECT g FROM t GROUP BY g ORDER BY count(*) DESC, g") == [(1, "desc"), (0, "")]
    assert keys("SELECT g, count(*) AS c FROM t GROUP BY g ORDER BY c") == [(1, "")]
    assert keys("SELECT * FROM t ORDER BY n") == [(4, "")]
    assert keys("SELECT k FROM t UNION ALL SELECT n FROM u ORDER BY k") == [(0, "")]


def test_limits_count_rows() -> None:
    found = ordering("SELECT k FROM t LIMIT 5 OFFSET 2")
    assert (found.limit, found.offset, found.keys, found.needs_all) == (5, 2, (), True)
    assert ordering("SELECT k FROM t") == Ordering(1)
    assert ordering("(SELECT k FROM t) ORDER BY 1").keys == (
        SortKey(0, is_descending=False, nulls_first=False),
    )


def test_what_is_explained_says_so() -> None:
    assert read_statement("EXPLAIN SELECT k FROM t", TOPOLOGY).is_explained
    assert not read_statement("SELECT k AS explain FROM t", TOPOLOGY).is_explained
    assert read_statement("-- why\nexplain INSERT INTO out SELECT k FROM t", TOPOLOGY).ordering is None


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "SELECT k FROM t ORDER BY |3",
            "ORDER BY 3: expected the position of a column in SELECT, from 1 to 1",
        ),
        ("SELECT DISTINCT k FROM t ORDER BY |n", "SELECT DISTINCT can be ordered only by what it selects"),
        (
            "SELECT k FROM t UNION SELECT k FROM u ORDER BY |n",
            "ORDER BY n: n is not a column of the result",
        ),
        ("SELECT k FROM t UNION SELECT k FROM u ORDER BY |k + 1", "for a UNION: name a column of its result"),
        ("SELECT k FROM t LIMIT |n", "expected LIMIT and a whole number"),
        ("SELECT k FROM t ORDER BY |kk", "unknown column 'kk'"),
        (
            "SELECT k FROM (SELECT k FROM t ORDER BY |k)",
            "ORDER BY is not supported here: leave it out; in nebuli run, the outermost",
        ),
        ("EXPLAIN |ANALYZE SELECT k FROM t", "EXPLAIN ANALYZE is not supported"),
    ],
)
def test_what_cannot_be_sorted_is_pointed_at(statement: str, why: str) -> None:
    with pytest.raises(InvalidQuery) as error:
        read_statement(statement.replace("|", "", 1), TOPOLOGY)
    (mistake,) = error.value.mistakes
    assert why in mistake.message
    assert mistake.column == statement.index("|") + 1
