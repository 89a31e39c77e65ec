"""A master with `slaves=0`: tasks run in this process, with the results that slaves would give."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.integration.apps.stage import Stage, fetched, until

import mwpy

MOMENTS = 50
"""How often the test of Ctrl-C interrupts."""


@pytest.fixture
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=0) as mw:
        yield mw


class Here:
    """What tasks reach without any copy, because they run in this process."""

    runs = 0
    mw: mwpy.Master


def interrupt() -> int:
    """Send Ctrl-C to this process the first time."""
    Here.runs += 1
    if Here.runs == 1:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60.0)
    return Here.runs


def count(_: int) -> int:
    Here.runs += 1
    return Here.runs


def leave_debugger() -> None:
    raise BdbQuit


def use_master() -> object:
    return Here.mw.loop()


def start_another() -> object:
    with mwpy.local_master(slaves=0) as other:
        return other.loop()


def divide(number: int) -> int:
    return 10 // number


def outcomes(mw: mwpy.Master) -> list[object]:
    """Do a bit of everything, and return the outcomes."""
    mw.submit(mwpy.task(divide, 0), tag="failure")
    mw.submit(mwpy.task(divide, 5), tag="value", retry=False)
    mw.submit(mwpy.task(divide, 5), tag="nobody", sid=mwpy.SlaveId("SLAVE-99"))
    mw.submit(mwpy.task(divide, 2), tag="anyway", sid=mwpy.SlaveId("SLAVE-99"), do_it_anyway=True)
    mw.submit(mwpy.task(mwpy.task_seed), tag="seed", seed=7)
    mw.submit(mwpy.task(sys.exit, "enough"), tag="exit")
    mw.submit(mwpy.task(threading.Lock), tag="lock")
    found: dict[object, object] = {}
    while len(found) < 7:
        mw.loop()
        for result in mw.results():
            found[result.tag] = (result.error.type_name, result.error.text) if result.error else result.value
        for task in mw.unrunnable_tasks():
            found[task.tag] = task.reason
    results = list(mw.map_results(lambda number: number + 1, range(30), ordered=True))
    return [sorted(found.items(), key=str), [(result.tag, result.value, result.algorithm) for result in results]]


def test_the_results_are_those_of_slaves(mw: mwpy.Master) -> None:
    """This holds for tags, failed results, policies, unrunnable tasks, seeds and maps."""
    with mwpy.local_master(slaves=1) as other:
        assert outcomes(mw) == outcomes(other)


def test_everything_happens_in_the_thread_that_waits(mw: mwpy.Master) -> None:
    threads = threading.active_count()
    tasks = mw.map_results(lambda _: (os.getpid(), threading.get_ident(), threading.active_count()), range(3))
    assert {result.value for result in tasks} == {(os.getpid(), threading.get_ident(), threads)}
    assert threading.active_count() == threads


def test_a_map_runs_one_task_for_each_result(mw: mwpy.Master) -> None:
    """So prints of tasks and of the master algorithm appear in their natural order."""
    Here.runs = 0
    seen = [(result.value, Here.runs) for result in mw.map_results(count, range(3), ordered=True)]
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_arguments_and_values_are_copied(mw: mwpy.Master) -> None:
    """Large arrays, too. Both sides can write into them."""

    def fill(array: Any, kept: list[Any]) -> tuple[Any, list[Any]]:
        array[0] = 7
        kept.append(array)
        return array, kept

    mine = np.zeros(100_000)
    mw.submit(mwpy.task(fill, mine, []))
    mw.loop()
    [(array, kept)] = [result.value for result in mw.results()]
    assert (mine[0], array[0]) == (0, 7)
    array[0] = 8
    assert len(kept) == 1


def test_a_failure_has_the_exception_with_its_frames(mw: mwpy.Master) -> None:
    """A debugger can look at the variables of the task. The exception begins with the frame of the task."""
    [result] = mw.map_results(divide, [0])
    error = result.error
    assert error is not None
    assert isinstance(error.__cause__, ZeroDivisionError)
    frames = [frame for frame, _ in traceback.walk_tb(error.__cause__.__traceback__)]
    assert [(frame.f_code.co_name, frame.f_locals) for frame in frames] == [("divide", {"number": 0})]
    with pytest.raises(mwpy.TaskFailed, match=r"failed on SLAVE-0 .*, item 0: ZeroDivisionError"):
        _ = result.value


def test_an_interrupted_task_runs_again_unless_its_policy_forbids_it(mw: mwpy.Master) -> None:
    for retry in (True, False):
        Here.runs = 0
        mw.submit(mwpy.task(interrupt), retry=retry)
        with pytest.raises(KeyboardInterrupt):
            mw.loop()
        assert any(mw.loop())
    assert [result.value for result in mw.results(unrunnable=False)] == [2]
    [task] = mw.unrunnable_tasks()
    assert "a task was interrupted" in task.reason
    assert Here.runs == 1


def test_a_user_who_leaves_the_debugger_leaves_the_call(mw: mwpy.Master) -> None:
    """With `retry=False`, the task does not start again."""
    mw.submit(mwpy.task(leave_debugger), retry=False)
    with pytest.raises(BdbQuit):
        mw.loop()
    mw.submit(mwpy.task(divide, 5))
    while not (results := mw.results(unrunnable=False)):
        mw.loop()
    assert [result.value for result in results] == [2]


IGNORED_BY_PYTHON = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
"""Such an interrupt is no fault, see below."""


class Interrupts(threading.Thread):
    """Interrupts the main thread after some seconds, and again if no interrupt arrives.

    Python ignores an exception in the callback of a weak reference. So an interrupt at such a moment is lost, as in any
    program: its user presses Ctrl-C again.
    """

    AGAIN_S = 10.0

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self.after_s = after_s
        self.has_arrived = threading.Event()

    def run(self) -> None:
        """Send interrupts."""
        pause_s = self.after_s
        while not self.has_arrived.wait(pause_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            pause_s = self.AGAIN_S

    def end(self) -> None:
        """An interrupt has arrived."""
        self.has_arrived.set()
        self.join()


def run_until_an_interrupt(mw: mwpy.Master, timer: Interrupts) -> None:
    timer.start()
    while True:
        mw.submit(mwpy.task(divide, 5))
        mw.num_runnable_tasks()


@IGNORED_BY_PYTHON
def test_no_moment_of_an_interrupt_damages_the_master(mw: mwpy.Master) -> None:
    """The moments are chosen at random: in tasks and in the core. Each time, the master goes on."""
    chance = random.Random(1)
    core = mw._access.io.core
    for _ in range(MOMENTS):
        timer = Interrupts(chance.random() * 0.02)
        with pytest.raises(KeyboardInterrupt):
            run_until_an_interrupt(mw, timer)
        timer.end()
        while mw.num_runnable_tasks():
            core.check()
        assert [result.value for result in mw.map_results(divide, [5])] == [2]
    assert len(mw.results()) > MOMENTS


def map_until_an_interrupt(mw: mwpy.Master, timer: Interrupts) -> None:
    timer.start()
    while True:
        list(mw.map(count, range(300)))


@IGNORED_BY_PYTHON
def test_no_task_of_an_interrupted_map_runs_later(mw: mwpy.Master) -> None:
    """The moments are chosen at random. The next map gives its own values."""
    chance = random.Random(2)
    list(mw.map(count, [0]))  # Python 3.11 makes a SystemError of an interrupt while it parses the source
    list(mw.map(divide, [1]))
    for _ in range(MOMENTS):
        timer = Interrupts(chance.random() * 0.02)
        with pytest.raises(KeyboardInterrupt):
            map_until_an_interrupt(mw, timer)
        timer.end()
        runs = Here.runs
        assert list(mw.map(divide, [1, 2, 5])) == [10, 5, 2]
        assert (Here.runs, mw.num_runnable_tasks()) == (runs, 0)
    assert mw.results() == []


@pytest.mark.parametrize("running", ["kill", "finish"])
def test_a_cancelled_task_does_not_run(mw: mwpy.Master, running: Literal["kill", "finish"]) -> None:
    """One task waits in the slave, and the others in the master."""
    Here.runs = 0
    ids = [mw.submit(mwpy.task(count, number)) for number in range(4)]
    mw.num_runnable_tasks()
    cancelled = mw.cancel(ids, running=running)
    assert cancelled == ids[1:]
    mw.submit(mwpy.task(divide, 5))
    results = fetched(mw, 5)
    ends = {result.task_id: type(result.error).__name__ if result.error else result.value for result in results}
    assert [task for task in ids if ends[task] == "TaskCancelled"] == cancelled
    assert Here.runs == len(ids) - len(cancelled)


def test_the_end_of_the_computation_runs_no_task() -> None:
    """Neither the task that waits in the slave, nor those that wait in the master."""
    Here.runs = 0
    with mwpy.local_master(slaves=0) as mw:
        for number in range(4):
            mw.submit(mwpy.task(count, number))
        mw.loop()
    assert Here.runs == 1


@pytest.mark.parametrize("ask", [lambda mw: mw.num_runnable_tasks(), lambda mw: mw.pending_tasks()])
def test_tasks_run_whatever_the_master_algorithm_asks(mw: mwpy.Master, ask: Callable[[mwpy.Master], int]) -> None:
    for number in range(1, 5):
        mw.submit(mwpy.task(divide, number))
    while ask(mw):
        pass
    assert [result.value for result in fetched(mw, 4)] == [10, 5, 3, 2]


@pytest.mark.parametrize(
    ("task", "words"),
    [(use_master, "a task cannot use the master"), (start_another, "it would start another computation")],
)
def test_a_task_cannot_wait_for_other_tasks(mw: mwpy.Master, task: Callable[[], object], words: str) -> None:
    """Nor can it start a computation, as in a slave."""
    Here.mw = mw
    mw.submit(mwpy.task(task))
    [result] = fetched(mw, 1)
    assert words in str(result.error)


def test_a_module_that_was_edited_and_loaded_again_is_run(
    mw: mwpy.Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of other functions run, too, also those that must not run twice."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "edited_here.py").write_text("def value(_): return 1")
    module = importlib.import_module("edited_here")
    assert [result.value for result in mw.map_results(module.value, [0])] == [1]
    for _ in range(3):
        mw.submit(mwpy.task(divide, 5), retry=False)
    mw.num_runnable_tasks()
    (tmp_path / "edited_here.py").write_text("def value(_): return 2 + 0")
    importlib.reload(module)
    assert [result.value for result in mw.map_results(module.value, [0])] == [2]
    assert [result.value for result in fetched(mw, 3)] == [2, 2, 2]


def test_an_algorithm_that_cannot_be_loaded_is_reported_and_not_tried_again(mw: mwpy.Master) -> None:
    mw.submit(mwpy.task(Unloadable()))
    [result] = fetched(mw, 1)
    assert isinstance(result.error, mwpy.TaskUnrunnable)
    assert "Unloadable cannot be loaded" in str(result.error)


class Unloadable:
    """A function by value that cannot be unpickled."""

    def __call__(self) -> None:
        raise AssertionError("it is never called")

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return divide, (0,)


# Scripts


def test_a_breakpoint_in_a_task_stops_there(stage: Stage) -> None:
    """What a user types reaches the debugger. A fork that comes back from a task ends."""
    script = (
        "import os, sys, mwpy\n"
        "def stop(number):\n"
        "    breakpoint()\n"
        "    return number\n"
        "def fork():\n"
        "    return os.fork() and os.getpid()\n"
        "@mwpy.master_algorithm\n"
        "def master(mw, argv):\n"
        "    print('values', [result.value for result in mw.map_results(stop, [40, 50], ordered=True)])\n"
        "    mw.submit(mwpy.task(fork))\n"
        "    mw.loop()\n"
        "    print('here', [result.value for result in mw.results()] == [os.getpid()])\n"
        "    return 0\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(mwpy.main())\n"
    )
    (stage.folder / "stops.py").write_text(script)
    typed = "p number + 1\nc\np number + 1\nc\n"
    run = stage.start("", program=[sys.executable, "stops.py", "--mw-local", "0"], script=typed)
    assert run.end() == 0, run.err
    assert "41" in run.out
    assert "51" in run.out
    assert "values [40, 50]" in run.out
    assert run.out.count("here True") == 1


def test_ctrl_c_ends_a_script_in_the_middle_of_a_task(stage: Stage) -> None:
    script = (
        "import pathlib, sys, time, mwpy\n"
        "def hour():\n"
        "    pathlib.Path('running').touch()\n"
        "    time.sleep(3600)\n"
        "@mwpy.master_algorithm\n"
        "def master(mw, argv):\n"
        "    mw.submit(mwpy.task(hour))\n"
        "    mw.loop()\n"
        "sys.exit(mwpy.main())\n"
    )
    (stage.folder / "long.py").write_text(script)
    run = stage.start("", program=[sys.executable, "long.py", "--mw-local", "0"])
    until((stage.folder / "running").exists, "a task")
    run.send(signal.SIGINT)
    assert run.end() == 130, run.err


@pytest.mark.parametrize(
    ("app", "options", "message"),
    [
        ("several.py", ("--mw-resource-file", "a.rsc"), "give --mw-master, too"),
        ("argued.py", (), "a slave algorithm needs one: give --mw-local 1"),
    ],
)
def test_what_needs_slaves_is_refused(stage: Stage, app: str, options: tuple[str, ...], message: str) -> None:
    run = stage.start(app, "--mw-local", 0, *options)
    assert run.end() == 2
    assert message in run.err


def test_a_limit_that_nobody_enforces_is_reported_once(mw: mwpy.Master, capfd: pytest.CaptureFixture[str]) -> None:
    """The tasks run to their end."""
    for _ in range(2):
        mw.submit(mwpy.task(time.sleep, 0.02), seconds_max=0.01)
        [result] = fetched(mw, 1)
        assert result.ok
    assert capfd.readouterr().err.count("the limits of tasks (seconds_max, memory_max) do not hold here") == 1
