"""All members of a circuit in one thread, without a network."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence

import pyarrow as pa

from nebuli.dataflow import Offload, Received, Sending, SteppedCircuit
from nebuli.dataflow.steps.origins import SourceRows

Inputs = Mapping[str, pa.RecordBatch | Sequence[pa.RecordBatch]]
Sources = Mapping[str, Mapping[str, SourceRows]]
Outputs = dict[str, pa.RecordBatch]
Work = Generator[Sending | Offload | None, Received | None, Outputs]


def run_alone(
    circuits: Sequence[SteppedCircuit],
    inputs: Sequence[Inputs],
    sources: Sequence[Sources] | None = None,
    *,
    ended: bool = False,
) -> list[Outputs]:
    """A step of all members, with the inputs and the outputs of each; all inputs have ``ended`` in it, or not."""
    return run_together(
        circuit.step(each, own, ended=ended)
        for circuit, each, own in zip(circuits, inputs, sources or [{}] * len(circuits), strict=True)
    )


def run_together(works: Iterable[Work]) -> list[Outputs]:
    """What circuits of all members work on, which exchange with one another; the outputs of each."""
    members = [_until(work) for work in works]
    outputs: list[Outputs] = []
    answers: list[Received | None] = [None] * len(members)
    while not outputs:
        asked = []
        for member, answer in zip(members, answers, strict=True):
            try:
                asked.append(member.send(answer))
            except StopIteration as stop:
                outputs.append(stop.value)
        assert len(asked) + len(outputs) == len(members)
        assert not (asked and outputs), "all members ask for the same exchanges"
        answers = list(_exchanged(asked))
    return outputs


def _until(step: Work) -> Generator[Sending, Received | None, Outputs]:
    """Only what others are asked for: members have no turns to give one another."""
    answer = None
    try:
        while True:
            asked = step.send(answer)
            answer = (yield asked) if isinstance(asked, Sending) else None
            if isinstance(asked, Offload):
                asked.do()
    except StopIteration as stop:
        outputs: Outputs = stop.value
        return outputs


def _exchanged(asked: Sequence[Sending]) -> Generator[Received]:
    """What each member receives. Nobody sends who is not a sender, or to who is not a receiver."""
    assert len({(each.index, tuple(each.senders), tuple(each.receivers)) for each in asked}) <= 1
    for member, each in enumerate(asked):
        assert len(each.parts) == len(asked)
        for to, part in enumerate(each.parts):
            assert not part.num_rows or (member in each.senders and to in each.receivers)
    for member, _ in enumerate(asked):
        yield [each.parts[member] for each in asked]
