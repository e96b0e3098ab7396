"""The requirements of a source."""

from __future__ import annotations

import math
from concurrent.futures import wait
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pydantic import ValidationError

from nebuli.connectors.endpoints import Rereadable, Signal
from nebuli.connectors.errors import FragmentStopped, InputError
from nebuli.connectors.provider import source_of
from nebuli.dataflow import arrow_schema, zset
from placement.plan import BoundSource
from topology import SOURCES, Column

from .connector_driver import Driven, counted, nothing_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from topology import Schema

    Waiting = tuple[dict[str, Any], Callable[[], None]] | None

Settings = dict[str, Any]


# pytest runs these in their order: the simplest failing test is the most informative.
class SourceConformance:
    """Derive a class whose name begins with ``Test``, and override ``settings``, ``columns`` and ``rows``.

    ``waiting`` and ``unreadable`` are to be overridden if it waits for a peer, or can find nothing to read.
    """

    limit_s: ClassVar[float] = 10.0
    """How long any one call may take."""
    longest_poll_s: ClassVar[float] = 0.5
    """How long a poll may take that finds nothing."""
    most_rows: ClassVar[int] = 10_000
    """How many rows are read of a source without an end."""

    @pytest.fixture
    def settings(self) -> Settings:
        """The source's keys as a topology has them, without ``logical``, for something that can be read."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'settings': define it")

    @pytest.fixture
    def columns(self) -> dict[str, str]:
        """The logical source's schema: types by names."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'columns': define it")

    @pytest.fixture
    def rows(self) -> list[dict[str, Any]] | None:
        """Return its expected rows, in any order; None if they are not known."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture 'rows': define it")

    @pytest.fixture
    def waiting(self) -> Waiting:
        """A source that has nothing yet, and what to call so that it gets a row; None: it never waits."""
        return None

    @pytest.fixture
    def unreadable(self) -> list[tuple[Settings, str]]:
        """Sources that cannot be read, each with a text that its error has to have."""
        return []

    @pytest.fixture
    def schema(self, columns: dict[str, str]) -> Schema:
        """The columns as a source is given them."""
        return tuple(Column.model_validate({"name": name, "type": type_}) for name, type_ in columns.items())

    def _bound(self, settings: Settings, schema: Schema) -> BoundSource:
        """The source as an operator of a plan."""
        return BoundSource.model_validate(
            {"id": "s", "logical": "l", "schema": schema, "physical": {"logical": "l", **settings}}
        )

    def _driven(self, settings: Settings, schema: Schema) -> Driven:
        """The source as a fragment has it; nothing is opened."""
        operator = self._bound(settings, schema)
        return Driven(lambda wake: source_of(operator, wake), self.limit_s)

    def _read(self, settings: Settings, schema: Schema) -> pa.Table:
        """All rows that it gives; enough of what has no end."""
        with self._driven(settings, schema) as driven:
            try:
                driven.call("open")
                return driven.read(self._most_rows(settings, schema))
            finally:
                driven.call("close", "it is read")

    def _most_rows(self, settings: Settings, schema: Schema) -> float:
        return self.most_rows if self._bound(settings, schema).physical.ends == "never" else math.inf

    def test_its_type_is_found_by_its_name(self, settings: Settings, schema: Schema) -> None:
        """An entry point names its type, where that is not one of ours; ``implementation`` names what does the work."""
        connector = SOURCES.named(settings["type"])
        assert callable(resolve_name(connector.implementation))
        assert type(self._bound(settings, schema).physical) is connector
        assert self._bound(settings, schema).physical.reads

    def test_its_keys_travel_in_a_plan(self, settings: Settings, schema: Schema) -> None:
        """Its keys reach workers, which check them."""
        operator = self._bound(settings, schema)
        assert BoundSource.model_validate_json(operator.model_dump_json(by_alias=True)) == operator
        with pytest.raises(ValidationError):
            self._bound({**settings, "no such key": 1}, schema)

    def test_it_gives_the_rows_that_are_there(
        self, settings: Settings, schema: Schema, rows: list[dict[str, Any]] | None
    ) -> None:
        """The rows have the columns and types of the logical source, and a weight each."""
        found = self._read(settings, schema)
        wanted = zset.weighted(arrow_schema(schema))
        if found.num_rows:
            assert found.schema.equals(wanted), (
                f"the source returned {found.schema}\n\ninstead of\n\n{wanted}"
            )
        if rows is not None:
            assert counted(found.to_pylist(), wanted) == counted(rows, arrow_schema(schema))

    def test_it_ends_if_it_says_so(self, settings: Settings, schema: Schema) -> None:
        """It ends once its rows are read, and not if it declares that it never does: see ``ends``."""
        found = self._read(settings, schema)
        assert self._bound(settings, schema).physical.ends != "never" or found.num_rows >= self.most_rows

    def test_the_same_rows_come_again_if_it_is_repeatable(self, settings: Settings, schema: Schema) -> None:
        """The rows are in the same order, however they are cut into batches."""
        if not self._bound(settings, schema).physical.can_be_read_again:
            return
        first, second = (self._read(settings, schema) for _ in range(2))
        assert repr(first.to_pylist()) == repr(second.to_pylist())

    def test_what_is_skipped_is_what_would_have_come_first(self, settings: Settings, schema: Schema) -> None:
        """A source that has ``skip`` gives the rows after those that it is to skip."""
        with self._driven(settings, schema) as driven:
            if not hasattr(driven.end, "skip"):
                return
            driven.call("open")
            driven.call("skip", 1)
            rest = driven.read(self._most_rows(settings, schema))
            driven.call("close", "it is read")
        first = self._read(settings, schema).slice(1)
        rows = min(first.num_rows, rest.num_rows)
        assert repr(first.slice(0, rows).to_pylist()) == repr(rest.slice(0, rows).to_pylist())

    def test_it_goes_on_at_each_position_that_it_gave(self, settings: Settings, schema: Schema) -> None:
        """A source that is `Rereadable` gives the rows that came after a position, and all from the empty one."""
        whole, positions = pa.table({}), [(0, "")]
        with self._driven(settings, schema) as driven:
            if not isinstance(driven.end, Rereadable):
                return
            driven.call("open")
            while (more := driven.read(1)).num_rows and whole.num_rows < self._most_rows(settings, schema):
                whole = pa.concat_tables([whole, more]) if whole.num_rows else more
                positions.append((whole.num_rows, driven.end.position))
            driven.call("close", "it is read")
        for given, position in positions:
            with self._driven(settings, schema) as driven:
                driven.call("seek", position)
                driven.call("open")
                rest = driven.read(self._most_rows(settings, schema))
                driven.call("close", "it is read")
            rows = min(whole.num_rows - given, rest.num_rows)
            assert rows == whole.num_rows - given or math.isfinite(self._most_rows(settings, schema))
            assert repr(rest.slice(0, rows).to_pylist()) == repr(whole.slice(given, rows).to_pylist())

    def test_it_says_when_to_come_again(self, waiting: Waiting, schema: Schema) -> None:
        """A poll that finds nothing returns at once; when there is something, the fragment is woken."""
        if waiting is None:
            return
        settings, supply = waiting
        with self._driven(settings, schema) as driven:
            driven.call("open")
            driven.woken.clear()
            poll = driven.begin(driven.end.poll)
            wait([poll], self.longest_poll_s)
            assert poll.done(), f"a poll took more than {self.longest_poll_s:g} s to return without rows"
            assert poll.result() is Signal.LATER
            supply()
            assert driven.woken.wait(self.limit_s), "the source has rows, but did not wake the fragment"
            assert driven.read(1).num_rows >= 1
            driven.call("close", "the test is over")

    @pytest.mark.parametrize("when", ["before it is opened", "opened", "in the middle", "at the end"])
    def test_it_lets_go_of_everything(self, settings: Settings, schema: Schema, when: str) -> None:
        """Descriptors and threads, once it is closed, wherever it was; and may be closed again."""
        self._read(settings, schema)  # what is opened once per process is open now
        with nothing_held(self.limit_s), self._driven(settings, schema) as driven:
            if when != "before it is opened":
                driven.call("open")
            if when in ("in the middle", "at the end"):
                driven.read(1 if when == "in the middle" else self._most_rows(settings, schema))
            driven.call("close", "the test is over")
            driven.call("close", "the test is over")

    def test_what_cannot_be_read_is_said_in_a_sentence(
        self, unreadable: list[tuple[Settings, str]], settings: Settings, schema: Schema
    ) -> None:
        """An InputError that names it, and nothing is held afterwards."""
        self._read(settings, schema)
        for wrong, named in unreadable:
            with nothing_held(self.limit_s):
                said = self._refusal(wrong, schema)
            assert named in said
            assert "\n" not in said

    def _refusal(self, wrong: Settings, schema: Schema) -> str:
        with pytest.raises(InputError) as caught:
            self._read(wrong, schema)
        return str(caught.value)

    def test_an_interrupt_ends_what_waits(self, waiting: Waiting, settings: Settings, schema: Schema) -> None:
        """Running and later calls return or raise ``FragmentStopped`` after another thread's interrupt."""
        with self._driven(settings if waiting is None else waiting[0], schema) as driven:
            driven.call("open")
            poll = driven.begin(driven.end.poll)
            wait([poll], self.longest_poll_s)
            driven.end.interrupt()
            assert wait([poll], self.limit_s).done, "poll still waits after interrupt"
            if poll.exception() is None and poll.result() is not Signal.END:
                poll = driven.begin(driven.end.poll)
                assert wait([poll], self.limit_s).done, "a poll after interrupt waits"
            assert isinstance(poll.exception(), FragmentStopped | None)
            driven.call("close", "stopped")
