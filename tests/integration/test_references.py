"""Tasks that refer to results of other tasks, with real processes and in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.integration.apps.stage import until

import mwpy


@dataclass
class Parts:
    """What a user has in the arguments of a task."""

    parts: list[Any]


def sample(size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(mwpy.task_seed()).normal(size=size)


def total(parts: Parts, factor: float = 1.0) -> float:
    """The sum of arrays. They are the task's own: it may change them."""
    for array in parts.parts:
        np.multiply(array, factor, out=array)
    return float(sum(array.sum() for array in parts.parts))


def difference(left: float, right: float) -> float:
    return left - right


def inspect(value: float, rest: list[Any]) -> None:
    raise LookupError(f"{value} and {len(rest[0])} numbers")


def misuse(number: int) -> object:
    if number:
        raise LookupError(f"no number {number}")
    return mwpy.result(mwpy.TaskId(1))


@pytest.fixture(scope="module", params=[0, 2], ids=["in this process", "with slaves"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


def fetch(mw: mwpy.Master, *wanted: int) -> dict[int, mwpy.Result[Any]]:
    """Fetch results, some of them before others end, until those of some tasks are there. Return all of them."""
    found: dict[int, mwpy.Result[Any]] = {}
    while not {*wanted} <= found.keys():
        mw.loop()
        found |= {result.task_id: result for result in mw.results()}
    return found


def test_a_diamond_of_tasks(mw: mwpy.Master) -> None:
    """Two tasks refer to the arrays of two others, and one refers to both sums. The arrays are large and small."""
    left, right = (mw.submit(mwpy.task(sample, size), seed=1) for size in (100_000, 10))
    both = Parts([mwpy.result(left), mwpy.result(right)])
    sums = [mw.submit(mwpy.task(total, both)), mw.submit(mwpy.task(total, both, factor=2.0))]
    end = mw.submit(mwpy.task(difference, right=mwpy.result(sums[1]), left=mwpy.result(sums[0])), seed=2)
    assert mw.pending_tasks() <= 5
    results = fetch(mw, left, right, *sums, end)
    expected = float(sum(results[number].value.sum() for number in (left, right)))
    assert [results[number].value for number in (*sums, end)] == pytest.approx([expected, 2 * expected, -expected])


def test_a_task_may_refer_to_a_result_that_has_arrived(mw: mwpy.Master) -> None:
    """Until the result is fetched. A value with a large buffer and a plain one are given back."""
    numbers = [mw.submit(mwpy.task(sample, 20_000), seed=1), mw.submit(mwpy.task(difference, 5, 3))]
    lost = mw.submit(mwpy.task(misuse, 1))
    until(lambda: not mw.num_runnable_tasks(), "all tasks have ended")
    end = mw.submit(mwpy.task(total, Parts([mwpy.result(numbers[0])]), mwpy.result(numbers[1])))
    never = mw.submit(mwpy.task(difference, mwpy.result(lost), mwpy.result(end)))
    after = mw.submit(mwpy.task(difference, mwpy.result(never), 1))
    results = fetch(mw, *numbers, lost, end, never, after)
    assert results[end].value == pytest.approx(2 * results[numbers[0]].value.sum())
    for number, refers in ((never, lost), (after, never)):
        error = results[number].error
        assert isinstance(error, mwpy.DependencyFailed)
        assert error.dependency == lost
        assert error.text == f"it needs the result of task {refers}, but {error.cause}"
        assert error.cause == f"task {lost} (misuse) failed: LookupError: no number 1"
    with pytest.raises(mwpy.UsageError, match=rf"result\({end}\): this result was fetched already.*pass its value"):
        mw.submit(mwpy.task(difference, mwpy.result(end), 1))


def test_references_give_the_same_however_far_the_other_tasks_are(mw: mwpy.Master) -> None:
    """They wait here, run, have ended, or have arrived. Many are just submitted, so that nobody waits for an answer."""
    random, expected, unfetched = Random(1), dict[int, int](), list[mwpy.TaskId]()
    for _ in range(1000):
        nearest = unfetched[::-1]
        places = [int(random.expovariate(0.3)) for _ in range(random.choice((0, 1, 2)))]
        referred = [nearest[place] for place in places if place < len(nearest)]
        task = mw.submit(mwpy.task(one_more_than, *map(mwpy.result, referred)))
        expected[task] = 1 + sum(expected[each] for each in referred)
        unfetched.append(task)
        if random.random() < 0.02:
            unfetched = _without_fetched(mw, unfetched, expected)
    while unfetched:
        mw.loop()
        unfetched = _without_fetched(mw, unfetched, expected)


def one_more_than(*numbers: int) -> int:
    return 1 + sum(numbers)


def _without_fetched(mw: mwpy.Master, unfetched: list[mwpy.TaskId], expected: dict[int, int]) -> list[mwpy.TaskId]:
    fetched = {result.task_id: result.value for result in mw.results()}
    assert fetched == {task: expected[task] for task in fetched}
    return [task for task in unfetched if task not in fetched]


def test_a_task_that_got_values_can_be_replayed(mw: mwpy.Master) -> None:
    """Its arguments are known with the values, of a task that failed and of one that cannot run."""
    array, number = mw.submit(mwpy.task(sample, 20_000), seed=1), mw.submit(mwpy.task(difference, 5, 3))
    call = mwpy.task(inspect, mwpy.result(number), [mwpy.result(array)])
    failed = mw.submit(call)
    mw.submit(call, sid=mwpy.SlaveId("SLAVE-99"), tag="unrunnable")
    until(lambda: mw.num_unrunnable_tasks() > 0, "an unrunnable task")
    [unrunnable] = [task for task in mw.unrunnable_tasks() if task.tag == "unrunnable"]
    assert fetch(mw, failed)[failed].error is not None
    (value, [rest]), _ = unrunnable.arguments
    assert (value, rest.shape) == (2, (20_000,))
    with pytest.raises(LookupError, match="2 and 20000 numbers"):
        mwpy.replay(failed)


def test_items_of_a_map_may_refer_to_results(mw: mwpy.Master) -> None:
    numbers = [mw.submit(mwpy.task(difference, number, 1)) for number in range(5)]
    assert list(mw.map(difference, map(mwpy.result, numbers), range(5))) == [-1] * 5
    assert {*numbers} <= {*fetch(mw, *numbers)}


def test_references_that_stand_for_nothing_are_refused(mw: mwpy.Master) -> None:
    number = mw.submit(mwpy.task(misuse, 0))
    for wrong in (0, number + 1):
        known = f"the ids of the tasks that are submitted are 1 to {number}"
        with pytest.raises(mwpy.UsageError, match=rf"mwpy.result\({wrong}\): there is no such task; {known}"):
            mw.submit(mwpy.task(difference, mwpy.result(mwpy.TaskId(wrong)), 1))
    error = fetch(mw, number)[number].error
    assert error is not None
    assert "mwpy.result(1) has a meaning only in the arguments of a task" in error.text


def test_the_first_task_can_refer_to_no_other() -> None:
    with (
        mwpy.local_master(slaves=0) as mw,
        pytest.raises(mwpy.UsageError, match=r"mwpy.result\(1\): there is no such task; none is submitted yet"),
    ):
        mw.submit(mwpy.task(difference, mwpy.result(mwpy.TaskId(1)), 1))


def combine(number: int, *needs: int) -> int:
    return (number + 3 * sum(needs)) % 1_000_003


@pytest.mark.parametrize("seed", range(2))
def test_a_random_graph_has_exact_values_although_agents_are_killed(seed: int) -> None:
    """Each task needs up to three of the 100 tasks before it. Three agents are killed meanwhile."""
    count = 600
    dice, expected, values = Random(seed), list[int](), dict[int, int]()
    kill_at = sorted(dice.sample(range(count // 20, count * 3 // 4), 3))
    with mwpy.local_master(slaves=2) as mw:
        ids: list[mwpy.TaskId] = []
        for number in range(count):
            before = range(max(0, number - 100), number)
            needs = dice.sample(before, min(len(before), dice.randrange(4)))
            ids.append(mw.submit(mwpy.task(combine, number, *(mwpy.result(ids[need]) for need in needs))))
            expected.append(combine(number, *(expected[need] for need in needs)))
        while len(values) < count:
            mw.loop()
            for result in mw.results():
                assert result.task_id not in values
                values[result.task_id] = result.value
            if kill_at and len(values) > kill_at[0]:
                kill_at.pop(0)
                for agent in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                    os.kill(int(agent), signal.SIGKILL)
    assert [values[each] for each in ids] == expected
