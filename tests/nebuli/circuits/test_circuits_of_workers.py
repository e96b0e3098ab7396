"""Programs and a query in steps whose members and coordinator are fragments of workers, over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import nebuli.blocking
from nebuli import circuits
from nebuli.circuits import Circuit
from nebuli.rpc.trust import Trust
from tests.nebuli.circuits.conftest import (
    HANDLES,
    QUERY,
    Rows,
    added,
    batch,
    counted,
    read_until,
    refusal,
    totals,
)
from tests.support.authority import Authority
from tests.support.fleet import Fleet, MakeFleet, kept_secret, tls_keys
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]


def of_circuits(fleet: Fleet) -> Fleet:
    """All rows come out at the first node, sums at the second: a member at each, and the coordinator at the first."""
    columns = [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}]
    fleet.data["logical"] = [{"name": "sales", "schema": columns}]
    first, second = fleet.data["nodes"]
    del first["physical"]
    first["sinks"] = [{"name": "rows", "type": "Null"}]
    second["sinks"] = [{"name": "totals", "type": "CSV", "path": str(fleet.out)}]
    fleet.topology = fleet.written()
    fleet.query.write_text(QUERY, "utf-8")
    fleet.start()
    return fleet


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    return of_circuits(make_fleet())


def started(fleet: Fleet, *options: str) -> tuple[str, str]:
    """The id of the query, and where it is reached."""
    ended = fleet.run("start", "--stepped", *options, fleet.topology, fleet.query)
    assert ended.exit_code == 0, ended.stderr
    id_ = ended.stdout.strip()
    address = f"{fleet.grpc[0]}/{id_}"
    assert f"attached to a, b, c: programs push rows at {address}" in ended.stderr
    assert fleet.json("status", id_)["circuit"] == address
    assert f"programs reach it at {address}" in fleet.run("status", id_).stdout
    return id_, address


async def kill(fleet: Fleet, id_: str, fragment: str) -> None:
    os.kill(await asyncio.to_thread(fleet.pid_of, id_, fragment), signal.SIGKILL)


async def test_producers_and_consumers_go_on_through_the_kills_of_all_fragments(fleet: Fleet) -> None:
    """DBSP-REQ-8, DBSP-OUT-7: each row counts once though members and coordinator are killed in the middle of pushes.

    Consumers get each step once and in order.
    """
    id_, address = started(fleet, "--checkpoint-every", "0.5")
    numbers = 60
    expected: Rows = Counter((handle, each) for handle in HANDLES for each in range(numbers))

    async def push_all(circuit: Circuit, handle: str) -> None:
        for number in range(numbers):
            await circuit.push(handle, batch((handle, number)), producer="p", sequence=number)

    async with asyncio.timeout(200), Circuit(address, deadline_s=60.0) as circuit:
        assert list(circuit.inputs) == list(HANDLES)
        reading = asyncio.create_task(read_until(circuit, "rows", expected))
        sums = asyncio.create_task(read_until(circuit, "totals", totals(expected)))
        pushing = [asyncio.create_task(push_all(circuit, handle)) for handle in HANDLES]
        for fragment, after in (("member-1", 5), ("coordinator", 20), ("member-0", 40)):

            async def come_so_far(after: int = after) -> bool:
                return await circuit.next_sequence("a", "p") > after

            await until_async(come_so_far, f"{after} pushes")
            await kill(fleet, id_, fragment)
        await asyncio.gather(*pushing)
        for found in await asyncio.gather(reading, sums):
            assert [step for step, _ in found] == list(range(len(found)))
        assert (await circuit.status()).epoch >= 3
        step = await circuit.push("b", batch(("last", 1)), producer="p", sequence=numbers)
        step = await anext(at async for at, change in circuit.output("rows", step) if change.num_rows)
        ranges = await circuit.offsets(step)
        assert {channel.partition("/")[0] for channel in ranges} == set(HANDLES)
        assert sum(until - first for first, until in ranges.values()) == 1
        assert await circuit.checkpoint() == step + 1


async def test_it_is_paused_and_started_and_shut_down_and_started_again(fleet: Fleet) -> None:
    """FT-API-1, FT-API-2: paused it logs pushes and makes no step; shut down, sinks have results, and it goes on."""
    id_, address = started(fleet)
    row = batch(("x", 1))
    for run in range(2):
        async with asyncio.timeout(100), Circuit(address) as circuit:
            assert await circuit.next_sequence("a", "p") == 2 * run
            await until_async(partial(is_running, circuit), "all members are there")
            await circuit.pause()
            before = await circuit.status()
            assert before.paused
            for number in (2 * run, 2 * run + 1):
                assert await circuit.push("a", row, producer="p", sequence=number) == before.next_step
            assert await circuit.checkpoint() == before.next_step
            assert (await circuit.status()).next_step == before.next_step
            await circuit.start()
            await read_until(circuit, "rows", Counter({("x", 1): 2 * run + 2}))
            for fault, what in (
                (circuits.UnknownOutput, anext(circuit.output("none"))),
                (circuits.UnknownInput, circuit.next_sequence("d", "p")),
                (circuits.SequenceGap, circuit.push("a", row, producer="p", sequence=9)),
                (circuits.StepNotThere, circuit.offsets(1000)),
            ):
                with pytest.raises(fault):
                    await what
            if run:
                with pytest.raises(circuits.StepForgotten):
                    await circuit.offsets(0)
            whole = asyncio.create_task(to_the_end(circuit))
            await circuit.shut_down()
            assert (await whole)[("x", 2 * run + 2, 2 * run + 2)] == 1
        await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
        lines = fleet.out.read_text("utf-8").replace('"', "").splitlines()
        assert lines == ["shop,sales,amount", f"x,{2 * run + 2},{2 * run + 2}"]
        with pytest.raises(
            circuits.CircuitUnreachable, match=f"query {id_} is finished: 'nebuli start {id_}'"
        ):
            await Circuit(address, deadline_s=1.0).__aenter__()
        again = await asyncio.to_thread(fleet.run, "start", id_)
        assert again.exit_code == 0, again.stderr
    ended = await asyncio.to_thread(fleet.run, "stop", id_)
    assert ended.exit_code == 0, ended.stderr
    with pytest.raises(circuits.CircuitFailed, match="has no query in steps none: give Circuit the address"):
        await Circuit(f"{fleet.grpc[0]}/none").__aenter__()
    with pytest.raises(circuits.CircuitFailed, match=f"has no query in steps {id_}"):
        await Circuit(f"{fleet.grpc[1]}/{id_}").__aenter__()


async def is_running(circuit: Circuit) -> bool:
    return (await circuit.status()).phase == "running"


async def test_output_that_is_not_kept_any_more_is_said_through_workers(fleet: Fleet) -> None:
    """DBSP-OUT-2: with the first step that is, also by a process that has taken the member's place."""
    id_, address = started(fleet, "--keep-output", "0")
    async with asyncio.timeout(100), Circuit(address) as circuit:
        for number in range(4):
            step = await circuit.push("a", batch(("x", number)), producer="p", sequence=number)
            await read_until(circuit, "rows", Counter({("x", number): 1}), step)
            await circuit.checkpoint()

        forgotten = await until_async(lambda: refusal(circuit), "a step that is forgotten")
        assert f"the first kept step is {forgotten.bound}: read from that step" in str(forgotten)
        await kill(fleet, id_, "member-0")
        again = await refusal(circuit)
        assert again is not None
        assert again.bound >= forgotten.bound
        await read_until(circuit, "rows", Counter({("x", 3): 1}), step)


