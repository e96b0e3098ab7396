"""A member in a process of its own: ``... MEMBER LISTEN STEPS ADDRESS...``.

It exchanges rows with all others, twice in each step, and checks each round as Feldera's test does; then it prints how
many rounds there were. After the last step, only the last member sends, which never does: the others wait for it,
and print what it was that went wrong, and when.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import pyarrow as pa
import uvloop

from nebuli.steps.errors import ExchangeFailed
from nebuli.steps.member.exchange import Exchange
from netchannel import ReceiverServer, SenderServer
from tests.support.members import pairs, row


def say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def exchange_rounds(exchange: Exchange, member: int, members: int, steps: int) -> None:
    for step in range(steps):
        for index in range(2):
            round_ = 2 * step + index
            came = await exchange.all_to_all(step, index, [row(member, round_)] * members)
            assert pairs(came) == [(sender, round_) for sender in range(members)], (member, round_, came)
    say(rounds=2 * steps)


async def wait(exchange: Exchange, member: int, members: int, steps: int) -> None:
    nothing: list[pa.RecordBatch | None] = [None] * members
    if member == members - 1:
        await asyncio.Event().wait()
    try:
        await exchange.all_to_all(steps, 0, nothing, senders={members - 1})
    except ExchangeFailed as error:
        say(error=type(error).__name__, member=error.member, at=time.monotonic(), text=str(error))


async def main(member: int, listen: str, steps: int, *addresses: str) -> None:
    async with ReceiverServer(listen) as receiver, SenderServer() as sender:
        exchange = Exchange(sender, receiver, "circuit", 1, member, addresses)
        await exchange.open(60)
        await exchange_rounds(exchange, member, len(addresses), steps)
        await wait(exchange, member, len(addresses), steps)


if __name__ == "__main__":
    number, where, count, *others = sys.argv[1:]
    uvloop.run(main(int(number), where, int(count), *others))
