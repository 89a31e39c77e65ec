"""Unit tests of the messages that wait until the run database says what they begin."""

from __future__ import annotations

from collections.abc import Sequence

from tests.stored import brought

from mwpy._core.master.events import Send, Stored
from mwpy._roles.committed_sends import CommittedSends
from mwpy._values import messages

ONE, OTHER = b"peer 1", b"peer 2"


def _task(peer: bytes = ONE, number: int = 0) -> Send:
    return Send(peer, messages.Revoke(number, 1), after_commit=True)


def _plain(peer: bytes = ONE, number: int = 0) -> Send:
    return Send(peer, messages.Revoke(number, 1))


def _numbers(sends: Sequence[Send]) -> list[int]:
    return [send.message.slave for send in sends if isinstance(send.message, messages.Revoke)]


def test_a_message_waits_until_its_records_are_in_the_file() -> None:
    woken: list[bool] = []
    waiting = CommittedSends(lambda: woken.append(True))
    assert _numbers(waiting.add([_plain(number=1), _task(number=2)])) == [1]
    assert waiting.take_due() == []
    waiting.committed(waiting.held)
    assert woken
    assert _numbers(waiting.take_due()) == [2]
    assert waiting.take_due() == []


def test_later_messages_to_the_same_peer_wait_behind_it() -> None:
    waiting = CommittedSends(lambda: None)
    assert waiting.add([_task(number=1)]) == []
    first = waiting.held
    assert _numbers(waiting.add([_plain(number=2), _plain(OTHER, 3), _task(number=4), _plain(number=5)])) == [3]
    waiting.committed(first)
    assert _numbers(waiting.take_due()) == [1, 2]
    waiting.committed(waiting.held)
    assert _numbers(waiting.take_due()) == [4, 5]
    assert _numbers(waiting.add([_plain(number=6)])) == [6]


def test_messages_without_such_tasks_do_not_wait_and_get_no_number() -> None:
    waiting = CommittedSends(lambda: None)
    sends = [_plain()]
    assert waiting.add(sends) is sends
    assert waiting.held == 0


def test_messages_to_peers_that_are_gone_are_dropped() -> None:
    waiting = CommittedSends(lambda: None)
    waiting.add([_task(number=1), _task(OTHER, 2)])
    waiting.drop([ONE, b"another peer"])
    waiting.committed(waiting.held)
    assert _numbers(waiting.take_due()) == [2]


def test_tasks_never_leave_if_nothing_can_be_stored_and_other_messages_do() -> None:
    waiting = CommittedSends(lambda: None)
    waiting.add([_task(number=1)])
    waiting.committed(waiting.held)
    waiting.add([_task(number=2), _plain(number=3)])
    waiting.fail()
    assert _numbers(waiting.take_due()) == [1, 3]
    assert waiting.add([_task(number=4)]) == []
    assert waiting.take_due() == []


def test_the_end_of_a_commit_wakes_nobody_when_the_loop_has_ended() -> None:
    woken: list[bool] = []
    waiting = CommittedSends(lambda: woken.append(True))
    waiting.add([_task()])
    waiting.close()
    waiting.committed(waiting.held)
    assert not woken


def test_what_was_stored_is_given_to_the_core_once_and_wakes_it() -> None:
    woken: list[bool] = []
    waiting = CommittedSends(lambda: woken.append(True))
    first, second = brought({1: 1}), brought({2: 2})
    waiting.stored(first, 5)
    waiting.stored(second, 6)
    assert len(woken) == 2
    assert waiting.take_stored() == [Stored(first, 5), Stored(second, 6)]
    assert waiting.take_stored() == []


def test_nothing_wakes_a_master_that_has_ended() -> None:
    woken: list[bool] = []
    waiting = CommittedSends(lambda: woken.append(True))
    waiting.close()
    waiting.stored(brought({1: 1}), 5)
    assert not woken
