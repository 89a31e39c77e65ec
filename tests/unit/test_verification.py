"""Results of several hosts that are compared: which answer the algorithm gets, and who is blamed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.pool import CODEC, FAILURE, NOT_COMPARABLE, OTHER_FAILURE, PLAIN, RIGHT, WRONG, Pool, first_holder, outvote

from mwpy._core.master.commands import AllocateSlaves, CancelTasks, Running, Waiting
from mwpy._core.master.core import MasterSettings
from mwpy._core.master.events import Received, Vanished
from mwpy._core.master.verification import ANSWERS_MAX, OUTVOTED_ALLOWED
from mwpy._values import groups, messages, records
from mwpy._values.causes import Cause
from mwpy._values.errors import InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messagepack import as_digested, encode
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind


def test_a_task_is_repeated_on_another_host_and_the_first_answer_given_out() -> None:
    pool = Pool("a", "b")
    pool.submit()
    assert (pool.held("a"), pool.held("b")) == ([1], [])
    tasks = [message for _, message in pool.sent if isinstance(message, messages.Tasks)]
    assert [each.digests for each in tasks] == [[0]]
    pool.answer("a", RIGHT)
    assert pool.results == {}
    assert (pool.held("a"), pool.held("b")) == ([], [1])
    pool.answer("b", RIGHT)
    assert pool.results[1].value == "right"
    assert (pool.results[1].host, pool.results[1].attempts) == ("a", 2)
    assert pool.verdicts == [("a and b computed the same", True)]
    assert pool.notices == ""


def test_a_repetition_is_not_sent_to_the_same_host() -> None:
    pool = Pool("a", "b")
    pool.hear("a2", messages.Hello("m", "g", "a", 2, "3.11", 1))
    pool.hear("a2", messages.SlaveReady(1))
    pool.submit()
    pool.answer("a", RIGHT)
    assert (pool.held("a"), pool.held("a2"), pool.held("b")) == ([], [], [1])


def answer_all(pool: Pool, host: str) -> None:
    """The slave on a host answers all tasks that it holds, in one message."""
    spans = pool.core.state.members.peers[host.encode()].slaves[1].held.spans
    count = sum(each.count for each in spans)
    firsts: list[int] = [each.first for each in spans]
    counts, attempts = [each.count for each in spans], [each.attempt for each in spans]
    group = messages.Results(1, firsts, counts, attempts, [0.1] * count, [])
    pool.hear(host, group, [groups.payload(count, [RIGHT] * count)])


def test_answers_that_arrive_in_one_message_are_compared_one_by_one() -> None:
    pool = Pool("a", settings=MasterSettings("m", "g", task_group=4))
    pool.submit(4)
    assert pool.held("a") == [1, 2, 3, 4]
    pool.connect("b")
    answer_all(pool, "a")
    assert pool.results == {}
    assert pool.held("b") == [1, 2, 3, 4]
    answer_all(pool, "b")
    assert sorted(pool.results) == [1, 2, 3, 4]
    assert {is_sure for _, is_sure in pool.verdicts} == {True}


def test_a_slave_that_gets_only_addressed_tasks_repeats_none() -> None:
    pool = Pool()
    pool.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    pool.connect("b")
    pool.connect("a")
    pool.submit()
    pool.connect("c")
    assert pool.core.state.members.slaves[SlaveId("SLAVE-0")].kind is SlaveKind.ORDERED
    pool.answer("a", RIGHT)
    assert (pool.held("b"), pool.held("c")) == ([], [1])


def test_a_repetition_is_not_sent_to_a_host_that_cannot_finish_it_behind_its_other_tasks() -> None:
    """The host would have time for the repetition alone."""
    pool = Pool("a", settings=MasterSettings("m", "g", task_group=2))
    pool.hear("b", messages.Hello("m", "g", "b", 2, "3.11", 1, seconds_left=100.0))
    pool.hear("b", messages.SlaveReady(1))
    pool.submit(4, policy=TaskPolicy(seconds_expected=40.0))
    assert (pool.held("a"), pool.held("b")) == ([1, 2], [3, 4])
    pool.answer("b", RIGHT, 3)
    pool.answer("a", RIGHT, 1)
    assert pool.held("b") == [4, 1]


def test_a_repetition_does_not_get_the_state_that_the_first_attempt_left() -> None:
    """Otherwise it would depend on what another host computed."""
    pool = Pool("a", "b")
    pool.submit()
    pool.hear("a", messages.Checkpoint(1, 1, 1), [CODEC.dumps_state("half")[0]])
    assert pool.core.state.jar.left.bytes > 0
    pool.answer("a", RIGHT)
    assert pool.core.state.jar.left.bytes == 0
    assert pool.held("b") == [1]


def test_only_a_part_of_the_tasks_is_repeated() -> None:
    """The choice depends only on the task's id."""
    counts = []
    for _ in range(2):
        pool = Pool("a", verify=20.0)
        pool.submit(500)
        asked = 0
        while len(pool.results) < 500:
            [*_, tasks] = [message for _, message in pool.sent if isinstance(message, messages.Tasks)]
            asked += len(tasks.digests)
            while pool.held("a") and pool.held("a")[0] in [
                first + at for first, count in zip(tasks.tasks, tasks.counts, strict=True) for at in range(count)
            ]:
                each = pool.core.state.members.peers[b"a"].slaves[1].held.spans[0]
                group = messages.Results(1, [each.first], [each.count], [each.attempt], [0.01] * each.count, [])
                pool.hear("a", group, [groups.payload(each.count, [PLAIN] * each.count)])
        counts.append(asked)
    assert counts[0] == counts[1]
    assert 90 <= counts[0] <= 110


