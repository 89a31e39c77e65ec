"""Masters and agents with their loops and cores run together in a simulated world that has every fault."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

import mwpy
from mwpy._core.agent import limits, traffic
from mwpy._core.agent.child import Child, DropShare
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import Watch
from mwpy._core.agent.starts import Departure, Starts
from mwpy._core.agent.traffic import Shares
from mwpy._core.master import dispatch, hosts, results, silence
from mwpy._core.master.admission import Admission
from mwpy._core.master.core import MasterCore
from mwpy._core.master.dispatch import Definitions, Stragglers
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave
from mwpy._core.master.results import Results
from mwpy._core.master.spans import Span
from mwpy._core.master.state import Actions
from mwpy._roles.slave_processes import SlaveProcesses
from mwpy._simulation import algorithm
from mwpy._simulation.checkers import HistoryChecker
from mwpy._simulation.machines import SimulatedSlave
from mwpy._simulation.slaves import SimulatedChannel
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer
from mwpy._values.causes import Cause
from mwpy._values.messages import AlgorithmFailed, LoadFailure
from mwpy.testing import Cluster, SimulationFailure


@pytest.mark.timeout(0)  # no limit: there may be many seeds, and `Cluster` limits each run
def test_every_task_ends_exactly_once_despite_faults(seeds: range) -> None:
    """Agents crash, freeze and leave. Connections break, and messages come twice. Slaves die and hang."""
    for seed in seeds:
        Cluster(seed).run()


@pytest.fixture
def few(seeds: range) -> range:
    """Seeds for histories that are longer than others, or of a special kind: 10 of 500, and more of more."""
    return range(max(10, len(seeds) // 50))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are judged after a few attempts, and come back soon, so that this happens often in a short history."""
    for name, value in {"NEEDED": 3, "MOST": 6, "WITNESSED": 3, "EXCLUDED_S": 10.0}.items():
        monkeypatch.setattr(hosts, name, value)


@pytest.mark.parametrize("bad", ["slave", "error"])
@pytest.mark.usefixtures("hasty")
@pytest.mark.timeout(0)
def test_a_host_where_each_task_fails_gets_no_more_work(bad: str, few: range) -> None:
    """Each task there kills its slave, or raises an exception. All other faults happen, too."""
    histories = [Cluster(seed, agents=4, tasks=200, bad=bad, crashes=False) for seed in range(2 * len(few))]
    for cluster in histories:
        cluster.run()
    assert sum(cluster.checker.hosts.times for cluster in histories) > 0.4 * len(histories)


@pytest.mark.timeout(0)
def test_a_good_host_is_not_excluded(few: range) -> None:
    """Tasks kill slaves and raise exceptions, but nowhere more often than elsewhere."""
    for seed in few:
        cluster = Cluster(seed, agents=4, tasks=200, bad="", crashes=False)
        cluster.run()
        assert not cluster.checker.hosts.times


@pytest.mark.timeout(0)
def test_reports_about_long_tasks_are_true(monkeypatch: pytest.MonkeyPatch, few: range) -> None:
    """Each names a task, and the slave and the machine where it is. In these histories, half a second is long."""
    monkeypatch.setattr(silence, "FIRST_LOOK_S", 0.5)
    reports: list[str] = []
    recorded = HistoryChecker.recorded

    def collect(checker: HistoryChecker, record: records.Record) -> None:
        recorded(checker, record)
        if isinstance(record, records.Notice) and "running for long" in record.text:
            reports.append(record.text)

    monkeypatch.setattr(HistoryChecker, "recorded", collect)
    for seed in few:
        Cluster(seed, crashes=False).run()
    assert len(reports) > len(few)


