from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("inputs", "outputs")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[Rows]
    outputs: _containers.RepeatedCompositeFieldContainer[Rows]
    def __init__(self, inputs: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("name", "schema", "external")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema: bytes
    external: bool
    def __init__(self, name: _Optional[str] = ..., schema: _Optional[bytes] = ..., external: bool = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("handle", "producer", "sequence", "rows")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    handle: str
    producer: str
    sequence: int
    rows: bytes
    def __init__(self, handle: _Optional[str] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("handle", "producer", "sequence", "rows")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    handle: str
    producer: str
    sequence: int
    rows: bytes
    def __init__(self, handle: _Optional[str] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class StageReply(_message.Message):
    __slots__ = ("piece",)
    PIECE_FIELD_NUMBER: _ClassVar[int]
    piece: str
    def __init__(self, piece: _Optional[str] = ...) -> None: ...

class PushStagedRequest(_message.Message):
    __slots__ = ("handle", "producer", "sequence", "pieces")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    handle: str
    producer: str
    sequence: int
    pieces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handle: _Optional[str] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., pieces: _Optional[_Iterable[str]] = ...) -> None: ...

class DropStagedRequest(_message.Message):
    __slots__ = ("handle", "producer", "pieces")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    handle: str
    producer: str
    pieces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handle: _Optional[str] = ..., producer: _Optional[str] = ..., pieces: _Optional[_Iterable[str]] = ...) -> None: ...

class DropStagedReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NextSequenceRequest(_message.Message):
    __slots__ = ("handle", "producer")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    handle: str
    producer: str
    def __init__(self, handle: _Optional[str] = ..., producer: _Optional[str] = ...) -> None: ...

class NextSequenceReply(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class OutputRequest(_message.Message):
    __slots__ = ("name", "from_step")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    from_step: int
    def __init__(self, name: _Optional[str] = ..., from_step: _Optional[int] = ...) -> None: ...

class OutputPart(_message.Message):
    __slots__ = ("step", "rows", "last")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    step: int
    rows: bytes
    last: bool
    def __init__(self, step: _Optional[int] = ..., rows: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class OffsetsReply(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("handle", "member", "first", "until")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    handle: str
    member: int
    first: int
    until: int
    def __init__(self, handle: _Optional[str] = ..., member: _Optional[int] = ..., first: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: int
    def __init__(self, members: _Optional[int] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ShutDownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutDownReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("sql",)
    SQL_FIELD_NUMBER: _ClassVar[int]
    sql: str
    def __init__(self, sql: _Optional[str] = ...) -> None: ...

class QueryReply(_message.Message):
    __slots__ = ("step", "rows")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    step: int
    rows: bytes
    def __init__(self, step: _Optional[int] = ..., rows: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("phase", "epoch", "next_step", "paused", "checkpoints", "members", "complete", "catching_up")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CATCHING_UP_FIELD_NUMBER: _ClassVar[int]
    phase: str
    epoch: int
    next_step: int
    paused: bool
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    complete: int
    catching_up: bool
    def __init__(self, phase: _Optional[str] = ..., epoch: _Optional[int] = ..., next_step: _Optional[int] = ..., paused: bool = ..., checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., complete: _Optional[int] = ..., catching_up: bool = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("version", "step")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    version: int
    step: int
    def __init__(self, version: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("number", "pid")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    number: int
    pid: int
    def __init__(self, number: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message", "expected")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Refusal.Reason]
        REASON_UNKNOWN_INPUT: _ClassVar[Refusal.Reason]
        REASON_UNKNOWN_OUTPUT: _ClassVar[Refusal.Reason]
        REASON_WRONG_ROWS: _ClassVar[Refusal.Reason]
        REASON_SEQUENCE_GAP: _ClassVar[Refusal.Reason]
        REASON_SEQUENCE_REUSED: _ClassVar[Refusal.Reason]
        REASON_INPUT_FULL: _ClassVar[Refusal.Reason]
        REASON_STEP_FORGOTTEN: _ClassVar[Refusal.Reason]
        REASON_STEP_NOT_THERE: _ClassVar[Refusal.Reason]
        REASON_NO_CHECKPOINT: _ClassVar[Refusal.Reason]
        REASON_FAILED: _ClassVar[Refusal.Reason]
        REASON_NOT_SCALED: _ClassVar[Refusal.Reason]
        REASON_WRONG_QUERY: _ClassVar[Refusal.Reason]
        REASON_CONTENTS_UNKNOWN: _ClassVar[Refusal.Reason]
        REASON_QUERY_TOO_LARGE: _ClassVar[Refusal.Reason]
        REASON_QUERY_TIMED_OUT: _ClassVar[Refusal.Reason]
        REASON_SEQUENCE_PASSED: _ClassVar[Refusal.Reason]
        REASON_STAGED_LOST: _ClassVar[Refusal.Reason]
        REASON_SHUT_DOWN: _ClassVar[Refusal.Reason]
    REASON_UNSPECIFIED: Refusal.Reason
    REASON_UNKNOWN_INPUT: Refusal.Reason
    REASON_UNKNOWN_OUTPUT: Refusal.Reason
    REASON_WRONG_ROWS: Refusal.Reason
    REASON_SEQUENCE_GAP: Refusal.Reason
    REASON_SEQUENCE_REUSED: Refusal.Reason
    REASON_INPUT_FULL: Refusal.Reason
    REASON_STEP_FORGOTTEN: Refusal.Reason
    REASON_STEP_NOT_THERE: Refusal.Reason
    REASON_NO_CHECKPOINT: Refusal.Reason
    REASON_FAILED: Refusal.Reason
    REASON_NOT_SCALED: Refusal.Reason
    REASON_WRONG_QUERY: Refusal.Reason
    REASON_CONTENTS_UNKNOWN: Refusal.Reason
    REASON_QUERY_TOO_LARGE: Refusal.Reason
    REASON_QUERY_TIMED_OUT: Refusal.Reason
    REASON_SEQUENCE_PASSED: Refusal.Reason
    REASON_STAGED_LOST: Refusal.Reason
    REASON_SHUT_DOWN: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    message: str
    expected: int
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., message: _Optional[str] = ..., expected: _Optional[int] = ...) -> None: ...
