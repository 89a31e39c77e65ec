"""An overseer with its loop and core runs with simulated masters, agents and batch systems, and with every fault."""

from __future__ import annotations

import pytest

from mwpy._core.overseer.core import OverseerCore
from mwpy._core.overseer.files import NotSubmitted, OverseerEvent, Submitted
from mwpy._simulation.batch import OverseenPool
from mwpy.testing import SimulationFailure


@pytest.mark.timeout(0)  # no limit: there may be many seeds, and `OverseenPool` limits each run
def test_all_computations_finish_without_superfluous_jobs_despite_faults(seeds: range) -> None:
    """No job that runs tasks is removed, no job is left at the end, and there are never more jobs than useful."""
    for seed in seeds[: max(1, len(seeds) // 25)]:
        OverseenPool(seed).run()


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for _ in range(2):
        pool = OverseenPool(7)
        pool.run()
        histories.append(pool.transcript)
    assert histories[0] == histories[1]
    assert any("submits" in line for line in histories[0])


@pytest.mark.long
def test_the_simulation_finds_superfluous_jobs_and_shows_the_history() -> None:
    """An overseer submits too many jobs if it forgets its submissions until the batch system lists them."""
    failures = (error for seed in range(40) if (error := failure(seed)) is not None)
    found = next(each for each in failures if "are allowed" in str(each) or "never had work for more than" in str(each))
    assert found.transcript


def failure(seed: int) -> SimulationFailure | None:
    """Simulate an overseer that forgets its submissions. Return the fault that the simulation finds, or None."""
    pool = OverseenPool(seed, make_core=ForgetfulCore)
    pool.restarts = False
    try:
        pool.run()
    except SimulationFailure as error:
        return error
    return None


class ForgetfulCore(OverseerCore):
    """A core that ignores the reports about its submissions."""

    def handle(self, event: OverseerEvent, now: float) -> None:
        if not isinstance(event, Submitted | NotSubmitted):
            super().handle(event, now)
