"""What goes wrong between Spark and a collection, beside what `spark_bridge.errors` has.

::

    SparkBridgeError
    └── CollectionStreamError    the store did not do it; the message says which, and what it was asked for
        ├── BatchLost              what tasks have staged is not there any more
        ├── TimesForgotten         times that are to be read are not kept any more
        ├── TimesReplaced          it is another collection than was read, or has not come as far
        └── RowTakenBack           rows that were only to be added were taken back
"""

from __future__ import annotations

from spark_bridge.errors import SparkBridgeError

__all__ = ["BatchLost", "CollectionStreamError", "RowTakenBack", "TimesForgotten", "TimesReplaced"]


class CollectionStreamError(SparkBridgeError):
    """The store, or the collection, did not do it."""


class BatchLost(CollectionStreamError):
    """What tasks have staged of a batch is not there any more, and nothing of it counts: the batch has to be run again.

    Spark ends the query with it; started again on its checkpoint, it does so.
    """


class TimesForgotten(CollectionStreamError):
    """Times that are to be read are not kept any more."""


class TimesReplaced(CollectionStreamError):
    """The collection is another one than the query has read, or has not come as far."""


class RowTakenBack(CollectionStreamError):
    """A collection was to be read as rows that are only added, and has taken one back."""
