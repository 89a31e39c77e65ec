"""What the master decides: who is let in, who gets which task, what a loss means, when to speak.

Theory of operation. Everything from outside comes through `handle`, every wish of the master algorithm through a
command method; both only note facts. `decide` then decides once an iteration, and `take_actions` gives out all
that must be done. Nothing here waits, reads a clock or touches a socket.

An agent is one connection. When it breaks, whatever its slaves held goes back to the queues, charged to no
task; should the agent come back, it is a new agent with new slaves. Results are matched by slave, task and attempt,
so what an old connection still delivers can neither count twice nor count wrongly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat

from attrs import define, field, frozen

from mwpy._core.master import allocation
from mwpy._core.master.admission import Admission
from mwpy._core.master.commands import (
    AllocateSlaves,
    Command,
    DeallocateSlaves,
    Definition,
    FreeSlave,
    ShutDown,
)
from mwpy._core.master.events import Event, Garbage, Received, Send, Stranger, Vanished
from mwpy._core.master.ledger import Actions, MasterSettings
from mwpy._core.master.silence import SilenceWatch, Waiting
from mwpy._core.master.stable import Agent, Slave
from mwpy._values import messages, records
from mwpy._values.algorithm import Algorithm
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import LAST_WORDS_BYTES, NO_WORDS, Death, LastWords
from mwpy._values.messagepack import Pickled
from mwpy._values.task import Result, SlaveKind, SlaveState, Span

__all__ = ["Actions", "Counts", "MasterCore", "MasterSettings"]

LOOK_AGAIN_S = 1.0
"""Seconds after progress in which nobody looks whether there is more to come."""

_result: type[Result[object]] = Result

DEATHS_ALLOWED = 3
"""A task that was running in this many slaves when they died is never tried again."""


CAUSE_CHARACTERS = 1000
"""So much is believed of what an agent says of a slave's end."""


@frozen
class Counts:
    """Figures that the algorithm and the resource file ask for."""

    pending: dict[Algorithm, int]
    runnable: int
    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int


