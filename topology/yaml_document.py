"""YAML to plain data, with the place of every key and value.

The resolver of YAML 1.1 is narrowed to texts, numbers, booleans and null: a date stays a text, and a tag that
would make any other object is a mistake. So is a key that stands twice, which YAML libraries let pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import SafeConstructor

from topology.mistakes import Location, Marks, Mistake, Spot, Spots

if TYPE_CHECKING:
    from collections.abc import Iterator

_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_CONSTRUCTOR = SafeConstructor()
_MAX_VALUES = 1_000_000
"""Aliases can make a small file stand for a huge document; no topology comes near this."""
_TOO_DEEP = "lists and mappings are nested too deeply"
_MAX_DEPTH = 100
"""Nested lists and mappings, of which PyYAML's C code puts each on the stack: it would crash at some ten thousand."""


@dataclass(slots=True)
class Document:
    """A parsed text: its data, where things are, and what is wrong. ``broken``: there is no data."""

    marks: Marks
    data: Any = None
    mistakes: list[Mistake] = field(default_factory=list)
    broken: bool = False


def parse_yaml(text: str, file: str | None, expected: str) -> Document:
    """Read one YAML document. Does not raise: mistakes are in the result. An empty one has not what is ``expected``."""
    try:
        too_deep = _too_deep(text)
        if too_deep is not None:
            return _broken(Mistake(_TOO_DEEP, file, too_deep.line, too_deep.column))
        return _parsed(text, file, expected)
    except yaml.YAMLError as error:
        return _broken(_syntax_mistake(error, text, file))
    except RecursionError:  # aliases can nest it deeper
        return _broken(Mistake(_TOO_DEEP, file))


def _too_deep(text: str) -> Spot | None:
    """Return the place of the first list or mapping that is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                return _spot(event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return None


def _parsed(text: str, file: str | None, expected: str) -> Document:
    root = yaml.compose(text, Loader=_Loader)
    if root is None:
        return _broken(Mistake(f"the file is empty; expected {expected}", file, 1, 1))
    builder = _Builder(file)
    data = builder.value(root, ())
    document = Document(Marks(file, lambda: _spots(root)), data, builder.mistakes)
    document.broken = builder.endless
    return document


def _broken(mistake: Mistake) -> Document:
    return Document(Marks(mistake.file), mistakes=[mistake], broken=True)


def _syntax_mistake(error: yaml.YAMLError, text: str, file: str | None) -> Mistake:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {', '.join(filter(None, (error.context, error.problem)))}"
        spot = _spot(mark) if mark else Spot(1, 1)
        if mark and _is_tab(text, mark):
            message += "; indent with spaces, because YAML does not allow tabs there"
    else:
        position = getattr(error, "position", 0)
        message = f"not valid YAML: {getattr(error, 'reason', error)}"
        spot = Spot.at(text, position)
    return Mistake(message, file, spot.line, spot.column)


def _is_tab(text: str, mark: yaml.Mark) -> bool:
    lines = text.splitlines()
    return mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t"


def _spot(mark: Any) -> Spot:
    return Spot(mark.line + 1, mark.column + 1)


class _Builder:
    """Turns nodes into data and collects what no topology may hold."""

    def __init__(self, file: str | None) -> None:
        self.mistakes: list[Mistake] = []
        self.endless = False
        self._file = file
        self._open: set[int] = set()
        self._values = 0

    def value(self, node: yaml.Node, path: Location) -> Any:
        self._values += 1
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._open or self._values > _MAX_VALUES:
            if not self.endless:
                self._add(
                    node,
                    "an alias contains itself; expected a finite document"
                    if id(node) in self._open
                    else f"aliases expand this file to more than {_MAX_VALUES:,} values; use fewer aliases",
                )
            self.endless = True
            return None
        self._open.add(id(node))
        data = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self._open.discard(id(node))
        return data

    def _sequence(self, node: yaml.Node, path: Location) -> list[Any]:
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Location) -> dict[Any, Any]:
        data: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._add(key_node, "expected a string as key")
                continue
            # A key is the text that was written: no topology has a key that is a number or a boolean.
            key = key_node.value
            if key in data:
                self._add(key_node, f"duplicate key {key!r}; give each once")
                continue
            data[key] = self.value(value_node, (*path, key))
        return data

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind in ("int", "float", "bool", "null"):
            try:
                return getattr(_CONSTRUCTOR, f"construct_yaml_{kind}")(node)
            except (ValueError, KeyError, IndexError):
                return (
                    node.value
                )  # YAML 1.1 takes a text such as 0b_ for a number; a tag does so for any text
        if kind not in ("str", "timestamp", "merge", "value"):
            self._add(node, f"unknown tag {node.tag}; expected a string, a number, true or false")
        return node.value

    def _add(self, node: yaml.Node, message: str) -> None:
        spot = _spot(node.start_mark)
        self.mistakes.append(Mistake(message, self._file, spot.line, spot.column))


def _spots(root: yaml.Node) -> Spots:
    keys: dict[Location, Spot] = {}
    values: dict[Location, Spot] = {}
    for path, key, node in _walk(root, (), None):
        if key is not None:
            keys.setdefault(path, _spot(key.start_mark))
        values.setdefault(path, _spot(node.start_mark))
    return keys, values


def _walk(
    node: yaml.Node, path: Location, key: yaml.Node | None
) -> Iterator[tuple[Location, yaml.Node | None, yaml.Node]]:
    """Every value with its path and its key. The builder has seen to it that the document is finite."""
    yield path, key, node
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                yield from _walk(value_node, (*path, key_node.value), key_node)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*path, index), None)
