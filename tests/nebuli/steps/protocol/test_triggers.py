"""When a step is issued and a checkpoint begun: the table, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nebuli.steps.protocol.triggers import (
    CheckpointNow,
    Situation,
    StepNow,
    TriggerSettings,
    WaitUntil,
    decide,
)

NEVER = TriggerSettings(rows=1000, checkpoint_s=None)
IDLE = Situation(now=100.0, rows=(0, 0), rows_since=0.0, stepped_at=100.0, checkpoint_at=100.0)


def after(seconds: float, **found: object) -> Situation:
    return replace(IDLE, now=100.0 + seconds, **found)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_no_clock_comes_to_is_no_setting(seconds: float) -> None:
    for name in ("checkpoint_s", "delay_s", "tick_s"):
        with pytest.raises(
            ValueError, match=f"expected a number of seconds above 0, or None, as {name}, got"
        ):
            replace(NEVER, **{name: seconds})
    with pytest.raises(ValueError, match="expected rows and many_rows above 0"):
        replace(NEVER, rows=0)
    if seconds:
        with pytest.raises(ValueError, match="as spacing_s"):
            replace(NEVER, spacing_s=seconds)


@pytest.mark.parametrize(
    ("rows", "decision"), [((4, 6), StepNow()), ((4, 5), WaitUntil(None)), ((0, 10), StepNow())]
)
def test_so_many_rows_of_all_members_together_make_a_step(rows: tuple[int, ...], decision: object) -> None:
    """FT-TR-1, FT-TR-7: members say how many, and what all of them said counts."""
    assert decide(TriggerSettings(rows=10, checkpoint_s=None), after(0, rows=rows)) == decision


@pytest.mark.parametrize(
    ("seconds", "rows", "decision"),
    [
        (0.0, (0, 1), WaitUntil(100.5)),
        (0.48, (0, 1), WaitUntil(100.5)),
        (0.5, (0, 1), StepNow()),
        (9.0, (0, 1), StepNow()),
        (9.0, (0, 0), WaitUntil(None)),
    ],
)
def test_fewer_rows_make_a_step_when_the_first_has_waited(
    seconds: float, rows: tuple[int, ...], decision: object
) -> None:
    """FT-TR-2"""
    settings = replace(NEVER, delay_s=0.5)
    assert decide(settings, after(seconds, rows=rows, rows_since=100.0)) == decision


def test_the_clock_makes_steps_without_input() -> None:
    """FT-TR-3: about ten in a second at 100 ms, none without."""
    settings = replace(NEVER, tick_s=0.1)
    found, steps = IDLE, 0
    while True:
        decision = decide(settings, found)
        if isinstance(decision, StepNow):
            steps += 1
            found = replace(found, stepped_at=found.now)
            continue
        assert isinstance(decision, WaitUntil)
        assert decision.at is not None
        if decision.at > 101.0:
            break
        found = replace(found, now=decision.at + 0.002)
    assert 9 <= steps <= 10
    assert decide(NEVER, after(3600)) == WaitUntil(None)


@pytest.mark.parametrize(
    ("seconds", "decision"), [(59.9, WaitUntil(160.0)), (60.0, CheckpointNow()), (90.0, CheckpointNow())]
)
def test_time_makes_a_checkpoint_without_input(seconds: float, decision: object) -> None:
    """FT-TR-4"""
    assert decide(replace(NEVER, checkpoint_s=60.0), after(seconds)) == decision
    assert decide(NEVER, after(seconds)) == WaitUntil(None)


@pytest.mark.parametrize(
    "busy",
    [
        {"rows": (1000, 1000)},
        {"replaying": True},
        {"rows": (1, 0), "rows_since": 100.0},
        {"stepped_at": 100.0},
    ],
)
def test_constant_steps_do_not_put_a_checkpoint_off(busy: dict[str, object]) -> None:
    """FT-TR-4: what is due comes before the step, whatever the step is for, and the step comes right behind it."""
    settings = TriggerSettings(rows=1, delay_s=0.1, tick_s=0.1, checkpoint_s=60.0)
    due = after(60, **busy)
    assert decide(settings, due) == CheckpointNow()
    begun = replace(due, checkpointing=True, checkpoint_at=due.now)
    assert isinstance(decide(settings, begun), StepNow)


def test_replay_waits_for_nothing() -> None:
    """FT-TR-5: nor for rows, nor for a timer."""
    settings = replace(NEVER, delay_s=10.0, tick_s=10.0)
    assert decide(settings, after(0, replaying=True)) == StepNow(replayed=True)
    assert decide(settings, after(0)) == WaitUntil(110.0)


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        ({}, StepNow(ended=True)),
        ({"rows": (0, 1)}, StepNow()),
        ({"replaying": True}, StepNow(replayed=True)),
        ({"paused": True}, WaitUntil(None)),
        ({"wanted": True}, CheckpointNow()),
        ({"now": 160.0}, CheckpointNow()),
    ],
)
def test_the_end_of_all_inputs_is_a_step_behind_all_that_waits(
    found: dict[str, object], decision: object
) -> None:
    settings = replace(NEVER, delay_s=10.0, checkpoint_s=60.0)
    assert decide(settings, replace(IDLE, ending=True, **found)) == decision


def test_a_single_row_makes_a_step_by_default() -> None:
    """FT-TR-6"""
    assert decide(TriggerSettings(), after(0, rows=(0, 1))) == StepNow()
    assert decide(TriggerSettings(), after(0)) == WaitUntil(160.0)


@pytest.mark.parametrize(
    ("seconds", "rows", "decision"),
    [
        (0.0, (0, 1), WaitUntil(100.05)),
        (0.04, (40, 59), WaitUntil(100.05)),
        (0.04, (40, 60), StepNow()),
        (0.05, (0, 1), StepNow()),
        (9.0, (0, 1), StepNow()),
        (9.0, (0, 0), WaitUntil(None)),
    ],
)
def test_rows_that_come_all_the_time_make_few_steps_and_one_that_comes_alone_its_own(
    seconds: float, rows: tuple[int, ...], decision: object
) -> None:
    """By the clock from the step before, but for those that are many; a row behind a pause waits for nothing."""
    settings = TriggerSettings(checkpoint_s=None, spacing_s=0.05, many_rows=100)
    assert decide(settings, after(seconds, rows=rows, rows_since=100.0)) == decision


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        ({"replaying": True}, StepNow(replayed=True)),
        ({"ending": True, "rows": (0, 1)}, StepNow()),
        ({"ending": True}, StepNow(ended=True)),
        ({"now": 100.1}, StepNow()),  # by the clock
        ({"now": 160.0}, CheckpointNow()),
    ],
)
def test_nothing_but_rows_waits_for_the_spacing(found: dict[str, object], decision: object) -> None:
    settings = TriggerSettings(tick_s=0.1, checkpoint_s=60.0, spacing_s=30.0)
    assert decide(settings, replace(IDLE, **found)) == decision


def test_fewer_rows_wait_for_both_their_delay_and_the_spacing() -> None:
    settings = replace(NEVER, delay_s=0.5, spacing_s=1.0)
    assert decide(settings, after(0, rows=(1, 0), rows_since=100.0)) == WaitUntil(101.0)
    assert decide(settings, after(0.8, rows=(1, 0), rows_since=100.7)) == WaitUntil(101.2)


def test_there_is_no_second_checkpoint_before_the_first_has_ended() -> None:
    settings = replace(NEVER, checkpoint_s=60.0)
    assert decide(settings, after(90, checkpointing=True)) == WaitUntil(None)
    assert decide(settings, after(90, checkpointing=True, wanted=True)) == WaitUntil(None)


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        ({"rows": (9999,)}, WaitUntil(None)),
        ({"replaying": True}, WaitUntil(None)),
        ({"now": 9999.0}, WaitUntil(None)),
        ({"wanted": True}, CheckpointNow()),
    ],
)
def test_while_paused_nothing_happens_but_what_is_asked_for(
    found: dict[str, object], decision: object
) -> None:
    settings = TriggerSettings(rows=1, delay_s=0.1, tick_s=0.1, checkpoint_s=60.0)
    assert decide(settings, replace(IDLE, paused=True, **found)) == decision


def test_it_waits_for_what_comes_first() -> None:
    settings = TriggerSettings(rows=1000, delay_s=3.0, tick_s=5.0, checkpoint_s=4.0)
    assert decide(settings, after(0)) == WaitUntil(104.0)
    assert decide(settings, after(0, rows=(1,), rows_since=99.5)) == WaitUntil(102.5)
    assert decide(settings, after(0, checkpointing=True)) == WaitUntil(105.0)
