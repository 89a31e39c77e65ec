"""Which slave is sent which tasks: in turn, alone, with shared objects; and what is taken back or given to others.

Which slave is sent which tasks now, and which slave is asked to give tasks back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from math import inf
from weakref import KeyedRef

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.holding import count_of, known
from mwpy._core.master.admission import Admission
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.fitting import Fitting, Why, first_turn, given_to, has_to_spare, sentence, why_not
from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave, Members
from mwpy._core.master.spans import Span, portion_of
from mwpy._core.master.state import MasterState
from mwpy._core.master.tasks import Needs, PendingTasks
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ProtocolError
from mwpy._values.groups import PackedCalls
from mwpy._values.messages import PART_BYTES, Share
from mwpy._values.policy import Limits
from mwpy._values.requires import Requires
from mwpy._values.shares import SharedObject, shares_in
from mwpy._values.task import SlaveKind, SlaveState, travelling

# Arithmetic: how many tasks a slave is sent, and which slave gives tasks back.
#
# No slave should wait for the network while tasks are pending. No task should wait behind another one while a slave is
# idle. So the master learns how long a task of each algorithm takes on each slave, and keeps a fraction of a second of
# work ahead of each slave (`AHEAD_S`). While nothing is known of an algorithm, a slave gets one task at a time, because
# that task may run for an hour. When one task takes longer than `AHEAD_S`, a slave has one task running and one
# waiting. When no task is pending and a slave is idle, the slave with the most work gives back up to half of its tasks.
# It gives back only tasks that it has not started.
#
# A fixed task group replaces all this: a message has exactly that many tasks, and the next message is sent when the
# slave holds fewer.


_BUSY, _SHUTTING_DOWN = SlaveState.BUSY, SlaveState.SHUTTING_DOWN

AHEAD_S = 0.25
"""Seconds of work that a slave should hold: much longer than a round trip, and too short for a user to notice idle
slaves."""

OVERHEAD_S = 5e-6
"""Seconds that a task costs a slave in addition to its compute time. So an empty task does not take zero seconds."""

STRETCH_OVERHEAD_S = 5e-7
"""The same for a task of a stretch."""

LEAST_S = 0.0005
"""Seconds of work in a message, if there are enough tasks. A message costs master and agent together a third of it."""

MAX_GROUP_TASKS = 1000
"""Largest number of tasks in one message. More would not make a task cheaper, and would delay the first result."""

MAX_GROUP_BYTES = 1 << 20
"""Largest size of the payloads in one message, in bytes; a larger task travels alone."""

AHEAD_GROUP_BYTES = 9 << 19
"""The same for a slave that has a task: it does not wait for the message. Four arrays of 1 MiB fit."""

MAX_OUTSTANDING = 5000
"""Largest number of tasks at one slave: when the slave is lost, they must all be sent again. A portion of a map counts
as `PORTION_TASKS`, because it is sent again as one thing."""

PORTION_TASKS = 250

LEARNING_RATE = 0.3
"""Weight of the newest group in the learned pace. The pace follows a change quickly, and an outlier only a little."""

WORTH_TAKING_S = 0.02
"""Tasks are taken back only from a slave with at least this many seconds of work: less is not worth the round trip."""

SILENT_S = 0.1
"""After this many seconds without a result, tasks of a slave are taken back even if they should be short: the running
task takes longer than expected."""


def learn(known: float | None, seconds: float, overhead_s: float = OVERHEAD_S) -> float:
    """The new pace after a task took `seconds`; `known` is the pace before, or None if nothing was known."""
    seconds += overhead_s
    return seconds if known is None else known + LEARNING_RATE * (seconds - known)


def pace_of(members: Members, slave: ConnectedSlave, algorithm: int) -> float | None:
    """How long a task of an algorithm takes on a slave, in seconds; None if nothing is known."""
    return slave.pace.get(algorithm) or members.pace.get(algorithm)


def work_before(members: Members, slave: ConnectedSlave) -> float:
    """The work that a slave holds, in seconds; tasks of unknown pace count as zero."""
    work = 0.0
    for algorithm, count in slave.held.load.items():
        work += count * (pace_of(members, slave, algorithm) or 0.0)
    return work


def least(members: Members, slave: ConnectedSlave, algorithm: int) -> int:
    """How many tasks of an algorithm are worth a message."""
    pace = pace_of(members, slave, algorithm)
    return 1 if pace is None else max(1, int(LEAST_S / pace))


def room(members: Members, slave: ConnectedSlave, algorithm: int, fixed: int | None, portion: int = 0) -> int:
    """How many tasks of an algorithm a slave should be sent now.

    Args:
        fixed: the size of a task group that the user chose, or None.
        portion: how many tasks the portion has that is sent next; 0 if it is none.
    """
    if slave.agent.is_full or slave.given_back:
        return 0
    held = slave.held.count if slave.held.spans else 0
    if fixed is not None:
        return fixed if held < fixed else 0
    pace = pace_of(members, slave, algorithm)
    if pace is None:
        return 0 if held else 1
    if not held:
        return max(1, min(int(AHEAD_S / pace), max(MAX_GROUP_TASKS, portion)))
    work = work_before(members, slave)
    if _is_full(slave, work):
        return 0
    return max(1 if held < 2 else 0, min(int((AHEAD_S - work) / pace), max(MAX_GROUP_TASKS, portion)))


def most_in_time(slave: ConnectedSlave, span: Span, now: float) -> int:
    """How many tasks of a span can finish on a slave, behind those that it holds, before the time of its agent is over.

    Tasks of unknown duration count as zero, and so do those that are addressed to the slave, unless their policy says
    how long they take. Behind the span, tasks of another duration may be addressed to it.
    """
    is_addressed = span.policy.sid is not None
    needed_s = span.policy.seconds_expected if is_addressed else span.needed_s
    most = span.count if is_addressed else MAX_GROUP_TASKS
    if not needed_s:
        return most
    left_s = slave.agent.ends_in_s(now) - sum(held.count * (held.needed_s or 0.0) for held in slave.held.spans)
    return max(0, min(int(left_s / needed_s), most))


def is_full(members: Members, slave: ConnectedSlave, fixed: int | None) -> bool:
    """Whether a slave needs no more tasks of any algorithm now; see `room`."""
    if fixed is not None or slave.given_back:
        return bool(slave.given_back) or slave.held.count >= (fixed or 0)
    return _is_full(slave, work_before(members, slave))


def _is_full(slave: ConnectedSlave, work: float) -> bool:
    held, most = slave.held.count, MAX_OUTSTANDING / 2
    return held >= 2 and (work > AHEAD_S / 2 or (held > most and _outstanding(slave) > most))


def _outstanding(slave: ConnectedSlave) -> int:
    return sum(min(portion_of(span), PORTION_TASKS) or span.count for span in slave.held.spans)


def useful(members: Members, pending: int, fixed: int | None) -> int:
    """How many unordered slaves could have work. Pending tasks count, and so do tasks that slaves hold.

    Tasks that cannot be taken back from their slave do not count: slaves that are started for such tasks would be idle.

    Args:
        pending: how many pending tasks any slave may run.
        fixed: the size of a task group that the user chose, or None.
    """
    slaves = -(-pending // (fixed or 1))
    for slave in members.slaves.values():
        if slave.held.spans:
            shared = fixed is None and (slave.asked_back or has_to_spare(slave))
            slaves += slave.kind_to_be is SlaveKind.UNORDERED
            slaves += slave.held.count - (not slave.given_back) if shared else 0
    return slaves


def spent(members: Members, pending: PendingTasks, now: float) -> int:
    """How many unordered slaves are idle although tasks wait, because their agents have too little time left.

    Those on excluded hosts do not count.
    """
    if not pending.queues:
        return 0
    return sum(
        slave.kind is SlaveKind.UNORDERED
        and slave.agent.ends_at is not None
        and slave.agent.host not in members.excluded
        and not any(slave.agent.has_time(queue[0], now) for queue in pending.queues.values())
        for slave in members.idle.values()
    )


def fullest(members: Members, now: float) -> tuple[ConnectedSlave | None, float | None]:
    """Choose the slave from which tasks are taken back for idle slaves.

    Returns:
        Two values. First, the slave with the most work, if its work is worth taking back; else None. Second, the latest
        time to look again, on the core's clock; None if time alone changes nothing.
    """
    best: ConnectedSlave | None = None
    most = 0.0
    later: float | None = None
    for slave in members.slaves.values():
        if not has_to_spare(slave):
            continue
        work = work_before(members, slave)
        if now >= slave.last_heard + SILENT_S or work > WORTH_TAKING_S:
            if best is None or work > most:
                best, most = slave, work
        elif later is None or slave.last_heard + SILENT_S < later:
            later = slave.last_heard + SILENT_S
    return best, later


# Defines task algorithms, sends their definitions to agents, and decides what is forgotten.
#
# An agent gets the definition of an algorithm before the first task of it, and passes it on to all its slaves. What the
# master forgets, agents forget, too, when they get the next definitions. A definition that was forgotten is sent again
# when it is needed again.


@define(eq=False, repr=False)
class Definitions:
    """Decides which process keeps which definition."""

    state: MasterState
    admission: Admission

    def add(self, defined: Defined) -> None:
        """Add a task algorithm, if the core does not know it: it is new, or it was forgotten."""
        algorithms = self.state.jar.algorithms
        if defined.number not in algorithms.defined:
            self.state.record(defined.record)
            algorithms.adopt(defined)
            self.admission.algorithm_defined(defined.number)

    def send(self, agent: ConnectedAgent, unknown: dict[int, Defined]) -> None:
        """Send an agent definitions that it does not have. The tasks that need them must be allocated already."""
        agent.known |= dict.fromkeys(unknown)
        forgotten, agent.forgotten = agent.forgotten, []
        defined_here = [each.record for each in unknown.values()]
        self.state.send(
            agent,
            messages.Algorithms([each.definition for each in defined_here], forgotten),
            [each.packed for each in defined_here if not each.definition.reference],
        )

    def decide(self) -> None:
        """Forget algorithms by value that have no tasks, because all of them together are too large."""
        algorithms = self.state.jar.algorithms
        excess = algorithms.size - self.state.settings.max_definition_bytes
        forgotten: list[int] = []
        for number in algorithms.idle:
            if excess <= 0:
                break
            excess -= algorithms.defined[number].size
            forgotten.append(number)
        if forgotten:
            self.state.record(records.AlgorithmsForgotten(forgotten))


# Shared objects in the master: which ones tasks need, and the parts that agents ask for.
#
# Each group of tasks names the shared objects that its tasks need. An agent that lacks one asks for its parts. The
# master answers each request. An object exists as long as something refers to it: a handle, a task that has not ended,
# or a function by value that the master keeps. Then the agents to which it was named learn that it is gone, because
# each object takes a file descriptor there.


class _Named(Struct, eq=False):
    """An object that was named to agents."""

    shared: KeyedRef[str, SharedObject]
    agents: dict[str, None] = field(default_factory=dict)
    """The names of these agents."""


class Shares:
    """Names shared objects to agents, and sends them the parts."""

    def __init__(self, state: MasterState) -> None:
        self.state = state
        self._named: dict[str, _Named] = {}
        """Those that were named to an agent, by digest."""
        self.gone: deque[KeyedRef[str, SharedObject]] = deque()
        """Those of them that do not exist any more. The thread that drops the last handle adds to it."""

    def needed_by(self, span: Span, agent: ConnectedAgent) -> dict[str, Share]:
        """Return the shared objects that tasks need, by digest. They are named to this agent."""
        shares: dict[str, Share] = {}
        for each in (*span.algorithm.shares, *shares_in(span.buffers)):
            digest = each.share.digest
            named = self._named.get(digest)
            if named is None or named.shared() is not each:
                named = self._named[digest] = _Named(
                    KeyedRef(each, self.gone.append, digest), named.agents if named else {}
                )
            named.agents[agent.name] = None
            shares[digest] = each.share
        return shares

    def kept_by(self, agent: ConnectedAgent, group: messages.Results) -> None:
        """An agent keeps large buffers of results that have arrived. Let it drop those that no task can need."""
        results = self.state.jar.blocked.results
        wanted: dict[str, SharedObject] = {}
        for number in [number for number, _ in groups.each_task(group) if number in results]:
            wanted |= {each.share.digest: each for each in results[number].shared.values()}
        for digest in [share.digest for share in group.shares if share.size]:
            if digest in wanted:
                named = KeyedRef(wanted[digest], self.gone.append, digest)
                self._named[digest] = _Named(named, {agent.name: None})
            else:
                self.state.send(agent, messages.ShareGone(digest))

    def check_new(self, group: messages.Results) -> None:
        """Check that the large buffers of results have names of their own.

        Raises:
            ProtocolError: there is another one of this name; the agent's fault.
        """
        if any(share.digest in self._named for share in group.shares if share.size):
            raise ProtocolError("Results: the name of a shared buffer is that of another one")

    def decide(self) -> None:
        """Let agents give up the objects that do not exist any more, unless there is an equal one."""
        while self.gone:
            shared = self.gone.popleft()
            named = self._named.get(shared.key)
            if named is not None and named.shared is shared:
                del self._named[shared.key]
                for agent in self.state.members.agents.values():
                    if agent.name in named.agents:
                        self.state.send(agent, messages.ShareGone(shared.key))

    def send_part(self, agent: ConnectedAgent, wanted: messages.ShareWanted) -> None:
        """Answer an agent that asks for a part.

        Raises:
            ProtocolError: there is no such part; the agent's fault.
        """
        named = self._named.get(wanted.digest)
        shared = None if named is None else named.shared()
        if shared is None:  # its tasks have ended, and nothing else refers to it
            self.state.send(agent, messages.ShareGone(wanted.digest))
            return
        if wanted.start >= shared.share.size:
            raise ProtocolError(f"ShareWanted names byte {wanted.start} of {shared.share.size}")
        part = shared.content[wanted.start : wanted.start + PART_BYTES]
        self.state.send(agent, messages.SharePart(wanted.digest, wanted.start), [part])


# Agents that are reserved for suspects.
#
# When an agent vanishes without notice, a task of its slaves may be the cause, and the master cannot know which one. So
# all of them become suspects. A task that was at several agents when they vanished runs alone from then on: nothing
# else runs on its agent. If that agent vanishes too, no other task is lost with it, and the task is given up.
#
# A suspect gets an agent whose slaves are all idle. If there is none, one agent gets no more tasks until its slaves are
# idle, and the other agents continue. Each iteration decides this again, so it does not matter which agents leave.
#
# Gives stragglers to other slaves.
#
# Stragglers are tasks that have run for far longer than the other tasks of their algorithm. A straggler may be at a
# machine that is slow, overloaded or stopped. If slaves are idle and nothing is pending, another attempt costs nothing
# that is needed elsewhere. So the task is taken from its slave and sent to an idle one, at another agent, if possible
# on another host. The first value of any of them ends the task, and the other is killed. Otherwise nothing counts any
# more that the first slave says about the task: it is charged with nothing.
#
# As for the notices about long tasks, the first task that a slave holds has been running since the slave was last
# heard.


USUAL = 3.0
"""A task is a straggler when it has run this many times as long as the mean of its algorithm, and as its policy says it
takes. The manual names this number."""

KNOWN = 3
"""How many tasks of an algorithm must have returned values before another one is a straggler. The manual names this
number."""

LEAST_LATE_S = 1.0
"""No task is a straggler before it has run for this many seconds. The manual names this number."""


_NEVER = Why.CANNOT_RUN, Why.LACKS, Why.NO_TIME
"""Why a task that is addressed to a slave never runs there."""


def _alike(span: Span) -> tuple[int, object, float | None]:
    """What decides whether a slave will ever run tasks that are addressed to it."""
    return span.algorithm.number, span.policy.requires, span.policy.seconds_expected


def _limits_of(span: Span) -> Limits | None:
    """The limits of tasks, with how much memory they may use when memory is short, after they were killed for that."""
    limits, expected = span.policy.limits, max((death.more_memory for death in span.deaths), default=0)
    return limits if limits is None or not expected else replace(limits, expected=expected)


@define(eq=False, repr=False)
class Dispatch:
    """Sends pending tasks to slaves."""

    state: MasterState
    handback: HandBack
    definitions: Definitions
    shares: Shares
    fitting: Fitting
    reserved: list[ConnectedAgent] = Factory(list)
    """The agents that are reserved: one suspect runs on each of them, and at most one waits until it is idle."""
    deadline: float | None = None
    """When to look again for a slave that can give tasks back, or for a task that has become a straggler, on the core's
    clock; None if there is no need."""

    def decide(self, now: float, *, feeds: bool = True) -> None:
        """Send tasks to slaves that have room, suspects and addressed tasks first. If no task is pending then, take
        tasks back for idle slaves, and give stragglers to them.

        Args:
            feeds: whether tasks are sent at all.
        """
        self.deadline = None
        if not feeds:
            return
        pending = self.state.jar.pending
        if pending.special or self.reserved:
            self._send_suspects(now)
            self._send_addressed(now)
        if pending.fitted or self.fitting.keeps:
            self._send_fitted(now)
        elif pending.queues:
            self._send_unaddressed(now)
        if pending.prioritised and pending.count:
            self._make_way()
        if self.state.jar.runnable > 1 and not pending.queues and self.state.settings.task_group is None:
            self._take_back(now)
        if self.state.jar.speculates:
            self._give_stragglers_away(now)

    def _send(self, slave: ConnectedSlave, queue: Sequence[Span], now: float, share: int = MAX_OUTSTANDING) -> int:
        """Send a slave tasks at the head of a queue: as many as it has room for, at most its share. Return how many.

        If the share is not worth a message, it is larger. A portion is not divided to be shared.
        """
        members, fixed, first = self.state.members, self.state.settings.task_group, queue[0]
        number, portion = first.algorithm.number, portion_of(first)
        count = room(members, slave, number, fixed, portion)
        if slave.agent.ends_at is not None:
            count = min(count, most_in_time(slave, first, now))
        if not fixed:
            count = min(count, max(share, portion, least(members, slave, number)))
        if count:
            most_bytes = AHEAD_GROUP_BYTES if slave.held.spans else MAX_GROUP_BYTES
            chosen = self.state.jar.pending.heads(queue, count, most_bytes, slave.refused)
            count = sum(map(count_of, chosen))
            self.feed(slave, records.TasksAllocated(slave.sid, chosen), now)
        return count

    def _send_suspects(self, now: float) -> None:
        """Send suspects first, because nothing else may be sent to the agents that are reserved for them."""
        pending = self.state.jar.pending
        for slave, needs in self._places(now):
            queue = pending.special[needs]
            if why_not(self.state.members, slave, queue[0], now, reserved=True) is None:  # else others took the rest
                self.feed(slave, records.TasksAllocated(slave.sid, pending.heads(queue, 1, MAX_GROUP_BYTES)), now)

    def _send_addressed(self, now: float) -> None:
        """Send slaves the tasks that are addressed to them. Those that can never run there are released."""
        pending = self.state.jar.pending
        for sid in [needs.sid for needs in pending.special if needs.sid is not None]:
            slave = self.state.members.slaves[sid]
            while queue := pending.special.get(Needs(sid=sid)):
                first = queue[0]
                reason = why_not(self.state.members, slave, first, now)
                if reason is not None and reason.why in _NEVER:
                    alike = [span for span in queue if _alike(span) == _alike(first)]
                    self.handback.release(sid, alike, sentence(reason, first))
                    continue
                if reason is not None and reason.why is Why.ASKED and first.policy.requires is not None:
                    self.fitting.may_serve(slave.agent, first.policy.requires)
                # one that was asked back may give this task back, and would then run the next one before it
                if reason is not None or slave.freed or slave.asked_back or not self._send(slave, queue, now):
                    break

    def _send_fitted(self, now: float) -> None:
        """Send tasks with requirements, and others, in the order of their priorities."""
        pending, fitting = self.state.jar.pending, self.fitting
        fitting.begin()
        for priority in sorted({needs.priority for needs in (*pending.queues, *pending.fitted)}, reverse=True):
            for needs in fitting.in_order(priority, now):
                if needs is None:
                    before = pending.count
                    self._send_unaddressed(now, priority)
                    if pending.count < before:
                        fitting.sent(None, now)
                else:
                    self._send_fitting(needs, now)
        fitting.end(now)

    def _send_fitting(self, needs: Needs, now: float) -> None:
        """Send the tasks of a queue to slaves at which their requirements fit."""
        pending, takers = self.state.jar.pending, max(1, len(self.state.members.idle))
        queue = pending.fitted[needs]
        share = -(-sum(map(count_of, queue)) // takers)
        for slave in self.fitting.places(needs, queue, now):
            self._send(slave, queue, now, share)
            if needs not in pending.fitted:
                return
        self.fitting.keep(needs, queue[0], now)

    def _make_way(self) -> None:
        """Take back tasks that slaves have not started, if tasks of a higher priority wait."""
        pending = self.state.jar.pending
        waiting = max((needs.priority for needs in (*pending.queues, *pending.fitted)), default=-inf)
        for slave in self.state.members.slaves.values():
            if slave.held.spans and slave.held.spans[-1].policy.priority < waiting and has_to_spare(slave):
                self.state.ask_back(slave, slave.held.count)

    def _send_unaddressed(self, now: float, priority: int | None = None) -> None:
        """Send tasks first to idle slaves, then to busy slaves that have room for more.

        Args:
            priority: only those of this priority, which is the highest of all; None for all priorities.

        All these slaves share the tasks.
        """
        members, pending = self.state.members, self.state.jar.pending
        idle = [slave for slave in members.idle.values() if slave.has_room]
        hungry = [slave for slave in members.hungry.values() if slave.has_room]
        if pending.num_plain < len(idle):
            idle = self._fastest_first(idle)
        self._share_out(idle, len(idle) + len(hungry), priority, now)
        if pending.queues:
            hungry = [slave for slave in members.hungry.values() if slave.has_room]
            self._share_out(hungry, len(hungry), priority, now)

    def _fastest_first(self, slaves: Sequence[ConnectedSlave]) -> list[ConnectedSlave]:
        """Order slaves by how long the tasks of the first queue take there. Those that are not known are average."""
        number = next(iter(self.state.jar.pending.queues)).algorithm
        assert number is not None, "a queue of an algorithm has its number"
        mean = self.state.members.pace.get(number, 0.0)
        return sorted(slaves, key=lambda slave: slave.pace.get(number, mean))

    def _share_out(self, slaves: Sequence[ConnectedSlave], takers: int, priority: int | None, now: float) -> None:
        """Send each slave its share of the pending tasks, which `takers` slaves have in common."""
        pending = self.state.jar.pending
        for slave in slaves:
            self._fill(slave, -(-pending.num_plain // takers), priority, now)
            if not pending.queues:
                return

    def _fill(self, slave: ConnectedSlave, share: int, priority: int | None, now: float) -> None:
        """Send a slave as many tasks as it has room for, at most its share. A full slave is no longer hungry.

        It is the turn of one algorithm. While the slave has no room for this algorithm, it gets no task of another one.
        Otherwise the first algorithm would wait forever. An algorithm for which the time of the agent is too short has
        no turn.
        """
        members, pending = self.state.members, self.state.jar.pending
        for _ in range(len(pending.queues)):
            needs = first_turn(members, pending, slave, now)
            if needs is None or (priority is not None and needs.priority < priority):
                break
            count = self._send(slave, pending.queues[needs], now, share)
            if not count:
                break
            if needs in pending.queues:
                pending.end_turn(needs)
            share -= count
            if share <= 0:
                return
        if is_full(members, slave, self.state.settings.task_group):
            members.hungry.pop(slave.sid, None)

    def feed(self, slave: ConnectedSlave, record: records.TasksAllocated, now: float) -> None:
        """Send a slave tasks from the head of a queue, as a record says."""
        state, members = self.state, self.state.members
        if not slave.held.spans:
            slave.last_heard = now
        spans = state.record(record)
        if spans[0].policy.requires is not None and slave.given is None:
            self._give(slave, spans[0].policy.requires)
        slave.gave_nothing_back = False
        members.hungry.pop(slave.sid, None)
        state.settle(slave)  # it is the last hungry one now, so that all have their turns
        agent = slave.agent
        unknown: dict[int, Defined] = {}
        shares: dict[str, Share] = {}
        payloads: list[bytes] = []
        buffers: list[Sequence[Buffer]] = []
        portions: list[int] = []
        has_buffers = any(span.buffers or span.left is not None for span in spans)
        for span in spans:
            if span.algorithm.number not in agent.known:
                unknown[span.algorithm.number] = span.algorithm
            if span.buffers or span.algorithm.shares:
                shares |= self.shares.needed_by(span, agent)
            calls, own = span.payloads, span.buffers
            if span.left is not None:
                payload, large = span.resumed(span.left)
                calls, own = (payload,), (large,)
            if has_buffers:
                buffers += map(travelling, own) if own else [()] * span.count
            portions.append(calls.kind if type(calls) is PackedCalls else 0)
            payloads += [calls.data] if type(calls) is PackedCalls else calls
        if unknown:
            self.definitions.send(agent, unknown)
        sizes = [*map(len, buffers)] if any(buffers) else []
        limits = [_limits_of(span) for span in spans]
        header = messages.Tasks(
            slave.number,
            [span.first for span in spans],
            [span.count for span in spans],
            [span.attempt for span in spans],
            [span.algorithm.number for span in spans],
            sizes,
            limits if any(limits) else [],
            [*shares.values()],
            portions if any(portions) else [],
            slave.given,
        )
        frames = [groups.payload(sum(header.counts), payloads), *chain.from_iterable(buffers)]
        state.send(agent, header, frames, after_commit=not all(span.policy.retry for span in spans))

    def _give(self, slave: ConnectedSlave, requires: Requires) -> None:
        """Give a slave what its tasks require."""
        given = given_to(slave, requires)
        assert given is not None, "a slave is sent tasks only if it can be given what they require"
        self.state.members.give(slave, requires, given)
        if self.state.settings.in_this_process:
            slave.gpus = None  # nobody can replace it

    def _take_back(self, now: float) -> None:
        """If slaves are idle, ask the slave with the most work to give tasks back."""
        state = self.state
        idle = [slave for slave in state.members.idle.values() if slave.has_room and not slave.refused]
        while idle:
            slave, self.deadline = fullest(state.members, now)
            if slave is None:
                return
            last = slave.held.spans[-1]
            if not any(why_not(state.members, each, last, now) is None for each in idle):
                return
            count = max(1, slave.held.count // 2)
            state.ask_back(slave, count)
            del idle[:count]

    # ---- suspects ------------------------------------------------------------------------------------------

    def _places(self, now: float) -> list[tuple[ConnectedSlave, Needs]]:
        """Reserve agents for the pending suspects, and release those on which no suspect runs.

        Returns:
            Slaves, each alone on its agent, and the queue of the suspect that the caller must send to it now.
        """
        before, self.reserved = self.reserved, []
        for agent in before:
            agent.reserved = False
            if agent.runs_suspect:
                self._reserve(agent)
        found: list[tuple[ConnectedSlave, Needs]] = []
        empties_one = False
        suspects = [(needs, queue) for needs, queue in self.state.jar.pending.special.items() if needs.alone]
        for needs, queue in suspects:
            for _ in range(sum(map(count_of, queue))):
                slave = self._least_busy(queue[0], before, now)
                if slave is None or (empties_one and slave.agent.num_busy):
                    break
                self._reserve(slave.agent)
                if slave.agent.num_busy:
                    empties_one = True
                    break
                found.append((slave, needs))
        return found

    def _reserve(self, agent: ConnectedAgent) -> None:
        agent.reserved = True
        self.reserved.append(agent)

    def _least_busy(self, suspect: Span, before: Sequence[ConnectedAgent], now: float) -> ConnectedSlave | None:
        """A slave that can run a suspect, on the agent with the fewest busy slaves.

        Prefer agents that have finished a task. One that has finished none must first run another task, if one waits
        that it can run: if it vanishes, too, this says little about the suspect.

        If two agents have equally few, prefer one that was reserved before. So the choice changes only if another agent
        gets idle sooner, and some agent gets idle in the end.
        """
        members, pending = self.state.members, self.state.jar.pending
        best: tuple[bool, int, bool] | None = None
        found: ConnectedSlave | None = None
        for agent in self.state.members.agents.values():
            rank = not agent.is_proven, agent.num_busy, agent not in before
            if agent.is_full or (best is not None and rank >= best):
                continue
            if (requires := suspect.policy.requires) is not None and not self.fitting.may_serve(agent, requires):
                continue
            able = (slave for slave in agent.slaves.values() if why_not(members, slave, suspect, now) is None)
            slave = next(able, None)
            if slave is not None and (agent.is_proven or first_turn(members, pending, slave, now) is None):
                best, found = rank, slave
        return found

    # ---- stragglers ----------------------------------------------------------------------------------------

    def _give_stragglers_away(self, now: float) -> None:
        """Give the stragglers at the time `now` to idle slaves, the longest running first."""
        idle = self.state.members.idle.values()
        if any(self.state.jar.pending.unaddressed()) or not any(slave.has_room for slave in idle):
            return
        for slave in sorted(self._with_stragglers(now), key=lambda slave: slave.last_heard):
            span = slave.held.spans[0]
            place = self._place(span, slave.agent, now)
            if place is not None:
                task = span.part(span.first, 1, span.sent + 1)
                usual = f"others took {span.algorithm.mean_s:.3g} s on average"
                reason = f"it has run for {now - slave.last_heard:.0f} s, and {usual}"
                self.state.give_away(slave, [span.between(0, 1)], reason)
                self.feed(place, records.TasksAllocated(place.sid, [task]), now)

    def _with_stragglers(self, now: float) -> list[ConnectedSlave]:
        """The slaves that run stragglers. Find out, too, when the next task becomes one."""
        found: list[ConnectedSlave] = []
        given = self.state.given_away()
        for slave in self.state.members.slaves.values():
            span = slave.held.spans[0] if slave.held.spans and not slave.given_back else None  # else it runs another
            if span is None or not span.policy.speculate or span.algorithm.succeeded < KNOWN:
                continue
            if slave.agent.is_away or not self.state.may_give_away(span, given):
                continue
            usual_s = max(span.algorithm.mean_s or 0.0, span.policy.seconds_expected or 0.0)
            due = slave.last_heard + max(LEAST_LATE_S, USUAL * usual_s)
            if now >= due:
                found.append(slave)
            else:
                self.deadline = min(known((due, self.deadline)))
        return found

    def _place(self, span: Span, besides: ConnectedAgent, now: float) -> ConnectedSlave | None:
        """The slave that has been idle for the longest time, at another agent and, if possible, on another host."""
        members = self.state.members
        others = [slave for slave in members.idle.values() if slave.agent is not besides and not slave.agent.is_full]
        able = [slave for slave in others if why_not(members, slave, span, now) is None]
        return min(able, key=lambda slave: slave.agent.host == besides.host, default=None)

    def check(self) -> None:
        """Compare the reserved agents with what each of them says."""
        for agent in self.state.members.agents.values():
            assert agent.reserved == (agent in self.reserved), f"{agent.name} is reserved for nothing"
