"""What goes wrong between Spark and a circuit, beside what `spark_bridge.errors` has.

::

    SparkBridgeError
    └── CircuitStreamError     the circuit did not do it; the message says which, and what it was asked for
        ├── CircuitAway          it was not there for too long
        ├── BatchLost            what tasks have staged is not there any more
        ├── StepsForgotten       steps that are to be read are not kept any more
        ├── StepsReplaced        there are fewer steps than were read: it is another circuit
        └── RowTakenBack         an output that was to be append-only has taken a row back
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
    """What tasks have staged of a batch is not there any more, and nothing of it counts: the batch has to be run again.

    Spark ends the query with it; started again on its checkpoint, it does so.
    """


class StepsForgotten(CircuitStreamError):
    """Steps that are to be read are not kept any more."""


class StepsReplaced(CircuitStreamError):
    """The circuit has made fewer steps than the query has read: it is another one, or has begun anew."""


class RowTakenBack(CircuitStreamError):
    """An output was to be read as rows that are only added, and has taken one back."""
