"""A master in this process: `mw.map` over any iterable, waiting and fetching, and fixed groups."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random, gauss
from typing import Any, cast

import numpy as np
import pytest
from numpy.random import normal
from tests.integration.apps.stage import Stage, fetched, until

import mwpy
from mwpy._roles import inbox, maps
from mwpy._roles.inbox import RETURNS_IN_VAIN
from mwpy._values.task import seed_at

FEW = 3000
"""The number of results after which the test leaves an endless `map`."""


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        list(mw.map(abs, range(100)))  # both slaves are ready, and their speed is known
        yield mw


def test_a_call_that_other_libraries_allow_says_what_to_write_here(mw: mwpy.Master) -> None:
    with pytest.raises(mwpy.UsageError, match=r"argument 3 of the map is 2, .* itertools.repeat\(2\) .* chunksize="):
        mw.map(abs, [1], 2)  # type: ignore[call-overload]
    for name in ("slave", "workers"):
        with pytest.raises(mwpy.UsageError, match=rf"mwpy.open\(\) has no argument '{name}': write slaves"):
            mwpy.local_master(**{name: 2})  # type: ignore[arg-type]
    [nested] = mw.map_results(lambda _: mwpy.local_master(), [1])
    with pytest.raises(mwpy.TaskFailed, match="A task that needs more tasks returns to the master what to submit next"):
        nested.value  # noqa: B018


def test_a_map_over_an_endless_iterable_reads_a_bounded_number_of_items_ahead(mw: mwpy.Master) -> None:
    """A map can be left at any time. Its results do not reach the next map, and its tasks end."""
    pulled = itertools.count()
    values = mw.map(lambda number: number * 2, pulled)
    assert list(itertools.islice(values, FEW)) == [*range(0, 2 * FEW, 2)]
    values.close()
    assert next(pulled) <= FEW + maps.MAP_WINDOW
    assert list(mw.map(lambda word: word + "!", ["a"])) == ["a!"]
    until(lambda: mw.num_runnable_tasks() == 0, "the end of the tasks of the map that was left")
    assert mw.results() == []


def test_a_map_submits_its_first_items_at_the_call(mw: mwpy.Master) -> None:
    """The slaves work before the first value is requested."""
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(5):
            pulled.append(number)
            yield number

    values = mw.map(abs, numbers())
    assert pulled == [0, 1, 2, 3, 4]
    until(lambda: mw.num_runnable_tasks() == 0, "the end of all tasks")
    assert list(values) == [0, 1, 2, 3, 4]


def test_a_map_yields_values_in_the_order_of_its_items(mw: mwpy.Master) -> None:
    """The first task takes the longest time."""

    def slowly(number: int) -> int:
        time.sleep(0.3 if number == 0 else 0.0)
        return number * number

    assert list(mw.map(slowly, range(500))) == [n * n for n in range(500)]
    results = list(mw.map_results(slowly, range(500), ordered=True))
    assert [(result.tag, result.value) for result in results] == [(n, n * n) for n in range(500)]


def test_an_unordered_map_yields_values_as_they_come(mw: mwpy.Master, tmp_path: Path) -> None:
    """The first task ends when the last value was taken."""
    enough = tmp_path / "enough"

    def slowly(number: int) -> int:
        while number == 0 and not enough.exists():
            time.sleep(0.01)
        return number

    values = mw.imap_unordered(slowly, range(50))
    assert sorted(itertools.islice(values, 49)) == [*range(1, 50)]
    enough.touch()
    assert list(values) == [0]


def test_a_map_takes_one_argument_from_each_iterable(mw: mwpy.Master) -> None:
    """The shortest iterable ends it, as with the builtin `map`. The tag of a result is the tuple of its items."""
    assert list(mw.map(pow, [2, 3, 4], itertools.count(1))) == [2, 9, 64]
    assert list(mw.starmap(pow, [(2, 5), (3, 2)])) == [32, 9]
    results = list(mw.map_results(pow, [2, 3], [5, 2], ordered=True))
    assert [(result.tag, result.value) for result in results] == [((2, 5), 32), ((3, 2), 9)]
    assert [result.tag for result in mw.map_results(abs, [-1])] == [-1]


def test_calls_of_any_algorithms_complete_together(mw: mwpy.Master) -> None:
    """The tag of each result is its call. The calls are read lazily, so they may be endless."""
    calls = [mwpy.task(abs, -3), mwpy.task(pow, 2, 5), mwpy.task(int, "ff", base=16)]
    assert {result.tag: result.value for result in mw.as_completed(calls)} == dict(
        zip(calls, [3, 32, 255], strict=True)
    )
    endless = mw.as_completed(mwpy.task(abs, -number) for number in itertools.count())
    assert len({result.value for result in itertools.islice(endless, FEW)}) == FEW
    endless.close()
    with pytest.raises(mwpy.UsageError, match=r"mw.as_completed needs a call .* not a int"):
        mw.as_completed([3])  # type: ignore[arg-type]


def test_an_ordered_map_does_not_run_far_ahead_of_a_slow_item(mw: mwpy.Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MAP_WINDOW", 50)
    pulled = itertools.count()

    def slowly(number: int) -> int:
        time.sleep(0.0 if number else 0.5)
        return number

    values = mw.map(slowly, pulled)
    assert next(values) == 0
    assert next(pulled) <= 51
    values.close()


def test_a_map_of_large_items_keeps_few_bytes_in_flight(mw: mwpy.Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "MAP_BYTES", 1_000_000)
    pulled = itertools.count()
    items = (bytes(100_000) for _ in pulled)
    sizes = mw.imap_unordered(len, items)
    for taken in range(1, 30):
        assert next(sizes) == 100_000
        assert next(pulled) <= 2 * taken + 12  # `next` pulls the next item
    sizes.close()


def test_short_items_do_not_wait_for_a_long_one_in_their_portion(mw: mwpy.Master, tmp_path: Path) -> None:
    """Those before it are finished, and run again elsewhere. Those behind it are taken back."""
    others_came = tmp_path / "others came"

    def work(number: int) -> int:
        while number == 0 and not others_came.exists():
            time.sleep(0.01)
        return number

    numbers = [*range(1, 2000), 0, *range(2000, FEW)]
    values = mw.imap_unordered(work, numbers)
    assert sorted(itertools.islice(values, FEW - 1)) == [*range(1, FEW)]
    others_came.touch()
    assert list(values) == [0]


@pytest.mark.parametrize(
    ("harm", "charged"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), {1000: "TaskUnrunnable"}), (lambda: os.closerange(3, 1000), {})],
)
def test_an_item_of_a_portion_that_harms_its_slave_is_charged_alone(
    mw: mwpy.Master, harm: Callable[[], None], charged: dict[int, str]
) -> None:
    """All others have a result each, in order. One that closes the connection of its slave has a result, too: the agent
    finds it in the journal."""

    def work(number: int) -> int:
        if number == 1000:
            harm()
        return 1 // (number - 2000)

    results = [*mw.map_results(work, range(FEW), ordered=True)]
    assert [result.tag for result in results] == [*range(FEW)]
    kinds = {result.tag: result.error.type_name for result in results if result.error is not None}
    assert kinds == charged | {2000: "ZeroDivisionError"}


def test_a_map_of_a_map_runs(mw: mwpy.Master) -> None:
    """The values of one map are the items of another, also if they are endless."""
    endless = mw.map(abs, mw.map(abs, itertools.count()))
    assert list(itertools.islice(endless, FEW)) == [*range(FEW)]
    endless.close()


def test_a_map_raises_at_the_item_that_failed(mw: mwpy.Master) -> None:
    """The error names the item, the slave and its host. The original exception is its cause."""

    def invert(number: int) -> int:
        return 1 // number

    values = mw.map(invert, [1, 0, 1])
    assert next(values) == 1
    with pytest.raises(
        mwpy.TaskFailed, match=r"invert\) failed on SLAVE-\d \(.*\), item 0: ZeroDivisionError"
    ) as caught:
        next(values)
    assert (caught.value.item, caught.value.host) == (0, os.uname().nodename)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert list(values) == []


def test_a_result_says_when_and_where_it_was_computed(mw: mwpy.Master) -> None:
    """The times are those of this machine. A task that did not run began and ended when it failed."""
    before = time.time()
    mw.submit(mwpy.task(time.sleep, 0.2))
    mw.submit(mwpy.task(abs, 1), sid=mwpy.SlaveId("SLAVE-99"))
    [never, slept] = sorted(fetched(mw, 2), key=lambda result: result.ok)
    assert before <= slept.started <= slept.finished - 0.2 <= time.time()
    assert slept.host == os.uname().nodename
    assert (never.ok, never.attempts, never.host) == (False, 0, None)
    assert before <= never.started == never.finished <= time.time()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda mw: mw.map(abs, [1], retries=3), "'retries'"),
        (lambda mw: mw.map(abs), "at least one iterable"),
        (lambda mw: mw.map(abs, [1], chunksize=0), "chunksize=0"),
        (lambda mw: mw.starmap(pow, [(1, 2)], 1.5), "chunksize=1.5"),
        (lambda mw: mw.imap_unordered(abs, [1], "2"), "chunksize='2'"),
        (lambda mw: mw.map(abs, [1], total=-1), "total=-1"),
        (lambda mw: mw.map(abs, [1], total="many"), "total='many'"),
        (lambda mw: mw.map(abs, [1], progress=7), "progress=7"),
        (lambda mw: mw.submit(mwpy.task(abs, 1), sid=["SLAVE-0"]), r"sid=\['SLAVE-0'\]"),
        (lambda mw: mw.free_slave(["SLAVE-0"]), r"sid=\['SLAVE-0'\]"),
        (lambda mw: mw.loop("x"), "the timeout must be a number of seconds or None, not 'x'"),
        (lambda mw: mw.set_target_number("x"), "number='x': give a whole number"),
        (lambda mw: mw.allocate_slaves("2"), "amount='2': give a whole number"),
        (lambda mw: mw.deallocate_slaves(1.5), "amount=1.5: give a whole number"),
    ],
)
def test_a_wrong_argument_raises_at_the_call(mw: mwpy.Master, wrong: Callable[[Any], object], message: str) -> None:
    with pytest.raises(mwpy.UsageError, match=message):
        wrong(mw)


def test_a_chunksize_of_numpy_is_a_number(mw: mwpy.Master) -> None:
    assert list(mw.map(abs, [-1], chunksize=cast("int", np.int64(3)))) == [1]


def test_an_item_that_cannot_be_pickled_raises_where_it_is_read(mw: mwpy.Master) -> None:
    with pytest.raises(mwpy.ArgumentNotPicklable, match="argument 1 of id"):
        mw.map(id, [threading.Lock()])


def test_a_function_that_uses_the_master_cannot_be_a_task(mw: mwpy.Master) -> None:
    for use in (lambda: mw.map(lambda _: mw, [1]), lambda: mw.map(id, [mw])):
        with pytest.raises(mwpy.ArgumentNotPicklable, match="a task cannot use the master: return from the task"):
            use()


@pytest.mark.parametrize("item", [5, (5,)])
def test_an_exception_of_the_iterable_comes_after_the_values_of_the_items_before(mw: mwpy.Master, item: object) -> None:
    def items() -> Iterator[object]:
        yield from [item] * 100
        raise KeyError("no more")

    found: list[str] = []
    values = mw.map(str, items())
    with pytest.raises(KeyError, match="no more"):
        found.extend(values)
    assert found == [str(item)] * 100


@pytest.mark.parametrize("policy", [{}, {"seed": 1}])
def test_an_iterable_may_change_an_item_that_it_has_given(mw: mwpy.Master, policy: mwpy.Policies) -> None:
    """As a reader does that fills the same buffer again and again. Whether the items travel together or alone."""

    def counters() -> Iterator[list[int]]:
        counter = [0]
        for counter[0] in range(1000):
            yield counter

    assert [*mw.map(sum, counters(), **policy)] == [*range(1000)]


def interrupt(code: Callable[[], object], seconds: float) -> None:
    """Run code that never ends, and raise KeyboardInterrupt in it after some seconds, as Ctrl-C does.

    Hypothesis has a callback of the garbage collector, and Python drops an exception that a callback raises. Therefore
    nothing is collected meanwhile.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        gc.disable()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        code()
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["quick tasks", "long tasks"])
def test_an_interrupt_at_any_moment_ends_all_tasks_of_a_map(mw: mwpy.Master, seconds: float) -> None:
    """The next map runs, and the result of another task comes exactly once. Tasks that run are killed."""
    random = Random(2026)
    for moment in range(5 if seconds else 50):
        another = mw.submit(mwpy.task(abs, -moment))
        interrupt(lambda: deque(mw.map(time.sleep, itertools.repeat(seconds)), 0), random.uniform(0.0001, 0.05))
        assert list(mw.map(abs, range(100))) == [*range(100)]
        until(lambda: mw.num_runnable_tasks() == 0, "the end of all tasks")
        assert [(result.task_id, result.value) for result in mw.results()] == [(another, moment)]


