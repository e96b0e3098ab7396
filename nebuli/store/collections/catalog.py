"""The contents of a store of collections: names, schemas and renditions, as rows of one shard. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.store.errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SHARD = "collections/catalog"
_ROW = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("more", pa.binary(), nullable=False),
    ]
)
SCHEMA = weighted(_ROW)
Timed = Literal["store", "writers"]
"""The origin of times: the store, for inserted rows; or the writers themselves."""


@dataclass(frozen=True, slots=True)
class Rendition:
    """A version of a collection, in so many ``shards``; the collection is it, or was it, from ``begin`` on.

    Its ``id`` is in the names of its shards: one that was dropped may be made again by its name, and is another.
    ``extended``: a handover in progress has added the rows inserted up to this time.
    """

    collection: str
    name: str
    id: str
    shards: int
    begin: int | None = None
    extended: int | None = None

    def shard_names(self) -> list[str]:
        """Their names in the store."""
        prefix = f"collections/{self.collection}/{self.name}.{self.id}"
        return [f"{prefix}/{number}" for number in range(self.shards)]

    def row(self) -> tuple[str, str, str, bytes]:
        """The rendition in the catalog."""
        more = {"id": self.id, "shards": self.shards, "begin": self.begin}
        if self.extended is not None:
            more["extended"] = self.extended
        return "rendition", self.collection, self.name, _packed(more)


@dataclass(frozen=True, slots=True)
class Entry:
    """A collection of rows with a ``schema``, without weights, that can be read back for ``history_ms``."""

    id: str
    name: str
    schema: pa.Schema
    timed: Timed
    history_ms: int
    created: int
    renditions: Mapping[str, Rendition] = field(default_factory=dict)

    @property
    def metadata(self) -> str:
        """The name of the shard with its renditions."""
        return f"collections/{self.id}/renditions"

    @property
    def producers(self) -> str:
        """The name of the shard with each producer's last insertion."""
        return f"collections/{self.id}/producers"

    def shard_names(self) -> list[str]:
        """All that the store has of it."""
        shards = [name for each in self.renditions.values() for name in each.shard_names()]
        return [self.metadata, self.producers, *shards]

    def row(self) -> tuple[str, str, str, bytes]:
        """The collection in the catalog, without its renditions."""
        more = {
            "schema": self.schema.serialize().to_pybytes(),
            "timed": self.timed,
            "history_ms": self.history_ms,
            "created": self.created,
        }
        return "collection", self.id, self.name, _packed(more)


@dataclass(frozen=True, slots=True)
class Doomed:
    """Shards that were dropped, and whose blobs may still be there."""

    name: str
    shards: Sequence[str]

    def row(self) -> tuple[str, str, str, bytes]:
        """Return the row of a doomed shard in the catalog."""
        return "doomed", self.name, "", _packed({"shards": list(self.shards)})


@dataclass(frozen=True, slots=True)
class Catalog:
    """All of it at one moment, which ``upper`` stands for."""

    upper: int
    entries: Mapping[str, Entry]
    doomed: Sequence[Doomed]

    @classmethod
    def of(cls, upper: int, contents: pa.Table) -> Catalog:
        """From the rows of the shard. Raises Damaged."""
        entries: dict[str, Entry] = {}
        renditions: dict[str, dict[str, Rendition]] = {}
        doomed = []
        try:
            for kind, id_, name, packed, weight in zip(
                *(c.to_pylist() for c in contents.columns), strict=True
            ):
                if weight != 1:
                    raise ValueError(f"{kind} {name} has the weight {weight}")
                more = msgpack.unpackb(packed)
                if kind == "collection":
                    schema = pa.ipc.read_schema(pa.py_buffer(more.pop("schema")))
                    entries[name] = Entry(
                        id_, name, schema, **more, renditions=renditions.setdefault(id_, {})
                    )
                elif kind == "rendition":
                    renditions.setdefault(id_, {})[name] = Rendition(id_, name, **more)
                else:
                    doomed.append(Doomed(id_, more["shards"]))
        except (
            ValueError,
            TypeError,
            KeyError,
            msgpack.exceptions.UnpackException,
            pa.ArrowException,
        ) as error:
            raise Damaged(
                f"the catalog of collections cannot be read ({error}): restore the store's folder from a copy"
            ) from error
        return cls(upper, entries, doomed)


def changes(
    added: Iterable[Entry | Rendition | Doomed], removed: Iterable[Entry | Rendition | Doomed] = ()
) -> pa.RecordBatch:
    """The Z-set by which rows come into the catalog and go."""
    rows = [(*each.row(), 1) for each in added] + [(*each.row(), -1) for each in removed]
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _packed(more: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(more)
    return packed
