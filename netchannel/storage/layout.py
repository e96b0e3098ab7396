"""The format on disk, version 1. Numbers are little-endian; a CRC is zlib's CRC-32 with the seed that is named.

A channel's folder, named after its id (`folder_name`), holds::

    lock                           flock'ed by the process that has the log open, its process id as text, and
    a note manifest                       what never changes; written under another name, synced, renamed
    marks                          what changes often and may be stale: written in place, rarely synced
    00000000000000000000.segment   records from number 0 on, and so on: the name is the first number
    manifest.new, discarded        left by a crash while a log was made or thrown away

**manifest**: a line of JSON, ``{"format": 1, "channel": id, "stream": identity, "codec": name}``, and a line
with the CRC (seed 0) of the first line with its newline, as 8 hexadecimal digits.

**marks**: two slots, at bytes 0 and 4096, written in turn; the whole one with the higher counter holds::

    counter u64 | acknowledged u64 | base u64 | offset u64 | CRC u32

The CRC's seed is the CRC of the stream identity. Everything below ``acknowledged`` is forgotten. The segment
whose first number is ``base`` is durable up to ``offset``, and all segments before it are durable. A mark is
written after its contents are true, so an old one promises too little, never too much. An ``offset`` of 0
with a ``base`` announces, before the last segment is deleted, that the next one begins there: so a disk that
one acknowledged segment fills is of use again; likewise where a stream begins at another number than 0.

A mark is *settled* by a sync of its own, and the next ones are written to the other slot, unsynced, until
another is: once when a segment has become durable for the first time, before that is reported, and once
before segments are deleted. So trimmed messages are distinguished from lost ones, whenever a crash comes, at
the cost of a sync or two for each segment and none for an acknowledgement: a first segment that begins beyond
``acknowledged``, and a last one that begins below ``base``, mean that messages are lost. Once settled, a mark
is written to the other slot too, so that one bad byte costs nothing; where neither is whole, a log that does
not begin at number 0 is not opened.

The lock's note, of 15 bytes after the process id, is ``holds messages`` and a newline from when there is a
manifest to just before the log is thrown away: a folder with such a lock and nothing else was emptied, and is
not a new one.

**A segment** is a header of 40 bytes and entries, each at a multiple of 8::

    magic "NCSEGMT1" | base u64 | stream 16 bytes (BLAKE2b of the stream identity) | zero u32 | CRC u32, seed
    0

This CRC is the segment's salt. An entry is a header of 88 bytes, a payload and zeros up to the next
multiple of 8::

    magic u32 = 0x7A3C9E15 | kind u8 | flags u8 | zero u16 | length u64 | first u64 | end u64 | timestamp i64
    size u64 | rows u64 | schema u64 | context u64 | durable u64 | payload sum u32 | header CRC u32

The header's CRC is that of the 84 bytes before it; its seed is the CRC of the entry's offset as u64, seeded
with the salt: an entry is valid in one place only, and a segment inside a payload is never taken for entries.
The payload's sum is the lower half of XXH3-64 over it and the zeros, unless the kind defines another one.
Kinds:

* 1, RECORD: messages ``first`` to ``end`` (excluded). ``flags``, ``timestamp``, ``size`` and ``rows`` are the
  caller's. ``schema`` and ``context`` are offsets of BLOB entries of the same segment, 0 for none.
* 5, FRAMES: likewise, and the payload is frames of the wire (docs/protocol/wire.md), one after the other,
  each with its checksum. The sum is that of their headers of 40 bytes, one after the other: a payload is
  whole if it has that sum, if each frame has the checksum in its header, if they end where the payload does,
  and if what follows is zeros.
* 2, BLOB: 16 bytes, the content's name (its BLAKE2b), and the content. It precedes its first use in the
  segment, so that every segment can be read alone.
* 3, END, and 4, FAIL: the stream is over after ``first`` (= ``end``) messages; the payload is the producer's
  message.

The records of a segment follow each other without gaps, from its base to the base of the next; a segment is
synced before the next is made. ``durable`` is how far this segment was known to be durable when the entry was
written (0 until its name was). So damage is distinguished from a torn tail without guessing: bytes that a
mark or a later entry's ``durable`` covers were on the disk once, and a flaw in them is an error; anything
after may be torn, by a crash that kept any part of what was not synced in any order, and is cut off at the
first entry that is not valid. Valid entries there are written again, in place, and synced before it counts:
after a sync that failed it can be read from the kernel's cache, and may not be on the disk. That relies on
disks to leave a sector old or new, which here is the same.

**A staged channel**'s folder (`groups`) has a lock, a manifest, whose codec begins with ``staged``, marks,
and::

    journal                        the committed groups; rewritten under another name, synced, renamed
    <name>.attempt                 a sealed attempt
    <name>.unsealed                an attempt that is being written; removed when the folder is opened
    <number>.spare                 a file to be written again; removed when the folder is opened
    journal.new                    left by a crash while the journal was rewritten

An attempt's file is a segment with base 0, in numbers of its own. The stream's identity there is the JSON
list of application, epoch, partition and attempt; 32 hexadecimal digits of its BLAKE2b are the file's name.
``flags`` of a RECORD say how its messages are packed (`netchannel.storage.groups.staged_records`). The last
entry is an END: its payload is the same list followed by the checksum, ``size`` the bytes of all messages,
``schema`` the BLOB with the schema. The file is synced before it gets the name of a sealed one: so nothing of
what is found under that name can be torn. An attempt that continues in a spare file has been copied to its
beginning, and is cut after its last entry before it is synced.

The journal is a header as that of a segment, with a generation in the place of the base, one more each time
that it is rewritten, and entries, each with JSON as its payload and synced before it is reported:

* 16, STATE, the first: ``stream``, ``epochs`` (the last committed one of each application), ``head`` (the
  number of the next message), ``acknowledged``, ``ended``, ``schema`` (base64) and ``parts``: for each
  attempt that holds anything that is not acknowledged, in order, its first number in the channel,
  application, epoch, partition, attempt, count, size and checksum.
* 17, COMMIT: ``application``, ``epoch``, ``end`` and ``attempts``, in order: partition, attempt, count, size
  and checksum; ``schema`` with the first one that has any. The messages have the numbers that follow.

In marks, ``base`` is the journal's generation, which ``offset`` and ``acknowledged`` belong to. A mark is
synced before files are deleted of which all is acknowledged, so that one that is missing otherwise is damage.
An invalid part of the journal after its STATE, a mark and the ``durable`` of its entries is cut off, as that
of a segment is.
"""

