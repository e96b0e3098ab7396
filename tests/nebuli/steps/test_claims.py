"""What a state folder says of whom it belongs to: any damage is found, by the file's name."""

from __future__ import annotations

import json

import pytest

from nebuli.steps.errors import ClaimDamaged
from tests.support.told_members import pushed_query


def test_a_changed_bit_is_refused_or_changes_nothing() -> None:
    """A bit in the checksum's own key takes the checksum away, and nothing else."""
    query = pushed_query(2, spread="a")
    said = query.claim(3)
    assert query.claimed(said, "state") == (query, 3)
    harmless = 0
    for place in range(8 * len(said)):
        changed = bytearray(said)
        changed[place // 8] ^= 1 << place % 8
        refused = ""
        try:
            found = query.claimed(bytes(changed), "state")
        except ClaimDamaged as error:
            refused = str(error)
        if refused:
            assert refused.startswith("state/query.json does not identify the query of this state: it")
        else:
            assert found == (query, 3)
            harmless += 1
    assert harmless < len(said) * 8 // 20


@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_a_claim_that_is_cut_is_refused(keep: int) -> None:
    query = pushed_query(1)
    with pytest.raises(ClaimDamaged, match="it is not JSON"):
        query.claimed(query.claim(0)[:keep], "state")


def test_a_claim_of_an_older_version_has_no_checksum() -> None:
    query = pushed_query(1)
    document = json.loads(query.claim(0))
    del document["checksum"]
    assert query.claimed(json.dumps(document).encode(), "state") == (query, 0)
