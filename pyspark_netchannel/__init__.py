"""By this module's name Spark finds ``format("netchannel")`` by itself; what it is, is in `spark_bridge.source`."""

from __future__ import annotations

from spark_bridge.source import NetchannelDataSource as DefaultSource

__all__ = ["DefaultSource"]
