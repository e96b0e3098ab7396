"""What a forked child gives up: a lock, or the space of a file without a name, would else outlive a killed parent."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class _Opened(Protocol):
    def abandon(self) -> None:
        """Close the descriptors and do nothing else: the parent goes on with the files."""


_opened: WeakSet[_Opened] = WeakSet()


def abandon_in_children(opened: _Opened) -> None:
    """Have ``opened`` abandoned in every child that is forked while it is in use."""
    _opened.add(opened)


def _abandon_inherited() -> None:
    for each in list(_opened):
        each.abandon()


os.register_at_fork(after_in_child=_abandon_inherited)