from __future__ import annotations

import struct
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.wire.frames import HEADER, HEADER_SIZE, SUMMED_FROM

from .files import nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .files import Buffer

FORMAT = 1
RECORD, BLOB, END, FAIL, FRAMES = 1, 2, 3, 4, 5
MESSAGES = frozenset((RECORD, FRAMES))
"""Kinds of entries that hold messages."""
NAME_BYTES = 16

SEGMENT_HEADER = 40
ENTRY_HEADER = 88
ENTRY_MAGIC = struct.pack("<I", 0x7A3C9E15)
SUFFIX = ".segment"
JOURNAL = "journal"
SEALED, UNSEALED, SPARE = ".attempt", ".unsealed", ".spare"
"""Suffixes of the files of attempts: the name changes once the contents are on the disk, and when they are no
longer needed."""

_SEGMENT = struct.Struct("<8sQ16sII")
_SEGMENT_MAGIC = b"NCSEGMT1"
_ENTRY = struct.Struct("<4sBB2xQQQqQQQQQII")
_CRC = struct.Struct("<I")
_FRAME_LENGTH = 5
"""The place of the length of its payload among the fields of a frame's header."""
_OFFSET = struct.Struct("<Q")
_PAD = bytes(8)
_LONGEST_NAME = 200


class Entry(NamedTuple):
    """An entry's header."""

    kind: int
    flags: int
    length: int
    first: int
    end: int
    timestamp: int
    size: int
    rows: int
    schema: int
    context: int
    durable: int
    payload_sum: int


def folder_name(channel_id: str) -> str:
    """The name of a channel's folder: its id, percent-escaped; a long one is cut and distinguished by its BLAKE2b.

    A cut name contains a tilde, and nothing else does. The manifest holds the whole id.
    """
    name = quote(channel_id, safe="").replace("~", "%7E")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        return f"{name[:_LONGEST_NAME]}~{content_name(channel_id.encode()).hex()}"
    return name


def segment_name(base: int) -> str:
    """The name of the segment that starts at number ``base``."""
    return f"{base:020}{SUFFIX}"


def content_name(content: bytes) -> bytes:
    """Return the name of ``content``."""
    return blake2b(content, digest_size=NAME_BYTES).digest()


def pack_segment_header(base: int, stream: bytes) -> bytes:
    """The first bytes of a segment; ``stream`` is the `content_name` of the stream's identity."""
    head = _SEGMENT.pack(_SEGMENT_MAGIC, base, stream, 0, 0)[:-4]
    return head + _CRC.pack(zlib.crc32(head))


