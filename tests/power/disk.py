"""A disk with files and directories, as processes see them and as they are after a loss of power.

What is written is seen at once. It is durable once the file was synced; a name that was made, moved or removed is, once
its directory was. Of anything else, when the power goes, any part is on the disk, as a seed draws it:

* of the names in a directory, all changes, none, the first few or any of them; a rename is there as a whole or not;
* of a file, all writes, none, the first few, or for each page the newest state, the one that was synced, or, torn, for
  each sector of 512 bytes any state that it was in since;
* its length, any that it had since, whatever there is of its pages: where these are not, it has zeros, and now and then
  what was in that place of the disk before.

A sync that fails has written some of that, and the rest will not be: it can be read, also by who opens the file later,
until the power goes, and a second sync says that all is well.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

PAGE, SECTOR = 4096, 512
ROOT = 1
_SECTORS = range(0, PAGE, SECTOR)
_CAPACITY = 1 << 30

_Change = tuple[int, bytes] | int
"""A write at an offset, or the length that the file is cut to or grown to."""

T = TypeVar("T")


class File:
    """The contents of a file."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.stored = bytearray()
        self.unsynced: list[_Change] = []

    def change(self, change: _Change) -> None:
        """For all to see."""
        _apply(self.seen, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        """All of it."""
        for change in self.unsynced:
            _apply(self.stored, change)
        self.unsynced = []

    def forget(self, random: Random) -> None:
        """Have some of what is not synced on the disk, and nobody know that the rest is not."""
        length = len(self.seen)
        self.stored = _survived(self, random)
        _apply(self.stored, length)
        self.unsynced = []

    def lose(self, random: Random) -> None:
        """The power goes."""
        self.stored = _survived(self, random)
        self.seen, self.unsynced = bytearray(self.stored), []


@dataclass(eq=False, slots=True)
class Directory:
    """Names, and what they stand for."""

    seen: dict[str, Node] = field(default_factory=dict)
    stored: dict[str, Node] = field(default_factory=dict)
    unsynced: list[tuple[str, str, Node | None]] = field(default_factory=list)
    """Names, with those that went away for them, and what they stand for; None: for nothing any more."""

    def change(self, name: str, was: str, node: Node | None) -> None:
        """For all to see."""
        _enter(self.seen, name, was, node)
        self.unsynced.append((name, was, node))

    def sync(self) -> None:
        """All names."""
        for change in self.unsynced:
            _enter(self.stored, *change)
        self.unsynced = []

    def lose(self, random: Random) -> None:
        """The power goes."""
        how = random.choice(["all", "none", "first", "any"])
        for change in _some(self.unsynced, how, random):
            _enter(self.stored, *change)
        self.seen, self.unsynced = dict(self.stored), []


Node = File | Directory


class Disk:
    """A file system (`fuse.Files`)."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self.is_full = False
        self.lies: set[str] = set()
        """How names end of files whose syncs do nothing, and say that all is well; ``/``: of directories."""
        self.short_writes = 0.0
        self.failing_syncs = 0
        self.root = Directory()
        self._nodes: list[Node] = [self.root]
        self._numbers: dict[Node, int] = {self.root: ROOT}
        self._named: dict[Node, str] = {}

    def lose_power(self) -> None:
        """Only what survives is seen from now on."""
        pending: list[Node] = [self.root]
        lost: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in lost:
                continue
            lost.add(node)
            node.lose(self._random)
            if isinstance(node, Directory):
                pending += [node.seen[name] for name in sorted(node.seen)]

    def name_of(self, number: int) -> str:
        """The name that a file has had last; ``/`` of a directory."""
        node = self._nodes[number - 1]
        return "/" if isinstance(node, Directory) else self._named[node]

    # -- what the kernel asks for

    def lookup(self, directory: int, name: str) -> int:
        return self._number(self._found(directory, name))

    def size(self, number: int) -> int | None:
        node = self._nodes[number - 1]
        return len(node.seen) if isinstance(node, File) else None

    def is_memory(self, number: int) -> bool:
        return self.name_of(number).endswith("-shm")  # SQLite's

    def names(self, number: int) -> list[str]:
        return sorted(self._directory(number).seen)

    def space(self) -> tuple[int, int]:
        return _CAPACITY, 0 if self.is_full else _CAPACITY

    def create(self, directory: int, name: str) -> int:
        return self._made(directory, name, File())

    def make_directory(self, directory: int, name: str) -> int:
        return self._made(directory, name, Directory())

    def unlink(self, directory: int, name: str) -> None:
        if isinstance(self._found(directory, name), Directory):
            raise _error(errno.EISDIR)
        self._directory(directory).change(name, name, None)

    def remove_directory(self, directory: int, name: str) -> None:
        found = self._found(directory, name)
        if not isinstance(found, Directory):
            raise _error(errno.ENOTDIR)
        if found.seen:
            raise _error(errno.ENOTEMPTY)
        self._directory(directory).change(name, name, None)

    def rename(self, directory: int, old: str, new: str) -> None:
        node = self._found(directory, old)
        self._named[node] = new
        self._directory(directory).change(new, old, node)

    def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(self._file(number).seen[offset : offset + size])

    def write(self, number: int, offset: int, data: bytes) -> int:
        file = self._file(number)
        if self.is_full and offset + len(data) > len(file.seen):
            data = data[: max(0, len(file.seen) - offset)]
            if not data:
                raise _error(errno.ENOSPC)
        if len(data) > 1 and self._random.random() < self.short_writes:
            data = data[: self._random.randrange(1, len(data))]
        file.change((offset, data))
        return len(data)

    def truncate(self, number: int, size: int) -> None:
        self._file(number).change(size)

    def sync(self, number: int) -> None:
        node, name = self._nodes[number - 1], self.name_of(number)
        if any(name.endswith(lie) for lie in self.lies):
            return
        if self.failing_syncs and isinstance(node, File):
            self.failing_syncs -= 1
            node.forget(self._random)
            raise _error(errno.EIO)
        node.sync()

    # -- inside

    def _made(self, directory: int, name: str, node: Node) -> int:
        parent = self._directory(directory)
        if name in parent.seen:
            raise _error(errno.EEXIST)
        self._named[node] = name
        parent.change(name, name, node)
        return self._number(node)

    def _number(self, node: Node) -> int:
        if node not in self._numbers:
            self._nodes.append(node)
            self._numbers[node] = len(self._nodes)
        return self._numbers[node]

    def _directory(self, number: int) -> Directory:
        node = self._nodes[number - 1]
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR)
        return node

    def _file(self, number: int) -> File:
        node = self._nodes[number - 1]
        if not isinstance(node, File):
            raise _error(errno.EISDIR)
        return node

    def _found(self, directory: int, name: str) -> Node:
        node = self._directory(directory).seen.get(name)
        if node is None:
            raise _error(errno.ENOENT)
        return node


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _apply(data: bytearray, change: _Change) -> None:
    if isinstance(change, int):
        del data[change:]
        data.extend(bytes(change - len(data)))
    else:
        offset, written = change
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(written)] = written


def _enter(names: dict[str, Node], name: str, was: str, node: Node | None) -> None:
    names.pop(was, None)
    if node is not None:
        names[name] = node


def _some(changes: Sequence[T], how: str, random: Random) -> Sequence[T]:
    match how:
        case "all":
            return changes
        case "none":
            return ()
        case "first":
            return changes[: random.randrange(len(changes) + 1)]
        case _:
            return [change for change in changes if random.random() < 0.5]


def _survived(file: File, random: Random) -> bytearray:
    """What is on the disk when some of what is not synced has got there."""
    how = random.choice(["all", "none", "first", "any"])
    if how == "any":
        return _mixed(file, random)
    disk = bytearray(file.stored)
    for change in _some(file.unsynced, how, random):
        _apply(disk, change)
    return disk


def _mixed(file: File, random: Random) -> bytearray:
    """Each page in a state of its own, and a length that has to do with none of them."""
    lengths, states = [len(file.stored)], _states(file)
    data = bytearray(file.stored)
    for change in file.unsynced:
        _apply(data, change)
        lengths.append(len(data))
    disk = bytearray(file.stored)
    disk.extend(bytes(-len(disk) % SECTOR))
    for page in sorted({sector // PAGE for sector in states}):
        how = random.choice(["new", "old", "torn"])
        is_stale = page * PAGE >= len(file.stored) and random.random() < 0.1
        if is_stale:
            _apply(disk, (page * PAGE, random.randbytes(PAGE)))
        for sector in (page * PAGE + within for within in _SECTORS):
            if sector in states and how != "old":
                state = states[sector][-1] if how == "new" else random.choice(states[sector])
                _apply(disk, (sector, state))
    _apply(disk, random.choice(lengths))
    return disk


def _states(file: File) -> dict[int, list[bytes]]:
    """The states that each sector was in since it was synced, by its offset; the first is what is on the disk."""
    states: dict[int, list[bytes]] = defaultdict(list)
    data = bytearray(file.stored)
    for change in file.unsynced:
        first, end = (
            sorted((change, len(data)))
            if isinstance(change, int)
            else (change[0], change[0] + len(change[1]))
        )
        touched = range(first - first % SECTOR, end, SECTOR)
        for sector in touched:
            if sector not in states:
                states[sector].append(_sector(data, sector))
        _apply(data, change)
        for sector in touched:
            states[sector].append(_sector(data, sector))
    return states


def _sector(data: bytearray, at: int) -> bytes:
    return bytes(data[at : at + SECTOR]).ljust(SECTOR, b"\0")
