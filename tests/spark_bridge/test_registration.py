from __future__ import annotations

import asyncio
import subprocess
import sys

import pyarrow as pa
import pytest

from netchannel import RetainPolicy, SenderServer
from tests.support.spark import bare_environment

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import spark_bridge

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark_bridge.register(spark)
print(spark.read.format("netchannel").load(sys.argv[1]).count())
print(spark.sparkContext.pythonExec)
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
async def test_a_registered_format_runs_with_the_python_of_the_program(tmp_path):
    """SP-OPT-1: with no PYSPARK_PYTHON, and a python3 on the PATH that has no netchannel."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    async with SenderServer("127.0.0.1:0") as sender:
        outbox = sender.retain_channel("numbers", RetainPolicy())
        await outbox.send(pa.RecordBatch.from_pydict({"n": range(1000)}))
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "program.py", f"netchannel://{sender.address}/numbers"],
            cwd=tmp_path,
            env=bare_environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=240,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["1000", "python3"]  # Spark's other tasks run with what they ran with
