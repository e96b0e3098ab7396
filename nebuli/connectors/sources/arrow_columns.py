"""Columns of Arrow data as those of a logical source: found by name, in the types of the topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.connectors.errors import InputError, printable, short, shown_names
from nebuli.connectors.formats.instants import whole_microseconds

if TYPE_CHECKING:
    from topology.built_in import Timestamps

__all__ = ["ArrowColumns"]

_LONGEST = 300


class ArrowColumns:
    """The columns ``wanted``, by ``asker``, of what sentences call ``place``, an ``owner`` such as a file.

    Columns are found by name, others are passed over. A column may be narrower than it is wanted (int32 for int64), or
    another form of the same (a dictionary of strings, a timestamp in another unit), or nothing but nulls; anything else
    is an error, as is a value that does not fit; ``timestamps`` is the owner's setting for those with digits below the
    microsecond.
    """

    def __init__(
        self,
        wanted: pa.Schema,
        place: str,
        owner: str,
        asker: str = "the logical source",
        *,
        timestamps: Timestamps | None = None,
    ) -> None:
        self.wanted = wanted
        self._place = place
        self._owner = owner
        self._asker = asker
        self._timestamps = timestamps

    def check(self, found: pa.Schema) -> None:
        """Raise InputError where ``found`` does not have the columns."""
        missing = [name for name in self.wanted.names if name not in found.names]
        if missing:
            raise InputError(
                f"{self._place}: no column {shown_names(missing, found.names)}, which {self._asker} has; "
                f"the {self._owner}'s columns are {shown_names(found.names, missing)}"
            )
        doubled = [name for name in self.wanted.names if found.names.count(name) > 1]
        if doubled:
            raise InputError(f"{self._place}: more than one column is named {shown_names(doubled)}")
        for wanted in self.wanted:
            type_ = found.field(wanted.name).type
            if not _holds(wanted.type, type_):
                raise InputError(
                    f"{self._place}: column {wanted.name} is {type_}, but {wanted.type} in {self._asker}"
                )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch whose schema was checked. Raises InputError for a value that does not fit."""
        columns = []
        for field in self.wanted:
            column = batch.column(field.name)
            try:
                columns.append(column if column.type == field.type else self._in_type(column, field.type))
            except pa.ArrowInvalid as error:
                said = printable(short(str(error), _LONGEST))
                raise InputError(f"{self._place}: column {shown_names([field.name])}: {said}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self.wanted)

    def _in_type(self, column: pa.Array, type_: pa.DataType) -> pa.Array:
        if pa.types.is_timestamp(type_) and not pa.types.is_null(column.type):
            column = whole_microseconds(column, self._timestamps)
        return column.cast(type_)


def _holds(wanted: pa.DataType, found: pa.DataType) -> bool:
    """True if a column of ``found`` can be read as ``wanted`` without changing a value."""
    types = pa.types
    if wanted == found or types.is_null(found):  # as pandas and pyarrow write a column of nulls alone
        return True
    if types.is_dictionary(found):
        return _holds(wanted, found.value_type)
    for kind in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if kind(wanted) and kind(found):
            return bool(found.bit_width <= wanted.bit_width)
    if types.is_string(wanted):
        return any(kind(found) for kind in (types.is_string, types.is_large_string, types.is_string_view))
    if types.is_binary(wanted):
        return any(kind(found) for kind in (types.is_binary, types.is_large_binary, types.is_binary_view))
    return bool(types.is_timestamp(wanted) and types.is_timestamp(found))
