"""`StateFolder`: what a query in steps keeps on this machine, by whom it is used, and whose it is."""

from __future__ import annotations

import fcntl
import shutil
from typing import IO, TYPE_CHECKING

from nebuli.durable_files import make_directory, sync_directory, write_durably
from nebuli.members.errors import FolderOfOthers, StateGone, StateInUse, StateOfAnother
from nebuli.members.stepped_query import CLAIM
from nebuli.storage import Store

if TYPE_CHECKING:
    from pathlib import Path

    from nebuli.members.stepped_query import SteppedQuery

_LOCK = "lock"
_FORMAT = "format"
_OF_FILE_SYSTEMS = "lost+found"


class StateFolder:
    """A folder with a store for each member and one for the coordinator."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def coordinator(self) -> Path:
        """The coordinator's store, which is made behind those of all members."""
        return self.path / "coordinator"

    def member(self, number: int) -> Path:
        """The store of a member."""
        return self.path / f"member-{number}"

    def lock(self) -> IO[str]:
        """Make the folder if it is not there, and lock it until this is closed.

        Raises StateInUse, FolderOfOthers, OSError.
        """
        make_directory(self.path)
        if not (self.path / _LOCK).exists():
            self._refuse_others_files()
        file = (self.path / _LOCK).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StateInUse(str(self.path)) from None
        return file

    def _refuse_others_files(self) -> None:
        """In a folder with data or programs, ours would be taken for theirs, and theirs be overwritten."""
        names = sorted(each.name for each in self.path.iterdir())
        if any(name.startswith("member-") for name in names):
            return
        others = [name for name in names if not name.startswith(".") and name != _OF_FILE_SYSTEMS]
        if others:
            raise FolderOfOthers(str(self.path), others)

    async def claim(self, query: SteppedQuery) -> None:
        """Have the folder, which is locked, say that it is this query's, if it is nobody's or its own already.

        It is nobody's before anything counts: with what was wrong at the first try corrected, it may be another query.
        Raises StateOfAnother, ClaimDamaged, StateGone, StorageError, OSError.
        """
        try:
            claim = query.claim(self.path)
        except StateOfAnother as another:
            if another.what == _FORMAT or not await self._is_blank():  # another format may not be opened
                raise
            self._clear()
            claim = query.claim(self.path)
        self._check_all_there(query.plan.members)
        write_durably(self.path / CLAIM, claim)

    async def _is_blank(self) -> bool:
        """Whether no member has fixed a step, or was given a row that it has to keep."""
        return all([await Store.is_blank(folder) for folder in self.path.glob("member-*")])

    def _clear(self) -> None:
        """Forget whose it is last: whatever ends this in the middle, it is begun again."""
        for folder in (self.coordinator, *self.path.glob("member-*")):
            if folder.exists():
                shutil.rmtree(folder)
        (self.path / CLAIM).unlink()
        sync_directory(self.path)

    def _check_all_there(self, members: int) -> None:
        """A member without what it kept would begin anew, with what it writes, where no other has a checkpoint."""
        if not Store.is_at(self.coordinator):
            return
        gone = [store for store in map(self.member, range(members)) if not Store.is_at(store)]
        if gone:
            raise StateGone(str(gone[0]), "that member", f"the rest of {self.path}", "give another --state")
