"""What tasks say, and which of them is believed."""

from __future__ import annotations

import asyncio
import sys

import pytest

from nebuli.steps.member.member_run import Said
from nebuli.steps.spark import task_words
from nebuli.steps.spark.task_words import TaskWord
from netchannel import ReceiverServer, SenderServer

ID = task_words.channel("c", "driver", 0)


def word(task: int, said: Said | None = Said.READY) -> TaskWord:
    return TaskWord(task=task, process=1, said=said, address=f"127.0.0.1:{task + 1}")


async def test_words_of_tasks_that_were_replaced_are_not_believed() -> None:
    heard: list[TaskWord] = []
    async with ReceiverServer(secret="s") as receiver, SenderServer(secret="s") as sender:
        hearing = asyncio.create_task(task_words.hear(receiver, ID, heard.append))
        for each in (word(3, Said.TAKING), word(3), word(2), word(1, None), word(5), word(4)):
            await task_words.say(sender, receiver.address, ID, each)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    assert heard == [word(3, Said.TAKING), word(3), word(5)]


SPEAKING = """
import asyncio, sys
from netchannel import SenderServer

async def main():
    async with SenderServer(secret="s") as sender:
        outbox = sender.register_channel(sys.argv[1], to=sys.argv[2], codec="bytes")
        await outbox.attached()
        for word in sys.argv[3:]:
            await outbox.send(word.encode())
        print("attached", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.parametrize("words", [[], [word(1)]])
async def test_a_task_that_dies_in_the_middle_of_a_word_holds_up_no_other(words: list[TaskWord]) -> None:
    heard: asyncio.Queue[TaskWord] = asyncio.Queue()
    async with (
        ReceiverServer(secret="s") as receiver,
        SenderServer(secret="s") as sender,
        asyncio.timeout(60),
    ):
        hearing = asyncio.create_task(task_words.hear(receiver, ID, heard.put_nowait))
        dying = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SPEAKING, ID, receiver.address),
            *(each.model_dump_json() for each in words),
            stdout=asyncio.subprocess.PIPE,
        )
        assert dying.stdout is not None
        assert await dying.stdout.readline() == b"attached\n"
        assert [await heard.get() for _ in words] == words
        dying.kill()
        await dying.communicate()
        await task_words.say(sender, receiver.address, ID, word(2))
        assert await heard.get() == word(2)
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
