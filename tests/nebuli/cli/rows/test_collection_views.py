"""Columns as ``--schema`` gives them."""

from __future__ import annotations

import click
import pytest

from nebuli.cli.rows.collection_views import columns_from
from topology import Column, DataType


def test_types_have_the_names_that_they_have_in_topology_files() -> None:
    """`tests/topology/test_types.py` has all of them."""
    columns = tuple(
        Column(name=name, type=type_)
        for name, type_ in (("a", DataType.INT64), ("b", DataType.FLOAT64), ("c", DataType.INT64))
    )
    assert columns_from(" a : BIGINT ,b:Double Precision, c: int64") == columns


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
