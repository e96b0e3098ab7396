"""What cannot be in a scenario although each of its values can: checked before anything is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import Bridge, Kill, Reset, Sink, Source, Start, Stop, upstreams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from yaml import Node

    from .model import Actor, Scenario, Wait
    from .yaml_nodes import Values


def check_actors(values: Values, actors: Mapping[str, Actor], places: Mapping[str, Node]) -> None:
    """Every message has a way from a source to a sink, and one only for each that reads from the source."""
    readers = {name: [each.name for each in actors.values() if name in upstreams(each)] for name in actors}
    for name, actor in actors.items():
        place, reading = places[name], ", ".join(readers[name])
        match actor:
            case Sink() if readers[name]:
                values.add(place, f"{name} is a sink, and {reading} cannot read from it")
            case Source() | Bridge() if not readers[name]:
                values.add(place, f"nobody reads from {name}; expected a bridge or a sink that does")
            case Bridge() if len(readers[name]) > 1:
                values.add(
                    place, f"{reading} read from the bridge {name}; expected one, as a bridge has one output"
                )
            case Bridge() if _is_in_a_circle(name, actors):
                values.add(place, f"the bridge {name} gets its own output; expected a way from a source")


def _is_in_a_circle(name: str, actors: Mapping[str, Actor]) -> bool:
    passed: list[str] = []
    actor = actors[name]
    while isinstance(actor, Bridge) and actor.name not in passed:
        passed.append(actor.name)
        actor = actors[actor.upstream]
    return actor.name == name and isinstance(actor, Bridge)


def check_steps(
    values: Values, scenario: Scenario, nodes: Sequence[Node], places: Mapping[str, Node]
) -> None:
    """Check that whoever is started does not run, whoever is stopped does, and every actor takes part."""
    running: set[str] = set()
    started: set[str] = set()
    for step, node in zip(scenario.steps, nodes, strict=True):
        match step:
            case Start(actors=actors):
                if again := running & set(actors):
                    values.add(
                        node, f"{_listed(again)} cannot be started: it has been, and not been stopped since"
                    )
                running.update(actors)
                started.update(actors)
            case Stop(actors=actors) | Kill(actors=actors) | Reset(actors=actors):
                if absent := set(actors) - running:
                    values.add(node, f"{_listed(absent)} does not run here; start it first")
                if not isinstance(step, Reset):
                    running.difference_update(actors)
            case _:
                _check_wait(values, scenario, step, node, running)
    for name in scenario.actors.keys() - started:
        values.add(places[name], f"{name} is never started; expected a step that does")


def _check_wait(values: Values, scenario: Scenario, wait: Wait, node: Node, running: set[str]) -> None:
    if wait.sink not in running:
        values.add(node, f"{wait.sink} does not run here, and reads nothing; start it first")
    sink = scenario.actors[wait.sink]
    most = sum(scenario.source_of(name).count for name in upstreams(sink))
    if wait.until is not None and wait.until > most:
        values.add(node, f"{wait.sink} is waited for until {wait.until} messages, and is sent {most}")


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
