"""`SavedState`: a member's versions in its state store, as checkpoints in two phases need them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.steps.protocol.messages import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nebuli.dataflow.steps.saved_runs import Saved
    from nebuli.store import Database, StateStore

_WRITERS = 4


class SavedState:
    """One version is open at a time. A version that was committed is opened by the next `write`.

    So the one before it stays as long as members may have to return to it: all have the new one when the next
    checkpoint begins.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._database: Database | None = None
        self._version = 0

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The versions that can be opened, one or two."""
        return tuple(
            Checkpoint(version, step) for version, step in sorted((await self._store.steps()).items())
        )

    async def open(self, version: int) -> Mapping[str, Mapping[bytes, Any]]:
        """Forget the other version; the tables of this one. Raises VersionUnavailable, Locked, Damaged."""
        self.close()
        self._database = await self._store.open(version)
        self._version = version
        return await self._database.tables()

    async def keep(self, table: str, key: bytes, value: Any) -> None:
        """Make a value durable that is, or is not, of what is opened, and of what the next `write` leaves."""
        assert self._database is not None, "it was opened before"
        await self._database.put(table, key, value)

    async def write(self, saved: Saved, step: int) -> None:
        """Make durable what `commit` will need. Raises StorageError: the versions are as they were."""
        if self._database is None:
            self._database = await self._store.open(self._version)
        database = self._database
        for table, key in saved.gone:
            await database.delete(table, key)
        new = iter(saved.new)

        async def put_some() -> None:
            for table, key in new:
                await database.put(table, key, await asyncio.to_thread(saved.tables[table][key]))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_WRITERS):
                    group.create_task(put_some())
        except ExceptionGroup as error:
            raise error.exceptions[0] from None
        database.set_step(step)

    async def commit(self) -> None:
        """Make the written data the next version, in addition to the opened one."""
        database, self._database = self._database, None
        assert database is not None, "it was written before"
        await database.commit()
        self._version += 1

    def close(self) -> None:
        """Drop what was written and not committed; may be called again."""
        if self._database is not None:
            self._database.close()
            self._database = None
