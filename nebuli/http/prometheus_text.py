"""Figures in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind = Literal["counter", "gauge"]
TYPE = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
"""The header of such a text."""


def family(
    name: str, kind: Kind, text: str, series: Sequence[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    """The lines of one metric: what it is, and its values by their labels."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in series:
        yield f"{name}{_shown(labels)} {value}"


def summary(name: str, text: str, series: Sequence[tuple[Mapping[str, str], float, float]]) -> Iterator[str]:
    """The lines of a metric of which the number and the sum are known, by its labels."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} summary"
    for labels, count, total in series:
        yield f"{name}_count{_shown(labels)} {count}"
        yield f"{name}_sum{_shown(labels)} {total}"


def _shown(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
