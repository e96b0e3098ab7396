"""What vouches for frames on disk."""

from __future__ import annotations

import pytest

from netchannel.errors import LogDamaged
from netchannel.storage import NewRecord, SegmentLog
from netchannel.storage.layout import are_frames, sum_of_headers
from netchannel.wire.frames import Kind, alone, cut, from_number, largest_message, pack
from tests.support.simulated_files import SimulatedFiles
from tests.support.storage_model import FOLDER, damage_of, frame, opened


def test_each_changed_byte_of_each_frame_is_found() -> None:
    frames = [each for body in (b"one message", b"", b"another") for each in alone(body, b"", 1, 2)]
    whole, headers_sum = b"".join(frames), sum_of_headers(frames)
    assert are_frames(memoryview(whole), headers_sum)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        assert not are_frames(memoryview(changed), headers_sum)
    for size in range(len(whole)):
        assert not are_frames(memoryview(whole)[:size], headers_sum)


def test_frames_that_are_whole_and_others_than_were_written_are_found() -> None:
    ours, theirs = (b"".join(alone(body, b"", 1, 2)) for body in (b"ours..", b"theirs"))
    assert len(ours) == len(theirs)
    assert not are_frames(memoryview(theirs), sum_of_headers([ours]))


def test_a_frame_that_ends_elsewhere_than_its_header_says_is_not_written() -> None:
    with pytest.raises(ValueError, match="by 3 bytes"):
        sum_of_headers([frame(bytes(10))[:-3]])


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_payload_that_was_never_written_over_an_older_one_is_no_message(is_durable: bool) -> None:
    """Of an entry that was cut off and written anew, a crash may leave the new header and the old frame."""
    files = SimulatedFiles()
    log = opened(files)
    put = frame(b"new")
    log.append([NewRecord(0, 1, [put], size=3)])
    if is_durable:
        log.sync()
    files.kill()
    path = FOLDER / f"{0:020}.segment"
    at = files.bytes_of(path).index(put)
    for offset, (new, old) in enumerate(zip(put, frame(b"old"), strict=True)):
        files.flip(path, at + offset, new ^ old)
    found = damage_of(files)
    if is_durable:
        assert isinstance(found, LogDamaged)
    else:
        assert found == ([], None)


def test_many_records_are_one_write() -> None:
    files = SimulatedFiles()
    log = SegmentLog.open(FOLDER, "c", create_stream=lambda: "s", files=files)
    before = files.operations
    assert log.append([NewRecord(number, number + 1, [frame(bytes(100))]) for number in range(500)]) == 500
    assert files.operations - before < 10  # a write may be short now and then
    assert log.head == 500


def test_frames_that_the_receiver_has_are_left_out() -> None:
    frames = [pack([b"x" * size] * 3, {}, first, 0)[0] for size, first in ((1, 7), (30, 10), (4, 13))]
    whole = memoryview(b"".join(frames))
    assert largest_message(whole) == 30
    for number, first, begins in ((7, 7, 0), (9, 7, 0), (10, 10, 1), (12, 10, 1), (13, 13, 2), (15, 13, 2)):
        assert from_number(whole, 7, number) == (first, b"".join(frames[begins:]))
    with pytest.raises(ValueError, match="16 is after"):
        from_number(whole, 7, 16)
    parts = memoryview(b"".join(b"".join(each) for each in cut(Kind.PART, bytes(3_000_000), b"", 5, 0)))
    assert from_number(parts, 5, 5) == (5, parts)
    assert largest_message(parts) == 3_000_000
