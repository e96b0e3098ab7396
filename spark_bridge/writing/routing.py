"""Routes of rows to channels: by the number of their partition, or by the values of key columns.

A key's channel is the same in every process, on every machine and in every version: the hash is written down here,
not taken from a library that may change it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyarrow import types

from spark_bridge.errors import OptionError

Numbers: TypeAlias = Any
"""An array of numpy, of 64-bit numbers without a sign. It comes with PySpark, and is imported where it is needed."""

Route: TypeAlias = Callable[[pa.RecordBatch], Iterator[tuple[int, pa.RecordBatch]]]

_INTEGERS = (
    types.is_integer,
    types.is_boolean,
    types.is_date,
    types.is_timestamp,
    types.is_time,
    types.is_duration,
)
_OTHERS = (types.is_string, types.is_binary, types.is_floating, types.is_decimal)
_NULL = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
"""The constants of MurmurHash3's 64-bit finaliser (Appleby, 2008)."""


def by_partition(partition: int, channels: int) -> Route:
    """A route for all rows of a partition to one channel."""
    return lambda batch: iter([(partition % channels, batch)])


def by_key(columns: tuple[str, ...], channels: int) -> Route:
    """A route for rows with equal keys to the same channel, in their order."""

    def route(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        numbers = key_hash(batch, columns) % channels
        for channel in range(channels):
            chosen = batch.filter(pa.array(numbers == channel))
            if chosen.num_rows:
                yield channel, chosen

    return route


def check_key(schema: pa.Schema, columns: tuple[str, ...]) -> None:
    """Raise OptionError if there is no such column, or one of a type that is not a key."""
    for name in columns:
        if schema.names.count(name) != 1:
            raise OptionError(
                f"the option keyColumns names {name!r}, but the rows have {', '.join(schema.names)}: give a "
                "column that occurs once"
            )
        kind = schema.field(name).type
        if not any(test(kind) for test in (*_INTEGERS, *_OTHERS)):
            raise OptionError(
                f"the option keyColumns names {name!r}, which is {kind}: rows cannot be divided by such a "
                "column"
            )


def key_hash(batch: pa.RecordBatch, columns: tuple[str, ...]) -> Numbers:
    """A number of 64 bits for every row. Equal values give equal numbers, of any integer type; null is one."""
    import numpy as np

    numbers = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        numbers = _mix(numbers * np.uint64(31) + _numbers(batch.column(name)))
    return numbers


def _numbers(column: pa.Array) -> Numbers:
    import numpy as np

    if any(test(column.type) for test in _INTEGERS):
        numbers = _integers(column)
    else:
        encoded = column.dictionary_encode()
        # One value more, for nulls, which have no index.
        values = [_hash(value.as_py()) for value in encoded.dictionary] + [_NULL]
        indices = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
        return np.array(values, np.uint64)[indices]
    if column.null_count:
        numbers = np.where(column.is_null().to_numpy(zero_copy_only=False), np.uint64(_NULL), numbers)
    return numbers


def _integers(column: pa.Array) -> Numbers:
    import numpy as np

    if types.is_date32(column.type) or types.is_time32(column.type):
        column = column.cast(pa.int32())
    whole = pc.cast(column, pa.int64()).fill_null(0)
    return whole.to_numpy(zero_copy_only=False).view(np.uint64)


def _hash(value: Any) -> int:
    match value:
        case None:
            return _NULL
        case str():
            data = value.encode()
        case bytes():
            data = value
        case float():
            data = struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)
        case _:
            data = format(
                value.normalize(), "f"
            ).encode()  # a decimal, whose scale does not matter for the key
    return xxhash.xxh64_intdigest(data)


def _mix(numbers: Numbers) -> Numbers:
    import numpy as np

    shift = np.uint64(33)
    numbers = (numbers ^ (numbers >> shift)) * np.uint64(_FIRST)
    numbers = (numbers ^ (numbers >> shift)) * np.uint64(_SECOND)
    return numbers ^ (numbers >> shift)
