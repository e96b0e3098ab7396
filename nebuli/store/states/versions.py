"""Versions of a database as entries of its log. Pure.

The log begins with a whole version, and may have a second entry: what the version after it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgpack

from nebuli.store.errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nebuli.store.ordering import Entry

Key = tuple[str, bytes]
"""A table, and a key in it."""


@dataclass(frozen=True, slots=True)
class Value:
    """The place of a value, an entry or a blob, and the size and checksum that it was written with."""

    size: int
    checksum: int
    inline: bytes | None
    blob: str | None

    def pack(self) -> list[Any]:
        """The value as it is in an entry."""
        return [self.size, self.checksum, self.inline, self.blob]


@dataclass(frozen=True, slots=True)
class Version:
    """The whole of a database at one moment."""

    number: int = 0
    step: int = 0
    values: Mapping[Key, Value] = field(default_factory=dict)

    @property
    def blobs(self) -> set[str]:
        """The names of all blobs that it needs."""
        return {each.blob for each in self.values.values() if each.blob is not None}

    def with_changes(self, step: int, put: Mapping[Key, Value], deleted: Sequence[Key]) -> Version:
        """The next version, with these changes."""
        values = {**self.values, **put}
        for key in deleted:
            values.pop(key, None)
        return replace(self, number=self.number + 1, step=step, values=values)

    def pack(self, id_: bytes) -> bytes:
        """The whole of it, as an entry; the id tells it from that of another who opens the same."""
        whole = {"id": id_, "version": self.number, "step": self.step, "values": _packed(self.values)}
        packed: bytes = msgpack.packb({"whole": whole})
        return packed


def packed_commit(id_: bytes, step: int, put: Mapping[Key, Value], deleted: Sequence[Key]) -> bytes:
    """What a version changes, as an entry; the id tells it from an equal one."""
    commit = {"id": id_, "step": step, "put": _packed(put), "deleted": [list(key) for key in deleted]}
    packed: bytes = msgpack.packb({"commit": commit})
    return packed


def read(database: str, entries: Sequence[Entry]) -> list[Version]:
    """The versions that can be opened, one or two. Raises Damaged."""
    found = [Version()]
    try:
        for entry in entries:
            said = msgpack.unpackb(entry.data)
            if "whole" in said:
                whole = said["whole"]
                found = [Version(whole["version"], whole["step"], _values(whole["values"]))]
            else:
                commit = said["commit"]
                deleted = [(table, key) for table, key in commit["deleted"]]
                found = [found[0], found[0].with_changes(commit["step"], _values(commit["put"]), deleted)]
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise Damaged(
            f"an entry of database {database} is none ({error!r}): restore the store's folder from a copy"
        ) from error
    return found


def _packed(values: Mapping[Key, Value]) -> list[Any]:
    return [[*key, each.pack()] for key, each in values.items()]


def _values(packed: Sequence[Any]) -> dict[Key, Value]:
    return {(table, key): Value(*value) for table, key, value in packed}
