"""Files that match the pattern of a physical source: each is a source of its own, which some member reads."""

from __future__ import annotations

import glob
import hashlib
import logging
import string
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.connectors.errors import InputError
from nebuli.durable_files import make_directory
from nebuli.store import Store
from nebuli.store.errors import Damaged
from nebuli.store.notes import Notes, sealed, unsealed
from topology import CsvSource, ParquetSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.store.store_url import StorePlace
    from placement.stepped_plan import Feed, Share
    from topology import PhysicalSource

_log = logging.getLogger("nebuli.steps.member")
_LIST = "files.json"
_DIGEST = 8
_NAMED = 5
"""Files that a warning names; there may be thousands."""


def may_be_pattern(physical: PhysicalSource) -> bool:
    """True if its path looks like a pattern, in any folder."""
    return isinstance(physical, CsvSource | ParquetSource) and glob.has_magic(physical.path)


def is_pattern(physical: PhysicalSource, directory: Path) -> bool:
    """True if its path stands for all files that match it. A file that has just that name is not a pattern."""
    return (
        isinstance(physical, CsvSource | ParquetSource)
        and may_be_pattern(physical)
        and not (directory / physical.path).exists()
    )


def matching(physical: PhysicalSource, directory: Path) -> list[PhysicalSource]:
    """A source for each file, in the order of their names; the source itself, if it is not a pattern.

    ``directory`` is where relative paths start. Raises InputError where no file matches.
    """
    if not is_pattern(physical, directory):
        return [physical]
    assert isinstance(physical, CsvSource | ParquetSource)
    paths = sorted(glob.glob(physical.path, root_dir=directory, recursive=True))  # noqa: PTH207 - a path may be absolute
    files = [path for path in paths if (directory / path).is_file()]
    if not files:
        raise InputError(f"{physical.path}: no file in {directory.absolute()} matches it")
    return [physical.model_copy(update={"path": path}) for path in files]


def own_feeds(feeds: Sequence[Feed], place: StorePlace, directory: Path) -> list[Feed]:
    """Return the sources that a member reads itself.

    For a pattern, its share of the matching files, each as its own source.

    A file is the member's by a hash of its path, so that each file is exactly one member's although every member looks
    for itself, and a moment later than the others. The first result stays, at ``place``: a later file is not read, even
    by another process of the member. Raises InputError where no file matches, Damaged, OSError.
    """
    shared = [feed for feed in feeds if feed.share is not None]
    if not shared:
        return list(feeds)
    notes = Notes(place)
    if notes.read(_LIST) is None:
        if isinstance(place, Path):
            make_directory(place)
        found = {feed.name: _own_paths(feed, directory) for feed in shared}
        notes.write(_LIST, sealed(found))
    paths = _kept_paths(notes)
    own = [feed for feed in feeds if feed.share is None]
    own += [_of_file(feed, path) for feed in shared for path in paths.get(feed.name, ())]
    return own


async def look_anew_before_first_step(place: StorePlace) -> None:
    """Forget what the member found first, if nothing of it counts: what was wrong may have been put right meanwhile.

    Raises StorageError, OSError.
    """
    notes = Notes(place)
    if notes.read(_LIST) is not None and await Store.is_blank(place):
        notes.forget([_LIST])


class NewFiles:
    """Files that match a member's patterns, and were not there when it looked for them first: they are not read.

    To be asked now and then; each is warned of once, by the member whose it would be. ``place`` has what was found.
    """

    def __init__(self, feeds: Sequence[Feed], place: StorePlace, directory: Path) -> None:
        self._shared = [feed for feed in feeds if feed.share is not None]
        self._notes = Notes(place)
        self._directory = directory
        self._said: set[str] = set()

    def look(self) -> None:
        """Look for them, and warn of those that are new. Blocking."""
        if not self._shared:
            return
        kept = _kept_paths(self._notes)
        for feed in self._shared:
            with suppress(InputError):  # earlier ones are gone, which their reader reports
                new = sorted({*_own_paths(feed, self._directory)} - {*kept.get(feed.name, ())} - self._said)
                if new:
                    self._warn(_path(feed.source.physical), new)

    def _warn(self, pattern: str, new: Sequence[str]) -> None:
        self._said.update(new)
        more = f", and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        _log.warning(
            "%s: the query does not read matching files that appeared after it had begun: %s%s; register the "
            "query again to read all files, or append to the files that it reads",
            pattern,
            ", ".join(new[:_NAMED]),
            more,
        )


def _own_paths(feed: Feed, directory: Path) -> list[str]:
    assert feed.share is not None
    paths = [_path(each) for each in matching(feed.source.physical, directory)]
    return [path for path in paths if _is_own(path, feed.share)]


def _path(physical: PhysicalSource) -> str:
    assert isinstance(physical, CsvSource | ParquetSource)
    return physical.path


def _is_own(path: str, share: Share) -> bool:
    return int.from_bytes(_digest(path)) % share.of == share.number


def pattern_of(name: str) -> tuple[str, int] | None:
    """Return, for the name of a file's feed, that of its pattern's, and the number of the share.

    None: it cannot be one.
    """
    pattern, slash, digest = name.rpartition("/")
    if not slash or len(digest) != 2 * _DIGEST or set(digest) - set(string.hexdigits):
        return None
    return pattern, int(digest, 16)


def _digest(path: str) -> bytes:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()[:_DIGEST]


def _kept_paths(notes: Notes) -> dict[str, list[str]]:
    kept = f"{notes.place}/{_LIST}"
    try:
        return unsealed(notes.read(_LIST) or b"")
    except ValueError as error:
        raise Damaged(
            f"{kept} does not list the files that the member reads: {error}; restore the folder from a copy"
        ) from error


def _of_file(feed: Feed, path: str) -> Feed:
    physical = feed.source.physical.model_copy(update={"path": path})
    return feed.model_copy(
        update={
            "name": f"{feed.name}/{_digest(path).hex()}",
            "source": feed.source.model_copy(update={"physical": physical}),
            "share": None,
        }
    )
