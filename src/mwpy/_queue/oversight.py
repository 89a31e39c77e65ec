"""Gives slaves to entries of a queue: an overseer in this process, which follows what the queue wants.

Its rounds are made in a thread of their own, because batch systems and hosts may take long to answer. Its jobs outlive
this process. The next one finds them.
"""

from __future__ import annotations

import os
import platform
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable
from mwpy._batch.local import Local
from mwpy._core.overseer import OverseerCore, OverseerSettings
from mwpy._queue.entry import Entry
from mwpy._queue.folder import Announced, Decision, Folder, Work, beat, user_name
from mwpy._queue.service import locked, loop, say
from mwpy._roles.overseer import MESSAGES_KEPT, OverseenFiles, Overseer, OverseerOptions, mark_of
from mwpy._system import clock, process
from mwpy._values.errors import MwpyError
from mwpy._values.phrases import counted
from mwpy.cli._arguments import batch_system, state_folder
from mwpy.cli.oversee import make_parser, options_of

INTERVAL_S = 2.0
"""The time between two rounds if the jobs are on this machine or on hosts, in seconds."""


class Oversight:
    """Gives slaves to entries.

    Args:
        options: the options of its overseer.
        batch: where its jobs run.
    """

    def __init__(self, options: OverseerOptions, batch: Batch) -> None:
        self.work = Work()
        """What the entries want and have, as of the last look."""
        self._slaves = options.slaves_per_job
        self._batch = batch
        self._core = OverseerCore(options.settings)
        recent: deque[str] = deque(maxlen=MESSAGES_KEPT)

        def note(text: str) -> None:
            recent.append(f"{clock.date(clock.wall())} {text}")
            say(text)

        files = OverseenFiles(replace(options, paths=()), note)
        self._overseer = Overseer(self._core, files, batch, clock, note, recent)
        self._looks = process.Background(self._look, "mwpy-overseer")
        self._using = threading.Lock()
        """Held while the batch system is used."""

    def adjust(self, entries: Sequence[Entry], max_jobs: int) -> None:
        """Look, in the background, after these entries only, and let them have this many jobs at most."""
        if not self._looks.waiting:
            self._looks.give((tuple(each for each in entries if each.resource.exists()), max_jobs))

    def _look(self, plan: tuple[Sequence[Entry], int]) -> None:
        entries, max_jobs = plan
        wanted = {each.resource: (f"entry {each.number}", 2 - each.priority) for each in entries}
        try:
            with self._using:
                self._overseer.follow(wanted, max_jobs)
                self._overseer.look()
        except (MwpyError, OSError) as error:
            say(f"slaves cannot be looked after now: {error}")
        except Exception:  # a mistake in mwpy must not end the service of all entries
            say(f"slaves cannot be looked after now. Please report this:\n{traceback.format_exc()}")
        self._measure(entries)

    def _measure(self, entries: Sequence[Entry]) -> None:
        wants, has = dict[int, int](), dict[int, int]()
        for each in entries:
            found = self._core.computations.get(mark_of(each.resource))
            if found is not None and found.is_readable:
                connected = found.content.connected_jobs.keys()
                missing = -(-found.content.slaves_needed // self._slaves)
                least = 0 if found.has_changed else 1  # a master writes its file first, and has tasks later
                wants[each.number] = (
                    0 if found.finished else max(least, missing + len(found.jobs.listed.keys() & connected))
                )
                has[each.number] = found.jobs.occupied - len(found.jobs.drained - connected)
        self.work = Work(True, wants, has, self._core.fault)

    def remove(self, entry: Entry | None = None) -> None:
        """Remove the jobs of an entry that has ended, or all jobs of mwpy here."""
        mark = None if entry is None else mark_of(entry.resource)
        try:
            with self._using:
                jobs = [job.job_id for job in self._batch.jobs() if mark in (None, job.mark)]
                self._batch.remove(jobs)
        except BatchUnavailable as error:
            say(f"jobs could not be removed: {error}")


def oversight(folder: Folder, decision: Decision, extra: Sequence[str]) -> Oversight:
    """Return what gives slaves to the entries of this user, where the keeper says.

    Args:
        extra: more options of `mwpy oversee`.

    Raises:
        UsageError: an option is wrong.
    """
    words = [str(folder.path), "--with", decision.system]
    if decision.system in ("local", "ssh"):
        words += ["--interval", str(INTERVAL_S)]
    if decision.system == "ssh":
        put_hosts(folder, decision)
        words += ["--hosts", str(_hosts_file(folder))]
    parsed = make_parser().parse_args([*words, *extra, "--processes-per-agent", str(decision.slaves_per_job)])
    return Oversight(options_of(parsed), batch_system(parsed))


def put_hosts(folder: Folder, decision: Decision) -> None:
    """Write the hosts file with the slots of this user, if it has changed. Its overseer follows it."""
    mine = decision.places.get(os.geteuid(), {})
    lines = "".join(
        f"{name} slots={decision.slaves_per_job * mine.get(name, 0)}{f' python={python}' if python else ''}\n"
        for name, python in decision.pythons.items()
    ).encode()
    path = _hosts_file(folder)
    if lines and (not path.exists() or path.read_bytes() != lines):
        resource_file.replace_file(path, lines)


def _hosts_file(folder: Folder) -> Path:
    return folder.path / f"overseer-{os.geteuid()}.hosts"


# A machine that serves the computations of a queue, one after the other: the most important one that needs slaves. It
# is an overseer of this machine alone, with one place. Its agent ends when its entry needs it no longer, or when a more
# important one has none: then it first finishes its tasks.


IDLE_S = 5.0
"""After how many seconds without a task an agent ends."""

LOOK_S, LONGEST_LOOK_S = 1.0, 30.0
"""How often a machine looks into the queue, in seconds: while it serves, and at most, when nothing needs it."""


def serve(folder: Folder, slaves: int) -> int:
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
        served = ", ".join(f"{each.number} {each.asked.name}" for each in mine if oversight.work.has.get(each.number))
        former, announced = announced, Announced(platform.node(), user_name(os.geteuid()), served)
        if served and former != announced:
            say(f"serves entry {served}")
        beat(path, announced, former)
        pause_s = LOOK_S if mine else min(2 * pause_s, LONGEST_LOOK_S)
        return pause_s

    def leave() -> None:
        oversight.remove()
        with suppress(OSError):
            path.unlink(missing_ok=True)

    say(f"serves the queue {folder.path} with {counted(slaves, 'slave')}")
    return loop(lock, look, leave, "its slaves leave")
