"""Values out of YAML, each with its place, so that all mistakes of a file can be told at once."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from yaml import MappingNode, ScalarNode, SequenceNode
from yaml.constructor import SafeConstructor

from .model import Mistake

if TYPE_CHECKING:
    from collections.abc import Collection

    from yaml import Node

_CONSTRUCTOR = SafeConstructor()
_NAME = re.compile(r"[A-Za-z0-9_.]{1,40}")


class Values:
    """Reads values of nodes; what is no such value becomes one of ``mistakes``, and None."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.mistakes: list[Mistake] = []

    def add(self, node: Node, message: str) -> None:
        """Add a mistake at ``node``."""
        self.mistakes.append(
            Mistake(message, self.file, node.start_mark.line + 1, node.start_mark.column + 1)
        )

    def mapping(self, node: Node, what: str) -> dict[str, tuple[Node, Node]]:
        """The keys of a mapping as texts, with the nodes of key and value."""
        if not isinstance(node, MappingNode):
            self.add(node, f"expected {what} as a mapping, got {_shown(node)}")
            return {}
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.add(key, f"expected a text as key of {what}, got {_shown(key)}")
            elif key.value in found:
                self.add(key, f"duplicate key {key.value!r}: each may be given once")
            else:
                found[key.value] = key, value
        return found

    def fields(
        self, node: Node, what: str, required: Collection[str], optional: Collection[str] = ()
    ) -> dict[str, Node]:
        """The values of a mapping that has these keys and no others."""
        found = self.mapping(node, what)
        known = [*required, *optional]
        misspelt = set()
        for key, (key_node, _) in found.items():
            if key not in known:
                close = get_close_matches(key, known, n=1)
                misspelt.update(close)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                self.add(key_node, f"unknown key {key!r} in {what}{hint}; expected {', '.join(known)}")
        for key in required:
            if key not in found and key not in misspelt and isinstance(node, MappingNode):
                self.add(node, f"missing key {key!r} in {what}")
        return {key: value for key, (_, value) in found.items() if key in known}

    def sequence(self, node: Node, what: str) -> list[Node]:
        """The items of a list that has some."""
        if not isinstance(node, SequenceNode) or not node.value:
            self.add(node, f"expected {what} as a list, got {_shown(node)}")
            return []
        return list(node.value)

    def whole(self, node: Node, what: str, least: int, most: int) -> int | None:
        """A whole number between two, both included."""
        value = _number(node)
        if isinstance(value, int) and least <= value <= most:
            return value
        self.add(node, f"expected a whole number from {least} to {most} as {what}, got {_shown(node)}")
        return None

    def positive(self, node: Node, what: str) -> float | None:
        """A number above 0."""
        value = _number(node)
        if value is not None and 0 < value < float("inf"):
            return float(value)
        self.add(node, f"expected a number above 0 as {what}, got {_shown(node)}")
        return None

    def choice(self, node: Node, what: str, choices: Collection[str]) -> str | None:
        """One of some words."""
        if isinstance(node, ScalarNode) and node.value in choices:
            return str(node.value)
        close = get_close_matches(str(node.value), choices, n=1) if isinstance(node, ScalarNode) else []
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        self.add(node, f"expected one of {', '.join(choices)} as {what}, got {_shown(node)}{hint}")
        return None

    def is_name(self, node: Node) -> bool:
        """Whether a text can name an actor."""
        if isinstance(node, ScalarNode) and _NAME.fullmatch(node.value):
            return True
        self.add(node, f"expected a name of 1 to 40 letters, digits, '_' and '.', got {_shown(node)}")
        return False

    def names(self, node: Node, known: Collection[str]) -> list[tuple[str, Node]]:
        """One of the ``known`` names, or a list of them, each once."""
        found: dict[str, Node] = {}
        for each in self.sequence(node, "names") if isinstance(node, SequenceNode) else [node]:
            name = self.choice(each, "an actor", known)
            if name in found:
                self.add(each, f"{name} stands here twice")
            elif name is not None:
                found[name] = each
        return list(found.items())


def _number(node: Node) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind in ("int", "float"):
        try:
            return getattr(_CONSTRUCTOR, f"construct_yaml_{kind}")(node)
        except ValueError:  # YAML 1.1 takes a text such as 0b_ for a number
            return None
    return None


def _shown(node: Node) -> str:
    match node:
        case MappingNode():
            return "a mapping"
        case SequenceNode():
            return "a list" if node.value else "an empty list"
        case _:
            return repr(node.value) if node.value else "nothing"
