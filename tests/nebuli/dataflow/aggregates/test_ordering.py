"""Order codes sort as values do."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow import arrow_type
from nebuli.dataflow.aggregates.extremes import order_codes
from topology import DataType

VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    DataType.BOOL: st.booleans(),
    DataType.INT8: st.integers(-128, 127),
    DataType.INT64: st.integers(-(2**63), 2**63 - 1),
    DataType.UINT64: st.integers(0, 2**64 - 1),
    DataType.FLOAT32: st.floats(width=32),
    DataType.FLOAT64: st.floats(),
    DataType.STRING: st.text("\0aé🎉", max_size=10),
    DataType.BINARY: st.binary(max_size=10),
    DataType.DATE: st.dates(),
    DataType.TIMESTAMP: st.datetimes(timezones=st.just(dt.UTC)),
}


@pytest.mark.parametrize("type_", VALUES)
@given(st.data())
def test_codes_sort_as_values_do(type_: DataType, data: st.DataObject) -> None:
    values = pa.array(data.draw(st.lists(VALUES[type_], max_size=8)), arrow_type(type_))
    codes = order_codes(values.take(pc.sort_indices(values))).tolist()
    assert codes == sorted(codes)


@pytest.mark.parametrize("type_", [each for each in VALUES if each not in {DataType.STRING, DataType.BINARY}])
@given(st.data())
def test_only_text_may_share_a_code(type_: DataType, data: st.DataObject) -> None:
    values = pa.array(data.draw(st.lists(VALUES[type_], max_size=8)), arrow_type(type_))
    if type_ in {DataType.FLOAT32, DataType.FLOAT64}:
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
        nan = pa.scalar(float("nan"), values.type)
        values = pc.if_else(pc.is_nan(values), nan, values)  # Arrow tells NaNs apart by their bits
    assert len(set(order_codes(values).tolist())) == len(values.unique())
