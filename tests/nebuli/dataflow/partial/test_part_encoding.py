"""What is sent between parts of keys that are as large as can be, and larger."""

from __future__ import annotations

import pyarrow as pa

from nebuli.dataflow.partial import Base, Edge, PartialGraph, View
from nebuli.dataflow.partial.key_sets import from_tuples
from nebuli.dataflow.partial.part_encoding import KEY_BYTES, PartEncoding, key_sizes, sendable
from nebuli.dataflow.partial.traffic import Eviction, Upquery
from topology import Column, DataType

COLUMNS = (Column(name="word", type=DataType.STRING),)
EDGE = Edge("words", "by_word", 0)


def keys(*words: str) -> pa.RecordBatch:
    return from_tuples([(word,) for word in words], [pa.string()])


def test_a_key_that_is_too_large_is_not_sendable_and_its_eviction_is_that_of_all():
    encoding = PartEncoding(PartialGraph([Base("words", COLUMNS), View("by_word", "words", ("word",))]))
    (overhead,) = key_sizes(keys(""))
    fits, larger = "x" * (KEY_BYTES - overhead - 64), "y" * KEY_BYTES
    assert sendable(keys("a", larger, fits)).to_pydict() == keys("a", fits).to_pydict()
    several = list(encoding.asked(Upquery(0, keys("a", fits))))
    assert [encoding.upquery(EDGE, each) for each in several] == [Upquery(0, keys("a", fits))]
    ((batch, note),) = encoding.encoded(EDGE, Eviction(0, keys("a", larger)))
    assert encoding.message(EDGE, batch, note) == Eviction(0, None)
    pieces = [encoding.message(EDGE, *each) for each in encoding.encoded(EDGE, Eviction(0, keys("a", fits)))]
    assert sum(each.keys.num_rows for each in pieces) == 2
    assert encoding.upquery(EDGE, next(encoding.asked(Upquery(7, keys("a"))))) is None  # of what comes later
