"""Which tasks fit at which slave: why a slave is not sent a task, what is taken and kept, and what fits nowhere.

An agent offers amounts, such as processors, and texts, such as the version of its Python. A slave takes the amounts of
a task when it is sent the first task that requires them, and gives them back when it holds no task. Until then it may
be sent only tasks that require the same. So a slave holds tasks of one kind, and many short tasks cost one decision.

A task without requirements takes nothing. But where amounts are counted, a slave that runs such a task counts as one
processor, because users mean this when they say of other tasks that they need four.

The largest tasks are first: small ones fill the places that are left. A queue that was sent nothing for `AGED_S` is
before all others, so small tasks are not starved either. If a task finds no place although it could run at an agent,
its amounts are kept there: others are sent to this agent only if they fit beside it. So a wide task waits at most until
what runs there now has ended.

GPUs and processors have positions, because each task sees only its own. A process that has used a GPU cannot change to
another one, so a slave is given the GPUs that it had before, or is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf

from attrs import Factory, define
from msgspec import Struct

from mwpy._core.holding import count_of
from mwpy._core.master.admission import Admission
from mwpy._core.master.handback import NO_SLAVE, HandBack
from mwpy._core.master.members import SERVING, AgentState, ConnectedAgent, ConnectedSlave, Members, Pool
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._core.master.tasks import Needs, PendingTasks
from mwpy._core.master.totals import short
from mwpy._values import messages, records
from mwpy._values.causes import PlainEnum
from mwpy._values.jobs import Kind
from mwpy._values.options import OWN_ADDRESS
from mwpy._values.phrases import counted
from mwpy._values.requires import CPUS, GPUS, Given, Offers, Requires, lacking, num_lacking, unasked
from mwpy._values.task import SlaveState

AGED_S = 60.0
"""A queue that was sent nothing for this many seconds is before larger ones."""

LOOK_S = 5.0
"""Seconds between two looks at tasks that fit nowhere. The first message about them comes after this time."""

UNFIT_S = 60.0
"""An agent leaves when it had no task for this many seconds, and nothing that waits can ever run there. The manual
names this number."""

KINDS_NAMED = 50
"""How many kinds of requirements the resource file has at most."""

PLAIN = Requires(((CPUS, 1),))
"""What a task without requirements takes where amounts are counted."""


class Why(PlainEnum):
    """Why a task waits: a sentence, which `sentence` completes. Those about an agent lack its name."""

    TASKS_BEFORE = "it is behind {tasks} of the same queue"
    TURNS = "its queue takes turns with {queues}, of other algorithms or expected times"
    HELD_BACK = "no task is sent now: {text}"
    STOPPED = "the run is stopped, because too many tasks have failed"
    NO_AGENT = "no slave is connected: start some, or search for faults with `mwpy doctor`"
    RUNS_ALONE = "agents vanished while they had it, so it is sent only to an agent that runs nothing else"
    ADDRESSED = "it is addressed to {text}, so no other slave is sent it"
    MISSING = "{tasks} must end before it: {text}"
    PAUSE = "its next attempt is possible in {number} s"
    HOST_EXCLUDED = "the host is excluded: {text}"
    LEAVING = "leaving: {text}"
    AWAY = "away: nothing is heard from it, and it may come back"
    SETTING_UP = "its set-up runs, for {number} s until now"
    STARTING = "no slave is ready yet"
    ENDING = "its slaves get no more tasks, and end"
    CANNOT_RUN = "cannot run {algorithm}: {text}"
    NO_TIME = "has too little time left: {number} s at most, and the task takes {needed_s:g} s"
    RESERVED = "reserved for another task, which runs alone"
    LACKS = "offers too little: {text}"
    ASKED = "it is asked whether it has {text}"
    IN_USE = "not now: {text}"
    OTHER_KIND = "all slaves are ordered or freed, and get no task that is not addressed to them"
    NOT_ALONE = "the task must run alone, and the agent has {tasks}"
    BUSY = "all slaves are busy, with {tasks}"
    IDLE = "a slave is idle: the task is sent when it is its turn"


class WaitReason(Struct, frozen=True):
    """Why a task waits, or why an agent is not sent it."""

    why: Why
    text: str = ""
    """What the master knows more."""
    number: float = 0.0


def sentence(reason: WaitReason, span: Span) -> str:
    """Return the sentence of a reason, about the tasks of a span."""
    number, needed_s = round(reason.number), round(span.needed_s or 0.0, 2)
    known = {"tasks": counted(number, "task"), "queues": counted(number, "other queue")}
    known |= {"text": short(reason.text), "algorithm": span.algorithm.name}
    return reason.why.value.format(number=number, needed_s=needed_s, **known)


def why_not(
    members: Members, slave: ConnectedSlave, span: Span, now: float, *, reserved: bool = False
) -> WaitReason | None:
    """Why a slave is not sent tasks, however many it holds; None if it may be sent them.

    Args:
        reserved: whether its agent may be reserved, because it is reserved for these tasks.

    A task that is addressed to the slave is held back for lack of time only if its policy says how long it takes. If it
    requires another number of GPUs than the slave has used, no other slave can take its place.
    """
    agent, number, policy = slave.agent, span.algorithm.number, span.policy
    requires = policy.requires
    if number in slave.refused:
        return WaitReason(Why.CANNOT_RUN, slave.refused[number])
    if requires is not None and (text := never(members, agent, requires)):
        return WaitReason(Why.LACKS, text)
    if requires is not None and policy.sid is not None and (text := _used_other_gpus(slave, requires)):
        return WaitReason(Why.LACKS, text)
    if not agent.has_time(span, now) and (policy.sid is None or policy.seconds_expected is not None):
        return WaitReason(Why.NO_TIME, number=agent.ends_in_s(now))
    if slave.state not in SERVING:
        return WaitReason(Why.ENDING)
    if agent.reserved and not reserved:
        return WaitReason(Why.RESERVED)
    if policy.sid is None and not (reserved or slave.runs_unaddressed):
        return WaitReason(Why.OTHER_KIND)
    if requires is not None and (names := [*unasked(requires, agent.offers)]):
        return WaitReason(Why.ASKED, ", ".join(names))
    if (requires is not None or agent.counts) and (text := in_use(members, slave, requires)):
        return WaitReason(Why.IN_USE, text)
    return None


def first_turn(members: Members, pending: PendingTasks, slave: ConnectedSlave, now: float) -> Needs | None:
    """What the tasks need that a slave may be sent next; None if there are none.

    It takes no longer when more algorithms have pending tasks, unless the slave refuses some, its time is limited, or
    amounts are counted there.
    """
    if not slave.refused and slave.agent.ends_at is None and not slave.agent.counts:
        return next(iter(pending.queues), None)
    able = (needs for needs, queue in pending.queues.items() if why_not(members, slave, queue[0], now) is None)
    return next(able, None)


def never(members: Members, agent: ConnectedAgent, requires: Requires) -> str:
    """Why an agent can never run tasks that require this; empty if it can, or was not asked yet."""
    run = members.pool.total
    own = tuple(each for each in requires.amounts if each[0] not in run)
    if text := lacking(Requires(own, requires.conditions), agent.offers):
        return text
    whole = tuple(each for each in requires.amounts if each[0] in run)
    text = lacking(Requires(whole), Offers(dict(run))) if whole else ""
    return text and f"the whole run has less: {text}"


def _used_other_gpus(slave: ConnectedSlave, requires: Requires) -> str:
    """Why the process of a slave can never run tasks that require this; empty if it can."""
    if slave.gpus is None or dict(requires.amounts).get(GPUS, 0) in (0, len(slave.gpus)):
        return ""
    return f"its process has used {counted(len(slave.gpus), 'GPU')}, and cannot change to others"


def in_use(members: Members, slave: ConnectedSlave, requires: Requires | None) -> str:
    """Why a slave is not given now what tasks require; empty if it is given it, or has it."""
    if slave.is_busy and slave.required != requires:
        return "its slaves have tasks with other requirements"
    for pool, slaves in ((slave.agent.pool, slave.agent.slaves), (members.pool, members.slaves)):
        for name, number in (requires or PLAIN).amounts:
            total = pool.total.get(name)
            if total is None or (pool is not members.pool and name in members.pool.total):
                continue
            others = [each for each in slaves.values() if each is not slave and each.is_busy] if pool.kept else ()
            plain = sum(each.is_busy and each.given is None for each in slaves.values()) if name == CPUS else 0
            free = total - pool.taken[name] - plain
            if not slave.is_busy and number > free:
                return f"{free} of {name} {total} are free, and {number} required"
            if pool.kept and requires not in pool.kept and number > _beside_kept(pool, name, others):
                return f"{name} are kept for a task that requires more"
    kept = slave.agent.pool.kept
    if kept and requires not in kept and _num_others(slave) + len(kept) >= len(slave.agent.slaves):
        return "slaves are kept for a task that requires more"
    if requires is not None and not slave.is_busy and given_to(slave, requires) is None:
        return USED_OTHER_GPUS
    return ""


USED_OTHER_GPUS = "its slaves have used other GPUs, and are replaced first"


def _beside_kept(pool: Pool, name: str, slaves: Iterable[ConnectedSlave]) -> int:
    """How much of an amount is left for one slave beside what is kept, and beside other slaves that are busy. Slaves
    with tasks for which it is kept do not count: they will give it back."""
    kept = sum(dict(each.amounts).get(name, 0) for each in pool.kept)
    if not kept:
        return pool.total[name]
    beside = [slave.required or PLAIN for slave in slaves if slave.required not in pool.kept]
    return pool.total[name] - kept - sum(dict(each.amounts).get(name, 0) for each in beside)


def _num_others(slave: ConnectedSlave) -> int:
    """How many other slaves of its agent are busy with tasks for which nothing is kept."""
    kept = slave.agent.pool.kept
    return sum(each is not slave and each.is_busy and each.required not in kept for each in slave.agent.slaves.values())


def given_to(slave: ConnectedSlave, requires: Requires) -> Given | None:
    """What a slave is given for tasks; None if it would need other GPUs than it has used."""
    amounts = dict(requires.amounts)
    others = [each.given for each in slave.agent.slaves.values() if each.given is not None] + slave.agent.former
    pinned = amounts.get(CPUS, 0) if slave.agent.offers.pins else 0
    cpus = _lowest(pinned, {each for given in others for each in given.cpus})
    used = {each for given in others for each in given.gpus}
    gpus = _lowest(amounts.get(GPUS, 0), used)
    if gpus and slave.gpus is not None:
        if len(slave.gpus) != len(gpus) or not used.isdisjoint(slave.gpus):
            return None
        gpus = [*slave.gpus]
    return Given(amounts, cpus, gpus)


def _lowest(count: int, used: set[int]) -> list[int]:
    """The lowest positions that are not used."""
    return [*islice((each for each in range(count + len(used)) if each not in used), count)]


def has_to_spare(slave: ConnectedSlave) -> bool:
    """Whether a slave may have tasks that it has not started, and can be asked for them."""
    return (
        slave.state in (SlaveState.BUSY, SlaveState.SHUTTING_DOWN)
        and not slave.agent.leaving
        and not slave.asked_back
        and not slave.gave_nothing_back
        and slave.held.count >= (1 if slave.given_back else 2)
        and not any(span.policy.sid for span in slave.held.spans)
    )


@define(eq=False, repr=False)
class Fitting:
    """Chooses places for tasks with requirements, and decides about tasks and agents that fit nothing."""

    state: MasterState
    handback: HandBack
    admission: Admission
    deadline: float | None = None
    """When to look again, on the core's clock; None if nothing waits."""
    _since: dict[Needs | None, float] = Factory(dict)
    """When a queue was sent something, or began to wait; None stands for all tasks without requirements."""
    _keepers: dict[Needs, ConnectedAgent] = Factory(dict)
    """The agents at which amounts are kept for the first task of a queue."""
    _unmet: dict[Needs, float] = Factory(dict)
    """Since when no agent offers what the tasks of a queue require."""

    def in_order(self, priority: int, now: float) -> list[Needs | None]:
        """The queues of a priority, in the order in which they are sent; None stands for tasks without requirements."""
        pending = self.state.jar.pending
        found: list[Needs | None] = [needs for needs in pending.fitted if needs.priority == priority]
        found += [None] if any(needs.priority == priority for needs in pending.queues) else []
        for needs in found:
            self._since.setdefault(needs, now)
        aged = {needs: since for needs, since in self._since.items() if since <= now - AGED_S}
        return sorted(found, key=lambda needs: (aged.get(needs, inf), needs is None, *self._width(needs)))

    def offered(self, agent: ConnectedAgent, message: messages.Offered) -> None:
        """An agent said what it has under names about which it was asked, or what tasks of a former generation have."""
        if texts := {name: message.texts[name] for name in sorted(agent.asked & message.texts.keys())}:
            self.state.record(records.AgentOffered(agent.name, texts))
        if message.taken is not None:
            self.state.members.take_former(agent, message.taken)

    @property
    def keeps(self) -> bool:
        """Whether amounts are kept for tasks."""
        return bool(self._keepers)

    def sent(self, needs: Needs | None, now: float) -> None:
        """A queue was sent something; None stands for all tasks without requirements."""
        self._since[needs] = now

    def places(self, needs: Needs, queue: Sequence[Span], now: float) -> Iterator[ConnectedSlave]:
        """Yield slaves that may be sent tasks of a queue now: idle ones, those of the best agents first, and then those
        that have such tasks. The caller sends each of them some before it asks for the next."""
        requires, members = needs.requires, self.state.members
        assert requires is not None, "tasks without requirements have no places"
        agents = {slave.agent.name: slave.agent for slave in members.idle.values()}
        able = [agent for agent in agents.values() if self.may_serve(agent, requires)]
        able.sort(key=lambda agent: _waste(agent, requires))
        wants_gpus = GPUS in dict(requires.amounts)
        for agent in able:
            idle = [slave for slave in agent.slaves.values() if slave.state is SlaveState.IDLE]
            for slave in sorted(idle, key=lambda slave: (slave.gpus is None) == wants_gpus):
                reason = why_not(members, slave, queue[0], now)
                if reason is None:
                    self.sent(needs, now)
                    yield slave
                elif reason.why is Why.IN_USE and reason.text != USED_OTHER_GPUS:
                    break  # and so it is for the others
        for slave in [slave for slave in members.hungry.values() if slave.required == requires]:
            if why_not(members, slave, queue[0], now) is None:
                yield slave

    def may_serve(self, agent: ConnectedAgent, requires: Requires) -> bool:
        """Whether an agent can run tasks that require this. If this depends on what it was not asked yet, ask it."""
        if agent.state is not AgentState.CONNECTED or never(self.state.members, agent, requires):
            return False
        names = {*unasked(requires, agent.offers)}
        if unknown := names - agent.asked:
            agent.asked |= unknown
            self.state.send(agent, messages.OffersWanted(sorted(unknown)))
        return not names

    def begin(self) -> None:
        """A new round begins: nothing is kept until its tasks find no place again."""
        for agent in self._keepers.values():
            agent.pool.kept.clear()
        self.state.members.pool.kept.clear()

    def keep(self, needs: Needs, span: Span, now: float) -> None:
        """The first task of a queue found no place: keep its amounts at an agent, if one can ever run it. A slave that
        has used other GPUs is replaced."""
        requires, members = needs.requires, self.state.members
        assert requires is not None, "tasks without requirements keep nothing"
        keeper = self._keepers.get(needs)
        if keeper is None or not self._can_keep(keeper, span, now):
            able = [agent for agent in members.agents.values() if self._can_keep(agent, span, now)]
            keeper = min(able, key=lambda agent: (len(agent.pool.kept), _share(agent.pool, requires)), default=None)
        if keeper is None:
            self._keepers.pop(needs, None)
            return
        self._keepers[needs] = keeper
        keeper.pool.kept.append(requires)
        if any(name in members.pool.total for name, _ in requires.amounts):
            members.pool.kept.append(requires)
        for slave in keeper.slaves.values():
            if slave.required not in keeper.pool.kept and has_to_spare(slave):
                self.state.ask_back(slave, slave.held.count)
        for slave in keeper.slaves.values():
            reason = why_not(members, slave, span, now) if slave.state is SlaveState.IDLE else None
            if reason is not None and reason.text == USED_OTHER_GPUS:
                self.state.replace(slave)
                return

    def _can_keep(self, agent: ConnectedAgent, span: Span, now: float) -> bool:
        requires = span.policy.requires
        assert requires is not None, "tasks without requirements keep nothing"
        if not self.may_serve(agent, requires):
            return False
        reasons = [why_not(self.state.members, slave, span, now) for slave in agent.slaves.values()]
        return any(reason is None or reason.why is Why.IN_USE for reason in reasons)

    def end(self, now: float) -> None:
        """A round is over. Look again soon, if tasks wait."""
        fitted = self.state.jar.pending.fitted
        for needs in [each for each in self._keepers if each not in fitted or not self._is_kept(each)]:
            del self._keepers[needs]
        for needs in [each for each in self._since if each is not None and each not in fitted]:
            del self._since[needs]
        if not fitted:
            self.deadline = None
        elif self.deadline is None or now >= self.deadline:
            self._look(now)
            self.deadline = now + LOOK_S

    def _is_kept(self, needs: Needs) -> bool:
        return needs.requires in self._keepers[needs].pool.kept

    def kinds(self) -> tuple[Kind, ...]:
        """How many slaves the waiting tasks with requirements could use, by what they require; the most common ones."""
        wanted = Counter[Requires]()
        for needs, queue in self.state.jar.pending.fitted.items():
            if needs.requires is not None:
                wanted[needs.requires] += sum(map(count_of, queue))
        group = self.state.settings.task_group or 1
        common = wanted.most_common(KINDS_NAMED)
        return tuple(Kind(dict(each.amounts) | dict(each.conditions), -(-count // group)) for each, count in common)

    # ---- what fits nowhere -----------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Decide about tasks that no agent can run, and about agents that can run no task."""
        pending, members = self.state.jar.pending, self.state.members
        for needs in [each for each in self._unmet if each not in pending.fitted]:
            del self._unmet[needs]
        for needs, queue in [*pending.fitted.items()]:
            requires = needs.requires
            assert requires is not None, "tasks without requirements fit everywhere"
            if any(agent.asked or not never(members, agent, requires) for agent in members.agents.values()):
                self._unmet.pop(needs, None)
            else:
                self._not_offered(requires, queue, now - self._unmet.setdefault(needs, now))
        self._dismiss(now)

    def _not_offered(self, requires: Requires, queue: Iterable[Span], waited_s: float) -> None:
        """No agent offers what the tasks of a queue require, for some seconds now."""
        members, first = self.state.members, next(iter(queue))
        only_here = self.state.settings.only_here and members.agents and not members.coming()
        if only_here or (requires.wait_s is not None and waited_s >= requires.wait_s):
            limit = "only slaves on this machine can join" if only_here else f"wait_max is {requires.wait_s:g} s"
            reason = f"it requires {requires}, which no agent offers ({self._nearest(requires)}), and {limit}"
            self.handback.give_up(NO_SLAVE, [span.whole for span in queue], reason, held=False)
        elif members.agents and waited_s >= LOOK_S:
            self.state.notice(
                f"task {first.first} ({first.algorithm.name}) and all that require the same wait: no agent offers "
                f"{requires}; {self._nearest(requires)}. Start agents that offer it (--mw-offers states what mwpy does "
                f"not find), or require less",
                key=f"not offered: {requires}",
            )

    def _width(self, needs: Needs | None) -> tuple[float, ...]:
        """The queue of the smallest width is first: chains that were begun, the largest cost, the largest amounts, and
        the tasks that have taken longest until now."""
        if needs is None or needs.requires is None or needs.algorithm is None:
            return ()
        amounts, (_, begun, cost) = dict(needs.requires.amounts), needs.rank
        most = amounts.get(GPUS, 0), amounts.get(CPUS, 0), sum(amounts.values())
        return -begun, -cost, *(-each for each in most), -self.state.members.pace.get(needs.algorithm, 0.0)

    def _nearest(self, requires: Requires) -> str:
        """Which agent lacks the least of what is required."""
        agents = self.state.members.agents.values()
        nearest = min(agents, key=lambda agent: (num_lacking(requires, agent.offers), agent.name), default=None)
        if nearest is None:
            return "no agent is connected"
        return f"the nearest is {nearest.place}: {never(self.state.members, nearest, requires)}"

    def _dismiss(self, now: float) -> None:
        """Let agents leave that can run nothing of this run, and have had no task for long."""
        jar, members = self.state.jar, self.state.members
        others = jar.pending.queues or jar.pending.special or jar.blocked.tasks or jar.delayed
        kinds = {needs.requires: None for needs in jar.pending.fitted if needs.requires is not None}
        for agent in [*members.agents.values()]:
            fits = others or agent.num_busy or agent.asked or agent.state is not AgentState.CONNECTED
            if fits or agent.address == OWN_ADDRESS or not all(never(members, agent, kind) for kind in kinds):
                agent.unfit_since = None
            elif agent.unfit_since is None:
                agent.unfit_since = now
            elif now - agent.unfit_since >= UNFIT_S:
                kind = next(iter(kinds))
                self.admission.dismiss(agent, f"all that waits requires more than it offers, such as {kind}")


def _waste(agent: ConnectedAgent, requires: Requires) -> int:
    """How many amounts an agent offers that are not required: tasks that require them should find it free."""
    return len(agent.offers.amounts.keys() - dict(requires.amounts).keys())


def _share(pool: Pool, requires: Requires) -> float:
    """The largest part of an amount that is in use at an agent."""
    return max((pool.taken[name] / max(1, pool.total.get(name, 1)) for name, _ in requires.amounts), default=0.0)
