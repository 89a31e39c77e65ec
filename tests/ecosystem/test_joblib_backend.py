"""What the backend `mwpy` of joblib does in addition to what joblib's own tests require."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import numpy as np
import pytest
from joblib import delayed
from tests.integration.apps.stage import Stage, until

import mwpy
import mwpy.joblib


@pytest.fixture(scope="module", autouse=True)
def executor() -> Iterator[mwpy.Executor]:
    mwpy.joblib.register()
    with mwpy.Executor(slaves=2) as executor:
        yield executor


def process_of(_: object = None) -> int:
    return os.getpid()


def agent_of(_: object = None) -> int:
    return os.getppid()


def test_a_master_as_executor_is_refused_with_what_to_give() -> None:
    with mwpy.local_master(slaves=1) as mw:
        with (
            pytest.raises(mwpy.UsageError, match=r"got a LocalMaster as executor: give executor=mw.executor\(\)"),
            joblib.parallel_config(backend="mwpy", executor=mw),
        ):
            pass
        with mw.executor() as of_master, joblib.parallel_config(backend="mwpy", executor=of_master):
            assert joblib.Parallel()(delayed(abs)(number) for number in (-1, -2)) == [1, 2]


def fail_or_sleep(fails: bool) -> None:
    if fails:
        raise ZeroDivisionError("this task fails")
    time.sleep(1000)


def shown(array: np.ndarray, scale: float = 1.0) -> tuple[bool, float]:
    """Whether a task may write into its array, and the sum of the array."""
    return array.flags.writeable, float(array.sum() * scale)


def test_all_slaves_are_used_unless_n_jobs_says_otherwise(executor: mwpy.Executor) -> None:
    """With `n_jobs=1`, the tasks run in this process."""
    with joblib.parallel_config(backend="mwpy", executor=executor):
        assert joblib.effective_n_jobs(None) == joblib.effective_n_jobs(-1) == 2
        assert joblib.effective_n_jobs(5) == 5
        processes = joblib.Parallel()(delayed(process_of)(number) for number in range(20))
        assert os.getpid() not in processes
        assert joblib.Parallel(n_jobs=1)(delayed(process_of)() for _ in range(3)) == [os.getpid()] * 3


def test_a_script_with_a_guard_has_the_answers_that_it_has_alone(stage: Stage) -> None:
    """Its functions, classes, locks and registries are those of each slave's own script."""
    plain, parallel = stage.start("uses.py", "plain"), stage.start("uses.py", "joblib")
    assert [plain.end(), parallel.end()] == [0, 0], parallel.err
    assert parallel.out == plain.out


def test_the_slaves_that_are_wanted_count_and_not_those_that_are_connected(stage: Stage) -> None:
    """A call that begins before the slaves of a batch system are there uses all of them later."""
    with mwpy.Executor(resource_file=stage.resource, max_jobs=30) as executor:
        assert (executor.num_slaves, executor.max_slaves) == (0, 30)
        with joblib.parallel_config(backend="mwpy", executor=executor):
            assert joblib.effective_n_jobs(-1) == joblib.effective_n_jobs(None) == 30
            assert joblib.effective_n_jobs(-3) == 28


def test_the_executor_of_a_master_runs_the_tasks_of_joblib() -> None:
    """So one script may use maps and scikit-learn on the same slaves."""
    with mwpy.open(slaves=2) as mw, mw.executor() as executor:
        with joblib.parallel_config(backend="mwpy", executor=executor):
            assert joblib.effective_n_jobs(-1) == 2
            values = joblib.Parallel()(delayed(pow)(number, 2) for number in range(20))
        assert values == [*mw.map(pow, range(20), [2] * 20)]


@pytest.mark.parametrize("return_as", ["list", "generator", "generator_unordered"])
def test_values_come_as_a_list_or_one_by_one(return_as: str, executor: mwpy.Executor) -> None:
    with joblib.parallel_config(backend="mwpy", executor=executor):
        values = joblib.Parallel(return_as=return_as)(delayed(pow)(number, 2) for number in range(500))
        assert sorted(values) == [number**2 for number in range(500)]


