"""One local Spark per test module, with this Python on loopback."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module")
def start_spark() -> Iterator[Callable]:
    """Starts a session with a given master; it ends with the module."""
    sessions = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")

        def start(master: str):
            from pyspark.sql import SparkSession

            settings = {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
                "spark.sql.session.timeZone": "Asia/Tokyo",
                "spark.log.level": "OFF",
            }
            builder = SparkSession.builder.master(master)
            for key, value in settings.items():
                builder = builder.config(key, value)
            sessions.append(builder.getOrCreate())
            return sessions[-1]

        yield start
        with warnings.catch_warnings():
            # py4j leaves its sockets to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            for session in sessions:
                session.stop()
            sessions.clear()
            gc.collect()
