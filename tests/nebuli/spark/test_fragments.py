"""Fragments on Spark at a worker process: with and without an end, failed, stopped, and left alone."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.csv as csv
import pytest

from nebuli.rpc import worker_pb2 as wire
from placement import decompose, parse_query, place
from tests.nebuli.node.service.test_service import Worker
from tests.support.waiting import wait_for
from topology import Topology

pytestmark = [pytest.mark.spark, pytest.mark.processes]

COLUMNS = [{"name": "n", "type": "int64"}, {"name": "word", "type": "string"}]
OPERATORS = [
    {"id": "in", "type": "source", "logical": "numbers"},
    {"id": "odd", "type": "filter", "input": "in", "predicate": "n % 2 = 1"},
    {
        "id": "shown",
        "type": "project",
        "input": "odd",
        "columns": {"n": "n", "text": "upper(word) || '!'", "q": "6 // n"},
    },
    {"id": "out", "type": "sink", "input": "shown", "sink": "out"},
]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """All that it leaves behind for a while is in ``tmp_path / "temporary"``."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    worker = Worker(tmp_path)
    yield worker
    worker.channel.close()
    worker.command.process.kill()
    worker.command.end()


def registered(
    worker: Worker,
    physical: dict[str, Any],
    operators: list[dict[str, Any]],
    mode: str,
    columns: list[dict[str, str]] = COLUMNS,
    master: str = "local[1]",
) -> str:
    """A query that is one fragment on Spark."""
    sink = {"name": "out", "type": "CSV", "path": str(worker.directory / "out.csv"), "mode": mode}
    topology = {
        "logical": [{"name": "numbers", "schema": columns}],
        "nodes": [
            {
                "address": worker.data,
                "engine": "spark",
                "master": master,
                "physical": [{"logical": "numbers", **physical}],
                "sinks": [sink],
            }
        ],
    }
    placed = place(parse_query(json.dumps({"operators": operators})), Topology.model_validate(topology))
    (fragment,) = decompose(placed).fragments
    return worker.register(fragment.model_dump(mode="json", by_alias=True))


def rows(worker: Worker) -> list[tuple[Any, ...]]:
    """What the sink has."""
    path = worker.directory / "out.csv"
    if not path.exists() or not path.stat().st_size:
        return []
    return sorted(zip(*csv.read_csv(path).to_pydict().values(), strict=True))


def state(worker: Worker, id_: str) -> wire.FragmentStatus:
    """Once it is final."""
    final = (wire.STATE_FINISHED, wire.STATE_FAILED, wire.STATE_STOPPED)
    found = lambda: next((s for s in worker.statuses() if s.id == id_ and s.state in final), None)  # noqa: E731
    return wait_for(found, "an end", 90)


def spark_of(worker: Worker) -> list[psutil.Process]:
    """The driver and Java, once both are there."""

    def both() -> list[psutil.Process]:
        try:
            found = psutil.Process(worker.command.process.pid).children(recursive=True)
            drivers = [each for each in found if "nebuli.spark.driver" in each.cmdline()]
            started = [each for driver in drivers for each in driver.children(recursive=True)]
            return [*drivers, *started] if any(each.name() == "java" for each in started) else []
        except psutil.NoSuchProcess:  # some of what starts Java is gone as soon as it is seen
            return []

    return wait_for(both, "a driver with its Java", 60)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def nothing_is_left(worker: Worker, processes: list[psutil.Process]) -> None:
    """Neither processes nor files."""
    wait_for(lambda: not any(map(is_alive, processes)), f"the end of {processes}")
    wait_for(lambda: not list((worker.directory / "temporary").glob("nebuli-spark-*")), "no files of it")


EVENTS = [{"name": "t", "type": "timestamp"}, {"name": "n", "type": "int64"}]
BY_MINUTE = [
    {"id": "in", "type": "source", "logical": "numbers"},
    {"id": "minutes", "type": "window", "input": "in", "time": "t", "size": "1 minute", "slide": "30 seconds",
     "lateness": "10 seconds"},
    {"id": "known", "type": "filter", "input": "minutes", "predicate": "n <> 7"},
    {"id": "summed", "type": "aggregate", "input": "known", "by": ["window_start", "window_end"],
     "aggregates": {"rows": "count(*)", "total": "sum(n)"}},
    {"id": "out", "type": "sink", "input": "summed", "sink": "out"},
]  # fmt: skip
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def at(second: int) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=second)


