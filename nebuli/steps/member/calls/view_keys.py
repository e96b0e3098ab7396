"""Keys of a member's views at a step, as the coordinator's process looks them up."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.dataflow.steps.contents import of_keys
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.call_messages import LookedUp, LookUp, LookUpPinned, TooMuch
from nebuli.steps.member.calls.pins import NotPinned

if TYPE_CHECKING:
    from nebuli.steps.member.member import Member

MOST_BYTES = 48 << 20
"""Bound on one answer: with those of others it goes to the client as one answer."""
_FEW = 256
"""So few keys take less time than it takes to hand them to another thread and wait for it."""


async def looked_up(member: Member, asked: LookUp | LookUpPinned) -> ask.Answer:
    """Return a member's answer. Steps continue meanwhile."""
    pins = member.pins
    if asked.view not in member.circuit.views:
        return ask.CouldNot(f"{asked.view} is not a view")
    try:
        if isinstance(asked, LookUpPinned):
            return await _found(member, asked.view, asked.keys, asked.name, asked.step)
        name = asked.name or secrets.token_hex(8)
        try:
            step = await pins.pin(name, [asked.view], asked.step, asked.within_s)
            return await _found(member, asked.view, asked.keys, name, step)
        finally:
            if not asked.name:
                pins.release(name)
    except NotPinned:
        return ask.NotPinned()


async def _found(member: Member, view: str, data: bytes, name: str, step: int) -> ask.Answer:
    runs = (await member.pins.runs(name, step))[view]
    epoch = member.pins.epoch  # of that moment
    assert runs is not None, "a view has all of its rows"
    key, schema = member.circuit.views[view], member.circuit.tables[view]
    columns = pa.schema([schema.field(column) for column in key])
    try:
        keys = pa.ipc.read_record_batch(pa.py_buffer(data), columns)
        keys.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        return ask.CouldNot(f"{len(data)} bytes are not keys of view {view}: {error}")
    if keys.num_rows <= _FEW:
        rows, counts = of_keys(runs, key, keys, schema)
    else:
        rows, counts = await asyncio.to_thread(of_keys, runs, key, keys, schema)
    found = rows.serialize()
    if found.size > MOST_BYTES:
        return TooMuch(found.size, MOST_BYTES)
    return LookedUp(epoch, step, counts.astype("<i4").tobytes(), found.to_pybytes())
