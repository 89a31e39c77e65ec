"""One chaos run: a computation, its machines, the faults of the plan, and their supervision."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from attrs import define, field
from tests.chaos.faults import KINDS, Course, Fault, Ground, plan
from tests.chaos.machines import MASTER_ADDRESS, Machine, compile_clock, lay_cables, mount
from tests.chaos.supervision import End, Watched, wait_for
from tests.integration.apps.stage import SOURCES

APP = Path(__file__).parent / "apps" / "rounds.py"

TIMEOUT_S = 3
"""The client timeout: several faults last longer, and several do not."""

TICK_S = 0.01

AFTERWARDS_S = 180.0
"""How long the computation may take after the last fault."""

RECONNECT_S = 60
"""How long agents look for their master. So long, tasks with retry=False may wait for an agent that is dead."""

LEAVING_S = 60.0
"""How long agents may take to end after the master."""

FOR_CABLES = ("host cut off", "network slowed")

REUSED = (
    "SELECT coalesce(sum(count), 0) FROM submissions WHERE answers IS NOT NULL AND generation = "
    "(SELECT max(generation) FROM generations)"
)

MOST_ENDS = 10
"""If the master ends more often than this by itself, it is not started again."""

PAUSE_S = 0.5
"""A process that ended is started again this much later."""


@define(eq=False)
class Chaos:
    """A run.

    Args:
        folder: an empty folder for all its files.
        seed: of the plan.
        seconds: how long faults begin.
        machines: how many machines there are beside the submit machine. Each has an agent, as has the submit machine.
        apart: why machines have no namespaces; empty if they have them.
    """

    folder: Path
    seed: int
    seconds: float
    machines: int
    apart: str
    faults: list[Fault] = field(factory=list)
    failures: list[str] = field(factory=list)
    """What went wrong apart from results."""

    why: dict[str, str] = field(factory=dict)
    """Why a kind of fault is left out."""

    out: str = ""
    """What the last life of the master printed."""

    reused: int = 0
    """How many tasks the run database answered in the last life of the master."""

    master: list[End] = field(factory=list)
    """The ends of the master."""

    def run(self) -> None:
        """Run it to its end, and leave no process."""
        with ExitStack() as stack:
            ground = self._prepare(stack)
            began = time.monotonic()
            self.faults = plan(self.seed, self.seconds, [kind for kind in KINDS if kind not in self.why])
            self._cause(ground, began)
            (self.folder / "enough").touch()
            if not self._has_ended(ground) and not wait_for(
                lambda: self._watch(ground), AFTERWARDS_S, lambda: time.sleep(TICK_S)
            ):
                self.failures.append(f"the master did not end within {AFTERWARDS_S:.0f} s after the last fault")
            self._close(ground)

    def _prepare(self, stack: ExitStack) -> Ground:
        """Make the machines, and start the processes."""
        clock, failed = compile_clock(self.folder)
        if failed:
            self.why["clock stepped"] = failed
        machines = lay_cables(self.machines, self.folder, clock, is_apart=not self.apart)
        for machine in machines:
            stack.callback(machine.close)
        self._examine(machines)
        disk = self.folder / "disk"
        disk.mkdir()
        if not self.apart:
            mount(disk, stack)
        master = self._watched("master", machines[0], disk, *self._masters_options())
        agents = []
        for machine in machines:
            words = ("--mw-slave", "--mw-resource-file", disk / "rounds.rsc", "--mw-reconnect-seconds", RECONNECT_S)
            name = f"agent{machine.number}"
            agents.append(self._watched(name, machine, self.folder, *words, "--mw-slave-processes", 2))
        ground = Ground(master, agents, machines, None if self.apart else disk)
        for watched in (*agents, master):
            stack.callback(watched.destroy)
        master.start()
        wait_for(lambda: (disk / "rounds.rsc").exists() or bool(master.ends), LEAVING_S, lambda: time.sleep(TICK_S))
        for agent in agents:
            agent.start()
        return ground

    def _examine(self, machines: list[Machine]) -> None:
        """Find the kinds of faults that this machine cannot have."""
        if self.apart:
            self.why |= dict.fromkeys((*FOR_CABLES, "disk full"), f"no namespaces: {self.apart}")
        elif failed := machines[-1].slow():
            self.why["network slowed"] = failed
        else:
            machines[-1].slow(False)

    def _masters_options(self) -> tuple[object, ...]:
        disk = self.folder / "disk"
        return (
            *("--mw-master", "--mw-master-host", "127.0.0.1" if self.apart else MASTER_ADDRESS),
            *("--mw-resource-file", disk / "rounds.rsc", "--mw-resource-file-update-interval", 1),
            *("--mw-run-database", disk / "run.db", "--mw-audit-file", disk / "audit", "--mw-audit-level", "events"),
            *("--mw-audit-file-max-size", 1_000_000, "--mw-client-timeout", TIMEOUT_S, "--mw-attempts-max", 100),
        )

    def _watched(self, name: str, machine: Machine, folder: Path, *options: object) -> Watched:
        variables = {**machine.variables, "PYTHONPATH": str(SOURCES), "CHAOS_FOLDER": str(self.folder)}
        command = machine.command(sys.executable, APP, *options)
        return Watched(name, command, variables, folder, self.folder, PAUSE_S)

    def _cause(self, ground: Ground, began: float) -> None:
        """Let the faults of the plan happen."""
        ahead, active = [*self.faults], list[tuple[Fault, Course]]()
        while active or time.monotonic() - began < self.seconds:
            now = time.monotonic() - began
            for fault in [fault for fault in ahead if fault.at_s <= now]:
                course = KINDS[fault.kind].course(ground, fault.dice)
                if next(course, "over") != "over":  # else it finds nothing that it could harm at this moment
                    fault.begun = time.monotonic()
                    active.append((fault, course))
                    ahead.remove(fault)
            for fault, course in [*active]:
                assert fault.begun is not None
                is_due = time.monotonic() - fault.begun >= fault.for_s
                try:
                    course.send(is_due)
                except StopIteration:
                    fault.ended = time.monotonic()
                    active.remove((fault, course))
            if self._watch(ground):
                break
            time.sleep(TICK_S)

    def _watch(self, ground: Ground) -> bool:
        """Start again what has ended. Return whether the master has finished, or ends too often by itself."""
        for agent in ground.agents:
            agent.watch()
        if not self._has_ended(ground):
            ground.master.watch()
        return self._has_ended(ground)

    def _has_ended(self, ground: Ground) -> bool:
        ends = ground.master.ends
        return bool(ends) and (ends[-1].code == 0 or len(ground.master.unasked) > MOST_ENDS)

    def _close(self, ground: Ground) -> None:
        """Wait for the agents, and keep what the report needs."""
        self.out = ground.master.out
        reading = sqlite3.connect(f"file:{self.folder / 'disk' / 'run.db'}?mode=ro", uri=True)
        [(self.reused,)] = reading.execute(REUSED)
        reading.close()
        for agent in ground.agents:
            code = agent.wait(LEAVING_S)
            if code is None:
                self.failures.append(f"{agent.name} did not end within {LEAVING_S:.0f} s after the master")
        self.master = ground.master.ends
