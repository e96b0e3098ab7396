"""The service's description, OpenAPI 3.1, with the names that this circuit has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.http.openapi_parts import (
    ANY,
    BYTES,
    COLUMNS,
    NUMBER,
    call,
    document,
    given,
    object_of,
    one_of,
    path,
    query,
)
from nebuli.http.output_streams import ARROW, EVENTS, LINES
from nebuli.limits import MOST_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.circuits.circuit_calls import CircuitCalls

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_POSITION = object_of(paused={"type": "boolean"}, next_step=_WHOLE)
_STEP = object_of(step=_WHOLE)
_SCALED = object_of(members=_WHOLE, step=_WHOLE)
_RESULT = object_of(step=_WHOLE, columns=COLUMNS, rows={"type": "array", "items": {"type": "array"}})
_FORWARDED = object_of(input=_TEXT, members={"type": "array", "items": ANY})
_MEMBERS = {"type": "integer", "minimum": 1, "maximum": MOST_MEMBERS}


def described(calls: CircuitCalls, of_collections: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a circuit, with the paths of collections."""
    inputs, pushed, outputs = sorted(calls.inputs), sorted(calls.external), sorted(calls.outputs)
    members = calls.run.plan.members
    member = query(
        "member",
        {"type": "integer", "minimum": 0, "maximum": members - 1},
        "The member whose process is profiled [default: 0].",
    )
    seconds = query(
        "seconds",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 60},
        "Seconds to profile [default: 1].",
    )
    producer = query(
        "producer", {"type": "string", "minLength": 1, "maxLength": 256}, "The sender.", required=True
    )
    paths: dict[str, Any] = {
        "/start": {"post": call("Resume steps.", _POSITION)},
        "/pause": {"post": call("Pause steps; rows are still accepted.", _POSITION)},
        "/shutdown": {
            "post": call("End the circuit, with a checkpoint if all members are connected.", ANY, code="202")
        },
        "/checkpoint": {"post": call("Save the state of all members; the answer is the next step.", _STEP)},
        "/scale": {
            "post": call(
                "Change the number of members; pushes wait meanwhile. The answer is the first step of the "
                "new members.",
                _SCALED,
                [query("members", _MEMBERS, "The new number of members.", required=True)],
            )
        },
        "/query": {
            "get": _asked([query("sql", {"type": "string", "minLength": 1}, "One SELECT.", required=True)]),
            "post": {**_asked([]), "requestBody": _sql()},
        },
        "/stats": {"get": call("The state of the circuit and its members.", ANY)},
        "/metrics": {
            "get": given("The state of the circuit and its members, for Prometheus.", {"text/plain": _TEXT})
        },
        "/metadata": {"get": call("The running query: its plan, inputs, outputs and their columns.", ANY)},
        "/heap_profile": {"get": given("The memory of a member.", {"text/plain": _TEXT}, [member, seconds])},
        "/dump_profile": {
            "get": given(
                "A profile of a member, for Python's pstats.",
                {"application/octet-stream": BYTES},
                [member, seconds],
            )
        },
        "/offsets/{step}": {
            "get": call("The pushes that belong to a step.", ANY, [path("step", NUMBER)]),
        },
        "/output_endpoint/{name}": {
            "get": given(
                "The steps of an output in order: those that exist and, with follow, all later ones.",
                {LINES: _TEXT, EVENTS: _TEXT, ARROW: BYTES},
                [
                    path("name", one_of(outputs)),
                    query("from_step", NUMBER, "The first step [default: 0]."),
                    query("until_step", NUMBER, "The step after the last one."),
                    query("follow", {"type": "boolean"}, "Continue with later steps."),
                ],
            )
        },
        "/openapi.json": {"get": call("This description.", ANY)},
    }
    for verb, text in (
        ("pause", "Accept no more rows for an input."),
        ("start", "Accept rows for an input again."),
    ):
        paths[f"/{verb}_input_endpoint/{{name}}"] = {
            "post": call(f"{text} Applies to all members.", _FORWARDED, [path("name", one_of(inputs))])
        }
    if pushed:
        name = path("name", one_of(pushed))
        number = query(
            "sequence", NUMBER, "The producer's number for these rows: 0, 1, 2, ...", required=True
        )
        push = call(
            "Push rows, which take effect once; the answer is the step before which they arrived.",
            _STEP,
            [name, producer, number],
        )
        push["requestBody"] = {
            "required": True,
            "content": {LINES: {"schema": _TEXT}, ARROW: {"schema": BYTES}},
        }
        paths["/input_endpoint/{name}"] = {
            "post": push,
            "get": call(
                "The number for the next push of a producer.", object_of(sequence=_WHOLE), [name, producer]
            ),
        }
    return document(f"The circuit {calls.run.plan.name}", {**paths, **of_collections})


def _sql() -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": object_of(sql=_TEXT)}}}


def _asked(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    text = "A SELECT over outputs, and inputs that are materialized, at one step of all members."
    return given(text, {"application/json": _RESULT, ARROW: BYTES}, parameters)