def leave_by_break(mw: mwpy.Master) -> None:
    for _ in mw.map(time.sleep, itertools.chain([0.0], itertools.repeat(1.0))):
        break


def leave_by_an_error(mw: mwpy.Master) -> None:
    for _ in mw.map(time.sleep, itertools.chain([0.0], itertools.repeat(1.0))):
        raise ValueError("mine")


def leave_by_a_failure(mw: mwpy.Master) -> None:
    list(mw.map(time.sleep, itertools.chain([-1.0], itertools.repeat(1.0))))


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_error, leave_by_a_failure])
def test_a_map_that_is_left_ends_its_tasks(leave: Callable[[mwpy.Master], None]) -> None:
    """Its tasks would take minutes."""
    with mwpy.local_master(slaves=2) as mw:
        with suppress(ValueError, mwpy.TaskFailed):
            leave(mw)
        until(lambda: mw.num_runnable_tasks() == 0, "the end of the tasks")
        assert mw.results() == []


def test_the_loop_ends_when_a_task_kills_its_slaves(mw: mwpy.Master) -> None:
    """The task is unrunnable, and comes as a failed result. A loop that fetches only results ends."""
    mw.submit(mwpy.task(abs, -1), tag="harmless")
    mw.submit(mwpy.task(os._exit, 3), tag="deadly")
    ends = {result.tag: result for result in fetched(mw, 2)}
    assert ends["harmless"].value == 1
    error = ends["deadly"].error
    assert isinstance(error, mwpy.TaskUnrunnable)
    assert (len(error.deaths), ends["deadly"].attempts, error.host) == (3, 3, os.uname().nodename)
    assert mw.unrunnable_tasks() == []


