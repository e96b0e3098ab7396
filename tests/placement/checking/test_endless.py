"""Results that never come are told beforehand."""

from __future__ import annotations

import pytest

from placement import check, place
from placement.checking.endless import waits_for_ever
from tests.support.documents import CHAIN
from topology import Topology


@pytest.mark.parametrize(
    ("physical", "sink", "warned"),
    [
        ({"type": "Generator"}, {"type": "CSV", "path": "o.csv"}, True),
        ({"type": "Generator"}, {"type": "Print", "mode": "final"}, True),
        ({"type": "Generator"}, {"type": "Print", "mode": "changes"}, False),
        ({"type": "Generator"}, {"type": "Null"}, False),
        ({"type": "Generator", "count": 5}, {"type": "Print"}, False),
        ({"type": "TCP", "address": "127.0.0.1:1"}, {"type": "Print"}, False),
    ],
)
def test_a_result_behind_a_source_without_an_end(
    physical: dict[str, object], sink: dict[str, object], warned: bool
) -> None:
    nodes = Topology.model_validate(
        {
            "logical": [{"name": "s", "schema": [{"name": "k", "type": "int64"}]}],
            "nodes": [
                {
                    "address": "a:1",
                    "physical": [{"logical": "s", **physical}],
                    "sinks": [{"name": "out", **sink}],
                }
            ],
        }
    )
    assert place(CHAIN, nodes).nodes == {"s": "a:1", "f": "a:1", "out": "a:1"}
    why = waits_for_ever(check(CHAIN, nodes).operators.values())
    assert (why is not None) is warned
    assert why is None or why.startswith(
        "the sink out (mode final) writes its result after all sources have ended, but s never ends"
    )
