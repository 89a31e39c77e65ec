"""Runs the entries of a user: starts their masters, gives them slaves, ends them, and says how they ended.

A master is a process of its own, as `mwpy oversee --with local` starts agents: it outlives the worker, and a lock tells
whether it lives. So the next worker finds it. One that was killed is started again with its run database, and goes on.
All that a worker must know is in the folder; what it remembers only saves work.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._batch.local import Local
from mwpy._queue.entry import ENDED, Entry, Run, State, Turn
from mwpy._queue.folder import LIVES_S, Decision, Folder, Work, beat, changed, protect, store, user_name
from mwpy._queue.order import last_time
from mwpy._queue.oversight import Oversight, Say, oversight, put_hosts
from mwpy._queue.submission import add_again, new_commits
from mwpy._system import clock, process
from mwpy._system.locks import FileLock, LockHeld, LocksUnsupported
from mwpy._system.script import mentions_main
from mwpy._values.errors import ExitCode, MwpyError, UsageError
from mwpy._values.jobs import Outcome
from mwpy._values.options import QUEUED_VARIABLE
from mwpy.run_database import RunDatabase, run_at_end

MAX_STARTS = 20
"""How often a master is started that is killed again and again."""

PATIENCE_S = 30.0
"""How long one look at the folder may take until this is said, in seconds."""

PAUSE_S = 1.0
"""The time between two attempts to use the folder while its file system fails, in seconds."""

CAUSE = re.compile(r" *failed: |[A-Za-z_][\w.]*(Error|Exception|Failed|Failures|Interrupt|OutOfTime): ")
"""How the line begins that says what went wrong, at the end of a sweep or of a traceback. Notes may follow it."""

COLLECT_S = 600.0
"""How long it may take to write the table of a sweep that was ended, in seconds."""

WATCH_S = 10.0
"""How often a repository is asked for new commits, in seconds."""


@define(eq=False)
class Worker:
    """The worker of a user.

    Args:
        folder: the queue.
        options: more options of `mwpy oversee`.
        say: prints a line.
        for_all: whether it runs the entries of all users, as this one.
    """

    _folder: Folder
    _options: Sequence[str]
    _say: Say
    _for_all: bool = False
    _oversight: Oversight | None = None
    """What gives slaves to the entries; None until the keeper has said where they are."""
    _oversees: tuple[str, int] = ("", 0)
    """The batch system where they are, and how many one job has."""
    _masters: dict[int, Local] = Factory(dict)
    _ending: dict[int, process.Background[Run]] = Factory(dict)
    """The entries whose end is being reported."""
    _look_at: dict[int, float] = Factory(dict)
    """When the repository of an entry is asked next, on the monotonic clock."""
    _served: set[int] = Factory(set)
    """The entries whose masters run and have written their resource files."""
    _said: dict[int, str] = Factory(dict)
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
        mine = [each for each in entries if self.is_mine(each)]
        self._served.clear()
        ends: list[tuple[Entry, Run]] = []
        for each in mine:
            turn = decision.turns.get(str(each.number))
            if turn is None or (each.run is not None and each.run.state in ENDED):
                if (ending := self._ending.pop(each.number, None)) is not None:
                    ending.close(0.0)
                continue
            try:
                end = self._step(each, turn, now)
                if end is not None:
                    ends.append((each, end))
                if not each.repeats:
                    self._said.pop(each.number, None)
            except Exception as error:
                text = str(error) if isinstance(error, OSError | MwpyError) else traceback.format_exc()
                if self._said.get(each.number) != text:
                    self._said[each.number] = text
                    self._say(f"entry {each.number} cannot go on now: {text}")
        self._oversee([each for each in mine if each.number in self._served], decision)
        for entry, run in ends:
            self._report(entry, run)

    def _oversee(self, entries: Sequence[Entry], decision: Decision) -> None:
        """Give slaves to entries, as many as the keeper has decided.

        Raises:
            UsageError: an option of the overseer is wrong.
        """
        where = decision.system, decision.slaves_per_job
        if self._oversight is None or self._oversees != where:
            self._oversight, self._oversees = oversight(self._folder, decision, self._options, self._say), where
        put_hosts(self._folder, decision)
        self._oversight.adjust(entries, decision.places.get(str(os.geteuid()), 0))

    # ---- one entry ------------------------------------------------------------------------------------------

    def _step(self, entry: Entry, turn: Turn, now: float) -> Run | None:
        """Go on with an entry. Return how it has ended."""
        if entry.number in self._ending:
            return None
        if turn.state is State.REPEATS:
            self._repeat(entry, now)
        elif entry.run is not None and entry.is_running:
            return self._watch(entry, entry.run, turn, now)
        elif turn.state in ENDED and not turn.has_begun and entry.asked.on_end:
            entry.run_path.mkdir(exist_ok=True, mode=0o750)
            return Run(turn.state, turn.reason, ended=now)
        elif turn.state is State.RUNNING and not entry.fault:
            return self._watch(entry, self._begun(entry, now), turn, now)
        return None

    def _begun(self, entry: Entry, now: float) -> Run:
        """Copy the input into the folder in which it runs."""
        new = entry.run_path.with_name(f".{entry.run_path.name}-{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        try:
            shutil.copytree(entry.path / "input", new, symlinks=True)
            protect(new)
            run = Run(State.RUNNING, began=now, host=os.uname().nodename)
            store(new / "state.json", run)
            new.rename(entry.run_path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return run

    def _watch(self, entry: Entry, run: Run, turn: Turn, now: float) -> Run | None:
        """Start the master of an entry, or see how it goes. Return how it has ended."""
        jobs = entry.run_path / "jobs"
        master = self._masters.setdefault(entry.number, Local(jobs))
        why = ""
        if turn.state in ENDED:
            why = turn.reason
        elif entry.asked.limit_s is not None and now > run.began + entry.asked.limit_s:
            why = f"it was over its limit of {entry.asked.limit_s:g} s"
        alive = [job.job_id for job in master.jobs()]
        if alive:
            if why:
                master.remove([job for job in alive if not (jobs / job / "removed").exists()])
            elif changed(entry.resource) >= changed(jobs / alive[-1] / "about"):
                self._served.add(entry.number)
            return None
        started = sorted(jobs.glob("job-*"), key=lambda path: path.stat().st_mtime) if jobs.exists() else []
        outcome = master.outcome(started[-1].name) if started else None
        if outcome is not None and outcome.exit_code is not None:
            reason = "" if outcome.exit_code == 0 else _reason(outcome)
            state = State.FAILED if reason else State.DONE
            ended = (started[-1] / "about").stat().st_mtime + outcome.ran_s
            return replace(run, state=state, reason=reason, ended=ended, code=outcome.exit_code)
        if why:
            return replace(run, state=turn.state if turn.state in ENDED else State.FAILED, reason=why, ended=now)
        if len(started) >= MAX_STARTS:
            reason = f"it was killed {len(started)} times{f': {_reason(outcome)}' if outcome else ''}"
            return replace(run, state=State.FAILED, reason=reason, ended=now)
        self._start(entry, master)
        return None

    def _start(self, entry: Entry, master: Local) -> None:
        """Start the master of an entry, without slaves of its own."""
        asked = entry.asked
        if entry.study is not None:
            words = [asked.python, "-m", "mwpy", "sweep", str(entry.study), "--slaves", "0", *asked.words[1:]]
        elif mentions_main(script := str(entry.run_path / asked.words[0])):
            options = ["--mw-resource-file", str(entry.resource), "--mw-run-database", str(entry.database)]
            words = [asked.python, script, "--mw-master", *options, *asked.words[1:]]
        else:
            words = [asked.python, script, *asked.words[1:]]
        entry.log.mkdir(exist_ok=True)
        (entry.run_path / "jobs").mkdir(exist_ok=True, mode=0o700)
        variable = f"{QUEUED_VARIABLE}={entry.resource}"
        in_folder = [
            "/bin/sh",
            "-c",
            'cd "$0" && unset MWPY_JOB && exec env "$@"',
            str(entry.run_path),
            variable,
            *words,
        ]
        master.start(in_folder, "master", str(entry.log))
        self._say(f"entry {entry.number} ({entry.asked.name} of {user_name(entry.uid)}) starts")

    def _report(self, entry: Entry, run: Run) -> None:
        """Remove what an entry has left, write its report, run its command, and record the end. This takes a while."""

        def report(run: Run) -> None:
            database = entry.database if entry.database.exists() else None
            try:
                if self._oversight is not None and entry.resource.exists():
                    self._oversight.remove(entry)
                if database is not None:
                    RunDatabase(database).report(entry.run_path / "report.html")
                if entry.study is not None and run.state is not State.DONE:  # else it has its tables
                    table = ["--to", str(entry.resource.with_name("results.csv"))]
                    words = [entry.asked.python, "-m", "mwpy", "sweep", "collect", str(entry.study), *table]
                    process.run(words, timeout_s=COLLECT_S)
            except Exception as error:  # whatever it is, the end counts
                self._say(f"entry {entry.number} has no report, or has left jobs: {error}")
            if entry.asked.on_end:
                summary = {"entry": entry.number, "name": entry.asked.name, "state": run.state.value}
                summary |= {"reason": run.reason, "folder": str(entry.run_path), "user": user_name(entry.uid)}
                summary |= {"began": run.began, "ended": run.ended, "occasion": entry.asked.occasion}
                if fault := run_at_end(entry.asked.on_end, json.dumps(summary), database, entry.run_path):
                    self._say(f"entry {entry.number}: {fault}")
                    run = replace(run, reason="; ".join(filter(None, (run.reason, fault))))
            while entry.run_path.exists():
                try:
                    store(entry.run_path / "state.json", run)
                    break
                except OSError:  # the disk is full
                    clock.sleep(PAUSE_S)

        self._masters.pop(entry.number, None)
        self._say(f"entry {entry.number} is {run.state.value}{f': {run.reason}' if run.reason else ''}")
        self._ending[entry.number] = process.Background(report, f"mwpy-end-{entry.number}")
        self._ending[entry.number].give(run)

    # ---- entries that repeat --------------------------------------------------------------------------------

    def _repeat(self, entry: Entry, now: float) -> None:
        """Add the entries that are due, and remember for which occasion."""
        asked, run = entry.asked, entry.run or Run(State.REPEATS)
        since = run.occasion or asked.commit
        if asked.daily:
            last = clock.date(last_time(asked.daily, now))
            is_due = last > max(clock.date(entry.path.stat().st_mtime), run.occasion)
            occasions = [last] if is_due else []
        else:
            if clock.monotonic() < self._look_at.get(entry.number, 0.0):
                return
            self._look_at[entry.number] = clock.monotonic() + WATCH_S
            occasions = new_commits(asked, since)
            self._said.pop(entry.number, None)
        others = self._folder.entries() if occasions else []
        made = [each.asked.occasion for each in others if each.asked.made_by == entry.number]
        for occasion in occasions:
            if occasion not in made:
                added = add_again(self._folder, entry, occasion)
                self._say(f"entry {entry.number} has added entry {added.number}")
            run = replace(run, occasion=occasion)
        if occasions:
            entry.run_path.mkdir(exist_ok=True, mode=0o750)
            store(entry.run_path / "state.json", run)


def _reason(outcome: Outcome) -> str:
    """How a master has ended, with its last words."""
    lines = [line.rstrip() for line in outcome.stderr.splitlines() if line.strip() and " [A] " not in line]
    causes = [line for line in lines if CAUSE.match(line)]
    return f"{outcome.description}{f': {(causes or lines)[-1].strip()}' if lines else ''}"


def locked(path: Path, what: str) -> FileLock:
    """Lock a queue for one keeper, or for one worker of a user.

    Some network file systems lock only within a host. So a holder on another host must not have touched the file for
    a while.

    Raises:
        UsageError: another one has it, or the file system has no locks.
    """
    try:
        holder = path.read_text(errors="replace").strip() if path.exists() else ""
        if holder and f" on {platform.node()}," not in f"{holder},":
            touched, until = path.stat().st_mtime_ns, clock.monotonic() + LIVES_S
            say(f"waits for {LIVES_S:.0f} s, because {holder} has not ended, or was killed")
            while path.exists() and clock.monotonic() < until:
                clock.sleep(PAUSE_S)
                if path.exists() and path.stat().st_mtime_ns != touched:
                    raise LockHeld(holder)
        return FileLock(path, clock.date(clock.wall()))
    except LockHeld as held:
        raise UsageError(f"{what} runs already: {held}. Stop it first") from None
    except LocksUnsupported:
        raise UsageError(f"the file system of {path.parent} has no locks: put the queue on another one") from None
    except OSError as error:
        raise UsageError(f"{what} cannot lock {path} ({error.strerror}): remove it, or free some space") from error


def loop(lock: FileLock, look: Callable[[], float], say: Say, left: str = "what runs goes on") -> int:
    """Look again and again, until this process is stopped. Return the exit code.

    An error of the file system passes: nothing is decided meanwhile.

    Args:
        look: returns after how many seconds it must be called again.
        left: what is said at the end.
    """

    def attempt() -> float | None:
        if not lock.is_exclusive():
            return None
        lock.touch()
        return look()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    attempts, said, pause_s = process.Question(attempt, "mwpy-queue"), "", PAUSE_S
    try:
        while True:
            try:
                found = attempts.ask(PATIENCE_S)
                if found is None:
                    say("ends, because another process has taken its lock: does the file system have locks?")
                    return ExitCode.REFUSED
                pause_s, fault = found, ""
            except TimeoutError:
                fault = f"the folder does not answer for {PATIENCE_S:.0f} s: does its file system hang?"
            except OSError as error:
                fault = f"the folder cannot be used now: {error}"
            if fault != said:
                say(f"waits, because {fault}" if fault else "goes on")
            said = fault
            clock.sleep(pause_s)
    except KeyboardInterrupt:
        say(f"stops; {left}. Start it again to continue")
        return ExitCode.INTERRUPTED
    finally:
        lock.release()


def say(text: str) -> None:
    """Print a line with the time. It is left out if the terminal is gone."""
    with suppress(OSError):
        print(f"{clock.date(clock.wall())} {text}", flush=True)


def run(folder: Folder, options: Sequence[str], interval_s: float) -> int:
    """Run the entries of this user as the keeper decides, until this process is stopped. Return the exit code.

    Raises:
        UsageError: the keeper, or another worker of this user, does this.
    """
    if folder.keeper_uid == os.geteuid():
        raise UsageError(f"{folder.path} belongs to this user, so its keeper runs the entries of this user")
    lock = locked(folder.path / f"work-{os.geteuid()}.lock", "a worker of this user")
    worker = Worker(folder, options, say)
    say(f"works for {user_name(os.geteuid())} in {folder.path}")
    if folder.decision() is None:
        say(f"waits for a keeper: `mwpy queue {folder.path}`")

    def look() -> float:
        entries, decision = folder.entries(), folder.decision()
        now = worker.beat()
        if decision is not None:
            worker.step(entries, decision, now)
        return interval_s

    try:
        return loop(lock, look, say)
    finally:
        worker.leave()
