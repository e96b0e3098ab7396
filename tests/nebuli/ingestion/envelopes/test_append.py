"""Rows that are added are there as often as they came."""

import pyarrow as pa

from nebuli.ingestion.envelopes.append import Append
from tests.nebuli.ingestion.of_messages import rows_of
from tests.nebuli.ingestion.zsets import contents

SCHEMA = pa.schema([("a", pa.int64())])


def test_every_row_is_added_also_one_that_is_there() -> None:
    envelope = Append(SCHEMA)
    changes = envelope.apply(
        {"b": [rows_of(SCHEMA, [{"a": 1}, {"a": 1}])], "a": [rows_of(SCHEMA, [{"a": None}])]}
    )
    assert contents(changes.output) == {(1,): 2, (None,): 1}
    assert envelope.apply({"b": [rows_of(SCHEMA, [])]}).output == []
