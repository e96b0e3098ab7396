"""Fragments on a Spark that is not the worker's own: a cluster, and a server of Spark Connect."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from nebuli.rpc import worker_pb2 as wire
from tests.nebuli.spark.test_fragments import OPERATORS, registered, rows, state, worker
from tests.nebuli.worker.service.test_service import Worker
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

__all__ = ["worker"]

pytestmark = [pytest.mark.spark, pytest.mark.processes]

HOME = Path(pyspark.__file__).parent


def java(stack: ExitStack, log: Path, *arguments: str) -> None:
    """A process of Spark's, to the end of ``stack``."""
    process = subprocess.Popen(
        [str(HOME / "bin" / "spark-class"), *arguments],
        env={**os.environ, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
        stdout=stack.enter_context(log.open("wb")),
        stderr=subprocess.STDOUT,
    )

    def end() -> None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(20)
        _, alive = psutil.wait_procs(children, 20)
        for each in alive:
            each.kill()

    stack.callback(end)


def is_open(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and a worker of a standalone cluster."""
    (address,) = free_addresses(1)
    host, port = address.split(":")
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        log = tmp_path / "master.log"
        java(stack, log, f"{deploy}.master.Master", "--host", host, "--port", port, "--webui-port", "0")
        wait_for(lambda: is_open(address), "a master", 60)
        limits = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"), "--webui-port", "0"]
        java(
            stack,
            tmp_path / "worker.log",
            f"{deploy}.worker.Worker",
            "--host",
            host,
            *limits,
            f"spark://{address}",
        )
        wait_for(lambda: "Registering worker" in log.read_text(), "a worker", 60)
        yield f"spark://{address}"


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[str]:
    """A server of Spark Connect."""
    (address,) = free_addresses(1)
    with ExitStack() as stack:
        java(
            stack,
            tmp_path / "connect.log",
            "org.apache.spark.deploy.SparkSubmit",
            *("--master", "local[1]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--conf", f"spark.connect.grpc.binding.port={address.rpartition(':')[2]}"),
            *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
            "spark-internal",
        )
        wait_for(lambda: is_open(address), "a server of Spark Connect", 90)
        yield f"sc://{address}"


def lines(first: int, until: int) -> bytes:
    return "".join(f"{n},word{n}\n" for n in range(first, until)).encode()


def odd(until: int) -> list[tuple[Any, ...]]:
    return [(n, f"WORD{n}!", 6 // n) for n in range(1, until, 2)]


def test_a_cluster_computes_a_fragment(worker: Worker, cluster: str) -> None:
    """SP-ENG-1: the driver is with the worker, and tasks are on the cluster."""
    (worker.directory / "in.csv").write_bytes(b"n,word\n" + lines(0, 2000))
    physical = {"type": "CSV", "path": str(worker.directory / "in.csv")}
    id_ = registered(worker, physical, OPERATORS, "final", master=cluster)
    worker.start(id_)
    status = state(worker, id_)
    assert (status.state, status.error) == (wire.STATE_FINISHED, "")
    assert (status.rows_in, status.rows_out) == (2000, 1000)
    assert rows(worker) == odd(2000)
    assert list((worker.directory / "work").glob("app-*/*/stderr")), "an executor of the cluster"


def test_a_server_of_spark_connect_computes_a_stream(worker: Worker, connect: str) -> None:
    """SP-ENG-1: rows are there before the input ends, and all of them once it has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        id_ = registered(worker, {"type": "TCP", "address": address}, OPERATORS, "append", master=connect)
        worker.start(id_)
        connection, _ = listener.accept()
        connection.sendall(lines(0, 10))
        wait_for(lambda: rows(worker) == odd(10), "the first rows", 90)
        connection.sendall(lines(10, 2000))
        connection.close()
    status = state(worker, id_)
    assert (status.state, status.error) == (wire.STATE_FINISHED, "")
    assert (status.rows_in, status.rows_out) == (2000, 1000)
    assert rows(worker) == odd(2000)
