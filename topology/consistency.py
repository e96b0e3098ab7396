"""The rules between the parts of a topology.

These checks read plain data (lists, mappings, texts) and pass over what is not of the expected shape, so that
they find their mistakes in a file that has others as well.
"""

from __future__ import annotations

from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from topology.mistakes import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Item = tuple[Location, Any]
Found = tuple[Location, str]


def inconsistencies(data: Any) -> Iterator[Found]:
    """Every duplicate name, reference to nothing and cycle in a topology, with its place in the data."""
    logical = list(_each(data, "logical"))
    nodes = list(_each(data, "nodes"))
    yield from _repeated(_texts(logical, "name"), "logical source")
    for path, source in logical:
        yield from _repeated(_texts(_each(source, "schema", path), "name"), "column")
    yield from _repeated(_texts(nodes, "address"), "address")
    yield from _repeated(_texts(nodes, "grpc"), "grpc address")
    yield from _repeated(_texts(_attached(nodes, "sinks"), "name"), "sink")
    yield from _unknown_sources(logical, nodes)
    yield from _bad_links(nodes)
    yield from _half_secured(data, nodes)
    yield from _masters_of_no_spark(nodes)


def _each(data: Any, key: str, path: Location = ()) -> Iterator[Item]:
    """The items of the list ``data[key]``, each with its path; none where there is no such list."""
    items = data.get(key) if isinstance(data, dict) else None
    for index, item in enumerate(items if isinstance(items, list) else ()):
        yield (*path, key, index), item


def _attached(nodes: Iterable[Item], key: str) -> Iterator[Item]:
    for path, node in nodes:
        yield from _each(node, key, path)


def _texts(items: Iterable[Item], key: str) -> Iterator[tuple[Location, str]]:
    for path, item in items:
        value = item.get(key) if isinstance(item, dict) else None
        if isinstance(value, str):
            yield (*path, key), value


def _repeated(texts: Iterable[tuple[Location, str]], what: str) -> Iterator[Found]:
    seen: set[str] = set()
    for path, text in texts:
        if text in seen:
            yield path, f"duplicate {what} {text!r}; give each once"
        seen.add(text)


def _unknown_sources(logical: list[Item], nodes: list[Item]) -> Iterator[Found]:
    known = [name for _, name in _texts(logical, "name")]
    for path, name in _texts(_attached(nodes, "physical"), "logical"):
        if name not in known:
            yield (
                path,
                f"unknown logical source {name!r}{did_you_mean(name, known)}; expected {listed(known)}",
            )


def _bad_links(nodes: list[Item]) -> Iterator[Found]:
    addresses = dict.fromkeys(address for _, address in _texts(nodes, "address"))
    links: dict[str, dict[str, Location]] = {address: {} for address in addresses}
    for path, node in nodes:
        own = node.get("address") if isinstance(node, dict) else None
        if not isinstance(own, str):
            continue
        for place, target in _each(node.get("links"), "downstream", (*path, "links")):
            if target == own:
                yield place, f"node {own} links to itself; expected another node"
            elif not isinstance(target, str):
                continue
            elif target not in addresses:
                others = [address for address in addresses if address != own]
                hint = did_you_mean(target, others)
                yield (
                    place,
                    f"link to {target!r}, which is not the address of a node{hint}; expected {listed(others)}",
                )
            elif target in links[own]:
                yield place, f"duplicate link from {own} to {target}; give each once"
            else:
                links[own][target] = place
        yield from _limits_of_no_link(path, node, links[own])
    yield from _cycles(links)


def _half_secured(data: Any, nodes: list[Item]) -> Iterator[Found]:
    """Nodes without TLS or a secret among others that have it: no channel between the two comes about."""
    for key in ("tls", "secret"):
        if isinstance(data, dict) and data.get(key) is not None:
            continue
        having = [node.get(key) is not None if isinstance(node, dict) else None for _, node in nodes]
        if True not in having:
            continue
        for (path, _), has in zip(nodes, having, strict=True):
            if has is False:
                yield (
                    path,
                    f"this node has no {key}, but others have one; expected {key} at each node, or at the top level",
                )


def _masters_of_no_spark(nodes: list[Item]) -> Iterator[Found]:
    for path, node in nodes:
        if isinstance(node, dict) and node.get("master") is not None and node.get("engine") != "spark":
            yield (
                (*path, "master"),
                "master is a key of the engine spark, but this node has another engine; expected engine: spark",
            )


def _limits_of_no_link(path: Location, node: dict[str, Any], ends: dict[str, Location]) -> Iterator[Found]:
    links = node.get("links")
    limits = links.get("limits") if isinstance(links, dict) else None
    for target in limits if isinstance(limits, dict) else ():
        if target not in ends:
            hint = did_you_mean(str(target), ends)
            yield (
                (*path, "links", "limits", target),
                f"limits are given for a link to {target!r}, which is not in downstream{hint}; expected {listed(ends)}",
            )


def _cycles(links: dict[str, dict[str, Location]]) -> Iterator[Found]:
    """One cycle for each group of nodes that reach each other, at the link that closes it."""
    try:
        TopologicalSorter(links).prepare()
    except CycleError:
        pass  # it names one only
    else:
        return
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((start, end) for start, ends in links.items() for end in ends)
    for group in nx.strongly_connected_components(graph):
        if len(group) > 1:
            cycle = [start for start, _ in nx.find_cycle(graph, min(group, key=list(links).index))]
            yield (
                links[cycle[-1]][cycle[0]],
                f"links form a cycle: {' -> '.join([*cycle, cycle[0]])}; remove one of them",
            )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the suggestion after a misspelt name: the closest known one, in any case, if there is one."""
    folded = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), folded, n=1)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in a sentence: all of them, or the first few and how many there are."""
    names = list(names)
    if not names:
        return "none, because none exists"
    if len(names) <= most:
        return "one of " + ", ".join(names) if len(names) > 1 else names[0]
    return f"one of {', '.join(names[:most])} or {len(names) - most} more"
