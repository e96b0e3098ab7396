"""Orders of members as a run gives them."""

from __future__ import annotations

from pathlib import Path

from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.steps.member.member_order import MemberOrder
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY
from topology import parse_topology

SECRET = "of tests"


def orders(folder: Path, members: int) -> list[MemberOrder]:
    """Of a circuit that rows are pushed into."""
    query = stepped_query(parse_query(QUERY, "q", "q.json"), parse_topology(TOPOLOGY, "t.yaml"), members)
    return [
        MemberOrder(
            circuit=query.circuit,
            member=member,
            plan=query.plan,
            feeds=query.feeds[member],
            external=True,
            store=folder / f"member-{member}",
            listen="127.0.0.1:0",
            secret=SECRET,
            max_state_bytes=DEFAULT_MAX_STATE_BYTES,
        )
        for member in range(members)
    ]
