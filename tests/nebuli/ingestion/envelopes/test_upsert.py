"""Rows take the place of one another as a dict has it, at each time, and also after a new begin at any."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.ingestion.definition import UpsertEnvelope
from nebuli.ingestion.envelopes.upsert import Upsert
from nebuli.ingestion.errors import DefinitionInvalid, MessageInvalid
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.of_messages import rows_of
from tests.nebuli.ingestion.zsets import contents, table_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
KEY = ("k", "n")


def upsert(schema: pa.Schema = SCHEMA, key: tuple[str, ...] = KEY, deleted: str | None = "gone") -> Upsert:
    return Upsert(schema, UpsertEnvelope(type="upsert", key=key, deleted=deleted), source="orders")


def test_it_wants_the_column_that_says_what_is_deleted_which_is_not_in_the_collection() -> None:
    assert upsert().wants == SCHEMA.append(pa.field("gone", pa.bool_()))
    assert upsert().schema == SCHEMA
    assert upsert(deleted=None).wants == SCHEMA


def test_a_column_of_the_collection_may_say_it_and_has_to_be_a_bool() -> None:
    schema = pa.schema([("k", pa.string()), ("gone", pa.bool_())])
    envelope = upsert(schema, ("k",))
    assert envelope.wants == schema
    rows = [{"k": "a", "gone": False}, {"k": "b", "gone": None}, {"k": "c", "gone": True}]
    assert contents(envelope.apply({"": [rows_of(schema, rows)]}).output) == {("a", False): 1, ("b", None): 1}
    with pytest.raises(
        DefinitionInvalid, match="column v, which marks deleted rows, is double; expected bool"
    ):
        upsert(deleted="v")


def test_a_null_in_a_key_is_refused() -> None:
    envelope = upsert(deleted=None)
    rows = [{"k": "a", "n": 1}, {"k": "a", "n": None}]
    with pytest.raises(MessageInvalid, match=r"orders: the message at 8 of p: column n of the key is null"):
        envelope.apply({"": [rows_of(SCHEMA, rows, lower=7, part="p")]})


def test_equal_floats_are_one_key() -> None:
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    envelope = upsert(schema, ("k",), None)
    envelope.apply({"": [rows_of(schema, [{"k": 0.0, "v": 1}, {"k": float("nan"), "v": 1}])]})
    changes = envelope.apply({"": [rows_of(schema, [{"k": -0.0, "v": 2}, {"k": float("nan"), "v": 1}])]})
    assert contents(changes.output) == {(0.0, 1): -1, (0.0, 2): 1}


def test_of_one_time_the_last_counts_by_source_part_and_address() -> None:
    envelope = upsert(deleted=None)

    def one(value: float, lower: int, part: str = "") -> Messages:
        return rows_of(SCHEMA, [{"k": "a", "n": 1, "v": value}], lower=lower, part=part)

    changes = envelope.apply({"b": [one(1, 5, "p"), one(2, 9, "p"), one(3, 0, "q")], "a": [one(4, 99, "z")]})
    assert contents(changes.output) == {("a", 1, 3.0): 1}


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b"]),
        "n": st.integers(0, 2),
        "v": st.sampled_from([None, 0.5, 1.5, float("inf")]),
        "gone": st.sampled_from([None, False, True]),
    }
)


@given(times=st.lists(st.lists(ROW, max_size=5), max_size=6))
@settings(deadline=None)
def test_it_is_a_dict_at_each_time_and_after_a_new_begin_at_any(times: list[list[dict[str, Any]]]) -> None:
    envelope = upsert()
    model: dict[tuple[str, int], Any] = {}
    total: Counter[tuple[object, ...]] = Counter()
    for at, rows in enumerate(times):
        again = upsert()
        again.rehydrate(table_of(total, SCHEMA), {})
        messages = {"": [rows_of(envelope.wants, rows, lower=at)]}
        change = contents(envelope.apply(messages).output)
        assert contents(again.apply(messages).output) == change
        for row in rows:
            model.pop((row["k"], row["n"]), None)
            if not row["gone"]:
                model[row["k"], row["n"]] = row["v"]
        total = Counter({row: total[row] + change[row] for row in total | change if total[row] + change[row]})
        assert total == {(*key, value): 1 for key, value in model.items()}


@pytest.mark.long
def test_many_keys_fit_in_about_their_size_also_when_they_were_replaced() -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.int64())])
    keys = np.random.default_rng(1).permutation(200_000)

    def some(which: Any, value: int) -> Messages:
        texts = pa.array([f"the name of {each}" for each in which])
        batch = pa.record_batch([pa.array(which), texts, pa.array(np.full(len(which), value))], schema=schema)
        return Messages("", 0, len(which), np.arange(len(which)), batch)

    whole = some(keys, 0)
    envelope = upsert(schema, ("k",), None)
    envelope.rehydrate(pa.Table.from_batches([whole.rows]), {})
    assert envelope._rows.nbytes < 2 * whole.nbytes
    for value in range(1, 8):
        changed = some(keys[(value - 1) * 20_000 : value * 20_000], value)
        (change,) = envelope.apply({"": [changed]}).output
        assert change.num_rows == 40_000
    assert envelope._rows.nbytes < 4 * whole.nbytes
