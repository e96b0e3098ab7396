"""An envelope of the tests' own, with a state: of each key two messages come, and both are put out with the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.ingestion.envelopes.envelope import Changes, Envelope
from nebuli.ingestion.message_addresses import Messages
from tests.nebuli.ingestion.recipe.message_log import CARRIED


class Pairs(Envelope):
    """A message without its partner waits in the state."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[int]] = {}

    @property
    def schema(self) -> pa.Schema:
        return CARRIED

    @property
    def wants(self) -> pa.Schema:
        return CARRIED

    @property
    def states(self) -> Mapping[str, pa.Schema]:
        return {"waiting": CARRIED}

    def rehydrate(self, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:
        assert output is None
        self._waiting = {}
        for row in states["waiting"].to_pylist():
            assert row["_weight"] == 1
            self._waiting.setdefault(row["key"], []).append(row["value"])

    def apply(self, messages: Mapping[str, Sequence[Messages]]) -> Changes:
        output: Counter[tuple[str, int]] = Counter()
        state: Counter[tuple[str, int]] = Counter()
        for source in sorted(messages):
            for some in messages[source]:
                for row in some.rows.to_pylist():
                    key, value = row["key"], row["value"]
                    if key in self._waiting:
                        (partner,) = self._waiting.pop(key)
                        state[key, partner] -= 1
                        output[key, partner] += 1
                        output[key, value] += 1
                    else:
                        self._waiting[key] = [value]
                        state[key, value] += 1
        return Changes([zset(output)], {"waiting": [zset(state)]})


def zset(rows: Counter[tuple[str, int]]) -> pa.RecordBatch:
    found = [{"key": key, "value": value, "_weight": n} for (key, value), n in rows.items() if n]
    return pa.RecordBatch.from_pylist(found, schema=weighted(CARRIED))


def paired(rows: Sequence[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """What is put out of all of these."""
    keys = Counter(key for key, _ in rows)
    return Counter(row for row in rows if keys[row[0]] == 2)