@pytest.mark.parametrize("policy", [TaskPolicy(retry=False), TaskPolicy(sid=SlaveId("SLAVE-0"))])
def test_a_task_that_must_not_run_elsewhere_is_not_repeated(policy: TaskPolicy) -> None:
    pool = Pool("a", "b")
    pool.core.obey(AllocateSlaves(1, SlaveKind.INTERMINGLE))
    pool.submit(policy=policy)
    pool.answer("a", PLAIN)
    assert pool.results[1].value == "right"
    assert pool.notices == ""


def test_a_third_host_decides() -> None:
    pool = Pool("a", "b", "c")
    pool.submit()
    pool.answer("a", WRONG)
    pool.answer("b", RIGHT)
    assert pool.results == {}
    assert pool.held("c") == [1]
    pool.answer("c", RIGHT)
    assert (pool.results[1].value, pool.results[1].host) == ("right", "b")
    assert pool.verdicts == [("b and c computed the same", True)]
    [differ] = pool.each_of(records.AnswersDiffer)
    assert isinstance(differ, records.AnswersDiffer)
    assert (differ.task.first, differ.hosts, differ.wrong) == (1, [["a"], ["b", "c"]], ["a"])
    assert "host a computed another result of task 1 (max) than b and c" in pool.notices
    assert "You already have" not in pool.notices


def test_without_a_third_host_both_are_named_and_the_first_answer_is_given_out() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", WRONG)
    pool.answer("b", RIGHT)
    assert pool.results[1].value == "wrong"
    assert pool.verdicts == [("not verified, because a and b computed different results", False)]
    assert "a and b computed different results of task 1 (max), and it is not known which is right" in pool.notices
    assert pool.core.verification.outvoted == {}


def test_three_different_answers_blame_nobody() -> None:
    pool = Pool("a", "b", "c", "d")
    pool.submit()
    for host, entry in zip("abc", (WRONG, RIGHT, CODEC.dumps_digested("third")[0]), strict=True):
        pool.answer(host, entry)
    assert ANSWERS_MAX == 3
    assert pool.results[1].value == "wrong"
    assert pool.held("d") == []
    assert pool.core.verification.outvoted == {}
    assert "a and b and c computed different results" in pool.notices


