"""What a fragment computes: Z-sets, operators and circuits, pure and synchronous."""

from nebuli.dataflow.circuit import Circuit, OperatorStatistics
from nebuli.dataflow.errors import DataflowError, StateTooLarge
from nebuli.dataflow.progress import Progress
from nebuli.dataflow.types import arrow_schema, arrow_type
from nebuli.dataflow.zset import WEIGHT, insertions

__all__ = [
    "WEIGHT",
    "Circuit",
    "DataflowError",
    "OperatorStatistics",
    "Progress",
    "StateTooLarge",
    "arrow_schema",
    "arrow_type",
    "insertions",
]
