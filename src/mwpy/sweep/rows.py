"""The runs of one row of a sweep: what a slave does for it, and what it brings back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, define, evolve
from msgspec import Struct

import mwpy
from mwpy.sweep.command import Command, Outcome
from mwpy.sweep.files import File
from mwpy.sweep.results import NotFound, Result


class Plan(Struct, frozen=True):
    """What each run of a stage does."""

    command: Command
    results: tuple[Result, ...]
    keeps_streams: bool
    """Whether the standard output and error of each run are brought back, to be printed."""


class Ran(Struct, frozen=True):
    """What a run brought back."""

    results: dict[str, int | float | str]
    outcome: Outcome
    """What its program did. It has no standard output and error, unless they are printed."""

    @property
    def outputs(self) -> dict[str, File | list[File]]:
        """The outputs of the program, for other stages."""
        return self.outcome.outputs


def outcome_of(result: mwpy.Result[Ran]) -> Outcome | None:
    """Return what the program of a run did, also if it failed; None if it did not run."""
    return result.value.outcome if result.error is None else getattr(result.error.__cause__, "outcome", None)


class RunFailed(Exception):
    """A program ended well, but what it wrote is not what was asked for."""

    __module__ = "mwpy"


def one_run(plan: Plan, values: dict[str, Any], files: Mapping[str, Any]) -> Ran:
    """Make one run of a sweep.

    Args:
        files: files of other stages, by the names that they have in the folder of the run.

    Raises:
        CommandFailed: the program failed.
        RunFailed: a result was not found.
    """
    command = plan.command.with_inputs(files) if files else plan.command
    outcome = command(**values)
    try:
        results = {result.name: result.found_in(outcome) for result in plan.results}
    except NotFound as error:
        raise RunFailed(f"{error}\nto repeat it: {outcome.command}") from None
    nothing = File("", b"")
    return Ran(results, outcome if plan.keeps_streams else evolve(outcome, stdout_file=nothing, stderr_file=nothing))


class Named:
    """`one_run` under the name of its program, which messages and `mwpy status` show."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, plan: Plan, values: dict[str, Any], files: Mapping[str, Any]) -> Ran:
        """Make one run of a sweep."""
        return one_run(plan, values, files)


@define
class Row:
    """A row of a sweep, and what its runs have brought back."""

    number: int
    missing: int
    """How many of its runs have not ended."""
    results: dict[str, int | float | str] = Factory(dict)
    outputs: dict[str, File | list[File]] = Factory(dict)
    failure: str = ""
    """Why a run failed, with a command that repeats it; empty if none did."""
    is_cancelled: bool = False
    """Whether a run was not made."""
    place: tuple[str, str, float, int] = ("", "", 0.0, 0)
    """Host and slave of the last run, the seconds of all runs, and the most attempts of one."""
    finished: float = 0.0
    """When the last run ended, in seconds since 1970."""
    reused: bool = False
    """Whether all of its runs were made at an earlier start."""
    streams: tuple[File, File] | None = None
    archives: dict[str, File] = Factory(dict)
    """The folders of runs, by the name of their stage."""

    def take(self, result: mwpy.Result[Ran], stage: str) -> None:
        """Take over how a run has ended.

        Args:
            stage: the name of its stage; empty if there is only one.
        """
        self.missing -= 1
        error = result.error
        if isinstance(error, mwpy.TaskCancelled):
            self.is_cancelled = True
            return
        if isinstance(error, mwpy.DependencyFailed):  # the stage before it says why, or was cancelled
            return
        seconds, attempts = self.place[2] + result.compute_seconds, max(self.place[3], result.attempts)
        self.place = result.host or "", result.sid or "", seconds, attempts
        self.finished = max(self.finished, result.finished)
        if error is None:
            self.results |= result.value.results
            self.outputs |= result.value.outputs
        else:
            text = str(error.__cause__ or error.text)
            self.failure = f"task {stage}: {text}" if stage else text
        if (outcome := outcome_of(result)) is not None:
            self.streams = outcome.stdout_file, outcome.stderr_file
            if outcome.archive is not None:
                self.archives[stage] = outcome.archive

    def in_columns(self, names: Sequence[str]) -> tuple[int | float | str, ...]:
        """Return its results in the columns of a table."""
        return tuple(self.results.get(name, "") for name in names)
