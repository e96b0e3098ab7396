"""The differences to DuckDB that the reference lists are those that there are."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from nebuli.dataflow import DataflowError
from nebuli.dataflow.evaluation import compile_expression
from placement.sql.expressions import ExpressionError, parse
from tests.docs.markdown import ROOT, table
from tests.nebuli.dataflow import oracle

PAGE = ROOT / "docs" / "reference" / "query.md"
ROWS = table(PAGE, "Differences to DuckDB")
ONE_ROW = pa.record_batch([pa.array([1])], ["row"])


def here(sql: str) -> str:
    try:
        expression = parse(sql, ())
    except ExpressionError:
        return "refused"
    try:
        (value,) = compile_expression(expression, ONE_ROW.schema)(ONE_ROW).to_pylist()
    except DataflowError:
        return "error"
    return f"`{expression.type}` {oracle.plain(value)}"


def there(sql: str) -> str:
    with duckdb.connect() as connection:
        ((type_, value),) = connection.execute(f"SELECT typeof({sql}), {sql}").fetchall()
    return f"`{type_}` {value}"


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_each_difference_is_as_it_is_said(row: list[str]) -> None:
    expression, theirs, ours = row
    assert (there(expression.strip("`")), here(expression.strip("`"))) == (theirs, ours)
    assert theirs != ours


def test_the_version_is_the_one_that_is_locked() -> None:
    assert f"as in DuckDB {duckdb.__version__}," in PAGE.read_text("utf-8")
