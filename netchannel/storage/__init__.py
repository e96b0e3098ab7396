"""Bytes on disk: the durable log of a channel, in files that last or in temporary ones; what a staged one holds.

Synchronous, and knows bytes only: what a record's payload means is the caller's affair. The format is described in
`netchannel.storage.layout`.
"""

from __future__ import annotations

from .aside import file_content, replace_file
from .files import Buffer, File, FileSystem, Locked, RealFiles
from .groups.attempt_files import AttemptFile, SealedAttempt
from .groups.staging import StagingStore
from .log import NewRecord, SegmentLog
from .segment import LogRecord, Outline
from .temporary import TemporaryFiles, spill_directory

__all__ = [
    "AttemptFile",
    "Buffer",
    "File",
    "FileSystem",
    "Locked",
    "LogRecord",
    "NewRecord",
    "Outline",
    "RealFiles",
    "SealedAttempt",
    "SegmentLog",
    "StagingStore",
    "TemporaryFiles",
    "file_content",
    "replace_file",
    "spill_directory",
]
