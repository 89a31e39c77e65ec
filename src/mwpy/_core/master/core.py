"""The master's core: it decides who is accepted, which slave gets which task, and what a loss means.

Theory of operation. Everything from outside comes through `handle`. Every request of the master algorithm is a method.
Both only record facts. `decide` decides once in each iteration, and `take_actions` gives out everything that must be
done. Nothing here waits, reads a clock or touches a socket.

The core has one `MasterState` (tasks, agents, slaves, actions) and parts that change it:

- `Admission` accepts agents and slaves.
- `Definitions` sends algorithms to agents, and forgets those that are not used.
- `Shares` names shared objects to agents, and sends them.
- `Fitting` chooses places for tasks with requirements.
- `Dispatch` sends tasks, takes tasks back for idle slaves, reserves agents for suspects, and gives stragglers away.
- `Results` receives results.
- `Reuse` answers tasks from what former generations have stored.
- `Succession` receives results of former generations that agents bring.
- `Interim` keeps the states that tasks leave for their next attempts, and what they report.
- `Losses` handles the ends of slaves and agents, and waits for agents from which nothing is heard.
- `SlaveKinds` assigns ordered, intermingle and unordered slaves.
- `HandBack` decides about tasks that no slave has: they pause, wait, are cancelled or handed back.
- `Feeding` says whether tasks are sent at all.
- `Stop` stops the run when too many tasks have failed.
- `Silence` says why nothing progresses.
- `Totals` counts what was done and lost.
- `Logs` takes over what tasks have logged.
- `Hosts` excludes hosts on which tasks fail that succeed elsewhere.
- `Answers` derives the figures, and says why a task waits.
- `Inquiries` answers members that ask what the master does.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

from mwpy._core.holding import known
from mwpy._core.master import state
from mwpy._core.master.admission import Admission, Feeding, SlaveKinds
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.answers import Answers, Inquiries, Rate
from mwpy._core.master.dispatch import Definitions, Dispatch, Shares
from mwpy._core.master.fitting import Fitting
from mwpy._core.master.handback import HandBack
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.losses import Losses
from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.restart import Reuse
from mwpy._core.master.results import Interim, Results
from mwpy._core.master.silence import LongTasks, Silence
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings, MasterState, Waiting
from mwpy._core.master.totals import RecentFailures, Stop, Totals
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.connections import Garbage, Stranger, TurnedAway, Vanished
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import Logged, size_of_records
from mwpy._values.phrases import amount, counted, text_of_other_values

# Takes over what tasks have logged, and gives it to the algorithm's thread.
#
# The algorithm may work for long, and then nobody takes the records. So only some wait, and the others are counted.


LOGS_BYTES = 16 << 20
"""About how many bytes of records may wait for the algorithm."""


GROUP_BYTES = 200
"""About how many bytes a group takes without its records."""


@define(eq=False, repr=False)
class Logs:
    """Takes over records."""

    state: MasterState
    answers: Answers
    handled: int = 0
    """About how many bytes of records the algorithm's thread has handled."""
    given: int = 0
    """About how many bytes it was given."""
    left_out: int = 0
    """How many records were left out since then."""

    def receive(self, agent: ConnectedAgent, logged: Logged) -> None:
        """Take over the records of a slave. A slave that is gone has logged nothing."""
        slave = agent.slaves.get(logged.slave)
        if slave is None:
            return
        self.answers.logged(slave.sid, agent.host, logged.rows)
        size = sum(map(size_of_records, logged.rows), GROUP_BYTES)
        self.left_out += logged.left_out
        if self.given - self.handled + size > LOGS_BYTES:
            self.left_out += len(logged.rows)
            return
        self.given += size
        self.state.actions.logged.append(state.LogGroup(slave.sid, agent.host, logged.rows, self.left_out, size))
        self.left_out = 0


UNLIMITED = (
    "the limits of tasks (seconds_max, memory_max) do not hold here, because tasks run in the process of the master. "
    "Use at least one slave (--mw-local 1, or mwpy.open(slaves=1)) to have them enforced"
)

UNDONE = (
    "{tasks} had no result when the computation ended, and did not run to the end: wait for results with mw.loop() and "
    "mw.results(), or cancel such tasks with mw.cancel()"
)

