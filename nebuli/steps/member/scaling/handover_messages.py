"""State that a member gives to its successor: a header, as the note of a message, and the bytes that it describes."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.steps.logs.remap import Address
from nebuli.steps.protocol.messages import Vocabulary, number, packed, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.dataflow.steps.resharding import Counting, Numbers, Part


@dataclass(frozen=True, slots=True)
class RunPart:
    """A part of a run of an operator's state, as saved state has it, and its name there."""

    operator: str
    name: str


@dataclass(frozen=True, slots=True)
class RunsCount:
    """Which parts of runs count, as JSON; no other one does."""


@dataclass(frozen=True, slots=True)
class OperatorNumbers:
    """State of operators other than rows, as JSON."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of an input that count for no step yet."""

    handle: str


@dataclass(frozen=True, slots=True)
class ProducersKnown:
    """The records of producers."""


@dataclass(frozen=True, slots=True)
class Stands:
    """Between which steps it is, and where its sources are read on, as JSON."""

    step: int


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Rows of an output at a step; of those before ``first`` nothing is kept."""

    output: str
    first: int
    step: int


@dataclass(frozen=True, slots=True)
class OutputStands:
    """The output's rows up to a step have come."""

    output: str
    first: int
    until: int


@dataclass(frozen=True, slots=True)
class SinkStands:
    """The position of an output's sink, as JSON."""

    output: str


@dataclass(frozen=True, slots=True)
class SinkRows:
    """A part of what the steps of an output add up to, for its sink."""

    output: str


@dataclass(frozen=True, slots=True)
class SinkAdded:
    """That is what the steps below one add up to."""

    output: str
    until: int


Given = (
    RunPart
    | RunsCount
    | OperatorNumbers
    | Waiting
    | ProducersKnown
    | Stands
    | OutputPart
    | OutputStands
    | SinkStands
    | SinkRows
    | SinkAdded
)


def header(given: Given) -> bytes:
    """The note of the message."""
    return packed(_GIVEN.values(given))


def read_header(note: bytes, sender: str) -> Given:
    """Return the header of a message. Raises MalformedMessage, which names the sender."""
    return read(bytes(note), sender, _GIVEN.message)


_GIVEN: Vocabulary[Given] = Vocabulary(
    {
        "run": RunPart,
        "runs count": RunsCount,
        "numbers": OperatorNumbers,
        "waiting": Waiting,
        "producers": ProducersKnown,
        "stands": Stands,
        "output": OutputPart,
        "output stands": OutputStands,
        "sink": SinkStands,
        "sink rows": SinkRows,
        "sink added": SinkAdded,
    },
    {},
)


# -- the bytes


def numbers_as_bytes(numbers: Numbers) -> bytes:
    """For `OperatorNumbers`."""
    return json.dumps({key: dict(each) for key, each in numbers.items()}).encode()


def numbers_of(data: Any) -> Numbers:
    """Raises ValueError."""
    numbers = json.loads(bytes(data))
    values = [value for each in numbers.values() for value in each.values()]
    if not all(value is None or isinstance(value, int) for value in values):
        raise ValueError("expected numbers")
    return dict(numbers)


def counting_as_bytes(counting: Counting) -> bytes:
    """For `RunsCount`."""
    return json.dumps(counting).encode()


def counting_of(data: Any) -> Counting:
    """Raises ValueError."""
    return {
        str(operator): [(_parts(settled), _parts(fresh)) for settled, fresh in states]
        for operator, states in json.loads(bytes(data)).items()
    }


def _parts(found: Any) -> list[Part]:
    return [(str(name), number(rows)) for name, rows in found]


def addresses_as_bytes(addresses: Mapping[str, Address]) -> bytes:
    """For `Stands`."""
    return json.dumps({source: astuple(at) for source, at in addresses.items()}).encode()


def addresses_of(data: Any) -> Mapping[str, Address]:
    """Raises ValueError."""
    return {
        str(source): Address(str(position), number(rows), bool(awaited))
        for source, (position, rows, awaited) in json.loads(bytes(data)).items()
    }


def rows_as_bytes(rows: pa.RecordBatch) -> pa.Buffer:
    """A batch as an IPC message, whose schema the other end knows."""
    return rows.serialize()


def rows_of(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The rows, where they lie. Raises ValueError, OSError."""
    rows = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    rows.validate()
    return rows
