"""Columns as ``--schema`` gives them."""

from __future__ import annotations

import click
import pytest

from nebuli.cli.rows.collection_views import columns_from
from topology import Column, DataType
from topology.schema import SQL_NAMES


@pytest.mark.parametrize(("name", "type_"), SQL_NAMES.items())
def test_sql_names_of_types_are_understood_in_any_case(name: str, type_: DataType) -> None:
    assert (
        columns_from(f" n : {name.upper()} ") == columns_from(f"n:{name}") == (Column(name="n", type=type_),)
    )


@pytest.mark.parametrize("name", DataType)
def test_own_names_of_types_are_themselves(name: DataType) -> None:
    assert [each.type for each in columns_from(f"a: {name}, b: {name}")] == [name, name]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "n: decimal(10, 2), m: int64",
            "type of column n: 'decimal\\(10, 2\\)' is not supported yet: use int64",
        ),
        ("n: int65", "as type of n, got 'int65' \\(did you mean 'int64'"),
        ("n: int64, n: string", "duplicate column n"),
        ("n\x1b[31m: int64", r"expected printable characters, got 'n\\x1b\[31m: int64'"),
        ("n", "invalid column 'n'"),
        ("n:", "invalid column 'n:'"),
        ("n: int64,", "invalid column ''"),
    ],
)
def test_what_is_no_column_is_refused(text: str, error: str) -> None:
    with pytest.raises(click.UsageError, match=error):
        columns_from(text)
