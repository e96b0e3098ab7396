"""The errors that spark_bridge raises beside netchannel's own.

::

    SparkBridgeError
    ├── NotInTask          no Spark task runs here, or one whose worker is not known
    ├── ChannelTemplate    the channel's name is no template, or does not tell partitions apart
    ├── InputIncomplete    Spark failed before the partition was complete
    └── SchemaConflict     a batch cannot be given the declared schema without a loss
"""

from __future__ import annotations

__all__ = ["ChannelTemplate", "InputIncomplete", "NotInTask", "SchemaConflict", "SparkBridgeError"]


class SparkBridgeError(Exception):
    """Base of all errors of this package."""


class NotInTask(SparkBridgeError):
    """What only a Spark task can do was called elsewhere."""


class ChannelTemplate(SparkBridgeError):
    """The channel's name has unknown fields, or gives two partitions the same channel."""


class InputIncomplete(SparkBridgeError):
    """The rows ended because Spark failed or was stopped above this task, not because there are no more."""


class SchemaConflict(SparkBridgeError):
    """A batch has not the columns or the types of the declared schema."""
