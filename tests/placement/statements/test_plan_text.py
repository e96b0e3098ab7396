"""Plans as SQL and as JSON: each is read as the same plan, up to the ids of operators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from placement import parse_query, parse_statement
from placement.statements.plan_text import NotInSql, statement_of
from tests.placement.statements.generator import Generator
from tests.placement.statements.odd_tables import TOPOLOGY
from tests.placement.statements.plans import plan
from tests.placement.statements.test_chosen_statements import STATEMENTS
from tests.placement.statements.test_random_statements import topology_of
from tests.support.sizes import seeds
from topology import Topology


def check_round_trips(statement: str, topology: Topology) -> None:
    query = parse_statement(f"INSERT INTO out {statement}", topology)
    printed = statement_of(query, topology)
    assert plan(parse_statement(printed, topology)) == plan(query), printed
    as_json = json.dumps({"operators": [each.model_dump(mode="json") for each in query.operators]})
    assert parse_query(as_json).operators == query.operators


@pytest.mark.parametrize("first", range(0, len(STATEMENTS), 30))
def test_chosen_statements_are_read_again_as_they_are_printed(first: int) -> None:
    for each in STATEMENTS[first : first + 30]:
        check_round_trips(each, TOPOLOGY)


@pytest.mark.parametrize("first", seeds(range(0, 500, 25)))
def test_random_statements_are_read_again_as_they_are_printed(first: int) -> None:
    for seed in range(first, first + 25):
        generator = Generator(seed)
        check_round_trips(generator.statement(), topology_of(generator.schemas))


def test_a_window_has_all_its_settings() -> None:
    settings = "lateness := INTERVAL 5 SECONDS, idle_after := INTERVAL 1 HOUR, late := 'it''s.csv'"
    for call in ("TUMBLE(d, ts, INTERVAL 1 DAY", "HOP(d, ts, INTERVAL 1 HOUR, INTERVAL 1 DAY"):
        check_round_trips(
            f"SELECT ok, count(*) AS n FROM {call}, {settings}) GROUP BY ok, window_end", TOPOLOGY
        )


@pytest.mark.parametrize(
    ("operators", "why"),
    [
        (
            [{"id": "v", "type": "view", "input": "t", "key": ["k"]}],
            "a statement has one sink, but the query has 0",
        ),
        (
            [
                {"id": "v", "type": "view", "input": "t", "key": ["k"]},
                {"id": "o", "type": "sink", "input": "v", "sink": "out"},
            ],
            r"type view \(v\)",
        ),
        (
            [
                {"id": "v", "type": "distinct", "input": "t", "max_state_bytes": 5},
                {"id": "o", "type": "sink", "input": "v", "sink": "out"},
            ],
            r"'max_state_bytes' \(of v\)",
        ),
        (
            [
                {"id": "u", "type": "source", "logical": "u"},
                {"id": "j", "type": "join", "inputs": ["t", "u"], "on": ["k", "g"]},
                {"id": "o", "type": "sink", "input": "j", "sink": "out"},
            ],
            "join j: several inputs have a column n, x, and a statement would rename such columns: give them",
        ),
    ],
)
def test_what_only_a_query_file_can_have_is_refused(operators: list[dict[str, Any]], why: str) -> None:
    query = parse_query(
        json.dumps({"operators": [{"id": "t", "type": "source", "logical": "t"}, *operators]})
    )
    with pytest.raises(NotInSql, match=why):
        statement_of(query, TOPOLOGY)
