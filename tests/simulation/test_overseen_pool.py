"""The loop and core of an overseer with simulated masters, agents and batch systems, and with every fault."""

from __future__ import annotations

import pytest

from mwpy._core.overseer.core import OverseerCore
from mwpy._core.overseer.events import NotSubmitted, OverseerEvent, Submitted
from mwpy._simulation.overseen_pool import OverseenPool
from mwpy.testing import SimulationFailure


@pytest.mark.timeout(0)  # it takes as long as the seeds take; `OverseenPool` has a limit of its own
def test_all_computations_finish_without_superfluous_jobs_whatever_fails(seeds: range) -> None:
    """No job at work is removed, no job is left, and there are never more jobs than could be useful."""
    for seed in seeds[: max(1, len(seeds) // 25)]:
        OverseenPool(seed).run()


def test_one_seed_is_one_history() -> None:
    histories = []
    for _ in range(2):
        pool = OverseenPool(7)
        pool.run()
        histories.append(pool.transcript)
    assert histories[0] == histories[1]
    assert any("submits" in line for line in histories[0])


def test_superfluous_jobs_are_found_and_the_failure_shows_its_history() -> None:
    """An overseer that forgets its submissions until they are in the list submits too many jobs."""
    found = next(error for seed in range(40) if (error := failure(seed)) is not None)
    assert "are allowed" in str(found) or "never had work for more than" in str(found)
    assert found.transcript


def failure(seed: int) -> SimulationFailure | None:
    """Run a forgetful overseer; return what the checks find."""
    pool = OverseenPool(seed, make_core=ForgetfulCore)
    pool.restarts = False
    try:
        pool.run()
    except SimulationFailure as error:
        return error
    return None


class ForgetfulCore(OverseerCore):
    """A core that does not take in what was submitted."""

    def handle(self, event: OverseerEvent, now: float) -> None:
        if not isinstance(event, Submitted | NotSubmitted):
            super().handle(event, now)
