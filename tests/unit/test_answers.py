"""Members that ask a master what it does, or about a task: who gets an answer, how often, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.driven import Driven
from tests.spans import MAX, MIN, defined, held_by, span

from mwpy._core.master import answers, totals
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.answers import (
    ALGORITHMS_SHOWN,
    DEATHS_SHOWN,
    HOSTS_SHOWN,
    INQUIRERS_MAX,
    OTHERS,
    PAUSE_S,
    Rate,
)
from mwpy._core.master.state import (
    NOTICES_KEPT,
    Actions,
    AllocateSlaves,
    CancelTasks,
    Command,
    Event,
    Running,
    ShutDown,
)
from mwpy._values import messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.connections import Vanished
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import HostStatus, LogRow, Notice, Overview
from mwpy._values.policy import OTHER_KINDS, TaskPolicy
from mwpy._values.records import ReusedTasks
from mwpy._values.requires import Offers, requires_of
from mwpy._values.task import SlaveKind

ASK = messages.Ask("m", "g")

SID = SlaveId("SLAVE-0")


class Asked(Driven):
    """A master, its agents, and inquirers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.now = 100.0
        self.answers: dict[bytes, list[messages.Message]] = {}
        """What was sent to each peer."""

    def step(self, event: Event | Command | None = None) -> Actions:
        actions = super().step(event)
        for send in actions.sends:
            self.answers.setdefault(send.peer, []).append(send.message)
        return actions

    def ask(self, question: messages.Ask = ASK, peer: bytes = b"asks") -> messages.Message:
        """Ask a question a second later, leave, and return the answer."""
        self.now += 1.0
        self.receive(question, peer=peer)
        self.step(Vanished(peer, 0.0))
        return self.answers[peer].pop()

    def explain(self, task: int) -> messages.Explanation:
        """Ask about a task."""
        answer = self.ask(messages.Ask("m", "g", task))
        assert isinstance(answer, messages.Explanation), answer
        return answer

    @property
    def status(self) -> messages.Status:
        answer = self.ask()
        assert isinstance(answer, messages.Status), answer
        return answer

    def connect(self, peer: bytes = b"a", host: str = "node1", slaves: int = 1, **hello: Any) -> None:
        """An agent connects, and one of its slaves gets ready."""
        self.receive(messages.Hello("m", "g", host, 1, "3.11", slaves, **hello), peer=peer)
        self.receive(messages.SlaveReady(1), peer=peer)

    def put(self, first: int, count: int = 1, refers: tuple[int, ...] = (), **policy: Any) -> None:
        """Submit tasks."""
        self.core.submit([span(first, MAX, count, policy=TaskPolicy(**policy), refers=refers)])
        self.step()


@pytest.fixture
def asked() -> Asked:
    return Asked(started_at=100.0)


@pytest.fixture
def single() -> Asked:
    """Its slaves get one task at a time."""
    return Asked(task_group=1)


# ---- who gets an answer ----


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (messages.Ask("other", "g"), "is not this master's 'm'"),
        (messages.Ask("m", "old"), "generation old, this master is generation g"),
    ],
)
def test_an_inquirer_of_another_computation_is_refused(asked: Asked, question: messages.Ask, words: str) -> None:
    """The refusal is recorded. It does not count as the refusal of an agent."""
    asked.receive(question)
    [answer] = asked.answers[b"a"]
    assert isinstance(answer, messages.Refused)
    assert words in answer.reason
    assert asked.of(records.AgentRefused) == [records.AgentRefused("here", answer.reason)]
    assert asked.core.admission.refusals == 0
    assert asked.core.admission.ignores(b"a")


def test_a_master_that_ends_says_so(asked: Asked) -> None:
    """Also to an inquirer whose question was not answered yet."""
    for peer in (b"1", b"2"):
        asked.receive(ASK, peer=peer)
    asked.step(ShutDown(True, 1.0))
    asked.step()
    assert [type(message) for message in asked.answers[b"1"]] == [messages.Status]
    assert asked.answers[b"2"] == [messages.Shutdown(True, 1.0)] == [asked.ask()]
    assert asked.core.admission.ignores(b"2")


