"""The computation of a fragment: Z-sets, operators and circuits, pure and synchronous."""

from nebuli.dataflow.errors import (
    CircuitChanged,
    DataflowError,
    StateDamaged,
    StateTooLarge,
    StateUnusable,
)
from nebuli.dataflow.operator_graph import OperatorGraph
from nebuli.dataflow.placed_operators import OperatorStatistics
from nebuli.dataflow.progress import Progress
from nebuli.dataflow.stepped_circuit import Offload, SteppedCircuit
from nebuli.dataflow.steps.exchange_parts import Received, Sending
from nebuli.dataflow.steps.saved_runs import Saved
from nebuli.dataflow.types import arrow_schema, arrow_type
from nebuli.dataflow.zset import WEIGHT, insertions

__all__ = [
    "WEIGHT",
    "CircuitChanged",
    "DataflowError",
    "Offload",
    "OperatorGraph",
    "OperatorStatistics",
    "Progress",
    "Received",
    "Saved",
    "Sending",
    "StateDamaged",
    "StateTooLarge",
    "StateUnusable",
    "SteppedCircuit",
    "arrow_schema",
    "arrow_type",
    "insertions",
]
