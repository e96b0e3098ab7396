"""SQL over the tables of a circuit, in DuckDB: one statement that reads, and neither files, network nor settings.

DuckDB may do a lot that a circuit must not do: read and write files, attach databases, load extensions, reach other
functions of this process. So its configuration is closed and locked, what it holds in memory is bounded, a statement is
taken for what DuckDB's own parser makes of it, table functions are those of a list, and a deadline interrupts it.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.circuits.errors import QueryTimedOut, QueryTooLarge, WrongQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import duckdb

MAX_SQL_BYTES = 1 << 16
MEMORY_BYTES = 1 << 29
"""Memory of all queries together, in addition to the rows that they read."""
RESULT_BYTES = 1 << 26
_THREADS = 2
_AGAIN_S = 0.05
_CLOSED = (
    "SET python_enable_replacements=false",  # else the names of variables of this process are tables
    "SET temp_directory=''",
    "SET enable_external_access=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET allow_community_extensions=false",
    f"SET memory_limit='{MEMORY_BYTES}B'",
    f"SET threads={_THREADS}",
    "SET lock_configuration=true",
)
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
_PLAIN = frozenset(
    {"SELECT_NODE", "BASE_TABLE", "SUBQUERY", "JOIN", "EMPTY", "EXPRESSION_LIST", "TABLE_FUNCTION"}
)
"""Nodes allowed after FROM, and containing it, for which the columns to read are known."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The columns that a statement reads, at most, by table; of one without any it counts the rows."""

    columns: Mapping[str, tuple[str, ...]]


class Sql:
    """A database without anything in it. Its methods may be called by several threads at once."""

    def __init__(self) -> None:
        import duckdb

        self._database = duckdb.connect(":memory:")
        for statement in _CLOSED:
            self._database.execute(statement)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of its memory."""
        self._database.close()

    def reads(self, sql: str, tables: Mapping[str, Sequence[str]]) -> Reads:
        """Return the columns that a statement reads of tables with known columns. Raises WrongQuery."""
        tree = self._tree(sql)
        nodes = list(_nodes(tree))
        for node in nodes:
            if node.get("type") == "TABLE_FUNCTION":
                _check_function(node["function"]["function_name"])
        named = {str(node["table_name"]).lower() for node in nodes if node.get("type") == "BASE_TABLE"}
        some = {table: columns for table, columns in tables.items() if table.lower() in named}
        if not _names_columns(nodes, some):
            return Reads({table: tuple(columns) for table, columns in some.items()})
        texts = {text.lower() for node in nodes for text in _texts(node)}
        return Reads(
            {
                table: tuple(each for each in columns if each.lower() in texts)
                for table, columns in some.items()
            }
        )

    def _tree(self, sql: str) -> Any:
        """The one statement in this text, as DuckDB's parser has it. Raises WrongQuery."""
        import duckdb

        size = len(sql.encode(errors="replace"))
        if size > MAX_SQL_BYTES:
            raise WrongQuery(f"the query has {size} bytes, and the limit is {MAX_SQL_BYTES}: make it shorter")
        with self._lock, self._database.cursor() as cursor:
            try:
                statements = cursor.extract_statements(sql)
                if len(statements) != 1:
                    raise WrongQuery(
                        f"expected one statement, got {len(statements)}: give one that begins with SELECT"
                    )
                if statements[0].type != duckdb.StatementType.SELECT:
                    kind = str(statements[0].type).rpartition(".")[2]
                    raise WrongQuery(
                        f"expected a SELECT, got a statement of the kind {kind}: a query only reads"
                    )
                ((text,),) = cursor.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
            except duckdb.Error as error:
                raise WrongQuery(_said(error)) from None
        tree = json.loads(text)
        if tree["error"]:
            raise WrongQuery(f"{tree['error_message']}: write a SELECT")
        return tree["statements"]

    def run(
        self, sql: str, tables: Mapping[str, pa.Table], names: Collection[str], within_s: float
    ) -> pa.Table:
        """Return the result of a statement over these tables: the parts that it `reads` of those of all ``names``.

        Blocks.

        Raises WrongQuery, QueryTooLarge, QueryTimedOut.
        """
        import duckdb

        with self._database.cursor() as cursor, _interrupting(cursor, within_s) as is_late:
            for name, rows in tables.items():
                cursor.register(name, rows)
            try:
                return _bounded(cursor.sql(sql).to_arrow_reader(), is_late)
            except duckdb.InterruptException:
                raise _late(within_s) from None
            except duckdb.OutOfMemoryException as error:
                raise QueryTooLarge(f"{_said(error)}: select less") from None
            except (duckdb.Error, pa.ArrowException) as error:
                if is_late():
                    raise _late(within_s) from None
                raise WrongQuery(_explained(cursor, sql, error, names)) from None


