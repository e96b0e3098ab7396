"""The requirements of a sink."""

from __future__ import annotations

from concurrent.futures import wait
from datetime import UTC, date, datetime
from itertools import zip_longest
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import pyarrow as pa
import pytest
from pydantic import ValidationError

from nebuli.connectors.endpoints import Resumable
from nebuli.connectors.errors import FragmentStopped, OutputError
from nebuli.connectors.provider import output_of, sink_of
from nebuli.dataflow import WEIGHT, arrow_schema, zset
from placement.plan import BoundSink
from topology import SINKS, Column, DataType, SinkMode

from .connector_driver import Driven, counted, nothing_held

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Rows = list[dict[str, Any]]
    Published = Callable[[pa.Schema], Rows | None] | None

Settings = dict[str, Any]

_SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64()), (WEIGHT, pa.int64())])
_ROWS = _SCHEMA.remove(2)


def _whole_numbers(bits: int) -> dict[DataType, list[Any]]:
    return {
        DataType(f"int{bits}"): [-(1 << bits - 1), (1 << bits - 1) - 1, 0],
        DataType(f"uint{bits}"): [0, (1 << bits) - 1],
    }


VALUES: dict[DataType, list[Any]] = {
    DataType.BOOL: [True, False],
    **_whole_numbers(8),
    **_whole_numbers(16),
    **_whole_numbers(32),
    **_whole_numbers(64),
    DataType.FLOAT32: [0.5, -2.0],
    DataType.FLOAT64: [0.1, -1e300, 5e-324],
    DataType.STRING: ["a", "", 'ü, "quoted"\nline'],
    DataType.BINARY: [b"a", b"", b"\x00\xff"],
    DataType.DATE: [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)],
    DataType.TIMESTAMP: [datetime(1969, 7, 20, 20, 17, 40, 1, UTC), datetime(2024, 2, 29, tzinfo=UTC)],
}
"""Values of each type, some of which are easily spoilt."""


