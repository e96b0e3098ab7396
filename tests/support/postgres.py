"""A PostgreSQL server of the tests' own, in a temporary folder, that can be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.needs import need_program
from tests.support.ports import free_addresses
from tests.support.programs import postgres_programs
from tests.support.waiting import wait_for

_NOBODY = 65534
"""Who runs it where the tests are root's, as whom it refuses to run."""


def _programs() -> Path:
    found = postgres_programs()
    assert found is not None, "whoever starts one has said that it needs it"
    return found


class Server:
    """One that listens on loopback, with a database ``postgres`` that everybody may use."""

    def __init__(self, folder: Path, settings: Mapping[str, object] | None = None) -> None:
        self._folder, self._settings = folder, settings or {}
        self._user = _NOBODY if os.getuid() == 0 else None
        self.port = int(free_addresses(1)[0].rpartition(":")[2])
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(folder, _NOBODY, _NOBODY)
        self._run(
            "initdb", "--pgdata", str(folder / "data"), "--username", "tests", "--auth", "trust", "--no-sync"
        )
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://tests@127.0.0.1:{self.port}/postgres"

    @property
    def environment(self) -> dict[str, str]:
        """What whoever reaches it by no more than ``postgresql://`` has set."""
        return {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "tests", "PGDATABASE": "postgres"}

    def start(self) -> None:
        """And wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_programs() / "postgres", "-D", self._folder / "data", *options],
                stderr=log,
                user=self._user,
                group=self._user,
                cwd=self._folder,
            )
        ready = [_programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, "the server answers")

    def kill(self) -> None:
        """Without a word to anybody, as when its machine fails."""
        assert self._process is not None
        children = (
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text("utf-8").split()
        )
        self._process.kill()
        self._process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        """At once, rolling back what is open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def hold(self, *, go_on: bool = False) -> None:
        """Have it stand still, or go on."""
        assert self._process is not None
        for child in self._children():
            os.kill(child, signal.SIGCONT if go_on else signal.SIGSTOP)

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(each) for each in path.read_text("utf-8").split()]

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [_programs() / name, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            group=self._user,
            cwd=self._folder,
        )


@contextmanager
def server(**settings: object) -> Iterator[Server]:
    """One that is there for a while, with settings that are not as they come."""
    need_program("initdb")
    with tempfile.TemporaryDirectory(prefix="nebuli-postgres-") as name:
        running = Server(Path(name), settings)
        try:
            yield running
        finally:
            running.stop()
