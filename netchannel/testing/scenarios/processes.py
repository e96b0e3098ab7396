"""The processes of a scenario's actors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import netchannel

from .model import Bridge, ScenarioFailed, Sink, Source, channel_id, upstreams

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from .model import Actor, Scenario

_PROGRAM = Path(__file__).with_name("actor.py")
_HOST = "127.0.0.1"
_LAST_LINES = 5


class Processes:
    """The processes of all actors of a scenario; leaving the context kills those that run."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self._scenario = scenario
        self._directory = directory
        self._ports: dict[str, socket.socket] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for name, actor in self._scenario.actors.items():
            if not isinstance(actor, Source):
                # Bound for as long as the scenario lasts, so that nobody else is given the port between two lives of
                # its actor, who may listen there, as both sockets have SO_REUSEADDR.
                held = self._ports[name] = socket.socket()
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind((_HOST, 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.kill(name)
        for held in self._ports.values():
            held.close()

    def record_of(self, sink: str) -> Path:
        """The file in which a sink writes down what it has read."""
        return self._directory / f"{sink}.record"

    def start(self, name: str, deadline_s: float) -> None:
        """Start an actor, and wait until it is ready."""
        environment = os.environ | {"PYTHONPATH": _python_path()}
        with self._log_of(name).open("ab") as log:
            process = self._running[name] = subprocess.Popen(
                [sys.executable, "-P", _PROGRAM, json.dumps(self._settings(name))],
                stdin=subprocess.PIPE,  # never written to: its end tells the actor that this process is gone
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert process.stdout is not None
        overdue = threading.Timer(deadline_s, process.kill)
        overdue.start()
        try:
            said = process.stdout.readline()
        finally:
            overdue.cancel()
            overdue.join()
        if said != b"ready\n":
            raise ScenarioFailed(f"{name} was not ready within {deadline_s:g} s{self._last_words(name)}")

    def stop(self, name: str, deadline_s: float) -> None:
        """Ask an actor to leave, and wait until it has left."""
        process = self._running[name]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise ScenarioFailed(
                f"{name} did not leave within {deadline_s:g} s{self._last_words(name)}"
            ) from None
        if process.returncode != -signal.SIGTERM:  # which finds no handler in one that is ending by itself
            self.check_alive()
        self._forget(name)

    def kill(self, name: str) -> bool:
        """Kill an actor; whether it was in the midst of its work."""
        process = self._running[name]
        worked = process.poll() is None
        process.kill()
        process.wait()
        self._forget(name)
        return worked

    def check_alive(self) -> None:
        """Raise ScenarioFailed if an actor has ended badly."""
        for name, process in self._running.items():
            if code := process.poll():
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                raise ScenarioFailed(f"{name} died ({how}){self._last_words(name)}")

    def _forget(self, name: str) -> None:
        process = self._running.pop(name)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _settings(self, name: str) -> dict[str, Any]:
        actor = self._scenario.actors[name]
        settings: dict[str, Any] = {
            "type": type(actor).__name__.lower(),
            "name": name,
            "inputs": {each: channel_id(each, name) for each in upstreams(actor)},
            "outputs": {
                channel_id(name, each): self._address_of(each) for each in self._scenario.readers_of(name)
            },
        }
        return settings | self._own_settings(actor)

    def _own_settings(self, actor: Actor) -> dict[str, Any]:
        match actor:
            case Source(count=count, rate=rate, size=size):
                return {"count": count, "rate": rate, "size": size}
            case Bridge(name=name):
                return {"listen": self._address_of(name)}
            case Sink(name=name):
                return {"listen": self._address_of(name), "record": str(self.record_of(name))}

    def _address_of(self, name: str) -> str:
        return f"{_HOST}:{self._ports[name].getsockname()[1]}"

    def _log_of(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log_of(name).read_text("utf-8", "replace").splitlines()[-_LAST_LINES:]
        return "".join(f"\n  {name}: {line}" for line in lines)


def _python_path() -> str:
    """A search path by which actors import the netchannel that this process has."""
    own = str(Path(netchannel.__file__).parents[1])
    return os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