def windows(seconds: Iterable[int]) -> list[tuple[Any, ...]]:
    """By hand: each second has one row, whose ``n`` is the second, and every window is there once."""
    counted: dict[int, list[int]] = {}
    for second in seconds:
        last = second // 30 * 30
        for start in (last, last - 30):
            if second != 7:
                counted.setdefault(start, []).append(second)
    return sorted((at(start), at(start + 60), len(each), sum(each)) for start, each in counted.items())


def test_windows_are_given_once_each_as_the_watermark_passes_them(worker: Worker) -> None:
    """SP-ENG-1, unbounded with watermarks: closed windows are there before the end, and at the end all of them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(90)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        id_ = registered(worker, {"type": "TCP", "address": address}, BY_MINUTE, "append", EVENTS)
        worker.start(id_)
        connection, _ = listener.accept()
        processes = spark_of(worker)
        seconds = [*range(100), *range(103, 99, -1), *range(104, 300)]  # some of them out of order, none late
        for few in (seconds[:200], seconds[200:]):
            connection.sendall("".join(f"{at(each).isoformat()},{each}\n" for each in few).encode())
            wait_for(lambda: closed(worker, 100 if few[0] == 0 else 200), "closed windows", 90)  # noqa: B023
        before = len(rows(worker))
        states = (worker.directory / "temporary").glob("nebuli-spark-*/spark/checkpoint/state/0/*[0-9]")
        assert sorted(each.name for each in states) == ["0", "1", "2"], "spark-defaults.conf says three"
        connection.close()
    status = state(worker, id_)
    assert (status.state, status.error) == (wire.STATE_FINISHED, "")
    assert (status.rows_in, status.rows_out) == (len(seconds), len(rows(worker)))
    assert before < len(rows(worker))
    found = [
        (start.replace(tzinfo=dt.UTC), end.replace(tzinfo=dt.UTC), *rest)
        for start, end, *rest in rows(worker)
    ]
    assert found == windows(range(300))
    nothing_is_left(worker, processes)


def closed(worker: Worker, until: int) -> bool:
    """Whether the windows that end before are there."""
    return [row for row in windows(range(300)) if row[1] <= at(until)] <= [
        (start.replace(tzinfo=dt.UTC), end.replace(tzinfo=dt.UTC), *rest)
        for start, end, *rest in rows(worker)
    ]


def test_a_row_that_cannot_be_computed_fails_the_fragment_and_writes_nothing(worker: Worker) -> None:
    """SP-ENG-1: an error of the embedded engine is one on Spark."""
    (worker.directory / "in.csv").write_text("n,word\n1,a\n-1,b\n0,c\n", "utf-8")
    operators = [
        OPERATORS[0],
        {"id": "shown", "type": "project", "input": "in", "columns": {"q": "6 // n"}},
        {"id": "out", "type": "sink", "input": "shown", "sink": "out"},
    ]
    source = {"type": "CSV", "path": str(worker.directory / "in.csv")}
    id_ = registered(worker, source, operators, "final")
    worker.start(id_)
    processes = spark_of(worker)
    status = state(worker, id_)
    assert status.state == wire.STATE_FAILED
    assert status.error.startswith("Spark: [DIVIDE_BY_ZERO] Division by zero.")
    assert not (worker.directory / "out.csv").exists()
    nothing_is_left(worker, processes)


@pytest.mark.parametrize("how", ["stop", "end", "kill"])
def test_spark_ends_with_its_fragment_and_with_its_worker(worker: Worker, how: str) -> None:
    id_ = registered(worker, {"type": "Generator", "rows_per_s": 100.0}, OPERATORS, "append")
    worker.start(id_)
    processes = spark_of(worker)
    match how:
        case "stop":
            worker.stop(id_)
            assert state(worker, id_).state == wire.STATE_STOPPED
        case "end":
            worker.command.process.terminate()
        case "kill":
            worker.command.process.kill()
    nothing_is_left(worker, processes)


def test_java_that_is_killed_fails_the_fragment_with_a_reason(worker: Worker) -> None:
    id_ = registered(worker, {"type": "Generator", "rows_per_s": 100.0}, OPERATORS, "append")
    worker.start(id_)
    processes = spark_of(worker)
    next(each for each in processes if each.name() == "java").kill()
    status = state(worker, id_)
    assert status.state == wire.STATE_FAILED
    assert status.error.startswith("Spark: ")
    nothing_is_left(worker, processes)
