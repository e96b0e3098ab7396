"""Messages between the parts of a graph as bytes: the notes of messages, and upqueries.

A note is the kind of the message in one byte, and but for a change the path's number in four (little-endian) and the
keys: an Arrow record batch message without its schema, which both sides know from the path; an eviction of all keys has
none. An upquery is the path's number and the keys.

A message whose keys are too large for a note is sent as several, each with some of them: they are snapshots of one
moment as before, since nothing comes in between. A key that alone is too large for one cannot be asked for; where it is
evicted, all keys of its path are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.errors import DataflowError
from nebuli.dataflow.partial.graph_node import only
from nebuli.dataflow.partial.key_sets import batch_of
from nebuli.dataflow.partial.traffic import Data, Eviction, Response, Upquery
from nebuli.dataflow.types import arrow_schema
from nebuli.dataflow.zset import empty, weighted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nebuli.dataflow.partial.partial_graph import PartialGraph
    from nebuli.dataflow.partial.traffic import Message
    from placement.partial.places import Edge, Path

NOTE_BYTES = 1 << 15
"""The most that a note may have."""
UPQUERY_BYTES = 1 << 20
"""The most that an upquery may have."""

_DATA, _RESPONSE, _EVICTION = range(3)
_KIND = struct.Struct("<B")
_PATH = struct.Struct("<I")
KEY_BYTES = NOTE_BYTES - _KIND.size - _PATH.size
"""The most that a key may have that is asked for at another part, as a message of one."""


class PartEncoding:
    """The bytes of messages of a graph, and back."""

    def __init__(self, graph: PartialGraph) -> None:
        self._graph = graph

    def encoded(self, edge: Edge, message: Message) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Return the batches and notes to send for a message."""
        match message:
            case Data(batch):
                yield batch, _KIND.pack(_DATA)
            case Response(number, keys, batch):
                path = self._graph.paths[number]
                names = path.columns[path.edges.index(edge)]
                for some in _split(keys, KEY_BYTES):
                    yield only(names, message, some), _note(_RESPONSE, number, some)
            case Eviction(number, keys):
                if keys is None or sendable(keys).num_rows < keys.num_rows:
                    yield self._nothing(edge), _KIND.pack(_EVICTION) + _PATH.pack(number)
                    return
                for some in _split(keys, KEY_BYTES):
                    yield self._nothing(edge), _note(_EVICTION, number, some)

    def message(self, edge: Edge, batch: pa.RecordBatch, note: bytes) -> Message:
        """Return the message received on an edge. Raises DataflowError if it is another message."""
        if len(note) < _KIND.size:
            raise _strange(edge, "a note without a byte")
        (kind,) = _KIND.unpack_from(note)
        if kind == _DATA:
            return Data(batch)
        if len(note) < _KIND.size + _PATH.size:
            raise _strange(edge, f"a note of {len(note)} bytes")
        path = self._path(edge, note[_KIND.size :])
        keys = note[_KIND.size + _PATH.size :]
        match kind, keys:
            case (1, _) if keys:
                return Response(path.number, self._keys(edge, path, keys), batch)
            case 2, b"":
                return Eviction(path.number, None)
            case 2, _:
                return Eviction(path.number, self._keys(edge, path, keys))
        raise _strange(edge, f"a note of kind {kind}")

    def asked(self, upquery: Upquery) -> Iterator[bytes]:
        """Return the bytes to send for an upquery, all of whose keys can be sent."""
        for some in _split(upquery.keys, UPQUERY_BYTES - _PATH.size):
            yield _PATH.pack(upquery.path) + bytes(some.serialize())

    def upquery(self, edge: Edge, body: bytes) -> Upquery | None:
        """Return the upquery received on an edge; None: by a path that is not known here yet.

        It will be asked for again.

        Raises DataflowError if it is not an upquery.
        """
        if len(body) <= _PATH.size:
            raise _strange(edge, f"an upquery of {len(body)} bytes")
        if _PATH.unpack_from(body)[0] >= len(self._graph.paths):
            return None
        path = self._path(edge, body)
        return Upquery(path.number, self._keys(edge, path, body[_PATH.size :]))

    def _path(self, edge: Edge, data: bytes) -> Path:
        (number,) = _PATH.unpack_from(data)
        path = self._graph.paths.known(number)
        if path is None or edge not in path.edges:
            raise _strange(
                edge, f"path {number} (of {len(self._graph.paths)}), which is not a path of this edge"
            )
        return path

    def _keys(self, edge: Edge, path: Path, data: bytes) -> pa.RecordBatch:
        types = self._types(path)
        schema = pa.schema([(f"key{index}", type_) for index, type_ in enumerate(types)])
        try:
            keys = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            keys.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise _strange(edge, f"keys that cannot be read ({error})") from error
        return batch_of(keys.columns)

    def _types(self, path: Path) -> Sequence[pa.DataType]:
        schema = arrow_schema(self._graph.plan.schemas[path.edges[-1].producer])
        return [schema.field(name).type for name in path.columns[-1]]

    def _nothing(self, edge: Edge) -> pa.RecordBatch:
        return empty(weighted(arrow_schema(self._graph.plan.schemas[edge.producer])))


def sendable(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Those of the keys of which each alone is not too large to be asked for at another part."""
    if pa.ipc.get_record_batch_size(keys) <= KEY_BYTES:
        return keys
    return keys.filter(pa.array([each <= KEY_BYTES for each in key_sizes(keys)], pa.bool_()))


def key_sizes(keys: pa.RecordBatch) -> list[int]:
    """How many bytes each of the keys has as a message of its own."""
    return [pa.ipc.get_record_batch_size(_apart(keys.slice(row, 1))) for row in range(keys.num_rows)]


def _note(kind: int, path: int, keys: pa.RecordBatch) -> bytes:
    return _KIND.pack(kind) + _PATH.pack(path) + bytes(keys.serialize())


def _split(keys: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The keys in pieces, of which none is larger than that as a message. Raises DataflowError for one that is."""
    size = pa.ipc.get_record_batch_size(keys)
    if size <= most:
        yield keys
    elif keys.num_rows == 1:
        raise DataflowError(f"a key has {size} bytes, but the limit is {most} for requests over a network")
    else:
        half = keys.num_rows // 2
        yield from _split(_apart(keys.slice(0, half)), most)
        yield from _split(_apart(keys.slice(half)), most)


def _apart(keys: pa.RecordBatch) -> pa.RecordBatch:
    """A copy, of which nothing else is sent with it."""
    return pa.concat_batches([keys])


def _strange(edge: Edge, what: str) -> DataflowError:
    return DataflowError(
        f"{edge.consumer} received {what} from {edge.producer}: run both with the same version and the same "
        f"query"
    )
