"""Rows as JSON lines are what they were, whichever way they go."""

import datetime as dt
import json

import pyarrow as pa
import pytest

from nebuli.circuits.errors import WrongRows
from nebuli.dataflow.zset import weighted
from nebuli.http.json_rows import as_json, rows_of_lines

SCHEMA = weighted(
    pa.schema(
        [
            pa.field("key", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("bytes", pa.binary()),
            ("most", pa.uint64()),
        ]
    )
)
ROW = {
    "key": 1,
    "at": dt.datetime(2024, 2, 29, 3, 4, 5, 6, tzinfo=dt.UTC),
    "day": dt.date(2024, 2, 29),
    "bytes": b"\x00\xff",
    "most": (1 << 64) - 1,
}
SAID = {
    "key": 1,
    "at": "2024-02-29T03:04:05.000006+00:00",
    "day": "2024-02-29",
    "bytes": "AP8=",
    "most": 18446744073709551615,
}


def test_rows_are_read_as_they_are_written() -> None:
    nothing = dict.fromkeys(ROW) | {"key": 2}
    assert json.loads(as_json(ROW)) == SAID
    rows = rows_of_lines(as_json(ROW) + b"\n" + as_json(nothing | {"_weight": -2}), SCHEMA)
    assert rows.schema == SCHEMA
    assert rows.to_pylist() == [{**ROW, "_weight": 1}, {**nothing, "_weight": -2}]


@pytest.mark.parametrize("wrong", [{"day": "soon"}, {"day": 5}, {"bytes": "*"}, {"key": None}, {"other": 1}])
def test_what_is_no_row_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(
        WrongRows, match=r"with the columns key, at, day, bytes, most in each line: .*; nothing was kept"
    ):
        rows_of_lines(json.dumps(SAID | wrong).encode(), SCHEMA)
