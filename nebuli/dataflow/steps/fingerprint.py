"""The identity of the circuit to which saved state belongs."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement.stepped_plan import SteppedPlan

HASHES = 1
"""Which hashes rows are divided by, and lie in order of: members with others could not work together."""
OF_NO_MEANING = frozenset(
    {"sink", "target", "only_grows", "max_state_bytes", "late", "idle_after", "materialized"}
    | {"name", "node", "max_bytes", "evict"}
)
"""Settings of where outputs go and views are read, and bounds of state: they do not change the result."""


def fingerprint_of(plan: SteppedPlan) -> str:
    """A digest of what a plan computes and how it is divided, the same for all its members."""
    said = plan.model_dump(mode="json", by_alias=True)
    operators = sorted((_meaning(each) for each in said["operators"]), key=repr)
    times = [sorted((_meaning(each) for each in said[key]), key=repr) for key in ("watermarks", "closings")]
    content = [HASHES, plan.members, operators, *times]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _meaning(value: Any) -> Any:
    """Settings by name, in the names' order; but the order of computed columns is theirs."""
    return [
        [name, list(map(list, each.items())) if isinstance(each, dict) else each]
        for name, each in sorted(value.items())
        if name not in OF_NO_MEANING
    ]
