"""Blobs, too large for the ordering: by name, each complete or absent, and immutable."""

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
        """Keep them, one after the other; durable when it returns. After an error there is none, or a complete one.

        Raises FileNotFoundError if it was deleted meanwhile.
        """

    def get(self, folder: str, name: str) -> pa.Buffer:
        """The whole of a blob. Raises FileNotFoundError."""

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Delete them; it does not matter whether they were there."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all blobs, and of those whose writing was begun and possibly abandoned; in order."""
