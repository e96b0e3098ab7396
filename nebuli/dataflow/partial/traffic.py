"""Messages between the nodes of a graph: down its edges changes, responses and evictions, up them upqueries.

Keys are batches without weights whose columns are those of the path's target, in its order; their names have no
meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from placement.partial.places import Edge


@dataclass(frozen=True, slots=True)
class Data:
    """A change, for all nodes that have the keys of its rows."""

    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Response:
    """All rows with ``keys`` that the path's source has given so far, for the target of the path alone."""

    path: int
    keys: pa.RecordBatch
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Eviction:
    """Changes with ``keys``, None: any, may be lacking from here on: what is below on the path has to forget them."""

    path: int
    keys: pa.RecordBatch | None


@dataclass(frozen=True, slots=True)
class Upquery:
    """The source of the path is to send what it has of ``keys`` again."""

    path: int
    keys: pa.RecordBatch


Message = Data | Response | Eviction


@dataclass(frozen=True, slots=True)
class Send:
    """Put ``message`` at the end of an edge."""

    edge: Edge
    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Send ``upquery`` up an edge."""

    edge: Edge
    upquery: Upquery


@dataclass(frozen=True, slots=True)
class Filled:
    """Keys for which a view was read and that were missing: ``keys``, and all its rows with them, with weights."""

    view: str
    keys: pa.RecordBatch
    rows: pa.RecordBatch


Instruction = Send | Ask | Filled
