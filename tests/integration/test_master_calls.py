"""The calls of `mw` with real slaves: kinds of slaves, counts, policies and exit codes."""

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
    """A master with local slaves, and the task algorithms of these tests, which are sent by value."""

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
        """Make a slave busy until `release`, and wait until it is busy."""
        self.mw.submit(mwpy.task(self._stay, str(self._enough)), tag="stay", **policy)
        until(lambda: not self.mw.pending_tasks(self._stay), "a busy slave")

    def release(self) -> None:
        self._enough.touch()

    def results(self, count: int) -> list[mwpy.Result[Any]]:
        """Wait for the given number of results."""
        came: list[mwpy.Result[Any]] = []

        def all_came() -> bool:
            self.mw.loop(0.1)
            came.extend(self.mw.results(unrunnable=False))
            return len(came) >= count

        until(all_came, lambda: f"{count} results, not {came}")
        assert len(came) == count
        return came

    def ordered(self, count: int = 1) -> list[mwpy.SlaveId]:
        """Allocate the given number of ordered slaves, and wait for them."""
        self.mw.allocate_slaves(count, "ordered")
        sids: list[mwpy.SlaveId] = []

        def all_came() -> bool:
            self.mw.loop(0.1)
            sids.extend(self.mw.connected_ordered_slaves())
            return len(sids) >= count

        until(all_came, lambda: f"{count} ordered slaves, not {sids}")
        return sids

    def unaddressed(self, count: int) -> set[mwpy.SlaveId | None]:
        """Run the given number of unaddressed tasks. Return the slaves that ran them."""
        for _ in range(count):
            self.mw.submit(mwpy.task(self.last, 0.02))
        return {result.sid for result in self.results(count)}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Computation]:
    """A computation with one slave."""
    with ExitStack() as stack:
        computation = Computation(stack.enter_context(mwpy.local_master(slaves=1)), tmp_path)
        stack.callback(computation.release)
        yield computation


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Computation]:
    """A computation with two slaves."""
    with ExitStack() as stack:
        computation = Computation(stack.enter_context(mwpy.local_master(slaves=2)), tmp_path)
        stack.callback(computation.release)
        yield computation


# ---- kinds of slaves ------------------------------------------------------------------------------------------


def test_a_freed_slave_takes_unaddressed_tasks_after_its_own(one: Computation) -> None:
    """An ordered slave does not run them. A slave that is freed while it works first finishes its task."""
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
    """The freed slave is no longer ordered and is not replaced. If it is freed again, nothing changes."""
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


def test_a_deallocated_slave_continues_and_is_not_replaced(two: Computation) -> None:
    """Deallocation stops and changes no slave. Allocating the same number again brings no other slave."""
    mw = two.mw
    [sid] = two.ordered()
    mw.deallocate_slaves(1, "ordered")
    mw.submit(mwpy.task(two.echo, "addressed"), sid=sid)
    assert [(result.value, result.sid) for result in two.results(1)] == [("addressed", sid)]
    mw.allocate_slaves(1, "ordered")  # it exists already
    others = two.unaddressed(20)
    assert sid not in others
    mw.deallocate_slaves(1, "ordered")
    mw.submit(mwpy.task(two.die), sid=sid, retry=False)
    until(lambda: mw.num_unrunnable_tasks() == 1, "a death")
    assert mw.disconnected_ordered_slaves() == [sid]
    until(lambda: two.unaddressed(4) > others, "an unordered one in its place")
    assert mw.connected_ordered_slaves() == []


def test_the_number_of_wanted_slaves_is_never_negative(stage: Stage) -> None:
    """The resource file has the sum over the kinds. Deallocating too many of a kind gives zero, not less."""
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
        document = json.loads(stage.resource.read_text())
        return document["slaves-wanted"], document["slaves-needed"]

    until(lambda: said() == (6 + 1 + 15, 6 + 1), lambda: f"the right numbers, not {said()}")


# ---- figures and waiting --------------------------------------------------------------------------------------


def test_the_counts_of_tasks_are_current(one: Computation) -> None:
    """Runnable tasks wait or are at slaves. Pending tasks wait. The counts are for all algorithms and for each."""
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
    """Unrunnable tasks do not count as runnable, and the loop counts them."""
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


def test_compute_seconds_are_the_duration_of_the_task(one: Computation) -> None:
    """A failed task has compute seconds, too. They never exceed the time from submission to result."""
    for fail in (False, True):
        began = time.monotonic()
        one.mw.submit(mwpy.task(one.last, LONG_S, fail))
        [result] = one.results(1)
        assert LONG_S <= result.compute_seconds <= time.monotonic() - began
        assert (result.error is not None) == fail


# ---- policies -----------------------------------------------------------------------------------------------


def test_a_task_policy_addresses_all_tasks_that_are_submitted_with_it(two: Computation) -> None:
    """The tasks run on the slave of the policy, in order and with their tag. Other calls run on another slave."""
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


def test_tasks_addressed_to_a_dead_slave_run_elsewhere_only_if_their_policy_allows_it(two: Computation) -> None:
    """This also holds for tasks that are submitted after the slave is gone."""
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
