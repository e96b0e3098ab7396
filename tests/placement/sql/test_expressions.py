"""What expressions may say, the types that they have, and the sentences that refuse the others."""

from __future__ import annotations

import pytest

from placement.sql.expressions import ExpressionError, parse, parse_aggregate
from placement.sql.typed_tree import ColumnRef
from topology import Column, DataType

SCHEMA = tuple(
    Column(name=name, type=DataType(type_))
    for name, type_ in {
        "i8": "int8",
        "i": "int32",
        "n": "int64",
        "u": "uint64",
        "f4": "float32",
        "dep_delay": "float64",
        "s": "string",
        "b": "bool",
        "d": "date",
        "t": "timestamp",
        "raw": "binary",
        "w.temp": "float64",
        "f1.temp": "float64",
        "j.w.wind": "float64",
        "src/0.x": "int64",
    }.items()
)


@pytest.mark.parametrize(
    ("sql", "type_"),
    [
        ("i", "int32"),
        ("i8 + 1", "int8"),
        ("i8 + 1000", "int32"),
        ("i8 + i", "int32"),
        ("i + 1.5", "float64"),
        ("f4 + 1.5", "float32"),
        ("n / 2", "float64"),
        ("f4 / 2", "float32"),
        ("u + 1", "uint64"),
        ("-9223372036854775808", "int64"),
        ("18446744073709551615", "uint64"),
        ("n > dep_delay", "bool"),
        ("t > '2013-01-01'", "bool"),
        ("coalesce(d, t)", "timestamp"),
        ("length(s)", "int64"),
        ("CAST(NULL AS VARCHAR)", "string"),
        ("raw = raw", "bool"),
        ("raw", "binary"),
    ],
)
def test_types(sql: str, type_: str) -> None:
    assert parse(sql, SCHEMA).type == DataType(type_)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("w.temp", "w.temp"),
        ('"w.temp"', "w.temp"),
        ('w."temp"', "w.temp"),
        ("j.w.wind", "j.w.wind"),
        ('"src/0.x"', "src/0.x"),
        ('"src/0".x', "src/0.x"),
    ],
)
def test_a_name_with_dots_is_written_whole_or_in_parts(sql: str, name: str) -> None:
    tree = parse(sql, SCHEMA).tree
    assert isinstance(tree, ColumnRef)
    assert tree.name == name


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ('"JFK" = s', r"unknown column \"JFK\"; known are .*; strings are in single quotes: 'JFK'"),
        ("dep_dely > 15", r'unknown column "dep_dely"; known are i8, .*; did you mean "dep_delay"\?'),
        ("I", r'unknown column "I"; .*; did you mean "i"\?'),
        ("temp", r'"temp" is in more than one input of a join; write "w.temp" or "f1.temp"'),
        ("i > 'x'", r"type mismatch: i > 'x' combines INTEGER with 'x', which is VARCHAR; cast one of them"),
        ("u + i", r"type mismatch: u \+ i combines UBIGINT with i, which is INTEGER"),
        ("i AND b", r"type mismatch: AND needs BOOLEAN, but i is INTEGER"),
        ("upper(i)", r"type mismatch: upper needs VARCHAR, but i is INTEGER"),
        ("sqrt(s)", r"type mismatch: sqrt needs a number, but s is VARCHAR"),
        ("dep_delay // 2", r"DOUBLE, but // .* integers"),
        ("coalesce(i, 'x')", r"COALESCE combines INTEGER with 'x', which is VARCHAR"),
        ("CASE WHEN i THEN 1 END", r"WHEN needs BOOLEAN, but i is INTEGER"),
        (
            "foo(i)",
            r"unknown function foo .did you mean 'floor'",
        ),
        ("log(i)", r"unknown function log;"),
        ("i + (SELECT 1)", r"a subquery is not supported: \(SELECT 1\)"),
        ("i IN (SELECT 1)", r"a subquery is not supported"),
        ("EXISTS (SELECT 1)", r"a subquery is not supported"),
        ("1 + sum(i)", r"SUM\(i\) is an aggregate, but a value of a single row is expected"),
        ("sum(i) OVER ()", r"a window function is not supported"),
        ("i AS x", r"an alias is not supported"),
        ("*", r"\* is not a value; name the columns"),
        ("i; n", r"expected one expression, got 2"),
        ("", r"expected one expression, got 0"),
        ("i +", r"cannot be read as SQL at column 3: "),
        ("i ! 1", r"cannot be read as SQL"),
        ("TRY_CAST(s AS INT)", r"TRY_CAST is not supported: .*; use CAST"),
        ("CAST(i AS DECIMAL(9, 2))", r"the type DECIMAL\(9, 2\) is not supported; known are BIGINT, "),
        ("CAST(dep_delay AS VARCHAR)", r"dep_delay is DOUBLE and cannot be cast to VARCHAR, only to "),
        ("s LIKE s", r"the pattern must be a string constant in s LIKE s"),
        ("s LIKE 'a!%' ESCAPE '!'", r"Escape is not supported"),
        ("substring(s, i)", r"i must be an integer constant"),
        ("substring(s, -1)", r"substring expects a start of 1 or more"),
        ("trim(LEADING 'x' FROM s)", r"not supported in .*: position, expression"),
        ("date_trunc(day, t)", r"this form of date_trunc is not supported; write the unit as a text"),
        ("date_trunc('decade', t)", r"unknown unit decade in .*; known are year, "),
        ("extract(century FROM t)", r"unknown field century in .*; known are year, "),
        ("t + INTERVAL 1 MONTH", r"take a number of weeks, days, hours, minutes or seconds"),
        ("INTERVAL 1 DAY", r"an interval can only be added to or subtracted from a date or timestamp"),
        ("t > 'yesterday'", r"'yesterday' is not a TIMESTAMP; write it like '2013-01-31 18:30:00'"),
        ("t > '0001-01-01 00:00:00+01:00'", r"'0001-01-01 00:00:00\+01:00' is not a TIMESTAMP"),
        ("i IS TRUE", r"i IS TRUE needs BOOLEAN, but i is INTEGER"),
        ("NULL", r"the type of NULL is unknown; cast it"),
        ("NULL = NULL", r"only NULL, whose type is unknown"),
        ("99999999999999999999", r"beyond the range of BIGINT and UBIGINT"),
        ("[i]", r"Array is not supported: \[i\]"),
        ("s COLLATE nocase", r"Collate is not supported"),
    ],
)
def test_refusals_say_what_and_where(sql: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        parse(sql, SCHEMA)
    assert str(caught.value).endswith(f"(in: {sql})")


def test_depth_has_an_end_and_says_so() -> None:
    with pytest.raises(ExpressionError, match="nested too deeply"):
        parse("(" * 3000 + "i" + ")" * 3000, SCHEMA)


@pytest.mark.parametrize(
    ("sql", "function", "argument", "type_"),
    [
        ("count(*)", "count", None, "int64"),
        ("count(s)", "count", "s", "int64"),
        ("sum(i8)", "sum", "i8", "int64"),
        ("sum(f4 * 2)", "sum", "f4 * 2", "float64"),
        ("avg(n)", "avg", "n", "float64"),
        ("min(s)", "min", "s", "string"),
        ('MAX("w.temp")', "max", '"w.temp"', "float64"),
    ],
)
def test_aggregates(sql: str, function: str, argument: str | None, type_: str) -> None:
    call = parse_aggregate(sql, SCHEMA)
    assert (call.function, call.argument and call.argument.sql, call.type) == (
        function,
        argument,
        DataType(type_),
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("i", r"expected one call of count, sum, avg, min or max"),
        ("sum(i) + 1", r"expected one call of .*; to compute with the result, add a project operator"),
        ("sum(i) FILTER (WHERE b)", r"one call of"),
        ("sum(DISTINCT i)", r"sum does not support DISTINCT, only count does: aggregate"),
        ("count(DISTINCT i, f)", r"count takes one argument"),
        ("max(i, 2)", r"max takes one argument"),
        ("sum(s)", r"type mismatch: sum needs a number, but s is VARCHAR"),
        ("sum(sum(i))", r"SUM\(i\) is an aggregate"),
        ("avg(nothing)", r'unknown column "nothing"'),
        ("min(NULL)", r"the type of NULL is unknown"),
    ],
)
def test_refusals_of_aggregates(sql: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse_aggregate(sql, SCHEMA)
