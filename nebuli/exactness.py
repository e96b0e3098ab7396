"""The fragments that resume exactly after a kill, without a disk: those that compute row by row from one input.

The output of such a fragment is a function of its input alone, in its order: a repeated run makes the same again.
Any other has a state (a join's, an aggregate's, a sink's), or an order of its inputs that cannot be reproduced, or an
input whose sender drops messages for lack of room, and so does not keep unacknowledged ones. Fragments of a query in
steps resume, too, with their state on their node's disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.partial.node_plan import planned_of
from placement.plan import (
    BoundSource,
    FilterOperator,
    Fragment,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
)
from placement.stepped_plan import AnyFragment, CoordinatorPlacement, MemberFragment
from placement.view_nodes import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from placement.stepped_plan import AnyFragment

__all__ = ["goes_on", "is_exact", "state_of", "unreplayable_sources"]

_STATELESS = (NetworkSource, BoundSource, FilterOperator, ProjectOperator, NetworkSink)


def is_exact(fragment: AnyFragment) -> bool:
    """True if the fragment, killed and started again, continues where it was; those in steps do."""
    if isinstance(fragment, MemberFragment | CoordinatorPlacement):
        return True
    inputs = [each for each in fragment.operators if isinstance(each, BoundSource | NetworkSource)]
    return (
        len(inputs) == 1
        and not fragment.views
        and fragment.engine is None  # another engine remembers nothing of what it had
        and not list(_lossy(fragment))
        and not fragment.watermarks  # one that follows from the rows is not known where they resume
        and all(isinstance(each, _STATELESS) for each in fragment.operators)
        and not list(unreplayable_sources([fragment]))  # channels are others' to judge
    )


def goes_on(fragment: AnyFragment) -> bool:
    """True if a killed fragment is started again, and has not failed.

    One that is exact continues where it was. A part of a query with views begins with nothing, if it keeps nothing but
    bases, which read their sources again, and keys that are asked for again.
    """
    if is_exact(fragment):
        return True
    if not isinstance(fragment, Fragment) or not fragment.views:
        return False
    plan, here = (
        planned_of(fragment),
        {each.id for each in fragment.own if not isinstance(each, NetworkSource)},
    )
    if any(place.node in here for place in plan.full) or any(
        isinstance(plan.nodes.get(id_), Stream) for id_ in here
    ):
        return False
    return not any(edge.producer in here for edge in plan.edges_to_full)


def unreplayable_sources(fragments: Iterable[AnyFragment]) -> Iterable[str]:
    """Return the sources that cannot be read again, by display names."""
    for fragment in fragments:
        for each in fragment.operators:
            if isinstance(each, BoundSource) and not each.physical.can_be_read_again:
                yield f"{each.id} at {fragment.node} ({each.physical.reads})"


def _lossy(fragment: Fragment) -> Iterable[str]:
    return (each.id for each in fragment.operators if isinstance(each, NetworkSource) and each.lossy)


def state_of(fragment: AnyFragment) -> str:
    """Return a phrase for the state of the fragment that is lost with its process."""
    if isinstance(fragment, MemberFragment | CoordinatorPlacement):
        return "its work since the last checkpoint, which it repeats"
    unreplayable = list(unreplayable_sources([fragment]))
    if unreplayable:
        return f"the rows already read from {', '.join(unreplayable)}, which cannot be read again"
    if fragment.engine is not None:
        return "the state of its engine"
    held = [f"watermark of {each.operator}" for each in fragment.watermarks]
    held += [f"{each.type} {each.id}" for each in fragment.operators if not isinstance(each, _STATELESS)]
    if held:
        return f"the state of {', '.join(held)}"
    if lossy := list(_lossy(fragment)):
        return f"the rows already received from {', '.join(lossy)}, which are not sent again (drop_oldest)"
    return "the order of its inputs"