@pytest.mark.timeout(0)
def test_tasks_that_kill_their_agent_end_even_if_there_is_only_one_agent(few: range) -> None:
    """In some of these histories, a fifth of the tasks does so."""
    killers = 0
    for seed in few:
        cluster = Cluster(seed, agents=1, crashes=False)
        cluster.hosts[0].num_slaves = 4  # up to three of them are ordered or intermingle
        cluster.run()
        killers += sum(task.kills == "agent" for task in cluster.checker.tasks.values())
    assert killers > len(few)


def test_the_same_seed_gives_the_same_history() -> None:
    """The events and their order are the same."""
    histories = []
    for _ in range(2):
        cluster = Cluster(7, crashes=False)
        cluster.run()
        histories.append(cluster.transcript)
    assert histories[0] == histories[1]


@pytest.mark.timeout(0)
def test_the_same_seed_gives_the_same_history_in_every_process(few: range) -> None:
    """No order depends on the addresses of objects in memory, or on how a process hashes strings."""
    count = 8 * len(few) // 10
    program = (
        "from mwpy.testing import Cluster\n"
        f"for seed in range({count}):\n"
        "    cluster = Cluster(seed)\n"
        "    cluster.run()\n"
        "    print(seed, *cluster.transcript, sep='\\n')\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(mwpy.__file__).parent.parent)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in ("1", "2", "3")
    ]
    assert printed[0] == printed[1] == printed[2]
    assert printed[0].count(b"ends: result") > 25 * count


@pytest.mark.long
def test_the_simulation_finds_a_lost_result_and_names_the_seed() -> None:
    """The checks compare results with submitted tasks. They do not rely on the core, which loses a result here."""
    cluster = Cluster(3, crashes=False)
    cluster.master.io.core = _Forgetful(cluster.core)  # type: ignore[assignment]
    with pytest.raises(SimulationFailure, match="seed 3") as caught:
        cluster.run()
    assert caught.value.seed == 3
    assert caught.value.transcript


def _forget_all(self: Definitions, agent: ConnectedAgent) -> list[int]:
    """Let an agent forget everything, also what its slaves need."""
    forgotten = [*agent.by_value]
    agent.by_value.clear()
    agent.bytes_by_value = 0
    for number in forgotten:
        del agent.known[number]
    return forgotten


def _keep_the_first(self: SimulatedSlave, number: int, algorithm: tuple[LoadFailure | None, str, bytes]) -> None:
    """Keep what was defined first under any number, as a slave that confuses its algorithms does."""
    self.algorithms[number] = next(iter(self.algorithms.values()), algorithm)


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name", "mistake", "fault"),
    [
        (Definitions, "_forget_there", _forget_all, "not sent to it|KeyError"),
        (SimulatedSlave, "define", _keep_the_first, "runs another function"),
        (Admission, "renew_slaves", lambda *_: None, "with a module from before an edit"),
    ],
    ids=["what is needed is forgotten", "functions are confused", "old slaves stay"],
)
def test_the_simulation_finds_a_task_that_would_run_other_code(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mistake: Callable[..., object], fault: str
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(SimulationFailure, match=fault):
        _run(range(60, 90))


_retire = Admission.retire


def _keep_excluded(self: Admission, agent: ConnectedAgent, why: str, cause: Cause) -> None:
    """Retire an agent, but not because its host was just excluded."""
    happened = self.state.actions.records
    if not (happened and isinstance(happened[-1], records.HostExcluded)):
        _retire(self, agent, why, cause)


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name", "mistake", "fault"),
    [
        (Admission, "retire", _keep_excluded, "is sent tasks, but host . is excluded"),
        (Admission, "_why_not", lambda *_: "", "joins, but host . is excluded"),
        (Hosts, "_why_not", lambda *_: "", "too many of"),
    ],
    ids=["it stays", "it joins again", "all are excluded"],
)
@pytest.mark.usefixtures("hasty")
def test_the_simulation_finds_work_for_an_excluded_host(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, mistake: Callable[..., object], fault: str
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(SimulationFailure, match=fault):
        _run(range(100), agents=4, tasks=200, bad="slave")


def _run(seeds: range, **settings: Any) -> None:
    for seed in seeds:
        Cluster(seed, **settings, crashes=False).run()


class _Forgetful:
    """A core that drops the first result."""

    def __init__(self, core: MasterCore) -> None:
        self._core = core
        self._dropped = False

    def take_actions(self) -> Actions:
        actions = self._core.take_actions()
        if actions.results and not self._dropped:
            self._dropped = True
            actions.results.pop()
        return actions

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name", "value", "found"),
    [
        (limits, "KILLED_TOO_S", 0.0, "is charged for a slave that it did not kill"),
        (limits, "SILENT_S", 0.2, "waits in slave"),
        (limits, "EXIT_S", 60.0, "hangs and was not killed"),
        (traffic, "HELD_BACK_BYTES", -1, "was printed 2 times"),
        (traffic, "SPARED_S", 60.0, "ran on although it was cancelled"),
        (limits, "LOOK_S", 60.0, "although it was over its limit"),
        (limits, "MEASURE_S", 60.0, "although it was over its limit"),
    ],
)
def test_the_simulation_finds_wrong_decisions_about_time_or_output(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: float, found: str
) -> None:
    """The agent reports a SIGKILL at once, delays results, waits for hanging slaves or for tasks over their limits, or
    prints every failure."""
    monkeypatch.setattr(module, name, value)
    assert any(found in reason for reason in map(reason_of_failure, range(100)))


