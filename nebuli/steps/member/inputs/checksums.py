"""A checksum of rows in their order, in any pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from nebuli.dataflow.buffers import text_buffers

if TYPE_CHECKING:
    from collections.abc import Iterable

_WHOLE = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def checksum(batches: Iterable[pa.RecordBatch]) -> int:
    """64 bits, the same for the same rows in the same order; of no rows 0. Batches have one schema."""
    columns: list[_Column] = []
    for batch in batches:
        columns = columns or [_Column() for _ in range(batch.num_columns)]
        for column, values in zip(columns, batch.columns, strict=True):
            column.add(values)
    return xxhash.xxh3_64_intdigest(b"".join(each.digest() for each in columns)) if columns else 0


class _Column:
    def __init__(self) -> None:
        self._values = xxhash.xxh3_128()
        self._lengths = xxhash.xxh3_128()  # of texts
        self._nulls = xxhash.xxh3_128()  # which values are
        self._rows = 0

    def add(self, values: Any) -> None:
        if not len(values):
            return
        values = _plain(values)
        if values.null_count:
            # The value under a null is undefined.
            nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update((nulls + self._rows).tobytes())
            values = values.fill_null(0 if pa.types.is_integer(values.type) else "")
        self._rows += len(values)
        if pa.types.is_integer(values.type):
            self._values.update(values.to_numpy())
        else:
            places, data = text_buffers(values)
            self._lengths.update(np.diff(places).tobytes())
            self._values.update(data[places[0] : places[-1]].data)

    def digest(self) -> bytes:
        sums = self._values.digest() + self._lengths.digest() + self._nulls.digest()
        return sums + self._rows.to_bytes(8)


def _plain(values: Any) -> Any:
    """As whole numbers or as texts, from the same bytes."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return values
    return values.view(_WHOLE[kind.bit_width])