def test_unrunnable_tasks_can_be_left_to_their_own_method(mw: mwpy.Master) -> None:
    mw.submit(mwpy.task(abs, 1), sid=mwpy.SlaveId("SLAVE-99"), tag="lost")
    mw.loop()
    assert mw.results(unrunnable=False) == []
    assert [task.tag for task in mw.unrunnable_tasks()] == ["lost"]


def test_a_loop_that_fetches_nothing_is_warned_about(mw: mwpy.Master) -> None:
    """The warning names the line of the user. The loop that leads to it never ends by itself."""

    def loop_in_vain(loop: Callable[[], mwpy.LoopCounts]) -> None:
        for _ in range(RETURNS_IN_VAIN + 1):
            loop()
            mw.results(unrunnable=False)

    for loop in (mw.loop, mw.loop_iterate):
        mw.submit(mwpy.task(abs, 1), sid=mwpy.SlaveId("SLAVE-99"))
        with pytest.warns(RuntimeWarning, match="1 unrunnable tasks with mw.results") as warned:
            loop_in_vain(loop)
        assert [warning.filename for warning in warned] == [__file__]
        assert mw.unrunnable_tasks()


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
    "use",
    [
        lambda mw: list(mw.map(abs, [1])),
        lambda mw: mw.submit(mwpy.task(abs, 1)),
        lambda mw: mw.loop(),
        lambda mw: mw.results(),
        lambda mw: mw.unrunnable_tasks(),
        lambda mw: mw.pending_tasks(),
        lambda mw: mw.share([1]),
    ],
    ids=["map", "submit", "loop", "results", "unrunnable_tasks", "pending_tasks", "share"],
)
def test_another_thread_cannot_use_a_master(mw: mwpy.Master, use: Callable[[mwpy.Master], object]) -> None:
    """The error names both threads, and says how to go on. The owner can use the master as before."""
    with ThreadPoolExecutor(1, "helper") as helpers, pytest.raises(mwpy.UsageError) as caught:
        helpers.submit(use, mw).result()
    assert "belongs to the thread MainThread, and the thread helper_0 uses it" in str(caught.value)
    assert list(mw.map(abs, [-1])) == [1]


