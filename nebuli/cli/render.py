"""A placement as text for people, as JSON for programs, and as a picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from placement.plan import NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placement import Decomposition, Fragment, Placement


def as_json(placement: Placement, decomposition: Decomposition) -> str:
    """The node of each operator, the fragments and the channels, as one JSON object."""
    data = {
        "placement": dict(placement.nodes),
        "fragments": [
            fragment.model_dump(mode="json", by_alias=True) for fragment in decomposition.fragments
        ],
        "channels": [
            {"id": channel.id, "operator": channel.operator, "from": channel.start, "to": channel.end}
            for channel in decomposition.channels
        ],
    }
    return json.dumps(data, indent=2)


def as_text(placement: Placement, decomposition: Decomposition) -> str:
    """Three tables: operators with the reason for each one's node, fragments, channels."""
    operators = [
        (key, operator.type, placement.nodes[key], placement.reasons[key])
        for key, operator in placement.plan.operators.items()
    ]
    fragments = [
        (fragment.id, fragment.node, " ".join(operator.id for operator in fragment.operators))
        for fragment in decomposition.fragments
    ]
    channels = [
        (channel.id, channel.operator, channel.start, channel.end) for channel in decomposition.channels
    ]
    tables = [
        _table(("operator", "type", "node", "why"), operators),
        _table(("fragment", "node", "operators"), fragments),
        _table(("channel", "carries", "from", "to"), channels),
    ]
    return "\n\n".join(tables)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return f"no {header[0]}s"
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, tuple("-" * width for width in widths), *rows)
    )
    return "\n".join(lines)


def as_mermaid(placement: Placement, decomposition: Decomposition) -> str:
    """A mermaid flowchart: operators inside their nodes, channels as labelled edges, bridges as rounded boxes."""
    return "\n".join(["flowchart BT", *_Picture(placement, decomposition).lines()])


class _Picture:
    def __init__(self, placement: Placement, decomposition: Decomposition) -> None:
        self._placement = placement
        self._decomposition = decomposition
        self._names = {key: f"op{index}" for index, key in enumerate(placement.nodes)}
        self._writers: dict[str, str] = {}  # by channel: the box that writes it
        self._readers: dict[str, str] = {}
        self._boxes: dict[str, list[str]] = {}  # by node
        for index, fragment in enumerate(decomposition.fragments):
            boxes = list(self._boxes_of(fragment, f"bridge{index}"))
            self._boxes.setdefault(fragment.node, []).extend(boxes)

    def _boxes_of(self, fragment: Fragment, bridge: str) -> Iterator[str]:
        match fragment.operators:
            case (NetworkSource() as source, NetworkSink() as sink):
                self._readers[source.channel] = self._writers[sink.channel] = bridge
                yield f'{bridge}(["bridge"])'
                return
        for operator in fragment.operators:
            match operator:
                case NetworkSource():
                    self._readers[operator.channel] = self._names[self._placement.plan.readers[operator.id]]
                case NetworkSink():
                    self._writers[operator.channel] = self._names[operator.input]
                case _:
                    yield f'{self._names[operator.id]}["{_escaped(operator.id)}<br/>{operator.type}"]'

    def lines(self) -> Iterator[str]:
        for index, (node, boxes) in enumerate(self._boxes.items()):
            yield f'  subgraph node{index}["{_escaped(node)}"]'
            yield from (f"    {box}" for box in boxes)
            yield "  end"
        for channel in self._decomposition.channels:
            label = _escaped(channel.id)
            yield f'  {self._writers[channel.id]} ==>|"{label}"| {self._readers[channel.id]}'
        for child, reader in self._placement.plan.readers.items():
            if len(self._placement.paths[child]) == 1:
                yield f"  {self._names[child]} --> {self._names[reader]}"


def _escaped(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in "._-/:[] ," else f"#{ord(character)};"
        for character in text
    )
