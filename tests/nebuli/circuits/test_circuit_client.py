"""Programs that push into a circuit and read from it: real members, and a model of what the query gives."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import nebuli
import nebuli.blocking
from nebuli import circuits
from nebuli.circuits import Circuit
from nebuli.rpc.trust import Trust
from nebuli.steps.member.inputs.step_inputs import WAITING_ROWS
from netchannel import Tls
from tests.nebuli.circuits.conftest import (
    HANDLES,
    Rows,
    Serve,
    added,
    batch,
    counted,
    nonzero,
    read_until,
    refusal,
    totals,
    zset,
)
from tests.support.authority import Authority
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]


async def push_all(circuit: Circuit, handle: str, producer: str, batches: list[pa.RecordBatch]) -> None:
    """One after the other, from number 0 on."""
    for sequence, rows in enumerate(batches):
        await circuit.push(handle, rows, producer=producer, sequence=sequence)


def random_changes(random_: random.Random) -> list[Rows]:
    """Pushes of a producer who takes back rows that it has pushed before."""
    there: Rows = Counter()
    changes = []
    for _ in range(8):
        change: Rows = Counter((f"shop-{random_.randrange(5)}", random_.randrange(100)) for _ in range(20))
        change.subtract(random_.sample(sorted(there.elements()), min(5, there.total())))  # type: ignore[type-var]
        changes.append(nonzero(change))
        there = added(there, change)
    return changes


async def test_an_output_at_a_step_is_that_of_the_pushes_that_count_for_it(serve: Serve) -> None:
    """DBSP-REQ-11: what `offsets` says of each step, put into a model of the query, gives the step's output.

    Each input has one producer, whose numbers are thus those of its channel; rows are taken back, too.
    """
    pushed = {handle: random_changes(random.Random(handle)) for handle in HANDLES}
    async with serve(members=2) as here, nebuli.Circuit(here.address) as circuit:
        assert dict(circuit.inputs) == dict.fromkeys(HANDLES, batch().schema)
        assert circuit.outputs["totals"].names == ["shop", "sales", "amount"]
        async with asyncio.TaskGroup() as group:
            for handle, changes in pushed.items():
                rows = [zset(*((*row, weight) for row, weight in each.items())) for each in changes]  # type: ignore[arg-type]
                group.create_task(push_all(circuit, handle, f"only-{handle}", rows))
        expected: Rows = Counter()
        for each in (each for changes in pushed.values() for each in changes):
            expected = added(expected, each)
        rows_out = await read_until(circuit, "rows", expected)
        totals_out = await read_until(circuit, "totals", totals(expected))
        before: Rows = Counter()
        begins = dict.fromkeys(pushed, 0)
        changes_of_totals = dict(totals_out)
        for step, change in rows_out:
            replayed: Rows = Counter()
            for channel, (first, until) in (await circuit.offsets(step)).items():
                handle = channel.partition("/")[0]
                if until > first:
                    assert first == begins[handle], f"ranges of {channel} do not adjoin"
                    begins[handle] = until
                for each in pushed[handle][first:until]:
                    replayed = added(replayed, each)
            assert change == replayed, f"step {step}"
            now = added(before, replayed)
            difference = added(totals(now), Counter(dict.fromkeys(totals(before), -1)))
            assert changes_of_totals.get(step, Counter()) == difference, f"step {step}"
            before = now
        assert begins == dict.fromkeys(HANDLES, 8)


async def test_five_producers_push_to_three_handles_at_once(serve: Serve) -> None:
    """DBSP-REQ-6, DBSP-REQ-7: 5 producers x 3 handles, batches of 0, 1 and 10 000 rows, narrow and wide."""
    sizes = (1, 0, 10_000, 1, 0)
    expected: Rows = Counter()
    async with serve(members=2) as here, Circuit(here.address) as circuit, asyncio.TaskGroup() as group:
        for producer in range(5):
            for handle in HANDLES:
                width = 200 if producer == 4 else 1
                shop = f"{producer}{handle}" * width
                batches = [batch(*((shop, row) for row in range(size))) for size in sizes]
                expected.update(row for size in sizes for row in ((shop, row) for row in range(size)))
                group.create_task(push_all(circuit, handle, f"p{producer}", batches))
        await read_until(circuit, "rows", expected)


async def test_what_was_not_acknowledged_is_sent_again_and_counts_once(serve: Serve) -> None:
    """DBSP-REQ-8: a member is killed between send and acknowledgement, and the push goes to the one in its place.

    It is sent again after that, by the same number, without effect.
    """
    row = batch(("here", 1))
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        await circuit.push("a", row, producer="p", sequence=0)
        for member in range(2):
            here.kill(member, signal.SIGSTOP)
        pushing = asyncio.create_task(circuit.push("a", row, producer="p", sequence=1))

        async def sent() -> bool:
            return any(line._questions for line in here.run.calls)

        await until_async(sent, "the push is on its way")
        for member in range(2):
            here.kill(member)
        await pushing
        for sequence in (0, 1, 1):
            await circuit.push("a", row, producer="p", sequence=sequence)
        assert await circuit.next_sequence("a", "p") == 2
        await circuit.push("a", batch(("end", 0)), producer="p", sequence=2)
        await read_until(circuit, "rows", Counter({("here", 1): 2, ("end", 0): 1}))


@pytest.mark.story
async def test_kills_in_the_middle_of_pushes_lose_and_double_nothing(serve: Serve) -> None:
    """DBSP-REQ-8: members are killed again and again while 3 producers push, each row with a number of its own."""
    numbers = 40
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        tasks = [
            asyncio.create_task(
                push_all(circuit, handle, handle, [batch((handle, each)) for each in range(numbers)])
            )
            for handle in HANDLES
        ]
        for kill, after in enumerate((5, 15, 25)):

            async def come_so_far(after: int = after) -> bool:
                return await circuit.next_sequence("a", "a") > after

            await until_async(come_so_far, f"{after} pushes")
            here.kill(kill % 2)
        await asyncio.gather(*tasks)
        expected = Counter((handle, each) for handle in HANDLES for each in range(numbers))
        await read_until(circuit, "rows", Counter(expected))
        assert here.run.coordinator.epoch > 1


async def test_a_number_that_is_not_the_next_one_is_refused(serve: Serve) -> None:
    """DBSP-REQ-8: a producer learns which number the circuit has recorded last."""
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
        with pytest.raises(circuits.SequenceGap, match="number 2 for input a, but its next is 1") as gap:
            await circuit.push("a", batch(("x", 1)), producer="p", sequence=2)
        assert gap.value.expected == 1
        with pytest.raises(circuits.SequenceReused, match="already belongs to other rows") as reused:
            await circuit.push("a", batch(("y", 1)), producer="p", sequence=0)
        assert reused.value.expected == 1
        await circuit.push(
            "b", batch(("y", 1)), producer="p", sequence=0
        )  # at another input numbers begin anew
        await read_until(circuit, "rows", Counter({("x", 1): 1, ("y", 1): 1}))


async def read_to(circuit: Circuit, first: int, last: int) -> list[tuple[int, Rows]]:
    """The steps of an output from one on, up to and with another."""
    found = []
    async for step, change in circuit.output("rows", first):
        found.append((step, counted(change)))
        if step == last:
            return found
    raise AssertionError(f"the circuit was shut down before step {last}")


async def test_three_consumers_read_the_same_history_from_where_they_like(serve: Serve) -> None:
    """DBSP-REQ-9, DBSP-REQ-10: 3 consumers at different positions, one of whom reads a step and waits for the rest.

    One that comes again from step k on is given k and what follows, each once.
    """
    expected: Rows = Counter(("x", each) for each in range(30))
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        slow = circuit.output("rows")
        pushing = asyncio.create_task(push_all(circuit, "a", "p", [batch(("x", n)) for n in range(30)]))
        step, change = await anext(slow)
        whole = await read_until(circuit, "rows", expected)
        await pushing
        last = whole[-1][0]
        assert [step for step, _ in whole] == list(range(last + 1))
        behind = await read_to(circuit, last // 2, last)
        async with Circuit(here.address) as again:
            assert await read_to(again, last, last) == whole[last:]
        late = [(step, counted(change))]
        while late[-1][0] < last:
            step, change = await anext(slow)
            late.append((step, counted(change)))
        await slow.aclose()
        assert behind == whole[last // 2 :]
        assert late == whole


async def test_paused_it_makes_no_step_and_takes_pushes_until_too_many_rows_wait(serve: Serve) -> None:
    """FT-API-1: pushes are logged while it is paused, up to a bound; started, they come out. Calls may be repeated."""
    rows = batch(*(("x", each) for each in range(WAITING_ROWS // 4)))
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        await circuit.push("b", batch(("y", 1)), producer="q", sequence=0)
        await read_until(circuit, "rows", Counter({("y", 1): 1}))
        await circuit.pause()
        await circuit.pause()
        before = await circuit.status()
        assert before.paused
        for sequence in range(4):
            assert await circuit.push("a", rows, producer="p", sequence=sequence) == before.next_step
        async with Circuit(here.address, deadline_s=2.0) as hasty:
            with pytest.raises(circuits.InputFull, match=f"{WAITING_ROWS} rows wait for a step"):
                await hasty.push("a", rows, producer="p", sequence=4)
        assert (await circuit.status()).next_step == before.next_step
        waiting = asyncio.create_task(circuit.push("a", rows, producer="p", sequence=4))
        await circuit.start()
        await circuit.start()
        await waiting
        expected: Rows = Counter({("x", each): 5 for each in range(WAITING_ROWS // 4)})
        await read_until(circuit, "rows", expected, before.next_step)


async def test_output_that_is_not_kept_any_more_is_said_with_the_first_that_is(serve: Serve) -> None:
    """DBSP-OUT-2: whoever asks below it learns where it begins, and finds all from there on."""
    async with serve(keep_output_bytes=0) as here, Circuit(here.address) as circuit:
        for number in range(4):
            step = await circuit.push("a", batch(("x", number)), producer="p", sequence=number)
            await read_until(circuit, "rows", Counter({("x", number): 1}), step)
            older = (await circuit.status()).checkpoints[-1]
            await circuit.checkpoint()

        forgotten = await until_async(lambda: refusal(circuit), "a step that is forgotten")
        first = forgotten.bound
        assert str(forgotten).startswith(
            f"step 0 of this output is no longer kept, and the first kept step is {first}: read "
            f"from that step"
        )
        assert first <= older, "a step that may be repeated is compared with what is there"
        await read_until(circuit, "rows", Counter({("x", 3): 1}), step)


async def test_a_checkpoint_is_made_when_somebody_asks(serve: Serve) -> None:
    """FT-API-2: the step that is returned is one that all members go on from, also while it is paused."""
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
        await read_until(circuit, "rows", Counter({("x", 1): 1}))
        first = await circuit.checkpoint()
        assert (await circuit.status()).checkpoints[-1] == first
        await circuit.pause()
        second = await circuit.checkpoint()
        found = await circuit.status()
        assert found.checkpoints == (first, second)
        assert (found.phase, found.next_step, len(found.members)) == ("running", second, 2)
        await circuit.checkpoint()
        with pytest.raises(circuits.StepForgotten, match=f"records begin at step {second}") as forgotten:
            await circuit.offsets(0)
        assert forgotten.value.bound == second
        with pytest.raises(circuits.StepNotThere, match="step 9 has not been made yet") as early:
            await circuit.offsets(9)
        assert early.value.bound == second


async def test_what_is_no_row_of_an_input_is_refused_with_what_to_give(serve: Serve) -> None:
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        with pytest.raises(circuits.UnknownInput, match="there is no input d: the circuit has a, b, c"):
            await circuit.push("d", batch(("x", 1)), producer="p", sequence=0)
        with pytest.raises(circuits.UnknownOutput, match="the circuit has rows, totals"):
            await anext(circuit.output("row"))
        wrong = pa.record_batch({"amount": [1], "shop": ["x"]})
        with pytest.raises(
            circuits.WrongRows, match="expects the columns shop string, amount int64, then _weight int64"
        ):
            await circuit.push("a", wrong, producer="p", sequence=0)
        weightless = batch(("x", 1)).append_column("_weight", pa.array([None], pa.int64()))
        with pytest.raises(circuits.WrongRows, match="1 rows for input a have no _weight"):
            await circuit.push("a", weightless, producer="p", sequence=0)
        assert await circuit.next_sequence("a", "p") == 0
        await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_address_or_no_deadline_is_refused(deadline_s: float) -> None:
    with pytest.raises(ValueError, match="expected seconds above 0 as deadline_s"):
        Circuit("127.0.0.1:1", deadline_s=deadline_s)
    with pytest.raises(
        ValueError, match="expected HOST:PORT or HOST:PORT/ID as address, got an empty string"
    ):
        Circuit("")


async def test_where_no_circuit_is_or_another_secret_it_says_so(serve: Serve) -> None:
    async with serve(members=1, trust=Trust(secret="correct horse")) as here:
        async with Circuit(here.address, secret="correct horse") as circuit:
            await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
            await read_until(circuit, "rows", Counter({("x", 1): 1}))
        for secret, why in ((None, "requires a secret"), ("wrong", "has another secret")):
            with pytest.raises(
                circuits.CircuitDenied, match=f"{why}.*give Circuit the secret of the circuit's topology"
            ):
                await Circuit(here.address, secret=secret).__aenter__()
    with pytest.raises(
        circuits.CircuitUnreachable,
        match=r"cannot be reached.*check that 'nebuli run --stepped --serve .*' is running",
    ):
        await Circuit(here.address, deadline_s=1.0).__aenter__()


async def test_over_tls_who_is_of_another_authority_or_has_another_secret_is_told(
    serve: Serve, tmp_path: Path
) -> None:
    """Each with what to look at; nothing that they call happens."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    tls, strange = authority.issue("client"), other.issue("client")
    trust = Trust(authority.issue("server", hosts=["127.0.0.1"]), "correct horse")
    async with serve(members=1, trust=trust) as here:
        async with Circuit(here.address, secret="correct horse", tls=tls) as circuit:
            await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
            await read_until(circuit, "rows", Counter({("x", 1): 1}))
        assert await asyncio.to_thread(pushed_by_blocking, here.address, tls) == 2
        for secret, why in ((None, "requires a secret"), ("wrong", "has another secret")):
            with pytest.raises(circuits.CircuitDenied, match=f"{why}.*give Circuit the secret"):
                await Circuit(here.address, secret=secret, tls=tls).__aenter__()
        wrong = (
            strange,  # neither believes the other
            authority.issue("mixed", trusts=other),  # the client does not believe the server
            other.issue("mixed", trusts=authority),  # the server does not believe the client
            None,
        )
        for each in wrong:
            with pytest.raises(
                circuits.CircuitUnreachable,
                match="the secret and the certificates are those of the circuit's topology",
            ):
                await Circuit(here.address, secret="correct horse", tls=each, deadline_s=3.0).__aenter__()
        named = authority.issue("elsewhere", server_name="elsewhere.example.org")
        with pytest.raises(circuits.CircuitUnreachable, match="certificates"):
            await Circuit(here.address, secret="correct horse", tls=named, deadline_s=3.0).__aenter__()


