"""Bytes on disk: the durable log of a channel, in files that last or in temporary ones; what a staged one holds.

Synchronous, and knows bytes only: what a record's payload means is the caller's affair. The format is described in
`netchannel.storage.layout`.
"""

from __future__ import annotations

from .aside import file_content, replace_file
from .attempts import AttemptFile, AttemptKey, SealedAttempt
from .faults import LogBroken, LogDamaged, MessagesLost, StorageFull
from .files import Buffer, File, FileSystem, Locked, RealFiles
from .log import SegmentLog
from .segment import Ending, LogRecord, Outline
from .staging import StagingStore
from .temporary import TemporaryFiles, spill_directory

__all__ = [
    "AttemptFile",
    "AttemptKey",
    "Buffer",
    "Ending",
    "File",
    "FileSystem",
    "Locked",
    "LogBroken",
    "LogDamaged",
    "LogRecord",
    "MessagesLost",
    "Outline",
    "RealFiles",
    "SealedAttempt",
    "SegmentLog",
    "StagingStore",
    "StorageFull",
    "TemporaryFiles",
    "file_content",
    "replace_file",
    "spill_directory",
]
