"""Reports of tasks: their values, what the master keeps of them, and what the algorithm gets."""

from __future__ import annotations

import sys
from pickle import UnpicklingError
from typing import Any

import pytest
from tests.unit.test_checkpoints import Master

import mwpy
from mwpy._core.master.state import TakeReports
from mwpy._transport.codec import Codec
from mwpy._values import messages
from mwpy._values.bounds import MAX_REPORT_BYTES, SlaveId, TaskId
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import as_pickle, encode
from mwpy._values.messages import Report, check

CODEC = Codec()


def report(master: Master, task: int, attempt: int = 1, peer: bytes | None = None, **values: object) -> None:
    """A task reports."""
    master.tell(messages.Reported(1, task, attempt, 2.5), CODEC.dumps_report(values), peer=peer)


def taken(master: Master) -> list[Report]:
    """Ask for the reports, as the algorithm does."""
    command = TakeReports()
    actions = master.step(command)
    assert actions.cancelled == [(command, [])]
    return [report for _, report in actions.reports]


def shown(found: list[Report]) -> list[tuple[int, int, dict[str, object]]]:
    return [(each.task_id, each.attempt, each.values) for each in found]


@pytest.fixture
def master() -> Master:
    """Two tasks, each at the slave of its agent."""
    master = Master(2, task_group=1)
    master.come()
    master.come()
    return master


def test_the_newest_report_of_each_task_is_given_out_once_oldest_first(master: Master) -> None:
    report(master, 1, peer=b"1", loss=3.0)
    report(master, 2, peer=b"2", loss=9.0)
    report(master, 1, peer=b"1", loss=2.0)
    found = taken(master)
    assert shown(found) == [(2, 1, {"loss": 9.0}), (1, 1, {"loss": 2.0})]
    assert taken(master) == []
    newest = found[1]
    assert (newest.sid, newest.host, newest.seconds, newest.tag) == ("SLAVE-0", "host", 2.5, None)
    assert repr(newest) == "<Report of task 1, attempt 1, on SLAVE-0 after 2.5 s, tag=None>"


@pytest.mark.parametrize("frames", [[], [b"x", b"y"], [bytes(MAX_REPORT_BYTES + 1)]])
def test_a_report_with_another_payload_than_one_small_frame_is_a_protocol_error(frames: list[bytes]) -> None:
    check(messages.Reported(1, 1, 1, 0.0), [bytes(MAX_REPORT_BYTES)])
    with pytest.raises(ProtocolError, match=r"Reported: (\d|a) payload frame"):
        check(messages.Reported(1, 1, 1, 0.0), frames)


def made(entry: bytes) -> Report:
    return Report(TaskId(7), "tag", 1, SlaveId("SLAVE-0"), "host", 0.5, entry)


def test_values_are_unpickled_once() -> None:
    found = made(CODEC.dumps_report({"loss": 0.5, "path": [1, 2]}))
    assert found.values == {"loss": 0.5, "path": [1, 2]}
    assert found.values is found.values


def test_an_error_of_values_that_cannot_be_unpickled_names_the_task() -> None:
    with pytest.raises(UnpicklingError) as caught:
        print(made(encode(as_pickle(b"\x80\x05x"))).values)
    assert caught.value.__notes__ == ["(mwpy.report: the values that task 7 reported cannot be unpickled here)"]


class Ends:
    """Its pickle ends the process."""

    def __reduce__(self) -> Any:
        return sys.exit, (5,)


def test_values_whose_pickle_ends_the_process_are_an_error_that_names_the_task() -> None:
    with pytest.raises(ValueError, match="the values that task 7 reported raised SystemExit"):
        print(made(CODEC.dumps_report({"loss": Ends()})).values)


def test_a_report_outside_of_a_task_is_an_error_that_says_where_it_works() -> None:
    with pytest.raises(mwpy.UsageError, match=r"mwpy\.report\(\) works only in a task, in the thread that runs"):
        mwpy.report(loss=1.0)
