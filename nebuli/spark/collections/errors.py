"""Errors between Spark and a collection, in addition to those of `spark_bridge.errors`.

::

    SparkBridgeError
    └── CollectionStreamError    the store did not do it; the message names it, and the request
        ├── BatchLost              rows staged by tasks are gone
        ├── TimesForgotten         times to read are no longer kept
        ├── TimesReplaced          it is another collection than was read, or has not come as far
        └── RowTakenBack           rows that were only to be added were retracted
"""

from __future__ import annotations

from spark_bridge.errors import SparkBridgeError

__all__ = ["BatchLost", "CollectionStreamError", "RowTakenBack", "TimesForgotten", "TimesReplaced"]


class CollectionStreamError(SparkBridgeError):
    """The store, or the collection, did not do it."""


class BatchLost(CollectionStreamError):
    """Rows that tasks have staged of a batch are gone, and none of them count: the batch has to be run again.

    Spark ends the query with it; started again on its checkpoint, it does so.
    """


class TimesForgotten(CollectionStreamError):
    """Times that are to be read are not kept any more."""


class TimesReplaced(CollectionStreamError):
    """The collection is another one than the query has read, or has not come as far."""


class RowTakenBack(CollectionStreamError):
    """A collection was to be read as rows that are only added, and has taken one back."""
