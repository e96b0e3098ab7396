"""Files of channels: durable logs, spilled buffers, histories and staged groups, and the jobs that write and read them.

Blocking. The formats know bytes only, and are described in `netchannel.storage.layout`; jobs join them to the core,
which asks for work and runs none (`netchannel.storage.jobs`).
"""

from __future__ import annotations

from .files import Buffer, File, FileSystem, Locked, RealFiles
from .groups.attempt_files import AttemptFile, SealedAttempt
from .groups.staging_store import StagingStore
from .log import NewRecord, SegmentLog
from .manifest import file_content, replace_file
from .segment import LogRecord, Outline
from .temporary_files import TemporaryFiles, spill_directory

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