def is_segment_header(data: bytes) -> bool:
    """True if these are the first bytes of a segment, of any stream and numbers."""
    if len(data) != SEGMENT_HEADER:
        return False
    _, base, stream, _, _ = _SEGMENT.unpack(data)
    return data == pack_segment_header(base, stream)


def salt_of(header: bytes) -> int:
    """Return the initial value of the CRC of every entry of the segment with this header."""
    return int.from_bytes(header[-4:], "little")


def padding(length: int) -> int:
    """The number of zeros after ``length`` bytes."""
    return -length & 7


def entry_bytes(length: int) -> int:
    """The size of an entry with a payload of ``length`` bytes."""
    return ENTRY_HEADER + length + padding(length)


def _seed(offset: int, salt: int) -> int:
    return zlib.crc32(_OFFSET.pack(offset), salt)


def pack_entry(entry: Entry, payload: Sequence[Buffer], offset: int, salt: int) -> list[Buffer]:
    """The buffers of an entry to be written at ``offset``; ``payload_sum`` is filled in here, if it is 0."""
    pad = _PAD[: padding(entry.length)]
    payload_sum = entry.payload_sum
    if entry.kind == FRAMES:
        payload_sum = sum_of_headers(payload)
    elif not payload_sum:
        digest = xxh3_64()
        for buffer in (*payload, pad):
            digest.update(buffer)
        payload_sum = digest.intdigest() & 0xFFFFFFFF
    head = _ENTRY.pack(ENTRY_MAGIC, *entry[:11], payload_sum, 0)[:-4]
    return [head + _CRC.pack(zlib.crc32(head, _seed(offset, salt))), *payload, pad]


def is_payload(data: Buffer, entry: Entry) -> bool:
    """True if ``data`` is the payload of ``entry``, with its padding zeros."""
    length, pad = entry.length, padding(entry.length)
    if nbytes(data) != length + pad:
        return False
    if entry.kind != FRAMES:
        return xxh3_64_intdigest(data) & 0xFFFFFFFF == entry.payload_sum
    view = memoryview(data)
    return view[length:] == _PAD[:pad] and are_frames(view[:length], entry.payload_sum)


def unpack_entry(head: Buffer, offset: int, salt: int) -> Entry | None:
    """The header that stands at ``offset`` of its segment, in the first bytes of ``head``; None if it is not one."""
    if len(head) < ENTRY_HEADER or head[:4] != ENTRY_MAGIC:
        return None
    fields = _ENTRY.unpack_from(head)
    if zlib.crc32(head[: ENTRY_HEADER - 4], zlib.crc32(_OFFSET.pack(offset), salt)) != fields[-1]:
        return None
    return Entry._make(fields[1:-1])


def sum_of_headers(frames: Sequence[Buffer]) -> int:
    """The sum of ``frames``, of which each begins with a buffer that its header is in.

    A frame's checksum is made once, when the frame is, and covers all its bytes. So the headers, which hold the
    checksums, vouch for the frames: each byte is summed once on its way to the disk, and once on its way back.
    """
    headers: list[Buffer] = []
    left = 0
    for buffer in frames:
        if not left and nbytes(buffer):
            headers.append(buffer[:HEADER_SIZE])
            left = HEADER_SIZE + int(HEADER.unpack(headers[-1])[_FRAME_LENGTH])
        left -= nbytes(buffer)
    if left:
        raise ValueError(f"the size of the last frame differs from its header by {left} bytes")
    return _headers_sum(headers)


def are_frames(data: memoryview, headers_sum: int) -> bool:
    """True if ``data`` is the frames with that sum, and each of them is whole."""
    headers: list[memoryview] = []
    start, size = 0, len(data)
    while start < size:
        begin = start + HEADER_SIZE
        if begin > size:
            return False
        header = data[start:begin]
        checksum, _, _, _, _, length, *_ = HEADER.unpack(header)
        end = begin + length
        if end > size or xxh3_64_intdigest(data[start + SUMMED_FROM : end]) & 0xFFFFFFFF != checksum:
            return False
        headers.append(header)
        start = end
    return _headers_sum(headers) == headers_sum


def _headers_sum(headers: list[Buffer] | list[memoryview]) -> int:
    return xxh3_64_intdigest(headers[0] if len(headers) == 1 else b"".join(headers)) & 0xFFFFFFFF