def test_a_host_that_was_outvoted_does_not_count_against_another() -> None:
    pool = Pool("a", "b", "c")
    outvote(pool)
    pool.core.handle(Vanished(b"c", 0.0), 0.0)
    pool.submit(first=2)
    assert pool.held("b") == [2] or pool.held("a") == [2]
    first, second = ("b", "a") if pool.held("b") else ("a", "b")
    pool.answer(first, RIGHT if first == "b" else WRONG)
    pool.answer(second, RIGHT if second == "b" else WRONG)
    assert (pool.results[2].value, pool.results[2].host) == ("right", "b")
    assert pool.verdicts[-1] == ("b computed it; hosts that computed other results wrongly disagree", False)


def test_each_task_of_a_host_that_was_outvoted_is_repeated() -> None:
    """Also if it was not chosen. A result that was computed before, without a digest, does not count."""
    pool = Pool("a", verify=20.0, settings=MasterSettings("m", "g", task_group=2))
    chosen = pool.core.verification.is_chosen
    first = next(number for number in range(1, 100) if chosen(number) and not chosen(number + 1))
    pool.submit(2, first=first)
    pool.connect("b")
    pool.connect("c")
    for host in "abc":
        assert pool.held(host)[0] == first
        pool.answer(host, WRONG if host == "a" else RIGHT, first)
    assert pool.core.verification.outvoted == {"a": 1}
    pool.answer("a", PLAIN)
    assert [*pool.results] == [first]
    [returned] = pool.each_of(records.TasksReturned)
    assert isinstance(returned, records.TasksReturned)
    assert returned.reason == "a computed other results wrongly, and this one cannot be compared"
    holder = first_holder(pool, first + 1)
    [*_, tasks] = [message for _, message in pool.sent if isinstance(message, messages.Tasks)]
    assert tasks.digests == ([0] if holder == "a" else [])


def test_a_host_that_is_outvoted_often_gets_no_more_work() -> None:
    pool = Pool("a", "b", "c")
    task = 0
    while len(pool.each_of(records.AnswersDiffer)) < OUTVOTED_ALLOWED:
        assert pool.core.state.members.excluded == {}
        task += 1
        outvote(pool, task)
    assert [*pool.core.state.members.excluded] == ["a"]
    assert "3 of its results were different on two other hosts" in pool.notices


def test_a_host_is_not_excluded_if_nobody_is_left() -> None:
    pool = Pool("a", "b", "c")
    pool.core.verification.outvoted["a"] = 10
    pool.core.handle(Vanished(b"c", 0.0), 0.0)
    pool.hear("b", messages.Leaving("x", Cause.EVICTED))
    pool.core.hosts.exclude("a", "why", "task 1", 0.0, key="x")
    pool.decide()
    assert pool.core.state.members.excluded == {}
    assert "host a: why. It still gets work" in pool.notices


def test_results_that_only_a_wrong_host_computed_are_named() -> None:
    pool = Pool("a")
    pool.submit(3)
    for _ in range(3):
        pool.answer("a", WRONG)
    assert len(pool.results) == 3
    assert pool.notices.count("are not verified: no slave on another host than a can run it now") == 1
    pool.connect("b")
    pool.connect("c")
    outvote(pool, 4)
    assert pool.each_of(records.ResultsDoubted) == [records.ResultsDoubted("a", [(1, 3)], 0, [], {})]
    assert "You already have 3 results that only a computed" in pool.notices


def test_a_result_without_structure_is_given_out_and_said_once() -> None:
    pool = Pool("a", "b")
    for task in (1, 2):
        pool.submit(first=task)
        pool.answer(first_holder(pool, task), NOT_COMPARABLE)
        assert callable(pool.results[task].value)
    assert pool.notices.count("results of max cannot be verified: the function") == 1


def test_a_repetition_without_structure_releases_the_first_answer() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", RIGHT)
    pool.answer("b", NOT_COMPARABLE)
    assert pool.results[1].value == "right"
    assert pool.verdicts[0][1] is False
    assert "results of max cannot be verified" in pool.notices


@pytest.mark.parametrize(("second", "is_sure"), [(FAILURE, True), (OTHER_FAILURE, False), (RIGHT, False)])
def test_failures_are_compared_by_the_type_of_the_exception(second: bytes, *, is_sure: bool) -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", FAILURE)
    pool.answer("b", second)
    assert not pool.results[1].ok
    assert [each[1] for each in pool.verdicts] == [is_sure]
    assert pool.core.state.jar.failed == 1


