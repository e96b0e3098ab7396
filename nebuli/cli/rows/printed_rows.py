"""Rows that a command prints, as a table or in a format for programs."""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from nebuli.python_values import values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "arrow"]),
    default="table",
    show_default=True,
    help="Output format of the rows: a table, JSON, CSV, or an Arrow stream.",
)
BYTES = "surrogateescape"
"""The error handler that keeps bytes that are not UTF-8 in strings, and writes them unchanged."""
_NEEDS_QUOTES = frozenset('",\r\n')


def how_many(rows: int) -> str:
    """Format a number of rows for a sentence."""
    return f"{rows:,} {'row' if rows == 1 else 'rows'}"


def print_rows(rows: pa.Table, form: str) -> None:
    """Print rows as a ``table``, ``json``, ``jsonl`` (an object per line), ``csv``, or an ``arrow`` stream."""
    if form == "arrow":
        from nebuli.circuits.arrow_bytes import table_bytes

        sys.stdout.buffer.write(table_bytes(rows))
        return
    names = rows.schema.names
    lines = list(zip(*map(values_of, rows.columns), strict=True))
    match form:
        case "json":
            records = [_record(names, line) for line in lines]
            echo_data(json.dumps(records, indent=2, default=str, ensure_ascii=False) + "\n")
        case "jsonl":
            echo_data("".join(f"{as_json_line(names, line)}\n" for line in lines))
        case "csv":
            echo_data(as_csv([names, *lines]))
        case _:
            from nebuli.cli.placement_text import table

            cells = [tuple("" if each is None else str(each) for each in line) for line in lines]
            click.echo(table(names, cells) if cells else "no rows")


def echo_data(text: str) -> None:
    """Print data for programs in UTF-8, as in files, whatever the terminal's encoding."""
    click.echo(text.encode(errors=BYTES), nl=False)


def as_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Format lines of CSV; an empty string is in quotes, and a null is not. Write them with BYTES to keep all bytes."""
    return "".join(f"{','.join(map(_field, line))}\n" for line in lines)


def _field(value: Any) -> str:
    text = value.decode(errors=BYTES) if isinstance(value, bytes) else "" if value is None else str(value)
    if (text or value is None) and not _NEEDS_QUOTES.intersection(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def as_json_line(names: Sequence[str], line: Sequence[Any]) -> str:
    """Format a row as a JSON object on one line."""
    return json.dumps(_record(names, line), default=str, ensure_ascii=False)


def _record(names: Sequence[str], line: Sequence[Any]) -> dict[str, Any]:
    """Return a row as an object, as over HTTP: numbers that JSON lacks are strings, and bytes are in base64."""
    return {name: _as_json_has_it(value) for name, value in zip(names, line, strict=True)}


def _as_json_has_it(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
