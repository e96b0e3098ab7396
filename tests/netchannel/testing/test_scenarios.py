"""Scenarios over processes: what is exact through starts in any order, stops and kills; and that the runner looks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from netchannel.testing import scenarios
from netchannel.testing.scenarios import ScenarioError, ScenarioFailed, parse, processes, run
from netchannel.testing.scenarios.__main__ import main
from tests.support.waiting import wait_for

CHAIN = """
actors:
  numbers: {{type: source, count: {count}, rate: {rate}}}
  middle: {{type: bridge, from: numbers}}
  all: {{type: sink, from: middle, expect: {expect}}}
steps:
"""
DIAMOND = """
actors:
  numbers: {type: source, count: 1500, rate: 1000}
  left: {type: bridge, from: numbers}
  right: {type: bridge, from: numbers}
  all: {type: sink, from: [left, right], expect: 3000}
steps:
"""
ALL = "- start: [numbers, middle, all]"
DONE = "- wait: {sink: all, until: done}"


def chain(*steps: str, count: int = 1500, rate: int = 1000, expect: int | None = None) -> scenarios.Scenario:
    head = CHAIN.format(count=count, rate=rate, expect=count if expect is None else expect)
    return parse("\n".join([head.rstrip(), *(f"  {step}" for step in steps)]), file="chain.yaml")


def diamond(*steps: str) -> scenarios.Scenario:
    return parse("\n".join([DIAMOND.rstrip(), *(f"  {step}" for step in steps)]), file="diamond.yaml")


@pytest.mark.processes
def test_a_diamond_is_exact() -> None:
    """CH-SEQ-3: what goes two ways is whole on each of them."""
    said: list[str] = []
    scenario = diamond("- start: [numbers, left, right, all]", "- wait: {sink: all, until: 100}", DONE)
    assert run(scenario, said.append) == {"all": 3000}
    assert said == ["started numbers, left, right, all", "all has read 100", "all is done"]


@pytest.mark.processes
@pytest.mark.parametrize("order", list(itertools.permutations(["numbers", "middle", "all"])), ids="-".join)
def test_actors_may_start_in_any_order(order: tuple[str, ...]) -> None:
    """CH-REG-2, CH-REG-3: each is ready before the next one is started, and waits for those that are not there."""
    starts = [f"- start: {name}" for name in order]
    assert run(chain(*starts, DONE, count=500)) == {"all": 500}


@pytest.mark.processes
def test_a_sink_of_a_diamond_that_starts_last() -> None:
    """CH-REG-2: the messages of a whole stream wait for it."""
    starts = [f"- start: {name}" for name in ("right", "numbers", "left", "all")]
    assert run(diamond(*starts, DONE)) == {"all": 3000}


@pytest.mark.processes
def test_a_bridge_that_is_reset_in_mid_stream() -> None:
    """CH-ACK-1, CH-CAN-1: killed and started again, three times, without a disk: exact at the sink."""
    resets = [
        f"- {step}"
        for n in (300, 700, 1100)
        for step in (f"wait: {{sink: all, until: {n}}}", "reset: middle")
    ]
    assert run(chain(ALL, *resets, DONE)) == {"all": 1500}


@pytest.mark.processes
def test_every_actor_that_is_reset_one_after_the_other() -> None:
    """CH-ACK-1: neighbours in turn, and all of a chain at once."""
    steps = [
        "- wait: {sink: all, until: 200}",
        "- reset: all",
        "- reset: middle",
        "- wait: {sink: all, until: 500}",
        "- reset: numbers",
        "- wait: {sink: all, until: 800}",
        "- reset: [middle, all]",
        "- wait: {sink: all, until: 1100}",
        "- kill: [numbers, middle, all]",
        "- start: [all, middle, numbers]",
    ]
    assert run(chain(ALL, *steps, DONE)) == {"all": 1500}


@pytest.mark.processes
@pytest.mark.parametrize("name", ["numbers", "middle", "all"])
def test_an_actor_that_is_stopped_leaves_its_work_to_the_next(name: str) -> None:
    """CH-END-8."""
    steps = ["- wait: {sink: all, until: 300}", f"- stop: {name}", f"- start: {name}"]
    assert run(chain(ALL, *steps, DONE, count=1000)) == {"all": 1000}


@pytest.mark.processes
def test_a_wrong_expectation_fails() -> None:
    with pytest.raises(ScenarioFailed) as failed:
        run(chain(ALL, DONE, count=200, expect=199))
    assert str(failed.value) == "chain.yaml: all has read 200 messages (200 of 200 from middle), expected 199"


SABOTEUR = """
import runpy
import netchannel
send = netchannel.SenderChannel.send
async def other(self, batch, note=b""):
    if self.id == "middle-all" and batch.startswith(b"numbers 100 "):
        {crime}
    else:
        await send(self, batch, note)
