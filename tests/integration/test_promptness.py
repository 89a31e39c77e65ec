"""How long a finished result may stay where it was computed, whatever its slave does next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage

from mwpy._core.agent.watch import SILENT_S
from mwpy._roles.task_runner import GATHER_S

PROMISED_S = 0.05
"""A finished result has left its slave after so long."""

SCHEDULING_S = 0.15
"""What three processes may wait for their turns on a busy machine, in the best of ten tries."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def test_the_times_that_a_result_may_wait_add_up_to_what_is_promised() -> None:
    """A slave gathers results for some time, and only one that is silent for longer has its journal read."""
    assert 0 < GATHER_S < SILENT_S
    assert GATHER_S + SILENT_S <= PROMISED_S


def test_a_finished_result_leaves_its_slave_at_once_even_when_the_next_task_runs_for_an_hour(stage: Stage) -> None:
    """The best of ten quick results, each with a long task right behind it, is with the master after 50 ms."""
    run = stage.start("hour.py", "--mw-local", 1, "--mw-slave-task-group", 3)
    assert run.end() == 0, run.err
    assert len(run.report) == 10
    assert min(run.report) < PROMISED_S + SCHEDULING_S, run.report
    stage.nobody_left()
