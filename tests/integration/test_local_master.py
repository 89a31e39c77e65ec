"""A master in this process: `mw.map` over any iterable, waiting and fetching, and fixed groups."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import PATIENCE_S, Stage

import mwpy
from mwpy._roles import map_run
from mwpy._values.seeds import seed_at

FEW = 3000
"""The number of results after which the test leaves an endless `map`."""


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        list(mw.map(abs, range(100)))  # both slaves are ready, and their speed is known
        yield mw


def test_a_map_over_an_endless_iterable_reads_a_bounded_number_of_items_ahead(mw: mwpy.Master) -> None:
    """A `map` can be left at any time. Its results do not reach the next `map`."""
    pulled = itertools.count()
    results = mw.map(lambda number: number * 2, pulled)
    values = [result.value for result in itertools.islice(results, FEW)]
    results.close()
    assert len(set(values)) == FEW
    assert next(pulled) < FEW + 20_000
    assert [result.value for result in mw.map(lambda word: word + "!", ["a"])] == ["a!"]
    while mw.num_runnable_tasks():
        mw.loop(0.1)
    assert mw.results() == []


def test_a_map_reads_no_item_before_the_first_result_is_requested(mw: mwpy.Master) -> None:
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(5):
            pulled.append(number)
            yield number

    results = mw.map(abs, numbers())
    assert pulled == []
    assert sorted(result.value for result in results) == pulled == [0, 1, 2, 3, 4]


def test_an_ordered_map_yields_in_the_order_of_its_items(mw: mwpy.Master) -> None:
    """The first task takes the longest time. The tag of each result is its item."""

    def slowly(number: int) -> int:
        time.sleep(0.3 if number == 0 else 0.0)
        return number * number

    results = list(mw.map(slowly, range(500), ordered=True))
    assert [(result.tag, result.value) for result in results] == [(n, n * n) for n in range(500)]


def test_an_ordered_map_does_not_run_far_ahead_of_a_slow_item(mw: mwpy.Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_run, "MAP_WINDOW", 50)
    pulled = itertools.count()
    results = mw.map(lambda number: time.sleep(0.0 if number else 0.5), pulled, ordered=True)
    assert next(results).tag == 0
    assert next(pulled) <= 51
    results.close()


def test_a_map_of_large_items_keeps_few_bytes_in_flight(mw: mwpy.Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_run, "MAP_BYTES", 1_000_000)
    pulled = itertools.count()
    items = (bytes(100_000) for _ in pulled)
    results = mw.map(len, items)
    for fetched in range(1, 30):
        assert next(results).value == 100_000
        assert next(pulled) <= 2 * fetched + 12  # `next` pulls the next item
    results.close()


def test_two_maps_and_other_tasks_each_get_their_own_results(mw: mwpy.Master) -> None:
    tags = {mw.submit(mwpy.task(abs, -number), tag=f"tag {number}"): number for number in range(20)}
    pairs = list(zip(mw.map(abs, range(0, -50, -1), ordered=True), mw.map(str, range(50), ordered=True), strict=True))
    assert [(one.value, other.value) for one, other in pairs] == [(number, str(number)) for number in range(50)]
    own: list[mwpy.Result[Any]] = []
    while len(own) < 20:
        mw.loop()
        own += mw.results()
    assert {(result.task_id, result.tag, result.value) for result in own} == {
        (task_id, f"tag {number}", number) for task_id, number in tags.items()
    }


def test_a_failure_in_a_map_is_a_failed_result(mw: mwpy.Master) -> None:
    results = list(mw.map(lambda number: 1 // number, [1, 0, 1], ordered=True))
    assert [result.error is None for result in results] == [True, False, True]
    with pytest.raises(mwpy.TaskFailed, match="ZeroDivisionError"):
        _ = results[1].value


def test_a_wrong_policy_of_a_map_raises_at_the_call(mw: mwpy.Master) -> None:
    with pytest.raises(mwpy.UsageError, match="'retries'"):
        mw.map(abs, [1], retries=3)  # type: ignore[call-arg]


def test_an_item_that_cannot_be_pickled_raises_where_it_is_read(mw: mwpy.Master) -> None:
    with pytest.raises(mwpy.ArgumentNotPicklable, match="argument 1 of abs"):
        list(mw.map(abs, [threading.Lock()]))


def test_an_exception_of_the_iterable_is_raised(mw: mwpy.Master) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(mw.map(abs, items()))


def test_a_loop_returns_without_counts_after_its_timeout(mw: mwpy.Master) -> None:
    assert tuple(mw.loop(0.05)) == (0, 0, 0, 0)


def test_the_target_number_determines_how_many_tasks_are_missing(mw: mwpy.Master) -> None:
    before = mw.get_target_number(), mw.get_target_number(abs)
    mw.set_target_number(100)
    mw.set_target_number(7, abs)
    assert (mw.upto_target_number(), mw.upto_target_number(abs)) == (100, 7)
    mw.set_target_number(before[0])
    mw.set_target_number(before[1], abs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mw: mw.loop("x"), "the timeout must be a number of seconds or None, not 'x'"),
        (lambda mw: mw.set_target_number("x"), "a whole number is needed here, not 'x'"),
        (lambda mw: mw.allocate_slaves("2"), "a whole number is needed here, not '2'"),
        (lambda mw: mw.deallocate_slaves(1.5), "a whole number is needed here, not 1.5"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(mw: mwpy.Master, call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(mwpy.UsageError, match=message):
        call(mw)


@pytest.mark.parametrize(
    "use",
    [
        lambda mw: list(mw.map(abs, [1])),
        lambda mw: mw.submit(mwpy.task(abs, 1)),
        lambda mw: mw.loop(),
        lambda mw: mw.results(),
        lambda mw: mw.unrunnable_tasks(),
        lambda mw: mw.pending_tasks(),
    ],
    ids=["map", "submit", "loop", "results", "unrunnable_tasks", "pending_tasks"],
)
def test_another_thread_cannot_use_a_master(mw: mwpy.Master, use: Callable[[mwpy.Master], object]) -> None:
    """The error names both threads, and says how to go on. The owner can use the master as before."""
    with ThreadPoolExecutor(1, "helper") as helpers, pytest.raises(mwpy.UsageError) as caught:
        helpers.submit(use, mw).result()
    assert "belongs to the thread MainThread, and the thread helper_0 uses it" in str(caught.value)
    assert [result.value for result in mw.map(abs, [-1])] == [1]


def test_a_map_cannot_be_continued_in_another_thread(mw: mwpy.Master) -> None:
    results = mw.map(abs, itertools.count())
    next(results)
    with ThreadPoolExecutor(1) as helpers, pytest.raises(mwpy.UsageError, match="belongs to the thread MainThread"):
        helpers.submit(list, results).result()


def test_threads_can_have_a_master_each() -> None:
    def compute(number: int) -> list[int]:
        with mwpy.local_master(slaves=1) as own:
            return [result.value for result in own.map(lambda x: x * number, range(3), ordered=True)]

    with ThreadPoolExecutor(2) as helpers:
        assert list(helpers.map(compute, [2, 3])) == [[0, 2, 4], [0, 3, 6]]


def test_a_negative_number_of_slaves_is_refused() -> None:
    with (
        pytest.raises(mwpy.UsageError, match="local_master cannot start -1 slaves: give 0 or more"),
        mwpy.local_master(slaves=-1),
    ):
        pass


@mwpy.task_algorithm(seed=3)
def sample(folder: str | None) -> int:
    """Return the seed. In a folder, kill the first slave that runs this."""
    seed = mwpy.task_seed()
    if folder is not None:
        path = Path(folder) / str(seed)
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), 9)
    return seed


def test_a_task_has_the_same_seed_with_any_slaves_and_in_each_attempt(mw: mwpy.Master, tmp_path: Path) -> None:
    """The seed depends on the position of the item. The seed of a call overrides that of the task algorithm."""
    nothing = [None] * 3
    expected = [seed_at(3, position) for position in range(3)]
    assert [result.value for result in mw.map(sample, nothing, ordered=True)] == expected
    with mwpy.local_master(slaves=1) as other:
        assert [result.value for result in other.map(sample, nothing, ordered=True)] == expected
    killed = mw.map(sample, [None, str(tmp_path), None], ordered=True)
    assert [result.value for result in killed] == expected
    assert [path.name for path in tmp_path.iterdir()] == [str(expected[1])]
    other_seed = mw.map(sample, nothing, ordered=True, seed=4)
    assert [result.value for result in other_seed] == [seed_at(4, position) for position in range(3)]


def test_tasks_without_a_seed_beside_tasks_with_one_have_none(mw: mwpy.Master) -> None:
    """Tasks of one function may be in one message. Those that are submitted one by one are counted for each seed."""
    for seed in (11, None, 11, 12, None, 11):
        mw.submit(mwpy.task(lambda: mwpy.task_seed()), tag=seed, seed=seed)
    results: list[mwpy.Result[Any]] = []
    while len(results) < 6:
        mw.loop()
        results += mw.results()
    found = [None if result.error else result.value for result in sorted(results, key=lambda result: result.task_id)]
    assert found == [seed_at(11, 0), None, seed_at(11, 1), seed_at(12, 0), None, seed_at(11, 2)]
    [error, _] = [str(result.error) for result in results if result.error]
    assert "seed=1" in error


def test_slaves_draw_different_numbers_although_their_script_seeds_the_generators(stage: Stage) -> None:
    run = stage.start("draws.py", "--mw-local", 2)
    assert run.end() == 0, run.err
    [one, other] = run.report
    assert not {*one} & {*other}


def test_the_slaves_of_a_local_master_end_with_it() -> None:
    with mwpy.local_master(slaves=2) as mw:
        pids = {result.value for result in mw.map(lambda _: os.getpid(), range(50))}
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_slaves_share_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slave sees its share before it imports anything. A variable of the user keeps its value."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    cores = len(os.sched_getaffinity(0))
    for slaves, share in [(1, cores), (2 * cores, 1)]:
        with mwpy.local_master(slaves=slaves) as mw:
            names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"]
            seen = {result.tag: result.value for result in mw.map(os.getenv, names)}
        assert seen == {"OMP_NUM_THREADS": str(share), "OPENBLAS_NUM_THREADS": str(share), "MKL_NUM_THREADS": "5"}


def test_a_breakpoint_in_a_task_says_why_it_cannot_stop(mw: mwpy.Master) -> None:
    (result,) = mw.map(lambda _: breakpoint(), [0])  # noqa: T100
    assert "a slave has no terminal for a debugger" in str(result.error)


def test_an_error_in_the_block_ends_the_slaves_and_is_raised() -> None:
    pids: list[int] = []

    def fail_inside() -> None:
        with mwpy.local_master(slaves=1) as mw:
            pids.extend(result.value for result in mw.map(lambda _: os.getpid(), [0]))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail_inside()
    assert not Path(f"/proc/{pids[0]}").exists()


def test_definitions_in_a_repl_are_sent_by_value() -> None:
    """Classes and functions of `__main__` and their closures are typed into an interpreter that reads a pipe."""
    typed = (
        "import mwpy\n"
        "factor = 3\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "\n"
        "def scaled(point): return Point(point.x * factor)\n"
        "\n"
        "with mwpy.local_master(slaves=1) as mw:\n"
        "    print([result.value.x for result in mw.map(scaled, [Point(1), Point(2)], ordered=True)])\n"
        "\n"
    )
    run = subprocess.run(
        [sys.executable, "-i", "-q"], input=typed, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "[3, 6]" in run.stdout, run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("group", [1, 7])
def test_fixed_groups_are_obeyed(stage: Stage, group: int) -> None:
    """No message has more tasks than the task group. Only the last message has fewer results than the result group."""
    trail = stage.folder / "agent.txt"
    options = ("--mw-slave-task-group", 2 * group, "--mw-slave-result-group", group)
    run = stage.master("count.py", "--tasks", 20 * group, *options)
    agent = stage.agent("count.py", "--mw-audit-file", trail)
    assert run.end() == 0, run.err
    assert agent.end() == 0, agent.err
    words = [line.split() for line in trail.read_text().splitlines() if "SLAVE-0 <-" in line or "SLAVE-0 ->" in line]
    received = [int(word[-2]) for word in words if "<-" in word]
    sent = [int(word[-2]) for word in words if "->" in word and word[-1].startswith("result")]
    assert sum(received) == sum(sent) == 20 * group
    assert max(received) == 2 * group
    assert set(sent) == {group}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage
