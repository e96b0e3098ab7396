"""Statements: the operators that they become, and what is said of those that mean nothing here, and where."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from placement import InvalidQuery, check, parse_query, parse_statement, read_statement
from placement.statements.reserved_words import RESERVED_WORDS
from tests.placement.statements import odd_tables
from tests.placement.statements.odd_tables import TOPOLOGY
from tests.placement.statements.plans import plan


def operators(statement: str) -> list[dict[str, Any]]:
    query = parse_statement(f"INSERT INTO out {statement}", TOPOLOGY)
    return [each.model_dump(exclude_defaults=True) | {"type": each.type} for each in query.operators]


def test_a_statement_is_the_query_that_is_written_in_json() -> None:
    """Filters stand in front of a join, and each side has the columns that are read of it."""
    found = parse_statement(
        "INSERT INTO out SELECT a.g, b.n AS other FROM t AS a JOIN u AS b ON a.k = b.n "
        "WHERE a.x > 0 AND b.g LIKE 'a%' AND a.n < b.k",
        TOPOLOGY,
    )
    json = parse_query(
        """
        {"operators": [
          {"id": "a", "type": "source", "logical": "t"},
          {"id": "positive", "type": "filter", "input": "a", "predicate": "x > 0"},
          {"id": "left", "type": "project", "input": "positive", "columns": {"k": "k", "g": "g", "n": "n"}},
          {"id": "b", "type": "source", "logical": "u"},
          {"id": "matching", "type": "filter", "input": "b", "predicate": "g LIKE 'a%'"},
          {"id": "right", "type": "project", "input": "matching", "columns": {"k": "n", "k_2": "k"}},
          {"id": "join", "type": "join", "inputs": ["left", "right"], "on": ["k"]},
          {"id": "less", "type": "filter", "input": "join", "predicate": "n < k_2"},
          {"id": "select", "type": "project", "input": "less", "columns": {"g": "g", "other": "k"}},
          {"id": "out", "type": "sink", "input": "select", "sink": "out"}
        ]}
        """
    )
    assert plan(found) == plan(json)


def test_what_is_grouped_is_computed_once_and_named_as_it_is_selected() -> None:
    found = operators(
        "SELECT upper(g) AS shop, count(*) FILTER (WHERE n > 1) AS many, sum(n) / count(*) AS mean FROM t "
        "GROUP BY shop HAVING count(*) > 2"
    )
    assert [(each["type"], each["id"]) for each in found] == [
        ("source", "t"),
        ("project", "keys"),
        ("aggregate", "aggregate"),
        ("filter", "having"),
        ("project", "select"),
        ("sink", "out"),
    ]
    assert found[1]["columns"] == {"shop": "UPPER(g)", "n": "n"}
    assert found[2]["by"] == ("shop",)
    assert found[2]["aggregates"] == {
        "many": "COUNT(CASE WHEN n > 1 THEN 1 END)",
        "sum": "SUM(n)",
        "count": "COUNT(*)",
    }
    assert found[4]["columns"] == {"shop": "shop", "many": "many", "mean": "sum / count"}


def test_names_are_quoted_where_sql_would_read_something_else() -> None:
    found = operators(
        'SELECT k AS "order", g AS "a b" FROM (SELECT k, g FROM t) AS "select" WHERE "select".k > 1'
    )
    assert found[-2]["columns"] == {"order": "k", "a b": "g"}
    again = operators('SELECT "order" + 1 AS k FROM (SELECT DISTINCT k AS "order" FROM t)')
    assert again[-2]["columns"] == {"k": '"order" + 1'}


def test_an_outer_join_keeps_what_its_tables_have_apart() -> None:
    """The join's column has a value in each row, and that of the table in which nothing matched has none."""
    found = operators("SELECT a.k, b.n FROM t AS a LEFT JOIN u AS b ON a.k = b.n AND b.g = 'x'")
    assert [each["type"] for each in found] == [
        "source",
        "project",
        "source",
        "filter",
        "project",
        "join",
        "project",
        "sink",
    ]
    assert (found[4]["columns"], found[5]["on"], found[5]["how"]) == ({"k": "n", "n_2": "n"}, ("k",), "left")
    assert found[6]["columns"] == {"k": "k", "n": "n_2"}


def test_a_query_that_is_named_is_made_once_however_often_it_is_read() -> None:
    found = operators(
        "WITH c AS (SELECT k FROM t WHERE n > 0) SELECT a.k FROM c AS a JOIN c AS b ON a.k = b.k"
    )
    assert [each["type"] for each in found].count("source") == 1
    twice = operators("WITH c AS (SELECT k FROM t) SELECT k FROM c UNION ALL SELECT k FROM c")
    assert [each["type"] for each in twice].count("source") == 1


def test_windows_take_all_settings() -> None:
    query = parse_statement(
        "INSERT INTO out SELECT k FROM HOP(d, ts, INTERVAL 1 MINUTE, INTERVAL '10 minutes', "
        "lateness := INTERVAL 5 SECONDS, idle_after => INTERVAL '1' HOUR, late := 'late.csv')",
        odd_tables.TOPOLOGY,
    )
    assert query.operators[1].model_dump() == {
        "id": "window",
        "type": "window",
        "input": "d",
        "time": "ts",
        "size": "10 minutes",
        "slide": "1 minute",
        "lateness": "5 seconds",
        "idle_after": "1 hour",
        "late": "late.csv",
    }


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT k FROM |tt", "unknown table 'tt' (did you mean 't'?); expected one of t, u, d"),
        ("SELECT |kk FROM t", "unknown column 'kk'"),
        ("SELECT |b.k FROM t AS a", "unknown table 'b'"),
        ("SELECT |k FROM t JOIN u USING (g)", "column k is in several tables: write t.k or u.k"),
        ("SELECT t.k FROM t JOIN u ON |t.kk = u.k", "unknown column 't.kk' (did you mean 'k'?)"),
        (
            "SELECT t.k FROM t JOIN d ON g = |dayy",
            "unknown column 'dayy' (did you mean 'day'?); expected one of k, g, x, n, day, ts, ok, f or 3 more",
        ),
        ("SELECT t.k FROM t JOIN u ON |k = k", "column k is in several tables: write t.k or u.k"),
        ("SELECT t.k FROM t LEFT JOIN d ON g = |dayy", "unknown column 'dayy' (did you mean 'day'?)"),
        ("SELECT t.k FROM t JOIN u ON t.k = |v.k", "unknown table 'v'; expected one of t, u"),
        ("SELECT t.k FROM t, d WHERE g = |dayy", "unknown column 'dayy' (did you mean 'day'?)"),
        (
            'SELECT k FROM t WHERE g = |"it\'s"',
            "unknown column \"it's\"; expected one of k, g, x, n; strings are in single quotes: 'it''s'",
        ),
        ("SELECT t.k FROM t, |u", "tables are joined by equal columns"),
        ("SELECT t.k FROM t JOIN |u ON t.k < u.k", "tables are joined by equal columns"),
        (
            "SELECT t.k FROM t FULL JOIN u ON t.k = u.k AND |t.n = 1",
            "t.n = 1 is not supported in ON of a full join",
        ),
        ("SELECT t.k FROM t SEMI JOIN |u ON t.k = u.k", "SEMI JOIN is not supported"),
        ("SELECT |k, sum(n) AS n FROM t", "k is neither in GROUP BY nor in an aggregate"),
        ("SELECT |sum(max(n)) AS n FROM t", "an aggregate cannot contain another aggregate"),
        ("SELECT k FROM t WHERE |sum(n) > 1", "an aggregate in WHERE"),
        (
            "SELECT k FROM t GROUP BY |2",
            "GROUP BY 2: expected the position of a column in SELECT, from 1 to 1",
        ),
        ("SELECT k FROM t ORDER BY |k", "ORDER BY is not supported here"),
        ("SELECT k FROM t LIMIT |5", "LIMIT is not supported here"),
        (
            "SELECT |k FROM t UNION ALL SELECT k, n FROM u",
            "UNION of different numbers of columns: 1 in SELECT 1 (k), 2 in SELECT 2 (k, n)",
        ),
        (
            "SELECT k FROM |HOP(t, x, INTERVAL '1 second')",
            "expected HOP(table, time_column, INTERVAL",
        ),
        (
            "SELECT k FROM TUMBLE(t, x, |5)",
            "expected a length of time, such as INTERVAL '10 seconds', got 5",
        ),
        ("SELECT |1 AS one", "SELECT without FROM"),
        (
            "SELECT max(|n) OVER (PARTITION BY k) AS n FROM t",
            "a window function is not supported: MAX(n) OVER",
        ),
        ("SELECT k FROM t WHERE n = (SELECT max(|n) FROM u)", "a subquery in an expression is not supported"),
        ("SELECT k FROM t WHERE k IN (SELECT |k FROM u)", "a subquery in an expression is not supported"),
        ("SELECT 'a\x0cb' AS a, |kk FROM t", "unknown column 'kk'"),
        ("SELECT count(*) AS n, |x FROM t", "x is neither in GROUP BY nor in an aggregate"),
        ("|SELEC k FROM t", "(did you mean SELECT instead of SELEC?)"),
        ("SELECT k |FRO t", "(did you mean FROM instead of FRO?)"),
        ("SELECT k FROM t |GROUP BT k", "(did you mean GROUP BY instead of GROUP?)"),
        ("SELECT |median(k) FROM t", "unknown aggregate median; supported are count, sum, avg, min, max"),
        ("SELECT string_agg(|g) FROM t", "unknown aggregate string_agg; supported are count"),
        ("SELECT max(|k IGNORE NULLS) FROM t", "IGNORE NULLS and RESPECT NULLS are of window functions"),
        ("SELECT |cuont(k) FROM t", "unknown function cuont (did you mean 'count'?)"),
        ("SELECT |count_if(k > 1) FROM t", "unknown aggregate count_if; write count(*) FILTER (WHERE ...)"),
        ("SELECT |reverse(g) AS a FROM t", "unknown function reverse; supported are abs"),
        ("SELECT t.k FROM t JOIN u ON |t.g = u.k", "g is VARCHAR, and k is BIGINT: cast one"),
        (
            "SELECT |k FROM t UNION ALL SELECT g FROM u",
            "column k of a UNION has the types BIGINT and VARCHAR: cast one of",
        ),
        (
            "SELECT |k FROM t INTERSECT SELECT k FROM u",
            "INTERSECT is not supported: write a JOIN and a DISTINCT",
        ),
        (
            "SELECT k FROM TUMBLE(t, x, INTERVAL 1 SECOND, |lat := 'a')",
            "lat is not a setting of a window (did you mean",
        ),
        ("SELECT k FROM TUMBLE(t, x, INTERVAL 1 SECOND, late := |5)", "expected the path of a CSV file"),
        ("SELECT k FROM |main.t", "expected the name of a table alone, got main.t: leave the schema out"),
        ("SELECT k FROM t AS r(a, b, c, e, |f)", "r has 4 columns, but 5 names are given"),
        ("SELECT t.k FROM t NATURAL JOIN |u", "NATURAL JOIN is not supported: write USING (x)"),
        ("WITH RECURSIVE |c AS (SELECT k FROM t) SELECT k FROM c", "WITH RECURSIVE is not supported"),
    ],
)
def test_what_means_nothing_here_is_pointed_at(statement: str, why: str) -> None:
    """At the sign ``|`` in the statement."""
    begin = statement.index("|")
    text = f"INSERT INTO out\n  {statement.replace('|', '', 1)}"
    with pytest.raises(InvalidQuery) as error:
        parse_statement(text, TOPOLOGY, file="query.sql")
    (mistake,) = error.value.mistakes
    message, line, caret = mistake.message.split("\n")
    assert why in message
    assert line == f"      {statement.replace('|', '', 1)}"
    assert caret == f"{' ' * (4 + 2 + begin)}^"
    assert (mistake.file, mistake.line, mistake.column) == ("query.sql", 2, 2 + begin + 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "SELECT k FROM t",
            "the statement has no sink for its rows: write INSERT INTO sink in front of it",
        ),
        ("INSERT INTO out SELECT k FROM", "cannot be read as SQL: Expected table name"),
        ("INSERT INTO out SELECT k FROM t; DROP TABLE t", "expected one statement, got 2"),
        ("DROP TABLE t", "expected INSERT INTO sink SELECT ..., got DROP TABLE t"),
        (
            "CREATE OR REPLACE VIEW v AS SELECT k FROM t",
            "AS SELECT k FROM t; a view is an operator of type view in a query file (JSON)",
        ),
        ("INSERT INTO out (k) SELECT k FROM t", "expected only the name of a sink after INSERT INTO"),
        ("", "expected a statement, INSERT INTO sink SELECT ..., got none"),
    ],
)
def test_a_text_that_is_no_statement_says_what_one_is(text: str, why: str) -> None:
    with pytest.raises(InvalidQuery) as error:
        parse_statement(text, TOPOLOGY)
    assert why in str(error.value)


def test_a_mistake_of_types_is_where_it_was_written() -> None:
    text = "INSERT INTO out\nSELECT k,\n       upper(n) AS wrong\nFROM t"
    with pytest.raises(InvalidQuery) as error:
        parse_statement(text, TOPOLOGY, file="query.sql")
    (mistake,) = error.value.mistakes
    assert (mistake.file, mistake.line, mistake.column) == ("query.sql", 3, 8)
    assert mistake.message.splitlines()[1:] == ["           upper(n) AS wrong", "           ^"]


def test_a_mistake_in_a_subquery_is_where_it_was_written() -> None:
    """Though its project is made one with that of the outer query, and the filter goes in front of both."""
    text = "INSERT INTO out SELECT u AS v FROM (SELECT upper(n) AS u FROM t) WHERE u = 'x'"
    with pytest.raises(InvalidQuery) as error:
        parse_statement(text, TOPOLOGY)
    (mistake,) = error.value.mistakes
    assert mistake.column == text.index("upper(n)") + 1


def test_filters_go_to_the_sources() -> None:
    found = operators(
        "SELECT g, s FROM (SELECT a.g, sum(b.n) AS s FROM t AS a JOIN u AS b ON a.k = b.k GROUP BY a.g) "
        "WHERE g <> 'x' AND s > 0"
    )
    shown = [
        (each["id"], each.get("input"), each.get("predicate")) for each in found if each["type"] == "filter"
    ]
    assert shown == [("where_2", "a", "g <> 'x'"), ("where", "aggregate", "s > 0")]
    union = operators("SELECT k FROM (SELECT k, n FROM t UNION ALL SELECT n, k FROM u) WHERE k > 1")
    assert sorted(each["predicate"] for each in union if each["type"] == "filter") == ["k > 1", "n > 1"]
    assert [each["type"] for each in union].index("union") > 3


@pytest.mark.parametrize(
    ("statement", "predicate", "type_"),
    [
        (
            "SELECT k, m FROM (SELECT t.k, u.n AS m FROM t LEFT JOIN u ON t.k = u.k) WHERE m > 1",
            "n_2 > 1",
            "join",
        ),
        ("SELECT k FROM TUMBLE(d, ts, INTERVAL 1 DAY) WHERE ok", "ok", "window"),
        (
            "WITH c AS (SELECT k + 1 AS k FROM t) SELECT * FROM c WHERE k > 1 UNION ALL SELECT * FROM c",
            "k > 1",
            "project",
        ),
    ],
)
def test_filters_stay_after_what_they_would_change(statement: str, predicate: str, type_: str) -> None:
    """An outer join's rows without a match, event time, and rows that others read."""
    query = parse_statement(f"INSERT INTO out {statement}", odd_tables.TOPOLOGY)
    (kept,) = [each for each in query.operators if each.type == "filter"]
    assert kept.predicate == predicate
    below = {each.id: each for each in query.operators}[kept.input]
    assert below.type == type_


BROKEN = Path(__file__).with_name("broken_statements.sql").read_text("utf-8").splitlines()


def checked(text: str) -> None:
    """Read a statement, and check it if it has a sink, which a SELECT is given only by the command."""
    found = read_statement(text, odd_tables.TOPOLOGY, file="query.sql")
    if found.ordering is None:
        check(found.query, odd_tables.TOPOLOGY)


@pytest.mark.parametrize("first", range(0, len(BROKEN), 50))
def test_a_broken_statement_gives_one_mistake_with_a_caret(first: int) -> None:
    for statement in BROKEN[first : first + 50]:
        with pytest.raises(InvalidQuery) as error:
            checked(f"\n{statement}")
        (mistake,) = error.value.mistakes
        message, line, caret = mistake.message.split("\n")
        assert (mistake.line, line) == (2, f"    {statement}"), mistake.message
        assert mistake.column is not None
        assert caret == f"{' ' * (4 + mistake.column - 1)}^"
        assert "Token" not in message


@pytest.mark.parametrize("place", [0, 30, 99])
def test_of_a_long_line_the_part_around_the_mistake_is_shown(place: int) -> None:
    columns = ["k"] * 100
    columns[place] = "kk"
    with pytest.raises(InvalidQuery) as error:
        parse_statement(f"INSERT INTO out SELECT {', '.join(columns)} FROM t", TOPOLOGY)
    message, line, caret = error.value.mistakes[0].message.split("\n")
    assert "unknown column 'kk'" in message
    assert len(line) <= 4 + len("... ") + 160 + len(" ...")
    assert line[caret.index("^") :].startswith("kk")


def test_there_are_as_many_broken_statements_as_the_language_has_ways_to_break_it() -> None:
    assert len({*BROKEN}) == len(BROKEN) >= 200


def test_the_reserved_words_are_duckdbs() -> None:
    rows = duckdb.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")
    assert {*RESERVED_WORDS} == {name for (name,) in rows.fetchall()}


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_a_reserved_word_names_something_where_it_does_in_duckdb(word: str) -> None:
    """In quotes everywhere, after AS in an item; as a table it names nothing without quotes."""
    checked(f'SELECT "{word}".k AS "{word}", n AS {word}2 FROM t AS "{word}"')
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS k")
        for statement in (f"SELECT k FROM t AS {word}", f"SELECT k FROM t {word}", f"SELECT k {word} FROM t"):
            with suppress(duckdb.ParserException, duckdb.BinderException):
                connection.execute(statement)
                continue
            with pytest.raises(InvalidQuery):
                checked(statement)
