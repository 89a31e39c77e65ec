"""Values that stay at agents, with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.apps.stage import Stage

import mwpy
from mwpy._values.environment import MEMORY_VARIABLE

SIZE = 600_000
"""How many numbers a value has: several parts."""


def numbers(size: int) -> np.ndarray[Any, Any]:
    return np.arange(float(size))


def change(array: Any, names: list[str]) -> tuple[float, list[str], bool]:
    """Change what may be changed."""
    names.append("changed")
    return float(array.sum()), names, bool(array.flags.writeable)


def name() -> list[str]:
    return ["a"]


def test_a_value_is_used_at_another_agent_and_computed_again_when_its_agent_is_killed(stage: Stage) -> None:
    master = stage.master("keeping.py", SIZE)
    agents = [stage.agent("keeping.py") for _ in range(2)]
    assert master.end() == 0, master.err
    first, again = master.report["first"], master.report["again"]
    expected = SIZE * (SIZE - 1) / 2
    (one, maker, total), (other, same_maker, same_total) = first
    assert {one, other} == {maker, *{one, other} - {same_maker}}, "both agents have used the value of one"
    assert one != other
    assert (total, same_total, again[2]) == (expected, expected, expected)
    assert again[:2] == [other if maker == one else one] * 2, "the agent that is left has computed it again"
    assert master.report["stays"] is True
    assert "released" in master.report["refused"]
    assert len(stage.audited("1 value KEPT at ")) == 2
    assert stage.audited("LOST the value of task 1 at ")
    assert stage.audited("RECOMPUTE task 1 (make)")
    assert stage.audited("FORGOTTEN the value of task 1")
    assert sorted(agent.end() for agent in agents)[1] == 0
    stage.no_process_left()


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        yield mw


def test_each_task_gets_objects_of_its_own_but_arrays_are_read_only(mw: mwpy.Master) -> None:
    array, names = mw.submit(mwpy.task(numbers, SIZE), keep=True), mw.submit(mwpy.task(name), keep=True)
    calls = [mwpy.task(change, mwpy.result(array), mwpy.result(names)) for _ in range(4)]
    found = [result.value for result in mw.as_completed(calls)]
    assert found == [(SIZE * (SIZE - 1) / 2, ["a", "changed"], False)] * 4
    mw.release([array, names])
    mw.loop()
    assert all(result.ok for result in mw.results())


def test_the_results_of_a_map_can_stay(mw: mwpy.Master) -> None:
    results = [*mw.map_results(numbers, [10, 20], ordered=True, keep=True)]
    calls = [mwpy.task(np.sum, mwpy.result(result.task_id)) for result in results]
    assert sorted(float(result.value) for result in mw.as_completed(calls)) == [45.0, 190.0]
    mw.release(result.task_id for result in results)


def test_maps_of_values_and_executors_refuse_to_leave_values_at_agents(mw: mwpy.Master) -> None:
    for method in (mw.map, mw.imap_unordered):
        with pytest.raises(mwpy.UsageError, match=r"a map of values cannot have keep=True.*use mw.map_results"):
            method(numbers, [1], keep=True)
    with pytest.raises(mwpy.UsageError, match="a map of values cannot have keep=True"):
        mw.starmap(numbers, [(1,)], keep=True)
    with mwpy.Executor(1, keep=True) as executor:
        future = executor.submit(numbers, 1)
        with pytest.raises(mwpy.UsageError, match="keep=True has no meaning in an executor"):
            future.result()


def test_a_value_that_its_agent_has_no_room_for_goes_to_the_master(stage: Stage) -> None:
    """The agent keeps at most half of the memory of its job. The value can be used until it is released, too."""
    master = stage.master("keeping.py", 8 * SIZE)
    options = "--mw-slave", "--mw-resource-file", stage.resource
    agents = [stage.start("keeping.py", *options, variables={MEMORY_VARIABLE: "64"}) for _ in range(2)]
    assert master.end() == 0, master.err
    assert master.report["stays"] is False
    assert not stage.audited("KEPT")
    assert master.report["again"][2] == 8 * SIZE * (8 * SIZE - 1) / 2
    for agent in agents:
        agent.end()


def test_without_slaves_values_are_in_the_master_and_can_be_used_until_they_are_released() -> None:
    with mwpy.local_master(slaves=0) as mw:
        value = mw.submit(mwpy.task(numbers, 10), keep=True)
        mw.loop()
        [result] = mw.results()
        assert result.value.sum() == 45.0
        mw.submit(mwpy.task(np.sum, mwpy.result(value)))
        mw.loop()
        assert [float(result.value) for result in mw.results()] == [45.0]
        mw.release([value])
        with pytest.raises(mwpy.UsageError, match="or released"):
            mw.submit(mwpy.task(np.sum, mwpy.result(value)))
