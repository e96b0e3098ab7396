"""A member as a task of Spark: what runs in a Python worker of an executor."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import uvloop

from nebuli.connectors.provider import import_built_in
from nebuli.steps.member.member_run import Said, serve
from nebuli.steps.spark import task_words
from nebuli.steps.spark.masters import LOOPBACK, is_on_this_machine
from nebuli.steps.spark.task_words import TaskWord
from netchannel import NetChannelError, SenderServer

if TYPE_CHECKING:
    from nebuli.steps.spark.stage_messages import Stage

FORSAKEN_S = 60.0
"""A task that no coordinator is connected to for so long ends. One that Spark has given up, and that could not be
notified, may have been replaced: its writes are refused (a later epoch has the stores), but it would hold on to its
slot. It is longer than a command takes to begin its driver again."""
_WORDS_S = 3.0


class MemberEnds(Exception):
    """Why a task fails, in one sentence: Spark repeats it."""


def be_member(stage: Stage) -> None:
    """Be the member of this task's number, until it is dismissed. Raises MemberEnds."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    number = context.partitionId()
    host = LOOPBACK
    if not is_on_this_machine(stage.master):
        host = context.getTaskInfos()[number].address.rpartition(":")[0]
    if stage.sources.is_dir():  # of executors elsewhere only those of members that read files need it
        os.chdir(stage.sources)
    import_built_in()
    task = context.taskAttemptId()
    assert task is not None
    uvloop.run(_Task(stage, number, task, host).run())


class _Task:
    def __init__(self, stage: Stage, number: int, task: int, host: str) -> None:
        self._stage = stage
        self._order = stage.orders[number].model_copy(update={"listen": f"{host}:0"})
        self._task = task
        self._words: asyncio.Queue[TaskWord] = asyncio.Queue()

    async def run(self) -> None:
        """Serve, and report it."""
        async with SenderServer(secret=self._order.secret) as sender:
            telling = asyncio.create_task(self._tell_all(sender))
            serving = asyncio.create_task(serve(self._order, self._tell, forsaken_s=FORSAKEN_S))
            try:
                await asyncio.wait([telling, serving], return_when=asyncio.FIRST_COMPLETED)
                (telling if telling.done() else serving).result()
            except Exception as error:
                why = _sentence(error)
                with suppress(NetChannelError, TimeoutError):
                    async with asyncio.timeout(_WORDS_S):
                        await self._say(sender, self._word(why=why))
                raise MemberEnds(f"member {self._order.member}: {why}") from error
            finally:
                for each in (telling, serving):
                    each.cancel()
                await asyncio.gather(telling, serving, return_exceptions=True)

    def _word(self, said: Said | None = None, address: str = "", why: str = "") -> TaskWord:
        return TaskWord(task=self._task, process=os.getpid(), said=said, address=address, why=why)

    def _tell(self, said: Said, address: str) -> None:
        self._words.put_nowait(self._word(said, address))

    async def _tell_all(self, sender: SenderServer) -> None:
        while True:
            await self._say(sender, await self._words.get())

    async def _say(self, sender: SenderServer, word: TaskWord) -> None:
        stage = self._stage
        id_ = task_words.channel(stage.circuit, stage.driver, self._order.member)
        await task_words.say(sender, stage.coordinator, id_, word)


def _sentence(error: BaseException) -> str:
    """Return the error, without the wrapper that has collected it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
