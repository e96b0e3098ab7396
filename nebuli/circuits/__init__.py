"""Running circuits from outside: rows in by producers' numbers, outputs by step, and the service that does it."""

from nebuli.circuits.circuit_client import Circuit
from nebuli.circuits.circuit_status import CircuitStatus
from nebuli.circuits.errors import (
    CheckpointNotMade,
    CircuitDenied,
    CircuitError,
    CircuitFailed,
    CircuitUnreachable,
    InputFull,
    SequenceError,
    SequenceGap,
    SequenceReused,
    StepForgotten,
    StepNotThere,
    StepUnavailable,
    UnknownInput,
    UnknownOutput,
    WrongRows,
)

__all__ = [
    "CheckpointNotMade",
    "Circuit",
    "CircuitDenied",
    "CircuitError",
    "CircuitFailed",
    "CircuitStatus",
    "CircuitUnreachable",
    "InputFull",
    "SequenceError",
    "SequenceGap",
    "SequenceReused",
    "StepForgotten",
    "StepNotThere",
    "StepUnavailable",
    "UnknownInput",
    "UnknownOutput",
    "WrongRows",
]
