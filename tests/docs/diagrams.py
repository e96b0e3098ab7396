"""State diagrams from tables of transitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum


def state_diagram(
    states: type[StrEnum], table: Mapping[tuple[StrEnum, StrEnum], StrEnum], terminal: Collection[StrEnum]
) -> str:
    """A mermaid state diagram: one arrow for each pair of states, labelled with its events."""
    events: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (state, event), following in table.items():
        events.setdefault((state, following), []).append(event)
    named = [f'  state "{state}" as {_name(state)}' for state in states if " " in state]
    arrows = [
        f"  {_name(state)} --> {_name(following)}: {', '.join(labels)}"
        for (state, following), labels in events.items()
    ]
    ends = [f"  {_name(state)} --> [*]" for state in states if state in terminal]
    first = next(iter(states))
    return "\n".join(["stateDiagram-v2", *named, f"  [*] --> {_name(first)}", *arrows, *ends, ""])


def _name(state: StrEnum) -> str:
    return state.replace(" ", "_")
