"""Unit tests of the part of a master that takes over results of former generations, which agents bring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import define
from msgspec.structs import replace
from tests.spans import held_by
from tests.unit.test_reuse import CODE, File

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import Actions, Received, Stored, Waiting
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages, records
from mwpy._values.connections import Stranger
from mwpy._values.earlier import FormerAgent
from mwpy._values.errors import ProtocolError
from mwpy._values.messagepack import encode
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.policy import TaskPolicy
from mwpy._values.records import AlgorithmDefined

SQUARE = AlgorithmDefined(AlgorithmDefinition(0, "square", "app:square", "", "3.11", {}), b"", CODE, {"body": CODE})
FAILURE = Codec().dumps_failure(ValueError("no"))
ROW = 50


def handover(
    tasks: Sequence[int], generation: str = "first", *, failed: Sequence[int] = (), **more: Any
) -> tuple[messages.Handover, list[bytes]]:
    """The results of tasks of a former generation, with ten times the id as the value."""
    count = len(tasks)
    results = Results(1, [*tasks], [1] * count, [3] * count, [float(abs(task)) for task in tasks], [*failed])
    entries = [FAILURE if place in failed else encode(10 * task) for place, task in enumerate(tasks)]
    message = messages.Handover(generation, "SLAVE-4", replace(results, **more))
    return message, [groups.payload(count, entries)]


@define
class Successor(File):
    """The second generation of a master. In the first one, the tasks 1 to 6 had the arguments 1 to 6."""

    returns_s: float = 0.0
    once: int = 0
    """How many of them were sent that must not run twice."""

    def __attrs_post_init__(self) -> None:
        File.__attrs_post_init__(self)
        self.core.state.settings = replace(self.core.state.settings, task_group=2)
        self.generation(1, [1, 2, 3, 4, 5, 6])
        if self.once:
            self.sent(1, 1, self.once)
        self.reuse.names = {"first": 1, "lost": 9}
        agents = [(generation, f"host of {name}") for generation in (1, 2) for name in "ab"]
        self.reuse.succession.know([FormerAgent(*each, 1, self.returns_s, False) for each in agents])
        self.reuse.begin()
        self.core.definitions.add(Defined(SQUARE))

    def receive(self, message: messages.Message, peer: bytes = b"a", frames: Sequence[bytes] = ()) -> None:
        self.core.handle(Received(peer, "10.0.0.9", message, frames), 0.0)
        self.core.check()

    def connect(self, peer: bytes = b"a", slaves: int = 0) -> None:
        self.receive(messages.Hello("m", "g", f"host of {peer.decode()}", 1, "3.11", slaves), peer)
        for number in range(1, slaves + 1):
            self.receive(messages.SlaveReady(number), peer)

    def act(self) -> Actions:
        self.core.decide(0.0)
        self.core.check()
        return self.core.take_actions()

    def bring(self, *brought: Any, peer: bytes = b"a", **more: Any) -> list[records.ResultsHandedOver]:
        """An agent brings results. Return what is to be stored."""
        self.core.take_actions()
        message, frames = handover(*brought, **more)
        self.receive(message, peer, frames)
        return [each for each in self.core.take_actions().records if isinstance(each, records.ResultsHandedOver)]

    def bring_and_store(self, *brought: Any, **more: Any) -> Actions:
        """An agent brings results, which are stored at once. Return what the core does then."""
        [record] = self.bring(*brought, **more)
        self.core.handle(Stored(record, ROW), 0.0)
        self.core.check()
        return self.core.take_actions()


@pytest.fixture
def master() -> Successor:
    """A master with an agent that has no slave."""
    master = Successor()
    master.connect()
    return master


def test_an_agent_learns_that_its_master_was_started_again(master: Successor) -> None:
    master.receive(messages.Hello("m", "first", "host", 1, "3.11", 1, session="s", handled=3), b"back")
    [send] = master.core.take_actions().sends[-1:]
    assert send.message == messages.Refused("the master was started again", generation="g")


def test_a_task_that_is_submitted_later_ends_at_once_with_the_provenance_of_its_result(master: Successor) -> None:
    assert master.bring_and_store([3, 1]).results == []
    assert master.submit([1, 2, 3]) == [2]
    first, third = master.core.take_actions().results
    assert (first.task_id, first.sid, first.host, first.attempts) == (1, "SLAVE-4", "host of a", 3)
    assert (first.value, third.value) == (f"value 1 of row {ROW}", f"value 0 of row {ROW}")
    assert (first.compute_seconds, third.compute_seconds) == (1.0, 3.0)


def test_a_result_is_no_answer_before_it_is_in_the_file(master: Successor) -> None:
    master.bring([1])
    assert master.submit([1]) == [1]


def test_a_task_that_runs_elsewhere_is_answered_and_its_attempt_is_killed(master: Successor) -> None:
    master.connect(b"b", slaves=2)
    master.submit([1, 2, 3, 4])
    master.act()
    assert (held_by(master.core, "SLAVE-0"), held_by(master.core, "SLAVE-1")) == ([1, 2], [3, 4])
    actions = master.bring_and_store([2, 3, 4])
    assert sorted(each.task_id for each in actions.results) == [2, 3, 4]
    cancels = [each.message for each in actions.sends if each.peer == b"b"]
    assert cancels == [messages.Cancel([2], [1], kill=True), messages.Cancel([3], [2], kill=True)]
    assert held_by(master.core, "SLAVE-0") == [1]
    assert held_by(master.core, "SLAVE-1") == []
    states = [slave.state.name for slave in master.core.state.members.slaves.values()]
    assert states == ["BUSY", "IDLE"]
    late = Results(2, [3], [1], [1], [0.1], [])
    master.receive(late, b"b", [groups.payload(1, [encode(0)])])
    assert master.core.take_actions().results == []


def test_a_failure_ends_no_task_if_failed_tasks_run_again(master: Successor) -> None:
    master.reuse.rerun_failed = True
    master.submit([1, 2])
    actions = master.bring_and_store([1, 2], failed=[0])
    assert [each.task_id for each in actions.results] == [2]


def test_results_that_do_not_count_are_left_out(master: Successor) -> None:
    """Tasks that have an answer or are not known, and failures after which a task is tried again."""
    master.bring_and_store([1])
    [record] = master.bring([2, 1, 7, 0, -5, 3, 5], failed=[5], again=[5])
    assert record.results.tasks == [2, 5]
    assert master.bring([2], generation="first") != []
    assert master.bring([1]) == []


@pytest.mark.parametrize(
    ("message", "frames", "fault"),
    [
        (handover([1], attempts=[0])[0], [groups.payload(1, [b"\1"])], "an attempt that no task can have"),
        (handover([1], attempts=[1 << 31])[0], [groups.payload(1, [b"\1"])], "malformed Handover: Expected `int` <="),
        (handover([1], counts=[0])[0], [groups.payload(0, [])], "malformed Handover: Expected `int` >= 1"),
        (handover([1])[0], [], "0 payload frames, but 1 are expected"),
        (handover([1])[0], [groups.payload(2, [b"\1", b"\1"])], "not a list of 1 entries"),
        (handover([1], counts=[1 << 40], seconds=[1.0])[0], [groups.payload(1, [b"\1"])], "not a list of"),
        (handover([1], failed=[0])[0], [groups.payload(1, [b"\1"])], "a failure without a description"),
    ],
)
def test_a_malformed_handover_is_the_fault_of_its_agent(
    master: Successor, message: messages.Handover, frames: list[bytes], fault: str
) -> None:
    def deliver() -> None:
        handed_over, payload = wire.decode(wire.encode(message, frames), wire.FROM_AGENT)
        assert isinstance(handed_over, messages.Handover)
        master.reuse.succession.receive(master.core.state.members.peers[b"a"], handed_over, payload)

    with pytest.raises(ProtocolError, match=fault):
        deliver()


def test_a_result_that_was_brought_replaces_none_that_a_later_generation_has_computed() -> None:
    """The algorithm of that generation has got the other result."""
    file = File()
    file.generation(1, [1, 2])
    file.generation(2, [1, 2])
    file.answer(2, 7, [1])
    file.answer(1, 8, [1, 2])
    file.answer(1, 9, [2])
    file.reuse.begin()
    assert file.submit([1, 2]) == []
    assert [each.value for each in file.core.take_actions().results] == ["value 0 of row 7", "value 1 of row 8"]


# ---- tasks that still run at agents -------------------------------------------------------------------------------


ONCE = TaskPolicy(retry=False)

RUNNING, NOT_STARTED, LOST = messages.FormerFate


def tell(
    master: Successor, fate: messages.FormerFate, *tasks: int, peer: bytes = b"a", generation: str = "first"
) -> None:
    """An agent says how far tasks are of a former generation; without tasks, that this is all."""
    master.receive(messages.FormerTasks(generation, fate, [*tasks], [1] * len(tasks)), peer)


def waiting(master: Successor) -> list[int]:
    """The tasks that wait for agents."""
    return [*master.core.state.jar.delayed]


def test_a_task_that_still_runs_is_not_sent_to_another_slave(master: Successor) -> None:
    master.connect(b"b", slaves=1)
    master.submit([1, 2, 9])
    tell(master, RUNNING, 1)
    assert waiting(master) == [1]
    master.act()
    assert held_by(master.core, "SLAVE-0") == [2, 3]
    master.submit([2])
    actions = master.bring_and_store([1])
    assert [each.task_id for each in actions.results] == [1]
    assert waiting(master) == []


def test_a_task_whose_result_is_on_its_way_into_the_file_is_not_sent(master: Successor) -> None:
    """It was pending when the agent brought its result."""
    master.submit([1, 9])
    [record] = master.bring([1])
    master.connect(b"b", slaves=1)
    master.act()
    assert held_by(master.core, "SLAVE-0") == [2]
    assert waiting(master) == [1]
    master.core.handle(Stored(record, ROW), 0.0)
    assert [each.task_id for each in master.core.take_actions().results] == [1]
    assert waiting(master) == []


def test_a_task_that_must_not_run_twice_is_unrunnable_when_its_old_slave_has_no_result(master: Successor) -> None:
    tell(master, RUNNING, 1)
    master.submit([1], policy=ONCE)
    master.core.take_actions()
    tell(master, LOST, 1)
    [unrunnable] = master.core.take_actions().unrunnable
    assert unrunnable.task_id == 1
    assert "has ended without a result" in unrunnable.reason
    assert waiting(master) == []


# ---- tasks that must not run twice --------------------------------------------------------------------------------


@pytest.fixture
def doubtful() -> Successor:
    """The former generation sent tasks 1 to 3 to slaves, and they must not run twice. Its agents look for their master
    for 100 seconds."""
    master = Successor(returns_s=100.0, once=3)
    master.connect()
    return master


def _later(master: Successor, now: float) -> Actions:
    master.core.handle(Stranger("10.0.0.9", "nobody"), now)
    master.core.decide(now)
    master.core.check()
    return master.core.take_actions()


def test_a_task_that_may_have_run_waits_for_the_agents_of_the_former_generation(doubtful: Successor) -> None:
    _later(doubtful, 5.0)
    doubtful.submit([1, 2, 3], policy=ONCE)
    assert doubtful.core.take_actions().unrunnable == []
    assert waiting(doubtful) == [1, 2, 3]
    actions = doubtful.bring_and_store([1])
    assert [each.task_id for each in actions.results] == [1]
    tell(doubtful, RUNNING, 2)
    _later(doubtful, 6.0)
    assert doubtful.reuse.succession.deadline == 105.0
    actions = _later(doubtful, 105.0)
    assert [(each.task_id, "before the master was started again" in each.reason) for each in actions.unrunnable] == [
        (3, True)
    ]
    assert waiting(doubtful) == [2]
    _later(doubtful, 1000.0)
    assert [each.task_id for each in doubtful.bring_and_store([2]).results] == [2]


def test_a_task_that_may_have_run_waits_only_for_agents_that_are_missing(doubtful: Successor) -> None:
    doubtful.connect(b"b")
    doubtful.submit([1, 2, 3], policy=ONCE)
    tell(doubtful, RUNNING, 1)
    tell(doubtful, NOT_STARTED)
    assert _later(doubtful, 1.0).unrunnable == []
    tell(doubtful, NOT_STARTED, peer=b"b")
    assert [each.task_id for each in _later(doubtful, 2.0).unrunnable] == [2, 3]
    assert waiting(doubtful) == [1]
    doubtful.submit([4], policy=ONCE)
    doubtful.submit([2], policy=ONCE)
    assert waiting(doubtful) == [1]


def test_a_task_runs_that_an_agent_has_not_started_although_it_must_not_run_twice(doubtful: Successor) -> None:
    """Also if it had said before that its slave still has the task, and if the task is submitted later."""
    doubtful.submit([1, 2], policy=ONCE)
    tell(doubtful, RUNNING, 1, 2)
    tell(doubtful, NOT_STARTED, 2, 3)
    assert waiting(doubtful) == [1]
    doubtful.submit([3], policy=ONCE)
    assert waiting(doubtful) == [1]
    tell(doubtful, LOST, 1)
    assert [each.task_id for each in doubtful.core.take_actions().unrunnable] == [1]
    doubtful.connect(b"b", slaves=1)
    doubtful.act()
    assert held_by(doubtful.core, "SLAVE-0") == [2, 3]


@pytest.mark.parametrize("peer", [b"a", b"stranger"])
def test_only_the_last_generation_and_its_agents_say_that_a_task_has_not_started(peer: bytes) -> None:
    """A generation in between may have sent the task to another slave."""
    doubtful = Successor(returns_s=100.0, once=3)
    doubtful.connect(b"a")
    doubtful.connect(b"stranger")
    if peer == b"a":
        doubtful.reuse.begin()
    doubtful.submit([1], policy=ONCE)
    tell(doubtful, NOT_STARTED, 1, peer=peer)
    tell(doubtful, NOT_STARTED, 1, generation="lost")
    assert waiting(doubtful) == [1]


def test_the_master_says_what_it_waits_for(doubtful: Successor) -> None:
    doubtful.core.waiting = Waiting.FOREVER
    _later(doubtful, 0.0)
    doubtful.submit([1, 2], policy=ONCE)
    tell(doubtful, RUNNING, 1)
    notices: list[str] = []
    for now in range(1, 12):
        notices += [each.text for each in _later(doubtful, float(now)).records if isinstance(each, records.Notice)]
    assert (
        "nothing has progressed for 5 s: 1 task still runs at slaves that have outlived the former master. 1 task with "
        "retry=False may have run before"
    ) in "".join(notices)
    tell(doubtful, LOST, 1)
    _later(doubtful, 100.0)
    assert doubtful.reuse.succession.text(100.0) == ""


def test_the_master_says_that_the_only_slaves_still_run_tasks_of_the_former_master(master: Successor) -> None:
    master.core.waiting = Waiting.FOREVER
    master.submit([9])
    tell(master, RUNNING, 1)
    notices: list[str] = []
    for now in range(12):
        master.core.decide(float(now))
        notices += notices_of(master.core.take_actions())
    assert [text for text in notices if "nothing has progressed" in text] == [
        "nothing has progressed for 5 s: no slave is connected (1 tasks wait). 1 agent connected: 1 task still runs at "
        "slaves that have outlived the former master"
    ]


def notices_of(actions: Actions) -> list[str]:
    return [each.text for each in actions.records if isinstance(each, records.Notice)]


def test_the_master_says_soon_which_tasks_wait_for_which_agents_and_what_to_do(doubtful: Successor) -> None:
    """Also while other tasks run. Tasks that are submitted one by one are named together."""
    doubtful.connect(b"b", slaves=1)
    _later(doubtful, 5.0)
    doubtful.submit([1], policy=ONCE)
    doubtful.submit([9])
    assert notices_of(_later(doubtful, 5.1)) == []
    doubtful.submit([2], policy=ONCE)
    assert doubtful.core.next_deadline() == 6.0
    [notice] = notices_of(_later(doubtful, 6.0))
    assert notice.startswith("2 tasks with retry=False may have run before the master was started again")
    assert "task 1 (square), task 3 (square). They wait up to 99 s for 2 agents" in notice
    assert "(process 1 on host of a, process 1 on host of b) of the former master" in notice
    assert "--mw-rerun failed" in notice


def test_a_task_that_waits_for_agents_is_explained(doubtful: Successor) -> None:
    _later(doubtful, 5.0)
    doubtful.submit([1], policy=ONCE)
    answer = doubtful.core.answers.explanation(1, 5.0)
    assert str(answer) == (
        "task 1 (square) waits for agents of the former master, which may run it or bring its result"
    )


def test_nothing_is_said_of_tasks_whose_agent_has_come_by_then(doubtful: Successor) -> None:
    _later(doubtful, 5.0)
    doubtful.submit([1], policy=ONCE)
    tell(doubtful, RUNNING, 1)
    assert notices_of(_later(doubtful, 6.0)) == []


def test_only_agents_count_that_may_still_look_for_their_master() -> None:
    master = Successor(once=3)
    master.reuse.succession.know(
        [
            FormerAgent(1, "a", 1, 300.0, has_ended=True),
            FormerAgent(1, "b", 2, 0.0, has_ended=False),
            FormerAgent(1, "c", 3, 20.0, has_ended=False),
            FormerAgent(2, "c", 3, 20.0, has_ended=False),
        ]
    )
    _later(master, 0.0)
    master.submit([1], policy=ONCE)
    [notice] = notices_of(_later(master, 1.0))
    assert "wait up to 19 s for 1 agent (process 3 on c)" in notice


def test_a_process_that_was_no_agent_of_a_generation_brings_none_of_its_results(doubtful: Successor) -> None:
    doubtful.connect(b"stranger")
    _later(doubtful, 0.0)
    doubtful.submit([1, 2, 3], policy=ONCE)
    assert doubtful.bring([1], peer=b"stranger") == []
    tell(doubtful, RUNNING, 2, peer=b"stranger")
    assert waiting(doubtful) == [1, 2, 3]
    message, frames = handover([1])
    doubtful.receive(message, b"stranger", frames)
    assert [each.task_id for each in _later(doubtful, 100.0).unrunnable] == [1, 2, 3]


def test_the_master_says_which_agent_it_does_not_believe(doubtful: Successor) -> None:
    doubtful.connect(b"stranger")
    message, frames = handover([1])
    doubtful.receive(message, b"stranger", frames)
    [notice] = notices_of(doubtful.core.take_actions())
    assert notice.startswith("AGENT-1 has brought 1 result")
    assert notice.endswith("because the run database does not know that it was an agent of that life")


def test_an_agent_that_names_more_tasks_than_there_were_costs_nothing(doubtful: Successor) -> None:
    doubtful.receive(messages.FormerTasks("first", RUNNING, [2], [10**19]))
    doubtful.submit([1, 2], policy=ONCE)
    assert waiting(doubtful) == [1, 2]
