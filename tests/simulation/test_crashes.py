"""Whole computations whose master has a run database, crashes at any moment, and starts again.

`test_cluster.py` runs many such histories among the others. The tests here show that they are what they should be.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mwpy._core.agent.contact import FormerTasks
from mwpy._core.master.restart import Awaited, Occurrences, Reuse
from mwpy._core.master.spans import Span
from mwpy._simulation.lives import SimulatedRunStore
from mwpy._values import messages, records
from mwpy._values.earlier import Earlier, EarlierUsedUp, Given
from mwpy.testing import Cluster, SimulationFailure


@pytest.mark.timeout(0)
def test_no_life_of_a_master_computes_what_an_earlier_one_has_got(seeds: range) -> None:
    """The master crashes several times, and loses a part of its last commit. All tasks end in its last life."""
    histories = [Cluster(seed, crashes=True) for seed in seeds[: max(10, len(seeds) // 50)]]
    for cluster in histories:
        cluster.run()
        assert len(cluster.ended) == cluster.submitted
    assert sum(cluster.lives for cluster in histories) > 2 * len(histories)
    assert sum(len(cluster.checker.lives.reused) for cluster in histories) > 5 * len(histories)


def test_the_same_seed_gives_the_same_history_over_all_lives() -> None:
    histories = [Cluster(3, crashes=True) for _ in range(2)]
    for cluster in histories:
        cluster.run()
    assert histories[0].lives > 1
    assert histories[0].transcript == histories[1].transcript


def _write_later(store: SimulatedRunStore, given: Given) -> None:
    """Hand the outcomes over before they are in the file."""
    if given.then is not None:
        given.then()
    _write(store, Given(given.records, given.wall, None, given.calls, given.may_wait))


_write = SimulatedRunStore.write


def _forget(reuse: Reuse, spans: Sequence[Span]) -> list[Span]:
    """Answer nothing from the file."""
    return [*spans]


def _try_all_again(reuse: Reuse, entry: Earlier) -> None:
    """Let tasks run again whose attempts are used up."""
    if not isinstance(entry, EarlierUsedUp):
        _apply(reuse, entry)


_apply = Reuse.apply


def _take_the_first(self: Occurrences, key: bytes) -> int | None:
    """Take any occurrence for the first one of its key."""
    self.begin(int.from_bytes(self._mark, "big") + 1)
    return _take(self, key)


_take = Occurrences.take


def _release_all(self: Awaited, number: int, reason: str) -> None:
    """Let tasks run that may have run and must not run twice."""
    span = self.state.jar.delayed.tasks.get(self._held.pop(number, 0))
    if span is not None:
        self.state.record(records.TasksDue([span.whole]))


def _mix_generations(self: FormerTasks, welcome: messages.Welcome) -> None:
    """Let all slaves serve the next generation at once."""
    _joined(self, welcome)
    for child in self._state.living():
        child.former = None


_joined = FormerTasks.joined


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "mistake", "found"),
    [
        (SimulatedRunStore, "write", _write_later, "in an earlier life|computed again"),
        (Reuse, "without_answered", _forget, "in an earlier life|computed again|again in life"),
        (Reuse, "apply", _try_all_again, "its attempts were used up in an earlier life"),
        (
            Occurrences,
            "take",
            _take_the_first,
            "in an earlier life|had the result|again in life|waits for nobody|is given up after 0",
        ),
        (Awaited, "_release", _release_all, "again in life"),
        (
            FormerTasks,
            "joined",
            _mix_generations,
            "of a former generation|another function|never sent|without the object",
        ),
    ],
    ids=[
        *("handed over too early", "nothing is used again", "used-up attempts are forgotten"),
        *("equal calls are confused", "a task runs twice", "generations are mixed"),
    ],
)
def test_the_simulation_finds_a_result_that_is_computed_again(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(part, name, mistake)
    with pytest.raises(SimulationFailure, match=found):
        _run(range(40))


def _run(seeds: range) -> None:
    for seed in seeds:
        Cluster(seed, crashes=True).run()
