"""A session that knows the format, and a circuit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nebuli.spark
from tests.nebuli.spark.streams.served_circuit import ServedCircuit


@pytest.fixture(scope="module")
def spark(start_spark: Callable) -> Iterator:
    """With retries of tasks."""
    session = start_spark("local[2,4]")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    nebuli.spark.register(session)
    return session


@pytest.fixture
def circuit(tmp_path: Path) -> Iterator[ServedCircuit]:
    """One with two members."""
    served = ServedCircuit(tmp_path / "circuit")
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def one_circuit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCircuit]:
    """One for all tests of a module."""
    served = ServedCircuit(tmp_path_factory.mktemp("one") / "circuit")
    served.start()
    yield served
    served.stop()
