"""The policies of a fragment's channels: what operators carry, over the worker's own."""

from __future__ import annotations

from nebuli.connectors.policies import received, sent, tried
from netchannel import BufferPolicy, FaultPolicy
from topology import BufferSettings, FaultSettings

_MIB = 1 << 20


def test_without_settings_each_end_keeps_8_mib_and_tries_for_ever() -> None:
    assert sent(None) == received(None) == BufferPolicy(max_bytes=8 * _MIB)
    assert tried(None) == FaultPolicy(retry="forever")


def test_a_sender_has_all_settings_and_a_receiver_its_bounds() -> None:
    settings = BufferSettings(max_bytes=_MIB, max_messages=3, when_full="spill", max_disk_bytes=7 * _MIB)
    assert sent(settings) == BufferPolicy(
        max_bytes=_MIB, max_messages=3, when_full="spill", max_disk_bytes=7 * _MIB
    )
    assert received(settings) == BufferPolicy(max_bytes=_MIB, max_messages=3)


def test_what_is_not_given_is_the_workers_own_and_null_is_unbounded() -> None:
    assert sent(BufferSettings(max_messages=3)) == BufferPolicy(max_bytes=8 * _MIB, max_messages=3)
    assert received(BufferSettings(when_full="fail")) == BufferPolicy(max_bytes=8 * _MIB)
    assert sent(BufferSettings(max_bytes=None)).max_bytes is None
    again = BufferSettings.model_validate_json(BufferSettings(max_messages=3).model_dump_json())
    assert sent(again) == sent(BufferSettings(max_messages=3))


def test_retrying_ends_when_the_settings_say_so() -> None:
    assert tried(FaultSettings(retry=2.5)) == FaultPolicy(retry=2.5)
    waits = FaultSettings(retry=60, on_failure="wait")
    assert tried(waits) == FaultPolicy(retry=60, on_failure="wait")
    assert tried(FaultSettings()) == FaultPolicy(retry="forever")
