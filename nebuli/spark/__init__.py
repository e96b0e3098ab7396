"""Spark as the engine of a fragment.

The worker keeps what the fragment's sources give in channels of its own, which a Spark driver in a process of its own
reads; what Spark computes of it comes back as staged groups, which count once however often a task is tried, and goes
where the fragment's sink says.
"""

from __future__ import annotations

from nebuli.spark.spark_circuit import SparkCircuit

__all__ = ["SparkCircuit"]
