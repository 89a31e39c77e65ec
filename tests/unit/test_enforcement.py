"""Limits of tasks in the agent: when it looks at a slave, when it kills it, and which task is charged."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace
from tests.driven_agent import HELLO, WELCOME, agent, heard, results, slave_heard, tasks, with_slaves

from mwpy._core.agent.child import (
    AgentActions,
    AgentSettings,
    Due,
    ExitSeen,
    Forked,
    Looked,
    Measured,
    Recalled,
    Resumed,
    SlaveExited,
    Terminated,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import MEASURE_S
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.last_words import NO_WORDS
from mwpy._values.policy import Limits

GROUPED = replace(WELCOME, result_group=1)
"""The master fixes how many results come at a time."""


def send(core: AgentCore, first: int, *limits: Limits | None, now: float = 0.0) -> list[tuple[int, int | None]]:
    """The master sends tasks to slave 1, with consecutive ids from `first` on. Each is a span with its own limits.
    Return the limits of memory that the kernel gets."""
    count = len(limits)
    columns = [*range(first, first + count)], [1] * count, [1] * count, [0] * count
    core.handle(heard(messages.Tasks(1, *columns, limits=[*limits] if any(limits) else []), b""), now)
    return core.take_actions().limit_memory


def seconds(core: AgentCore, first: int, *most: float | None, now: float = 0.0) -> None:
    """The same, with limits of time."""
    send(core, first, *(None if each is None else Limits(each) for each in most), now=now)


def memory(core: AgentCore, first: int, *most: int | None, now: float = 0.0) -> list[tuple[int, int | None]]:
    """The same, with limits of memory."""
    return send(core, first, *(None if each is None else Limits(None, each) for each in most), now=now)


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which is ready. No journal is read."""
    return agent(GROUPED)


def look(core: AgentCore, started: int, began: float, *, at: float | None = None) -> AgentActions:
    """The next moment comes at which the agent looks, at a slave that started a task at `began`."""
    due = core.children[1].dues[Due.TIME]
    assert at is None or due == at
    core.decide(due)
    assert core.take_actions().look == [1]
    core.handle(Looked(1, started, began), due)
    return core.take_actions()


def ends(core: AgentCore, started: int, *, now: float = 9.0) -> messages.SlaveDied:
    """Slave 1 ends. Returns what the master hears."""
    core.handle(ExitSeen(1, by_sigkill=True), now)
    core.decide(now)
    assert core.take_actions().collect == [1]
    core.handle(SlaveExited(1, "its end", NO_WORDS, started), now)
    [died] = [each.message for each in core.take_actions().to_master if isinstance(each.message, messages.SlaveDied)]
    return died


def test_the_time_of_a_stop_is_not_counted(core: AgentCore) -> None:
    """A batch system may suspend a job with all its processes. A stop before the task began has no effect."""
    core.handle(Resumed(50.0), 0.25)
    seconds(core, 1, 1.0, now=0.25)
    core.handle(Resumed(100.0), 100.75)
    assert look(core, 1, 0.5, at=1.25).recall == []
    core.handle(Looked(1, 1, 0.5), 101.25)
    assert core.take_actions().recall == []
    core.handle(Looked(1, 1, 0.5), 101.5)
    assert core.take_actions().recall == [(1, None)]


def test_a_task_that_began_during_a_stop_gets_only_the_rest_of_it(core: AgentCore) -> None:
    """The agent alone may be stopped. Its slave then goes on with the next task."""
    seconds(core, 1, 1.0)
    core.handle(Resumed(10.0), 10.75)
    core.handle(Looked(1, 1, 10.5), 11.625)
    assert core.take_actions().recall == []
    core.handle(Looked(1, 1, 10.5), 11.75)
    assert core.take_actions().recall == [(1, None)]


def test_a_task_that_finishes_at_the_last_moment_costs_nothing(core: AgentCore) -> None:
    """The slave has started the next task when the agent stops it. It goes on, and the next task is watched."""
    seconds(core, 1, 1.0, 1.0)
    assert look(core, 1, 0.0625, at=1.0) == AgentActions()
    assert look(core, 1, 0.0625, at=1.0625).recall == [(1, None)]
    core.handle(Recalled(1, 2, None), 1.07)
    actions = core.take_actions()
    assert actions.kill == []
    assert [each.message for _, each in actions.to_slaves] == [messages.Revoked(1, [], [], [])]
    assert look(core, 2, 1.0625, at=2.0625).recall == [(1, None)]


