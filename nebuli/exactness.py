"""The fragments that go on exactly after a kill, without a disk: those that compute row by row from one input.

What such a fragment sends is a function of its input alone, in its order: whoever makes it again makes the same again.
Any other has a state (a join's, an aggregate's, a sink's), or an order of its inputs that nobody knows again, or an
input whose sender gives up what it has no room for, and so does not keep what is not acknowledged. Fragments of a query
in steps go on, too, with what they keep on their node's disk.
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
    """Whether the fragment, killed and started again, goes on where it was; those in steps do."""
    if isinstance(fragment, MemberFragment | CoordinatorPlacement):
        return True
    inputs = [each for each in fragment.operators if isinstance(each, BoundSource | NetworkSource)]
    return (
        len(inputs) == 1
        and not fragment.views
        and fragment.engine is None  # another engine remembers nothing of what it had
        and not list(_lossy(fragment))
        and not fragment.watermarks  # one that follows from the rows is not known again from where they go on
        and all(isinstance(each, _STATELESS) for each in fragment.operators)
        and not list(unreplayable_sources([fragment]))  # channels are others' to judge
    )


def goes_on(fragment: AnyFragment) -> bool:
    """Whether a fragment that was killed is started again, and nothing is wrong for it.

    One that is exact goes on where it was. A part of a query with views begins with nothing, if it keeps nothing but
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
    """What cannot be read again, by names for people."""
    for fragment in fragments:
        for each in fragment.operators:
            if isinstance(each, BoundSource) and not each.physical.can_be_read_again:
                yield f"{each.id} at {fragment.node} ({each.physical.reads})"


def _lossy(fragment: Fragment) -> Iterable[str]:
    return (each.id for each in fragment.operators if isinstance(each, NetworkSource) and each.lossy)


def state_of(fragment: AnyFragment) -> str:
    """What of the fragment is lost with its process, in words."""
    if isinstance(fragment, MemberFragment | CoordinatorPlacement):
        return "what it had done since the last checkpoint, which it does again"
    unreplayable = list(unreplayable_sources([fragment]))
    if unreplayable:
        return f"what it had read of {', '.join(unreplayable)}, which cannot be read again"
    if fragment.engine is not None:
        return "what its engine had computed"
    held = [f"watermark of {each.operator}" for each in fragment.watermarks]
    held += [f"{each.type} {each.id}" for each in fragment.operators if not isinstance(each, _STATELESS)]
    if held:
        return f"the state of {', '.join(held)}"
    if lossy := list(_lossy(fragment)):
        return f"what it had received of {', '.join(lossy)}, of which nothing is sent again (drop_oldest)"
    return "the order of its inputs"
