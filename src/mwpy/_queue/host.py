"""Lets a machine serve the computations of a queue, one after the other: the most important one that needs slaves.

It is an overseer of this machine alone, with one place. Its agent ends when its entry needs it no longer, or when a
more important one has none: then it first finishes its tasks.
"""

from __future__ import annotations

import os
import platform

from mwpy._batch.local import Local
from mwpy._core.overseer import OverseerSettings
from mwpy._queue.folder import Announced, Folder, beat, user_name
from mwpy._queue.oversight import INTERVAL_S, Oversight
from mwpy._queue.service import locked, loop, say
from mwpy._roles.overseer import OverseerOptions, mark_of
from mwpy._values.phrases import counted
from mwpy.cli._arguments import state_folder

IDLE_S = 5.0
"""After how many seconds without a task an agent ends."""

LOOK_S, LONGEST_LOOK_S = 1.0, 30.0
"""How often a machine looks into the queue, in seconds: while it serves, and at most, when nothing needs it."""


def run(folder: Folder, slaves: int) -> int:
    """Serve the computations of a queue until this process is stopped. Return the exit code.

    Raises:
        UsageError: this user has started this on this machine before.
    """
    own = state_folder() / f"{mark_of(folder.path)}-{platform.node()}"
    own.mkdir(parents=True, exist_ok=True)
    lock = locked(own / "lock", "`mwpy slave` for this queue on this machine")
    settings = OverseerSettings(patience_s=IDLE_S, interval_s=INTERVAL_S)
    oversight = Oversight(OverseerOptions((), settings, slaves, log_dir=own), Local(own / "jobs"))
    path, announced, pause_s = folder.path / f"host-{platform.node()}-{os.getpid()}.json", None, LOOK_S

    def look() -> float:
        nonlocal announced, pause_s
        mine = [each for each in folder.entries() if each.is_running and each.runs_as == os.geteuid()]
        oversight.adjust(mine, 1)
        served = ", ".join(
            f"{each.number} {each.asked.name}" for each in mine if oversight.work.has.get(str(each.number))
        )
        former, announced = announced, Announced(platform.node(), user_name(os.geteuid()), served)
        if served and former != announced:
            say(f"serves entry {served}")
        beat(path, announced, former)
        pause_s = LOOK_S if mine else min(2 * pause_s, LONGEST_LOOK_S)
        return pause_s

    def leave() -> None:
        oversight.remove()
        path.unlink(missing_ok=True)

    say(f"serves the queue {folder.path} with {counted(slaves, 'slave')}")
    return loop(lock, look, leave, "its slaves leave")
