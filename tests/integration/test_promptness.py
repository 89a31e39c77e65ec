"""How long a finished result stays at its slave, even if the slave runs a long task next."""

from __future__ import annotations

from tests.integration.apps.stage import Stage

from mwpy._core.agent.limits import SILENT_S
from mwpy._core.agent.traffic import AGAIN_S
from mwpy._roles.runner import GATHER_S, STRETCH_S

PROMISED_S = 0.05
"""The time after which a finished result has left its slave."""


def test_the_delays_of_a_result_add_up_to_the_promised_time() -> None:
    """A slave gathers results for some time. The agent reads the journal of a slave that is silent for longer. It looks
    twice for results that are in no journal."""
    assert 0 < GATHER_S <= STRETCH_S < SILENT_S
    assert SILENT_S + AGAIN_S <= PROMISED_S


def test_a_finished_result_does_not_wait_for_the_next_task_even_if_that_takes_an_hour(stage: Stage) -> None:
    """A long task follows each of ten quick tasks, and ends only when the result of the quick task has arrived. The
    unit tests and the simulator show, with clocks of their own, that the agent looks at the promised times."""
    run = stage.start("several.py", "hour", "--mw-local", 1, "--mw-slave-task-group", 3)
    assert run.end() == 0, run.err
    assert run.report == [["before", "quick", "hour"]] * 10
    stage.no_process_left()
