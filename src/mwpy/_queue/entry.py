"""An entry of a queue: what it asks for, and what happens to it. Nothing here reads files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from attrs import Factory, define
from msgspec import Meta, Struct, field

Priority = Literal[0, 1, 2]
"""How important an entry is. 0 comes first."""


class State(Enum):
    """What happens to an entry."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    REPEATS = "repeats"
    """It adds other entries, at a time of each day or for each commit, until it is cancelled."""


ENDED = (State.DONE, State.FAILED, State.CANCELLED, State.REFUSED)


class Asked(Struct, omit_defaults=True):
    """What an entry asks for."""

    name: str
    words: Annotated[list[str], Meta(min_length=1)]
    """A study (`.toml`) or a script, as its path in the input, and its arguments."""
    python: str
    """The Python that runs it."""
    priority: Priority = 1
    at: float = 0.0
    daily: str = ""
    """The time of day at which an entry like this one is added."""
    limit_s: float | None = None
    after: list[int] = field(default_factory=list)
    on_end: str = ""
    watch: str = ""
    """The repository for whose commits an entry like this one is added."""
    made_by: int = 0
    """The entry that has added this one."""
    occasion: str = ""
    """Why: a time or a commit. With `watch`, the last commit that has no entry."""


class Run(Struct, omit_defaults=True):
    """What happens to an entry that has begun."""

    state: State
    reason: str = ""
    began: float = 0.0
    ended: float = 0.0
    code: int | None = None
    host: str = ""
    occasion: str = ""
    """The last occasion on which it has added an entry."""


class Turn(Struct, frozen=True):
    """What is decided about an entry, and why."""

    state: State
    reason: str = ""
    priority: int = 1
    has_begun: bool = False
    """Whether its worker has begun it. Then its folder must be there."""


@define
class Entry:
    """An entry of the queue."""

    number: int
    path: Path
    uid: int
    """The user who has added it."""
    asked: Asked = Factory(lambda: Asked("?", ["?"], ""))
    fault: str = ""
    run: Run | None = None
    priority: int = 1
    cancelled_by: str = ""
    runs_as: int = -1
    """The user who runs it."""

    @property
    def run_path(self) -> Path:
        """The folder in which it runs."""
        return self.path.with_name(f"{self.path.name}.run")

    @property
    def repeats(self) -> bool:
        """Whether it only adds others."""
        return bool(self.asked.daily or self.asked.watch)

    @property
    def is_running(self) -> bool:
        """Whether its worker runs it."""
        return self.run is not None and self.run.state is State.RUNNING

    @property
    def has_ended(self) -> bool:
        """Whether its worker has recorded its end."""
        return self.run is not None and self.run.state in ENDED

    @property
    def study(self) -> Path | None:
        """The study that runs, if it is one."""
        words = self.asked.words
        return self.run_path / words[0] if words[0].endswith(".toml") else None

    @property
    def resource(self) -> Path:
        """The resource file of its master."""
        return self.run_path / "app.rsc" if self.study is None else self.study.with_suffix(".sweep") / "sweep.rsc"

    @property
    def database(self) -> Path:
        """The run database of its master."""
        return self.resource.with_name("run.db")

    @property
    def log(self) -> Path:
        """The folder with what its master prints."""
        return self.run_path / "log"
