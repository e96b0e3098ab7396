"""Commands whose process is killed at each call that it makes to its store (ST-CTL-4)."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.store.collections import handover
from nebuli.store.collections.errors import (
    CollectionError,
    CollectionExists,
    CollectionUnknown,
    RenditionRefused,
    RenditionUnknown,
)
from nebuli.store.errors import UpperMismatch
from tests.nebuli.store.collections.leftovers import left_over
from tests.nebuli.store.collections.rows import SCHEMA, batch
from tests.support.sizes import ONE_IN
from tests.support.starter import start_program

pytestmark = [pytest.mark.processes, pytest.mark.long]

_ROWS = 20_000
"""So many are kept in blobs."""
_HISTORY_S = 0.05

_KILLED = """
import asyncio
import sys
from nebuli import Collections
from nebuli.store import Store
from nebuli.store.backends import backends_at
from tests.nebuli.store.collections.test_kills import COMMANDS, KilledAt
from tests.support.stores import Faulty
from pathlib import Path

async def run(folder, command, at):
    ordering, blobs = backends_at(Path(folder))
    kill = KilledAt(at)
    async with Collections(Store(Faulty(ordering, kill), Faulty(blobs, kill))) as collections:
        await collections.list()
        kill.begin()
        await COMMANDS[command](collections)
        print("done", flush=True)
        kill.at = -1