def test_a_map_cannot_be_continued_in_another_thread(mw: mwpy.Master) -> None:
    results = mw.map(abs, itertools.count())
    next(results)
    with ThreadPoolExecutor(1) as helpers, pytest.raises(mwpy.UsageError, match="belongs to the thread MainThread"):
        helpers.submit(list, results).result()
    until(lambda: mw.num_runnable_tasks() == len(mw.results()) == 0, "the end of the tasks of the map")


@pytest.mark.parametrize("slaves", [0, 1])
def test_a_forked_process_cannot_use_the_master(slaves: int, stage: Stage) -> None:
    """It would wait forever, because it has no I/O thread. It can start a master of its own. Its end ends nothing."""
    text = f"""
        import multiprocessing, os, sys, mwpy

        def use(number):
            try:
                return sum(mw.map(abs, range(number)))
            except mwpy.UsageError as error:
                with mwpy.local_master(slaves=1) as own:
                    return str(error), sum(own.map(abs, range(number)))

        with mwpy.local_master(slaves={slaves}) as mw:
            opened = mw.map(abs, range(5000))
            next(opened)
            with multiprocessing.get_context("fork").Pool(1) as pool:
                for each in pool.map(use, [4])[0]:
                    print(each, flush=True)
            child = os.fork()
            if child == 0:
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(sum(opened))
    """
    (stage.folder / "forks.py").write_text(textwrap.dedent(text))
    ended = stage.start("", program=[sys.executable, "forks.py"])
    assert ended.end() == 0, ended.err
    assert ended.out == f"{inbox.FORKED}\n6\n3\n{sum(range(5000))}\n"
    stage.no_process_left()


