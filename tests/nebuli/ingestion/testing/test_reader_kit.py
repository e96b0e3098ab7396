"""The kit passes a reader that does what it must, and fails each that does not."""

from __future__ import annotations

import asyncio
import inspect
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from nebuli.ingestion.errors import AddressGone, SourceAway
from nebuli.ingestion.message_addresses import Messages
from nebuli.ingestion.source_reader import SourceReader
from nebuli.ingestion.testing import Expected, ReaderConformance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nebuli.ingestion.message_addresses import Addresses

SCHEMA = pa.schema([("v", pa.int64())])


class Kept:
    """Numbers, each at ten times its value."""

    def __init__(self) -> None:
        self.there = True
        self.oldest = 0
        self.count = 0


class Numbers(SourceReader):
    """Reads them, in twos."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.at = 0

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def reads(self) -> str:
        return "numbers"

    async def open(self, at: Mapping[str, int]) -> None:
        if not self.kept.there:
            raise SourceAway("numbers: not there")
        self.at = at.get("p", 0)

    async def next(self) -> Messages:
        while self.kept.count * 10 <= self.at:  # noqa: ASYNC110 - as one polls a file
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        if self.at < self.kept.oldest * 10:
            raise AddressGone(f"numbers: {self.at} comes next, and the oldest is {self.kept.oldest * 10}")
        first = -(-self.at // 10)
        values = np.arange(first, min(first + 2, self.kept.count), dtype=np.int64)
        lower, self.at = self.at, int(values[-1]) * 10 + 10
        return Messages("p", lower, self.at, values * 10, pa.record_batch([values], schema=SCHEMA))

    async def ends(self) -> Addresses:
        return {"p": self.kept.count * 10}

    async def close(self) -> None:
        return


def fixtures(reader: type[Numbers]) -> dict[str, Any]:
    kept, missing = Kept(), Kept()
    missing.there = False

    async def add() -> list[Expected]:
        kept.count += 3
        return [Expected("p", n * 10, {"v": n}) for n in range(kept.count - 3, kept.count)]

    async def trim() -> Addresses:
        kept.oldest = 2
        return {"p": 10}

    return {
        "make": lambda: reader(kept),
        "add": add,
        "trim": trim,
        "away": [lambda: reader(missing)],
        "when": "opened",
    }


class Quick(ReaderConformance):
    limit_s = 0.5
    idle_s = 0.05


class TestNumbers(Quick):
    """A reader that does what it must passes."""

    limit_s = ReaderConformance.limit_s

    @pytest.fixture
    def given(self) -> dict[str, Any]:
        return fixtures(Numbers)

    @pytest.fixture
    def make(self, given: dict[str, Any]) -> Callable[[], SourceReader]:
        make: Callable[[], SourceReader] = given["make"]
        return make

    @pytest.fixture
    def add(self, given: dict[str, Any]) -> Callable[[], Awaitable[list[Expected]]]:
        add: Callable[[], Awaitable[list[Expected]]] = given["add"]
        return add

    @pytest.fixture
    def trim(self, given: dict[str, Any]) -> Callable[[], Awaitable[Addresses]]:
        trim: Callable[[], Awaitable[Addresses]] = given["trim"]
        return trim

    @pytest.fixture
    def away(self, given: dict[str, Any]) -> list[Callable[[], SourceReader]]:
        away: list[Callable[[], SourceReader]] = given["away"]
        return away


class _GivesTwice(Numbers):
    async def next(self) -> Messages:
        found = await super().next()
        self.at -= 10
        return found


class _Skips(Numbers):
    async def next(self) -> Messages:
        found = await super().next()
        return Messages("p", found.lower, found.upper, found.addresses[1:] + 0, found.rows[1:])


class _BeginsAtTheBegin(Numbers):
    async def open(self, at: Mapping[str, int]) -> None:
        await super().open({})


class _IsSilent(Numbers):
    async def next(self) -> Messages:
        self.at = max(self.at, self.kept.oldest * 10)
        return await super().next()


class _SaysNoMessages(Numbers):
    async def next(self) -> Messages:
        if self.kept.count * 10 <= self.at:
            return Messages(
                "p", self.at, self.at, np.empty(0, np.int64), pa.RecordBatch.from_pylist([], SCHEMA)
            )
        return await super().next()


class _LosesWhatIsCancelled(Numbers):
    async def next(self) -> Messages:
        found = await super().next()
        await asyncio.sleep(0.001)
        return found


class _EndsEarly(Numbers):
    async def ends(self) -> Addresses:
        return {"p": self.kept.count * 10 - 10}


class _LeavesAThread(Numbers):
    async def close(self) -> None:
        Thread(target=asyncio.run, args=[asyncio.sleep(1.0)], daemon=True).start()


class _SaysItInLines(Numbers):
    async def open(self, at: Mapping[str, int]) -> None:
        try:
            await super().open(at)
        except SourceAway as error:
            raise SourceAway(f"{error}\nreally") from error


BROKEN = {
    _GivesTwice: "test_it_gives_the_messages_that_are_there",
    _Skips: "test_it_gives_the_messages_that_are_there",
    _BeginsAtTheBegin: "test_it_begins_at_any_address",
    _IsSilent: "test_what_is_gone_is_said",
    _SaysNoMessages: "test_it_waits_for_what_comes",
    _LosesWhatIsCancelled: "test_a_cancelled_call_loses_nothing",
    _EndsEarly: "test_its_ends_are_behind_all_that_there_is",
    _LeavesAThread: "test_it_lets_go_of_everything",
    _SaysItInLines: "test_what_is_not_there_is_said_in_a_sentence",
}


@pytest.mark.parametrize("reader", BROKEN)
async def test_what_a_reader_does_wrong_is_found(reader: type[Numbers]) -> None:
    test = getattr(Quick(), BROKEN[reader])
    given = fixtures(reader)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await test(**{name: given[name] for name in inspect.signature(test).parameters})
