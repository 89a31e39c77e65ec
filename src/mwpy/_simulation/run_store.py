"""The run database of a simulated master: a real file over all lives of the master.

The real code turns records into rows, commits them, and reads them again in the next life. Only the thread and the time
of a commit are simulated. When the master crashes, the next life gets a copy of the bytes of the file and of its log,
as they are at that moment. A commit that goes on may be missing there, or be cut off at any byte, or be complete
although nobody heard of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from weakref import finalize

from mwpy._core.master.core import MasterCore
from mwpy._database.writer import Writer
from mwpy._roles.run_store import RunStore
from mwpy._simulation.world import World
from mwpy._values.given import Given
from mwpy._values.options import Options

__all__ = ["SimulatedDatabase", "SimulatedRunStore"]

COMMIT_S = 0.003
"""How long a commit takes on average, in seconds."""

MEMORY = "/dev/shm"
"""Where the files are, if this folder exists, because no simulated history needs to wait for a disk."""

SLOW_COMMIT_S = 1.0
"""How long a few commits take at most, in seconds."""


class SimulatedRunStore:
    """What a master writes to in one life.

    Args:
        random: decides how long commits take, and what a crash leaves.
        path: the file.
        name: the name of this life.
        handed_over: called after outcomes were handed over to the algorithm.
    """

    def __init__(self, world: World, random: Random, path: Path, name: str, handed_over: Callable[[], None]) -> None:
        self._world = world
        self._random = random
        self.path = path
        self.name = name
        self.handed_over = handed_over
        self.writer = Writer.opened(path, member_id="simulated", on_failure=_fail, name=name)
        self._waiting: list[Given] = []
        self._written: list[Given] = []
        """What the commit has that goes on."""
        self._began = 0.0
        """When the last commit began."""
        self.is_over = False
        """Whether the master has ended."""

    def read_into(self, core: MasterCore) -> None:
        """Let a core use what is in the file."""
        RunStore(self.path, lambda _: self.writer).read_into(core, Options(run_database=str(self.path)))

    def write(self, given: Given) -> None:
        """Write records with the next commit."""
        self._waiting.append(given)
        if not self._written:
            self._begin()

    def _begin(self) -> None:
        self._written, self._waiting = self._waiting, []
        self._began = self._world.now
        slow = self._random.random() < 0.02
        delay = self._random.random() * SLOW_COMMIT_S if slow else self._random.expovariate(1 / COMMIT_S)
        self._world.after(delay, self._end)

    def _end(self) -> None:
        if self.is_over:
            return
        self.writer.commit(self._written)
        written, self._written = self._written, []
        for each in written:
            if each.then is not None:
                each.then()
        if self._waiting:
            self._begin()
        self.handed_over()

    def delay_s(self) -> float:
        """For how many seconds the present commit has been going on."""
        return self._world.now - self._began if self._written else 0.0

    def watch(self, on_wait: Callable[[], object]) -> None:
        """Do nothing: `write` never waits."""

    def crash(self, copy: Path) -> None:
        """The master is killed. Copy what the next life finds."""
        self.is_over = True
        log = Path(f"{self.path}-wal")
        start = log.stat().st_size
        if self._written and self._random.random() < 0.8:
            self.writer.commit(self._written)
        more = log.stat().st_size - start
        end = start + int(more * self._random.choice((self._random.random(), 1.0)))
        shutil.copy(self.path, copy)
        Path(f"{copy}-wal").write_bytes(log.read_bytes()[:end])
        self.writer.release()

    def close(self) -> None:
        """Commit all that waits."""
        self.is_over = True
        self.writer.commit([*self._written, *self._waiting])
        self.writer.release()


class SimulatedDatabase:
    """The run database of one computation.

    Args:
        seed: names the history.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self.seed = seed
        self._random = Random(f"database {seed}")
        folder = MEMORY if os.access(MEMORY, os.W_OK) else None
        self._folder = Path(mkdtemp(prefix="mwpy-simulated-", dir=folder))
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.lives = 1
        """How many lives the master has had, including the present one, or the next one if it does not run."""
        self.store: SimulatedRunStore | None = None
        """What the master writes to; None if it does not run."""

    @property
    def _path(self) -> Path:
        return self._folder / f"life-{self.lives}.db"

    def open(self, handed_over: Callable[[], None]) -> SimulatedRunStore:
        """Begin the next life of the master."""
        self.store = SimulatedRunStore(self._world, self._random, self._path, f"g{self.lives}", handed_over)
        assert self.store.writer.generation == self.lives, "a life is missing in the file"
        return self.store

    def crash(self) -> None:
        """The master is killed."""
        assert self.store is not None, "the master does not run"
        self.lives += 1
        self.store.crash(self._path)
        self.store = None

    def end(self) -> None:
        """The computation is over."""
        if self.store is not None:
            self.store.close()
            self.store = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _fail(reason: str) -> None:
    raise AssertionError(reason)
