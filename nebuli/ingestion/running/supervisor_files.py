"""`SupervisorFiles`: by which a store has one supervisor on a host and each instance is there once, and their logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xxhash import xxh3_64_hexdigest

from nebuli.durable_files import make_directory
from nebuli.ingestion.errors import SourceRefused

from .process_lock import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.store.store_url import StorePlace

    from .process_lock import LockHolder

_INSTANCE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


@dataclass(frozen=True, slots=True)
class SupervisorFiles:
    """In the store's folder, or, of one by URL, in ``state``, the folder of what is to last of this account."""

    folder: Path

    @classmethod
    def at(cls, place: StorePlace, state: Path) -> SupervisorFiles:
        """Those of a store; the folder is made. Raises OSError."""
        if isinstance(place, Path):
            folder = place.absolute()
        else:
            folder = state / "sources" / xxh3_64_hexdigest(str(place).encode())
        make_directory(folder / "sources")
        return cls(folder)

    @property
    def supervisor(self) -> ProcessLock:
        """The lock of the supervisor."""
        return ProcessLock(self.folder / "supervisor.lock", "the sources of this store are run")

    @property
    def supervisor_log(self) -> Path:
        """The log of a supervisor that a command has started."""
        return self.folder / "supervisor.log"

    def log(self, source: str) -> Path:
        """The log of the instances of a source."""
        return self._sources / f"{source}.log"

    def instance(self, source: str, name: str) -> ProcessLock:
        """The lock of an instance. Raises SourceRefused for a name that cannot be one."""
        if not _INSTANCE.fullmatch(name):
            raise SourceRefused(
                f"{name!r} cannot be the name of an instance: use at most 80 letters, digits, '_', '.' and '-'"
            )
        path = self._sources / f"{source}@{name}.lock"
        return ProcessLock(path, f"instance {name} of source {source} is run")

    def supervised(self) -> Iterator[tuple[str, str, LockHolder]]:
        """Return all supervised instances: source, name, and process. Raises OSError."""
        for path in sorted(self._sources.glob("*@*.lock")):
            source, _, name = path.stem.rpartition("@")
            holder = self.instance(source, name).holder()
            if holder is not None and holder.supervised:
                yield source, name, holder

    def sources(self) -> set[str]:
        """The sources of which there is a file."""
        return {each.stem.rpartition("@")[0] for each in self._sources.glob("*@*.lock")} | {
            each.stem for each in self._sources.glob("*.log")
        }

    def remove(self, source: str) -> None:
        """Remove those of a source that was dropped, except if one of its name is run already. Raises OSError."""
        locks = [
            ProcessLock(each, "") for each in self._sources.glob("*@*.lock")
            if each.stem.rpartition("@")[0] == source
        ]  # fmt: skip
        free = [each.remove() for each in locks]
        if all(free):
            self.log(source).unlink(missing_ok=True)

    @property
    def _sources(self) -> Path:
        return self.folder / "sources"
