"""What the calls of `mw` say and do with real slaves: their kinds, the figures, the policies, the codes returned."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import PATIENCE_S, Stage, until

import mwpy

LONG_S = 0.2
NOTHING = (0, 0, 0, 0)


class Computation:
    """A master with one or two local slaves, and the task algorithms of these tests, which travel by value."""

    def __init__(self, mw: mwpy.Master, folder: Path) -> None:
        self.mw = mw
        self._enough = folder / "enough"

        def stay(enough: str) -> str:
            end = time.monotonic() + 60.0
            while time.monotonic() < end and not os.path.exists(enough):  # noqa: PTH110
                time.sleep(0.01)
            return "stayed"

        def echo(word: str) -> str:
            return word

        def last(seconds: float, fail: bool = False) -> None:
            time.sleep(seconds)
            if fail:
                raise ValueError("as asked")

        def die() -> None:
            os._exit(3)

        self._stay, self.echo, self.last, self.die = stay, echo, last, die

    def stay(self, **policy: Any) -> None:
        """Keep a slave busy until `release`, and wait until it is."""
        self.mw.submit(mwpy.task(self._stay, str(self._enough)), tag="stay", **policy)
        until(lambda: not self.mw.pending_tasks(self._stay), "a busy slave")

    def release(self) -> None:
        self._enough.touch()

    def results(self, count: int) -> list[mwpy.Result[Any]]:
        """Wait for so many results."""
        came: list[mwpy.Result[Any]] = []

        def all_came() -> bool:
            self.mw.loop(0.1)
            came.extend(self.mw.results())
            return len(came) >= count

        until(all_came, lambda: f"{count} results, not {came}")
        assert len(came) == count
        return came

    def ordered(self, count: int = 1) -> list[mwpy.SlaveId]:
        """Want so many ordered slaves, and wait for them."""
        self.mw.allocate_slaves(count, "ordered")
        sids: list[mwpy.SlaveId] = []

        def all_came() -> bool:
            self.mw.loop(0.1)
            sids.extend(self.mw.connected_ordered_slaves())
            return len(sids) >= count

        until(all_came, lambda: f"{count} ordered slaves, not {sids}")
        return sids

    def unaddressed(self, count: int) -> set[mwpy.SlaveId | None]:
        """Run so many tasks that are for any slave; which slaves ran them."""
        for _ in range(count):
            self.mw.submit(mwpy.task(self.last, 0.02))
        return {result.sid for result in self.results(count)}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Computation]:
    """With one slave."""
    with ExitStack() as stack:
        computation = Computation(stack.enter_context(mwpy.local_master(slaves=1)), tmp_path)
        stack.callback(computation.release)
        yield computation


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Computation]:
    """With two slaves."""
    with ExitStack() as stack:
        computation = Computation(stack.enter_context(mwpy.local_master(slaves=2)), tmp_path)
        stack.callback(computation.release)
        yield computation


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


# ---- kinds of slaves ------------------------------------------------------------------------------------------


def test_a_freed_slave_takes_unaddressed_tasks_after_its_own(one: Computation) -> None:
    """An ordered slave leaves them alone; freed while it works it ends that first, and is unordered then."""
    mw = one.mw
    [sid] = one.ordered()
    mw.submit(mwpy.task(one.echo, "unaddressed"), tag="unaddressed")
    mw.submit(mwpy.task(one.echo, "addressed"), tag="addressed", sid=sid)
    assert [result.tag for result in one.results(1)] == ["addressed"]
    assert (mw.num_runnable_tasks(), mw.pending_tasks()) == (1, 1)
    one.stay(sid=sid)
    mw.free_slave(sid)
    mw.submit(mwpy.task(one.echo, "word"), sid=mwpy.SlaveId("SLAVE-99"))
    until(lambda: mw.num_unrunnable_tasks() == 1, "a sign that the master has heard so far")
    assert mw.pending_tasks() == 1
    assert len(mw.unrunnable_tasks()) == 1
    one.release()
    assert [(result.tag, result.sid) for result in one.results(2)] == [("stay", sid), ("unaddressed", sid)]
    assert mw.loop_iterate(0.0) == NOTHING


def test_an_idle_slave_that_is_freed_takes_unaddressed_tasks_at_once(one: Computation) -> None:
    """It is ordered no more: no other is wanted in its stead, and freeing it again changes nothing."""
    mw = one.mw
    [sid] = one.ordered()
    mw.submit(mwpy.task(one.echo, "unaddressed"))
    assert mw.loop(0.1) == NOTHING
    for _ in range(2):
        mw.free_slave(sid)
        assert [result.sid for result in one.results(1)] == [sid]
        mw.submit(mwpy.task(one.echo, "another"))
    one.results(1)
    assert mw.loop_iterate(0.0) == NOTHING


def test_a_deallocated_slave_goes_on_and_is_not_replaced(two: Computation) -> None:
    """Wanting fewer stops none and changes none; wanting as many again brings no other."""
    mw = two.mw
    [sid] = two.ordered()
    mw.deallocate_slaves(1, "ordered")
    mw.submit(mwpy.task(two.echo, "addressed"), sid=sid)
    assert [(result.value, result.sid) for result in two.results(1)] == [("addressed", sid)]
    mw.allocate_slaves(1, "ordered")  # it is there already
    others = two.unaddressed(20)
    assert sid not in others
    mw.deallocate_slaves(1, "ordered")
    mw.submit(mwpy.task(two.die), sid=sid, retry=False)
    until(lambda: mw.num_unrunnable_tasks() == 1, "a death")
    assert mw.disconnected_ordered_slaves() == [sid]
    until(lambda: two.unaddressed(4) > others, "an unordered one in its place")
    assert mw.connected_ordered_slaves() == []


def test_never_fewer_than_no_slaves_are_wanted(stage: Stage) -> None:
    """The resource file counts those of each kind; taking away more than there are is no debt."""
    orders = [
        ["allocate_slaves", 10, "ordered"],
        ["deallocate_slaves", 4, "ordered"],
        ["allocate_slaves", 50, "intermingle"],
        ["deallocate_slaves", 99, "intermingle"],
        ["allocate_slaves", 1, "intermingle"],
        ["allocate_slaves", 20],
        ["deallocate_slaves", 5],
    ]
    (stage.folder / "orders").write_text("".join(json.dumps(order) + "\n" for order in orders))
    stage.master("obey.py", stage.folder / "orders", "--mw-resource-file-update-interval", 0.5)

    def said() -> tuple[int, int]:
        report = json.loads(stage.resource.read_text())
        return report["slaves-wanted"], report["slaves-needed"]

    until(lambda: said() == (6 + 1 + 15, 6 + 1), lambda: f"the right numbers, not {said()}")


# ---- figures and waiting --------------------------------------------------------------------------------------


def test_the_figures_of_tasks_are_those_of_the_moment(one: Computation) -> None:
    """Runnable are those at slaves too, pending those that wait, in all and of each algorithm."""
    mw = one.mw
    one.stay()
    assert (mw.num_runnable_tasks(), mw.pending_tasks()) == (1, 0)
    for number in range(5):
        mw.submit(mwpy.task(one.echo, "word") if number < 3 else mwpy.task(one.last, 0.0))
        assert (mw.num_runnable_tasks(), mw.pending_tasks()) == (number + 2, number + 1)
    assert (mw.pending_tasks(one.echo), mw.pending_tasks(one.last), mw.pending_tasks(one.die)) == (3, 2, 0)
    mw.set_target_number(10, one.echo)
    assert mw.upto_target_number(one.echo) == 7
    one.release()
    one.results(6)
    assert (mw.num_runnable_tasks(), mw.pending_tasks(), mw.pending_tasks(one.echo)) == (0, 0, 0)


def test_unrunnable_tasks_are_counted_until_they_are_fetched(one: Computation) -> None:
    """They are not runnable any more, and the loop counts them too."""
    mw = one.mw
    assert mw.num_unrunnable_tasks() == 0
    for tag in "ab":
        mw.submit(mwpy.task(one.echo, "word"), tag=tag, sid=mwpy.SlaveId("SLAVE-99"))
    until(lambda: mw.num_unrunnable_tasks() == 2, "two unrunnable tasks")
    assert mw.num_runnable_tasks() == 0
    assert mw.loop_iterate(PATIENCE_S) == (2, 0, 0, 0)
    assert [task.tag for task in mw.unrunnable_tasks()] == ["a", "b"]
    assert mw.num_unrunnable_tasks() == 0
    assert mw.unrunnable_tasks() == []


def test_a_loop_iteration_comes_back_with_nothing_after_its_timeout_and_not_before(one: Computation) -> None:
    """While a task runs; when it has ended, its result is not waited for."""
    mw = one.mw
    one.stay()
    for timeout_s, arguments in ((0.05, ()), (0.3, (0.3,))):
        began = time.monotonic()
        assert mw.loop_iterate(*arguments) == NOTHING
        assert time.monotonic() - began >= timeout_s
    one.release()
    assert mw.loop_iterate(10 * PATIENCE_S) == (0, 1, 0, 0)
    assert mw.loop_iterate(10 * PATIENCE_S) == (0, 1, 0, 0)
    assert [result.value for result in mw.results()] == ["stayed"]


def test_compute_seconds_are_what_the_task_took(one: Computation) -> None:
    """Of one that fails too; never more than passed from its submission to its result."""
    for fail in (False, True):
        began = time.monotonic()
        one.mw.submit(mwpy.task(one.last, LONG_S, fail))
        [result] = one.results(1)
        assert LONG_S <= result.compute_seconds <= time.monotonic() - began
        assert (result.error is not None) == fail
    one.mw.submit(mwpy.task(one.echo, "word"))
    [quick] = one.results(1)
    assert 0 <= quick.compute_seconds < LONG_S


# ---- policies -----------------------------------------------------------------------------------------------


def test_a_task_policy_addresses_all_tasks_that_are_submitted_under_it(two: Computation) -> None:
    """They run on that slave, in their order and with their tag; calls without it run elsewhere."""
    mw = two.mw
    [sid] = two.ordered()
    addressed = mw.with_task_policy(two.echo, sid=sid, tag="mine")
    free = mw.with_task_policy(two.echo, tag="anybody's")
    ids = [submit(str(number)) for number in range(10) for submit in (addressed, free)]
    came = two.results(20)
    mine = [result for result in came if result.tag == "mine"]
    assert [(result.task_id, result.value) for result in mine] == [(ids[2 * n], str(n)) for n in range(10)]
    assert {result.sid for result in mine} == {sid}
    others = [result for result in came if result.tag == "anybody's"]
    assert sorted(result.task_id for result in others) == ids[1::2]
    assert sid not in {result.sid for result in others}


def test_what_was_addressed_to_a_slave_that_dies_is_run_elsewhere_only_if_its_policy_says_so(two: Computation) -> None:
    """The same for tasks that are submitted when the slave is gone already."""
    mw = two.mw
    [sid] = two.ordered()
    anyway = mw.with_task_policy(two.echo, sid=sid, do_it_anyway=True, tag="anyway")
    only = mw.with_task_policy(two.echo, sid=sid, tag="only there")
    two.stay(sid=sid)
    mw.submit(mwpy.task(two.die), sid=sid, retry=False, tag="death")
    ids = [anyway("before"), only("before")]
    two.release()
    until(lambda: mw.num_unrunnable_tasks() == 2, "two unrunnable tasks")
    ids += [anyway("after"), only("after")]
    until(lambda: mw.num_unrunnable_tasks() == 3, "another")
    came = [result for result in two.results(3) if result.tag != "stay"]
    assert [(result.task_id, result.tag, result.value) for result in came] == [
        (ids[0], "anyway", "before"),
        (ids[2], "anyway", "after"),
    ]
    assert sid not in {result.sid for result in came}
    death, *given_up = mw.unrunnable_tasks()
    assert (death.tag, len(death.deaths)) == ("death", 1)
    assert [(task.task_id, task.tag, task.sid) for task in given_up] == [
        (ids[1], "only there", sid),
        (ids[3], "only there", sid),
    ]
    assert [task.arguments for task in given_up] == [(("before",), {}), (("after",), {})]
    assert all(sid in task.reason and "gone" in task.reason for task in given_up)


# ---- the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "code"), [(0, 0), (7, 7), (255, 255), (256, 255), (300, 255), (-1, 255), (None, 255), ("0", 255)]
)
def test_what_a_master_algorithm_returns_is_its_exit_code_if_it_is_one(
    stage: Stage, returned: object, code: int
) -> None:
    """0 to 255 are; anything else is 255, and not what is left of it in a byte."""
    (stage.folder / "orders").write_text(json.dumps(["return", returned]) + "\n")
    master = stage.master("obey.py", stage.folder / "orders")
    assert master.end() == code, master.err
    assert "Traceback" not in master.err
