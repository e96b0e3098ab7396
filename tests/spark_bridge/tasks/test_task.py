from __future__ import annotations

import pickle
import subprocess
import sys

import pyarrow as pa
import pytest

import spark_bridge
from spark_bridge import OptionError
from spark_bridge.tasks.task import Task, check_no_table

ANYWHERE = "127.0.0.1:7000"


@pytest.mark.processes
def test_the_package_is_imported_without_pyspark():
    code = "import spark_bridge, sys; print([name for name in sys.modules if name.startswith('pyspark')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.processes
def test_spark_looks_the_format_up_without_what_channels_need():
    code = "import pyspark_netchannel, sys; print([name for name in ('netchannel', 'pyarrow') if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.processes
@pytest.mark.parametrize(("main", "passed_over"), [("pyspark.daemon", True), ("app", False)])
def test_collections_pass_over_what_is_loaded_in_processes_of_pyspark_only(tmp_path, main, passed_over):
    """A module of a user that collects is left as it is."""
    module = tmp_path / f"{main.replace('.', '/')}.py"
    module.parent.mkdir(exist_ok=True)
    (module.parent / "__init__.py").touch()
    module.write_text(
        "import gc; from spark_bridge.tasks.task import settle; settle(); print(gc.get_freeze_count() > 0)",
        "utf-8",
    )
    said = subprocess.run(
        [sys.executable, "-m", main], capture_output=True, encoding="utf-8", check=True, cwd=tmp_path
    )
    assert said.stdout.strip() == str(passed_over)


def test_what_is_public_is_there():
    assert all(getattr(spark_bridge, name).__doc__ for name in spark_bridge.__all__ if name != "SENT")


@pytest.mark.parametrize("template", ["rows/{part}", "rows/{}", "rows/{", "rows/{partition:x!}"])
def test_a_template_with_another_field_is_refused_on_the_driver(template):
    schema = pa.schema({"id": pa.int64()})
    with pytest.raises(spark_bridge.ChannelTemplate, match=r"its only field can be \{partition\}"):
        spark_bridge.send(template, ANYWHERE)
    with pytest.raises(spark_bridge.ChannelTemplate):
        spark_bridge.receive(template, ANYWHERE, schema)


def test_partitions_have_channels_of_their_own():
    assert [Task(0, n, 0).channel("rows/{partition}") for n in range(3)] == ["rows/0", "rows/1", "rows/2"]
    assert Task(0, 1, 0).channel("{{rows}}/{partition:03}") == "{rows}/001"


def test_one_partition_may_have_a_plain_name_and_a_second_may_not():
    assert Task(0, 0, 0).channel("rows") == "rows"
    with pytest.raises(spark_bridge.ChannelTemplate, match=r"this is partition 1: put \{partition\}"):
        Task(0, 1, 0).channel("rows")


def test_streams_of_attempts_differ_and_say_whose_they_are():
    task = Task(stage=3, partition=1, attempt=2)
    one, other = task.new_stream(), task.new_stream()
    assert one != other
    assert one.startswith("stage-3-partition-1-attempt-2-")


def test_functions_travel_to_executors():
    schema = pa.schema({"id": pa.int32(), "at": pa.timestamp("ns", tz="Europe/Paris")})
    for function in (
        spark_bridge.send("rows/{partition}", ANYWHERE, schema=schema),
        spark_bridge.receive("rows/{partition}", ANYWHERE, schema),
    ):
        assert pickle.loads(pickle.dumps(function)) == function


def test_outside_a_task_the_error_says_what_to_use():
    with (
        pytest.raises(spark_bridge.NotInTask, match=r"netchannel\.SenderServer"),
        spark_bridge.open_outbox("rows", ANYWHERE),
    ):
        pass


ID, ROOT, QUERY, CALL = (
    "spark.sql.execution.id",
    "spark.sql.execution.root.id",
    "sql.streaming.queryId",
    "callSite.short",
)


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        # What PySpark 4.3 tells tasks of save(), saveAsTable, foreachBatch, start() and toTable; and nothing at all.
        ({ID: "2", ROOT: "2"}, False),
        ({ID: "1", ROOT: "0"}, True),
        ({ID: "12", ROOT: "11", QUERY: "q", CALL: "start at Native.java:0"}, False),
        ({ID: "3", ROOT: "3", QUERY: "q", CALL: "start at Native.java:0"}, False),
        ({ID: "3", ROOT: "3", QUERY: "q", CALL: "toTable at Native.java:0"}, True),
        ({}, False),
    ],
    ids=["save", "saveAsTable", "foreachBatch", "start", "toTable", "unknown"],
)
def test_a_task_that_fills_a_table_is_told_from_others(monkeypatch, properties, refused):
    class Context:
        def getLocalProperty(self, key):  # noqa: N802 - Spark's name
            return properties.get(key)

    monkeypatch.setattr("pyspark.TaskContext.get", Context)
    if refused:
        with pytest.raises(OptionError, match=r"write with save\(\) or start\(\), instead of saveAsTable"):
            check_no_table()
    else:
        check_no_table()
