"""`BlobFolder`: one folder of a store's blobs, for an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from nebuli.store.blobs import Blobs


class _Threads(Protocol):
    async def on_blobs(self, call: Callable[..., Any], *arguments: Any) -> Any: ...


class BlobFolder:
    """Blobs by name, as `Blobs` has them; calls raise StoreClosed, too."""

    def __init__(self, folder: str, blobs: Blobs, threads: _Threads) -> None:
        self._folder = folder
        self._blobs = blobs
        self._threads = threads

    async def put(self, name: str, buffers: Sequence[Any]) -> None:
        """Keep them, one after the other; durable when it returns."""
        await self._threads.on_blobs(self._blobs.put, self._folder, name, buffers)

    async def get(self, name: str) -> pa.Buffer:
        """The whole of a blob. Raises FileNotFoundError."""
        return await self._threads.on_blobs(self._blobs.get, self._folder, name)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete them; it does not matter whether they were there."""
        await self._threads.on_blobs(self._blobs.delete, self._folder, names)

    async def names(self) -> list[str]:
        """The names of all that are there, whole or not."""
        found: list[str] = await self._threads.on_blobs(self._blobs.names, self._folder)
        return found
