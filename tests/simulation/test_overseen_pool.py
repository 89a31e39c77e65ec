"""An overseer with its loop and core runs with simulated masters, agents and batch systems, and with every fault."""

from __future__ import annotations

import re

import pytest

from mwpy._core.overseer import OverseerCore, OverseerEvent, Submitted
from mwpy._simulation.batch import OverseenPool
from mwpy.testing import SimulationFailure


@pytest.mark.timeout(0)  # no limit: there may be many seeds, and `OverseenPool` limits each run
def test_all_computations_finish_without_superfluous_jobs_despite_faults(seeds: range) -> None:
    """No job that runs tasks is removed, no job is left at the end, and there are never more jobs than useful."""
    for seed in seeds[: max(1, len(seeds) // 25)]:
        OverseenPool(seed).run()


@pytest.mark.long
def test_the_simulation_finds_superfluous_jobs_and_shows_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overseer submits too many jobs if it forgets its submissions until the batch system lists them."""
    handle = OverseerCore.handle

    def forget(core: OverseerCore, event: OverseerEvent, now: float) -> None:
        if not isinstance(event, Submitted):
            handle(core, event, now)

    monkeypatch.setattr(OverseerCore, "handle", forget)
    for seed in range(40):
        pool = OverseenPool(seed)
        pool.restarts = False
        try:
            pool.run()
        except SimulationFailure as failure:
            if re.search("are allowed|never had work for more than", str(failure)) and failure.transcript:
                return
    pytest.fail("no superfluous job was found")
