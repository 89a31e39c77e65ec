"""Slaves that outlive their master: they finish its tasks, and then serve its next generation.

An agent that wants to go on with its session learns from the next generation of the master itself that it has begun
(`Refused.generation`). So the agent needs no resource file if the master always has the same address. And a file that
is out of date never leads it back to a former generation.

Then the agent takes back the tasks that its slaves have not started, and says so to the new master (`NotStarted`). The
others go on, however long they take. Their results go to the new master as those of the former generation (`Handover`).
Until then the agent says that they still run (`StillRunning`). When no more tasks are being taken back, it says that it
has said everything: then the new master does not wait for it any longer.

Tasks that were not started are named once, to the generation that follows. A later one cannot know whether that one has
sent them to another slave.

Both generations number tasks, algorithms and results that stay here in the same way, so nothing of them may be mixed.
Such a slave belongs to the former generation (`Child.former`): the new master does not know it, and it gets nothing of
the new one. When it has no task left, the agent sends it `NextGeneration`. It forgets what the former master has
defined, and answers. All its messages before the answer belong to the former generation, for example results that the
agent had already read in its journal. After the answer it is like a slave that has just become ready.

The agent asks only when the new master has accepted it: from then on, the master tells it about edited files (`Renew`).
The slave also says whether files were edited that it had loaded. Then it is replaced. The template is always replaced
then, because nothing of it runs that could find this out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.agent.child import Child, ChildEvent, ChildState, Former
from mwpy._core.agent.events import Outgoing
from mwpy._core.agent.shares import Shares
from mwpy._core.agent.starts import Starts
from mwpy._core.agent.state import UNBOUNDED, AgentState
from mwpy._core.agent.traffic import Traffic
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_TASKS
from mwpy._values.causes import Cause
from mwpy._values.ids import Buffer

__all__ = ["FormerTasks"]


class FormerTasks(Struct, eq=False):
    """Leads slaves from one generation of the master to the next."""

    _state: AgentState
    _starts: Starts
    _traffic: Traffic
    _shares: Shares
    is_joining: bool = False
    """Whether the next generation has not accepted this agent yet."""
    _generation: str = ""
    """The generation that has accepted this agent last."""
    _left: dict[str, None] = field(default_factory=dict)
    """The generations that had accepted it before."""
    _sessions: int = 0
    """How many sessions were named since the first one."""
    _settings: tuple[int, int] = (0, 0)
    """The settings of the master with which slaves were started."""
    _recalling: dict[int, None] = field(default_factory=dict)
    """The slaves from which tasks of the generation that ended last are being taken back."""
    _taken_back: list[messages.Revoked] = field(default_factory=list)
    """What was taken back, until it is said to the next generation."""
    _to_say_all: str = ""
    """The generation that ended last, until everything about it is said; then empty."""
    _reported: dict[int, None] = field(default_factory=dict)
    """The slaves with running tasks of a former generation that the master knows."""

    def has_left(self, generation: str) -> bool:
        """Whether this generation of the master has accepted the agent, and a later one has begun since then."""
        return generation in self._left

    def begin(self, refused: messages.Refused) -> None:
        """The next generation of the master has begun: prepare to join it."""
        state, hello = self._state, self._state.settings.hello
        state.actions.succeeds, self.is_joining = self._generation, True
        self._left[self._generation] = None
        self._to_say_all = self._generation
        self._taken_back.clear()
        self._recalling.clear()
        for child in state.children.values():
            if child.state is not ChildState.WAITING and child.former is None:
                self._make_former(child, Former(self._generation, child.name))
        state.settings = replace(state.settings, hello=replace(hello, generation=refused.generation, resumed=""))
        self._reported.clear()
        self._starts.begin_again()
        self._shares.begin_again()
        state.record(records.Notice(f"{refused.reason}: this agent joins its next generation"))

    def name_session(self) -> None:
        """Name another session, before another attempt to join: a master may know the last one, although its answer did
        not arrive. Nobody can guess the name, because nobody can guess its beginning."""
        state, hello = self._state, self._state.settings.hello
        self._sessions += 1
        name = f"{hello.session.partition('.')[0]}.{self._sessions}"
        state.settings = replace(state.settings, hello=replace(hello, session=name))

    def _make_former(self, child: Child, former: Former) -> None:
        child.former = former
        child.unsent = child.report = None
        child.unread = child.report_unread = False
        if child.is_ready and child.held:
            self._state.actions.recall.append((child.number, UNBOUNDED))
            self._recalling[child.number] = None
        self.settle(child)

    def joined(self, welcome: messages.Welcome) -> None:
        """A master has accepted this agent: report the slaves that were started before."""
        state, settings = self._state, (welcome.result_group, welcome.max_result_bytes)
        was_joining, is_other = self.is_joining, self.is_joining and self._settings != settings
        former, self._settings = self._generation, settings
        self.is_joining, self._generation = False, welcome.generation
        state.settings = replace(state.settings, hello=replace(state.settings.hello, generation=welcome.generation))
        if was_joining:
            self._starts.renew()
        for child in state.living():
            if is_other:
                self._replace(child)
            elif was_joining and child.former is None:  # it was started meanwhile, and files may have been edited since
                child.former = Former(former, child.name)
            self.settle(child)
            if child.former is not None and child.held:
                state.to_master(_still_running(child, child.former))
                self._reported[child.number] = None
        self._say_all()

    def took_back(self, child: Child, revoked: messages.Revoked | None) -> None:
        """Tasks that a slave has not started were taken back."""
        if child.number in self._recalling:
            if revoked is not None and revoked.tasks:
                self._taken_back.append(revoked)
            if child.number not in dict(self._state.actions.recall):
                del self._recalling[child.number]
            self._say_all()
        self.settle(child)

    def _say_all(self) -> None:
        """Say which tasks were not started when this is known of all slaves, and that this is all."""
        if self.is_joining or self._recalling or not self._to_say_all:
            return
        for revoked in self._taken_back:
            spans = sorted(zip(revoked.tasks, revoked.counts, strict=True))
            firsts, counts = [first for first, _ in spans], [count for _, count in spans]
            self._state.to_master(messages.NotStarted(self._to_say_all, firsts, counts))
        self._state.to_master(messages.NotStarted(self._to_say_all, [], []))
        self._taken_back.clear()
        self._to_say_all = ""

    def _replace(self, child: Child) -> None:
        """Let a slave end after its task. The master never hears of it."""
        child.is_replaced = True
        if child in self._state.living():
            self._state.stop(child, finished=False)

    def not_wanted(self, number: int) -> None:
        """Nobody wants the results of the tasks that a slave of the former generation runs: end it."""
        if number in self._reported:
            child = self._state.children[number]
            if child in self._state.living():
                child.kill("because the next generation of the master does not want its task", Cause.CANCELLED)
                self._state.actions.kill.append(number)

    def hear(self, child: Child, message: messages.Message, received: Sequence[Buffer]) -> bool:
        """Handle a message of a slave of the former generation. Return False if it is not expected.

        States, reports, peaks and records of `logging` are dropped: the new master cannot know their tasks.
        """
        match message:
            case messages.Results(child.number):
                self._traffic.results(child, message, received)
            case messages.AlgorithmFailed(child.number):
                child.end(message)
                self._replace(child)
            case messages.Checkpoint(child.number) | messages.Reported(child.number) | messages.Logged(child.number):
                pass
            case messages.PeakMemory(child.number):
                pass
            case messages.SlaveGrown(child.number):
                self._replace(child)
            case messages.NextGeneration(child.number, edited) if child.is_asked:
                self._has_forgotten(child, edited)
            case _:
                return False
        self.settle(child)
        return True

    def ready(self, child: Child, message: messages.SlaveReady, received: Sequence[Buffer]) -> None:
        """A slave is ready for tasks."""
        child.change(ChildEvent.GET_READY)
        child.ready_by = None
        if child.is_ready:
            self._starts.succeeded(child)
            if child.former is None:
                self._state.actions.to_master.append(Outgoing(message, (), received))
            self.settle(child)

    def settle(self, child: Child) -> None:
        """A slave of the former generation may have no task left."""
        former = child.former
        if former is None or child.held:
            return
        if child.number in self._reported:
            del self._reported[child.number]
            self._state.to_master(messages.StillRunning(child.number, former.generation, [], []))
        if child.retiring:
            self._replace(child)
        if child.is_ready and not (child.is_asked or self.is_joining):
            child.is_asked = True
            self._state.to_slave(child, messages.NextGeneration(child.number))

    def _has_forgotten(self, child: Child, edited: str) -> None:
        """A slave has forgotten the former generation: it serves the new one, unless it has old code."""
        child.is_asked = False
        if self.is_joining:  # the master was started again since then, so the slave is asked again
            return
        child.former = None
        if edited:
            text = f"{child.name} is replaced, because {edited} was edited since it was loaded"
            self._state.record(records.Notice(text))
            self._replace(child)
        elif child.is_ready:
            self._starts.give_definitions(child)
            self._state.to_master(messages.SlaveReady(child.number))

    def ended(self, child: Child) -> None:
        """The process of a slave has ended."""
        child.held.clear()
        if self._recalling.pop(child.number, 0) is None:
            self._say_all()
        self.settle(child)

    def check(self) -> None:
        """Assert that the master knows of slaves only that still run former tasks."""
        for number in self._reported:
            child = self._state.children[number]
            assert child.former is not None and child.held, f"slave {number} runs no task of a former generation"


def _still_running(child: Child, former: Former) -> messages.StillRunning:
    """Name the tasks that a slave has not finished, in ascending order, at most `MAX_TASKS`."""
    spans = sorted((span.first, span.count) for span in child.held)
    before = accumulate((count for _, count in spans), initial=0)
    named = [(first, min(count, MAX_TASKS - past)) for (first, count), past in zip(spans, before, strict=False)]
    firsts, counts = [first for first, count in named if count > 0], [count for _, count in named if count > 0]
    return messages.StillRunning(child.number, former.generation, firsts, counts)
