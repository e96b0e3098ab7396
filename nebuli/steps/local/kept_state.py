"""`KeptState`: the state of a query in steps, in a folder or at a URL, with its lock and the record of its query."""

from __future__ import annotations

import asyncio
import fcntl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nebuli.durable_files import make_directory
from nebuli.steps.errors import ClaimDamaged, FolderOfOthers, StateGone, StateInUse, StateOfAnother
from nebuli.steps.local.skipped_steps import SKIPPED
from nebuli.steps.stepped_query import CLAIM
from nebuli.store import Store
from nebuli.store.backends import stores_below
from nebuli.store.errors import Locked
from nebuli.store.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nebuli.steps.stepped_query import SteppedQuery
    from nebuli.store.store_url import StorePlace, StoreUrl

_LOCK = "lock"
_FORMAT = "format"
_SCALED, _MEMBER = "scaled-", "member-"
_OF_FILE_SYSTEMS = "lost+found"


class KeptState:
    """A store for each member and one for the coordinator, below one place."""

    def __init__(self, place: StorePlace) -> None:
        self.place = place
        self.notes = Notes(place)

    def __str__(self) -> str:
        return str(self.place)

    @property
    def coordinator(self) -> StorePlace:
        """The coordinator's store, which is made after those of all members."""
        return self.place / "coordinator"

    def members(self, generation: int, count: int) -> list[StorePlace]:
        """The stores of the members, after so many generations of earlier members."""
        above = self.place / f"{_SCALED}{generation}" if generation else self.place
        return [above / f"{_MEMBER}{number}" for number in range(count)]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Have the place, if it is not there, and lock it.

        Raises StateInUse, FolderOfOthers, StorageError, OSError.
        """
        with _folder_locked(self.place) if isinstance(self.place, Path) else _url_locked(self.place):
            yield

    async def claim(self, query: SteppedQuery) -> tuple[SteppedQuery, int]:
        """Record this query at the locked place, if it has none or this one already.

        The query over the members that have the state, and their generation. The place has no query before any
        row counts: after correcting an error of the first try, it may be another query. Raises StateOfAnother,
        ClaimDamaged, StateGone, StorageError, OSError.
        """
        said = await asyncio.to_thread(self.notes.read, CLAIM)
        stores = await asyncio.to_thread(self._stores)
        if said is None and stores:
            raise ClaimDamaged(f"{self}/{CLAIM}", "it is missing, although the state of members exists")
        found, generation = query, 0
        if said is not None:
            try:
                found, generation = query.claimed(said, str(self))
                is_cleared = found is not query and await _are_blank(stores)
            except StateOfAnother as another:
                # Another format may not be opened.
                if another.what == _FORMAT or not await _are_blank(stores):
                    raise
                is_cleared = True
            if is_cleared:
                await asyncio.to_thread(self._clear, stores)
                found, generation = query, 0
        await asyncio.to_thread(self._check_all_there, generation, found.plan.members)
        await asyncio.to_thread(self.belong, found, generation)
        await asyncio.to_thread(self.forget_others, generation)
        return found, generation

    def belong(self, query: SteppedQuery, generation: int) -> None:
        """Record, durably, its query, and the members that have the state. Raises OSError."""
        self.notes.write(CLAIM, query.claim(generation))

    def forget_others(self, generation: int) -> None:
        """Delete what members of other generations have kept. Raises OSError, StorageError."""
        for each in self._others(self.members(generation, 1)[0]):
            Store.remove(each)

    def _others(self, kept: StorePlace) -> Sequence[StorePlace]:
        """Return stores, or folders of stores, of other generations than the one with this member."""
        if isinstance(self.place, Path) and isinstance(kept, Path):
            scaled = [each for each in self.place.glob(f"{_SCALED}*") if each != kept.parent]
            return scaled if kept.parent == self.place else [*scaled, *self.place.glob(f"{_MEMBER}*")]
        beginning = str(kept).partition("&")[0].removesuffix("0")
        return [each for each in self._stores() if not str(each).startswith(beginning)]

    def _stores(self) -> list[StorePlace]:
        """Those of members, of all generations."""
        if isinstance(self.place, Path):
            return [*self.place.glob(f"{_MEMBER}*"), *self.place.glob(f"{_SCALED}*/{_MEMBER}*")]
        return [each for each in stores_below(self.place) if f"/{_MEMBER}" in each.schema]

    def _clear(self, stores: list[StorePlace]) -> None:
        """Forget the record of the query last: if this is interrupted, it is repeated."""
        for each in (self.coordinator, *stores):
            Store.remove(each)
        self.notes.forget([CLAIM, SKIPPED])

    def _check_all_there(self, generation: int, members: int) -> None:
        """Check that no member has lost its state: it would start from scratch, if no other has a checkpoint."""
        if not Store.is_at(self.coordinator):
            return
        gone = [store for store in self.members(generation, members) if not Store.is_at(store)]
        if gone:
            raise StateGone(str(gone[0]), "a member", f"the rest of {self}", "give another --state")


async def _are_blank(stores: list[StorePlace]) -> bool:
    """True if no member has fixed a step, or has a row that it must keep."""
    return all([await Store.is_blank(each) for each in stores])


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    make_directory(folder)
    if not (folder / _LOCK).exists():
        _refuse_others_files(folder)
    with (folder / _LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateInUse(str(folder), f"'fuser {folder}/lock' prints its id") from None
        yield


def _refuse_others_files(folder: Path) -> None:
    """In a folder with data or programs, ours would be taken for theirs, and theirs be overwritten."""
    names = sorted(each.name for each in folder.iterdir())
    if any(name.startswith("member-") for name in names):
        return
    others = [name for name in names if not name.startswith(".") and name != _OF_FILE_SYSTEMS]
    if others:
        raise FolderOfOthers(str(folder), others)


@contextmanager
def _url_locked(url: StoreUrl) -> Iterator[None]:
    from nebuli.store.held_lock import HeldLock  # which needs what most installations do not have

    try:
        lock = HeldLock(url, "run")
    except Locked as error:
        raise StateInUse(
            str(url), f"{error.holder}; the claim of a lost machine expires within 12 s"
        ) from None
    try:
        yield
    finally:
        lock.close()
