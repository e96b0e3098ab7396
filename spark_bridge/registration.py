"""Making the data source known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession | Any) -> None:
    """Make ``format("netchannel")`` known to a session, classic or Connect.

    Where this package is installed Spark finds the format by itself, by the module ``pyspark_netchannel``. This is
    for sessions that get at the code in another way.

    Raises:
        UnsupportedSpark: this PySpark has no such data sources.
    """
    from .versions import check_version

    check_version()
    from .source import NetchannelDataSource

    spark.dataSource.register(NetchannelDataSource)
