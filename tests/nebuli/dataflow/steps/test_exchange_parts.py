"""Exchanges: every row gets to one member, which depends on nothing but its key; and all members ask for the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import Received, Sending, SteppedCircuit, arrow_schema, zset
from nebuli.dataflow.hashing import hash_rows
from nebuli.dataflow.steps.exchange_parts import ExchangeParts, owners_of
from nebuli.dataflow.steps.origins import Seen
from placement.stepped_plan import AlignOperator, ExchangeOperator, GatherOperator, ShardOperator
from tests.nebuli.dataflow.dealing import Members, Row, rows_of
from tests.nebuli.dataflow.graphs import COLUMNS, ROWS, SOURCES, Graph
from tests.support.stepping import run_alone

SCHEMA = zset.weighted(arrow_schema(COLUMNS))


BITS = (1 << 64) - 1


def mixed(value: int) -> int:
    """The finalizer of splitmix64."""
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & BITS
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & BITS
    return value ^ value >> 31


def hash_in_integers(row: tuple[Any, ...]) -> int:
    """Of integers, texts, floats and nulls."""
    result = 0x2545F4914F6CDD1D
    for value in row:
        match value:
            case None:
                hashed = 0x9E3779B97F4A7C15
            case str():
                data = value.encode()
                powers = [pow(0x100000001B3, (1 << 16) + place, 1 << 64) for place, _ in enumerate(data)]
                total = sum((byte + 1) * power for byte, power in zip(data, powers, strict=True))
                hashed = mixed(total + len(data) & BITS)
            case float():
                bits = int.from_bytes(
                    np.float64(np.nan if value != value else value + 0.0).tobytes(), "little"
                )
                hashed = mixed(bits)
            case _:
                hashed = mixed(value & BITS)
        result = mixed((result * 3 & BITS) + hashed & BITS)
    return result


@given(st.lists(ROWS, min_size=1, max_size=8), st.sampled_from(["kgxn", "k", "gx", "n"]))
def test_a_hash_is_what_plain_integers_say(rows: list[Row], by: str) -> None:
    columns = [
        pa.array([row["kgxn".index(name)] for row in rows], arrow_schema(COLUMNS).field(name).type)
        for name in by
    ]
    wanted = [hash_in_integers(tuple(row["kgxn".index(name)] for name in by)) for row in rows]
    assert hash_rows(columns, len(rows)).tolist() == wanted


def test_keys_belong_to_the_members_that_they_always_belonged_to() -> None:
    """DBSP-DIST-7: stable over processes and versions. Worked out in plain integers, and written down."""
    keys: dict[Any, tuple[int, list[int]]] = {
        0: (0x386090F715DE812E, [0, 0, 0, 3]),
        7: (0xF447ADB000119634, [1, 2, 3, 15]),
        -1: (0xA41048DD7FB56424, [1, 1, 2, 10]),
        "JFK": (0x4A25A7090AFC3231, [0, 0, 1, 4]),
        "": (0x386090F715DE812E, [0, 0, 0, 3]),
        0.25: (0xB68E61D601BA7406, [1, 2, 2, 11]),
        None: (0x43CD71E9C3ADC34E, [0, 0, 1, 4]),
    }
    for key, (hashed, owners) in keys.items():
        column = pa.array([key], pa.string() if key is None else None)
        assert hash_rows([column], 1).tolist() == [hashed] == [hash_in_integers((key,))]
        found = [owners_of(np.array([hashed], dtype=np.uint64), members)[0] for members in (2, 3, 4, 16)]
        assert found == owners == [(hashed >> 32) * members >> 32 for members in (2, 3, 4, 16)]


KEYS = {
    "numbers in a row": pa.array(np.arange(100_000)),
    "multiples of a power of two": pa.array(np.arange(100_000) << 20),
    "times in seconds": pa.array(np.arange(100_000) * 1_000_000, pa.timestamp("us", tz="UTC")),
    "texts": pa.array([f"flight {number}" for number in range(100_000)]),
    "floats": pa.array(np.arange(100_000) / 8),
}


@pytest.mark.parametrize("members", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_members_have_equal_parts_of_the_keys(keys: Any, members: int) -> None:
    """DBSP-DIST-7: chi-square on 1e5 keys, below what chance exceeds once in ten thousand times."""
    counts = np.bincount(owners_of(hash_rows([keys], len(keys)), members), minlength=members)
    expected = len(keys) / members
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < {2: 15.14, 3: 18.42, 4: 21.11, 7: 27.86, 16: 44.26}[members]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = [
        pa.array([row[index] for row in rows], field.type) for index, field in enumerate(list(SCHEMA)[:-1])
    ]
    return pa.record_batch([*columns, pa.array([1] * len(rows), pa.int64())], schema=SCHEMA)


def sending(exchange: ExchangeParts, batches: list[pa.RecordBatch]) -> Sending:
    work = exchange.of_rows(batches)
    try:
        while True:
            next(work)
    except StopIteration as stop:
        sent: Sending = stop.value
        return sent


@given(
    st.lists(st.lists(ROWS, max_size=6), max_size=4), st.integers(1, 5), st.sampled_from([("k",), ("g", "x")])
)
def test_an_exchange_gives_each_row_to_the_member_of_its_key(
    batches: list[list[Row]], members: int, by: tuple[str, ...]
) -> None:
    """DBSP-DIST-6: equal keys meet at one member, whoever had them and in whatever batch."""
    exchange = ExchangeParts(ExchangeOperator(id="e", input="s", by=by), 3, SCHEMA, members)
    sent = sending(exchange, [batch_of(rows) for rows in batches])
    assert (sent.index, sent.senders, sent.receivers) == (3, tuple(range(members)), tuple(range(members)))
    found = Counter[Row]()
    for member, part in enumerate(sent.parts):
        for row in zip(*(column.to_pylist() for column in part.columns[:-1]), strict=True):
            key = tuple(row["kgxn".index(name)] for name in by)
            assert (hash_in_integers(key) >> 32) * members >> 32 == member
            found[repr(row),] += 1
    assert found == Counter((repr(row),) for rows in batches for row in rows)


def test_who_takes_part_is_said() -> None:
    rows = [batch_of([(number, "a", 0.5, 1) for number in range(100)])]
    shard = sending(ExchangeParts(ShardOperator(id="s", input="a", by=("k",), member=2), 0, SCHEMA, 4), rows)
    assert (shard.senders, shard.receivers) == ((2,), (0, 1, 2, 3))
    assert all(part.num_rows > 10 for part in shard.parts)
    gather = sending(ExchangeParts(GatherOperator(id="g", input="a", member=1), 0, SCHEMA, 3), rows)
    assert (gather.senders, gather.receivers) == ((0, 1, 2), (1,))
    assert [part.num_rows for part in gather.parts] == [0, 100, 0]
    align = ExchangeParts(AlignOperator(id="a", input="s"), 5, SCHEMA, 2).of_watermarks(
        [Seen(1, 2, 3), Seen(-2, -3, -1)]
    )
    assert (align.index, align.senders, align.receivers) == (5, (0, 1), (0, 1))
    assert [part.to_pydict() for part in align.parts] == [
        {"awaited": [1, -2], "others": [2, -3], "greatest": [3, -1], "_weight": [1, 1]}
    ] * 2


def test_a_member_without_rows_takes_part_all_the_same() -> None:
    """DBSP-DIST-9: what it sends is empty, and the step is complete."""
    graph = Graph()
    graph.add_sink(graph.add_aggregate("a", ("k",), {"g": "max(g)", "x": "sum(x)", "n": "count(*)"}))
    plan = graph.finish().plan(3)
    circuits = [SteppedCircuit(plan, member) for member in range(3)]
    given_ = batch_of([(number, "a", 0.5, 1) for number in range(9)]).select(circuits[0].inputs["a"].names)
    asked = asked_for(circuits[2], {})
    assert [each.index for each in asked] == [0, 1, 2]
    assert all(not part.num_rows for each in asked for part in each.parts)
    circuits[2] = SteppedCircuit(plan, 2)
    outputs = run_alone(circuits, [{"a": given_}, {}, {}])
    assert sum(sum(rows_of(each["out0"]).values()) for each in outputs) == 9


def asked_for(circuit: SteppedCircuit, inputs: Any) -> list[Sending]:
    """What a member asks for in a step in which nobody else has anything."""
    step, asked, answer = circuit.step(inputs), list[Sending](), None
    try:
        while True:
            given_ = step.send(answer)
            answer: Received | None = None
            if given_ is not None:
                asked.append(given_)
                answer = [
                    part if member == circuit.member else part.slice(0, 0)
                    for member, part in enumerate(given_.parts)
                ]
    except StopIteration:
        return asked


@settings(deadline=None)
@given(st.integers(0, 40))
def test_members_keep_disjoint_parts_of_what_one_keeps(seed: int) -> None:
    """DBSP-DIST-2: the union of their states is the state of one member."""
    graph = Graph()
    graph.add_sink(graph.add_join(["a", "b"], ("k", "n")))
    graph.add_sink(graph.add_aggregate("a", ("g",), {"k": "max(k)", "x": "sum(x)", "n": "count(*)"}))
    groups = []
    for count in (1, 4):
        members = Members(graph.plan(count), seed, SOURCES)
        for step in range(4):
            rows = [
                ((number * 7 % 40, f"{number % 31}", number / 4, number % 3), 1)
                for number in range(30 * step, 30 * step + 60)
            ]
            members.step({"a": rows, "b": rows[::2]})
        groups.append([states_of(circuit) for circuit in members.circuits])
    (alone,), parts = groups
    assert sum(parts, Counter()) == alone
    assert sum(len(part) for part in parts) == len(alone) > 100
    assert all(len(part) > len(alone) / 16 for part in parts)


def states_of(circuit: SteppedCircuit) -> Counter[Any]:
    """The keys of all rows that a member keeps, by operator."""
    found = Counter[Any]()
    for table, entries in circuit.save().tables.items():
        for key, encode in entries.items():
            if key == b"manifest":
                continue
            rows = pa.ipc.open_stream(encode()).read_all()
            columns = [name for name in rows.schema.names if not name.startswith("state") and name[0] != "_"]
            for row in rows.select(columns).to_pylist():
                found[table, repr(row)] += 1
    return Counter(dict.fromkeys(found, 1))
