"""Rows as JSON: numbers as numbers where JSON has them, everything else as the text that SQL would read."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json as pa_json

from nebuli.circuits.arrow_bytes import WEIGHT
from nebuli.circuits.errors import WrongRows
from nebuli.python_values import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def as_json(value: Any) -> bytes:
    """One value on one line."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode()


def plain(value: Any) -> Any:  # noqa: PLR0911 - one per kind
    """A value with nothing in it that JSON does not have."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() and abs(value) < 1 << 53 else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value.total_seconds()
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def records(batches: Iterable[pa.RecordBatch | pa.Table]) -> list[dict[str, Any]]:
    """The rows of batches."""
    return rows_of(batches)


def rows_of_lines(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """JSON lines, an object each, as rows of a Z-set's schema, whose weight may be left out. Raises WrongRows."""
    if not data.strip():
        return pa.RecordBatch.from_pylist([], pa.schema(list(schema)[:-1]))
    try:
        table = pa_json.read_json(
            io.BytesIO(data),
            pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pa_json.ParseOptions(
                explicit_schema=pa.schema([_as_text(each) for each in schema]),
                unexpected_field_behavior="error",
            ),
        )
        columns = [
            _from_text(column, field) for column, field in zip(table.combine_chunks(), schema, strict=True)
        ]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WrongRows(
            f"expected a JSON object with the columns {', '.join(schema.names[:-1])} in each line: {error}; "
            f"nothing was kept"
        ) from error
    rows = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
    (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    weights = batch.column(WEIGHT)
    if weights.null_count == len(weights):
        return batch.select(schema.names[:-1])
    return batch.set_column(len(schema) - 1, schema.field(WEIGHT), weights.fill_null(1))


def _as_text(field: pa.Field) -> pa.Field:
    """How a column is read: what `as_json` writes as a text, and Arrow would read otherwise, as this text."""
    is_text = pa.types.is_date32(field.type) or pa.types.is_binary(field.type)
    return field.with_type(pa.string()) if is_text else field


def _from_text(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_binary(field.type):
        found = [
            None if each is None else base64.b64decode(each, validate=True) for each in column.to_pylist()
        ]
        return pa.chunked_array([pa.array(found, field.type)])
    return column.cast(field.type)
