"""Spark executors as ends of network channels, within ``mapInArrow`` and ``foreachPartition``.

Each partition sends or receives a stream of its own. PySpark is imported only within functions that need it, so
that the other end of a channel can use this package without it.
"""

from __future__ import annotations

from .errors import ChannelTemplate, InputIncomplete, NotInTask, SchemaConflict, SparkBridgeError
from .receiving import announced, open_inbox, receive
from .sending import SENT, open_outbox, send

__all__ = [
    "SENT",
    "ChannelTemplate",
    "InputIncomplete",
    "NotInTask",
    "SchemaConflict",
    "SparkBridgeError",
    "announced",
    "open_inbox",
    "open_outbox",
    "receive",
    "send",
]