def pushed_by_blocking(address: str, tls: Tls) -> int:
    with nebuli.blocking.Circuit(address, secret="correct horse", tls=tls) as circuit:
        circuit.push("a", batch(("x", 1)), producer="p", sequence=1)
        return circuit.next_sequence("a", "p")


async def test_a_program_without_an_event_loop_does_the_same(serve: Serve) -> None:
    def program(address: str) -> list[tuple[int, Rows]]:
        with nebuli.blocking.Circuit(address) as circuit:
            assert list(circuit.inputs) == list(HANDLES)
            assert "totals" in circuit.outputs
            sequence = circuit.next_sequence("a", "p")
            step = circuit.push("a", batch(("x", 1)), producer="p", sequence=sequence)
            found = []
            for at, change in circuit.output("rows", step):
                found.append((at, counted(change)))
                if found[-1][1]:
                    break
            assert sum(until - first for first, until in circuit.offsets(found[-1][0]).values()) == 1
            circuit.pause()
            assert circuit.status().paused
            circuit.start()
            assert circuit.checkpoint() == found[-1][0] + 1
            with pytest.raises(circuits.SequenceGap):
                circuit.push("a", batch(), producer="p", sequence=7)
            circuit.shut_down()
            assert list(circuit.output("rows", found[-1][0])) != []  # it ends, as the circuit does
            return found

    async with serve(members=2) as here:
        found = await asyncio.to_thread(program, here.address)
    assert found[-1][1] == Counter({("x", 1): 1})


async def test_shut_down_the_sinks_have_the_result_and_what_follows_goes_on(
    serve: Serve, tmp_path: Path
) -> None:
    for run in range(2):
        async with serve(members=2) as here, Circuit(here.address) as circuit:
            assert await circuit.next_sequence("a", "p") == run
            await circuit.push("a", batch(("x", 1)), producer="p", sequence=run)
            await read_until(circuit, "rows", Counter({("x", 1): run + 1}))
            await circuit.shut_down()
            async for _ in circuit.output("rows"):
                pass
        header, *lines = (tmp_path / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
        assert (header, lines) == ("shop,sales,amount", [f"x,{run + 1},{run + 1}"])