def test_a_failure_ends_the_call_and_its_tasks(executor: mwpy.Executor) -> None:
    """The exception is that of the task, and shows where it was raised. The slaves are free for the next call."""
    with joblib.parallel_config(backend="mwpy", executor=executor):
        with pytest.raises(ZeroDivisionError, match="this task fails") as caught:
            joblib.Parallel(pre_dispatch="all")(delayed(fail_or_sleep)(number == 0) for number in range(20))
        assert "fail_or_sleep" in str(caught.value.__cause__)
        assert joblib.Parallel()(delayed(pow)(number, 2) for number in range(3)) == [0, 1, 4]


def test_tasks_that_take_too_long_are_ended(executor: mwpy.Executor) -> None:
    with joblib.parallel_config(backend="mwpy", executor=executor):
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.01)(delayed(fail_or_sleep)(False) for _ in range(4))
        assert joblib.Parallel()(delayed(pow)(number, 2) for number in range(3)) == [0, 1, 4]


def test_an_argument_that_cannot_be_pickled_is_named(executor: mwpy.Executor) -> None:
    """Also if it comes late, when joblib reads the tasks in another thread."""
    arguments = [*range(30), threading.Lock()]
    with joblib.parallel_config(backend="mwpy", executor=executor):
        with pytest.raises(mwpy.ArgumentNotPicklable, match="lock"):
            joblib.Parallel()(delayed(type)(argument) for argument in arguments)
        assert joblib.Parallel()(delayed(abs)(number) for number in range(3)) == [0, 1, 2]


def test_an_array_in_many_tasks_is_shared(executor: mwpy.Executor) -> None:
    """It is sent with the first task, and shared when it comes again. joblib's `mmap_mode=None` forbids this."""
    array, own = np.ones(1 << 18), [np.full(1 << 18, number) for number in range(3)]
    with joblib.parallel_config(backend="mwpy", executor=executor):
        values = joblib.Parallel()(delayed(shown)(array) for _ in range(10))
        assert values == [(number == 0, array.sum()) for number in range(10)]
        by_name = joblib.Parallel()(delayed(shown)(array=array, scale=2.0) for _ in range(3))
        assert by_name == [(number == 0, 2 * array.sum()) for number in range(3)]
        assert joblib.Parallel()(delayed(shown)(each) for each in own) == [(True, each.sum()) for each in own]
        written = joblib.Parallel(mmap_mode=None)(delayed(shown)(array) for _ in range(3))
        assert written == [(True, array.sum())] * 3
        assert array.flags.writeable


def test_an_array_may_change_between_two_calls(executor: mwpy.Executor) -> None:
    array = np.zeros(200_000)
    with joblib.parallel_config(backend="mwpy", executor=executor), joblib.Parallel() as parallel:
        for step in range(3):
            array[:] = step
            assert parallel(delayed(np.max)(array) for _ in range(20)) == [step] * 20


def test_slaves_without_a_choice_are_kept_for_later_calls() -> None:
    """Blocks with `slaves=` have slaves of their own, and these end with the block."""
    agents = []
    for _ in range(2):
        with joblib.parallel_config(backend="mwpy"):
            agents += joblib.Parallel()(delayed(agent_of)() for _ in range(3))
    assert len({*agents}) == 1
    with joblib.parallel_config(backend="mwpy", slaves=1):
        [own] = {*joblib.Parallel()(delayed(agent_of)() for _ in range(3))}
    assert own not in agents
    gc.collect()
    until(lambda: not Path(f"/proc/{own}").exists(), "no agent of the block")


def test_two_choices_are_refused(executor: mwpy.Executor) -> None:
    with pytest.raises(mwpy.UsageError, match="executor and slaves"):
        joblib.parallel_config(backend="mwpy", executor=executor, slaves=2)
