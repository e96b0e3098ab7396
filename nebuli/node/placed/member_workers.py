"""The workers of members, as the coordinator of their circuit asks them: to begin some, and to end others."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.rpc.status import FragmentState
from nebuli.rpc.worker_client import WorkerClient, WorkerRefused, WorkerUnreachable
from nebuli.rpc.worker_pb2 import Refusal
from nebuli.steps.coordinator.succession import GivenUp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.rpc.member_places import MemberPlace
    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.trust import Trust
    from placement.stepped_plan import MemberFragment

__all__ = ["TAKES_OVER", "MemberWorkers", "Watched"]

_log = logging.getLogger(__name__)
TAKES_OVER = "takes over"
"""The phase of a member that listens for what it is given."""
_BEGIN_S = 60.0
"""How long processes may take to begin, on a busy machine."""
_END_S = 3.0
"""How long to wait for replaced members, which no longer write."""
_LOOK_S = 0.1
_AGAIN_S = 1.0


class Watched:
    """Processes of members, as they were.

    ``ended`` is set once one of them was replaced or is gone, and ``why`` has the reason.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.why = ""


class MemberWorkers:
    """Shows workers what its own worker shows them, and expects."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust

    async def begin(self, fragments: Mapping[MemberPlace, MemberFragment]) -> Mapping[MemberPlace, int]:
        """Register members that take over, and start them: their process ids, once all listen. Raises GivenUp."""
        try:
            for place, fragment in fragments.items():
                async with self._client(place) as client:
                    await client.register(fragment, place.id)
            for place in fragments:
                async with self._client(place) as client:
                    await client.start(place.id)
            async with asyncio.timeout(_BEGIN_S):
                return await self._listening(tuple(fragments))
        except (WorkerRefused, WorkerUnreachable) as error:
            raise GivenUp(str(error)) from error
        except TimeoutError:
            raise GivenUp(f"the new members did not start within {_BEGIN_S:g} s") from None

    async def _listening(self, places: Sequence[MemberPlace]) -> Mapping[MemberPlace, int]:
        while True:
            found = await self._statuses(places)
            for place, status in found.items():
                if status is None or status.state is not FragmentState.RUNNING:
                    why = "is not known there" if status is None else status.error
                    raise GivenUp(f"{place.id} at {place.node}, a new member, {why}")
            running = {
                place: status.pid
                for place, status in found.items()
                if status is not None and status.phase == TAKES_OVER
            }
            if len(running) == len(places):
                return running
            await asyncio.sleep(_LOOK_S)

    async def watch(self, processes: Mapping[MemberPlace, int], watched: Watched) -> None:
        """Look after members until one has ended."""
        while not watched.ended.is_set():
            await asyncio.sleep(_LOOK_S)
            try:
                found = await self._statuses(tuple(processes))
            except WorkerUnreachable:
                continue  # a sender of state to its members finds out if they are there
            for place, status in found.items():
                if status is None or status.pid != processes[place]:
                    said = (
                        "it is not known there"
                        if status is None
                        else status.error or "its process was killed"
                    )
                    _log.warning(
                        "%s at %s has ended before it took over state: %s", place.id, place.node, said
                    )
                    watched.why = f"{place.id} at {place.node} has ended before it took over state: {said}"
                    watched.ended.set()

    async def end(self, places: Sequence[MemberPlace]) -> None:
        """End processes at once, and wait for that as far as it comes soon."""
        try:
            async with asyncio.timeout(_END_S):
                await asyncio.gather(*(self._end(each) for each in places))
        except TimeoutError:
            return

    async def _end(self, place: MemberPlace) -> None:
        try:
            async with self._client(place) as client:
                await client.stop(place.id, at_once=True)
            while (status := (await self._statuses([place]))[place]) is not None:
                if status.state.is_final:
                    return
                await asyncio.sleep(_LOOK_S)
        except (WorkerRefused, WorkerUnreachable) as error:
            _log.info("%s at %s has not ended yet: %s", place.id, place.node, error)

    async def forget(self, place: MemberPlace) -> None:
        """Have a member ended and forgotten, with what it keeps, however long its worker is away."""
        said = False
        while True:
            try:
                async with self._client(place) as client:
                    with suppress(WorkerRefused):  # one that is known no more may have left what it has kept
                        await client.stop(place.id, at_once=True)
                    await client.unregister(place.id)
            except WorkerRefused as error:
                if error.refusal.reason == Refusal.REASON_UNKNOWN_ID:
                    return
            except WorkerUnreachable as error:
                if not said:
                    _log.warning("%s is removed once its worker is back: %s", place.id, error)
                said = True
            else:
                return
            await asyncio.sleep(_AGAIN_S)

    async def _statuses(self, places: Sequence[MemberPlace]) -> dict[MemberPlace, FragmentStatus | None]:
        at: dict[tuple[str, str], list[MemberPlace]] = defaultdict(list)
        for place in places:
            at[place.node, place.grpc].append(place)
        found: dict[MemberPlace, FragmentStatus | None] = {}
        for here in at.values():
            async with self._client(here[0]) as client:
                known = {status.id: status for status in await client.statuses()}
            found |= {place: known.get(place.id) for place in here}
        return found

    def _client(self, place: MemberPlace) -> WorkerClient:
        return WorkerClient(place.node, place.grpc, self._trust)
