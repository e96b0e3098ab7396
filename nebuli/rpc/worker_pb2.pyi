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
    CAUSE_LOST: _ClassVar[Cause]
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
CAUSE_LOST: Cause

class RegisterRequest(_message.Message):
    __slots__ = ("fragment", "id")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    fragment: str
    id: str
    def __init__(self, fragment: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("id", "closes", "left_out")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    closes: bool
    left_out: str
    def __init__(self, id: _Optional[str] = ..., closes: bool = ..., left_out: _Optional[str] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("id", "at_once")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    at_once: bool
    def __init__(self, id: _Optional[str] = ..., at_once: bool = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("id", "succession")
    ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    succession: str
    def __init__(self, id: _Optional[str] = ..., succession: _Optional[str] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("id", "addition", "index")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDITION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    id: str
    addition: str
    index: int
    def __init__(self, id: _Optional[str] = ..., addition: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class AddReply(_message.Message):
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

class ChannelsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ChannelsReply(_message.Message):
    __slots__ = ("at", "channels")
    AT_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    at: int
    channels: _containers.RepeatedCompositeFieldContainer[Channel]
    def __init__(self, at: _Optional[int] = ..., channels: _Optional[_Iterable[_Union[Channel, _Mapping]]] = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("id", "side", "to", "state", "sent", "received", "acknowledged", "bytes", "buffered_messages", "buffered_bytes", "disk_bytes", "in_flight", "reconnects", "dropped", "starved", "shared_bytes", "upqueries", "upqueries_dropped")
    class Side(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SIDE_UNSPECIFIED: _ClassVar[Channel.Side]
        SIDE_SENDER: _ClassVar[Channel.Side]
        SIDE_RECEIVER: _ClassVar[Channel.Side]
    SIDE_UNSPECIFIED: Channel.Side
    SIDE_SENDER: Channel.Side
    SIDE_RECEIVER: Channel.Side
    ID_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RECONNECTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    STARVED_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPQUERIES_FIELD_NUMBER: _ClassVar[int]
    UPQUERIES_DROPPED_FIELD_NUMBER: _ClassVar[int]
    id: str
    side: Channel.Side
    to: str
    state: str
    sent: int
    received: int
    acknowledged: int
    bytes: int
    buffered_messages: int
    buffered_bytes: int
    disk_bytes: int
    in_flight: int
    reconnects: int
    dropped: int
    starved: bool
    shared_bytes: int
    upqueries: int
    upqueries_dropped: int
    def __init__(self, id: _Optional[str] = ..., side: _Optional[_Union[Channel.Side, str]] = ..., to: _Optional[str] = ..., state: _Optional[str] = ..., sent: _Optional[int] = ..., received: _Optional[int] = ..., acknowledged: _Optional[int] = ..., bytes: _Optional[int] = ..., buffered_messages: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., in_flight: _Optional[int] = ..., reconnects: _Optional[int] = ..., dropped: _Optional[int] = ..., starved: bool = ..., shared_bytes: _Optional[int] = ..., upqueries: _Optional[int] = ..., upqueries_dropped: _Optional[int] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InspectReply(_message.Message):
    __slots__ = ("address", "version", "python", "time", "files", "files_limit", "congestion_control", "congestion_controls", "tls", "secret", "certificate_ends", "authority_ends", "tls_error", "certificate", "authority")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_CONTROL_FIELD_NUMBER: _ClassVar[int]
    CONGESTION_CONTROLS_FIELD_NUMBER: _ClassVar[int]
    TLS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_ENDS_FIELD_NUMBER: _ClassVar[int]
    TLS_ERROR_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    address: str
    version: str
    python: str
    time: int
    files: int
    files_limit: int
    congestion_control: str
    congestion_controls: _containers.RepeatedScalarFieldContainer[str]
    tls: bool
    secret: bool
    certificate_ends: int
    authority_ends: int
    tls_error: str
    certificate: str
    authority: str
    def __init__(self, address: _Optional[str] = ..., version: _Optional[str] = ..., python: _Optional[str] = ..., time: _Optional[int] = ..., files: _Optional[int] = ..., files_limit: _Optional[int] = ..., congestion_control: _Optional[str] = ..., congestion_controls: _Optional[_Iterable[str]] = ..., tls: bool = ..., secret: bool = ..., certificate_ends: _Optional[int] = ..., authority_ends: _Optional[int] = ..., tls_error: _Optional[str] = ..., certificate: _Optional[str] = ..., authority: _Optional[str] = ...) -> None: ...

class ExpectRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ExpectReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("channel", "to", "send_ms")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SEND_MS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    to: str
    send_ms: int
    def __init__(self, channel: _Optional[str] = ..., to: _Optional[str] = ..., send_ms: _Optional[int] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("error", "reached", "opened_us", "round_trip_min_us", "round_trip_us", "throughput")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    OPENED_US_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MIN_US_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    error: str
    reached: bool
    opened_us: int
    round_trip_min_us: int
    round_trip_us: int
    throughput: int
    def __init__(self, error: _Optional[str] = ..., reached: bool = ..., opened_us: _Optional[int] = ..., round_trip_min_us: _Optional[int] = ..., round_trip_us: _Optional[int] = ..., throughput: _Optional[int] = ...) -> None: ...

class FragmentStatus(_message.Message):
    __slots__ = ("id", "fragment", "state", "cause", "error", "rows_in", "rows_out", "bytes_in", "bytes_out", "pid", "late", "state_bytes", "watermark", "phase", "checkpoint", "circuit", "views", "without_time")
    class LateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WithoutTimeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    ROWS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    fragment: str
    state: State
    cause: Cause
    error: str
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    pid: int
    late: _containers.ScalarMap[str, int]
    state_bytes: int
    watermark: int
    phase: str
    checkpoint: int
    circuit: str
    views: _containers.RepeatedCompositeFieldContainer[ViewStatus]
    without_time: _containers.ScalarMap[str, int]
    def __init__(self, id: _Optional[str] = ..., fragment: _Optional[str] = ..., state: _Optional[_Union[State, str]] = ..., cause: _Optional[_Union[Cause, str]] = ..., error: _Optional[str] = ..., rows_in: _Optional[int] = ..., rows_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., pid: _Optional[int] = ..., late: _Optional[_Mapping[str, int]] = ..., state_bytes: _Optional[int] = ..., watermark: _Optional[int] = ..., phase: _Optional[str] = ..., checkpoint: _Optional[int] = ..., circuit: _Optional[str] = ..., views: _Optional[_Iterable[_Union[ViewStatus, _Mapping]]] = ..., without_time: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ViewStatus(_message.Message):
    __slots__ = ("name", "key", "partial", "keys", "bytes", "lookups", "hits", "upqueries", "evictions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    UPQUERIES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: _containers.RepeatedScalarFieldContainer[str]
    partial: bool
    keys: int
    bytes: int
    lookups: int
    hits: int
    upqueries: int
    evictions: int
    def __init__(self, name: _Optional[str] = ..., key: _Optional[_Iterable[str]] = ..., partial: bool = ..., keys: _Optional[int] = ..., bytes: _Optional[int] = ..., lookups: _Optional[int] = ..., hits: _Optional[int] = ..., upqueries: _Optional[int] = ..., evictions: _Optional[int] = ...) -> None: ...

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
        REASON_STATE_UNUSABLE: _ClassVar[Refusal.Reason]
        REASON_ID_IN_USE: _ClassVar[Refusal.Reason]
        REASON_SINK_IN_USE: _ClassVar[Refusal.Reason]
        REASON_NO_CHECKPOINT: _ClassVar[Refusal.Reason]
        REASON_NOT_SCALED: _ClassVar[Refusal.Reason]
        REASON_NOT_ADDED: _ClassVar[Refusal.Reason]
    REASON_UNSPECIFIED: Refusal.Reason
    REASON_BAD_FRAGMENT: Refusal.Reason
    REASON_UNKNOWN_ID: Refusal.Reason
    REASON_ALREADY_STARTED: Refusal.Reason
    REASON_STILL_RUNNING: Refusal.Reason
    REASON_CHANNEL_IN_USE: Refusal.Reason
    REASON_STATE_UNUSABLE: Refusal.Reason
    REASON_ID_IN_USE: Refusal.Reason
    REASON_SINK_IN_USE: Refusal.Reason
    REASON_NO_CHECKPOINT: Refusal.Reason
    REASON_NOT_SCALED: Refusal.Reason
    REASON_NOT_ADDED: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    id: str
    message: str
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., id: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
