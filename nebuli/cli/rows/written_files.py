"""Rows of a collection in a file that a command writes, by its ending: Parquet, CSV, JSON Lines or Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nebuli.cli.rows.printed_rows import BYTES, as_csv, as_json_line
from nebuli.python_values import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import pyarrow as pa

ENDINGS = (".parquet", ".csv", ".jsonl", ".arrow")
_PIECE_ROWS = 8192
"""No more rows are made into Python's values at once."""


def check_ending(into: str) -> None:
    """Raise UsageError for a file whose ending is none of those."""
    if Path(into).suffix.lower() not in ENDINGS:
        raise click.UsageError(f"--into {into}: give a name that ends in one of {', '.join(ENDINGS)}")


def write_rows(rows: pa.Table, into: Path) -> None:
    """Write a file that is there whole, or as it was. Raises OSError."""
    aside = into.with_name(f".{into.name}.new")
    try:
        match into.suffix.lower():
            case ".parquet":
                import pyarrow.parquet

                pyarrow.parquet.write_table(rows, aside)
            case ".arrow":
                import pyarrow

                with pyarrow.ipc.new_file(str(aside), rows.schema) as writer:
                    writer.write_table(rows)
            case ".csv":
                with aside.open("w", encoding="utf-8", errors=BYTES, newline="") as file:
                    file.write(as_csv([rows.schema.names]))
                    file.writelines(map(as_csv, _pieces(rows)))
            case _:
                with aside.open("w", encoding="utf-8", newline="") as file:
                    file.writelines(json_lines(rows))
        aside.replace(into)
    finally:
        aside.unlink(missing_ok=True)


def json_lines(rows: pa.Table) -> Iterator[str]:
    """Each row as an object in a line."""
    names = rows.schema.names
    return (f"{as_json_line(names, line)}\n" for piece in _pieces(rows) for line in piece)


def _pieces(rows: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in rows.to_batches(max_chunksize=_PIECE_ROWS):
        yield list(zip(*map(values_of, batch.columns), strict=True))
