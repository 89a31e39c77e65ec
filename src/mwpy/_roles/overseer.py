"""The overseer's shell: it reads resource files, asks a batch system, and does what `OverseerCore` decides.

It has one thread and one loop: a round, then a pause. Ctrl-C and SIGTERM can end it anywhere, because the next overseer
finds everything again. Its jobs keep running and serve their masters, because an overseer that is stopped is usually
started again.

The loop reaches the outside only through its arguments: resource files, a batch system, a clock, and a function that
prints a line. Therefore the simulator can run the same loop.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable, JobState, Launch
from mwpy._core.overseer.computation import WatchedComputation
from mwpy._core.overseer.core import OverseerCore
from mwpy._core.overseer.events import (
    Ended,
    FileRead,
    FileUnread,
    Listed,
    NotListed,
    NotRemoved,
    NotSubmitted,
    OverseerActions,
    OverseerEvent,
    Submit,
    Submitted,
)
from mwpy._core.overseer.files import Need
from mwpy._roles.overseen_files import OverseenFiles, OverseerOptions, mark_of, paths_of
from mwpy._roles.overseer_round import Round
from mwpy._system import clock
from mwpy._system.clock import Clock
from mwpy._values.errors import ExitCode, ResourceFileError
from mwpy.resource_file import ResourceFile

__all__ = ["Files", "Overseer", "remove", "run"]

LOOK_S = 1.0
"""Seconds between two looks at the files. The batch system is asked less often, because that costs more."""


class Files(Protocol):
    """The resource files that an overseer watches."""

    @property
    def more_may_come(self) -> bool:
        """Whether other computations may be found later."""

    def find(self) -> Sequence[WatchedComputation]:
        """Return the computations that were found since the last call."""

    def read(self, mark: str) -> ResourceFile:
        """Read the file of a computation.

        Raises:
            ResourceFileError: it cannot be read, or its content is wrong.
        """

    def launch(self, mark: str, content: ResourceFile) -> Launch:
        """Prepare the launch of jobs for a computation.

        Raises:
            OSError: the folder for their output cannot be made.
        """


def run(options: OverseerOptions, batch: Batch) -> int:
    """Oversee computations until they are finished and have no jobs left, or until the process is stopped.

    A directory is overseen until the process is stopped.

    Returns:
        The exit code.

    Raises:
        UsageError: another overseer watches one of the computations.
    """
    said: list[str] = []
    """With `json`, the lines that are printed at the end."""

    def say(text: str) -> None:
        if options.json:
            said.append(text)
        else:
            moment = clock.date(clock.wall())
            print(f"{moment} {'(dry run) ' if options.dry_run else ''}{text}", flush=True)

    files = OverseenFiles(options, say)
    overseer = Overseer(OverseerCore(options.settings), files, batch, clock, say, dry_run=options.dry_run)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not (options.once or options.dry_run):
            overseer.run()
            return ExitCode.OK
        overseer.run_round()
        if options.json:
            print(json.dumps({"dry_run": options.dry_run, **overseer.last_round(), "messages": said}))
        return ExitCode.UNREACHABLE if overseer.failed else ExitCode.OK
    except KeyboardInterrupt:
        say("stops; its jobs stay with their masters. Start it again, or remove the jobs with --remove")
        for text in said:
            print(text, file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        files.close()


def remove(options: OverseerOptions, batch: Batch) -> int:
    """Remove all jobs of computations, also those at work.

    Raises:
        BatchUnavailable: the batch system refuses.
    """
    names = {mark_of(path): path.name for path in paths_of(options.paths)}
    jobs = [job for job in batch.jobs() if job.mark in names and job.state is not JobState.LEAVING]
    if jobs:
        batch.remove([job.job_id for job in jobs])
    print(f"removed {len(jobs)} jobs of {', '.join(names.values())}")
    return ExitCode.OK


class Overseer:
    """The loop of an overseer.

    Args:
        core: the core, which decides.
        files: the resource files.
        batch: the batch system.
        clock: the time.
        say: the function that prints a line.
        dry_run: say what would be done, and do nothing.
    """

    def __init__(
        self,
        core: OverseerCore,
        files: Files,
        batch: Batch,
        clock: Clock,
        say: Callable[[str], None],
        *,
        dry_run: bool = False,
    ) -> None:
        self._core = core
        self._files = files
        self._batch = batch
        self._clock = clock
        self._say = say
        self._dry_run = dry_run
        self._contents: dict[str, ResourceFile] = {}
        self.failed = False
        """Whether a file could not be read, or the batch system did not answer or refused."""
        self._round = Round()

    def run(self) -> None:
        """Run rounds until all computations are finished, no job is left, and no computation can be added."""
        while True:
            self._look()
            if self._core.is_due(self._clock.monotonic()):
                self._finish_round()
                if self._core.done and not self._files.more_may_come:
                    return
            left_s = self._core.next_deadline() - self._clock.monotonic()
            self._clock.sleep(min(LOOK_S, max(0.0, left_s)))

    def run_round(self) -> None:
        """Look at the files and the batch system, decide once, and act."""
        self._look()
        self._finish_round()

    def last_round(self) -> dict[str, Any]:
        """Return what the last round found and did, for scripts."""
        found = [self._round.of(each) for each in self._core.computations.values()]
        return {"failed": self.failed, "computations": found}

    def _look(self) -> None:
        for computation in self._files.find():
            self._core.watch(computation)
        for mark in self._core.computations:
            self._read(mark)

    def _finish_round(self) -> None:
        self._round = Round()
        self._list()
        while (actions := self._decide()).ask:
            for job_id in actions.ask:
                self._handle(Ended(job_id, self._batch.outcome(job_id)))
        self._round.decided(actions)
        if not self._dry_run:
            self._act(actions)
            self._decide()

    # ---- what happened -------------------------------------------------------------------------------------

    def _handle(self, event: OverseerEvent) -> None:
        self._core.handle(event, self._clock.monotonic())

    def _fail(self, event: OverseerEvent) -> None:
        self.failed = True
        self._handle(event)

    def _read(self, mark: str) -> None:
        try:
            content = self._files.read(mark)
        except ResourceFileError as error:
            if not self._core.computations[mark].done:
                self._fail(FileUnread(mark, str(error)))
        else:
            self._contents[mark] = content
            self._handle(FileRead(mark, _need(content, self._clock.wall())))

    def _list(self) -> None:
        try:
            jobs = self._batch.jobs()
        except BatchUnavailable as error:
            self._fail(NotListed(str(error)))
        else:
            slaves = max((each.slaves_per_job for each in self._core.computations.values()), default=1)
            self._handle(Listed(jobs, self._batch.free_places(slaves)))

    # ---- what must be done ---------------------------------------------------------------------------------

    def _decide(self) -> OverseerActions:
        self._core.decide(self._clock.monotonic())
        actions = self._core.take_actions()
        for line in actions.say:
            self._say(line)
        return actions

    def _act(self, actions: OverseerActions) -> None:
        if actions.remove:
            try:
                self._batch.remove(actions.remove)
            except BatchUnavailable as error:
                self._fail(NotRemoved(actions.remove, str(error)))
            else:
                self._round.removed += actions.remove
        for submit in actions.submit:
            self._submit(submit)

    def _submit(self, submit: Submit) -> None:
        try:
            launch = replace(self._files.launch(submit.mark, self._contents[submit.mark]), avoided=submit.avoided)
            job_ids = self._batch.submit(launch, submit.count)
        except (BatchUnavailable, OSError) as error:
            self._fail(NotSubmitted(submit.mark, submit.count, str(error)))
            return
        self._handle(Submitted(submit.mark, job_ids))
        self._round.submitted[submit.mark] = [*job_ids]
        name = self._core.computations[submit.mark].name
        self._say(f"{name}: submitted {_range(job_ids)}, which run `{shlex.join(launch.command)}`")


def _need(content: ResourceFile, wall: float) -> Need:
    """The content of a resource file for the core, at Unix time `wall`."""
    return Need(
        generation=content.generation,
        finished=content.computation_status == resource_file.FINISHED,
        written=content.timestamp,
        age_s=wall - content.timestamp,
        interval_s=content.update_interval,
        slaves_needed=content.slaves_needed,
        connected=content.connected_jobs,
        excluded=content.excluded_hosts,
        shortest_task_s=content.shortest_task,
    )


def _range(job_ids: Sequence[str]) -> str:
    return job_ids[0] if len(job_ids) == 1 else f"{job_ids[0]} to {job_ids[-1]}"