folder, command, at = sys.argv[1:]
asyncio.run(run(folder, command, int(at)))
"""


class KilledAt:
    """Calls of the seams, before one of which the process is killed: nothing is durable between two of them."""

    def __init__(self, at: int) -> None:
        self.at = -1
        self._at, self._calls = at, 0

    def begin(self) -> None:
        """Calls count from here on."""
        self._calls, self.at = 0, self._at

    def around(self, name: str, call: Callable[..., object], *arguments: object) -> object:
        if self._calls == self.at:
            signal.raise_signal(signal.SIGKILL)
        self._calls += 1
        return call(*arguments)


def large(mark: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array([mark] * _ROWS), pa.array(range(_ROWS))], schema=SCHEMA)


async def _create(collections: Collections) -> None:
    await collections.create("other", SCHEMA, shards=3)


async def _insert(collections: Collections) -> None:
    await collections.insert("sales", large("new"), producer="p", sequence=1)


async def _insert_few(collections: Collections) -> None:
    await collections.insert("sales", batch(*(("new", 0),) * 5), producer="p", sequence=1)


async def _write(collections: Collections) -> None:
    await collections.write("sales", [(6, large("more"))], 5, 9, rendition="r2")


async def _hold(collections: Collections) -> None:
    await collections.hold("sales", "mine", await collections.latest("sales"))


async def _release(collections: Collections) -> None:
    await collections.release("sales", "mine")


async def _hand_over(collections: Collections) -> None:
    await collections.handover("sales", "r2")


async def _extend(collections: Collections) -> None:
    """What came since it was built is added once, though others are first, and held off then."""
    end = handover._Handover.end
    losing = [1, 2]

    async def lost(running: handover._Handover) -> int:
        if losing:
            raise UpperMismatch("clock", 0, losing.pop())
        return await end(running)

    handover._Handover.end = lost
    try:
        await collections.handover("sales", "r2", built_from=4)
    finally:
        handover._Handover.end = end


async def _create_rendition(collections: Collections) -> None:
    await collections.new_rendition("sales", rendition="r3", shards=3)


async def _drop_rendition(collections: Collections) -> None:
    await collections.drop_rendition("sales", "r2")


async def _drop(collections: Collections) -> None:
    await collections.drop("sales")


async def _keep_house(collections: Collections) -> None:
    await collections.keep_house()
    for name in await collections._store.shards():
        await (await collections._store.open_shard(name)).compact(full=True)


COMMANDS: dict[str, Callable[[Collections], Awaitable[None]]] = {
    "create": _create,
    "insert": _insert,
    "insert few": _insert_few,
    "write": _write,
    "hold": _hold,
    "release": _release,
    "hand over": _hand_over,
    "extend and hand over": _extend,
    "create rendition": _create_rendition,
    "drop rendition": _drop_rendition,
    "drop": _drop,
    "keep house": _keep_house,
}


async def prepared(folder: Path, command: str) -> None:
    """A store with all that a command wants."""
    async with Collections(folder) as collections:
        await collections.create("sales", SCHEMA, shards=2, keep=_HISTORY_S)
        await collections.insert("sales", large("old"))
        await collections.insert("sales", batch(("few", 1)))
        await collections.new_rendition("sales", rendition="r2", shards=2)
        await collections.write("sales", [(3, large("second"))], 0, 5, rendition="r2")
        if command == "release":
            await _hold(collections)
        if command == "keep house":
            at = await collections.handover("sales", "r2")
            await collections.snapshot("sales", at + round(_HISTORY_S * 1000) + 20)


_OLD = Counter({"old": _ROWS, "few": 1})
_SECOND = Counter({"second": _ROWS})
_MORE = Counter({"more": _ROWS})


async def _contents(collections: Collections) -> Counter[str]:
    return Counter((await collections.snapshot("sales"))["shop"].to_pylist())


async def is_done(collections: Collections, command: str) -> bool:
    """Whether the effect is there; otherwise nothing of it is."""
    if command == "create":
        names = await collections.list()
        if "other" in names:
            assert (await collections.snapshot("other")).num_rows == 0
            assert (await collections.describe("other")).renditions[0].shards == 3
        return "other" in names
    if command == "drop":
        if "sales" in await collections.list():
            assert await _contents(collections) == _OLD
            return False
        with pytest.raises(CollectionUnknown):
            await collections.snapshot("sales")
        return True
    found = await _contents(collections)
    status = await collections.describe("sales")
    renditions = {each.name: each.shards for each in status.renditions}
    match command:
        case "insert" | "insert few":
            new = found.pop("new", 0)
            assert found == _OLD
            assert new in (0, _ROWS if command == "insert" else 5)
            return new > 0
        case "write":
            (upper,) = (each.upper for each in status.renditions if each.name == "r2")
            assert found == _OLD
            second = await collections.snapshot("sales", upper - 1, rendition="r2")
            assert Counter(second["shop"].to_pylist()) == (_SECOND + _MORE if upper == 9 else _SECOND)
            return upper == 9
        case "hold" | "release":
            assert found == _OLD
            return ("mine" in status.holds) == (command == "hold")
        case "extend and hand over":
            assert found == (_SECOND + _OLD if status.active == "r2" else _OLD)
            return status.active == "r2"
        case "hand over":
            assert found == (_SECOND if status.active == "r2" else _OLD)
            return status.active == "r2"
        case "create rendition":
            assert renditions in ({"r1": 2, "r2": 2}, {"r1": 2, "r2": 2, "r3": 3})
            return "r3" in renditions
        case "drop rendition":
            return "r2" not in renditions
    assert found == _SECOND
    return renditions == {"r2": 2}


_ALREADY = {
    "create": CollectionExists,
    "hand over": RenditionRefused,
    "extend and hand over": RenditionRefused,
    "create rendition": RenditionRefused,
    "drop rendition": RenditionUnknown,
    "drop": CollectionUnknown,
}
"""What is said when it is done already; others may be done again."""


async def check(folder: Path, command: str, *, acknowledged: bool) -> None:
    """What was killed has happened or not, can be done then, and what comes next is as ever."""
    async with Collections(folder) as collections:
        done = await is_done(collections, command)
        assert done or not acknowledged
        if done and command in _ALREADY:
            with pytest.raises(_ALREADY[command]):
                await COMMANDS[command](collections)
        else:
            await COMMANDS[command](collections)
        assert await is_done(collections, command)
        assert await left_over(collections, folder) == set()
        if command == "drop":
            await collections.create("sales", SCHEMA)
        before = (await collections.snapshot("sales")).num_rows
        await collections.insert("sales", batch(("next", 1)))
        assert (await collections.snapshot("sales")).num_rows == before + 1
        for name in await collections.list():
            await collections.drop(name)
        assert [each for each in (folder / "blobs").rglob("*") if each.is_file()] == []


@pytest.mark.story
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.timeout(300)
async def test_a_command_that_is_killed_has_happened_or_not(tmp_path: Path, command: str) -> None:
    """ST-CTL-4: killed at each call it makes; the effect is whole or not there, and there once that was said."""
    await prepared(tmp_path / "store", command)
    kills = 0
    for at in count(0, ONE_IN):
        folder = tmp_path / f"{at}"
        shutil.copytree(tmp_path / "store", folder)
        process = start_program(_KILLED, folder, command, at)
        said = process.stdout.read()
        process.stdout.close()
        ended = process.wait(60)
        try:
            await check(folder, command, acknowledged=said == b"done\n")
        except (AssertionError, CollectionError) as error:
            error.add_note(f"killed at call {at}")
            raise
        shutil.rmtree(folder)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        kills += 1
    assert kills * ONE_IN >= 2
