"""String views: columns of text whose values may share their bytes, and what looking at all of them takes.

An Arrow view refers to its value, and any number of views may refer to the same. A body of 1 MiB then has 16
GiB of text, and making sure that it is text takes as long as if all were there. No other type has this:
validation looks once at what lists, runs, dictionaries and unions refer to, however often they do, and
nothing at columns without memory.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_VIEW = 16
"""The bytes of a view; the first four are the length of its value."""


def has_string_views(schema: pa.Schema) -> bool:
    """True if any of its columns has string views."""
    return any(_has_views(field.type) for field in schema)


def bytes_of_values(batch: pa.RecordBatch) -> int:
    """The bytes of all values in its views of text, each as often as it is referred to; before it is validated."""
    return sum(_viewed(column) for column in batch.columns)


def _has_views(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_views(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _has_views(kind.value_type)
    if pa.types.is_string_view(kind):
        return True
    return any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _viewed(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_string_view(kind):
        return _lengths(column)
    return sum(_viewed(part) for part in _parts(column)) if _has_views(kind) else 0


def _parts(column: pa.Array) -> Iterator[pa.Array]:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield column.storage
    elif pa.types.is_dictionary(kind):
        yield column.dictionary
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        for index in range(kind.num_fields):
            yield column.field(index)
    else:  # lists of any kind, maps, runs
        yield column.values


def _lengths(column: pa.Array) -> int:
    validity, views, *shared = column.buffers()
    if views is None or not shared:  # short values are in the views themselves
        return 0
    count = min(len(column), views.size // _VIEW)
    lengths = memoryview(views)[: count * _VIEW].cast("B").cast("I")[::4]
    return sum(lengths if validity is None else compress(lengths, _bits(validity)))


def _bits(validity: pa.Buffer) -> Iterator[int]:
    """Return the validity of each value: a null may have any length."""
    return (byte >> place & 1 for byte in memoryview(validity).cast("B") for place in range(8))
