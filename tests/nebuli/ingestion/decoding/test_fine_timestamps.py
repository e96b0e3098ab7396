"""Decoders pass over zeros below the microsecond and refuse other digits: no message loses some without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nebuli.connectors.errors import InputError
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from nebuli.ingestion.decoding.avro_values import Unfit, converts
from nebuli.ingestion.decoding.csv_decoder import CsvDecoder
from nebuli.ingestion.decoding.json_decoder import JsonDecoder
from nebuli.ingestion.decoding.typed_columns import TypedColumns
from nebuli.ingestion.definition import CsvFormat
from nebuli.ingestion.errors import MessageInvalid
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.of_messages import payloads

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
MICROSECONDS = 1_461_147_130_123_456


def of_csv(text: str) -> Any:
    decoder = CsvDecoder(SCHEMA, CsvFormat(type="CSV", header=False), source="orders")
    return decoder.decode(payloads([f"1,\n2,{text}\n".encode()]), {}).rows["at"][1].value


def of_json(text: str) -> Any:
    decoder = JsonDecoder(SCHEMA, source="orders")
    return decoder.decode(payloads([b'{"id":1}\n', b'{"at":"%b"}\n' % text.encode()]), {}).rows["at"][1].value


def of_avro(text: str) -> Any:
    return converts("string", SCHEMA.field("at").type, {}, "at")(text)


def of_parquet(text: str) -> Any:
    column = pa.array([text.removesuffix("Z")]).cast(pa.timestamp("ns"))
    found = ArrowColumns(SCHEMA.remove(0), "orders", "file", "the source")
    return found.of(pa.record_batch({"at": column})).column("at")[0].value


@pytest.mark.parametrize("decoded", [of_csv, of_json, of_avro, of_parquet])
@pytest.mark.parametrize("zone", ["", "Z"])
def test_zeros_are_passed_over_and_other_digits_refused(decoded: Callable[[str], Any], zone: str) -> None:
    assert decoded(f"2016-04-20T10:12:10.123456000{zone}") == MICROSECONDS
    for text in (f"2016-04-20 10:12:10.123456789{zone}", f"2016-04-20 10:12:10.123456001{zone}"):
        with pytest.raises((MessageInvalid, Unfit, InputError)) as caught:
            decoded(text)
        shown = text.removesuffix("Z") if decoded is of_parquet else text
        # There is no setting to cut them, and so none is named.
        assert str(caught.value).endswith(
            f"column at: {shown!r} has digits below the microsecond, but a timestamp has at most "
            f"six decimals: write no more than six"
        )


def test_columns_in_nanoseconds_are_taken_where_nothing_is_lost() -> None:
    def decoded(nanoseconds: int) -> Any:
        rows = pa.record_batch({"id": [1], "at": pa.array([nanoseconds], pa.timestamp("ns"))})
        messages = Messages("", 0, 1, np.zeros(1, np.int64), rows)
        return TypedColumns(SCHEMA, source="orders").decode(messages, {}).rows["at"][0].value

    assert decoded(MICROSECONDS * 1000) == MICROSECONDS
    with pytest.raises(
        MessageInvalid, match=r"orders: in a message at 0 or later, column at .* would lose data"
    ):
        decoded(MICROSECONDS * 1000 + 1)
