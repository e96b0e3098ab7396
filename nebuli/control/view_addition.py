"""More views for a query that runs: its fragments get them, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.rpc.ids import local_id
from nebuli.rpc.worker_client import WorkerRefused
from placement.partial.view_additions import NoViews, addition_of, with_addition
from placement.plan import Fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nebuli.control.deployment import Active, Fleet
    from placement.plan import Addition
    from placement.stepped_plan import AnyFragment

__all__ = ["add_views"]


async def add_views(
    text: str,
    file: str | None,
    active: Active,
    fleet: Fleet,
    keep: Callable[[tuple[AnyFragment, ...]], None],
) -> Addition:
    """Give a query that runs the operators in a text; harmless if it has them.

    ``keep`` is called with the fragments with them first, and with those without them again if no fragment has them.
    Raises InvalidQuery, NoViews; WorkerRefused, WorkerUnreachable: then it is to be tried again.
    """
    running = active.fragments
    free = [each for each in running if isinstance(each, Fragment)]
    if len(free) < len(running):
        raise NoViews(
            "a query in steps gets its views from its file only: add the view there, and register the query "
            "again"
        )
    addition = addition_of(text, free, file)
    is_new = addition not in free[0].added
    wanted = with_addition(free, addition) if is_new else tuple(free)
    keep(wanted)
    try:
        await _give(wanted, active.deployment, fleet)
    except WorkerRefused as error:
        if is_new and error.refusal.id == local_id(active.deployment, addition.fragment):
            keep(running)
        raise
    return addition


async def _give(fragments: Sequence[Fragment], deployment: str, fleet: Fleet) -> None:
    """Give all fragments their additions; harmless if they have them.

    The one that an addition is in is the first: if it refuses, no other has got it.
    """
    for index, addition in enumerate(fragments[0].added):
        for fragment in sorted(fragments, key=lambda each: each.id != addition.fragment):
            client = fleet.client(fragment.node)
            await client.add(local_id(deployment, fragment.id), index, addition)