def test_threads_can_have_a_master_each() -> None:
    def compute(number: int) -> list[int]:
        with mwpy.local_master(slaves=1) as own:
            return list(own.map(lambda x: x * number, range(3)))

    with ThreadPoolExecutor(2) as helpers:
        assert list(helpers.map(compute, [2, 3])) == [[0, 2, 4], [0, 3, 6]]


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
    assert list(mw.map(sample, nothing)) == expected
    with mwpy.local_master(slaves=1) as other:
        assert list(other.map(sample, nothing)) == expected
    assert list(mw.map(sample, [None, str(tmp_path), None])) == expected
    assert [path.name for path in tmp_path.iterdir()] == [str(expected[1])]
    assert list(mw.map(sample, nothing, seed=4)) == [seed_at(4, position) for position in range(3)]


def test_tasks_without_a_seed_beside_tasks_with_one_have_none(mw: mwpy.Master) -> None:
    """Tasks of one function may be in one message. Those that are submitted one by one are counted for each seed."""
    for seed in (11, None, 11, 12, None, 11):
        mw.submit(mwpy.task(lambda: mwpy.task_seed()), tag=seed, seed=seed)
    results = fetched(mw, 6)
    found = [None if result.error else result.value for result in sorted(results, key=lambda result: result.task_id)]
    assert found == [seed_at(11, 0), None, seed_at(11, 1), seed_at(12, 0), None, seed_at(11, 2)]
    [error, _] = [str(result.error) for result in results if result.error]
    assert "seed=1" in error


