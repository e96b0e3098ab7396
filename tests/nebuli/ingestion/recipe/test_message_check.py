"""Messages that cannot be decoded are told apart from those that can, however they come and are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.ingestion.decoding.json_decoder import JsonDecoder
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import PAYLOAD, Messages
from nebuli.ingestion.recipe.message_check import Checked
from nebuli.store.store_threads import StoreThreads

SCHEMA = pa.schema([("id", pa.int64())])
GOOD, WRONG = b'{"id": %d}\n', (b"no JSON\n", b'{"id": "five"}\n', b"{\n", b"\xff\n", b"[]\n")


class Counting(JsonDecoder):
    """Counts the messages that it was given."""

    given = 0

    def decode(self, messages: Messages, facts: Mapping[str, bytes]) -> Messages:
        self.given += messages.rows.num_rows
        return super().decode(messages, facts)


def checked(decoder: JsonDecoder, *, collects: bool) -> Checked:
    work = cast(StoreThreads, None)  # which decodes ahead, and is not asked here
    return Checked(decoder, lambda _: None, work, raw_source="data", rendition="r1", collects=collects)


def messages(payloads: Sequence[bytes]) -> Messages:
    """Each at the byte at which it begins."""
    addresses = np.cumsum([0, *map(len, payloads)])
    rows = pa.record_batch({PAYLOAD: pa.array(payloads, pa.binary())})
    return Messages("a.jsonl", 0, int(addresses[-1]), addresses[:-1], rows)


@given(
    st.lists(st.one_of(st.integers(0, 99).map(lambda n: GOOD % n), st.sampled_from(WRONG)), max_size=40),
    st.integers(1, 40),
)
def test_those_that_cannot_be_decoded_are_told_with_their_places(payloads: list[bytes], piece: int) -> None:
    """As each is alone: an object with a number is a row, and all else is told with its bytes and its address."""
    all_of_them = messages(payloads)
    decoder = checked(JsonDecoder(SCHEMA, source="orders"), collects=True)
    rows, wrong = [], []
    for first in range(0, len(payloads), piece):
        some = Messages(
            "a.jsonl", 0, all_of_them.upper,
            all_of_them.addresses[first : first + piece], all_of_them.rows.slice(first, piece),
        )  # fmt: skip
        made = decoder.decode(some, {})
        rows += zip(made.addresses.tolist(), made.rows.column("id").to_pylist(), strict=True)
        wrong += [(each.address, each.payload) for each in made.undecoded]
        assert all(f"the message at {each.address} of a.jsonl" in each.error for each in made.undecoded)
    at = all_of_them.addresses.tolist()
    assert rows == [(a, int(p[7:-2])) for a, p in zip(at, payloads, strict=True) if p not in WRONG]
    assert wrong == [(a, p) for a, p in zip(at, payloads, strict=True) if p in WRONG]


def test_many_that_cannot_be_decoded_cost_little_more_than_others() -> None:
    """One in a hundred of 10,000: each is looked for among ever fewer, and not among all."""
    payloads = [WRONG[0] if n % 100 == 0 else GOOD % n for n in range(10_000)]
    counting = Counting(SCHEMA, source="orders")
    made = checked(counting, collects=True).decode(messages(payloads), {})
    assert (made.rows.num_rows, len(made.undecoded)) == (9_900, 100)
    assert counting.given < 20 * len(payloads)


def test_where_they_are_not_collected_the_first_is_an_error() -> None:
    decoder = checked(JsonDecoder(SCHEMA, source="orders"), collects=False)
    with pytest.raises(MessageInvalid, match=r"orders: the message at 10 of a\.jsonl"):
        decoder.decode(messages([GOOD % 1, WRONG[0], GOOD % 2]), {})
