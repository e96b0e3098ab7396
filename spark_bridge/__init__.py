"""Spark executors as ends of network channels.

As a data source: ``spark.read`` and ``spark.readStream``, ``df.write`` and ``df.writeStream``, all with
``.format("netchannel")``. And within ``mapInArrow`` and ``foreachPartition``, where each partition sends or receives
a stream of its own. PySpark is imported only within functions that need it, so that the other end of a channel can
use this package without it.
"""

from __future__ import annotations

from .errors import (
    ChannelTemplate,
    CheckpointReplaced,
    DataLost,
    InputIncomplete,
    NotInTask,
    OptionError,
    SchemaConflict,
    SparkBridgeError,
    UnsupportedSpark,
)
from .receiving import announced, open_inbox, receive
from .registration import register
from .sending import SENT, open_outbox, send
from .task import complete

__all__ = [
    "SENT",
    "ChannelTemplate",
    "CheckpointReplaced",
    "DataLost",
    "InputIncomplete",
    "NotInTask",
    "OptionError",
    "SchemaConflict",
    "SparkBridgeError",
    "UnsupportedSpark",
    "announced",
    "complete",
    "open_inbox",
    "open_outbox",
    "receive",
    "register",
    "send",
]
