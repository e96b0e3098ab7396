"""A receiver of staged groups, in a process of its own, which may be killed: what it has taken is in its database."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys

import uvloop

from netchannel import Position, ReceiverServer, StagingPolicy

from .rows import count

TABLES = """
CREATE TABLE IF NOT EXISTS positions (channel TEXT PRIMARY KEY, stream TEXT, next INTEGER);
CREATE TABLE IF NOT EXISTS sources (channel TEXT, source TEXT, next INTEGER, PRIMARY KEY (channel, source));
"""


async def take(receiver: ReceiverServer, channel: str, directory: str, base: sqlite3.Connection) -> None:
    """Count the rows of a channel, and how far it was read, in one transaction per message."""
    found = base.execute("SELECT stream, next FROM positions WHERE channel = ?", [channel]).fetchone()
    expected = dict(base.execute("SELECT source, next FROM sources WHERE channel = ?", [channel]).fetchall())
    inbox = receiver.register_staged_channel(
        channel,
        StagingPolicy(directory),
        ack="explicit",
        resume_from=None if found is None else Position(*found),
    )
    while True:
        message = await inbox.recv_message()
        count(expected, message.batch)
        assert inbox.stream is not None
        with base:
            base.execute(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
                [channel, inbox.stream, message.sequence + 1],
            )
            base.executemany(
                "INSERT OR REPLACE INTO sources VALUES (?, ?, ?)",
                [(channel, source, number) for source, number in expected.items()],
            )
        await inbox.ack(message.sequence + 1)


async def consume(directory: str, address: str, database: str, *channels: str) -> None:
    """All channels; a broken promise ends the process."""
    base = sqlite3.connect(database, timeout=30)
    base.execute("PRAGMA journal_mode=WAL")
    base.executescript(TABLES)
    async with ReceiverServer(address) as receiver, asyncio.TaskGroup() as group:
        for channel in channels:
            group.create_task(take(receiver, channel, directory, base))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(consume(*sys.argv[1:]))
