"""JSON objects as rows."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from nebuli.connectors.errors import RowInvalid, short
from nebuli.connectors.formats.instants import TooFine, instants, wrong_value
from nebuli.connectors.formats.message_bytes import LINE_FEED, RETURN, UTF8_MARK, MessageBytes, places_of
from nebuli.dataflow import zset
from nebuli.dataflow.types import type_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from topology.built_in import Timestamps

__all__ = ["Constant", "JsonRows", "refuse_constant"]

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 1024
"""Where not all messages can be read at once, so many are: one that is odd makes no more than those slow."""
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_LONGEST_INTEGER = 40
"""The first digits of more are out of every range, too."""
_USUAL = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-5][0-9])?"
)
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_OPENS, _CLOSES = ord("{"), ord("}")
_BEHIND_A_CLOSE = np.frombuffer(b",}]\r\n", dtype=np.uint8)
_WORDS = re.compile(rb"[\s:,\[-](?:NaN|Inf)")
"""Arrow takes these words for numbers; in texts they do no harm but to be slow."""


class JsonRows:
    """Rows of JSON objects: columns by name, null where one is missing; others are passed over.

    The rule for values, also of objects within:

    - a bool is true or false, a text is a text; numbers as text are refused, and so are numbers for texts;
    - an integer is a number in the range of its type, without fraction and exponent;
    - a float is any number within the range of its type, or one of the texts NaN, Infinity and -Infinity; if they are
      not strings, ``constant`` gives their meaning;
    - a timestamp is a text such as 2024-01-31T10:00:00Z, UTC where it has no zone, or an integer in microseconds;
      digits of a text below them are handled by ``timestamps``;
    - a date is a text such as 2024-01-31, or an integer in days since 1970-01-01;
    - a binary is a text in base64;
    - of a name that an object has several times, the last counts.

    Objects are read by Arrow where that follows this rule, and one by one where it might not.
    """

    def __init__(
        self, schema: pa.Schema, constant: Callable[[str], object], timestamps: Timestamps | None = None
    ) -> None:
        self._schema = schema
        self._timestamps = timestamps
        self._read_schema = pa.schema([pa.field(each.name, _type_to_read(each.type)) for each in schema])
        self._object = json.JSONDecoder(parse_int=_Integer, parse_float=_Real, parse_constant=constant)

    def read(
        self, payloads: MessageBytes, at_begin: NDArray[np.bool_]
    ) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows, and the payload of each; an empty one, or a blank line, has none.

        A payload ``at_begin`` of its file may begin with a UTF-8 mark. Raises RowInvalid for one that is not
        an object, or has a value of another kind.
        """
        there = ~_tombstones(payloads)
        places = np.flatnonzero(there)
        if not len(places):
            return zset.empty(self._schema), places
        filled = payloads.only(there)
        rows = self._at_once(filled)
        if rows is None:
            try:
                rows = self._in_blocks(filled, at_begin[places])
            except RowInvalid as error:
                raise RowInvalid(int(places[error.row]), str(error)) from None
        return rows, places

    def _in_blocks(self, payloads: MessageBytes, at_begin: NDArray[np.bool_]) -> pa.RecordBatch:
        made = []
        for first in range(0, len(payloads), _BLOCK_ROWS):
            some = payloads.part(first, min(first + _BLOCK_ROWS, len(payloads)))
            rows = self._at_once(some) if len(payloads) > _BLOCK_ROWS else None
            made.append(self._one_by_one(some, first, at_begin) if rows is None else rows)
        return made[0] if len(made) == 1 else pa.concat_batches(made)

    def _at_once(self, payloads: MessageBytes) -> pa.RecordBatch | None:
        """The rows as Arrow reads them; None where that is not known to follow the rule."""
        if not len(self._schema) or not _one_object_each(payloads):
            return None
        longest = int(payloads.lengths.max())
        try:
            table = pa.json.read_json(
                pa.BufferReader(payloads.data),
                read_options=pa.json.ReadOptions(
                    use_threads=payloads.data.size > _BLOCK_BYTES, block_size=max(_BLOCK_BYTES, 2 * longest)
                ),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=self._read_schema, unexpected_field_behavior="ignore"
                ),
            )
            if table.num_rows != len(payloads):
                return None
            columns = [
                _of_type(_one_array(table.column(field.name)), field.type, self._timestamps)
                for field in self._schema
            ]
        except (pa.ArrowInvalid, _NotExactError, ValueError):
            return None
        return pa.record_batch(columns, schema=self._schema)

    def _one_by_one(self, payloads: MessageBytes, first: int, at_begin: NDArray[np.bool_]) -> pa.RecordBatch:
        columns: list[list[Any]] = [[] for _ in self._schema]
        for row in range(len(payloads)):
            try:
                payload = payloads.one(row)
                if at_begin[first + row]:
                    payload = payload.removeprefix(UTF8_MARK)
                values = self._values(payload)
            except _WrongError as error:
                raise RowInvalid(first + row, str(error)) from None
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        arrays = [pa.array(each, field.type) for each, field in zip(columns, self._schema, strict=True)]
        return pa.record_batch(arrays, schema=self._schema)

    def _values(self, payload: bytes) -> list[Any]:
        try:
            found = self._object.decode(payload.decode())
        except (ValueError, RecursionError) as error:
            raise _WrongError(f"not JSON ({error}): {_shown(payload)}") from None
        if not isinstance(found, dict):
            raise _WrongError(f"an object was expected: {_shown(payload)}")
        return [
            _value(found.get(field.name), field.type, field.name, self._timestamps) for field in self._schema
        ]


