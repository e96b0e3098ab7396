"""Keys of views as words: what a command line or an address has, and what JSON has no value for."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.views.errors import WrongKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.views.values import ViewDescription

__all__ = ["key_of_words", "value_of_word"]


def key_of_words(words: Sequence[str], name: str, view: ViewDescription) -> tuple[Any, ...]:
    """The key that has a word for each of its columns. Raises WrongKey."""
    if len(words) != len(view.key):
        columns = ", ".join(f"{each} ({view.schema.field(each).type})" for each in view.key)
        raise WrongKey(
            f"the key of view {name!r} is {columns}: expected one value per column ({len(view.key)}), got "
            f"{len(words)}"
        )
    return tuple(
        value_of_word(word, view.schema.field(column)) for word, column in zip(words, view.key, strict=True)
    )


def value_of_word(word: str, column: pa.Field) -> Any:
    """The value of a column: bytes are in base64, a time without an offset is in UTC. Raises WrongKey."""
    try:
        if pa.types.is_binary(column.type):
            return base64.b64decode(word, validate=True)
        value = _cast(pa.array([word], pa.string()), column.type)[0].as_py()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise WrongKey(f"{word[:100]!r} is not a valid {column.name} ({column.type}): {error}") from error
    if isinstance(value, float) and math.isinf(value) and any(each.isdigit() for each in word):
        raise WrongKey(
            f"{word[:100]!r} is not a valid {column.name} ({column.type}): it is out of range, "
            f"and would become an infinity"
        )
    return value


def _cast(words: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return words.cast(type_)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(type_) or type_.tz is None:
            raise
        return words.cast(pa.timestamp(type_.unit)).cast(type_)