@pytest.mark.parametrize("began", [math.nan, math.inf, -1.0, 0.5, 2.5])
def test_a_slave_that_writes_an_impossible_time_is_killed(began: float) -> None:
    """A task began neither before its slave was started nor in the future."""
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(GROUPED), 1.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 1.0)
    seconds(core, 1, 1.0, now=1.0)
    assert look(core, 1, began, at=2.0).kill == [1]
    died = ends(core, 1)
    assert (died.running, died.cause) == (1, Cause.CRASH)
    assert "it says that its task began at an impossible time" in died.reason


# Memory


def measure(
    core: AgentCore, started: int, used: int, *, at: float, kills: int = 0, bound: int = 1 << 20
) -> AgentActions:
    """The next moment comes at which the agent measures the memory of slave 1."""
    assert core.children[1].dues[Due.MEMORY] == at
    core.decide(at)
    assert core.take_actions().measure == [(1, bound)]
    core.handle(Measured(1, started, used, kills), at)
    return core.take_actions()


def test_the_kernel_enforces_the_largest_limit_of_the_tasks_that_a_slave_holds(core: AgentCore) -> None:
    """A task without a limit may use all memory. So the others are only measured while the slave holds it."""
    assert memory(core, 1, None) == []
    assert memory(core, 2, 1 << 20) == []
    core.handle(results(1), 0.1)
    core.take_actions()
    assert measure(core, 2, 1, at=0.0).limit_memory == [(1, 1 << 20)]
    assert memory(core, 3, None, now=0.2) == [(1, None)]
    core.handle(results(2), 0.3)
    core.take_actions()
    core.decide(MEASURE_S)
    assert core.take_actions().measure == [], "it holds no task with a limit"
    assert Due.MEMORY not in core.children[1].dues


@pytest.mark.parametrize(("started", "is_charged"), [(1, True), (2, False)])
def test_a_process_that_the_kernel_killed_for_lack_of_memory_charges_the_task(
    core: AgentCore, started: int, is_charged: bool
) -> None:
    """If another task has started meanwhile, nobody knows which task started that process."""
    memory(core, 1, 1 << 20, 1 << 20)
    measure(core, 0, 1, at=0.0)
    actions = measure(core, started, 1, at=MEASURE_S, kills=1)
    assert actions.recall == ([(1, None)] if is_charged else [])
    assert measure(core, started, 1, at=2 * MEASURE_S, kills=1).recall == []
    core.handle(Recalled(1, started, None), 1.0)
    if is_charged:
        assert "because task 1 and its processes needed more than 1.0 MiB, its memory_max" in ends(core, started).reason


# Shortage of memory


def crew(slaves: int, memory: int | None, template_bytes: int = 0) -> AgentCore:
    """An agent with some slaves, which are ready, in a job that has some memory for them and their template."""
    core = AgentCore(AgentSettings(with_slaves(slaves), memory_bytes=memory, forks=bool(template_bytes)))
    core.handle(heard(GROUPED), 0.0)
    for number in range(1, slaves + 1):
        if template_bytes:
            core.handle(Forked(number, template_bytes=template_bytes), 0.0)
        core.handle(slave_heard(messages.SlaveReady(number), slave=number), 0.0)
    core.take_actions()
    return core


def give(core: AgentCore, number: int, limit: Limits | None) -> None:
    """The master sends a task to a slave, with the slave's number as its id."""
    core.handle(tasks(number, slave=number, limits=[] if limit is None else [limit]), 0.0)
    core.take_actions()


def all_use(core: AgentCore, used: dict[int, int], now: float) -> tuple[list[tuple[int, int]], AgentActions]:
    """Each slave that is measured uses this much. Returns what was measured, and what the agent then does."""
    core.decide(now)
    wanted = core.take_actions().measure
    for number, _ in wanted:
        core.handle(Measured(number, 1, used[number], 0), now)
    return wanted, core.take_actions()


ROOMY = Limits(None, 1000)


