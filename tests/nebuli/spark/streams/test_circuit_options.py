"""The options of circuits, and the rows of outputs as Spark has them: what is wrong is one sentence."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nebuli.spark.streams.circuit_links import output_schema
from nebuli.spark.streams.circuit_options import read_options, write_options
from nebuli.spark.streams.step_ranges import Steps
from netchannel import Tls
from spark_bridge import OptionError, SchemaConflict

HERE = {"circuit": "10.0.0.5:7000/4f"}


def test_options_are_what_they_say() -> None:
    given = HERE | {
        "secret": "horse",
        "tls.certificate": "c",
        "tls.key": "k",
        "tls.authority": "a",
        "TIMEOUT": "5",
    }
    read = read_options(
        given | {"output": "totals", "startingstep": "Earliest", "appendonly": "TRUE"}, "streaming read"
    )
    assert (read.output, read.starting, read.ending, read.append_only) == (
        "totals",
        "earliest",
        "latest",
        True,
    )
    assert (read.place.address, read.place.timeout_s) == ("10.0.0.5:7000/4f", 5.0)
    assert (read.place.secret, read.place.tls) == ("horse", Tls("c", "k", "a", None))
    assert "horse" not in repr(read)
    written = write_options(HERE | {"input": "a", "txnAppId": "x", "txnVersion": "3"}, "batch write")
    assert (written.input, written.txn_app_id, written.txn_version) == ("a", "x", 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "o"}, "needs the option 'circuit': HOST:PORT, or HOST:PORT/ID"),
        (HERE, "needs the option 'output': the name of an output of the circuit"),
        (
            HERE | {"output": "o", "path": "x"},
            "takes no path: give the options 'circuit' and either 'input' or 'output'",
        ),
        (HERE | {"output": "o", "startingStep": "-1"}, "earliest, latest, or the number of a step, not '-1'"),
        (HERE | {"output": "o", "endingStep": "5"}, "endingStep is for a batch read"),
        (HERE | {"output": "o", "input": "a"}, "input is for a batch write or streaming write"),
        (HERE | {"output": "o", "tls.key": "k"}, "tls.certificate, tls.key and tls.authority together"),
        (
            {"circuit": "host", "output": "o"},
            "takes HOST:PORT, or HOST:PORT/ID as nebuli status prints it, not 'host'",
        ),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as error:
        read_options(options, "streaming read")
    assert said in str(error.value)


def test_steps_are_cut_into_parts_that_adjoin() -> None:
    for size in range(7):
        for pieces in range(1, 9):
            parts = Steps(3, 3 + size).cut(pieces)
            assert [step for part in parts for step in range(part.first, part.until)] == list(
                range(3, 3 + size)
            )
            assert len(parts) == min(size, pieces)


def test_an_output_is_read_in_sparks_types_with_weight_and_step() -> None:
    outputs = {"o": pa.schema([("n", pa.uint32()), ("at", pa.timestamp("us", tz="UTC"))])}
    changes = output_schema(outputs, "o", append_only=False)
    assert [(field.name, str(field.type)) for field in changes] == [
        ("n", "int64"),
        ("at", "timestamp[us, tz=UTC]"),
        ("_weight", "int64"),
        ("_step", "int64"),
    ]
    assert output_schema(outputs, "o", append_only=True).names == ["n", "at"]
    with pytest.raises(SchemaConflict, match="the circuit has no output 'p': it has o"):
        output_schema(outputs, "p", append_only=True)
