"""Fragments on a Spark that is not the worker's own: a cluster, and a server of Spark Connect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nebuli.rpc import worker_pb2 as wire
from tests.nebuli.node.service.test_service import Worker
from tests.nebuli.spark.test_fragments import OPERATORS, registered, rows, state, worker
from tests.support.ports import free_addresses
from tests.support.sockets import is_open
from tests.support.standalone_spark import java, standalone_cluster
from tests.support.waiting import wait_for

__all__ = ["worker"]

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and a worker of a standalone cluster."""
    with standalone_cluster(tmp_path) as master:
        yield master


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
        listener.settimeout(90)
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
