"""What is too large for the ordering: blobs by name, each there whole or not at all, and never changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["Blobs"]


class Blobs(Protocol):
    """A store's blobs, for any number of threads; blocking. Methods raise `StorageError` if the system fails them.

    A blob belongs to a folder, which is made with its first blob. Names sort as text.
    """

    def put(self, folder: str, name: str, buffers: Sequence[Any]) -> None:
        """Keep them, one after the other; durable when it returns. After an error there is none, or a whole one.

        Raises FileNotFoundError if it was deleted meanwhile.
        """

    def get(self, folder: str, name: str) -> pa.Buffer:
        """The whole of a blob. Raises FileNotFoundError."""

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete them; it does not matter whether they were there."""

    def names(self, folder: str) -> list[str]:
        """The names of all that are there, and of those that somebody began to put, and may have left so; in order."""
