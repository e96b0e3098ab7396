"""What nebuli says to have written is there after a loss of power, in directories that were made for it, too."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.cli import saved_queries
from nebuli.connectors.endpoints import Sink
from nebuli.connectors.sinks.modes import AppendSink, FinalSink
from nebuli.connectors.sinks.outputs import GrowingFile, WholeFile, csv_rows
from nebuli.control.deployed_queries import DeployedQuery, GivenFile
from nebuli.durable_files import write_durably
from nebuli.node.records import FragmentRecord, Records
from nebuli.rpc.status import FragmentState, FragmentStatus
from placement import Fragment
from tests.power.machine import Machine, machine

pytestmark = pytest.mark.processes

SEEDS = range(8)


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as made:
        yield made


def each_seed(power: Machine, name: str) -> Iterator[Path]:
    """A directory that is not there, to write below, and what is left of it once the power was gone."""
    for seed in SEEDS:
        power.new_disk(f"{name} {seed}")
        power.power_on("on")
        yield power.place / "made" / "for it"
        power.cut()
        power.power_on("again")
        yield power.place / "made" / "for it"
        power.cut()


def test_what_the_disk_does_not_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says of a descriptor, which has no name, that there is no room."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nebuli.durable_files.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/state\.json'"):
        write_durably(tmp_path / "state.json", "text")


def test_a_query_that_was_registered(power: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GivenFile(path="/given", text="text")
    query = DeployedQuery(
        id="q-1", name="q", topology=file, query=file, registered="2026-01-01", fragments=(), plan=()
    )
    for place in (places := each_seed(power, "query")):
        monkeypatch.setenv("XDG_STATE_HOME", str(place))
        saved_queries.save(query)
        saved_queries.save(query.model_copy(update={"seed": 7}))
        next(places)
        assert saved_queries.load_all() == [query.model_copy(update={"seed": 7})]


def test_what_a_worker_remembers(power: Machine) -> None:
    fragment = Fragment(id="q/f", node="127.0.0.1:9", operators=())
    record = FragmentRecord(fragment=fragment, status=FragmentStatus("id", "q/f", FragmentState.RUNNING))
    for place in (places := each_seed(power, "worker")):
        with Records(place) as records:
            records.save(record)
        next(places)
        with Records(place) as records:
            assert records.load() == [record]


@pytest.mark.parametrize("mode", ["final", "append"])
def test_the_file_of_a_sink_that_has_finished(power: Machine, mode: str) -> None:
    batch = pa.record_batch({"n": [1, 2], "_weight": [1, 1]})
    for place in (places := each_seed(power, mode)):
        target = str(place / "rows.csv")
        sink: Sink = (
            FinalSink(WholeFile(target, csv_rows))
            if mode == "final"
            else AppendSink(GrowingFile(target, csv_rows))
        )
        sink.open(batch.schema)
        sink.write(batch)
        sink.finish()
        next(places)
        assert (place / "rows.csv").read_text("utf-8") == '"n"\n1\n2\n'