def test_only_so_many_inquirers_wait(asked: Asked) -> None:
    """When one of them leaves, another one gets its place."""
    for number in range(INQUIRERS_MAX + 1):  # the first one gets its answer at once
        asked.receive(ASK, peer=b"%d" % number)
    asked.receive(ASK, peer=b"one more")
    asked.step(Vanished(b"7", 0.0))
    asked.receive(ASK, peer=b"the next")
    for _ in range(INQUIRERS_MAX):
        asked.now += PAUSE_S
        asked.step()
    [answer] = asked.answers[b"one more"]
    assert isinstance(answer, messages.Refused)
    assert f"{INQUIRERS_MAX} others ask" in answer.reason
    assert [type(each) for each in asked.answers[b"the next"]] == [messages.Status]
    assert b"7" not in asked.answers


def test_questions_wait_in_a_queue_so_that_answers_cost_little(asked: Asked) -> None:
    """One is answered at a time, the oldest first, with a pause after each answer."""
    asked.connect()
    for peer in (b"1", b"2"):
        asked.receive(ASK, peer=peer)
    assert [*asked.answers] == [b"a", b"1"]
    deadline = asked.core.next_deadline()
    assert deadline == asked.core.inquiries.deadline == asked.now + PAUSE_S
    asked.step()
    assert b"2" not in asked.answers
    assert deadline is not None
    asked.now = deadline
    asked.step()
    assert len(asked.answers[b"2"]) == 1
    assert asked.core.inquiries.deadline is None


def test_an_inquirer_that_asks_again_before_its_answer_is_dropped(asked: Asked) -> None:
    """So a flood of questions costs one answer."""
    for peer in (b"other", b"asks", b"asks"):
        asked.receive(ASK, peer=peer)
    refusal = messages.Refused("protocol error: an inquirer asked again before it had its answer")
    assert asked.answers[b"asks"] == [refusal]
    assert asked.core.admission.ignores(b"asks")
    assert asked.core.inquiries.deadline is None


# ---- what the answer says ----


def test_tasks_are_counted_by_state_and_algorithm(asked: Asked) -> None:
    asked.connect()
    asked.put(1, 4)
    asked.finish(1, seconds=0.5)
    asked.put(5, refers=(3,))
    asked.put(6, refers=(4,))
    asked.put(7, refers=(4,))
    asked.step(CancelTasks([(7, 1)], Running.KILL))
    asked.core.submit([span(8, MIN, 9)])
    status = asked.status
    held = len(held_by(asked.core, "SLAVE-0"))
    pending = 3 - held + 9
    waiting = {"pending": pending, "blocked": 2, "delayed": 0, "at_slaves": held}
    assert status.tasks == {**waiting, "succeeded": 1, "failed": 0, "cancelled": 1}
    assert sum(each.pending for each in status.algorithms.values()) == pending
    assert sum(each.at_slaves for each in status.algorithms.values()) == held
    assert status.algorithms["max"].blocked == 2
    assert (status.algorithms["max"].finished, status.algorithms["max"].seconds) == (1, 0.5)


def test_slaves_are_counted_by_host_and_state(asked: Asked) -> None:
    asked.connect(b"a", "node1", slaves=3)
    asked.receive(messages.SlaveReady(2), peer=b"a")
    asked.connect(b"b", "node2")
    asked.put(1)
    asked.receive(messages.Leaving("evicted", Cause.EVICTED), peer=b"b")
    status = asked.status
    assert status.hosts == {
        "node1": HostStatus(agents=1, starting=1, idle=1, busy=1),
        "node2": HostStatus(agents=1, leaving=1),
    }
    assert status.slaves_connected == 3
    asked.finish(1)
    assert asked.status.hosts["node1"] == HostStatus(agents=1, starting=1, idle=2, finished=1)
    asked.step(Vanished(b"a", 0.0))
    assert [*asked.status.hosts] == ["node2"]


def test_an_excluded_host_is_named_with_the_reason(asked: Asked) -> None:
    asked.core.state.record(records.HostExcluded("node9", "no disk"))
    asked.core.hosts._until["node9"], asked.core.hosts._jobs["node9"] = 1e9, {}
    asked.core.hosts.deadline = 1e9
    assert asked.status.hosts == {"node9": HostStatus(excluded="no disk")}