UNREAD = (
    "nobody read the values of {maps}, so these tasks were cancelled: a map runs while its values are read, as in `for "
    "value in mw.map(...)` or `list(mw.map(...))`"
)

OF_SLAVES = (
    messages.Results,
    messages.Checkpoint,
    messages.Reported,
    messages.Revoked,
    messages.AlgorithmFailed,
    messages.PeakMemory,
    messages.OtherValues,
)
"""What a slave sends that may have ended meanwhile."""


class MasterCore:
    """The decisions of a master, without I/O."""

    def __init__(self, settings: MasterSettings) -> None:
        self.state = MasterState(settings)
        self.waiting = Waiting.NOT
        """Whether the master algorithm waits in `mw.loop()`."""
        self.reuse: Reuse | None = None
        """What answers tasks from the run database; None if there is none."""
        self.handback = HandBack(self.state)
        self.kinds = SlaveKinds(self.state, self.handback)
        self.admission = Admission(self.state, self.kinds)
        self.definitions = Definitions(self.state, self.admission)
        self.totals = Totals(self.state)
        self.hosts = Hosts(self.state, self.admission)
        self.shares = Shares(self.state)
        self.fitting = Fitting(self.state, self.handback, self.admission)
        self.dispatch = Dispatch(self.state, self.handback, self.definitions, self.shares, self.fitting)
        self.results = Results(self.state, self.handback, self.totals, self.hosts)
        self.interim = Interim(self.state)
        self.losses = Losses(self.state, self.kinds, self.handback, self.totals, self.hosts)
        self.feeding = Feeding(self.state)
        self.stop = Stop(self.state, self.handback)
        self.long_tasks = LongTasks(self.state)
        self.answers = Answers(
            self.state,
            kinds=self.kinds,
            admission=self.admission,
            fitting=self.fitting,
            hosts=self.hosts,
            totals=self.totals,
            losses=self.losses,
            feeding=self.feeding,
            handback=self.handback,
            stop=self.stop,
            failures=RecentFailures(self.state),
            rate=Rate(self.state),
        )
        self.silence = Silence(self.state, self.kinds, self.answers)
        self.inquiries = Inquiries(self.state, self.admission, self.answers)
        self.logs = Logs(self.state, self.answers)
        self.counts = self.answers.counts
        """The figures of this moment."""
        watches = self.silence, self.long_tasks, self.inquiries
        self._timed = self.fitting, self.dispatch, self.hosts, self.handback, self.losses, self.feeding, *watches
        """What must decide at certain moments even if nothing happens."""
        self.take_actions = self.state.take_actions
        """Everything that must be done now; given out once."""

    # ---- requests of the master algorithm ------------------------------------------------------------------

    def submit(self, spans: Sequence[Span]) -> None:
        """Take over new tasks. Tasks that are too large fail. The policy decides on tasks for a slave that is gone."""
        for span in spans:
            self.definitions.add(span.algorithm)
        if self.reuse is not None:
            spans = self.reuse.without_answered(spans)
        if not spans:
            return
        if self.state.settings.in_this_process and any(span.policy.limits for span in spans):
            self.state.notice(UNLIMITED, key=UNLIMITED)
        new = self.state.record(
            records.TasksSubmitted([span.facts() for span in spans]), [(span.tags, span.owner) for span in spans]
        )
        self.handback.end_too_large(new)
        if self.reuse is not None:
            self.reuse.submitted(new)
        self.handback.release_orphans(spans, "is gone or never was")
        if self.handback.stored:
            for span in spans:
                self.handback.ask_for(span.refers)

    def obey(self, command: state.Command) -> None:
        """Do what the algorithm's thread asks for."""
        match command:
            case state.AllocateSlaves(amount, kind):
                self.kinds.allocate(amount, kind)
            case state.EndSoon():
                self.feeding.end_soon()
            case state.FreeSlave(sid):
                self.kinds.free(sid)
            case state.RenewSlaves():
                self.admission.renew_slaves(command)
            case state.CancelTasks():
                self.handback.cancel_some(command)
            case state.GoOn():
                self.stop.go_on(command)
            case state.HoldResults():
                self.handback.hold(command)
            case state.ResultRead():
                self.handback.take_value(command)
            case state.GiveResult():
                self.handback.give(command)
            case state.ReleaseResults():
                self.handback.release_results(command)
            case state.Tell(text):
                self.state.notice(text, key=text)
            case state.TakeReports():
                self.interim.asking = command
            case _:
                self._shut_down(command)

    def _shut_down(self, command: state.ShutDown) -> None:
        """End the computation: shut every agent down."""
        left = self.state.jar.runnable - command.of_maps
        if command.returned and left > 0:
            self.state.notice(UNDONE.format(tasks=counted(left, "task")))
        if command.returned and command.unread_maps:
            self.state.notice(UNREAD.format(maps=counted(command.unread_maps, "map")))
        self.state.closing = messages.Shutdown(command.finished, command.grace_s)
        for agent in [*self.state.members.agents.values()]:
            if agent.is_away:
                self.losses.give_up(agent, self.state.now)
            else:
                self.state.send(agent, self.state.closing)
                self.admission.retire(agent, "the computation ends", Cause.CANCELLED)
        self.inquiries.close(self.state.closing)
        self.totals.state_all()
        self.state.record(records.Ended(("INTERRUPTED", "SHUTDOWN")[command.finished], self.state.settings.member_id))

    # ---- what happened outside -----------------------------------------------------------------------------

    def handle(self, event: state.Event, now: float) -> None:
        """Record an event; `decide` makes the decisions."""
        self.state.now = now
        match event:
            case state.Received():
                agent = self.state.members.peers.get(event.peer)
                try:
                    if agent is not None:
                        self._handle_message(agent, event, now)
                    elif not self.admission.ignores(event.peer):
                        self._greet(event, now)
                except ProtocolError as error:
                    self._drop(event.peer, event.address, str(error))
            case Garbage(peer, address, reason):
                if not self.admission.ignores(peer):
                    self._drop(peer, address, reason)
            case Vanished(peer, silent_s):
                self.admission.forget(peer)
                self.inquiries.forget(peer)
                self.losses.connection_ended(peer, silent_s, now)
            case state.Returned(peer, address):
                self.losses.came_back(peer, address, now)
                self.hosts.came_back(self.state.members.peers[peer])
            case Stranger(address, reason):
                self.admission.note_refusal(address, reason)
            case TurnedAway(address, reason):
                self.admission.turned_away(address, reason)
            case state.Confirmed(peer, payload_bytes):
                if (agent := self.state.members.peers.get(peer)) is not None:
                    agent.waiting_bytes -= payload_bytes
            case state.Stored(record, row):
                assert self.reuse is not None, "something is stored without a run database"
                self.reuse.succession.stored(record, row)

    def _greet(self, event: state.Received, now: float) -> None:
        """Handle the first message of a peer."""
        if isinstance(event.message, messages.Ask):
            self.inquiries.receive(event.peer, event.address, event.message)
            return
        if not isinstance(event.message, messages.Hello) or event.peer in self.inquiries.open:
            raise ProtocolError(f"{type(event.message).__name__} before Hello")
        self.hosts.note_job(event.message.host, event.message.job)
        self.admission.hello(event.message, event.peer, event.address, now, self.reuse.names if self.reuse else ())
        if event.message.resumed:
            self.losses.agent_resumed(event.message.resumed)

    def _handle_message(self, agent: ConnectedAgent, event: state.Received, now: float) -> None:
        message = event.message
        match message:
            case messages.Results(number) if number in agent.slaves:
                self.shares.check_new(message)
                self.results.receive(agent.slaves[number], message, event.frames, now)
                self.shares.kept_by(agent, message)
            case messages.Logged():
                self.logs.receive(agent, message)
            case messages.Checkpoint(number) if number in agent.slaves:
                self.interim.state_left(agent.slaves[number], message, event.frames)
            case messages.Reported(number) if number in agent.slaves:
                self.interim.reported(agent.slaves[number], message, event.frames)
            case messages.Revoked(number) if number in agent.slaves:
                self.results.take_back(agent.slaves[number], message)
            case messages.AlgorithmFailed(number) if number in agent.slaves:
                self.admission.algorithm_failed(agent.slaves[number], message)
                self.results.refuse(agent.slaves[number], message)
            case messages.ShareWanted():
                self.shares.send_part(agent, message)
            case messages.SlaveReady(number):
                self.admission.slave_ready(agent, number)
                self.hosts.started(agent.host)
            case messages.PeakMemory(number, algorithm, peak_bytes) if number in agent.slaves:
                if algorithm in self.state.jar.algorithms.defined:  # it may be forgotten
                    name = self.state.jar.algorithms.defined[algorithm].name
                    self.totals.measured(name, agent.host, peak_bytes)
                    agent.slaves[number].peak_bytes = peak_bytes
            case messages.OtherValues(number, algorithm, names) if number in agent.slaves:
                self._slaves_differ(self.state.jar.algorithms.defined.get(algorithm), names)
            case messages.SlaveDied():
                self.losses.slave_died(agent, message)
            case messages.Handover() | messages.FormerTasks() if self.reuse is None:
                pass  # nobody can use what this agent has of a former generation
            case messages.Handover() if self.reuse is not None:
                self.reuse.succession.receive(agent, message, event.frames)
            case messages.FormerTasks() if self.reuse is not None:
                self.reuse.succession.hear(agent, message)
            case messages.Installed(packages):
                self.admission.compare_packages(agent, packages)
            case messages.Offered():
                self.fitting.offered(agent, message)
            case messages.SetUpEnded():
                self.state.record(records.AgentSetUp(agent.name, message.seconds))
            case messages.Leaving(reason, cause):
                self.admission.retire(agent, reason or "it gave no reason", cause)
            case messages.Goodbye(reason, cause):
                self.state.record(records.AgentLeft(agent.name, reason))
                self.losses.agent_gone(agent, reason, cause)
                self.state.actions.forget.append(event.peer)
            case _ if isinstance(message, OF_SLAVES):
                pass  # this slave is already gone
            case messages.Hello():
                raise ProtocolError("a second Hello on one connection")
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for a master")

    def _slaves_differ(self, defined: Defined | None, names: str) -> None:
        """A slave has other values of variables that an algorithm uses. Others have the same, from the same files."""
        if defined is None or defined.differs:
            return
        defined.differs = True
        self.state.notice(text_of_other_values(defined.name, names), key=f"other values {names}")
        if defined.record.code:
            self.state.record(records.OtherValues(defined.number, defined.record.code_of_slaves, names))

    def _drop(self, peer: bytes, address: str, reason: str) -> None:
        self.inquiries.forget(peer)
        agent = self.admission.drop(peer, address, reason)
        if agent is not None:
            self.losses.agent_gone(agent, reason, Cause.NETWORK)

    def _drop_slow(self) -> None:
        """Drop the agents for which too much waits."""
        for agent in [*self.state.members.slow.values()]:
            reason = (
                f"{amount(agent.waiting_bytes)} wait for it, because it reads nothing or does not confirm what it reads"
            )
            self.state.notice(f"{agent.place} is dropped, and its tasks run elsewhere: {reason}")
            self._drop(agent.peer, agent.address, reason)
            self.state.actions.disconnect.append(agent.peer)

    # ---- deciding ------------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide once in an iteration: send tasks, take tasks back, and report if nothing can progress."""
        self.state.now = now
        jar = self.state.jar
        self.losses.decide(now)
        self._drop_slow()
        self.kinds.decide()
        self.definitions.decide()
        if self.state.closing is None:
            self.handback.decide_pauses(now)
            if self.reuse is not None:
                self.reuse.succession.decide(now)
            self.stop.decide()
            self.hosts.decide(now)
            feeds = self.feeding.decide(self.waiting, now)
            self.handback.decide_refused()
            self.handback.decide_blocked()
            self.dispatch.decide(now, feeds=feeds)
            self.handback.decide_blocked()  # once more, because tasks that cannot be sent are handed back
            is_served = jar.pending.count and self.state.members.slaves
            awaited = "" if self.reuse is None or is_served else self.reuse.succession.text(now)
            self.silence.decide(self.waiting, awaited, now)
            self.long_tasks.decide(now)
            self.totals.decide(now)
            self.inquiries.decide(now)
        self.shares.decide()
        self.interim.decide()

    def next_deadline(self) -> float | None:
        """When `decide` should be called even if nothing happens; None if there is no need."""
        if self.state.closing is not None:
            return None
        awaited_until = None if self.reuse is None else self.reuse.succession.deadline
        return min(known((awaited_until, *(part.deadline for part in self._timed))), default=None)

    def check(self) -> None:
        """Recompute every derived figure; tests call it after every event."""
        self.state.check()
        self.dispatch.check()
