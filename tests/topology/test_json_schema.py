"""The shipped JSON Schemas are those of the models, and take what the readers take."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from placement.reading import query_schema
from tests.support.cases import CAPACITIES, cases, topologies
from topology import TopologyError, json_schema, parse_topology

EXAMPLES = Path(__file__).parents[2] / "examples" / "flights"
TOPOLOGY = Draft202012Validator(json.loads(json_schema.FILE.read_text("utf-8")))
QUERY = Draft202012Validator(json.loads(query_schema.FILE.read_text("utf-8")))


def test_the_files_are_those_of_the_models() -> None:
    assert json_schema.FILE.read_text("utf-8") == json_schema.topology_schema(), "run make schemas"
    assert query_schema.FILE.read_text("utf-8") == query_schema.query_schema(), "run make schemas"


def test_the_examples_are_valid() -> None:
    TOPOLOGY.validate(yaml.safe_load((EXAMPLES / "topology.yaml").read_text("utf-8")))
    QUERY.validate(json.loads((EXAMPLES / "query.json").read_text("utf-8")))


@given(topologies(CAPACITIES, 3))
def test_every_topology_is_valid(topology) -> None:
    TOPOLOGY.validate(topology.to_data())


@given(cases())
def test_every_query_is_valid(case) -> None:
    QUERY.validate(json.loads(case[1].model_dump_json()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("nodes", 0, "capacity"), -1),
        (("nodes", 0, "colour"), "red"),
        (("nodes", 0, "physical", 0, "type"), "Csv"),
        (("nodes",), []),
        (("logical", 0, "schema", 0, "type"), "integers"),
        (("nodes", 0, "links", "downstream"), "127.0.0.1:1"),
    ],
)
def test_what_the_reader_refuses_for_its_shape_the_schema_refuses(path: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(yaml.safe_load((EXAMPLES / "topology.yaml").read_text("utf-8")))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not TOPOLOGY.is_valid(data)
    with pytest.raises(TopologyError):
        parse_topology(yaml.safe_dump(data))


@pytest.mark.parametrize(
    "operator", [{"id": "f", "logical": "l"}, {"id": "f", "type": "filter", "input": "s"}]
)
def test_an_operator_needs_its_type_and_its_fields(operator: dict[str, str]) -> None:
    assert not QUERY.is_valid({"operators": [operator]})
