"""Pushes that many bring in pieces: each counts for one step, whole and once, whatever is lost, repeated or killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from nebuli.circuits import Circuit, InputFull, NotScaled, SequencePassed, StagedLost, UnknownInput, WrongRows
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.nebuli.circuits.conftest import Rows, Serve, Served, added, batch, read_until, zset
from tests.nebuli.circuits.test_circuits_of_workers import kill, of_circuits, started
from tests.support.fleet import MakeFleet

pytestmark = [pytest.mark.processes, pytest.mark.long]

WRITERS = ("first", "second", "third")
BATCHES = 12


async def test_pieces_count_for_one_step_once_they_are_pushed(serve: Serve) -> None:
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        pieces = [
            await circuit.stage("a", batch((f"shop-{number}", number)), producer="p", sequence=4)
            for number in range(20)
        ]
        lost = await circuit.stage("a", batch(("lost", 1)), producer="p", sequence=4)
        taken = await circuit.stage("a", zset(("shop-0", 0, -1)), producer="p", sequence=4)
        await circuit.push("b", batch(("end", 0)), producer="q", sequence=0)
        assert [rows for _, rows in await read_until(circuit, "rows", Counter({("end", 0): 1}))][-1]
        assert await circuit.next_sequence("a", "p") == 0
        all_but_one = [*pieces, taken]
        step = await circuit.push_staged("a", all_but_one, producer="p", sequence=4)  # type: ignore[list-item]
        assert await circuit.next_sequence("a", "p") == 5
        expected: Rows = Counter({(f"shop-{number}", number): 1 for number in range(1, 20)})
        steps = await read_until(circuit, "rows", expected, step)
        assert [rows for _, rows in steps if rows] == [expected]
        assert sum(until - first for first, until in (await circuit.offsets(steps[-1][0])).values()) == 1

        # Again, by whoever: of no effect, whatever is staged for it.
        assert await circuit.push_staged("a", [lost], producer="p", sequence=4) > step  # type: ignore[list-item]
        assert await circuit.stage("a", batch(("more", 1)), producer="p", sequence=4) is None
        await circuit.push_staged("a", [], producer="p", sequence=9)
        with pytest.raises(SequencePassed, match="its number 4 for input a, but its next is 10"):
            await circuit.push_staged("a", all_but_one, producer="p", sequence=4)  # type: ignore[list-item]
        await circuit.push("b", batch(("end", 1)), producer="q", sequence=1)
        await read_until(circuit, "rows", Counter({("end", 1): 1}), steps[-1][0] + 1)


async def test_what_is_of_no_push_is_not_pushed(serve: Serve) -> None:
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        mine = await circuit.stage("a", batch(("x", 1)), producer="p", sequence=0)
        assert mine is not None
        for pieces in ([mine, mine], [mine, "../orders.db"], ["no piece"], [mine.replace("-", "/")]):
            with pytest.raises(StagedLost, match="stage all rows of this number again"):
                await circuit.push_staged("a", pieces, producer="p", sequence=0)
        for producer, sequence in (("q", 0), ("p", 1)):
            with pytest.raises(StagedLost):
                await circuit.push_staged("a", [mine], producer=producer, sequence=sequence)
        with pytest.raises(StagedLost):
            await circuit.push_staged("b", [mine], producer="p", sequence=0)
        await circuit.drop_staged("a", [mine], producer="q")  # not its own
        await circuit.push_staged("a", [mine], producer="p", sequence=0)
        other = await circuit.stage("a", batch(("x", 1)), producer="p", sequence=1)
        assert other is not None
        await circuit.drop_staged("a", [other], producer="p")
        with pytest.raises(StagedLost):
            await circuit.push_staged("a", [other], producer="p", sequence=1)
        with pytest.raises(UnknownInput, match="there is no input d"):
            await circuit.stage("d", batch(("x", 1)), producer="p", sequence=1)
        with pytest.raises(WrongRows, match="input a expects the columns shop string, amount int64"):
            await circuit.stage("a", batch(("x", 1)).select(["shop"]), producer="p", sequence=1)


async def test_a_push_of_pieces_waits_for_room_and_what_does_not_get_it_is_still_staged(serve: Serve) -> None:
    async with serve(members=1) as here, Circuit(here.address) as circuit:
        await circuit.pause()
        many = batch(*(("x", number) for number in range(1 << 18)))
        await circuit.push("a", many, producer="q", sequence=0)
        piece = await circuit.stage("a", batch(("y", 1)), producer="p", sequence=0)
        assert piece is not None
        async with Circuit(here.address, deadline_s=2.0) as hasty:
            with pytest.raises(InputFull, match="262144 rows wait for a step"):
                await hasty.push_staged("a", [piece], producer="p", sequence=0)
        await circuit.start()
        await circuit.push_staged("a", [piece], producer="p", sequence=0)


async def test_what_is_staged_outlives_members_and_the_circuit_and_no_other_members(
    serve: Serve, tmp_path: Path
) -> None:
    both: Rows = Counter({("x", 1): 1, ("y", 1): 1})
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        pieces = [await staged(circuit, (shop, 1), 0) for shop in "xy"]
    async with serve(members=2) as here, Circuit(here.address) as circuit:
        for member in range(2):
            here.kill(member)
        await circuit.push_staged("a", pieces, producer="p", sequence=0)
        await read_until(circuit, "rows", both)
        pieces = [await staged(circuit, (shop, 2), 1) for shop in "xy"]
        await circuit.scale(3)
        with pytest.raises(StagedLost, match="the members have changed since"):
            await circuit.push_staged("a", pieces, producer="p", sequence=1)
        again = await staged(circuit, ("z", 1), 1)
        await circuit.push_staged("a", [again], producer="p", sequence=1)
        await read_until(circuit, "rows", added(both, Counter({("z", 1): 1})))
    assert not list((tmp_path / "state").rglob("*staged*/*"))


async def staged(circuit: Circuit, row: tuple[str, int], number: int) -> str:
    """A piece of a push of producer p to input a."""
    piece = await circuit.stage("a", batch(row), producer="p", sequence=number)
    assert piece is not None
    return piece


class Model:
    """Writers who do what tasks and drivers of Spark do, in random order, and what has to come of it."""

    def __init__(self, circuit: Circuit, seed: int) -> None:
        self._circuit = circuit
        self._random = random.Random(seed)
        self._epoch = dict.fromkeys(WRITERS, 0)
        self.pushed: dict[tuple[str, int], Rows] = {}
        self.went_on = asyncio.Event()
        """Set whenever a batch is pushed."""

    async def write(self, writer: str) -> None:
        """One batch, with attempts that lose, and commits that come again."""
        drawn, circuit, epoch = self._random, self._circuit, self._epoch[writer]
        while True:
            rows: Rows = Counter()
            winners = []
            for partition in range(drawn.randrange(4)):
                for attempt in range(drawn.choice((1, 1, 2))):
                    row = (f"{writer}/{epoch}/{partition}/{attempt}", drawn.randrange(1000))
                    piece = await circuit.stage("a", batch(row), producer=writer, sequence=epoch)
                    assert piece is not None
                    if drawn.random() < 0.2:
                        await circuit.drop_staged("a", [piece], producer=writer)
                        piece = await circuit.stage("a", batch(row), producer=writer, sequence=epoch)
                        assert piece is not None
                winners.append(piece)
                rows[row] += 1
            try:
                await circuit.push_staged("a", winners, producer=writer, sequence=epoch)
            except StagedLost:
                continue  # it is run again, as Spark does
            break
        self.pushed[writer, epoch] = rows
        self.went_on.set()
        if drawn.random() < 0.5:  # the driver was killed before it could note it: the batch is run again
            assert await circuit.stage("a", batch(("again", 0)), producer=writer, sequence=epoch) is None
            await circuit.push_staged("a", [], producer=writer, sequence=epoch)
        self._epoch[writer] += drawn.choice((1, 1, 2))

    async def disturb(self, here: Served) -> None:
        """Kill a member, or go on with others, while the next batches are being written."""
        self.went_on.clear()
        if self._random.random() < 0.5:
            here.kill(self._random.randrange(here.run.plan.members))
        else:
            with suppress(NotScaled):
                await self._circuit.scale(self._random.choice((1, 2, 3)))
        await self.went_on.wait()


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_order_each_push_is_in_one_step_whole_or_not_at_all(serve: Serve, seed: int) -> None:
    """DBSP-REQ-8: pieces are staged, lost, dropped and pushed again while members are killed and are others."""
    async with (
        serve(members=2, settings=TriggerSettings(checkpoint_s=0.3)) as here,
        Circuit(here.address, deadline_s=60.0) as circuit,
    ):
        model = Model(circuit, seed)

        async def disturb() -> None:
            while len(model.pushed) < len(WRITERS) * BATCHES - 1:
                await model.disturb(here)

        async def write(writer: str) -> None:
            for _ in range(BATCHES):
                await model.write(writer)

        async with asyncio.TaskGroup() as group:
            group.create_task(disturb())
            for writer in WRITERS:
                group.create_task(write(writer))
        expected: Rows = Counter()
        for rows in model.pushed.values():
            expected = added(expected, rows)
        by_step = await read_until(circuit, "rows", expected)
    for rows in model.pushed.values():
        steps = [step for step, there in by_step if rows.keys() & there.keys()]
        assert len(steps) == min(1, len(rows))


async def test_at_workers_what_is_staged_outlives_members_and_coordinator(make_fleet: MakeFleet) -> None:
    fleet = of_circuits(make_fleet())
    id_, address = started(fleet)
    both: Rows = Counter({("x", 1): 1, ("y", 1): 1})
    async with asyncio.timeout(150), Circuit(address, deadline_s=100.0) as circuit:
        pieces = [await staged(circuit, (shop, 1), 0) for shop in "xy"]
        for fragment in ("member-0", "member-1", "coordinator"):
            await kill(fleet, id_, fragment)
        for _ in range(2):
            await circuit.push_staged("a", pieces, producer="p", sequence=0)
        steps = await read_until(circuit, "rows", both)
        assert [rows for _, rows in steps if rows] == [both]
        with pytest.raises(StagedLost):
            await circuit.push_staged("a", pieces, producer="p", sequence=1)
        with pytest.raises(WrongRows):
            await circuit.stage("a", batch(("x", 1)).select(["shop"]), producer="p", sequence=1)
