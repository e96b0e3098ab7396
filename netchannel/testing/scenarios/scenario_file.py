"""Reads scenarios, and says everything that is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from yaml import MappingNode

from .consistency import check_actors, check_steps
from .model import Bridge, Kill, Mistake, Reset, Scenario, ScenarioError, Sink, Source, Start, Stop, Wait
from .yaml_nodes import Values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from yaml import Node

    from .model import Actor, Step

_TYPES = {
    "source": (("type", "count"), ("rate", "size")),
    "bridge": (("type", "from"), ()),
    "sink": (("type", "from", "expect"), ()),
}
_STEPS = ("start", "stop", "kill", "reset", "wait")
_MOST = 10**9
_SIZE = 100
_LEAST_SIZE, _MOST_SIZE = 60, 1 << 20
"""The least has room for name and number."""
_DEADLINE_S = 30.0


def load(path: str | PathLike[str]) -> Scenario:
    """Read a scenario's file. Raises ScenarioError with every mistake in it, each with file, line and column."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError([Mistake(f"cannot read the file: {error.strerror}", str(path))]) from error
    except UnicodeDecodeError as error:
        raise ScenarioError([Mistake(f"not UTF-8: byte {error.start}", str(path))]) from error
    return parse(text, file=str(path))


def parse(text: str, file: str = "scenario") -> Scenario:
    """Read a scenario from YAML text; ``file`` is the name that mistakes carry. Raises ScenarioError."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise ScenarioError([Mistake(f"not valid YAML: {said}", file, line, column)]) from error
    except yaml.YAMLError as error:
        raise ScenarioError([Mistake(f"not valid YAML: {error}", file)]) from error
    if root is None:
        raise ScenarioError([Mistake("the file is empty; expected actors and steps", file)])
    return _Reading(file).scenario(root)


class _Reading:
    def __init__(self, file: str) -> None:
        self._values = Values(file)
        self._deadline_s = _DEADLINE_S
        self._kinds: dict[str, str | None] = {}  # of all names, also of those whose actor cannot be read

    def scenario(self, root: Node) -> Scenario:
        """The document's root as a scenario."""
        values = self._values
        fields = values.fields(root, "a scenario", ("actors", "steps"), ("deadline_s",))
        if "deadline_s" in fields:
            self._deadline_s = values.positive(fields["deadline_s"], "deadline_s") or _DEADLINE_S
        actors: dict[str, Actor] = {}
        places: dict[str, Node] = {}
        if "actors" in fields:
            found = values.mapping(fields["actors"], "actors")
            if not found and not values.mistakes:
                values.add(fields["actors"], "expected at least a source and a sink as actors")
            for name, (key, node) in found.items():
                actor = self._actor(name, node, list(found))
                if values.is_name(key) and actor is not None:
                    actors[name], places[name] = actor, key
            # What is said of one that could not be read says nothing of the others.
            if len(actors) == len(found):
                check_actors(values, actors, places)
        steps = list(self._steps(fields["steps"])) if "steps" in fields else []
        scenario = Scenario(values.file, actors, tuple(step for step, _ in steps), self._deadline_s)
        if not values.mistakes:
            check_steps(values, scenario, [node for _, node in steps], places)
        if values.mistakes:
            raise ScenarioError(values.mistakes)
        return scenario

    def _actor(self, name: str, node: Node, names: list[str]) -> Actor | None:
        before = len(self._values.mistakes)
        kind = self._kinds[name] = self._kind(name, node)
        if kind is None:
            return None
        actor = self._made(kind, name, node, names)
        return actor if len(self._values.mistakes) == before else None

    def _kind(self, name: str, node: Node) -> str | None:
        found = self._values.mapping(node, name)
        if "type" in found:
            return self._values.choice(found["type"][1], "type", _TYPES)
        if isinstance(node, MappingNode):
            self._values.add(node, f"missing key 'type' in {name}; expected one of {', '.join(_TYPES)}")
        return None

    def _made(self, kind: str, name: str, node: Node, names: list[str]) -> Actor | None:
        values = self._values
        required, optional = _TYPES[kind]
        fields = values.fields(node, f"the {kind} {name}", required, optional)
        number = {
            key: values.whole(fields[key], key, least, most)
            for key, least, most in (
                ("count", 1, _MOST),
                ("expect", 0, _MOST),
                ("size", _LEAST_SIZE, _MOST_SIZE),
            )
            if key in fields
        }
        rate = values.positive(fields["rate"], "rate") if "rate" in fields else None
        upstreams = [each for each, _ in values.names(fields["from"], names)] if "from" in fields else []
        match kind:
            case "source":
                return Source(name, number.get("count") or 0, rate, number.get("size") or _SIZE)
            case "sink":
                return Sink(name, tuple(upstreams), number.get("expect") or 0)
        if len(upstreams) > 1:
            values.add(fields["from"], f"the bridge {name} reads from {len(upstreams)} actors; expected one")
        return Bridge(name, upstreams[0]) if upstreams else None

    def _steps(self, node: Node) -> Iterator[tuple[Step, Node]]:
        for each in self._values.sequence(node, "steps"):
            found = self._values.mapping(each, "a step")
            if len(found) > 1:
                self._values.add(each, f"a step does one thing, and this one has {', '.join(found)}")
            for key_node, value in found.values():
                verb = self._values.choice(key_node, "a step", _STEPS)
                step = self._step(verb, value, each.start_mark.line + 1) if verb and self._kinds else None
                if step is not None:
                    yield step, key_node

    def _step(self, verb: str, node: Node, line: int) -> Step | None:
        if verb == "wait":
            return self._wait(node, line)
        names = tuple(name for name, _ in self._values.names(node, self._kinds))
        match verb:
            case "start":
                return Start(names, line)
            case "stop":
                return Stop(names, line)
            case "kill":
                return Kill(names, line)
            case _:
                return Reset(names, line)

    def _wait(self, node: Node, line: int) -> Wait | None:
        values = self._values
        fields = values.fields(node, "wait", ("sink", "until"), ("within_s",))
        if not {"sink", "until"} <= fields.keys():
            return None
        sinks = [name for name, kind in self._kinds.items() if kind in ("sink", None)]
        sink = values.choice(fields["sink"], "a sink", sinks)
        until = None
        if getattr(fields["until"], "value", None) != "done":
            until = values.whole(fields["until"], "until, if it is not done", 1, _MOST)
        within_s = values.positive(fields["within_s"], "within_s") if "within_s" in fields else None
        return None if sink is None else Wait(sink, until, within_s or self._deadline_s, line)
