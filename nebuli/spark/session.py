"""The Spark session that a fragment is computed in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "true",
    "spark.sql.variable.substitute": "false",  # ${...} is text like any other
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # The right side of AND and OR may fail where the left decides.
    "spark.sql.subexpressionElimination.skipForShortcutExpr": "true",
    # A constant that cannot be computed is not an error without rows; and a predicate that fails for a row that a join
    # drops is not an error above the join.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in ("ConstantFolding", "PushDownPredicates", "PushPredicateThroughJoin")
    ),
}
"""Settings with which Spark computes as the embedded engine does; for every session, on any master."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_LOCAL_PARTITIONS = "8"
"""Partitions if nothing else is set: of Spark's 200, each would have a state of its own on one machine."""


def is_local(master: str) -> bool:
    """True if Spark runs in processes of this machine."""
    return master.startswith("local")


def open_session(master: str, name: str, directory: Path) -> SparkSession:
    """A session at ``master``, in which the format ``netchannel`` is known; temporary files go to ``directory``."""
    from pyspark.sql import SparkSession

    from spark_bridge import register

    set_environment(master)
    if master.startswith("sc://"):
        spark = SparkSession.builder.remote(master).getOrCreate()
    else:
        builder = SparkSession.builder.master(master).appName(name)
        for key, value in driver_settings(master, directory).items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        if is_local(master) and not spark.sparkContext.getConf().contains(_PARTITIONS):
            spark.conf.set(_PARTITIONS, _LOCAL_PARTITIONS)
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    register(spark)
    return spark


def set_environment(master: str) -> None:
    """Set a driver's environment for Spark, unless the user has set it."""
    import pyspark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):  # its executors are started as from an installation of Spark
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))


def driver_settings(master: str, directory: Path) -> dict[str, str]:
    """Return settings that only the start of a driver can set; for all masters but a server of Spark Connect."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(directory),
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={directory}",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings
