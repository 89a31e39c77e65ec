"""Which ends of jobs are failures, and what exit codes mean."""

from __future__ import annotations

import re

from mwpy._values.errors import ExitCode
from mwpy._values.jobs import End, Outcome

__all__ = ["YOUNG_S", "explain", "is_failure", "may_pass"]

YOUNG_S = 30.0
"""A job that ended within this many seconds failed at its start. A job that runs longer works well."""

EXPLANATIONS = {
    1: "its script failed before it called mwpy.main()",
    ExitCode.USAGE: "a bad option, or a bad or missing resource file",
    ExitCode.REFUSED: "the master refused it, or another program listens at the master's address",
    ExitCode.UNREACHABLE: "no address of the master answered",
    ExitCode.EVICTED: "it was sent away, or its time limit had passed: is the clock of its machine right?",
    ExitCode.CANNOT_START: "its slaves die before they can take a task",
    126: "its program cannot be executed there",
    127: "its program does not exist there",
    ExitCode.FAILED: "the master was lost",
}

NOT_INSTALLED = re.compile(r"No module named '?mwpy\b")
"""What Python writes if it has no mwpy."""


def explain(outcome: Outcome) -> str:
    """Describe how a job ended, and what its exit code means."""
    if NOT_INSTALLED.search(outcome.stderr):
        remedy = "install it there, or name another Python (--command, or python=PATH in a hosts file)"
        return f"{outcome.description} (the Python that the job uses has no mwpy: {remedy})"
    meaning = EXPLANATIONS.get(outcome.exit_code) if outcome.exit_code is not None else None
    return f"{outcome.description} ({meaning})" if meaning else outcome.description


def is_failure(outcome: Outcome) -> bool:
    """Return whether a job failed at its start. A job that was removed or shut down has not failed.

    A job that left by itself after seconds has failed, too: a machine with a wrong clock would take job after job.
    """
    failed = outcome.end is End.KILLED or outcome.exit_code not in (None, ExitCode.OK)
    return failed and outcome.ran_s < YOUNG_S


def may_pass(outcome: Outcome) -> bool:
    """Return whether the cause of a failure may pass soon.

    If a task has killed the job, the master will give up this task. A machine that sent the job away may be free later.
    """
    return outcome.end is End.KILLED or outcome.exit_code == ExitCode.EVICTED
