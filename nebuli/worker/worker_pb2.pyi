from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_REGISTERED: _ClassVar[State]
    STATE_RUNNING: _ClassVar[State]
    STATE_FINISHED: _ClassVar[State]
    STATE_FAILED: _ClassVar[State]
    STATE_STOPPED: _ClassVar[State]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_NONE: _ClassVar[Cause]
    CAUSE_ITSELF: _ClassVar[Cause]
    CAUSE_INPUT: _ClassVar[Cause]
    CAUSE_UPSTREAM: _ClassVar[Cause]
    CAUSE_DOWNSTREAM: _ClassVar[Cause]
    CAUSE_REQUEST: _ClassVar[Cause]
STATE_UNSPECIFIED: State
STATE_REGISTERED: State
STATE_RUNNING: State
STATE_FINISHED: State
STATE_FAILED: State
STATE_STOPPED: State
CAUSE_NONE: Cause
CAUSE_ITSELF: Cause
CAUSE_INPUT: Cause
CAUSE_UPSTREAM: Cause
CAUSE_DOWNSTREAM: Cause
CAUSE_REQUEST: Cause

class RegisterRequest(_message.Message):
    __slots__ = ("fragment",)
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    fragment: str
    def __init__(self, fragment: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class UnregisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("fragments",)
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    fragments: _containers.RepeatedCompositeFieldContainer[FragmentStatus]
    def __init__(self, fragments: _Optional[_Iterable[_Union[FragmentStatus, _Mapping]]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("id", "follow")
    ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    id: str
    follow: bool
    def __init__(self, id: _Optional[str] = ..., follow: bool = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("time", "level", "id", "text")
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time: int
    level: str
    id: str
    text: str
    def __init__(self, time: _Optional[int] = ..., level: _Optional[str] = ..., id: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class FragmentStatus(_message.Message):
    __slots__ = ("id", "fragment", "state", "cause", "error", "rows_in", "rows_out", "bytes_in", "bytes_out", "late_rows", "state_bytes", "watermark")
    ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    ROWS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    LATE_ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    id: str
    fragment: str
    state: State
    cause: Cause
    error: str
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    late_rows: int
    state_bytes: int
    watermark: int
    def __init__(self, id: _Optional[str] = ..., fragment: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., cause: _Optional[_Union[Cause, str]] = ..., error: _Optional[str] = ..., rows_in: _Optional[int] = ..., rows_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., late_rows: _Optional[int] = ..., state_bytes: _Optional[int] = ..., watermark: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "id", "message")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Refusal.Reason]
        REASON_BAD_FRAGMENT: _ClassVar[Refusal.Reason]
        REASON_UNKNOWN_ID: _ClassVar[Refusal.Reason]
        REASON_ALREADY_STARTED: _ClassVar[Refusal.Reason]
        REASON_STILL_RUNNING: _ClassVar[Refusal.Reason]
        REASON_CHANNEL_IN_USE: _ClassVar[Refusal.Reason]
    REASON_UNSPECIFIED: Refusal.Reason
    REASON_BAD_FRAGMENT: Refusal.Reason
    REASON_UNKNOWN_ID: Refusal.Reason
    REASON_ALREADY_STARTED: Refusal.Reason
    REASON_STILL_RUNNING: Refusal.Reason
    REASON_CHANNEL_IN_USE: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    id: str
    message: str
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., id: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