@pytest.mark.long
def test_the_simulation_finds_an_agent_that_is_barred_because_of_one_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core takes each failure to load an algorithm for one that is sure to happen again."""
    decide = Admission.algorithm_failed

    def bar(admission: Admission, slave: ConnectedSlave, message: AlgorithmFailed) -> None:
        decide(admission, slave, replace(message, failure=LoadFailure.SURE))

    monkeypatch.setattr(Admission, "algorithm_failed", bar)
    assert any("but a new slave can run it" in reason for reason in map(reason_of_failure, range(60)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "replacement", "found"),
    [
        (Span, "runs_alone", False, "must be alone"),
        (ConnectedAgent, "num_busy", 0, "must be alone"),
    ],
)
def test_the_simulation_finds_wrong_decisions_about_suspects(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, replacement: object, found: str
) -> None:
    """The master never isolates a task, or isolates it on an agent that is busy."""
    monkeypatch.setattr(part, name, replacement)
    assert any(found in reason for reason in map(reason_of_failure, range(100)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "mistake", "found"),
    [
        (Watch, "_room", lambda *_: 1000, "runs too many tasks"),
        (Watch, "grown", lambda *_: None, "although it has too much memory"),
        (Starts, "decide", lambda *_: None, "hangs and was not killed"),
        (Departure, "_is_idle", True, "it left, but slaves"),
    ],
    ids=["too many tasks", "too much memory", "too long a start", "not idle"],
)
def test_the_simulation_finds_a_limit_that_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(part, name, mistake)
    assert any(found in reason for reason in map(reason_of_failure, range(150)))


@pytest.mark.long
def test_the_simulation_finds_a_task_that_believes_in_an_end_that_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SimulatedChannel, "end_at", lambda channel, moment: setattr(channel, "tasks_end_at", moment + 1)
    )
    assert any("but it has time until" in reason for reason in map(reason_of_failure, range(150)))


@pytest.mark.long
def test_the_simulation_finds_a_task_at_an_agent_with_too_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectedAgent, "ends_in_s", lambda *_: 1e9)
    assert any(re.search(r"task \d+ takes .* has .* s'", reason) for reason in map(reason_of_failure, range(150)))


def _first_idle(self: Stragglers, span: Span, *_: object) -> ConnectedSlave | None:
    """A place for a second attempt, perhaps at the agent that has the first."""
    idle, number = self.state.members.idle.values(), span.algorithm.number
    return next((slave for slave in idle if slave.runs_unaddressed and number not in slave.refused), None)


_end_others = Results._end_others


def _end_in_silence(self: Results, slave: ConnectedSlave, group: messages.Results, now: float) -> None:
    """End the other attempts of tasks that have answers. Their agents do not hear of it."""
    before = len(self.state.actions.sends)
    _end_others(self, slave, group, now)
    del self.state.actions.sends[before:]


def _whatever_the_policy_says(self: Stragglers, _now: float) -> list[ConnectedSlave]:
    """Take all tasks for stragglers that may have a second attempt."""
    busy = [slave for slave in self.state.members.slaves.values() if slave.held.spans and not slave.agent.is_away]
    return [
        slave for slave in busy if slave.held.spans[0].algorithm.succeeded and self._may_repeat(slave.held.spans[0])
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "mistake", "found"),
    [
        (Stragglers, "_place", _first_idle, "are at one agent"),
        (Stragglers, "_with_stragglers", _whatever_the_policy_says, "nobody wanted that"),
        (Results, "_end_others", lambda *_: None, "ends, beside"),
        (Results, "_end_others", _end_in_silence, "ran on although"),
        (Span, "can_lose", lambda *_: True, "is not handed back|is not reserved|must be alone"),
    ],
    ids=["the same agent", "not wanted", "two answers", "not killed", "too many losses"],
)
@pytest.mark.timeout(0)
def test_the_simulation_finds_wrong_decisions_about_second_attempts(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(dispatch, "KNOWN", 1)
    monkeypatch.setattr(part, name, mistake)
    assert any(re.search(found, reason) for reason in map(reason_of_failure, range(600)))


_LATER_FIRST = [*range(25, 150), *range(25)]
"""Seeds in an order in which rare mistakes about portions and templates are found soon."""


def _forget_nothing(child: Child, started: int) -> messages.Revoked:
    """Give late tasks back, but go on as if the slave held them."""
    before = child.held.copy()
    late_tasks = _take_late(child, started)
    child.held = before
    return late_tasks


_take_late = traffic._take_late


def _pass_all(self: Child, message: messages.Results | messages.AlgorithmFailed) -> list[range]:
    """Pass all results on, also those of tasks that were given back."""
    ended = _end(self, message)
    return [range(sum(message.counts))] if isinstance(message, messages.Results) else ended


_end = Child.end


def _charge_the_first(self: Child, _: int) -> tuple[int, int]:
    """Take the first task that a slave holds for the one that it runs."""
    return (self.held[0].first, self.held[0].attempt) if self.held else (0, 0)


def _move_failures(
    group: messages.Results, frames: Sequence[Buffer], kept: Sequence[int]
) -> tuple[messages.Results, list[Buffer]]:
    """Drop late results, and leave the failures of the others at their former positions."""
    smaller, payload = _select(group, frames, kept)
    return replace(smaller, failed=[place for place in group.failed if place < len(kept)]), payload


_select = groups.select


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "mistake", "found"),
    [
        (limits, "LATE_S", 60.0, "waits in slave . behind a long task"),
        (limits, "AGAIN_S", 60.0, "waits in slave . behind a long task"),
        (traffic, "_take_late", _forget_nothing, "its result is late already, and now it has a result"),
        (traffic, "_take_late", lambda child, started: _take_late(child, started + 1), "that have not ended"),
        (Child, "end", _pass_all, "its result is late already, and now it has a result"),
        (Child, "running", _charge_the_first, "is said to have run at a death, not"),
        (groups, "select", _move_failures, "'int' object has no attribute 'pickle'|the result of another attempt"),
        (algorithm, "can_be_packed", lambda _, settings: settings.task_group is None, "ran twice despite retry=False"),
    ],
    ids=[
        *("not looked for", "not looked for again", "counted twice", "too many are late", "late results count"),
        *("another task is charged", "another task fails", "tasks that must not run twice are packed"),
    ],
)
def test_the_simulation_finds_wrong_decisions_about_portions(
    monkeypatch: pytest.MonkeyPatch, part: object, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(part, name, mistake)
    assert any(re.search(found, reason) for reason in map(reason_of_failure, _LATER_FIRST))


def _hear_while_it_lives(self: SlaveProcesses, now: float) -> None:
    """Read the answers of a template, but not of one that has ended."""
    if self._template is None or self._template.poll() is None:
        _hear_template(self, now)


_hear_template = SlaveProcesses.hear_template


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name", "mistake", "found"),
    [
        (Starts, "ended", lambda *_: None, "was not replaced"),
        (Starts, "renew", lambda *_: None, "with a module from before an edit"),
        (SlaveProcesses, "hear_template", _hear_while_it_lives, "live on, and their agent has forgotten them"),
    ],
    ids=["a failed fork is waited for", "an old template stays", "a last answer is lost"],
)
def test_the_simulation_finds_wrong_orders_to_templates(
    monkeypatch: pytest.MonkeyPatch, part: type, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(part, name, mistake)
    assert any(found in reason for reason in map(reason_of_failure, _LATER_FIRST))


def _drop_in_silence(self: Shares, kept: Any) -> None:
    """Drop a shared object. The slaves do not hear of it."""
    del self._kept[kept.share.digest]
    self._state.actions.share_files.append(DropShare(kept.share.digest))


def _take_any_part(self: Shares, message: messages.SharePart, part: Buffer) -> None:
    """Take a part of a shared object, whether it was asked for or not."""
    if message.digest in self._kept:
        self._kept[message.digest].coming.setdefault(message.start)
    _part(self, message, part)


_part = Shares.part


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mistake", "found"),
    [("_drop", _drop_in_silence, "which its agent has dropped"), ("part", _take_any_part, "came twice")],
    ids=["slaves do not hear of it", "parts count twice"],
)
def test_the_simulation_finds_wrong_decisions_about_shared_objects(
    monkeypatch: pytest.MonkeyPatch, name: str, mistake: object, found: str
) -> None:
    monkeypatch.setattr(Shares, name, mistake)
    assert any(found in reason for reason in map(reason_of_failure, range(150)))


def reason_of_failure(seed: int) -> str:
    """Simulate a seed. Return the fault that the simulation finds, or an empty text."""
    try:
        Cluster(seed, crashes=False).run()
    except SimulationFailure as failure:
        return str(failure)
    return ""


def test_the_simulation_finds_a_task_that_starts_again_after_its_result_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Agents give their slaves, too, what another slave has already run."""
    given: dict[Child, tuple[messages.Tasks, Sequence[Buffer]]] = {}
    pass_on = AgentCore._pass_on

    def pass_on_twice(
        core: AgentCore, child: Child, group: messages.Tasks, frames: Sequence[Buffer], now: float
    ) -> None:
        pass_on(core, child, group, frames, now)
        for other in core.children.values():
            if other in given and other is not child and not other.held:
                pass_on(core, child, *given.pop(other), now)
        given[child] = group, frames

    monkeypatch.setattr(AgentCore, "_pass_on", pass_on_twice)
    found = "starts again after its result has arrived"
    assert any(found in reason for reason in map(reason_of_failure, range(150)))


def test_reports_of_live_attempts_reach_the_algorithm() -> None:
    histories = [Cluster(seed, crashes=False) for seed in range(10)]
    for cluster in histories:
        cluster.run()
    assert sum(cluster.master.algorithm.reports.given for cluster in histories) > 10


@pytest.mark.long
def test_the_simulation_finds_a_report_of_an_attempt_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running = results._running

    def running_since_its_report(slave: ConnectedSlave, task: int, attempt: int) -> object:
        reported = slave.report is not None and slave.report[1].task_id == task
        return running(slave, task, attempt) or reported

    monkeypatch.setattr(results, "_running", running_since_its_report)
    assert any("this attempt does not live" in reason for reason in map(reason_of_failure, range(40)))
