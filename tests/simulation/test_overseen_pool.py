"""The cores of overseer, masters and agents together, in simulated batch systems with every fault on."""

from __future__ import annotations

import pytest

from mwpy._core.overseer.core import NotSubmitted, OverseerCore, OverseerEvent, Submitted
from mwpy._simulation.batch import OverseenPool
from mwpy.testing import SimulationFailure


@pytest.mark.timeout(0)  # as long as the seeds take; `OverseenPool` has a limit of its own
def test_no_storm_no_busy_job_removed_and_none_left_whatever_fails(seeds: range) -> None:
    """Jobs fail, are held, evicted and lost, answers too; masters and overseer are killed: all finish in the end."""
    for seed in seeds[: len(seeds) // 25]:
        OverseenPool(seed).run()


def test_one_seed_is_one_history() -> None:
    histories = []
    for _ in range(2):
        pool = OverseenPool(7)
        pool.run()
        histories.append(pool.transcript)
    assert histories[0] == histories[1]
    assert any("submits" in line for line in histories[0])


def test_a_storm_is_noticed_and_tells_its_seed() -> None:
    """An overseer that forgets what it has submitted, as long as no list shows it, submits it again."""
    found = next(error for seed in range(40) if (error := storm(seed)) is not None)
    assert found.transcript


def storm(seed: int) -> SimulationFailure | None:
    """What is found wrong with a forgetful overseer."""
    pool = OverseenPool(seed)
    pool.restarts = False
    pool.core = _Forgetful(pool.core)  # type: ignore[assignment]
    try:
        pool.run()
    except SimulationFailure as error:
        return error
    return None


class _Forgetful:
    """A core that is not told what was submitted."""

    def __init__(self, core: OverseerCore) -> None:
        self._core = core

    def handle(self, event: OverseerEvent, now: float) -> None:
        if not isinstance(event, Submitted | NotSubmitted):
            self._core.handle(event, now)

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)
