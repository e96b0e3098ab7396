"""What is left in a store of collections that is of no use to anybody."""

from __future__ import annotations

from pathlib import Path

from nebuli import Collections


async def left_over(collections: Collections, folder: Path) -> set[str]:
    """Files of blobs that are of no part, once all shards are compacted; and what waits to be deleted."""
    await collections.keep_house()
    store = collections._store
    used = set()
    for name in await store.shards():
        shard = await store.open_shard(name)
        await shard.compact(full=True)
        await shard.compact(full=True)
        await shard.refresh()
        used |= {part.blob for part in shard.tracked.state.parts if part.blob}
    there = {path.name for path in (folder / "blobs").rglob("*") if path.is_file()}
    doomed = (await collections._open.space.catalog()).doomed
    return (there - used) | {each.name for each in doomed}
