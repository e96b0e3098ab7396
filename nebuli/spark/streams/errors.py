"""Errors between Spark and a circuit, in addition to those of `spark_bridge.errors`.

::

    SparkBridgeError
    └── CircuitStreamError     the circuit did not do it; the message names it, and the request
        ├── CircuitAway          it was not there for too long
        ├── BatchLost            rows staged by tasks are gone
        ├── StepsForgotten       steps to read are no longer kept
        ├── StepsReplaced        there are fewer steps than were read: it is another circuit
        └── RowTakenBack         an output that was to be append-only has retracted a row
"""

from __future__ import annotations

from spark_bridge.errors import SparkBridgeError

__all__ = [
    "BatchLost",
    "CircuitAway",
    "CircuitStreamError",
    "RowTakenBack",
    "StepsForgotten",
    "StepsReplaced",
]


class CircuitStreamError(SparkBridgeError):
    """The circuit did not do it."""


class CircuitAway(CircuitStreamError):
    """It was not there, did not answer, or had not caught up, until the deadline of the option ``timeout``."""


class BatchLost(CircuitStreamError):
    """Rows that tasks have staged of a batch are gone, and none of them count: the batch has to be run again.

    Spark ends the query with it; started again on its checkpoint, it does so.
    """


class StepsForgotten(CircuitStreamError):
    """Steps that are to be read are not kept any more."""


class StepsReplaced(CircuitStreamError):
    """The circuit has made fewer steps than the query has read: it is another one, or was started from scratch."""


class RowTakenBack(CircuitStreamError):
    """An output was to be read as rows that are only added, and has taken one back."""
