"""The tables of what circuits in steps take.

A row's contestants are its cases. Each runs in processes of its own (`benchmarks.running`): the function named second
in ``sides`` in one, and, where there are two members, the one named first in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.row import Row
from benchmarks.running import FREE, PINNED, Contestant
from benchmarks.targets import AtMost, Reaching, Target, Within
from benchmarks.work import Work

LOGS, EXCHANGES, ORDERED, DELTAS, CHECKPOINTS, QUERIES, RECOVERY, SCALING, ASKING = (
    f".steps.{name}"
    for name in (
        *("logs", "exchanges", "ordered", "deltas", "checkpoints"),
        *("queries", "recovery", "scaling", "asking"),
    )
)
WHOLE_S = 90.0
GB = 1_000_000_000
MILLION, TEN_MILLIONS = "1 000 000 rows of state", "10 000 000 rows of state"
ROW, ROWS = "1 row a step", "1 000 rows a step"
ONE, FOUR = "one exchange", "four exchanges"
KILLED = "in the middle of the flights query"
MORE, FEWER = "from 2 to 4", "from 4 to 2"
CHECKED, UNCHECKED = "with checks", "without"
FOUR_MEMBERS = "four members"
FIRST, SECOND = "the first one", "the second one, 1 200 steps later"
Options = Mapping[str, Any]


def _row(
    name: str,
    sides: tuple[str, str],
    cases: Mapping[str, Contestant],
    columns: tuple[str, ...],
    *targets: Target,
    options: Options,
    seconds: float = 5.0,
    **settings: Any,
) -> Row:
    """Cases stand beside the first of them; ``seconds``: what one takes at most, about."""
    work = Work(1, seconds=seconds, options=dict(options))
    return Row(name, work, cases, columns, targets, base=next(iter(cases)), sides=sides, **settings)


def _alone(module: str, cases: Mapping[str, Options]) -> dict[str, Contestant]:
    """One process, on any core."""
    return {
        name: Contestant(module, alone=True, settings=(FREE,), options=options)
        for name, options in cases.items()
    }


def _whole(module: str, name: str) -> dict[str, Contestant]:
    """Whole queries, whose processes start and read what has to be written first: that lasts, however little it is."""
    return {name: Contestant(module, alone=True, settings=(FREE,), lasts=(0.0, WHOLE_S))}


def _pairs(cases: Mapping[str, Options]) -> dict[str, Contestant]:
    """A process for each of two members."""
    return {
        name: Contestant(EXCHANGES, settings=(PINNED, FREE), options=options)
        for name, options in cases.items()
    }


def _deltas(name: str, function: str, **options: Any) -> Row:
    return _row(
        name,
        ("", function),
        _alone(DELTAS, {MILLION: {"state_rows": 1_000_000}, TEN_MILLIONS: {"state_rows": 10_000_000}}),
        ("p50_ms", "p99_ms", "runs"),
        Within(1.5, "p50_ms", MILLION),
        AtMost(4, MILLION, "p50_ms", TEN_MILLIONS),
        options={"delta_rows": 1_000, "steps": 300, **options},
        seconds=40,
        quick={"steps": 50},
        slow=(TEN_MILLIONS,),
        rounds=2,
    )


def _query(name: str, case: str, quick: Options, **options: Any) -> Row:
    """Free and in steps, by one process that compares what comes out."""
    return _row(
        name,
        ("", "beside"),
        _whole(QUERIES, case),
        ("cpu_ratio", "free_cpu_s", "stepped_cpu_s", "free_s", "stepped_s", "steps", "checkpoints"),
        Within(1.3, "cpu_ratio", case),
        options=options,
        rounds=2,
        quick=quick,
    )


STEP_ROWS = (
    _row(
        "a durable step: its input fixed, its output written",
        ("", "durable_steps"),
        _alone(LOGS, {ROWS: {"rows": 1_000}, ROW: {"rows": 1}}),
        ("p50_ms", "p99_ms", "fix_p50_ms", "write_p50_ms", "push_p50_ms"),
        Within(2, "p50_ms", ROWS),
        Within(2, "p50_ms", ROW),
        options={"steps": 1_000},
        quick={"steps": 100},
    ),
    _row(
        "the checks of a durable step",
        ("", "durable_steps"),
        _alone(LOGS, {UNCHECKED: {"rows": 1, "unchecked": True}, CHECKED: {"rows": 1}}),
        ("p50_ms", "p99_ms"),
        AtMost(1.05, UNCHECKED, "p50_ms", CHECKED),
        options={"steps": 1_000},
        quick={"steps": 100},
    ),
    _row(
        "a plain file synced twice",
        ("", "plain_syncs"),
        _alone(LOGS, {"4 KiB each": {}}),
        ("p50_ms", "p99_ms"),
        options={"steps": 1_000},
        quick={"steps": 100},
    ),
    _row(
        "an empty step of two members",
        ("first_exchanges", "second_exchanges"),
        _pairs({ONE: {"exchanges": 1}, FOUR: {"exchanges": 4}}),
        ("p50_ms", "p99_ms"),
        Within(0.5, "p50_ms", ONE),
        Within(0.5, "p50_ms", FOUR),
        options={"steps": 5_000},
        quick={"steps": 500},
    ),
    _row(
        "an empty step of two members with a circuit",
        ("first_steps", "second_steps"),
        _pairs({"an aggregate, given out by one": {"query": "sums"}, "a join": {"query": "join"}}),
        ("p50_ms", "p99_ms"),
        Within(0.5, "p50_ms", "an aggregate, given out by one"),
        options={"steps": 5_000},
        quick={"steps": 500},
    ),
    _row(
        "an empty step ordered by the coordinator, two members",
        ("", "ordered_steps"),
        _alone(ORDERED, {"state in memory": {"state": "memory"}, "state on disk": {"state": "disk"}}),
        ("p50_ms", "p99_ms", "cpu_us_per_step"),
        options={"steps": 2_000},
        seconds=20,
        quick={"steps": 200},
    ),
    _deltas("join of 1 000 rows", "join"),
    _deltas("count, sum and avg of 1 000 rows", "aggregate", query="sums"),
    _deltas("min and max of 1 000 rows", "aggregate", query="extremes"),
    _row(
        "the input log read back",
        ("", "read_back"),
        _alone(LOGS, {"1 000 rows a step": {"rows": 1_000}, "10 000 rows a step": {"rows": 10_000}}),
        ("rows_per_s", "step_us"),
        Reaching(5_000_000, "rows_per_s", "1 000 rows a step"),
        Reaching(5_000_000, "rows_per_s", "10 000 rows a step"),
        options={"steps": 1_000},
        seconds=15,
        quick={"steps": 100},
    ),
    _row(
        "a checkpoint of 1 GB of state",
        ("", "checkpoint"),
        _alone(CHECKPOINTS, {FIRST: {"after": 0}, SECOND: {"after": 1_000}}),
        ("blocked_ms", "writing_s", "written_MB", "p50_ms", "longest_ms", "quiet_p50_ms", "quiet_longest_ms"),
        Within(200, "blocked_ms", FIRST),
        Within(200, "blocked_ms", SECOND),
        options={"bytes": GB, "quiet_steps": 200},
        seconds=40,
        rounds=2,
        quick={"bytes": GB // 10},
    ),
    _row(
        "an exchange of 1 GB per pair, with buffers of 1 MiB",
        ("first_large", "second_large"),
        _pairs({"two members": {}}),
        ("GB_per_s", "new_GB_per_s", "receiver_peak_MB", "sender_peak_MB"),
        options={"bytes": GB, "steps": 3},
        seconds=20,
        quick={"bytes": GB // 10},
    ),
    _query("the flights query", "18 144 550 rows", {"times": 5}, query="flights", times=50),
    _query("Nexmark q3", "100 million events", {"events": 1_000_000}, query="q3", events=100_000_000),
    _query("Nexmark q5", "10 million events", {"events": 500_000}, query="q5", events=10_000_000),
    _row(
        "recovery after kill -9 of one member of two",
        ("", "killed_member"),
        _whole(RECOVERY, KILLED),
        ("resumed_s", "caught_up_s", "replayed_steps"),
        Within(3, "resumed_s", KILLED),
        options={"query": "flights", "times": 50, "checkpoint_s": 2.0, "behind": 10},
        quick={"times": 20, "checkpoint_s": 0.5, "behind": 4},
    ),
    _row(
        "SQL over members, while steps run",
        ("", "asked_members"),
        {
            name: Contestant(
                ASKING, alone=True, settings=(FREE,), lasts=(0.0, WHOLE_S), options={"members": members}
            )
            for name, members in (("one member", 1), (FOUR_MEMBERS, 4))
        },
        ("p50_ms", "p99_ms", "steps"),
        Within(100, "p50_ms", FOUR_MEMBERS),
        options={},
        seconds=10,
        quick={},
    ),
    _row(
        "another number of members, with 1 GB of state",
        ("", "scaled_members"),
        {
            name: Contestant(
                SCALING, alone=True, settings=(FREE,), lasts=(0.0, WHOLE_S), options={"members": members}
            )
            for name, members in ((MORE, (2, 4)), (FEWER, (4, 2)))
        },
        ("waits_s", "quiet_ms", "takes_s", "state_MB"),
        Within(5, "waits_s", MORE),
        options={"bytes": GB},
        rounds=1,
        quick={"bytes": GB // 10},
    ),
)
