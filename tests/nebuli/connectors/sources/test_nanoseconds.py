"""Timestamps with nanoseconds: zeros below the microsecond are passed over, other digits refused, or cut if asked."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import InputError
from nebuli.connectors.provider import source_of
from nebuli.connectors.sources.arrow_columns import ArrowColumns
from placement.plan import BoundSource
from tests.support.sizes import examples
from topology import ChannelSource, SourceConnector

Written = list[int | None]
"""Nanoseconds since 1970."""
Reader = Callable[[Written, str], list[int]]
UTC = pa.timestamp("us", tz="UTC")
FIRST, LAST = -(2**63) + 1000, 2**63 - 1000
NANOSECONDS = st.lists(
    st.integers(FIRST, LAST) | st.integers(FIRST // 1000, LAST // 1000).map(lambda n: n * 1000) | st.none(),
    min_size=1,
    max_size=4,
)


def text(nanoseconds: int | None, number: int) -> str | None:
    """A timestamp with all nine digits; each third one with a zone."""
    if nanoseconds is None:
        return None
    seconds, below = divmod(nanoseconds, 10**9)
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
    return f"{moment.isoformat(' ' if number % 2 else 'T')}.{below:09}{'Z' if number % 3 == 0 else ''}"


def texts(written: Written) -> list[str | None]:
    return [text(each, number) for number, each in enumerate(written)]


def read(**settings_: Any) -> list[Any]:
    operator = BoundSource.model_validate(
        {
            "id": "s",
            "logical": "l",
            "schema": [{"name": "n", "type": "int64"}, {"name": "at", "type": "timestamp"}],
            "physical": {"logical": "l", **settings_},
        }
    )
    source, values = source_of(operator, lambda: None), []
    try:
        source.open()
        while (batch := source.poll()) is not Signal.END:
            if isinstance(batch, pa.RecordBatch):
                assert batch.schema.field("at").type == UTC
                values += batch.column("at").cast(pa.int64()).to_pylist()
    finally:
        source.close("read")
    return values


def csv_rows(each_text: Sequence[str | None]) -> list[str]:
    return [f"{n},{each or ''}" for n, each in enumerate(each_text)]


def json_rows(each_value: Sequence[object]) -> list[str]:
    return [json.dumps({"n": n, "at": each}) for n, each in enumerate(each_value)]


def in_file(rows: list[str], **settings_: Any) -> list[Any]:
    Path("in.csv").write_text("".join(f"{row}\n" for row in ["n,at", *rows]), "utf-8")
    return read(type="CSV", path="in.csv", **settings_)


def by_tcp(rows: list[str], **settings_: Any) -> list[Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def give() -> None:
            with server.accept()[0] as peer:
                peer.sendall("".join(f"{row}\n" for row in rows).encode())

        thread = Thread(target=give)
        thread.start()
        try:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            return read(type="TCP", address=address, **settings_)
        finally:
            thread.join()


def table(written: Written, type_: pa.DataType) -> pa.Table:
    column = pa.array(written, pa.timestamp("ns")).cast(type_)
    return pa.table({"n": pa.array(range(len(written)), pa.int64()), "at": column})


def parquet_file(written: Written, timestamps: str) -> list[Any]:
    pq.write_table(table(written, pa.timestamp("ns", tz="America/New_York")), "in.parquet")
    return read(type="Parquet", path="in.parquet", timestamps=timestamps)


def dictionary(written: Written, timestamps: str) -> list[Any]:
    """As a kept channel gives its messages' columns."""
    batch = table(written, pa.timestamp("ns"))
    batch = batch.set_column(1, "at", batch.column("at").combine_chunks().dictionary_encode())
    setting = "truncate" if timestamps == "truncate" else "fail"
    columns = ArrowColumns(pa.schema([("at", UTC)]), "a channel", "channel", timestamps=setting)
    (given,) = [columns.of(each) for each in batch.to_batches()]
    return list(given.column("at").cast(pa.int64()).to_pylist())


