"""Spark as the engine of a fragment, and as what brings rows to a circuit and takes them from there.

As an engine: the worker keeps the rows of the fragment's sources in its own channels, which a Spark driver in its own
process reads; Spark's result comes back as staged groups, which count once even if a task is repeated, and goes to the
fragment's sink.

The data source ``circuit`` is in ``streams``; Spark imports it in each of its workers, without the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nebuli.spark.formats import register as register
    from nebuli.spark.spark_circuit import SparkCircuit as SparkCircuit

_HOMES = {
    "SparkCircuit": "nebuli.spark.spark_circuit",
    "register": "nebuli.spark.formats",
}
__all__ = ["SparkCircuit", "register"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
