"""Keys of a view as JSON has them: numbers and truth values as such, everything else as words."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.views import WrongKey
from nebuli.views.key_words import value_of_word

if TYPE_CHECKING:
    from nebuli.views import ViewDescription

_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


def key_of_json(said: Any, name: str, view: ViewDescription) -> tuple[Any, ...]:
    """The key that a list says, with a value for each of its columns; of one column the value alone, too.

    Raises WrongKey, which says the column, its type, and what came instead.
    """
    values = said if isinstance(said, list) else [said]
    if len(values) != len(view.key):
        columns = ", ".join(f"{each} ({view.schema.field(each).type})" for each in view.key)
        raise WrongKey(
            f"view {name!r} has a key of {columns}: expected a list of {len(view.key)} values, "
            f"got {json.dumps(said)[:100]}"
        )
    return tuple(
        _value(value, view.schema.field(column)) for value, column in zip(values, view.key, strict=True)
    )


def _value(value: Any, column: pa.Field) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongKey(
            f"a number beyond all of a double's is no {column.name} ({column.type}): say it as a text"
        )
    if value is None or type(value) in _exact_kinds(column.type):
        return value
    if isinstance(value, str):  # also a number for which the other side has no exact type
        return value_of_word(value, column)
    kind = _KINDS.get(type(value), "a list or an object")
    raise WrongKey(f"{json.dumps(value)[:100]} ({kind}) is no {column.name} ({column.type})")


def _exact_kinds(type_: pa.DataType) -> tuple[type, ...]:
    """What is a value of a type as it is. Not True for 1, which Python takes for a number."""
    if pa.types.is_boolean(type_):
        return (bool,)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return (int, float)
    return (str,) if pa.types.is_string(type_) else ()
