"""Parts that several operators read, in a query that runs free: repeated over files and generators, else refused."""

from __future__ import annotations

import pytest

from placement import MultipleReaders, Query, check, check_stepped, decompose, parse_statement, place
from placement.checking import repeated_inputs
from topology import Topology, parse_topology

TWICE = """
WITH c AS (SELECT k, n FROM t WHERE n > 0), m AS (SELECT max(n) AS n FROM c)
INSERT INTO out SELECT c.k FROM c JOIN m ON c.n = m.n
"""


def topology(physical: str) -> Topology:
    return parse_topology(
        f"""
logical: [{{name: t, schema: [{{name: k, type: BIGINT}}, {{name: n, type: BIGINT}}]}}]
nodes:
  - address: 127.0.0.1:27594
    physical: [{{logical: t, {physical}}}]
    channels: {{fault: {{retry: 60}}}}
    sinks: [{{name: out, type: CSV, path: out.csv, mode: final}}]
"""
    )


def query(model: Topology, text: str = TWICE) -> Query:
    return parse_statement(text, model, file="twice.sql")


@pytest.mark.parametrize(
    "physical", ["type: CSV, path: t.csv", "type: Parquet, path: t.parquet", "type: Generator"]
)
def test_files_and_generators_are_read_for_each_reader(physical: str) -> None:
    """In steps once."""
    model = topology(physical)
    plan = check(query(model), model)
    assert [each.type for each in plan.operators.values()].count("source") == 2
    assert [each.id for each in check_stepped(query(model), model).inputs] == ["t"]
    assert len(decompose(place(query(model), model)).fragments) == 1


def test_a_source_that_is_read_once_is_refused_by_its_name() -> None:
    model = topology("type: TCP, address: '127.0.0.1:27595'")
    with pytest.raises(MultipleReaders) as error:
        check(query(model), model)
    message, *_ = str(error.value).splitlines()
    assert message.startswith("twice.sql:")
    assert "is already read by" in message
    assert "which can be read only once: run it in steps" in message


def test_parts_that_double_at_each_level_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_inputs, "MAX_OPERATORS", 100)
    levels = ", ".join(
        f"c{number} AS (SELECT k FROM c{number - 1} UNION ALL SELECT k FROM c{number - 1})"
        for number in range(1, 8)
    )
    model = topology("type: CSV, path: t.csv")
    text = f"WITH c0 AS (SELECT k FROM t), {levels} INSERT INTO out SELECT k FROM c7"
    with pytest.raises(MultipleReaders, match="repeated for each of its readers, the query has more than"):
        check(query(model, text), model)
    assert len([*check_stepped(query(model, text), model).inputs]) == 1


def test_a_repeated_operator_has_the_policies_of_the_one_that_it_repeats() -> None:
    model = topology("type: CSV, path: t.csv")
    given = query(model)
    data = given.model_dump(mode="json")
    data["channels"] = {"of": {"t": {"fault": {"retry": 5}}}}
    plan = check(Query.model_validate(data), model)
    sources = [each.id for each in plan.operators.values() if each.type == "source"]
    assert len(sources) == 2
    for each in sources:
        fault = plan.policies.at("127.0.0.1:27594", each).fault
        assert fault is not None
        assert fault.retry == 5
