"""The requirements of a reader of a raw source."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pytest

from nebuli.connectors.testing.connector_driver import held
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import is_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from nebuli.ingestion.message_addresses import Addresses, Messages
    from nebuli.ingestion.source_reader import SourceReader

    Make = Callable[[], SourceReader]
    Add = Callable[[], Awaitable[list["Expected"]]]

_Result = TypeVar("_Result")
_STEP_S = 0.01


class Expected(NamedTuple):
    """A row that a source has, as known without its reader; ``address`` is None if it is not known."""

    part: str
    address: int | None
    row: dict[str, Any]


_Found = dict[str, list[tuple[int, dict[str, Any]]]]
"""By part, its rows and their addresses."""


# pytest runs these in their order: the simplest failing test is the most informative.
class ReaderConformance:
    """Derive a class whose name begins with ``Test``, and override ``make``, ``add``, ``trim`` and ``away``."""

    limit_s: ClassVar[float] = 20.0
    """How long any one call may take that has something to find."""
    idle_s: ClassVar[float] = 0.3
    """How long is waited to see that nothing comes."""

    @pytest.fixture
    def make(self) -> Make:
        """Return a function that makes a reader, not opened yet, of a source that is there, and has no message yet."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'make': define it")

    @pytest.fixture
    def add(self) -> Add:
        """Return a function that adds three messages at least to that source, and returns them by part, in order."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'add': define it")

    @pytest.fixture
    def trim(self) -> Callable[[], Awaitable[Addresses]] | None:
        """Return a function that drops some messages of the source, and returns a lost address of each part.

        That is one of a message, or what was the end, as it was before; None: it cannot be.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'trim': define it")

    @pytest.fixture
    def away(self) -> list[Make]:
        """Return functions that make readers of sources that are not there, or not as they should be."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'away': define it")

    # -- reading

    async def _opened(self, reader: SourceReader, at: Mapping[str, int]) -> None:
        await self._within(reader.open(at), f"open at {dict(at)}")

    async def _within(self, call: Awaitable[_Result], what: str) -> _Result:
        try:
            async with asyncio.timeout(self.limit_s) as limit:
                return await call
        except TimeoutError:
            if not limit.expired():  # it has raised that itself
                raise
            pytest.fail(f"{what} did not return within {self.limit_s:g} s")

    async def _to_end(self, reader: SourceReader, at: Mapping[str, int]) -> _Found:
        """All rows from where it was opened to the end that there is now, each batch of them checked."""
        run = _Run(at)
        await self._go_on(reader, run)
        return run.found

    async def _go_on(self, reader: SourceReader, run: _Run) -> None:
        ends = await self._within(reader.ends(), "ends")
        while is_behind(run.uppers, ends):
            what = f"next, after {run.uppers} of {ends},"
            run.take(await self._within(reader.next(), what), reader)

    async def _whole(self, make: Make, at: Mapping[str, int]) -> _Found:
        async with _closing(make()) as reader:
            await self._opened(reader, at)
            return await self._to_end(reader, at)

    async def _first(self, reader: SourceReader) -> Messages:
        await self._opened(reader, {})
        return await self._within(reader.next(), "next")

    async def _nothing_comes(self, reader: SourceReader) -> asyncio.Task[Messages]:
        """A ``next`` that waits."""
        waiting = asyncio.create_task(reader.next())
        await asyncio.wait([waiting], timeout=self.idle_s)
        if waiting.done():
            pytest.fail(f"there are no messages, but next() returned instead of waiting: {waiting.result()}")
        return waiting

    # -- what it must do

    async def test_it_gives_the_messages_that_are_there(self, make: Make, add: Add) -> None:
        """All of them, in order: addresses never go down, and there is no gap between batches of a part."""
        expected = await add()
        _is_told(await self._whole(make, {}), expected)
        expected += await add()
        _is_told(await self._whole(make, {}), expected)

    async def test_it_has_a_name_and_a_unit(self, make: Make, add: Add) -> None:
        """Errors and figures use them."""
        await add()
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            assert reader.reads
            assert "\n" not in reader.reads
            assert reader.unit

    async def test_two_readers_give_the_same_however_their_reads_are_cut(self, make: Make, add: Add) -> None:
        """One that was there when each piece came, and one that comes to find all of it."""
        expected = await add()
        async with _closing(make()) as early:
            await self._opened(early, {})
            run = _Run({})
            await self._go_on(early, run)
            for _ in range(3):
                expected += await add()
                await self._go_on(early, run)
        late = await self._whole(make, {})
        assert late == run.found
        _is_told(late, expected)

    async def test_it_begins_at_any_address(self, make: Make, add: Add) -> None:
        """A reader gets the first message at or above it, and the same rest as every other reader."""
        await add()
        await add()
        whole = await self._whole(make, {})
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            ends = await self._within(reader.ends(), "ends")
        for part, rows in whole.items():
            for at in sorted({address for address, _ in rows} | {ends[part]}):
                opened = {**ends, part: at}
                rest = [(address, row) for address, row in rows if address >= at]
                assert (await self._whole(make, opened)).get(part, []) == rest

    async def test_between_messages_it_begins_with_the_next_one_or_says_that_this_is_no_place(
        self, make: Make, add: Add
    ) -> None:
        """If addresses have gaps, no reader gets an earlier message again, nor skips the next one."""
        await add()
        whole = await self._whole(make, {})
        ends = {part: rows[-1][0] for part, rows in whole.items()}
        for part, rows in whole.items():
            between = {address + 1 for address, _ in rows[:-1]} - {address for address, _ in rows}
            for at in sorted(between)[:5]:
                with suppress(AddressGone):
                    found = await self._whole(make, {**ends, part: at})
                    assert found[part] == [(address, row) for address, row in rows if address >= at]

    async def test_its_ends_are_behind_all_that_there_is(self, make: Make, add: Add) -> None:
        """A reader that begins there finds what comes later, and nothing else; an end never goes back."""
        await add()
        whole = await self._whole(make, {})
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            ends = await self._within(reader.ends(), "ends")
        assert ends.keys() >= whole.keys()
        assert all(rows[-1][0] < ends[part] for part, rows in whole.items())
        async with _closing(make()) as reader:
            await self._opened(reader, ends)
            waiting = await self._nothing_comes(reader)
            waiting.cancel()
            await asyncio.wait([waiting])
            expected = await add()
            later = await self._within(reader.ends(), "ends")
            assert not is_behind(later, ends)
            assert is_behind(ends, later)
            _is_told(await self._to_end(reader, ends), expected)

    async def test_it_waits_for_what_comes(self, make: Make, add: Add) -> None:
        """One that has read all waits, without a deadline, and does not return early."""
        expected = await add()
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            run = _Run({})
            await self._go_on(reader, run)
            waiting = await self._nothing_comes(reader)
            expected += await add()
            run.take(
                await self._within(waiting, "next(), which was waiting when messages were added,"), reader
            )
            await self._go_on(reader, run)
        _is_told(run.found, expected)

    async def test_a_cancelled_call_loses_nothing(self, make: Make, add: Add) -> None:
        """Cancelled before it began, in the middle, or as it waits: the next one gives what it would have given."""
        expected = await add()
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            run = _Run({})
            for turn in range(30):
                if turn % 10 == 5:
                    expected += await add()
                calling = asyncio.create_task(reader.next())
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                if turn % 3:
                    await asyncio.sleep(turn / 10_000)
                calling.cancel()
                with suppress(asyncio.CancelledError):  # it may have been faster
                    run.take(await calling, reader)
            await self._go_on(reader, run)
        _is_told(run.found, expected)

    async def test_what_is_gone_is_said(
        self, make: Make, add: Add, trim: Callable[[], Awaitable[Addresses]] | None
    ) -> None:
        """A reader that starts or continues there raises AddressGone, with a message of one line."""
        if trim is None:
            return
        await add()
        whole = await self._whole(make, {})
        async with _closing(make()) as reader:
            await self._opened(reader, {})
            ends = await self._within(reader.ends(), "ends")
        places = [
            (part, at)
            for part, rows in whole.items()
            for at in sorted({address for address, _ in rows} | {ends[part]})
        ]
        readers = {place: make() for place in places}
        try:
            for (part, at), reader in readers.items():
                await self._opened(reader, {**ends, part: at})
            gone = await trim()
            assert gone
            assert gone.items() <= set(places), f"the removed addresses {gone} are not all among {places}"
            for part, at in gone.items():
                async with _closing(make()) as later:
                    assert await self._given(later, {**ends, part: at}, part, at) is None
                rest = [(address, row) for address, row in whole[part] if address >= at]
                given = await self._given(readers[part, at], None, part, at)
                assert given is None or given == rest[: len(given)]  # read ahead of it
        finally:
            for reader in readers.values():
                await reader.close()

    async def _given(
        self, reader: SourceReader, at: Addresses | None, part: str, address: int
    ) -> list[tuple[int, dict[str, Any]]] | None:
        """Return the first messages of a part; None: AddressGone was raised."""
        said = None
        run = _Run({part: address})
        try:
            if at is not None:
                await self._opened(reader, at)
            while not run.found.get(part):
                run.take(
                    await self._within(reader.next(), f"next(), when address {address} of {part!r} is gone,"),
                    reader,
                )
        except AddressGone as error:
            said = str(error)
        if said is None:
            return run.found[part]
        assert str(address) in said
        assert "\n" not in said
        return None

    @pytest.mark.parametrize("when", ["before it is opened", "opened", "in the middle", "waiting"])
    async def test_it_lets_go_of_everything(self, make: Make, add: Add, when: str) -> None:
        """Descriptors, threads and tasks, once it is closed, wherever it was; and may be closed again."""
        await add()
        await self._whole(make, {})  # what is opened once per process is open now
        async with self._nothing_held():
            reader = make()
            if when != "before it is opened":
                await self._opened(reader, {})
            if when == "in the middle":
                await self._within(reader.next(), "next")
            if when == "waiting":
                await self._to_end(reader, {})
                waiting = await self._nothing_comes(reader)
                waiting.cancel()
                await asyncio.wait([waiting])
            await self._within(reader.close(), "close")
            await self._within(reader.close(), "close")

    async def test_what_is_not_there_is_said_in_a_sentence(
        self, make: Make, add: Add, away: list[Make]
    ) -> None:
        """SourceAway or SourceUnusable, of one line, and nothing is held afterwards."""
        await add()
        await self._whole(make, {})
        assert away
        for make_away in away:
            async with self._nothing_held():
                reader = make_away()
                with pytest.raises((SourceAway, SourceUnusable)) as caught:
                    await self._first(reader)
                await self._within(reader.close(), "close")
            assert str(caught.value)
            assert "\n" not in str(caught.value)

    @asynccontextmanager
    async def _nothing_held(self) -> AsyncIterator[None]:
        """Fail where threads, descriptors or tasks are there that were not before, and stay."""
        before = held(), asyncio.all_tasks()
        yield
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limit_s
        while more := [*(held() - before[0]), *map(str, asyncio.all_tasks() - before[1])]:
            assert loop.time() < deadline, f"not released: {', '.join(more)}"
            gc.collect()
            await asyncio.sleep(_STEP_S)


class _Run:
    """The messages of a reader since it was opened ``at`` some addresses, by part, checked as it comes."""

    def __init__(self, at: Mapping[str, int]) -> None:
        self.uppers: Addresses = dict(at)
        self.found: _Found = defaultdict(list)

    def take(self, messages: Messages, reader: SourceReader) -> None:
        addresses, part = messages.addresses, messages.part
        assert addresses.dtype == np.int64
        assert len(addresses) == messages.rows.num_rows, "a batch needs one address for each row"
        assert messages.lower < messages.upper, "a batch continues"
        assert messages.rows.schema.equals(reader.schema)
        lower = self.uppers.get(part, messages.lower)
        assert messages.lower == lower, (
            f"a batch of {part!r} begins at {messages.lower}, but should begin at {lower}"
        )
        assert (np.diff(addresses) >= 0).all(), f"addresses of {part!r} decrease: {addresses}"
        assert ((lower <= addresses) & (addresses < messages.upper)).all()
        self.uppers[part] = messages.upper
        self.found[part] += zip(addresses.tolist(), messages.rows.to_pylist(), strict=True)


def _is_told(found: _Found, expected: list[Expected]) -> None:
    told: dict[str, list[Expected]] = defaultdict(list)
    for each in expected:
        told[each.part].append(each)
    assert found.keys() == told.keys()
    for part, rows in told.items():
        assert [row for _, row in found[part]] == [each.row for each in rows]
        pairs = zip(found[part], rows, strict=True)
        assert all(each.address in (None, address) for (address, _), each in pairs), (
            f"the addresses of {part!r} are {[address for address, _ in found[part]]}, "
            f"but should be {[each.address for each in rows]}"
        )


@asynccontextmanager
async def _closing(reader: SourceReader) -> AsyncIterator[SourceReader]:
    try:
        yield reader
    finally:
        await reader.close()
