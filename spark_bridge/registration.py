"""Making the data source known to a session."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_UNCHOSEN = "python3"
"""PySpark's default if PYSPARK_PYTHON is not set: the first one on the PATH."""


def register(spark: SparkSession | Any) -> None:
    """Make ``format("netchannel")`` known to a session, classic or Connect.

    If this package is installed, Spark finds the format automatically, by the module ``pyspark_netchannel``. This
    function is for sessions that get the code in another way.

    The data source runs with the Python that ``PYSPARK_PYTHON`` named when the session was created. If it was not set,
    and tasks run on this machine (``local[*]``), the data source runs with the Python of this process.

    Raises:
        UnsupportedSpark: this PySpark has no such data sources.
    """
    from .versions import check_version

    check_version()
    from .source import NetchannelDataSource

    with python_of(spark):
        spark.dataSource.register(NetchannelDataSource)


@contextmanager
def python_of(spark: SparkSession | Any) -> Iterator[None]:
    """Run formats registered in this block with this Python, if none is configured and all of it runs here."""
    from pyspark.sql import SparkSession

    context = spark.sparkContext if isinstance(spark, SparkSession) else None  # Connect has none
    if context is None or context.pythonExec != _UNCHOSEN or not (context.master or "").startswith("local"):
        yield
        return
    context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = _UNCHOSEN