async def to_the_end(circuit: Circuit) -> Rows:
    """What an output adds up to when the circuit is shut down."""
    found: Rows = Counter()
    async for _, change in circuit.output("totals"):
        found = added(found, counted(change))
    return found


async def test_a_worker_that_is_started_again_has_its_circuit_where_it_was(fleet: Fleet) -> None:
    """The address stays, and a program that pushes meanwhile waits."""
    _, address = started(fleet, "--checkpoint-every", "0.5")
    async with asyncio.timeout(150), Circuit(address, deadline_s=60.0) as circuit:
        await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
        await asyncio.to_thread(fleet.kill, 0)
        pushing = asyncio.create_task(circuit.push("a", batch(("x", 1)), producer="p", sequence=1))
        await asyncio.to_thread(fleet.begin_again, 0)
        await pushing
        await read_until(circuit, "rows", Counter({("x", 1): 2}))


def test_the_topologys_certificates_and_secret_are_those_of_the_circuit(
    make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """Right ones work through worker and fragments; wrong ones are refused at the worker, with what to look at."""
    (tmp_path / "other").mkdir()
    authority = Authority(tmp_path)
    tls = authority.issue("node")
    fleet = make_fleet(tls=tls_keys(tls), secret=kept_secret(tmp_path))
    fleet.trust = Trust(tls, "correct horse")
    id_, address = started(of_circuits(fleet))
    with nebuli.blocking.Circuit(address, secret="correct horse", tls=tls) as circuit:
        circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
        os.kill(fleet.pid_of(id_, "coordinator"), signal.SIGKILL)
        circuit.push("a", batch(("x", 1)), producer="p", sequence=1)
        assert circuit.next_sequence("a", "p") == 2
    strange = Authority(tmp_path / "other").issue("client")
    for secret, shown, error, why in (
        ("wrong", tls, circuits.CircuitDenied, f"the worker of query {id_} has another secret"),
        (None, tls, circuits.CircuitDenied, "requires a secret"),
        (
            "correct horse",
            strange,
            circuits.CircuitUnreachable,
            "certificates are those of the circuit's topology",
        ),
        (
            "correct horse",
            None,
            circuits.CircuitUnreachable,
            "certificates are those of the circuit's topology",
        ),
    ):
        with (
            pytest.raises(error, match=why),
            nebuli.blocking.Circuit(address, secret=secret, tls=shown, deadline_s=3.0),
        ):
            pass
    with (
        pytest.raises(circuits.CircuitDenied, match="the worker of query none has another secret"),
        nebuli.blocking.Circuit(f"{fleet.grpc[0]}/none", secret="wrong", tls=tls),
    ):
        pass
