"""Appending an entry once, whatever the system reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nebuli.store.errors import Conflict, StorageError, Unclear

if TYPE_CHECKING:
    from nebuli.store.ordering import Change, Ordering

_PAUSES_S = (0.0, 0.01, 0.1, 0.5)


def append_once(ordering: Ordering, change: Change, other: StorageError) -> None:
    """Append an entry that no other is equal to, once. Raises ``other`` if another one was first; Unclear."""
    for pause in _PAUSES_S:
        time.sleep(pause)
        try:
            ordering.append([change])
        except Unclear as error:
            unclear = error
            continue
        except Conflict:
            if [entry.data for entry in ordering.scan(change.key, change.expected)] != [change.data]:
                raise other from None
        return
    raise unclear
