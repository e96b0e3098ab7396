"""Statements that an engineer may write: their columns' names and their rows are DuckDB's, free and in steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from placement import parse_statement
from tests.nebuli.dataflow import oracle
from tests.placement.statements import answering
from tests.placement.statements.odd_tables import TOPOLOGY, tables

STATEMENTS = Path(__file__).with_name("chosen_statements.sql").read_text("utf-8").splitlines()
_AT_ONCE = 20


def numbered(names: list[str]) -> list[str]:
    """The names of columns as DuckDB has them of a subquery, and of a file: each once."""
    found: list[str] = []
    for name in names:
        numbers = (f"{name}_{number}" for number in range(1, len(names) + 1))
        found.append(name if name not in found else next(each for each in numbers if each not in found))
    return found


def mismatch(statement: str, number: int) -> str | None:
    given, others = tables(number), tables(number + 1, 5)
    names, rows = oracle.named(statement, given)
    query = parse_statement(f"INSERT INTO out {statement}", TOPOLOGY)
    random = Random(number)
    for way, (ours, found) in {
        "free": answering.free(query, TOPOLOGY, given, random),
        "in steps": answering.in_steps(query, TOPOLOGY, given, random, others, 1 + number % 2),
    }.items():
        if ours != numbered(names):
            return f"{statement}: {way} {ours}, and {names} in DuckDB"
        if oracle.multiset(found) != oracle.multiset(rows):
            return f"{statement}: {way} {found}, and {rows} in DuckDB"
    return None


@pytest.mark.parametrize("first", range(0, len(STATEMENTS), _AT_ONCE))
def test_chosen_statements_agree_with_duckdb(first: int) -> None:
    found = [mismatch(each, first) for each in STATEMENTS[first : first + _AT_ONCE]]
    assert [each for each in found if each] == []


@pytest.fixture
def few_calls() -> Iterator[None]:
    """Let Python have less than half of its calls within each other."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("few_calls")
@pytest.mark.parametrize(
    ("statement", "operator", "term"),
    [
        ("SELECT k, n FROM t WHERE {}", "OR", "n = {}"),
        ("SELECT k, n FROM t WHERE {}", "AND", "k <> {}"),
        ("SELECT k, count(*) AS c FROM t GROUP BY k HAVING {}", "OR", "k = {}"),
        ("SELECT t.n FROM t JOIN u ON t.k = u.k AND {}", "AND", "t.n + u.k <> {}"),
    ],
)
def test_a_long_condition_is_not_a_deep_one(statement: str, operator: str, term: str) -> None:
    """More terms than Python has calls within each other."""
    terms = map(term.format, range(2, sys.getrecursionlimit() + 100))
    assert mismatch(statement.format(f" {operator} ".join(terms)), 0) is None