def test_slaves_draw_different_numbers_although_the_function_has_a_method_of_a_generator() -> None:
    """Such a method is what `from random import gauss` gives."""
    with mwpy.local_master(slaves=2) as mw:
        drawn = [*mw.starmap(gauss, [(0.0, 1.0)] * 50), *mw.map(lambda _: normal(), range(50))]
    assert len({*drawn}) == 100


def pid_of_slave(mw: mwpy.Master) -> int:
    [pid] = mw.map(lambda _: os.getpid(), [0])
    return pid


def test_a_local_master_without_a_block_ends_with_its_close() -> None:
    """Only the thread that made it can close it. A second close does nothing."""
    mw = mwpy.local_master(slaves=1)
    slave = Path(f"/proc/{pid_of_slave(mw)}")
    with ThreadPoolExecutor(1) as helper, pytest.raises(mwpy.UsageError, match="belongs to the thread MainThread"):
        helper.submit(mw.close).result()
    assert list(mw.map(abs, [-1])) == [1]
    mw.close()
    assert not slave.exists()
    mw.close()
    with pytest.raises(mwpy.UsageError, match="the computation is over"):
        mw.map(abs, [-1])


def test_a_local_master_ends_when_nothing_can_use_it_any_more() -> None:
    """A map uses it until its last value."""
    mw = mwpy.local_master(slaves=1)
    slave, values = Path(f"/proc/{pid_of_slave(mw)}"), mw.map(abs, [-1, -2])
    del mw
    assert next(values) == 1
    assert slave.exists()
    assert list(values) == [2]
    assert not slave.exists()


def test_any_thread_can_collect_a_local_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a cycle. Even its own I/O thread may run the garbage collection."""
    mw = mwpy.local_master(slaves=1)
    slave, io, cycle = Path(f"/proc/{pid_of_slave(mw)}"), mw._access.io, [mw]
    cycle.append(cycle)  # type: ignore[arg-type]
    gc.disable()
    try:
        monkeypatch.setattr(type(io.local), "look", lambda *_: gc.collect())
        del mw, cycle
        until(lambda: not io.thread.is_alive(), "an end of the I/O thread")
    finally:
        gc.enable()
    assert not slave.exists()


def test_a_breakpoint_in_a_task_says_why_it_cannot_stop(mw: mwpy.Master) -> None:
    (result,) = mw.map_results(lambda _: breakpoint(), [0])  # noqa: T100
    assert "a slave has no terminal for a debugger" in str(result.error)


def test_an_error_in_the_block_ends_the_slaves_and_is_raised() -> None:
    pids: list[int] = []

    def fail_inside() -> None:
        with mwpy.local_master(slaves=1) as mw:
            pids.extend(mw.map(lambda _: os.getpid(), [0]))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail_inside()
    assert not Path(f"/proc/{pids[0]}").exists()


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


def test_a_negative_number_of_slaves_is_refused() -> None:
    with pytest.raises(mwpy.UsageError, match="slaves=-1: give a whole number from 0"):
        mwpy.local_master(slaves=-1)
