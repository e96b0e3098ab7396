"""Contents are as if all rows were added up, and few of them are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from nebuli.dataflow.zset import weighted
from nebuli.store.shards import accumulation
from nebuli.store.shards.accumulation import Piece, each_once, none_taken_back

_KINDS = {
    "numbers and texts": pa.schema([("n", pa.int64()), ("s", pa.string())]),
    "texts": pa.schema([("s", pa.string())]),
    "floats": pa.schema([("f", pa.float64()), ("n", pa.int32())]),
}


def row(schema: pa.Schema, generator: random.Random, distinct: int) -> tuple[Any, ...]:
    drawn = generator.randrange(distinct)
    values = {
        pa.int64(): None if drawn % 7 == 0 else drawn % 5,
        pa.int32(): drawn % 3,
        pa.string(): None if drawn % 11 == 0 else f"s{drawn}",
        pa.float64(): float(drawn),
    }
    return tuple(values[field.type] for field in schema)


def piece(schema: pa.Schema, rows: list[tuple[Any, ...]], weights: list[int], *, consolidated: bool) -> Piece:
    columns = [
        pa.array(list(column), field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return Piece(pa.record_batch([*columns, pa.array(weights)], schema=weighted(schema)), consolidated)


def sums(found: Iterator[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    added: Counter[tuple[Any, ...]] = Counter()
    for *values, weight in found:
        added[tuple(values)] += weight
    return Counter({values: weight for values, weight in added.items() if weight})


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in table.to_pylist()]


@pytest.mark.parametrize("schema", _KINDS.values(), ids=_KINDS.keys())
@pytest.mark.parametrize("seed", range(12))
def test_contents_are_what_all_rows_add_up_to(
    schema: pa.Schema, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "_ROWS_AT_ONCE", 16)
    generator = random.Random(seed)
    distinct = generator.choice([5, 400])
    whole = sorted({row(schema, generator, distinct) for _ in range(200)}, key=str)
    pieces = [piece(schema, whole, [generator.choice([-1, 1, 1, 2]) for _ in whole], consolidated=True)]
    for _ in range(generator.randrange(4)):
        some = [row(schema, generator, distinct) for _ in range(generator.randrange(1, 15))]
        least = generator.choice([-2, 1])
        weights = [generator.randint(least, 2) for _ in some]
        pieces.append(piece(schema, some, weights, consolidated=False))
    expected = sums(each for part in pieces for each in rows_of(part.rows))
    once = rows_of(each_once(pieces, weighted(schema)))
    assert Counter({values: weight for *values_, weight in once if (values := tuple(values_))}) == expected
    assert len(once) == len(expected), "each stands once"
    given = rows_of(none_taken_back(pieces, weighted(schema)))
    assert sums(iter(given)) == expected
    assert all(weight > 0 or expected[tuple(values)] == weight for *values, weight in given)


def test_rows_that_nobody_took_back_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    consolidate = accumulation.consolidate
    monkeypatch.setattr(
        accumulation,
        "consolidate",
        lambda rows: compared.append(sum(map(len, rows))) or consolidate(rows),
    )
    schema = _KINDS["numbers and texts"]
    many = [(number, "s") for number in range(100_000)]
    pieces = [
        piece(schema, many, [1] * len(many), consolidated=True),
        piece(schema, many, [1] * len(many), consolidated=False),
    ]
    assert none_taken_back(pieces, weighted(schema)).num_rows == 200_000
    assert compared == []
    back = piece(schema, many[:10], [-1] * 10, consolidated=False)
    assert none_taken_back([*pieces, back], weighted(schema)).num_rows == 200_000 - 20 + 10
    assert each_once([pieces[0], back], weighted(schema)).num_rows == 100_000 - 10
    assert compared == [30, 20]