netchannel.SenderChannel.send = other
runpy.run_path({actor!r}, run_name="__main__")
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("crime", "said"),
    [
        ("pass", "message 101 came where 100 was due: something was lost"),
        (
            "[await send(self, batch) for _ in 'ab']",
            "message 100 came where 101 was due: something was doubled",
        ),
        ("await send(self, batch[:-1] + b'?')", "message 100 has another content than it was sent with"),
        ("await self.abort('enough')", "(middle|all) died"),
        ("await self.close()", "the end came after 100 messages, and 300 were sent"),
    ],
    ids=["lost", "doubled", "changed", "aborted", "ended early"],
)
def test_an_actor_that_breaks_a_promise_fails_the_scenario(
    crime: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner finds what it is there for, whatever the actors' own processes think."""
    program = tmp_path / "saboteur.py"
    program.write_text(SABOTEUR.format(crime=crime, actor=str(processes._PROGRAM)), "utf-8")
    monkeypatch.setattr(processes, "_PROGRAM", program)
    with pytest.raises(ScenarioFailed, match=f"chain.yaml:\\d+: .*{said}"):
        run(chain(ALL, DONE, count=300))


HASTY = """
import runpy
import netchannel
send, recv_message = netchannel.SenderChannel.send, netchannel.ReceiverChannel.recv_message
kept = []
async def receive(self):
    message = await recv_message(self)
    if self.id == "numbers-middle":
        await self.ack(message.sequence + 1)
    return message
async def late(self, batch, note=b""):
    number = int(batch.split()[1])
    if self.id != "middle-all" or number < 99:
        await send(self, batch, note)
    elif number == 99:
        kept.append(batch)
    elif number == 160:  # the source is 50 ahead of acknowledgements at most: it has heard that of number 100
        await send(self, kept[0])
netchannel.SenderChannel.send, netchannel.ReceiverChannel.recv_message = late, receive
runpy.run_path({actor!r}, run_name="__main__")
"""


@pytest.mark.processes
def test_a_bridge_that_acknowledges_before_its_output_is_loses_and_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-ACK-1 without its safeguard."""
    program = tmp_path / "hasty.py"
    program.write_text(HASTY.format(actor=str(processes._PROGRAM)), "utf-8")
    monkeypatch.setattr(processes, "_PROGRAM", program)
    reset = ["- wait: {sink: all, until: 100}", "- reset: middle"]
    with pytest.raises(ScenarioFailed, match=r"(middle|all) died(.*\n)*.* is to go on at number 100 of"):
        run(chain(ALL, *reset, DONE, count=10**6))


@pytest.mark.processes
def test_a_deadline_that_passes_says_how_far_it_came() -> None:
    scenario = chain(
        "- start: [numbers, middle, all]",
        "- wait: {sink: all, until: 20}",
        "- kill: numbers",
        "- wait: {sink: all, until: done, within_s: 0.3}",
        count=100_000,
    )
    with pytest.raises(ScenarioFailed) as failed:
        run(scenario)
    assert "chain.yaml:10: all has not read its inputs' ends within 0.3 s: it has" in str(failed.value)
    assert "of 100000 from middle" in str(failed.value)


@pytest.mark.processes
def test_a_reset_that_comes_too_late_is_none() -> None:
    before = psutil.Process().children()

    def has_ended(process: psutil.Process) -> bool:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait_for_all_ends(line: str) -> None:
        if line == "all is done":
            actors = [each for each in psutil.Process().children() if each not in before]
            assert len(actors) == 3
            wait_for(lambda: all(map(has_ended, actors)), "the ends of all actors")

    with pytest.raises(ScenarioFailed, match=r"chain\.yaml:9: middle had done its work before it was killed"):
        run(chain(ALL, DONE, "- reset: middle", count=100), wait_for_all_ends)


@pytest.mark.processes
def test_nothing_is_left_of_a_runner_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    steps = "  - start: [numbers, middle, all]\n  - wait: {sink: all, until: done}\n"
    file.write_text(CHAIN.format(count=10**6, rate=100, expect=10**6) + steps, "utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "netchannel.testing.scenarios", file],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as runner:
        assert runner.stdout is not None
        while b"started" not in runner.stdout.readline():
            assert runner.poll() is None
        actors = psutil.Process(runner.pid).children()
        assert len(actors) == 3
        runner.kill()
    _, alive = psutil.wait_procs(actors, timeout=60)
    assert alive == []


MISTAKES = """
deadline_s: soon
actors:
  numbers: {type: source, count: 0, rat: 5}
  left: {type: bridge, from: [numbers, all]}
  right: {type: brigde, from: numbers}
  all: {type: sink, from: lfet}
  all: {type: sink, from: left, expect: 1}
  a b: {type: sink, from: left, expect: 1}
steps:
  - begin: numbers
  - start: []
  - start: numbers
    stop: numbers
"""


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    with pytest.raises(ScenarioError) as wrong:
        parse(MISTAKES, file="wrong.yaml")
    assert str(wrong.value).splitlines() == [
        "wrong.yaml:2:13: expected a number above 0 as deadline_s, got 'soon'",
        "wrong.yaml:4:34: expected a whole number from 1 to 1000000000 as count, got '0'",
        (
            "wrong.yaml:4:37: unknown key 'rat' in the source numbers (did you mean 'rate'?); expected "
            "type, count, rate, size"
        ),
        "wrong.yaml:5:30: the bridge left reads from 2 actors; expected one",
        "wrong.yaml:6:17: expected one of source, bridge, sink as type, got 'brigde' (did you mean 'bridge'?)",
        "wrong.yaml:7:8: missing key 'expect' in the sink all",
        (
            "wrong.yaml:7:27: expected one of numbers, left, right, all, a b as an actor, got 'lfet' "
            "(did you mean 'left'?)"
        ),
        "wrong.yaml:8:3: duplicate key 'all': each may be given once",
        "wrong.yaml:9:3: expected a name of 1 to 40 letters, digits, '_' and '.', got 'a b'",
        "wrong.yaml:11:5: expected one of start, stop, kill, reset, wait as a step, got 'begin'",
        "wrong.yaml:12:12: expected names as a list, got an empty list",
        "wrong.yaml:13:5: a step does one thing, and this one has start, stop",
    ]


@pytest.mark.parametrize(
    ("actors", "said"),
    [
        ("a: {type: source, count: 1}", "3:3: nobody reads from a; expected a bridge or a sink that does"),
        (
            "a: {type: source, count: 1}\n  b: {type: sink, from: a, expect: 1}\n  c: {type: sink, from: b, expect: 1}",
            "4:3: b is a sink, and c cannot read from it",
        ),
        (
            (
                "a: {type: source, count: 1}\n  b: {type: bridge, from: a}\n"
                "  c: {type: sink, from: b, expect: 1}\n  d: {type: sink, from: b, expect: 1}"
            ),
            "4:3: c, d read from the bridge b; expected one, as a bridge has one output",
        ),
        (
            "b: {type: bridge, from: c}\n  c: {type: bridge, from: b}",
            "3:3: the bridge b gets its own output; expected a way from a source",
        ),
    ],
)
def test_actors_that_do_not_fit_together(actors: str, said: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        parse(f"\nactors:\n  {actors}\nsteps:\n  - start: a\n", file="f")
    assert f"f:{said}" in str(wrong.value).splitlines()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (["- start: [numbers, middle]", "- start: middle"], "middle cannot be started: it has been"),
        (["- start: [numbers, middle]", "- stop: all"], "all does not run here; start it first"),
        (["- start: [numbers, all]"], "middle is never started"),
        (["- wait: {sink: all, until: done}", ALL], "all does not run here, and reads nothing"),
        (
            [ALL, "- wait: {sink: all, until: 1501}"],
            "all is waited for until 1501 messages, and is sent 1500",
        ),
        ([ALL, "- start: [all, all]"], "all stands here twice"),
        ([ALL, "- wait: {sink: middle, until: done}"], "expected one of all as a sink, got 'middle'"),
        ([ALL, "- wait: {sink: all}"], "missing key 'until' in wait"),
    ],
)
def test_steps_that_cannot_be_done(steps: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        chain(*steps)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f:1:1: the file is empty; expected actors and steps"),
        ("actors: [", "f:1:10: not valid YAML: while parsing a flow node"),
        ("- a", "f:1:1: expected a scenario as a mapping, got a list"),
        ("actors: {}\nsteps: []", "f:1:9: expected at least a source and a sink as actors"),
        ("a: &a [*a]", "f:1:1: "),
    ],
)
def test_files_that_are_no_scenarios(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as wrong:
        parse(text, file="f")
    assert str(wrong.value).startswith(said)


def test_the_command_tells_the_mistakes_of_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yaml").write_text("actors: {}\nsteps: []", "utf-8")
    assert main([str(tmp_path / "one.yaml"), str(tmp_path / "none.yaml")]) == 2
    said = capsys.readouterr().err
    assert "one.yaml:1:9: " in said
    assert "none.yaml:1:1: cannot read the file: No such file or directory" in said


@pytest.mark.processes
def test_the_command_says_what_went_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(CHAIN.format(count=10, rate=1000, expect=11) + f"  {ALL}\n  {DONE}\n", "utf-8")
    assert main([str(file)]) == 1
    assert capsys.readouterr().err == (
        f"{file}: all has read 10 messages (10 of 10 from middle), expected 11\n"
    )
