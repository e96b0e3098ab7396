"""What changes as Debezium writes them come to, by a dict; and such changes for tests."""

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from nebuli.ingestion.definition import DebeziumEnvelope

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.float64())])
Event = dict[str, Any]


def settings_of(**more: Any) -> DebeziumEnvelope:
    return DebeziumEnvelope(type="debezium", key=("k",), **more)


def row(key: int | None, text: str | None = None, value: float | None = None) -> dict[str, Any]:
    return {"k": key, "s": text, "v": value}


def put(op: str, after: dict[str, Any], before: dict[str, Any] | None = None, **more: Any) -> Event:
    return {"op": op, "before": before, "after": after, **more}


def delete(key: int, **more: Any) -> Event:
    return {"op": "d", "before": row(key), "after": None, **more}


class Model(dict[int, tuple[str | None, float | None]]):
    """Rows by key."""

    def apply(self, event: Event) -> None:
        match event["op"]:
            case "t":
                self.clear()
            case "d":
                self.pop(event["before"]["k"], None)
            case "u" if event["before"] is not None:
                old = self.pop(event["before"]["k"], None)
                self._put(event, old)
            case "c" | "r" | "u":
                self._put(event, self.get(event["after"]["k"]))

    def _put(self, event: Event, old: tuple[str | None, float | None] | None) -> None:
        after, unchanged = event["after"], event.get("unchanged") or ()
        text, value = after["s"], after["v"]
        if "s" in unchanged or text == "__debezium_unavailable_value":
            assert old is not None
            text = old[0]
        if "v" in unchanged:
            assert old is not None
            value = old[1]
        self[after["k"]] = (text, value)

    @property
    def contents(self) -> dict[tuple[object, ...], int]:
        return {(key, *values): 1 for key, values in self.items()}

    def has(self, event: Event) -> bool:
        """Whether there is what it leaves out."""
        left_out = event.get("unchanged") or (event["after"] or {}).get("s") == "__debezium_unavailable_value"
        return not left_out or (event["before"] or event["after"])["k"] in self


KEYS = st.integers(0, 3)
ROWS = st.builds(
    row,
    KEYS,
    st.sampled_from(["x", "y", None, "__debezium_unavailable_value"]),
    st.sampled_from([0.5, 1.5, None]),
)
PLAIN_ROWS = st.builds(row, KEYS, st.sampled_from(["x", "y", None]), st.sampled_from([0.5, 1.5, None]))
UPDATES = st.builds(
    put,
    st.just("u"),
    ROWS,
    st.none() | st.builds(row, KEYS),
    unchanged=st.none() | st.lists(st.sampled_from(["s", "v", "elsewhere"]), max_size=2, unique=True),
)
EVENTS = st.one_of(
    UPDATES,
    st.builds(put, st.sampled_from(["c", "r"]), PLAIN_ROWS),
    st.builds(delete, KEYS),
    st.just({"op": "t", "before": None, "after": None}) | UPDATES,
)


def valid(times: list[list[Event]]) -> list[list[Event]]:
    """The events but those that leave out what is not there."""
    model, kept = Model(), []
    for events in times:
        kept.append([])
        for event in events:
            if model.has(event):
                model.apply(event)
                kept[-1].append(event)
    return kept


TIMES = st.lists(st.lists(EVENTS, max_size=6), max_size=6).map(valid)