class _NotExactError(Exception):
    """Arrow has read something that the rule refuses, or might."""


class _WrongError(Exception):
    """The error of an object."""


class _Integer(str):
    """A number without fraction and exponent, as it is written."""

    __slots__ = ()


class _Real(str):
    """Another number, as it is written."""

    __slots__ = ()


class Constant(str):
    """NaN, Infinity or -Infinity outside quotes, as Python and others write them: a float."""

    __slots__ = ()


def refuse_constant(word: str) -> NoReturn:
    """Raise ValueError: JSON has no such number."""
    raise ValueError(f"{word} is not a number")


def _tombstones(payloads: MessageBytes) -> Any:
    blank = payloads.blank
    odd = np.flatnonzero(~blank & (payloads.firsts <= ord(" ")))
    for row in odd:
        blank[row] = not payloads.one(int(row)).strip(b" \t\r\n")
    return blank


def _one_object_each(payloads: MessageBytes) -> bool:
    """True if each message begins an object and ends one, on a line, and nothing can follow one in the same line.

    Then Arrow cannot take two messages for one. (It ends the process at a null that is not in an object.)
    """
    data, ends = payloads.values, payloads.offsets[1:]
    if not payloads.are_lines or not (payloads.firsts == _OPENS).all():
        return False
    last = ends - 2 - (data[ends - 2] == RETURN)
    if not (data[last] == _CLOSES).all():
        return False
    behind = np.zeros(256, dtype=np.bool_)
    behind[_BEHIND_A_CLOSE] = True
    if not behind[data[places_of(_CLOSES, data) + 1]].all() or data[-1] != LINE_FEED:
        return False
    whole = payloads.data.to_pybytes()
    if b"\0" in whole or ((b"NaN" in whole or b"Inf" in whole) and _WORDS.search(whole)):
        return False  # a NUL is the end for Arrow
    try:
        whole.decode()
    except UnicodeDecodeError:
        return False
    return True


def _type_to_read(type_: pa.DataType) -> pa.DataType:
    """Return the type that Arrow is to read for a type.

    Strings, if it accepts less than the rule, or something else.
    """
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(each.name, _type_to_read(each.type)) for each in type_])
    if pa.types.is_list(type_):
        return pa.list_(_type_to_read(type_.value_type))
    return type_


