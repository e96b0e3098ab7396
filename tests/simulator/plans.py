"""What a channel is like in a run, and what outlives the processes at its ends; the same for all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa

from netchannel import BufferPolicy, FaultPolicy
from tests.support.simulated_files import SimulatedFiles

from .oracle import Questions, Stream


class Kind(StrEnum):
    """What a producer can rely on."""

    MEMORY = "memory"  # a crash of its process ends the stream
    REPLAYABLE = "replayable"  # it can start again anywhere
    DURABLE = "durable"  # a buffer on disk
    SPILLING = "spilling"
    DROPPING = "dropping"
    ARROW = "arrow"  # as replayable; batches with dictionaries that change


@dataclass
class Plan:
    """The settings of a channel."""

    channel_id: str
    kind: Kind
    explicit: bool
    messages: int
    sender_retry: float | None
    receiver_retry: float | None
    accept_new_stream: bool
    max_messages: int | None
    batch: int  # messages that the producer sends, and the consumer reads, at a time

    @property
    def replayable(self) -> bool:
        """The producer can start again anywhere."""
        return self.kind in (Kind.REPLAYABLE, Kind.ARROW)

    @property
    def codec(self) -> Literal["arrow", "bytes"]:
        """Of its messages."""
        return "arrow" if self.kind is Kind.ARROW else "bytes"

    @property
    def send_buffer(self) -> BufferPolicy:
        """The producer's; a durable one is in ``/d``."""
        match self.kind:
            case Kind.SPILLING:
                return BufferPolicy(max_bytes=4000, when_full="spill")
            case Kind.DROPPING:
                return BufferPolicy(max_messages=self.max_messages or 30, when_full="drop_oldest")
            case Kind.DURABLE:
                return BufferPolicy(max_bytes=4000, max_messages=self.max_messages, directory="/d")
        return BufferPolicy(max_messages=self.max_messages)

    @property
    def receive_buffer(self) -> BufferPolicy:
        """The consumer's."""
        return BufferPolicy(max_messages=self.max_messages, max_bytes=3000)


def encoded(plan: Plan, body: bytes) -> Any:
    """``body`` as the channel takes it: in a dictionary that holds for a few messages."""
    if plan.kind is not Kind.ARROW:
        return body
    words = pa.array([body[:4], body], pa.binary())
    return pa.record_batch({"body": pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), words)})


ANOTHER_SCHEMA = pa.schema({"number": pa.int64()})


def draw_plan(random: Random, channel_id: str, messages: int, patience_s: float) -> Plan:
    kind = random.choice(list(Kind))
    return Plan(
        channel_id,
        kind,
        explicit=kind is not Kind.DROPPING and random.random() < 0.6,
        messages=messages,
        sender_retry=random.choice([None, None, None, 0.0, patience_s]),
        receiver_retry=random.choice([None, None, None, 0.0, patience_s]),
        accept_new_stream=random.random() < 0.3,
        max_messages=random.choice([None, 5, 40]),
        batch=random.choice([1, 4, 20]),
    )


def fault_policy(retry: float | None, *, accept_new_stream: bool = False) -> FaultPolicy:
    return FaultPolicy("forever" if retry is None else retry, accept_new_stream)


@dataclass
class Shared:
    """What outlives the processes: the streams that there were, and the disk, be it simulated or not."""

    plan: Plan
    files: SimulatedFiles | None = None
    directory: Path | None = None
    streams: dict[str, Stream] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    names: Iterator[int] = field(default_factory=count)
    questions: Questions | None = None

    def new_stream(self) -> str:
        name = f"{self.plan.channel_id}.{next(self.names)}"
        self.streams[name] = Stream(name)
        return name
