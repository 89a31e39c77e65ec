"""What a simulated algorithm submits and shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct, field

from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.world import World
from mwpy._values import messages
from mwpy._values.bounds import Buffer
from mwpy._values.messages import PART_BYTES, LoadFailure, Share
from mwpy._values.shares import Shared, SharedObject

SIZES = (100, 2 * PART_BYTES, 6 * PART_BYTES + 1)
"""How many bytes the shared objects have."""

CONTENT = memoryview(bytes(max(SIZES)))


def loaded(digest: str) -> str:
    """Stand for the object in the arguments of a task, and in functions by value."""
    return digest


class SharedByAlgorithm:
    """What the algorithm shares; in some histories nothing.

    Args:
        seed: names the history.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Random(f"shares {seed}")
        self._share = self._draw.choice((0.0, 0.0, 0.2, 0.8))
        """The share of tasks that need shared objects."""
        self._handles: dict[str, Shared] = {}

    def handle(self, draw: Random | None = None) -> Shared | None:
        """The handle of an object that the next task needs. Sometimes it replaces an equal handle, which is gone.

        Args:
            draw: decides which; None for the history.
        """
        draw = draw or self._draw
        if draw.random() >= self._share:
            return None
        size = draw.choice(SIZES)
        digest = f"object of {size} bytes"
        if digest not in self._handles or self._draw.random() < 0.3:
            self._handles[digest] = Shared(SharedObject(Share(digest, size), CONTENT[:size]), loaded)
        return self._handles[digest]

    def handles(self) -> list[Shared]:
        """The handles in the arguments of the next task."""
        return [handle for handle in (self.handle(), self.handle()) if handle is not None]


class SimulatedStore(Struct, eq=False):
    """The files of an agent. It checks that each part is written once, and that only what is complete is used."""

    _world: World
    _missing: dict[str, dict[int, None]] = field(default_factory=dict)
    """The parts that each file lacks."""

    def open(self, share: Share) -> tuple[str, bool]:
        """Make a file; sometimes the content is on this host already."""
        assert share.digest not in self._missing, f"the {share.digest} is here, and is fetched again"
        complete = self._world.chance(0.2)
        self._missing[share.digest] = {} if complete else dict.fromkeys(range(0, share.size, PART_BYTES))
        return "here", complete

    def write(self, digest: str, start: int, part: Buffer) -> None:
        """Write a part."""
        assert start in self._missing[digest], f"the part from byte {start} of the {digest} came twice"
        assert len(part) == PART_BYTES or start == max(self._missing[digest]), "a part is too small"
        del self._missing[digest][start]

    def drop(self, digest: str) -> None:
        """Drop a file."""
        self._missing.pop(digest, None)

    def close(self) -> None:
        """Do nothing: there are no files."""

    def is_complete(self, digest: str) -> bool:
        """Whether there is a file with all parts."""
        return self._missing.get(digest) == {}


class SharesOfSlave(Struct, eq=False):
    """The shared objects that a slave knows, and those that its tasks need."""

    _store: SimulatedStore
    _known: dict[str, str] = field(default_factory=dict)
    """Why each is missing; empty if it is here."""
    _needed: dict[int, list[str]] = field(default_factory=dict)
    """What the tasks need that it has not started, by the position of the task."""

    def hear(self, message: messages.Message) -> None:
        """Read a message of the agent, which may have dropped the object meanwhile. `start` checks what a task uses."""
        if isinstance(message, messages.ShareGiven):
            if not message.reason:
                assert message.share.location == "here", "its location is not that of the agent"
            self._known[message.share.digest] = message.reason
        elif isinstance(message, messages.ShareForgotten):
            del self._known[message.digest]

    def passed_on(self, position: int, message: messages.Tasks) -> None:
        """A task arrived."""
        if message.shares:
            self._needed[position] = [share.digest for share in message.shares]

    def are_here(self, position: int) -> bool:
        """Whether the task at this position can start."""
        return all(digest in self._known for digest in self._needed.get(position, ()))

    def start(self, position: int, wanted: Sequence[str]) -> None:
        """A task starts that needs these objects."""
        self._needed.pop(position, None)
        for digest in wanted:
            assert digest in self._known, f"a task runs without the {digest}"
            here = self._known[digest] or self._store.is_complete(digest)
            assert here, f"a task uses the {digest}, which its agent has dropped"


# What simulated slaves have to do.


class Workload(Struct, eq=False):
    """What the slaves of an agent have to do, and the checker that watches them."""

    world: World
    checker: HistoryChecker
    durations: Sequence[float]
    """How long the tasks of each algorithm take on average, in seconds."""
    start_s: float
    """The longest start of a slave."""
    able: bool
    """Whether the slaves can run every algorithm."""
    bad: str
    """What each task does here: it kills its slave ("slave"), raises an exception ("error") or works well ("")."""
    max_tasks: int | None
    """How many tasks a slave may run; None if there is no limit."""
    max_memory: int | None
    """How much memory a slave may have between two tasks; None if there is no limit."""
    host: str
    """The name of their machine."""
    peer: bytes
    """The connection of their agent."""
    attentive: Callable[[], bool]
    """Whether their agent runs, and was not frozen a moment ago."""
    in_contact: Callable[[], bool]
    """Whether their agent runs and is connected to its master, and was so for a while."""
    frozen_until: Callable[[], float]
    """Until when their agent was frozen the last time, or still is; 0 if it never was."""
    frozen_since: Callable[[float], float]
    """For how many seconds their agent was frozen since some moment."""
    is_short: Callable[[], bool]
    """Whether the slaves used nearly all memory of their job a moment ago."""
    running: Callable[[], list[int]]
    """The tasks that the slaves of this agent run."""
    kill_agent: Callable[[], None]
    store: SimulatedStore
    """The shared objects at their agent."""
    successor: Workload | None = None
    """What slaves have to do in the next life of the master; None if their agent has not followed it."""

    @property
    def newest(self) -> Workload:
        """What slaves have to do in the newest life."""
        return self if self.successor is None else self.successor.newest

    def load(self) -> LoadFailure | None:
        """Why a slave cannot load an algorithm, if it cannot. Only a machine that is not able fails for sure."""
        if not self.able and self.world.chance(0.05):
            return LoadFailure.OTHER_CODE if self.world.chance(0.3) else LoadFailure.SURE
        return LoadFailure.PASSING if self.world.chance(0.1) else None
