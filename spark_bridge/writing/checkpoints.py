"""The name of a checkpoint: the same for all spellings of its location, and different on another host.

Spark hands a location over as it was written: ``ck``, ``./ck`` and ``file:/app/ck`` are one directory, and ``ck`` of
two applications are two. Here it becomes an absolute URI, by the rules of Hadoop's ``Path``, with the host where it
is local.
"""

from __future__ import annotations

import getpass
import os
import posixpath
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL = "file:///"
_WHOLE = re.compile(r"(?:([^/:]+):)?(?://([^/]*))?(.*)", re.DOTALL)
_KEYS = ("fs.defaultFS", "fs.default.name")  # the second is its name of before


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a driver runs, to which a location that is not a whole URI is relative.

    ``file_system`` is Hadoop's ``fs.defaultFS``.
    """

    host: str
    directory: str
    user: str
    file_system: str = LOCAL

    @classmethod
    def here(cls, file_system: str | None = None) -> Place:
        """The place of this process, and the file system of its Hadoop configuration if none is given."""
        chosen = file_system or _configured(os.environ) or LOCAL
        return cls(socket.gethostname(), str(Path.cwd()), _user(os.environ), chosen)


def checkpoint_uri(location: str, place: Place) -> str:
    """The absolute URI of a checkpoint, or of any directory that Spark is given.

    Links of the local file system are followed; of other file systems nothing is asked.
    """
    scheme, authority, path = _parts(location)
    own = _parts(place.file_system)
    if not scheme and not authority:
        scheme, authority = own[:2]
    elif not authority and scheme == own[0]:
        authority = own[1]
    if scheme == "file":
        return f"file://{place.host}{os.path.realpath(posixpath.join(place.directory, path))}"
    # A relative path begins at the user's home, as it does in HDFS.
    whole = posixpath.normpath(posixpath.join("/user", place.user, path))
    return f"{scheme}://{authority}/{whole.lstrip('/')}"


def session_checkpoint(checkpoints: str | None, query: str | None) -> str | None:
    """The checkpoint that Spark keeps of a query that was given none: below the session's, by the query's name.

    None for a query without a name, whose directory is another one whenever it is started.
    """
    return f"{checkpoints.rstrip('/')}/{query}" if checkpoints and query else None


def _parts(location: str) -> tuple[str, str, str]:
    found = _WHOLE.fullmatch(location)
    assert found is not None  # the pattern takes any text
    return (found[1] or "").lower(), found[2] or "", found[3]


def _user(environment: Mapping[str, str]) -> str:
    try:
        return environment.get("HADOOP_USER_NAME") or getpass.getuser()
    except (
        KeyError,
        OSError,
    ):  # a container's user often has a number only; the error for that depends on Python
        return str(os.getuid())


def _configured(environment: Mapping[str, str]) -> str | None:
    for directory in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        file = Path(environment.get(directory) or os.devnull, "core-site.xml")
        if file.is_file() and (found := _file_system(file)):
            return found
    return None


def _file_system(file: Path) -> str | None:
    root = ElementTree.parse(file).getroot()  # noqa: S314 - Spark's own configuration is trusted
    given = {each.findtext("name", ""): each.findtext("value") for each in root.iter("property")}
    return next((value.strip() for name in _KEYS if (value := given.get(name))), None)
