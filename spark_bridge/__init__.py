"""Spark executors as ends of network channels.

Channels are a data source of ``spark.read`` and ``spark.readStream``, ``df.write`` and ``df.writeStream``, all with
``.format("netchannel")``. They can also be used within ``mapInArrow`` and ``foreachPartition``, where each partition
sends or receives a separate stream. PySpark is imported only within functions that need it, so that the other end of a
channel can use this package without PySpark.

Names are imported when they are first used, because Spark imports this package in every session that looks up a
format, even a format without channels.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ChannelTemplate as ChannelTemplate
    from .errors import CheckpointReplaced as CheckpointReplaced
    from .errors import DataLost as DataLost
    from .errors import InputIncomplete as InputIncomplete
    from .errors import NotInTask as NotInTask
    from .errors import OptionError as OptionError
    from .errors import SchemaConflict as SchemaConflict
    from .errors import SparkBridgeError as SparkBridgeError
    from .errors import UnsupportedSpark as UnsupportedSpark
    from .query_end import stop_at_end as stop_at_end
    from .registration import register as register
    from .tasks.task import complete as complete
    from .tasks.task_receiver import announced as announced
    from .tasks.task_receiver import open_inbox as open_inbox
    from .tasks.task_receiver import receive as receive
    from .tasks.task_sender import SENT as SENT
    from .tasks.task_sender import open_outbox as open_outbox
    from .tasks.task_sender import send as send

_HOMES = {
    "SENT": "spark_bridge.tasks.task_sender",
    "ChannelTemplate": "spark_bridge.errors",
    "CheckpointReplaced": "spark_bridge.errors",
    "DataLost": "spark_bridge.errors",
    "InputIncomplete": "spark_bridge.errors",
    "NotInTask": "spark_bridge.errors",
    "OptionError": "spark_bridge.errors",
    "SchemaConflict": "spark_bridge.errors",
    "SparkBridgeError": "spark_bridge.errors",
    "UnsupportedSpark": "spark_bridge.errors",
    "announced": "spark_bridge.tasks.task_receiver",
    "complete": "spark_bridge.tasks.task",
    "open_inbox": "spark_bridge.tasks.task_receiver",
    "open_outbox": "spark_bridge.tasks.task_sender",
    "receive": "spark_bridge.tasks.task_receiver",
    "register": "spark_bridge.registration",
    "send": "spark_bridge.tasks.task_sender",
    "stop_at_end": "spark_bridge.query_end",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
