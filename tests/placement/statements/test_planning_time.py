"""A statement of many operators, or of a long expression, is planned in a time that its reader does not notice."""

from __future__ import annotations

import sys
import time

import pytest
import sqlglot

from placement import check, parse_statement, place_bound
from tests.placement.statements.odd_tables import TOPOLOGY

_MOST = 10.5
"""How many times the CPU time of sqlglot's parser: 0.1 s where that takes 9.5 ms, as on a core of an AMD EPYC."""


def statement(queries: int) -> str:
    """Queries that each join two sources, with filters on both and on groups of what comes of it, and their union."""
    named = [
        f"c{number} AS (SELECT a.k, upper(a.g) AS g, sum(b.n + {number}) AS s FROM t AS a JOIN u AS b ON a.k = b.k "
        f"WHERE a.n > {number} AND b.x < {number}.5 GROUP BY a.k, upper(a.g) HAVING count(*) > 1)"
        for number in range(queries)
    ]
    selected = [f"SELECT k, g, s FROM c{number} WHERE s > {number}" for number in range(queries)]
    return f"WITH {', '.join(named)} INSERT INTO out {' UNION ALL '.join(selected)}"


@pytest.mark.timed
def test_a_statement_of_a_hundred_operators_takes_less_than_a_tenth_of_a_second() -> None:
    """The best of some rounds, the first of which imports what places; each has numbers that no other one had."""
    taken, parsed = [], []
    for round_ in range(12):
        text = statement(9).replace("+ ", f"+ 1{round_}")
        begin = time.process_time()
        sqlglot.parse(text, dialect="duckdb")
        parsed.append(time.process_time() - begin)
        begin = time.process_time()
        query = parse_statement(text, TOPOLOGY)
        place_bound(check(query, TOPOLOGY), TOPOLOGY)
        taken.append(time.process_time() - begin)
        assert len(query.operators) >= 100
    assert min(taken) < _MOST * min(parsed), (taken, parsed)


def calls_to_plan(terms: int, operator: str) -> int:
    """How many functions are called to plan a statement with a chain of operators."""
    called = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal called
        called += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        query = parse_statement(
            f"INSERT INTO out SELECT {operator.join(['n'] * terms)} AS x FROM t", TOPOLOGY
        )
        place_bound(check(query, TOPOLOGY), TOPOLOGY)
    finally:
        sys.setprofile(before)
    return called


@pytest.mark.parametrize("operator", ["+", "*", " // "])
def test_the_work_to_plan_a_chain_of_operators_grows_as_its_length(operator: str) -> None:
    """Of four times the length: sixteen times the calls, if each operator looked at all that it is applied to."""
    calls_to_plan(2, operator)  # imports what plans
    assert calls_to_plan(400, operator) < 6 * calls_to_plan(100, operator)
