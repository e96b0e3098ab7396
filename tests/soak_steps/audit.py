"""What must hold of the stores of all members, whatever was killed, and that it goes on to hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.zset import digest
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.member_store import LOG
from nebuli.steps.stepped_query import SteppedQuery
from nebuli.store import Store


class Violation(AssertionError):
    """A promise is broken."""


@dataclass
class Audit:
    """Reads the stores of a run whose processes are all gone, again and again."""

    query: SteppedQuery
    folder: Path
    inputs: dict[tuple[int, int, str], int] = field(default_factory=dict)
    """What counts for a step, by member, step and input, as its digest."""
    outputs: dict[tuple[str, int], int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    times: int = 0
    both: int = 0
    """How often a member had two versions."""

    async def check(self) -> None:
        """Raises Violation."""
        self.times += 1
        kept: list[set[tuple[int, int]]] = []
        firsts: list[tuple[int, int]] = []
        for member in range(self.query.plan.members):
            folder = self.folder / f"member-{member}"
            if not folder.exists():
                return
            async with Store.at(folder) as store:
                versions = await self.versions(store, member)
                kept.append(set(versions.items()))
                needed = min(versions.values())
                firsts.append(await self._input(store, member, needed))
                await self._output(store, member, needed)
        common = set.intersection(*kept)
        if not common:
            raise Violation(f"the members share no checkpoint: {kept}")
        step = max(common)[1]
        if any(not first <= step <= last for first, last in firsts):
            raise Violation(f"all go on at step {step}, and the logs have {firsts}")

    async def versions(self, store: Store, member: int) -> dict[int, int]:
        """The steps of a member's versions, which may be asked for at any time."""
        found = await store.state_store(LOG).steps()
        if len(found) not in (1, 2):
            raise Violation(f"member {member} has the versions {found}")
        self.both += len(found) == 2
        return found

    async def _input(self, store: Store, member: int, needed: int) -> tuple[int, int]:
        circuit = SteppedCircuit(self.query.plan, member)
        async with await InputLog.open(store, LOG, circuit.inputs) as log:
            if log.first > needed:
                raise Violation(
                    f"member {member} may go on at step {needed}, and its log begins at {log.first}"
                )
            for step in range(log.first, log.last):
                for name, rows in (await log.fix(step)).items():
                    self._same(self.inputs, (member, step, name), digest(rows), "was read")
            return log.first, log.last

    async def _output(self, store: Store, member: int, needed: int) -> None:
        plan = self.query.plan
        schemas = SteppedCircuit(plan, member).outputs
        own = {name: schema for name, schema in schemas.items() if plan.homes[name] == member}
        if not own:
            return
        log = await OutputLog.open(store, LOG, own)
        if log.first > needed:
            raise Violation(
                f"member {member} may repeat step {needed}, and its output log begins at {log.first}"
            )
        for name in own:
            if log.last < self.last.get(name, 0):
                raise Violation(f"output {name} had {self.last[name]} steps, and has {log.last}")
            self.last[name] = log.last
            for step in range(log.first, log.last):
                self._same(self.outputs, (name, step), digest(await log.read(name, step)), "came out")

    @staticmethod
    def _same(known: dict[Any, int], key: Any, found: int, what: str) -> None:
        if known.setdefault(key, found) != found:
            raise Violation(f"{key} {what} as something else than before")
