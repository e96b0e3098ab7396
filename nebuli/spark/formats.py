"""Making the data sources ``circuit`` and ``collection`` known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession | Any) -> None:
    """Make ``format("circuit")`` and ``format("collection")`` known to a session, classic or Connect.

    Driver and executors run them with their own Python, which needs nebuli, too. Raises UnsupportedSpark.
    """
    from spark_bridge.registration import python_of
    from spark_bridge.versions import check_version

    check_version()
    from nebuli.spark.collections.collection_format import CollectionDataSource
    from nebuli.spark.streams.circuit_source import CircuitDataSource

    with python_of(spark):
        spark.dataSource.register(CircuitDataSource)
        spark.dataSource.register(CollectionDataSource)
