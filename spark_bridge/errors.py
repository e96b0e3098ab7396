"""The errors that spark_bridge raises in addition to netchannel's own.

::

    SparkBridgeError
    ├── NotInTask          no Spark task runs here, or one whose worker is not known
    ├── ChannelTemplate    the channel's name is not a template, or does not distinguish partitions
    ├── InputIncomplete    Spark failed before the partition was complete
    ├── SchemaConflict     a batch cannot be given the declared schema without a loss
    ├── OptionError        an option of the data source is unknown, of a wrong type, or missing
    ├── DataLost           messages that a query was to read are no longer kept
    ├── CheckpointReplaced another checkpoint than the one that has read or written under this name
    └── UnsupportedSpark   this version or mode of Spark cannot do it
"""

from __future__ import annotations

__all__ = [
    "ChannelTemplate",
    "CheckpointReplaced",
    "DataLost",
    "InputIncomplete",
    "NotInTask",
    "OptionError",
    "SchemaConflict",
    "SparkBridgeError",
    "UnsupportedSpark",
]


class SparkBridgeError(Exception):
    """Base of all errors of this package."""


class NotInTask(SparkBridgeError):
    """A function for Spark tasks was called elsewhere."""


class ChannelTemplate(SparkBridgeError):
    """The channel's name has unknown fields, or gives two partitions the same channel."""


class InputIncomplete(SparkBridgeError):
    """Spark failed or was stopped upstream of this task, so the rows of the task are incomplete."""


class SchemaConflict(SparkBridgeError):
    """A batch does not have the columns or the types of the declared schema."""


class OptionError(SparkBridgeError):
    """An option of the data source is unknown, has a value of a wrong type, or is missing."""


class DataLost(SparkBridgeError):
    """The next messages of a query are no longer kept, because the channel's server or its stream was replaced."""


class CheckpointReplaced(SparkBridgeError):
    """A query reads or writes under another query's name, e.g. because its checkpoint was deleted or replaced."""


class UnsupportedSpark(SparkBridgeError):
    """This version of PySpark, or this mode of writing, does not support the request."""