def test_a_long_table_names_only_the_largest_rows(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others are in one row, so that nothing is missing in the sums."""
    for number in range(2, ALGORITHMS_SHOWN + 5):
        asked.core.definitions.add(Defined(defined(number, f"f{number}", "m:f")))
    asked.core.submit([span(1, MIN, 7)])
    algorithms = asked.status.algorithms
    assert len(algorithms) == ALGORITHMS_SHOWN + 1
    assert next(iter(algorithms)) == "min"
    assert [*algorithms][-1] == OTHERS
    monkeypatch.setattr(answers, "HOSTS_SHOWN", 2)
    for number in range(5):
        asked.connect(b"%d" % number, f"node{number}", slaves=10 - number)
    hosts = asked.status.hosts
    assert [*hosts] == ["node0", "node1", OTHERS]
    assert (hosts[OTHERS].agents, hosts[OTHERS].busy, hosts[OTHERS].starting) == (3, 3, 7 + 6 + 5)
    assert HOSTS_SHOWN > 2


def test_failures_are_counted_by_kind(asked: Asked) -> None:
    """Results, unrunnable tasks and tasks that are too large count. Cancelled tasks and those that need a failed one do
    not."""
    asked.connect()
    asked.put(1)
    asked.put(2, refers=(1,))
    asked.finish(1, error=ValueError("negative"))
    assert asked.status.last_failure == "task 1 (max) on node1: ValueError: negative"
    asked.put(3, attempts_max=1)
    asked.receive(messages.SlaveDied(1, 3, Cause.CRASH, "killed by signal 11", NO_WORDS), peer=b"a")
    assert asked.status.failures == {"ValueError": 1, "TaskUnrunnable (crash)": 1}
    asked.put(4, sid=SlaveId("SLAVE-7"))
    status = asked.status
    assert status.failures == {"ValueError": 1, "TaskUnrunnable (crash)": 1, "TaskUnrunnable": 1}
    assert status.last_failure.startswith("task 4 (max): SLAVE-7, to which it was addressed, is gone")
    assert status.last_failure_age_s == 1.0
    assert status.tasks["failed"] == 3


def test_what_is_kept_of_failures_has_a_limit(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "FAILURES_KEPT", 5)
    monkeypatch.setattr(totals, "KINDS_KEPT", 3)
    asked.connect()
    failures = asked.core.answers.failures
    for number in range(1, 8):
        asked.put(number)
        asked.finish(number, error=type(f"Error{number}", (Exception,), {})())
    assert [*failures.newest] == [3, 4, 5, 6, 7]
    assert [*failures.kinds.values()] == [1, 1, 1, 4]
    assert [*failures.kinds][-1] == OTHER_KINDS


def test_a_status_has_the_newest_notices_and_says_why_no_tasks_are_sent(asked: Asked) -> None:
    for number in range(NOTICES_KEPT + 1):
        asked.core.state.notice(f"notice {number}")
    asked.pass_time(7.0)
    asked.core.state.notice("the last one")
    notices = asked.status.notices
    assert len(notices) == NOTICES_KEPT
    assert notices[-2:] == [Notice(8.0, f"notice {NOTICES_KEPT}"), Notice(1.0, "the last one")]
    asked.core.feeding.unfetched = 2 << 30
    assert asked.status.waits.startswith("results of about 2.0 GiB wait")


def test_a_message_before_the_first_event_is_as_old_as_the_master() -> None:
    """The clock of a machine shows the time since it was started, not zero."""
    asked = Asked(started_at=100.0)  # a question comes a second later
    asked.core.state.notice("the run database has results")
    asked.pass_time(3.0)
    assert asked.status.notices == [Notice(4.0, "the run database has results")]


# ---- the rate ----


def test_the_rate_is_that_of_the_last_minute(asked: Asked) -> None:
    """Before the first sample it is zero, and in the first minute it is that since the start."""
    rate, jar = Rate(asked.core.state), asked.core.state.jar
    assert rate.at(5.0) == 0.0
    rates = []
    for second in range(200):
        jar.ended += 1 if second < 100 else 3
        rate.decide(float(second))
        rates.append(rate.at(float(second)))
    assert rates[0] == 0.0
    assert rates[50] == 1.0
    assert rates[-1] == 3.0
    assert len(rate._samples) < 20


def test_an_inquirer_gets_one_answer_on_a_connection(asked: Asked) -> None:
    """It may read none of the answers, which would fill the memory of the master."""
    for _ in range(2):
        asked.now += 1.0
        asked.receive(ASK)
    assert [type(each) for each in asked.answers[b"a"]] == [messages.Status]
    assert asked.core.admission.ignores(b"a")


# ---- why a task waits, or how it ended ----


def _last(asked: Asked, task: int) -> str:
    """The last reason why a task waits."""
    return asked.explain(task).reasons[-1]


# ---- tasks that wait for a slave ----


def test_without_slaves_a_task_waits_for_one(single: Asked) -> None:
    """The tasks before it are counted, and never listed."""
    single.put(1, 10)
    assert str(single.explain(8)) == (
        "task 8 (max) waits to be sent to a slave\n"
        "  no slave is connected: start some, or search for faults with `mwpy doctor`\n"
        "  it is behind 7 tasks of the same queue"
    )
    single.core.submit([span(11, MIN)])
    single.step()
    turns = "its queue takes turns with 1 other queue, of other algorithms or expected times"
    assert single.explain(2).reasons[1:] == ["it is behind 1 task of the same queue", turns]


def test_slaves_are_busy_with_other_tasks(single: Asked) -> None:
    """Agents with the same reason are counted, and the first few are named."""
    for number in range(7):
        single.connect(b"%d" % number, f"node{number}")
    single.put(1, 8)
    named = ", ".join(f"AGENT-{number} on node{number}" for number in range(5))
    assert single.explain(8).reasons == [f"{named} and 2 more: all slaves are busy, with 7 tasks"]


def test_an_addressed_task_waits_for_its_slave(single: Asked) -> None:
    """The reasons are about its slave."""
    single.step(AllocateSlaves(1, SlaveKind.ORDERED))
    single.connect(slaves=2)
    single.put(1, 3, sid=SID)
    addressed = "it is addressed to {}, so no other slave is sent it"
    before, busy = "it is behind 1 task of the same queue", "AGENT-0 on node1: all slaves are busy, with 1 task"
    assert single.explain(3).reasons == [addressed.format("SLAVE-0"), before, busy]
    single.step(AllocateSlaves(1, SlaveKind.ORDERED))
    single.connect(b"b")
    single.put(4, 2, sid=SlaveId("SLAVE-1"))
    assert single.explain(5).reasons[:-1] == [addressed.format("SLAVE-1")]


def test_a_suspect_waits_to_run_alone(single: Asked) -> None:
    """Other tasks are there; then the agent is reserved."""
    for number in range(3):
        single.connect(b"%d" % number)
        if not number:
            single.put(1)
        single.step(Vanished(b"%d" % number, 0.0))
        single.step()
    single.connect(b"last", "node9")
    assert held_by(single.core, "SLAVE-3") == [1]
    single.put(2)
    assert "reserved for another task, which runs alone" in _last(single, 2)
    place, *lost = single.explain(1).reasons
    assert place.startswith("attempt 4 is on SLAVE-3 of AGENT-3 (node9)")
    assert [each.partition(":")[0] for each in lost] == ["lost"] * 3


# ---- tasks that wait for something else ----


def test_a_blocked_task_waits_for_results(single: Asked) -> None:
    """A long list is cut."""
    single.put(1, 8)
    single.put(9, refers=tuple(range(1, 9)))
    assert str(single.explain(9)) == (
        "task 9 (max) is blocked: it waits for the results of other tasks\n"
        "  8 tasks must end before it: 1, 2, 3, 4, 5 and 3 more"
    )


def test_a_delayed_task_pauses(single: Asked) -> None:
    single.connect()
    single.put(1, after=7.0)
    single.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed by\nsignal 11", NO_WORDS), peer=b"a")
    assert str(single.explain(1)) == (
        "task 1 (max) pauses before its next attempt, as `after` in its policy says, after 1 attempt\n"
        "  its next attempt is possible in 6 s\n"
        "  lost: attempt 1 on SLAVE-0: crash: killed by signal 11"
    )


# ---- tasks that slaves have, and those that have ended ----


def test_a_task_at_a_slave_is_explained() -> None:
    """The first of its slave runs, and the others have not started. A cancelled one may finish."""
    asked = Asked(task_group=3)
    asked.connect()
    asked.put(1, 3)
    asked.now += 40.0
    assert str(asked.explain(1)) == (
        "task 1 (max) is at a slave, after 1 attempt\n"
        "  attempt 1 is on SLAVE-0 of AGENT-0 (node1), and has run there for at most 41 s"
    )
    assert "behind 2 tasks; its last result came" in _last(asked, 3)
    asked.step(CancelTasks([(1, 1)], Running.FINISH))
    asked.step()
    assert asked.explain(1).fate == "is at a slave and is cancelled unless it has started, after 1 attempt"


def test_the_end_of_a_task_is_explained(single: Asked) -> None:
    """The master knows the newest failures only."""
    single.connect()
    single.put(1, 2)
    single.finish(1)
    single.finish(2, error=ValueError("negative"))
    assert str(single.explain(1)) == "task 1 has ended, and the master keeps nothing of it"
    assert str(single.explain(2)) == "task 2 (max) failed on node1: ValueError: negative"
    assert str(single.explain(3)) == "task 3 is unknown: 2 tasks were submitted so far, with ids from 1 on"
    assert not single.explain(0).is_known


def test_a_task_that_was_answered_from_the_run_database_says_so(single: Asked) -> None:
    single.core.state.record(records.ResultsReused([ReusedTasks(1, 2, 0, "max", b"", [5, 5], [0, 1], [1])]))
    assert str(single.explain(2)) == "task 2 was answered from the run database, when it was submitted"
    assert not single.explain(3).is_known
    status = single.status
    assert (status.reused, status.tasks["succeeded"], status.tasks["failed"]) == (2, 1, 1)


# ---- limits ----


def test_different_reasons_of_agents_are_limited(single: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "REASONS_SHOWN", 3)
    for number in range(5):
        single.connect(b"%d" % number)
        single.receive(messages.Leaving(f"reason {number}", Cause.EVICTED), peer=b"%d" % number)
    single.put(1)
    assert len(single.explain(1).reasons) == 3


def test_only_the_last_losses_are_shown(single: Asked) -> None:
    single.put(1, attempts_max=20)
    for _ in range(DEATHS_SHOWN + 2):
        single.connect(b"a")
        single.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed", NO_WORDS), peer=b"a")
        single.receive(messages.Goodbye("it ends", Cause.CRASH), peer=b"a")
    assert sum(each.startswith("lost: ") for each in single.explain(1).reasons) == DEATHS_SHOWN


# ---- agents that leave ----


def test_agents_are_drained_by_their_name_their_job_or_their_host(asked: Asked) -> None:
    """They get no more tasks, and have as much time as the tasks need that run there."""
    for number, (peer, host) in enumerate(((b"a", "node1"), (b"b", "node2"), (b"c", "other"), (b"d", "last"))):
        asked.connect(peer, host, job=f"7.{number}")
    asked.put(1, 4)
    answer = asked.ask(messages.Ask("m", "g", drain=["node*", "7.2", "AGENT-9"]))
    assert isinstance(answer, messages.Drained)
    assert answer.agents == ["AGENT-0 on node1 (job 7.0)", "AGENT-1 on node2 (job 7.1)", "AGENT-2 on other (job 7.2)"]
    assert answer.running == 3
    assert len(answer.unknown) == 1
    assert answer.unknown[0].startswith("AGENT-9 (no agent has it; the agents are: AGENT-0 on node1")
    for peer in (b"a", b"b", b"c"):
        shutdown = asked.answers[peer][-1]
        assert isinstance(shutdown, messages.Shutdown)
        assert (shutdown.finished, shutdown.grace_s > 1e6) == (True, True)
    assert not any(isinstance(each, messages.Shutdown) for each in asked.answers[b"d"])
    asked.put(5, 3)
    assert asked.sent in ([], [5])
    again = asked.ask(messages.Ask("m", "g", drain=["node1"]))
    assert isinstance(again, messages.Drained)
    assert (again.agents, "has the state leaving" in again.unknown[0]) == ([], True)


def test_a_task_with_requirements_says_why_each_agent_is_not_sent_it(asked: Asked) -> None:
    offers = Offers({"cpus": 2}, {"python": "3.11.2"})
    asked.connect(b"a", "node1", slaves=2, offers=offers)
    asked.receive(messages.SlaveReady(2))
    asked.connect(b"b", "node2", slaves=2, offers=Offers({"cpus": 8}, {"python": "3.8"}))
    asked.put(1, 1, requires=requires_of({"cpus": 8, "python": ">=3.10"}))
    asked.put(2, 1, requires=requires_of({"cpus": 2}))
    asked.put(3, 1, requires=requires_of({"cpus": 1, "python": ">=3.10"}))
    first, second = asked.explain(1), asked.explain(3)
    assert first.reasons == [
        "AGENT-0 on node1: offers too little: cpus 8 required, and it offers 2",
        "AGENT-1 on node2: offers too little: python >=3.10 required, and it has 3.8",
    ]
    assert second.reasons[0] == "AGENT-0 on node1: not now: 0 of cpus 2 are free, and 1 required"


# ---- more than a status: what each slave does, what failed and what was logged ----


def detailed(single: Asked) -> Overview:
    answer = single.ask(messages.Ask("m", "g", detailed=True))
    assert isinstance(answer, Overview)
    return answer


def test_each_slave_is_named_with_its_task_and_its_work(single: Asked) -> None:
    single.connect(slaves=2, job="4711.0")
    single.receive(messages.SlaveReady(2), peer=b"a")
    single.put(1)
    single.pass_time(9.0)
    busy, idle = sorted(detailed(single).slaves, key=lambda row: row.task == 0)
    assert (busy.host, busy.job, busy.state, busy.task, busy.algorithm) == ("node1", "4711.0", "busy", 1, "max")
    assert (busy.running_s, busy.up_s, busy.finished) == (10.0, 10.0, 0)
    assert (idle.state, idle.task, idle.running_s) == ("idle", 0, 0.0)
    single.finish(1, seconds=2.0)
    [row], [slave] = detailed(single).rows, [each for each in detailed(single).slaves if each.sid == busy.sid]
    assert (slave.finished, slave.busy_s) == (1, 2.0)
    assert (row.algorithm, row.host, row.tasks, row.seconds, row.longest_s) == ("max", "node1", 1, 2.0, 2.0)


def test_only_so_many_slaves_are_named(single: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SLAVES_SHOWN", 2)
    for name in (b"a", b"b", b"c"):
        single.connect(name)
    found = detailed(single)
    assert ([row.sid for row in found.slaves], found.slaves_left_out) == (["SLAVE-0", "SLAVE-1"], 1)


def test_the_reason_why_nothing_moves_is_given_only_if_nothing_moves(single: Asked) -> None:
    assert detailed(single).stuck == ""
    single.put(1)
    assert "no slave is connected" in detailed(single).stuck
    single.connect()
    assert detailed(single).stuck == ""
    single.finish(1)
    single.put(2, requires=requires_of({"gpus": 1, "cpus": 0}))
    assert "gpus" in detailed(single).stuck


def test_each_kind_of_failure_has_its_newest_example_with_the_traceback(single: Asked) -> None:
    single.core.answers.arguments = lambda task: (str(task), "13")
    single.connect()
    single.put(1, 3)
    for task, error in ((1, ValueError("one")), (2, OSError("two")), (3, ValueError("three"))):
        single.finish(task, error=error)
    values, system = detailed(single).examples
    assert (values.kind, values.count, values.task, values.text) == ("ValueError", 2, 3, "ValueError: three")
    assert (values.host, values.arguments, values.age_s) == ("node1", "3, 13", 1.0)
    assert "ValueError: three" in values.traceback
    assert (system.kind, system.count) == ("OSError", 1)


def test_what_the_arguments_of_failures_have_in_common_is_named(single: Asked) -> None:
    single.core.answers.arguments = lambda task: (str(task), "13", "'even'" if task % 2 == 0 else "'odd'")
    single.connect()
    single.put(1, 6)
    common = []
    for task in range(1, 7):
        single.finish(task, error=ValueError("no"))
        common.append(detailed(single).examples[0].common)
    assert common[:3] == ["", "", "argument 2 is 13"]
    assert common[-1] == "argument 2 is 13, argument 3 is 'odd' or 'even'"


def test_the_newest_records_of_logging_are_kept(single: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    single.connect()
    single.put(1)
    row = LogRow(1, "max", 5.5, 30, "app", "a\nb", "/app.py", 12, "work", "")
    for _ in range(answers.LINES_KEPT + 5):
        single.receive(messages.Logged(1, [row]), peer=b"a")
    lines = detailed(single).log
    assert len(lines) == answers.LINES_KEPT
    assert (lines[-1].sid, lines[-1].host, lines[-1].task, lines[-1].text) == ("SLAVE-0", "node1", 1, "a b")