def test_a_failure_that_may_pass_is_not_compared() -> None:
    policy = TaskPolicy(retries_errors=True, attempts_max=1)
    pool = Pool("a", "b")
    pool.submit(policy=policy)
    pool.answer("a", FAILURE, again=True)
    assert not pool.results[1].ok
    assert "another attempt may have another result" in pool.notices


def test_a_repetition_that_fails_and_is_tried_again_does_not_pause() -> None:
    policy = TaskPolicy(retries_errors=True, attempts_max=3, after=5.0)
    pool = Pool("a", "b")
    pool.submit(policy=policy)
    pool.answer("a", RIGHT)
    pool.answer("b", FAILURE, again=True)
    assert pool.held("b") == [1]
    pool.answer("b", RIGHT)
    assert pool.verdicts == [("a and b computed the same", True)]


def test_an_answer_waits_no_longer_than_there_is_another_host() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", RIGHT)
    pool.core.handle(Vanished(b"b", 0.0), 0.0)
    pool.decide()
    assert pool.results[1].value == "right"
    assert pool.verdicts == [("not verified, because no slave on another host than a can run it", False)]


def test_a_lost_repetition_starts_again_as_often_as_the_policy_allows() -> None:
    pool = Pool("a", "b", "c")
    pool.submit(policy=TaskPolicy(attempts_max=2))
    pool.answer("a", RIGHT)
    for losses in (1, 2):
        holder = first_holder(pool)
        pool.hear(holder, messages.SlaveDied(1, 1, Cause.CRASH, "signal 11", NO_WORDS))
        assert (1 in pool.results) is (losses == 2)
    assert pool.results[1].value == "right"
    assert "its repetition on" in pool.verdicts[0][0]


def test_a_repetition_never_has_to_run_alone() -> None:
    pool = Pool("a", "b", "c", "d", "e")
    pool.submit()
    pool.answer("a", RIGHT)
    for host in "bcd":
        assert pool.held(host) == [1]
        pool.core.handle(Vanished(host.encode(), 0.0), 0.0)
        pool.decide()
    assert pool.results[1].value == "right"
    assert pool.verdicts == [("not verified, because its repetition on d was lost: it would have to run alone", False)]


def test_a_repetition_that_comes_back_unstarted_is_sent_again() -> None:
    pool = Pool("a", "b", "c")
    pool.submit()
    pool.answer("a", RIGHT)
    pool.hear("b", messages.Revoked(1, [1], [1], [2]))
    holder = first_holder(pool)
    assert holder != "a"
    pool.answer(holder, RIGHT)
    assert pool.verdicts == [(f"a and {holder} computed the same", True)]


def test_a_host_that_cannot_run_the_algorithm_cannot_verify_it() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", RIGHT)
    pool.hear("b", messages.AlgorithmFailed(1, 0, "no module", [1], [1], [2]))
    assert pool.results[1].value == "right"
    assert pool.verdicts[0][1] is False


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("running", [*Running])
def test_a_task_with_an_answer_is_cancelled(running: Running, *, waits: bool) -> None:
    """If running tasks may finish, its answer counts: the task has run."""
    pool = Pool("a", "b")
    pool.submit()
    if waits:
        pool.hear("b", messages.Leaving("x", Cause.EVICTED))
        pool.connect("c")
        pool.core.state.members.peers[b"c"].reserved = True
        pool.core.isolation.reserved.append(pool.core.state.members.peers[b"c"])
    group = messages.Results(1, [1], [1], [1], [0.1], [])
    pool.core.handle(Received(b"a", "here", group, [groups.payload(1, [RIGHT])]), 0.0)
    if not waits:
        pool.decide()
        assert pool.held("b") == [1]
    pool.core.obey(CancelTasks([(1, 1)], running))
    pool.decide()
    assert pool.answers == [[] if running is Running.FINISH else [1]]
    assert pool.core.state.jar.runnable == 0
    if running is Running.FINISH:
        assert pool.results[1].value == "right"
    elif running is Running.KILL:
        assert "cancelled" in str(pool.results[1].error)
    else:
        assert pool.results == {}