@define(eq=False)
class MasterCore(Admission):
    """The master without its shell."""

    waiting: Waiting = Waiting.NOT
    """Whether the master algorithm is blocked in `mw.loop()`."""
    _by_number: list[Algorithm] = field(factory=list)
    _departures: dict[str, int] = field(factory=dict)
    _silence: SilenceWatch = field(factory=SilenceWatch)

    # ---- the master algorithm's wishes -------------------------------------------------------------

    def define(self, definition: Definition) -> None:
        """Make a task algorithm known before its first task; definitions come in the order of their numbers."""
        assert definition.header.number == len(self._by_number), "a definition was left out or came twice"
        self._definitions[definition.algorithm] = definition
        self._by_number.append(definition.algorithm)
        for agent in self.stable.agents.values():
            self._compare_python(agent, definition)

    def obey(self, command: Command) -> None:
        """Do what the algorithm's thread asks for."""
        match command:
            case AllocateSlaves(amount, kind):
                self._want(kind, self.stable.wanted[kind] + amount)
                self._fill_vacancies()  # an unordered slave that is here may become one of this kind
            case DeallocateSlaves(amount, kind):
                self._want(kind, self.stable.wanted[kind] - amount)
            case FreeSlave(sid):
                self._free_slave(sid)
            case _:
                self._shut_down(command)

    def submit(self, spans: Sequence[Span]) -> None:
        """Take tasks over; too large ones fail, ones addressed to a slave that is gone are handed back."""
        small: list[Span] = []
        good: list[Span] = []
        gone: dict[SlaveId, None] = {}
        limit = self.settings.max_call_bytes
        for span in spans:
            if max(span.sizes) > limit:
                small.extend(self._small_enough(span, limit))
            else:
                small.append(span)
        for span in small:
            sid = span.policy.sid
            if sid is None or sid in self.stable.slaves:
                good.append(span)
            elif span.policy.do_it_anyway:
                good.append(span)
                gone[sid] = None
            else:
                self._give_up([span], f"{sid}, to which it was addressed, is gone or never was")
        self._record(records.TasksSubmitted(good))
        for sid in gone:
            self._free_addressed(sid, "")

    def _small_enough(self, span: Span, limit: int) -> Iterator[Span]:
        """The tasks whose arguments are not over the limit, in bytes; the others fail."""
        for single in span.singles():
            (size,) = single.sizes
            if size <= limit:
                yield single
                continue
            self._fail(
                single,
                f"its arguments are {size} bytes, the limit is {limit} bytes "
                f"(--mw-max-write-buffer-size): pass a file name, or raise the limit",
            )

    def _want(self, kind: SlaveKind, amount: int) -> None:
        self.stable.wanted[kind] = max(0, amount)
        if kind is SlaveKind.UNORDERED:
            self.stable.unordered_unasked = False

    def _free_slave(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered once it has finished what it holds."""
        slave = self.stable.slaves.get(sid)
        if slave is None or slave.kind is SlaveKind.UNORDERED or slave.freed:
            return
        self._want(slave.kind, self.stable.wanted[slave.kind] - 1)
        slave.freed = True
        self._unbind_if_free(slave)

    def _shut_down(self, command: ShutDown) -> None:
        """End: send every agent away."""
        self.closing = messages.Shutdown(command.finished, command.grace_s)
        for agent in self.stable.agents.values():
            self._send(agent, self.closing)
            self._retire(agent, "the computation ends")
        self._record(records.Ended("SHUTDOWN" if command.finished else "INTERRUPTED", self.settings.member_id))

    # ---- what happened outside -----------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Note what happened; decisions wait for `decide`."""
        match event:
            case Received():
                if event.peer not in self._dropped:
                    try:
                        self._handle_message(event, now)
                    except ProtocolError as error:
                        self._drop(event.peer, event.address, str(error))
            case Garbage(peer, address, reason):
                if peer not in self._dropped:
                    self._drop(peer, address, reason)
            case Vanished(peer, reason):
                self._dropped.pop(peer, None)
                agent = self.stable.agents.get(peer)
                if agent is not None:
                    self._record(records.AgentLost(agent.name, reason))
                    self._lose_agent(agent, reason)
            case Stranger(address, reason):
                self._note_refusal(address, reason)

    def _handle_message(self, event: Received, now: float) -> None:
        message = event.message
        agent = self.stable.agents.get(event.peer)
        if isinstance(message, messages.Hello):
            if agent is not None:
                raise ProtocolError("a second Hello on one connection")
            self._hello(message, event.peer, event.address)
            return
        if agent is None:
            raise ProtocolError(f"{type(message).__name__} before Hello")
        match message:
            case messages.Results():
                slave = agent.slaves.get(message.slave)
                if slave is not None:
                    self._results(slave, message, event.frames, now)
            case messages.SlaveReady(number):
                self._slave_ready(agent, number, now)
            case messages.Revoked(number):
                self._revoked(agent.slaves.get(number), message)
            case messages.SlaveDied():
                self._slave_died(agent, message)
            case messages.AlgorithmFailed():
                self._algorithm_failed(agent, message)
            case messages.Installed(packages):
                self._compare_packages(agent, packages)
            case messages.Leaving(reason):
                self._retire(agent, reason or "it said so")
            case messages.Goodbye(reason):
                self._record(records.AgentLeft(agent.name, reason))
                self._lose_agent(agent, reason)
                self._actions.forget.append(event.peer)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for a master")

    def _results(self, slave: Slave, group: messages.Results, frames: Sequence[Buffer], now: float) -> None:
        finished: list[Span] = []
        seconds_of: defaultdict[Algorithm, list[float]] = defaultdict(list)
        values, buffers = messages.entries(group, frames)
        failed = [False] * len(values)
        for position in group.failed:
            failed[position] = True
            if type(values[position]) is not Pickled:
                raise ProtocolError("Results: a failure that does not tell of any")
        start = 0
        for first, count, attempt in zip(group.tasks, group.counts, group.attempts, strict=True):
            for span in self._take(slave, first, count, attempt):  # others no longer count, or were sent twice
                own = slice(start + span.first - first, start + span.first - first + span.count)
                names, sids, seconds = repeat(span.algorithm.name), repeat(slave.sid), group.seconds[own]
                columns = (span.ids, names, sids, span.tags, seconds, failed[own], values[own], buffers[own])
                self._actions.results.extend(map(_result, *columns))
                finished.append(span)
                seconds_of[span.algorithm] += seconds
            start += count
        if not finished:
            return
        self._progressed = True
        self._record(records.ResultsReceived(slave.sid, finished))
        for algorithm, times in seconds_of.items():
            mean = sum(times) / len(times)
            slave.pace[algorithm] = allocation.learn(slave.pace.get(algorithm), mean)
            self.stable.pace[algorithm] = allocation.learn(self.stable.pace.get(algorithm), mean)
        slave.last_heard = now
        slave.barren = False
        self._after_unloading(slave)

    def _revoked(self, slave: Slave | None, message: messages.Revoked) -> None:
        if slave is None:
            return
        slave.revoking = False
        returned: list[Span] = []
        for first, count, attempt in zip(message.tasks, message.counts, message.attempts, strict=True):
            returned += self._take(slave, first, count, attempt)
        slave.barren = not returned
        self._return(slave.sid, returned, "taken back unstarted")
        self._after_unloading(slave)

    def _slave_died(self, agent: Agent, message: messages.SlaveDied) -> None:
        cause, words = message.cause[:CAUSE_CHARACTERS], message.words.cut(LAST_WORDS_BYTES)
        slave = agent.slaves.get(message.slave)
        if slave is None:
            self._slave_never_came(agent, message.slave, cause, words)
            return
        attempts = [span.attempt for span in slave.outstanding if message.running in span.ids]
        running = self._take(slave, message.running, 1, attempts[0]) if attempts else []
        unstarted = self._take_all(slave)
        told = f"{running[0]}, attempt {attempts[0]}" if running else ""
        self._record(records.SlaveEnded(slave.sid, cause, told, words))
        if agent.leaving:
            self._return(slave.sid, unstarted, f"{agent.name} is leaving")
            self._lose_uncharged(slave, running, f"{agent.name} is leaving", agent.leaving)
            return
        for span in running:
            self._charge(slave, span, cause, words)
        self._return(slave.sid, unstarted, "its slave died before starting it")
        self._lose_slave(slave, cause)

    def _charge(self, slave: Slave, span: Span, cause: str, words: LastWords) -> None:
        """Settle what becomes of the task that was running when its slave died."""
        death = Death(slave.sid, span.attempt, cause, words)
        self._remember(death)
        killed = len(span.deaths) + 1
        if killed >= DEATHS_ALLOWED:
            story = "; ".join(str(each) for each in (*span.deaths, death))
            self._give_up([span], f"it was running in {killed} slaves when they died: {story}", (death,))
        elif not span.policy.retry:
            self._give_up([span], f"its slave died ({cause}) and its policy says retry=False", (death,))
        else:
            self._record(records.TasksReturned(slave.sid, [span], f"its slave died: {cause}", (death,)))

    def _algorithm_failed(self, agent: Agent, message: messages.AlgorithmFailed) -> None:
        slave = agent.slaves.get(message.slave)
        if slave is None:
            return
        if not 0 <= message.number < len(self._by_number):
            raise ProtocolError(f"AlgorithmFailed names algorithm {message.number}, which was never defined")
        self._refuse_algorithm(agent, self._by_number[message.number], message.reason)
        returned: list[Span] = []
        for first, count, attempt in zip(message.tasks, message.counts, message.attempts, strict=True):
            returned += self._take(slave, first, count, attempt)
        self._return(slave.sid, returned, "its slave cannot run it")
        self._after_unloading(slave)

    # ---- losses ----------------------------------------------------------------------------------------

    def _drop(self, peer: bytes, address: str, reason: str) -> None:
        agent = self.stable.agents.get(peer)
        if agent is None:
            self._note_refusal(address, reason)
        else:
            self._record(records.PeerDropped(agent.name, reason))
        self._actions.sends.append(Send(peer, messages.Refused(f"protocol error: {reason}")))
        self._dropped[peer] = None
        if agent is not None:
            self._lose_agent(agent, reason)

    def _lose_agent(self, agent: Agent, reason: str) -> None:
        for slave in list(agent.slaves.values()):
            cause = f"{agent.name} is gone: {reason}; what it wrote last went with it"
            self._record(records.SlaveEnded(slave.sid, cause, "", NO_WORDS))
            self._lose_uncharged(slave, self._take_all(slave), f"{agent.name} is gone", reason)
        del self.stable.agents[agent.peer]
        if agent.announced or agent.leaving:  # else it was here to look around, not to serve
            self._departures[reason] = self._departures.get(reason, 0) + 1

    def _lose_uncharged(self, slave: Slave, held: list[Span], what: str, reason: str) -> None:
        """Lose a slave with its agent, through no fault of the tasks that it held and perhaps had started."""
        self._return(slave.sid, [span for span in held if span.policy.retry], what)
        rest = [span for span in held if not span.policy.retry]
        if rest:
            self._give_up(
                rest,
                f"{slave.sid} was lost with {slave.agent.name} ({reason}) when it may have been "
                f"started, and its policy says retry=False",
            )
        self._lose_slave(slave, reason)

    # ---- deciding ----------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Decide once an iteration: send tasks, take tasks back, and say so if nothing can progress."""
        if self.closing is None:
            if self.jar.addressed:
                self._send_addressed(now)
            if self.jar.queues:
                self._send_unaddressed(now)
            self._take_back(now)
        self._watch_for_silence(now)

    # ---- silence -------------------------------------------------------------------------------------------

    def _watch_for_silence(self, now: float) -> None:
        waited_for = self._is_waited_for
        if self._progressed or not waited_for:
            self._progressed = False
            self._silence.reset(now + LOOK_AGAIN_S if waited_for else None)
            return
        if self.jar.num_allocated:
            self._silence.pause(now)
            return
        reason, text = self._why_stuck()
        if (silent_s := self._silence.observe(reason, now)) is not None:
            self._say(f"nothing has progressed for {silent_s:.0f} s: {text}")

    @property
    def _is_waited_for(self) -> bool:
        """Whether anybody would miss progress: `mw.loop(1.0)` with nothing to do is as good a way to sleep as any."""
        if self.closing is not None:
            return False
        if self.jar.runnable:
            return True
        somewhat = self.waiting is Waiting.FOR_A_WHILE and any(self.stable.vacancies())
        return somewhat or self.waiting is Waiting.FOR_EVER

    def _why_stuck(self) -> tuple[str, str]:
        """Why nothing can progress: the reason's name, and the words for it."""
        count = self.jar.runnable
        serving = [slave for slave in self.stable.slaves.values() if slave.state is not SlaveState.SHUTTING_DOWN]
        vacancies = [kind.value for kind in self.stable.vacancies()]
        if not serving:
            return "no slave", f"no slave is connected ({count} tasks wait). {self._why_no_slave()}"
        if self.jar.queues and not any(slave.runs_unaddressed for slave in serving):
            return "no unordered slave", (
                f"{self.jar.num_unaddressed} tasks are addressed to no slave, but every slave is ordered: free one "
                f"with mw.free_slave, or start more slaves"
            )
        if self.jar.queues:
            return "refused", self._who_refuses(next(iter(self.jar.queues)))
        if count:
            return "leaving", (
                f"{count} tasks are at slaves that are leaving, or addressed to them: what these do not finish is run "
                f"elsewhere or handed back as soon as they are gone"
            )
        if vacancies:
            return "vacancies", (
                f"{len(vacancies)} more {vacancies[0]} slaves are wanted and none connects: start more slaves"
            )
        return "nothing to do", (
            "mw.loop() waits, but no task is submitted and no ordered slave is wanted, so it cannot return: "
            "submit tasks, or leave the loop"
        )

    def _who_refuses(self, algorithm: Algorithm) -> str:
        told = [(agent.name, agent.refused.get(algorithm)) for agent in self.stable.agents.values()]
        name, reason = next(((name, reason) for name, reason in told if reason), ("", ""))
        return (
            f"no connected slave can run {algorithm.name}, for which {self.jar.num_queued[algorithm]} tasks wait: "
            f"mend that there, or start other slaves. {name}: {reason}"
        )

    def _why_no_slave(self) -> str:
        if self._refusals:
            return f"{self._refusals} were refused, the last from {self._last_refusal}"
        if self.stable.slaves:
            return "Those that are here are leaving: start others"
        if self.stable.agents:
            return (
                f"{len(self.stable.agents)} agents are connected, but their slaves are not up yet: see what they "
                f"write on standard error"
            )
        if self._departures:
            reason, times = max(self._departures.items(), key=lambda item: item[1])
            again = "Mend that, and start the computation again" if self.settings.only_here else "Start slaves again"
            return f"All agents left, most often ({times}) because: {reason}. {again}"
        if self.settings.only_here:
            return "Its own slaves on this machine are not up: if nothing above says why, wait, or start it again"
        return "Start some with `python APP --mw-slave --mw-resource-file FILE`, here or through a batch system"

    # ---- small change ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `decide` should be called even if nothing happens; None if there is no need."""
        silence, look_again = self._silence.deadline, self._look_again
        if silence is None or look_again is None:
            return silence if look_again is None else look_again
        return min(silence, look_again)

    def counts(self) -> Counts:
        """The figures of this moment."""
        stable, runnable = self.stable, self.jar.runnable
        wanted = stable.wanted
        if stable.unordered_unasked:
            wanted = wanted | {SlaveKind.UNORDERED: runnable}
        special = sum(1 for _ in stable.vacancies())
        unordered = stable.count(SlaveKind.UNORDERED)
        useful = allocation.useful(stable, self.jar.num_unaddressed, self.settings.task_group)
        useful = min(wanted[SlaveKind.UNORDERED], useful)
        missing = max(0, useful - unordered) + special - stable.coming()
        return Counts(
            pending=self.jar.pending,
            runnable=runnable,
            slaves_wanted=sum(wanted.values()),
            slaves_connected=len(stable.slaves),
            slaves_needed=0 if self.closing else max(0, missing),
        )
