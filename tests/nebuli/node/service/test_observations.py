"""A worker as standard tools see it: gRPC health and reflection, and metrics for Prometheus."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from nebuli.rpc import worker_pb2 as wire
from tests.nebuli.node.service.test_service import Worker
from tests.support.commands import Command
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


def test_health_and_reflection_are_the_standard_ones(tmp_path: Path) -> None:
    """DP-1: a plain gRPC client finds its way."""
    worker = Worker(tmp_path)
    try:
        health = health_pb2_grpc.HealthStub(worker.channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(worker.channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
        names = {service.name for service in answer.list_services_response.service}
        assert {"nebuli.worker.v1.Worker", "grpc.health.v1.Health"} <= names
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="nebuli.worker.v1.Worker")
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=60)
        assert answer.file_descriptor_response.file_descriptor_proto
    finally:
        worker.channel.close()
        worker.command.process.kill()
        worker.command.end()


def test_metrics_are_those_of_fragments_and_channels(tmp_path: Path) -> None:
    data, grpc_address = free_addresses(2)
    command = Command(
        "worker", "--data", data, "--grpc", grpc_address, "--metrics", "127.0.0.1:0", directory=tmp_path
    )
    try:
        command.wait_until_said("worker ready")
        (metrics,) = re.findall(r"metrics=(\S+)", (tmp_path / "stderr.txt").read_text("utf-8"))
        worker = object.__new__(Worker)
        worker.directory, worker.data, worker.command = tmp_path, data, command
        worker.channel = grpc.insecure_channel(grpc_address)
        worker.stub = wire_stub(worker.channel)
        (tmp_path / "numbers.csv").write_text("n\n1\n2\n3\n", "utf-8")
        copied = worker.register(worker.copies())
        waits = worker.register(worker.waits("somewhere"))
        worker.start(waits)
        worker.start(copied)
        worker.wait_for_state(copied, wire.STATE_FINISHED)

        def samples() -> dict[tuple[str, ...], float]:
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
                text = answer.read().decode()
            return {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }

        def with_both() -> dict[tuple[str, ...], float] | None:
            """The channel that is waited for is there once its fragment's process has said so."""
            found = samples()
            channel = any(key[0].startswith("netchannel_receiver_") and "somewhere" in key for key in found)
            return found if channel else None

        found = wait_for(with_both, "metrics of the channel, too")
        assert found["nebuli_fragment_rows_in_total", "copy", copied] == 3
        assert found["nebuli_fragment_late_rows_total", "copy", copied] == 0
        assert found["nebuli_fragment_rows_without_time_total", "copy", copied] == 0
        assert found["nebuli_fragment_state_bytes", "copy", copied] == 0
        assert ("nebuli_fragment_watermark_seconds", "copy", copied) not in found
        assert found["nebuli_fragment_state", "copy", copied, "finished"] == 1
        assert found["nebuli_fragment_state", "wait", waits, "running"] == 1
        worker.channel.close()
    finally:
        command.process.kill()
        command.end()


def wire_stub(channel: grpc.Channel):
    from nebuli.rpc.worker_pb2_grpc import WorkerStub

    return WorkerStub(channel)
