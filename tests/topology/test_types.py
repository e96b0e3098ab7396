"""Types of columns: Arrow's names, and what SQL calls them."""

from __future__ import annotations

import duckdb
import pytest

from nebuli.dataflow.types import arrow_type
from topology import Column, DataType, TopologyError, parse_topology
from topology.schema import SQL_NAMES

DOCUMENT = "logical: [{name: l, schema: [{name: a, type: %s}]}]\nnodes: [{address: 'n:1'}]"


@pytest.mark.parametrize("name", SQL_NAMES)
def test_a_name_of_sql_is_the_type_that_it_has_in_duckdb(name: str) -> None:
    sql = {"timestamp": "timestamptz", "uint": "uinteger"}.get(name, name)  # a timestamp is an instant here
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        (field,) = connection.sql(f"SELECT CAST(NULL AS {sql}) AS a").to_arrow_table().schema
    for spelled in (name.lower(), name.upper(), name.title()):
        (logical,) = parse_topology(DOCUMENT % f"'{spelled}'").logical
        assert arrow_type(logical.columns[0].type) == field.type


@pytest.mark.parametrize("type_", DataType)
def test_names_of_arrow_stay_what_they_are(type_: DataType) -> None:
    assert Column(name="a", type=type_) == Column.model_validate({"name": "a", "type": type_.value})


@pytest.mark.parametrize("name", ["decimal", "DECIMAL(10, 2)", "numeric(3)", "Numeric"])
def test_a_decimal_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(
        TopologyError,
        match=r"is not supported yet: use int64 in the smallest unit, such as cents, or float64",
    ):
        parse_topology(DOCUMENT % f"'{name}'")


def test_eight_bytes_are_not_taken_for_eight_bits() -> None:
    with pytest.raises(TopologyError, match=r"expected one of bool, int8, .* got 'INT8'"):
        parse_topology(DOCUMENT % "INT8")
