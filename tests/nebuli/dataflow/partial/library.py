"""Stories and who wrote them, books and their genres: bases for tests that tell what happens to a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import arrow_schema, zset
from nebuli.dataflow.partial import Base, Edge, PartialGraph, PartialNode
from placement.plan import AggregateOperator
from tests.nebuli.dataflow.partial.reference import contents
from topology import Column, DataType

TYPES = {"text": DataType.STRING, "int": DataType.INT64}


def base(id_: str, **columns: str) -> Base:
    return Base(id_, tuple(Column(name=name, type=TYPES[type_]) for name, type_ in columns.items()))


STORIES = base("stories", id="int", author="text")
AUTHORS = base("authors", author="text", karma="int")
BOOKS = base("books", title="int", genre="text")


def count(id_: str, input_: str, *by: str) -> AggregateOperator:
    return AggregateOperator(id=id_, input=input_, by=by, aggregates={"n": "count(*)"})


def rows(source: Base, given: Iterable[tuple[Any, ...]], weight: int = 1) -> pa.RecordBatch:
    listed = list(given)
    columns = [[row[index] for row in listed] for index, _ in enumerate(source.columns)]
    schema = arrow_schema(source.columns)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return zset.with_weights(pa.record_batch(arrays, schema=schema), np.full(len(listed), weight))


class Library(PartialGraph):
    """Every write is worked off at once, and reads wait for their rows."""

    def __init__(self, *nodes: PartialNode) -> None:
        super().__init__(nodes)
        self.bases = {node.id: node for node in nodes if isinstance(node, Base)}

    def give(self, name: str, *given: tuple[Any, ...]) -> None:
        self.write(name, rows(self.bases[name], given))

    def take(self, name: str, *taken: tuple[Any, ...]) -> None:
        self.write(name, rows(self.bases[name], taken, -1))

    def rows(self, view: str, *keys: Any) -> dict[tuple[Any, ...], int]:
        """All rows of these keys, which are filled if they are missing."""
        listed = [key if isinstance(key, tuple) else (key,) for key in keys]
        reading = self.read(view, listed)
        filled = [each for each in self.drain() if each.view == view]
        total = contents(reading.rows)
        for each in filled:
            total.update(contents(each.rows))
        return dict(total)

    def has(self, view: str, key: Any) -> bool:
        """Whether the key is there, without asking for it."""
        kept = next(iter(self.nodes[view].kept.values()))
        return bool(kept.has(pa.record_batch([pa.array([key], kept.types[0])], ["key0"]))[0])

    def forget(self, place: Any, *keys: Any) -> None:
        types = self.partial[place].types
        self.evict(place, pa.record_batch([pa.array(keys, types[0])], ["key0"]))
        self.drain()

    def sent_as(self, kind: str, *edges: Edge) -> int:
        """How many of a kind were sent, on these edges or on all."""
        return sum(
            number for (edge, name), number in self.sent.items() if name == kind and edge in (edges or {edge})
        )