def test_the_other_answers_are_compared_if_a_task_is_cancelled_as_soon_as_it_has_one() -> None:
    pool = Pool("a", "b")
    pool.submit(2)
    assert (pool.held("a"), pool.held("b")) == ([1], [2])
    for host, task in ((b"a", 1), (b"b", 2)):
        group = messages.Results(1, [task], [1], [1], [0.1], [])
        pool.core.handle(Received(host, "here", group, [groups.payload(1, [RIGHT])]), 0.0)
    pool.core.obey(CancelTasks([(1, 1)], Running.KILL))
    pool.decide()
    assert "cancelled" in str(pool.results[1].error)
    assert pool.held("a") == [2]
    pool.answer("a", RIGHT)
    assert pool.results[2].value == "right"


def test_an_answer_waits_for_its_repetition_although_another_task_is_cancelled() -> None:
    pool = Pool("a", "b")
    pool.submit(2)
    pool.answer("a", RIGHT, 1)
    pool.core.obey(CancelTasks([(2, 1)], Running.FINISH))
    pool.decide()
    assert (pool.results, pool.verdicts) == ({}, [])
    assert 1 in pool.core.state.jar.answered.tasks


def test_a_slave_that_repeats_a_task_in_vain_is_stopped() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", RIGHT)
    pool.core.obey(CancelTasks([(1, 1)], Running.FINISH))
    pool.decide()
    assert ("b", messages.Cancel([1], [1], kill=False)) in pool.sent
    assert pool.held("b") == []


def test_answers_are_given_out_when_the_time_of_the_master_is_nearly_over() -> None:
    pool = Pool("a", "b", settings=MasterSettings("m", "g", feeds_until=10.0, ends_at=20.0))
    pool.submit(2)
    holder = "a" if 1 in pool.held("a") else "b"
    pool.answer(holder, RIGHT, 1)
    pool.now = 11.0
    pool.decide()
    assert pool.results[1].value == "right"
    assert pool.verdicts[0] == ("not verified, because the time of the master is nearly over", False)
    [left] = [host for host in "ab" if pool.held(host)]
    pool.answer(left, RIGHT)
    assert pool.results[2].value == "right"


def test_kept_answers_count_as_results_that_wait() -> None:
    pool = Pool("a", "b", settings=MasterSettings("m", "g", max_waiting_bytes=500))
    pool.core.waiting = Waiting.NOT
    pool.submit(3)
    pool.answer("a", RIGHT)
    assert pool.core.feeding.holds_back
    assert "results of about 1.0 KiB wait" in pool.core.feeding.reason


def test_a_digest_that_cannot_be_read_costs_the_connection() -> None:
    pool = Pool("a", "b")
    pool.submit()
    pool.answer("a", encode(as_digested(b"\xc1")))
    [dropped] = pool.each_of(records.PeerDropped)
    assert isinstance(dropped, records.PeerDropped)
    assert "the digest of task 1 cannot be read" in dropped.reason


def test_large_buffers_of_a_kept_answer_arrive() -> None:
    pool = Pool("a", "b")
    pool.submit()
    for host in "ab":
        entry, buffers = CODEC.dumps_digested(np.zeros(200_000, "u1"))
        assert len(buffers) == 1
        attempt = 1 if host == "a" else 2
        group = messages.Results(1, [1], [1], [attempt], [0.1], [], [1], peaks=[(0, 77)])
        pool.hear(host, group, [groups.payload(1, [entry]), bytes(buffers[0])])
    assert len(pool.results[1].value) == 200_000  # type: ignore[arg-type]
    assert pool.core.totals.rows["max", "a"].memory_used == 77


def test_an_unknown_answer_is_an_internal_error() -> None:
    pool = Pool("a")
    with pytest.raises(InternalError, match="task 7 has no answer that is kept"):
        pool.core.state.jar.answered.remove(7)