def test_a_slave_is_killed_before_the_batch_system_kills_the_job() -> None:
    """First all slaves are measured exactly. The victim is the one that is furthest beyond what it may use."""
    core = crew(3, 1000)
    for number, expected in ((1, 600), (2, None), (3, 200)):
        give(core, number, Limits(None, 1000, expected))
    used = {1: 500, 2: 340, 3: 180}
    measured, actions = all_use(core, used, 0.0)
    assert (measured, actions.recall) == ([(1, 1000), (2, 1000), (3, 1000)], [])
    measured, actions = all_use(core, used, 0.0)
    assert (measured, actions.recall) == ([(1, 0), (2, 0), (3, 0)], [(2, None)])
    core.handle(Recalled(2, 1, None), 0.1)
    assert core.take_actions().kill == [2]
    core.handle(SlaveExited(2, "its end", NO_WORDS, 1), 0.2)
    [died] = [each.message for each in core.take_actions().to_master]
    assert isinstance(died, messages.SlaveDied)
    assert (died.running, died.cause, died.allowed) == (2, Cause.OUT_OF_MEMORY, 333)
    assert died.reason == (
        "killed by its agent because its job was short of memory: the slaves used 1020 bytes of 1000 bytes. task 2 "
        "used 340 bytes, and may use 333 bytes in such a case: give the job more memory or fewer slaves, or let such "
        "tasks need less"
    )


@pytest.mark.parametrize(("template_bytes", "recalled"), [(500, [(1, None)]), (0, [])])
def test_the_memory_of_the_template_is_not_there_for_the_slaves(
    template_bytes: int, recalled: list[tuple[int, None]]
) -> None:
    core = crew(2, 1500, template_bytes)
    give(core, 1, ROOMY)
    give(core, 2, ROOMY)
    all_use(core, {1: 500, 2: 450}, 0.0)
    assert all_use(core, {1: 500, 2: 450}, MEASURE_S)[1].recall == recalled


def test_a_task_that_needs_all_memory_of_its_job_is_charged() -> None:
    """The others are not to blame."""
    core = crew(2, 1000)
    give(core, 1, ROOMY)
    give(core, 2, ROOMY)
    all_use(core, {1: 990, 2: 10}, 0.0)
    all_use(core, {1: 990, 2: 10}, 0.0)
    core.handle(Recalled(1, 1, None), 0.1)
    core.handle(SlaveExited(1, "its end", NO_WORDS, 1), 0.2)
    [died] = [each.message for each in core.take_actions().to_master]
    assert isinstance(died, messages.SlaveDied)
    assert (died.running, died.cause, died.allowed) == (1, Cause.OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("memory", [None, 1200])
def test_no_slave_is_killed_if_the_job_has_enough_memory(memory: int | None) -> None:
    """The same holds if nobody knows how much memory it has."""
    core = crew(2, memory)
    give(core, 1, ROOMY)
    give(core, 2, ROOMY)
    for now in (0.0, MEASURE_S):
        _, actions = all_use(core, {1: 520, 2: 520}, now)
        assert (actions.recall, core.children[1].dues[Due.MEMORY]) == ([], now + MEASURE_S)


# An agent that is evicted


@pytest.mark.parametrize(
    ("used", "causes", "says"),
    [
        ({1: 700, 2: 200}, [Cause.OUT_OF_MEMORY, Cause.EVICTED], True),
        ({1: 300, 2: 400}, [Cause.EVICTED, Cause.EVICTED], True),
        ({1: 300, 2: 300}, [Cause.EVICTED, Cause.EVICTED], False),
        ({}, [Cause.EVICTED, Cause.EVICTED], False),
    ],
)
def test_a_job_that_is_ended_while_it_uses_too_much_memory_says_so(
    used: dict[int, int], causes: list[Cause], says: bool
) -> None:
    """A task is charged only if its slave alone used more than the job has. It needs no limit of memory for this."""
    core = crew(2, 600)
    give(core, 1, None)
    give(core, 2, None)
    core.handle(Terminated("evicted (SIGTERM)", used=used), 0.0)
    core.decide(100.0)
    core.take_actions()
    for slave in (1, 2):
        core.handle(SlaveExited(slave, "killed by signal 9", NO_WORDS, 1), 100.0)
    *died, goodbye = [sent.message for sent in core.take_actions().to_master]
    assert [message.cause for message in died if isinstance(message, messages.SlaveDied)] == causes
    together = sum(used.values())
    why = (
        f"; its slaves used {together} bytes of memory, and its job has 600 bytes for them: ask for more"
        if says
        else ""
    )
    assert goodbye == messages.Goodbye(f"evicted (SIGTERM){why}", Cause.EVICTED)


def test_a_slave_that_ends_while_its_agent_leaves_has_the_cause_of_the_departure() -> None:
    """The kernel may have killed a process meanwhile, but the machine is taken back anyway."""
    core = crew(1, None)
    give(core, 1, None)
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 1, out_of_memory=True), 0.0)
    [died, _] = [sent.message for sent in core.take_actions().to_master]
    assert isinstance(died, messages.SlaveDied)
    assert died.cause is Cause.EVICTED
