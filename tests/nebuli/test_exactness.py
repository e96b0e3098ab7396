"""Which fragments are started again when their process is killed."""

from __future__ import annotations

from nebuli.exactness import goes_on
from placement import check, decompose, place_bound
from tests.placement.partial.test_node_plan import ONE, with_bases
from tests.support.documents import op, query


def test_a_part_that_reads_something_full_elsewhere_begins_anew():
    """It has keys alone, that are asked for again; who has the full view fails, as nobody gives its rows again."""
    counts = op("aggregate", "counts", input="one", by=["k"], aggregates={"n": "count(*)"})
    views = (
        op("view", "by_count", input="counts", key=["n"]),
        op("view", "by_key", input="by_count", key=["k"], node="C:1"),
    )
    nodes = with_bases("one", capacity={"A": 9})
    fragments = decompose(place_bound(check(query(ONE, counts, *views), nodes), nodes)).fragments
    assert [[each.id for each in fragment.operators] for fragment in fragments] == [
        ["one", "counts", "by_count", "by_count>"],
        ["by_count", "by_key"],
    ]
    assert [goes_on(fragment) for fragment in fragments] == [False, True]