def _of_type(column: pa.Array, type_: pa.DataType, timestamps: Timestamps | None) -> pa.Array:
    """Convert Arrow's columns to the required type. Raises _NotExactError, ArrowInvalid, ValueError."""
    if pa.types.is_timestamp(type_):
        return instants(column, type_, timestamps)
    if pa.types.is_date(type_):
        return column.cast(type_)
    if pa.types.is_binary(type_):
        return pa.array(
            [each and base64.b64decode(each, validate=True) for each in column.to_pylist()], type_
        )
    if (
        pa.types.is_floating(type_)
        and not pc.all(pc.is_finite(column)).as_py()
        and column.null_count < len(column)
    ):
        raise _NotExactError
    if pa.types.is_struct(type_):
        fields = [_of_type(column.field(place), each.type, timestamps) for place, each in enumerate(type_)]
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=nulls)
    if pa.types.is_list(type_) and column.type != type_:
        raise _NotExactError
    return column


def _value(value: Any, type_: pa.DataType, name: str, timestamps: Timestamps | None) -> Any:
    """A value by the rule, as Arrow takes it. Raises _WrongError."""
    if value is None:
        return None
    try:
        if pa.types.is_struct(type_) and isinstance(value, dict):
            return {
                each.name: _value(value.get(each.name), each.type, f"{name}.{each.name}", timestamps)
                for each in type_
            }
        if pa.types.is_list(type_) and isinstance(value, list):
            return [_value(each, type_.value_type, name, timestamps) for each in value]
        return _scalar(value, type_, timestamps)
    except TooFine as error:
        raise _WrongError(f"column {name}: {error}") from None
    except (pa.ArrowInvalid, ValueError, OverflowError, binascii.Error):
        text = value if isinstance(value, str) else json.dumps(value)
        shown = repr(short(text)) if type(value) is str else short(text)
        raise _WrongError(f"column {name}: {wrong_value(shown, type_name(type_))}") from None


def _scalar(value: Any, type_: pa.DataType, timestamps: Timestamps | None) -> Any:
    if pa.types.is_boolean(type_) and isinstance(value, bool):
        return value
    if pa.types.is_integer(type_) and isinstance(value, _Integer):
        return _within(value, type_.bit_width, signed=pa.types.is_signed_integer(type_))
    if pa.types.is_floating(type_) and isinstance(value, _Integer | _Real):
        # From text to a short float at once: by way of a long one it would be rounded twice.
        number = float(value) if type_.bit_width == 64 else pa.scalar(str(value)).cast(type_).as_py()
        if math.isfinite(number):
            return number
    if type(value) is str or (isinstance(value, Constant) and pa.types.is_floating(type_)):
        return _of_text(value, type_, timestamps)
    if pa.types.is_timestamp(type_) and isinstance(value, _Integer):
        return _within(value, 64, signed=True)
    if pa.types.is_date(type_) and isinstance(value, _Integer):
        return _within(value, 32, signed=True)
    raise ValueError


def _within(number: str, bits: int, *, signed: bool) -> int:
    value = int(number[:_LONGEST_INTEGER])
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not low <= value < high:
        raise ValueError
    return value


def _of_text(value: str, type_: pa.DataType, timestamps: Timestamps | None) -> Any:
    value.encode()  # half of a surrogate pair is not text: UnicodeEncodeError is a ValueError
    if pa.types.is_string(type_):
        return value
    if pa.types.is_timestamp(type_):
        return _microseconds(value) or instants(pa.array([value]), type_, timestamps)[0].value
    if pa.types.is_date(type_):
        return pa.scalar(value).cast(type_).value
    if pa.types.is_binary(type_):
        return base64.b64decode(value, validate=True)
    if pa.types.is_floating(type_) and value in _NO_NUMBERS:
        return float(value)
    raise ValueError


def _microseconds(text: str) -> int | None:
    """An instant in the usual spelling, which Python reads in a hundredth of the time; None for others."""
    if not _USUAL.fullmatch(text):
        return None
    try:
        instant = datetime.fromisoformat(text)
        return ((instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None


def _shown(payload: bytes) -> str:
    return repr(short(payload.decode(errors="backslashreplace").strip()))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