def csv_file(written: Written, timestamps: str) -> list[Any]:
    return in_file(csv_rows(texts(written)), timestamps=timestamps)


def csv_lines(written: Written, timestamps: str) -> list[Any]:
    return by_tcp(csv_rows(texts(written)), timestamps=timestamps)


def json_lines(written: Written, timestamps: str) -> list[Any]:
    return by_tcp(json_rows(texts(written)), format="JSON", timestamps=timestamps)


def json_lines_after_a_number(written: Written, timestamps: str) -> list[Any]:
    """Arrow cannot read all objects at once then, as a number is not a text."""
    first, *others = by_tcp(json_rows([7, *texts(written)]), format="JSON", timestamps=timestamps)
    assert first == 7
    return others


READERS: dict[str, Reader] = {
    "CSV": csv_file,
    "CSV by TCP": csv_lines,
    "JSON by TCP": json_lines,
    "JSON by TCP, one by one": json_lines_after_a_number,
    "Parquet": parquet_file,
    "Arrow": dictionary,
}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(written=NANOSECONDS)
def test_microseconds_are_read_and_what_is_below_is_refused_or_cut(reader: Reader, written: Written) -> None:
    whole = [None if each is None else each // 1000 for each in written]
    assert reader(written, "truncate") == whole
    if all(each is None or each % 1000 == 0 for each in written):
        assert reader(written, "fail") == whole
    else:
        with pytest.raises(
            InputError, match=r"has digits below the microsecond, .* set `timestamps: truncate`"
        ):
            reader(written, "fail")


@pytest.mark.parametrize(
    ("reader", "place"),
    [
        (csv_file, "in.csv, line 3, column at: "),
        (csv_lines, "TCP 127.0.0.1:[0-9]+, line 2: column at: "),
        (json_lines, "TCP 127.0.0.1:[0-9]+, line 2: column at: "),
        (parquet_file, "in.parquet: column at: "),
    ],
)
def test_the_value_and_its_place_are_named(reader: Reader, place: str) -> None:
    with pytest.raises(InputError, match=f"^{place}'2016-04-20 10:12:10.123456789' has digits below"):
        reader([1461147130123456000, 1461147130123456789], "fail")


@pytest.mark.parametrize("timestamps", ["fail", "truncate"])
@pytest.mark.parametrize("first", ["2016-04-20 10:12:10.123456000", "2016-04-20"])
def test_what_is_no_timestamp_is_that_however_digits_are_taken(first: str, timestamps: str) -> None:
    written = [first, "soon.1234567", "2016-04-20 10:12:10.1234567"]
    for rows, reader, form in (
        (csv_rows(written), in_file, {}),
        (csv_rows(written), by_tcp, {}),
        (json_rows(written), by_tcp, {"format": "JSON"}),
    ):
        with pytest.raises(
            InputError, match=r"line [23].* column at: 'soon.1234567' is not a valid timestamp"
        ):
            reader(rows, timestamps=timestamps, **form)


@pytest.mark.parametrize("timestamps", ["fail", "truncate"])
@pytest.mark.parametrize("reader", [in_file, by_tcp])
def test_a_text_that_is_null_may_have_any_digits(reader: Callable[..., list[Any]], timestamps: str) -> None:
    null = "9999-12-31 23:59:59.999999999"
    rows = csv_rows([null, "1970-01-01T00:00:01.000002000", f'"{null}"', "-"])
    assert reader(rows, nulls=[null, "-"], timestamps=timestamps) == [None, 1_000_002, None, None]


def test_a_channel_has_the_setting_and_refuses_without_it() -> None:
    channel: SourceConnector = ChannelSource.model_validate(
        {"logical": "l", "type": "Channel", "address": "127.0.0.1:1", "channel": "c"}
    )
    assert channel.model_dump()["timestamps"] == "fail"
