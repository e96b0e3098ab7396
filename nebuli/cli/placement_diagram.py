"""A placement as a diagram: nodes of the topology, operators inside them, channels as edges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from placement.plan import NetworkSink, NetworkSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placement import Decomposition, Fragment, Placement
    from topology import Topology


class _Box(NamedTuple):
    name: str
    lines: tuple[str, ...]
    bridge: bool


class _Edge(NamedTuple):
    start: str
    end: str
    channel: str
    """The edge's label; empty within a node."""


class _Picture:
    """The contents of a diagram: boxes by node, edges between them, and idle links."""

    def __init__(self, placement: Placement, decomposition: Decomposition, topology: Topology) -> None:
        shards = [each.id for fragment in decomposition.fragments for each in fragment.operators]
        order = list(dict.fromkeys((*placement.nodes, *shards)))
        self._names = {key: f"op{index}" for index, key in enumerate(order)}
        self._writers: dict[str, str] = {}  # by channel: the box that writes it
        self._readers: dict[str, str] = {}
        self._within: list[tuple[str, str]] = []  # edges that no channel carries, by operators
        self.boxes: dict[str, list[_Box]] = {}
        for index, fragment in enumerate(decomposition.fragments):
            self.boxes.setdefault(fragment.node, []).extend(self._boxes_of(fragment, f"bridge{index}"))
        for node in topology.nodes:
            self.boxes.setdefault(node.address, [])
        self.edges = [
            *(
                _Edge(self._writers[each.id], self._readers[each.id], each.id)
                for each in decomposition.channels
            ),
            *(
                _Edge(self._names[child], self._names[reader], "")
                for child, reader in sorted(self._within, key=lambda each: order.index(each[1]))
            ),
        ]
        used = {(channel.start, channel.end) for channel in decomposition.channels}
        self.idle = [
            (node.address, end)
            for node in topology.nodes
            for end in node.links.downstream
            if (node.address, end) not in used
        ]

    def _boxes_of(self, fragment: Fragment, bridge: str) -> Iterator[_Box]:
        match fragment.operators:
            case (NetworkSource() as source, NetworkSink() as sink):
                self._readers[source.channel] = self._writers[sink.channel] = bridge
                yield _Box(bridge, ("bridge",), bridge=True)
                return
        channels = {each.id: each.channel for each in fragment.operators if isinstance(each, NetworkSource)}
        for operator in fragment.operators:
            if isinstance(operator, NetworkSource):
                continue
            if isinstance(operator, NetworkSink):
                self._writers[operator.channel] = self._names[operator.input]
                continue
            for child in operator.children:
                if child in channels:
                    self._readers[channels[child]] = self._names[operator.id]
                else:
                    self._within.append((child, operator.id))
            yield _Box(self._names[operator.id], (operator.id, operator.type), bridge=False)


def as_mermaid(placement: Placement, decomposition: Decomposition, topology: Topology) -> str:
    """Draw a mermaid flowchart: channels as labelled edges, bridges as rounded boxes, idle links dotted."""
    picture = _Picture(placement, decomposition, topology)
    names = {node: f"node{index}" for index, node in enumerate(picture.boxes)}
    lines = ["flowchart BT"]
    for node, boxes in picture.boxes.items():
        lines.append(f'  subgraph {names[node]}["{_escaped(node)}"]')
        for box in boxes:
            text = "<br/>".join(map(_escaped, box.lines))
            lines.append(f'    {box.name}(["{text}"])' if box.bridge else f'    {box.name}["{text}"]')
        lines.append("  end")
    for start, end, channel in picture.edges:
        lines.append(f'  {start} ==>|"{_escaped(channel)}"| {end}' if channel else f"  {start} --> {end}")
    lines += [f"  {names[start]} -.-> {names[end]}" for start, end in picture.idle]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in "._-/:[] ," else f"#{ord(character)};"
        for character in text
    )


def as_dot(placement: Placement, decomposition: Decomposition, topology: Topology) -> str:
    """Draw a Graphviz graph: nodes as clusters, channels bold, bridges as ellipses, idle links dotted."""
    picture = _Picture(placement, decomposition, topology)
    names = {node: f"cluster{index}" for index, node in enumerate(picture.boxes)}
    lines = ["digraph placement {", "  rankdir=BT; compound=true; node [shape=box];"]
    for node, boxes in picture.boxes.items():
        lines.append(f"  subgraph {names[node]} {{ label={json.dumps(node)};")
        for box in boxes:
            shape = ", shape=ellipse" if box.bridge else ""
            label = json.dumps("\n".join(box.lines))
            lines.append(f"    {box.name} [label={label}{shape}];")
        lines.append(f"    {names[node]}_ [style=invis, shape=point];")
        lines.append("  }")
    for start, end, channel in picture.edges:
        label = f" [label={json.dumps(channel)}, style=bold]" if channel else ""
        lines.append(f"  {start} -> {end}{label};")
    for start, end in picture.idle:
        lines.append(
            f"  {names[start]}_ -> {names[end]}_ [ltail={names[start]}, lhead={names[end]}, style=dotted];"
        )
    return "\n".join([*lines, "}"])
