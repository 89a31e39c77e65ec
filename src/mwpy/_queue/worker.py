"""Runs the entries of a user: starts their masters, gives them slaves, ends them, and says how they ended.

A master is a process of its own, as `mwpy oversee --with local` starts agents: it outlives the worker, and its
processes have its id in their environment. So the next worker finds it. One that was killed is started again with its
run database, and goes on. All that a worker must know is in the folder; what it remembers only saves work.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._batch.local import Local
from mwpy._queue.entry import ENDED, Entry, Run, State, Turn
from mwpy._queue.folder import STATE, Decision, Folder, Work, beat, changed, protect, store, user_name
from mwpy._queue.order import removed
from mwpy._queue.oversight import Oversight, oversight, put_hosts
from mwpy._queue.service import PAUSE_S, locked, loop, say
from mwpy._queue.submission import add_again, occasions
from mwpy._system import clock, process
from mwpy._system.script import mentions_main
from mwpy._values.errors import MwpyError, UsageError
from mwpy._values.jobs import JobState, Outcome
from mwpy._values.options import QUEUED_VARIABLE
from mwpy.run_database import RunDatabase, run_at_end

MASTER_S = 900.0
"""A master lives if its resource file is younger than this, in seconds: three times the longest usual time."""

MAX_STARTS = 20
"""How often a master is started that is killed again and again."""

CAUSE = re.compile(r" *failed: |[A-Za-z_][\w.]*(Error|Exception|Failed|Failures|Interrupt|OutOfTime): ")
"""How the line begins that says what went wrong, at the end of a sweep or of a traceback. Notes may follow it."""

COLLECT_S = 600.0
"""How long it may take to write the table of a sweep that was ended, in seconds."""

REPEATS_S = 10.0
"""How often it is looked whether an entry that repeats must add another one, in seconds."""

IN_FOLDER = 'cd "$0" && unset MWPY_JOB && exec env "$@"'
"""Runs a master in the folder of its entry. It is no agent, although it is a job."""


@define(eq=False)
class Worker:
    """The worker of a user.

    Args:
        folder: the queue.
        options: more options of `mwpy oversee`.
        for_all: whether it runs the entries of all users, as this one.
    """

    _folder: Folder
    _options: Sequence[str]
    _for_all: bool = False
    _oversight: Oversight | None = None
    """What gives slaves to the entries; None until the keeper has said where they are."""
    _oversees: tuple[str, int] = ("", 0)
    """The batch system where they are, and how many one job has."""
    _masters: dict[str, Local] = Factory(dict)
    _started: set[str] = Factory(set)
    """The names of entries whose masters were started and are not forgotten."""
    _ending: set[int] = Factory(set)
    """The entries whose end is being reported, or was."""
    _look_at: dict[int, float] = Factory(dict)
    """When it is looked next whether an entry that repeats must add another one, on the monotonic clock."""
    _served: list[Entry] = Factory(list)
    """The entries whose masters run and have written their resource files."""
    _faults: dict[int, str] = Factory(dict)
    """What was said about an entry that cannot go on now."""
    _work: Work | None = None

    def is_mine(self, entry: Entry) -> bool:
        """Whether it runs an entry."""
        return self._for_all or entry.uid == os.geteuid()

    def beat(self) -> float:
        """Say that it lives and what its entries want. Return the time of the queue.

        Raises:
            OSError: the folder cannot be written.
        """
        former, self._work = self._work, Work() if self._oversight is None else self._oversight.work
        return beat(self._folder.path / f"work-{os.geteuid()}.json", self._work, former)

    def leave(self) -> None:
        """Say that it does not work any more."""
        with suppress(OSError):
            (self._folder.path / f"work-{os.geteuid()}.json").unlink(missing_ok=True)

    def step(self, entries: Sequence[Entry], decision: Decision, now: float) -> None:
        """Do what the keeper has decided for the entries of this user. A fault of one entry harms no other."""
        self._served.clear()
        self._end_others(entries)
        ends: list[tuple[Entry, Run]] = []
        for each in entries:
            turn = decision.turns.get(each.number)
            if turn is None or each.has_ended or each.number in self._ending or not self.is_mine(each):
                continue
            try:
                if (end := self._step(each, turn, now)) is not None:
                    ends.append((each, end))
                if turn.state is not State.REPEATS:
                    self._faults.pop(each.number, None)
            except Exception as error:
                self._cannot_go_on(each.number, error)
        self._oversee(decision)
        for entry, run in ends:
            say(f"entry {entry.number} is {run.state.value}{f': {run.reason}' if run.reason else ''}")
            with suppress(RuntimeError):  # there are too many threads now, so it is tried again
                threading.Thread(target=self._report, args=(entry, run), daemon=True).start()
                self._ending.add(entry.number)

    def _cannot_go_on(self, number: int, error: Exception) -> None:
        """Say once why an entry cannot go on."""
        text = str(error) if isinstance(error, OSError | MwpyError) else traceback.format_exc()
        if self._faults.get(number) != text:
            self._faults[number] = text
            say(f"entry {number} cannot go on now: {text}")

    def _oversee(self, decision: Decision) -> None:
        """Give slaves to entries, as many as the keeper has decided.

        Raises:
            UsageError: an option of the overseer is wrong.
        """
        where = decision.system, decision.slaves_per_job
        if self._oversight is None or self._oversees != where:
            self._oversight, self._oversees = oversight(self._folder, decision, self._options), where
        put_hosts(self._folder, decision)
        self._oversight.adjust(self._served, sum(decision.places.get(os.geteuid(), {}).values()))

    # ---- one entry ------------------------------------------------------------------------------------------

    def _step(self, entry: Entry, turn: Turn, now: float) -> Run | None:
        """Go on with an entry. Return how it has ended."""
        if turn.state is State.REPEATS:
            self._repeat(entry, now)
        elif entry.run is not None and entry.is_running:
            return self._watch(entry, entry.run, turn, now)
        elif turn.state is State.RUNNING and not entry.fault:
            if entry.path.name not in self._started:
                return self._watch(entry, self._begun(entry, now), turn, now)
            entry.run_path.mkdir(exist_ok=True, mode=0o750)
            return Run(State.FAILED, removed(entry), ended=now)
        elif turn.state in ENDED and not turn.has_begun and entry.asked.on_end:
            entry.run_path.mkdir(exist_ok=True, mode=0o750)
            return Run(turn.state, turn.reason, ended=now)
        return None

    def _begun(self, entry: Entry, now: float) -> Run:
        """Copy the input into the folder in which it runs."""
        new = entry.run_path.with_name(f".{entry.run_path.name}-{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        try:
            shutil.copytree(entry.path / "input", new, symlinks=True)
            protect(new)
            run = Run(State.RUNNING, began=now, host=os.uname().nodename)
            store(new / STATE, run)
            new.rename(entry.run_path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return run

    @property
    def _jobs(self) -> Path:
        """The folder with the masters that this worker has started, as jobs."""
        return self._folder.path / f"masters-{os.geteuid()}"

    def _end_others(self, entries: Sequence[Entry]) -> None:
        """End masters whose entries do not run, because somebody has removed their folders. Forget those that ended.

        Raises:
            UsageError: somebody else has made the folder of masters.
            OSError: the file system does not show whether an entry runs.
        """
        self._jobs.mkdir(exist_ok=True, mode=0o700)
        if self._jobs.lstat().st_uid != os.geteuid():
            raise UsageError(f"{self._jobs} belongs to another user: remove it")
        self._started = {name for name in os.listdir(self._jobs) if name.isdecimal()}
        for each in entries:
            if each.run is None and each.path.name in self._started:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.stat(each.run_path / STATE)
        for name in self._started - {each.path.name for each in entries if each.is_running}:
            try:
                if not _end(self._masters.setdefault(name, Local(self._jobs / name))):
                    shutil.rmtree(self._jobs / name, ignore_errors=True)
            except (MwpyError, OSError) as error:
                self._cannot_go_on(int(name), error)

    def _watch(self, entry: Entry, run: Run, turn: Turn, now: float) -> Run | None:
        """Start the master of an entry, or see how it goes. Return how it has ended."""
        jobs = self._jobs / entry.path.name
        master = self._masters.setdefault(jobs.name, Local(jobs))
        why = ""
        if turn.state in ENDED:
            why = turn.reason
        elif entry.asked.limit_s is not None and now > run.began + entry.asked.limit_s:
            why = f"it was over its limit of {entry.asked.limit_s:g} s"
        if run.host != os.uname().nodename:
            if now < changed(entry.resource) + MASTER_S:
                if why:
                    raise UsageError(
                        f"its master runs on {run.host}, so only a worker there can end it: start one there"
                    )
                self._served.append(entry)
                return None
            run = replace(run, host=os.uname().nodename)
            store(entry.run_path / STATE, run)
        if alive := master.jobs():
            if why:
                _end(master)
            elif changed(entry.resource) >= changed(jobs / alive[-1].job_id / "about"):
                self._served.append(entry)
            return None
        started = sorted(jobs.glob("job-*"), key=lambda path: path.stat().st_mtime)
        outcome = master.outcome(started[-1].name) if started else None
        if outcome is not None and outcome.exit_code is not None:
            reason = "" if outcome.exit_code == 0 else _reason(outcome)
            state = State.FAILED if reason else State.DONE
            ended = (started[-1] / "about").stat().st_mtime + outcome.ran_s
            return replace(run, state=state, reason=reason, ended=ended, code=outcome.exit_code)
        if not why and len(started) >= MAX_STARTS:
            why = f"it was killed {len(started)} times{f': {_reason(outcome)}' if outcome else ''}"
        if why:
            return replace(run, state=turn.state if turn.state in ENDED else State.FAILED, reason=why, ended=now)
        self._start(entry, master)
        return None

    def _start(self, entry: Entry, master: Local) -> None:
        """Start the master of an entry, without slaves of its own."""
        asked = entry.asked
        if entry.study is not None:
            words = [asked.python, "-m", "mwpy", "sweep", str(entry.study), "--slaves", "0", *asked.words[1:]]
        else:
            words = [asked.python, str(entry.run_path / asked.words[0]), *asked.words[1:]]
            if mentions_main(words[1]):
                options = ["--mw-resource-file", str(entry.resource), "--mw-run-database", str(entry.database)]
                words[2:2] = ["--mw-master", *options]
        entry.log.mkdir(exist_ok=True)
        (self._jobs / entry.path.name).mkdir(exist_ok=True)
        variable = f"{QUEUED_VARIABLE}={entry.resource}"
        in_folder = ["/bin/sh", "-c", IN_FOLDER, str(entry.run_path), variable, *words]
        master.start(in_folder, "master", str(entry.log))
        say(f"entry {entry.number} ({asked.name} of {user_name(entry.uid)}) starts")

    def _report(self, entry: Entry, run: Run) -> None:
        """Remove what an entry has left, write its report, run its command, and record the end. This takes a while."""
        database = None
        try:
            database = entry.database if entry.database.exists() else None
            if self._oversight is not None and entry.resource.exists():
                self._oversight.remove(entry)
            if database is not None:
                RunDatabase(database).report(entry.run_path / "report.html")
            if entry.study is not None and run.state is not State.DONE:  # else it has its tables
                table = ["--to", str(entry.resource.with_name("results.csv"))]
                words = [entry.asked.python, "-m", "mwpy", "sweep", "collect", str(entry.study), *table]
                process.run(words, timeout_s=COLLECT_S)
        except Exception as error:  # whatever it is, the end counts
            say(f"entry {entry.number} has no report, or has left jobs: {error}")
        if entry.asked.on_end:
            summary = {"entry": entry.number, "name": entry.asked.name, "state": run.state.value}
            summary |= {"reason": run.reason, "folder": str(entry.run_path), "user": user_name(entry.uid)}
            summary |= {"began": run.began, "ended": run.ended, "occasion": entry.asked.occasion}
            if fault := run_at_end(entry.asked.on_end, json.dumps(summary), database, entry.run_path):
                say(f"entry {entry.number}: {fault}")
                run = replace(run, reason="; ".join(filter(None, (run.reason, fault))))
        while True:
            try:
                if entry.run_path.exists():
                    store(entry.run_path / STATE, run)
                break
            except OSError:  # the disk is full, or the file system does not answer
                clock.sleep(PAUSE_S)

    def _repeat(self, entry: Entry, now: float) -> None:
        """Add the entries that are due, and remember for which occasion."""
        if clock.monotonic() < self._look_at.get(entry.number, 0.0):
            return
        self._look_at[entry.number] = clock.monotonic() + REPEATS_S
        run = entry.run or Run(State.REPEATS)
        since = run.occasion or entry.asked.occasion or clock.date(entry.path.stat().st_mtime)
        due = occasions(entry.asked, since, now)
        others = self._folder.entries() if due else []
        made = [each.asked.occasion for each in others if each.asked.made_by == entry.number]
        for occasion in due:
            if occasion not in made:
                added = add_again(self._folder, entry, occasion)
                say(f"entry {entry.number} has added entry {added.number}")
        if due:
            entry.run_path.mkdir(exist_ok=True, mode=0o750)
            store(entry.run_path / STATE, replace(run, occasion=due[-1]))


def _end(master: Local) -> bool:
    """End a master. Return whether it runs still."""
    alive = master.jobs()
    master.remove([job.job_id for job in alive if job.state is not JobState.LEAVING])
    return bool(alive)


def _reason(outcome: Outcome) -> str:
    """How a master has ended, with its last words."""
    lines = [line.rstrip() for line in outcome.stderr.splitlines() if line.strip() and " [A] " not in line]
    causes = [line for line in lines if CAUSE.match(line)]
    return f"{outcome.description}{f': {(causes or lines)[-1].strip()}' if lines else ''}"


def run(folder: Folder, options: Sequence[str], interval_s: float) -> int:
    """Run the entries of this user as the keeper decides, until this process is stopped. Return the exit code.

    Raises:
        UsageError: the keeper, or another worker of this user, does this.
    """
    if folder.keeper_uid == os.geteuid():
        raise UsageError(f"{folder.path} belongs to this user, so its keeper runs the entries of this user")
    lock = locked(folder.path / f"work-{os.geteuid()}.lock", "a worker of this user")
    worker = Worker(folder, options)
    say(f"works for {user_name(os.geteuid())} in {folder.path}")
    if folder.decision() is None:
        say(f"waits for a keeper: `mwpy queue {folder.path}`")

    def look() -> float:
        entries, decision = folder.entries(), folder.decision()
        now = worker.beat()
        if decision is not None:
            worker.step(entries, decision, now)
        return interval_s

    return loop(lock, look, worker.leave)