@contextmanager
def _interrupting(cursor: duckdb.DuckDBPyConnection, within_s: float) -> Iterator[Callable[[], bool]]:
    """Interrupt what the cursor does when the time is over; whether it is."""
    ended = threading.Event()
    until = time.monotonic() + within_s

    def interrupt() -> None:
        pause_s = within_s
        while not ended.wait(pause_s):
            cursor.interrupt()  # and again: it may have been between two of the things that it does
            pause_s = _AGAIN_S

    thread = threading.Thread(target=interrupt, name="nebuli-query-deadline", daemon=True)
    thread.start()
    try:
        yield lambda: time.monotonic() > until
    finally:
        ended.set()
        thread.join()


def _bounded(reader: pa.RecordBatchReader, is_late: Callable[[], bool]) -> pa.Table:
    batches, size = [], 0
    for batch in reader:
        size += batch.nbytes
        if size > RESULT_BYTES:
            raise QueryTooLarge(
                f"the result has more than {RESULT_BYTES} bytes: add a LIMIT, or select fewer columns"
            )
        if is_late():
            raise _late(None)
        batches.append(batch)
    return pa.Table.from_batches(batches, reader.schema)


def _late(within_s: float | None) -> QueryTimedOut:
    after = "" if within_s is None else f" of {within_s:.3g} s"
    return QueryTimedOut(f"the query was stopped at its deadline{after}: select less, or allow more time")


def _said(error: Exception) -> str:
    """DuckDB's sentence, with the place that it shows."""
    return str(error).strip()


def _explained(cursor: duckdb.DuckDBPyConnection, sql: str, error: Exception, names: Collection[str]) -> str:
    """Return the error, its place, and the tables, if one is unknown."""
    import duckdb

    if isinstance(error, duckdb.BinderException | duckdb.CatalogException):
        try:
            cursor.execute(sql)  # which shows the place, and does not come so far as to do anything
        except duckdb.Error as shown:
            error = shown
    there_are = ""
    if isinstance(error, duckdb.CatalogException):
        there_are = f"\n\nThe tables here are {', '.join(sorted(names))}."
    return _said(error) + there_are


# -- what a statement is


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            yield found
            stack += found.values()
        elif isinstance(found, list):
            stack += found


def _texts(node: Mapping[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))


def _check_function(name: str) -> None:
    if name.lower() not in _TABLE_FUNCTIONS:
        raise WrongQuery(
            f"the table function {name} cannot be used here: use one of {', '.join(sorted(_TABLE_FUNCTIONS))}"
        )


def _names_columns(nodes: Sequence[Mapping[str, Any]], tables: Mapping[str, Sequence[str]]) -> bool:
    """True if the statement names every column that it reads."""
    columns = {column.lower() for each in tables.values() for column in each}
    computed, rows = set[str](), {table.lower() for table in tables}
    for node in nodes:
        (computed if "class" in node else rows).add(str(node.get("alias", "")).lower())
    return not any(_is_unnamed(node, columns | computed, rows - {""}) for node in nodes)


def _is_unnamed(node: Mapping[str, Any], columns: set[str], rows: set[str]) -> bool:
    """True if a part of a statement may read columns that it does not name; ``rows`` are names of tables."""
    kind = node.get("type")
    if kind == "COLUMN_REF":
        name = str(node["column_names"][-1]).lower()
        return name in rows or name not in columns
    if "class" not in node and "sample" in node and kind is not None and kind not in _PLAIN:
        return True  # the part after FROM has a sample, or none
    by_place = kind in ("STAR", "POSITIONAL_REFERENCE") or bool(node.get("column_name_alias"))
    return by_place or node.get("ref_type") in ("NATURAL", "POSITIONAL")
