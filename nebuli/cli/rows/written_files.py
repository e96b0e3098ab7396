"""Output files of a command in the format of their extension: Parquet, CSV, JSON Lines or Arrow."""

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
"""The number of rows that are converted to Python values at once."""


def check_ending(into: str) -> None:
    """Raise UsageError for a file with another extension."""
    if Path(into).suffix.lower() not in ENDINGS:
        raise click.UsageError(f"--into {into}: expected a name that ends in one of {', '.join(ENDINGS)}")


def write_rows(rows: pa.Table, into: Path) -> None:
    """Replace a file atomically. Raises OSError."""
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
    """Yield each row as a JSON object on one line."""
    names = rows.schema.names
    return (f"{as_json_line(names, line)}\n" for piece in _pieces(rows) for line in piece)


def _pieces(rows: pa.Table) -> Iterator[list[tuple[Any, ...]]]:
    for batch in rows.to_batches(max_chunksize=_PIECE_ROWS):
        yield list(zip(*map(values_of, batch.columns), strict=True))
