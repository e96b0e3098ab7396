"""The common part of the fragments of a query in steps, on the loop of their own process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.connectors.errors import FragmentError, InputError
from nebuli.free.fragment_thread import log_end
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.steps.errors import MembersFailed, NotScaled, StateGone
from nebuli.steps.protocol.errors import CheckpointNotMade, CoordinationError
from nebuli.store import StorageError, Store

if TYPE_CHECKING:
    from nebuli.rpc.member_places import Succession
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped_plan import StepFragment

__all__ = ["WITHOUT_CHECKPOINT", "StepRunner"]

WITHOUT_CHECKPOINT = "stopped without a checkpoint: not all members could make one"
"""An orderly stop is not reported."""


class StepRunner(ABC):
    """Runs until its part of the query is over, or it is stopped; what it keeps is at ``place``.

    If an earlier process has died, it resumes.
    """

    def __init__(
        self,
        id_: str,
        fragment: StepFragment,
        place: StorePlace,
        sender: SenderServer,
        receiver: ReceiverServer,
    ) -> None:
        self._fragment = fragment
        self._place = place
        self._sender = sender
        self._receiver = receiver
        self._status = FragmentStatus(id_, fragment.id, FragmentState.RUNNING)
        self._stopping = asyncio.Event()

    @property
    @abstractmethod
    def status(self) -> FragmentStatus:
        """How it is now."""

    def stop(self) -> None:
        """Have it end, with a checkpoint if possible; harmless when it has."""
        self._stopping.set()

    async def checkpoint(self) -> int:
        """Have a checkpoint made; returns the next step. Raises CheckpointNotMade."""
        raise CheckpointNotMade(None, f"{self._fragment.id} is not a coordinator")

    async def succeed(self, succession: Succession) -> int:
        """Continue with other members; returns their first step. Raises NotScaled."""
        raise NotScaled(len(succession.members), f"{self._fragment.id} is not a coordinator")

    async def run(self) -> None:
        """Run it to its end, which is in its status."""
        try:
            self._check_store()
            state, cause, error = await self._run()
        except (CoordinationError, FragmentError, MembersFailed, StorageError, OSError) as failure:
            cause = Cause.INPUT if isinstance(failure, InputError) else Cause.ITSELF
            state, error = FragmentState.FAILED, str(failure)
        log_end(self._fragment, state, error, self._status.id)
        self._status = replace(self.status, state=state, cause=cause, error=error, phase="")

    def _check_store(self) -> None:
        """Check that the state is there.

        A member without it would start from scratch, though others have results of its rows. Raises StateGone.

        Its worker has made the store when it took the fragment.
        """
        if not Store.is_at(self._place):
            rest = "the state of the query's other fragments"
            raise StateGone(
                str(self._place), self._fragment.id, rest, "unregister the query and register it again"
            )

    @abstractmethod
    async def _run(self) -> tuple[FragmentState, Cause, str]:
        """Run it; how it has ended."""
