"""How channels behave when their buffer is full or their other side is away: by query, by node, or for all.

The settings are those of `netchannel.BufferPolicy` and `netchannel.FaultPolicy`, as far as a query may choose them.
They are written as they were given: what was left away stays so, and is the worker's to choose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_serializer, model_validator

from topology.base import FilePath, Model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import SerializerFunctionWrapHandler

_AtLeastOne = Annotated[int, Field(strict=True, ge=1)]


class _AsGiven(Model):
    """Written with the keys that were given, and no others."""

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        given = {
            field.alias or name for name, field in type(self).model_fields.items()
        } & self.model_fields_set
        return {key: value for key, value in handler(self).items() if key in given}


class BufferSettings(_AsGiven):
    """How much a fragment is ahead of the one that reads it. ``null`` is unbounded.

    ``directory`` starts at the working directory of the sending node's worker.
    """

    max_bytes: _AtLeastOne | None = None
    max_messages: _AtLeastOne | None = None
    when_full: Literal["block", "fail", "drop_oldest", "spill"] = "block"
    directory: FilePath | None = None
    max_disk_bytes: _AtLeastOne | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> BufferSettings:
        if self.directory is not None and self.when_full in ("drop_oldest", "spill"):
            raise ValueError(
                f"when_full '{self.when_full}' cannot be combined with directory {self.directory}, which keeps "
                f"all messages on disk: use when_full 'block' or 'fail', or omit directory"
            )
        if self.max_disk_bytes is not None and self.directory is None and self.when_full != "spill":
            raise ValueError(
                f"max_disk_bytes {self.max_disk_bytes} limits the size of files, but this buffer has no files: "
                f"give a directory, or when_full 'spill'"
            )
        return self


def _check_retry(value: Any) -> Any:
    if value == "forever":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return value
    shown = repr(value) if isinstance(value, str | int | float) else "another type of value"
    raise ValueError(f"retry must be 'forever' or a number of seconds (0 or more), got {shown}")


_Seconds = Annotated[float, Field(ge=0)]
Retry = Annotated[
    int | float | str, PlainValidator(_check_retry, json_schema_input_type=Literal["forever"] | _Seconds)
]


class FaultSettings(_AsGiven):
    """How long a channel whose other side is absent is retried, and if its fragment then fails or keeps waiting."""

    retry: Retry = "forever"
    on_failure: Literal["fail", "wait"] = "fail"

    @model_validator(mode="after")
    def _goes_together(self) -> FaultSettings:
        if self.on_failure == "wait" and self.retry in ("forever", 0):
            raise ValueError(
                f"on_failure 'wait' cannot be combined with retry {self.retry}: with 'wait', retry is the time "
                f"until a warning reports that the channel still waits; expected more than 0 seconds as retry, or "
                f"no on_failure"
            )
        return self


class ChannelPolicies(_AsGiven):
    """The policies of channels that leave a node and that reach it; each policy is taken as a whole."""

    buffer: BufferSettings | None = None
    fault: FaultSettings | None = None


def first_of(levels: Iterable[ChannelPolicies]) -> ChannelPolicies:
    """The policies of the first level that has them: ``buffer`` of one, ``fault`` maybe of another."""
    found: dict[str, Any] = {}
    for level in levels:
        for name in ("buffer", "fault"):
            policy = getattr(level, name)
            if policy is not None:
                found.setdefault(name, policy)
    return ChannelPolicies(**found)
