"""The values that `Views` gives to a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

__all__ = ["Lookup", "ViewDescription"]


class _RowsAndHits(NamedTuple):
    rows: pa.RecordBatch
    hits: list[bool]


class Lookup(_RowsAndHits):
    """The rows of keys, in the order of the keys, and of each key whether it was a hit: there when it was asked for.

    It is a pair of the two. For a query in steps ``step`` is that at which all of them were read: after all steps below
    it, and no other.
    """

    step: int | None

    def __new__(cls, rows: pa.RecordBatch, hits: list[bool], step: int | None = None) -> Self:
        """Make a pair that also has a step."""
        lookup = tuple.__new__(cls, (rows, hits))
        lookup.step = step
        return lookup


class ViewDescription(NamedTuple):
    """A view: the schema of its rows, the columns of its key, its query, and whether it holds only what was read.

    ``in_steps``: its query runs so, and answers have the step.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    query: str
    is_partial: bool
    in_steps: bool = False