# pytest runs these in their order: the simplest failing test is the most informative.
class SinkConformance:
    """Derive a class whose name begins with ``Test``, and override ``settings`` and ``published``.

    ``stalled`` and ``unwritable`` are to be overridden if it waits for a peer, or may find no place to write to.
    """

    limit_s: ClassVar[float] = 10.0
    """How long any one call may take."""
    values: ClassVar[Mapping[DataType, Sequence[Any]]] = VALUES
    """The values to write of each type, in addition to a null."""
    modes: ClassVar[tuple[SinkMode, ...]] = get_args(SinkMode)
    """The modes that it has."""
    whole_modes: ClassVar[tuple[SinkMode, ...]] = ("final",)
    """The modes in which nothing is there for readers before the end."""

    @pytest.fixture
    def settings(self) -> Settings:
        """The sink's keys as a topology has them, without ``name`` and ``mode``."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'settings': define it")

    @pytest.fixture
    def published(self) -> Published:
        """Returns the result that a reader of the sink finds, with a schema; None: no result.

        As a fixture, None: it cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'published': define it")

    @pytest.fixture
    def stalled(self) -> Settings | None:
        """A sink whose reader takes nothing, so that writing to it waits; None: it never waits."""
        return None

    @pytest.fixture
    def unwritable(self) -> list[tuple[Settings, str]]:
        """Sinks that cannot be written to, each with a text that its error has to have."""
        return []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each test of a mode for each that there is."""
        if "mode" in metafunc.fixturenames:
            metafunc.parametrize("mode", self.modes)

    def _bound(self, settings: Settings, mode: SinkMode) -> BoundSink:
        """The sink as an operator of a plan."""
        target = {"name": "out", "mode": mode, **settings}
        return BoundSink.model_validate({"id": "out", "input": "in", "sink": "out", "target": target})

    def _driven(self, settings: Settings, mode: SinkMode) -> Driven:
        """The sink as a fragment has it; nothing is opened."""
        target = self._bound(settings, mode).target
        return Driven(lambda wake: sink_of(target), self.limit_s)

    def _write(self, settings: Settings, mode: SinkMode, *changes: pa.RecordBatch) -> int:
        """Write all of it, to a clean end; returns how many rows it reports as written."""
        with self._driven(settings, mode) as driven:
            try:
                driven.call("open", changes[0].schema if changes else _SCHEMA)
                rows = sum(driven.call("write", change) for change in changes)
                return int(rows + driven.call("finish"))
            except Exception as error:
                driven.call("abort", str(error))
                raise

    def _found(self, published: Published, mode: SinkMode) -> Rows | None:
        """Return the present rows with names and numbers; None, too, if they cannot be read."""
        return None if published is None else published(_SCHEMA if mode == "changes" else _ROWS)

    def _check(
        self, published: Published, mode: SinkMode, wanted: list[tuple[str | None, int | None]]
    ) -> None:
        """Fail where these are not the rows that are there, as far as they can be read."""
        if published is None:
            return
        found = self._found(published, mode)
        assert found is not None, "there is no result"
        rows = [dict(zip(_ROWS.names, row, strict=True)) for row in wanted]
        assert counted(found, _SCHEMA if mode == "changes" else _ROWS) == counted(rows, _ROWS)

    def test_its_type_is_found_by_its_name(self, settings: Settings) -> None:
        """An entry point names its type, where that is not one of ours; ``implementation`` names what does the work."""
        connector = SINKS.named(settings["type"])
        assert callable(resolve_name(connector.implementation))
        assert type(self._bound(settings, self.modes[0]).target) is connector

    def test_its_keys_travel_in_a_plan(self, settings: Settings, mode: SinkMode) -> None:
        """Its keys reach workers, which check them."""
        operator = self._bound(settings, mode)
        assert BoundSink.model_validate_json(operator.model_dump_json(by_alias=True)) == operator
        with pytest.raises(ValidationError):
            self._bound({**settings, "no such key": 1}, mode)

    def test_it_has_the_modes_that_it_says_and_no_others(self, settings: Settings) -> None:
        """The other modes are refused when the topology is read."""
        assert SINKS.named(settings["type"]).modes == self.modes
        for mode in set(get_args(SinkMode)) - set(self.modes):
            with pytest.raises(ValidationError, match=f"got '{mode}'"):
                self._bound(settings, mode)

    def test_what_is_written_is_there_at_the_end(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """Each row as often as its weight, or with it; and as many as it reports."""
        told = self._write(settings, mode, _zset(("b", 1, 1), ("a", 2, 2)), _zset((None, None, 1)))
        assert told == (3 if mode == "changes" else 4)
        self._check(published, mode, [("b", 1), ("a", 2), ("a", 2), (None, None)])

    def test_a_row_that_is_taken_back_is(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """The row is not there, or with its weight; in mode ``append`` it is an error."""
        changes = _zset(("b", 1, 1), ("a", 2, 1)), _zset(("b", 1, -1))
        if mode == "append":
            with self._driven(settings, mode) as driven:
                driven.call("open", _SCHEMA)
                driven.call("write", changes[0])
                with pytest.raises(OutputError, match="retracted"):
                    driven.call("write", changes[1])
                driven.call("abort", "a row was retracted")
            return
        assert self._write(settings, mode, *changes) == (3 if mode == "changes" else 1)
        self._check(published, mode, [("a", 2)])

    def test_a_result_without_rows_is_one(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """A reader finds that there are none, and not that there is no result yet."""
        assert self._write(settings, mode) == 0
        self._check(published, mode, [])

    def test_every_type_of_column_comes_out_as_it_went_in(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """Each type that it declares is written, nulls too."""
        types = sorted(self._bound(settings, mode).target.types)
        schema = arrow_schema(tuple(Column(name=f"of {type_}", type=type_) for type_ in types))
        values = zip_longest(*([*self.values[type_], None] for type_ in types))
        rows = [dict(zip(schema.names, row, strict=True)) for row in values]
        change = zset.insertions(pa.RecordBatch.from_pylist(rows, schema))
        assert self._write(settings, mode, change) == len(rows)
        written = change.schema if mode == "changes" else schema
        if published is not None:
            assert counted(published(written) or [], written) == counted(rows, schema)

    @pytest.mark.parametrize("when", ["before it is opened", "opened", "written to"])
    def test_an_abort_publishes_nothing(
        self,
        settings: Settings,
        mode: SinkMode,
        when: str,
        published: Published,
    ) -> None:
        """An abort leaves what was there before, or nothing, in a mode whose result is there at the end only."""
        if mode not in self.whole_modes:
            return  # what is written is there before the end
        self._write(settings, mode, _zset(("before", 1, 1)))
        before = self._found(published, mode)
        target = self._bound(settings, mode).target
        rows = _zset(("after", 2, 1))
        rows = rows if mode == "changes" else zset.without_weight(rows)
        # Without its mode: in mode final nothing would be written to it before the end.
        with Driven(lambda wake: output_of(target), self.limit_s) as driven:
            if when != "before it is opened":
                driven.call("open", rows.schema)
            if when == "written to":
                driven.call("write", rows)
            meanwhile = self._found(published, mode)
            driven.call("discard")
        for found in (meanwhile, self._found(published, mode)):
            assert found in (before, None)

    def test_a_query_that_begins_again_leaves_nothing_of_before(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """A sink with ``begins_anew`` keeps nothing of what an aborted query wrote."""
        if not SINKS.named(settings["type"]).begins_anew:
            return
        with self._driven(settings, mode) as driven:
            driven.call("open", _SCHEMA)
            driven.call("write", _zset(("before", 1, 1)))
            driven.call("abort", "a node was lost")
        self._write(settings, mode, _zset(("after", 2, 1)))
        self._check(published, mode, [("after", 2)])

    def test_a_later_run_goes_on_at_a_position(
        self, settings: Settings, mode: SinkMode, published: Published
    ) -> None:
        """A sink that is `Resumable` keeps what was synced, and takes what comes then; nothing is there twice."""
        target = self._bound(settings, mode).target
        rows = [_zset((name, 1, 1)) for name in ("synced", "after it", "later")]
        synced, behind, later = rows if mode == "changes" else map(zset.without_weight, rows)
        with Driven(lambda wake: output_of(target), self.limit_s) as driven:
            if mode == "final" or not isinstance(driven.end, Resumable):
                return
            driven.call("open", synced.schema)
            driven.call("write", synced)
            position = driven.call("sync")
            driven.call("write", behind)
            driven.call("discard")
        with Driven(lambda wake: output_of(target), self.limit_s) as driven:
            driven.call("resume", position)
            driven.call("open", later.schema)
            driven.call("write", later)
            driven.call("publish")
        found = self._found(published, mode)
        if found is not None:
            names = [row["name"] for row in found]
            assert names.count("later") == 1, "rows written after resume are missing or duplicated"
            assert len(names) == len(set(names)), "some row is written twice"

    @pytest.mark.parametrize("when", ["before it is opened", "opened", "written to", "finished"])
    def test_it_lets_go_of_everything(self, settings: Settings, mode: SinkMode, when: str) -> None:
        """Descriptors and threads, however it ends; an abort after the end undoes nothing, and does no harm."""
        self._write(settings, mode, _zset(("a", 1, 1)))  # what is opened once per process is open now
        with nothing_held(self.limit_s), self._driven(settings, mode) as driven:
            if when != "before it is opened":
                driven.call("open", _SCHEMA)
            if when in ("written to", "finished"):
                driven.call("write", _zset(("a", 1, 1)))
            if when == "finished":
                driven.call("finish")
            driven.call("abort", "the test is over")
            driven.call("abort", "the test is over")

    def test_what_cannot_be_written_is_said_in_a_sentence(
        self, unwritable: list[tuple[Settings, str]], mode: SinkMode
    ) -> None:
        """An OutputError that names it, at the latest at the end; and nothing is held afterwards."""
        for wrong, named in unwritable:
            with nothing_held(self.limit_s):
                said = self._refusal(wrong, mode)
            assert named in said
            assert "\n" not in said

    def _refusal(self, wrong: Settings, mode: SinkMode) -> str:
        with pytest.raises(OutputError) as caught:
            self._write(wrong, mode, _zset(("a", 1, 1)))
        return str(caught.value)

    def test_an_interrupt_ends_what_waits(
        self, stalled: Settings | None, settings: Settings, mode: SinkMode
    ) -> None:
        """Running and later calls return or raise ``FragmentStopped`` after another thread's interrupt."""
        many = zset.insertions(pa.RecordBatch.from_pylist([{"name": "x" * 1000, "n": 1}] * 1000, _ROWS))
        with self._driven(stalled or settings, mode) as driven:
            driven.call("open", _SCHEMA)

            def work() -> None:
                for _ in range(20 if stalled else 1):
                    driven.end.write(many)
                driven.end.finish()

            call = driven.begin(work)
            wait([call], 0.2)
            driven.end.interrupt()
            assert wait([call], self.limit_s).done, "the sink still waits after interrupt"
            assert isinstance(call.exception(), FragmentStopped if stalled else FragmentStopped | None)
            driven.call("abort", "stopped")


def _zset(*rows: tuple[str | None, int | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(_SCHEMA.names, row, strict=True)) for row in rows], _SCHEMA)
