"""Takes over results of former generations, which agents bring.

An agent can outlive its master, and so can the tasks that its slaves run. It brings their results to the next
generation (`Handover`). These results are stored as those of their own generation, as if its master had lived on. When
they are in the file (the event `Stored`), they are answers like all others there: tasks that are submitted later end at
once, and tasks that were submitted before end now, wherever they are. An attempt that runs elsewhere is killed, as if
another attempt had answered.

Results that do not count are left out: of tasks that the file does not know or that have an answer, and failures after
which the task was to be tried again. Nothing counts if the process of the agent was no agent of that generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import TaskIds
from mwpy._core.master import lifecycle
from mwpy._core.master.attempts import without_extra
from mwpy._core.master.kinds import SlaveKinds
from mwpy._core.master.members import ConnectedAgent
from mwpy._core.master.results import check_failures
from mwpy._core.master.reuse import Reuse
from mwpy._core.master.spans import Span, named
from mwpy._core.master.state import MasterState
from mwpy._values import groups, messages, records
from mwpy._values.earlier import EarlierAnswers
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.messages import Results
from mwpy._values.phrases import counted
from mwpy._values.records import ResultsHandedOver, TaskRange

__all__ = ["Succession"]

_UNUSABLE = (
    "{agent} has brought {results} of tasks that an earlier life of the master had sent to it, and they are not used, "
    "because {why}"
)


class Succession(Struct, eq=False):
    """Receives results of former generations."""

    state: MasterState
    kinds: SlaveKinds

    def receive(
        self, agent: ConnectedAgent, message: messages.Handover, frames: Sequence[Buffer], reuse: Reuse | None
    ) -> None:
        """Take over the results that count, so that they are stored.

        Raises:
            ProtocolError: the frames are not what the message says; the agent's fault.
        """
        group = message.results
        values, _ = groups.entries(group, frames)
        check_failures(group, values)
        found = None if reuse is None else reuse.former(message.generation)
        if reuse is None or found is None or not reuse.awaited.former.had(found[0], agent):
            why = "there is no run database"
            if reuse is not None:
                why = f"the run database does not know {'that life any more' if found is None else 'this agent there'}"
            results = counted(sum(group.counts), "result")
            self.state.notice(_UNUSABLE.format(agent=agent.name, results=results, why=why), key=why)
            return
        generation, former = found
        numbers = [
            number
            for first, count in zip(group.tasks, group.counts, strict=True)
            for number in former.numbers(first, count)
        ]
        places = _counting(group, numbers, reuse)
        counting = [numbers[place] for place in places]
        reuse.awaited.brought([number for number in numbers if number >= 0], counting, reuse.waiting(counting))
        if places:
            group, frames = groups.select(group, frames, places)
            slave = SlaveId(message.sid)
            self.state.record(ResultsHandedOver(agent.name, agent.host, generation, slave, group, frames))

    def still_running(self, agent: ConnectedAgent, message: messages.StillRunning, reuse: Reuse | None) -> None:
        """A slave runs tasks of a former generation: equal tasks wait for it. If nobody wants them, it ends."""
        found = None if reuse is None else reuse.former(message.generation)
        wanted: list[int] = []
        if reuse is not None and found is not None and reuse.awaited.former.had(found[0], agent):
            for first, count in zip(message.tasks, message.counts, strict=True):
                wanted += [number for number in found[1].numbers(first, count) if number >= 0]
            wanted = [number for number in wanted if reuse.answers.of(number) is None]
            reuse.awaited.runs(agent.name, message.slave, wanted, reuse.waiting(wanted))
        if message.tasks and not wanted:
            self.state.send(agent, messages.NotWanted(message.slave))

    def not_started(self, agent: ConnectedAgent, message: messages.NotStarted, reuse: Reuse | None) -> None:
        """Slaves have not started tasks of the generation before this one: they may run. Or the agent has no more to
        say."""
        found = None if reuse is None else reuse.former(message.generation)
        if reuse is None or found is None or not reuse.awaited.former.had(found[0], agent):
            return
        if not message.tasks:
            reuse.awaited.former.came(agent)
        elif found[0] == reuse.last_generation:  # a generation in between may have sent them to other slaves
            for first, count in zip(message.tasks, message.counts, strict=True):
                numbers = [number for number in found[1].all_numbers()[first : first + count] if number >= 0]
                for number in numbers:
                    reuse.answers.set_sent(number, may_have_run=False)
                reuse.awaited.not_started(numbers)

    def stored(self, record: ResultsHandedOver, row: int, reuse: Reuse, now: float) -> None:
        """Results are in the file: end the tasks that have waited for them."""
        sid, host, wall = record.sid, record.host, self.state.wall
        entry = EarlierAnswers(record.generation, row, sid, host, wall, record.results)
        known = {number: place for place, number in enumerate(reuse.answer(entry)) if number >= 0}
        if self.state.closing is None:
            self._end_waiting(record, {number: at for number, at in known.items() if reuse.counts(number)}, reuse, now)
            reuse.awaited.stored(known)

    def _end_waiting(self, record: ResultsHandedOver, places: Mapping[int, int], reuse: Reuse, now: float) -> None:
        """End the tasks that have waited for results.

        Args:
            places: the place of each occurrence with a result that counts.
        """
        numbers = reuse.waiting(places)
        if not numbers:
            return
        answers = _Answers(self.state, record, reuse, numbers, places)
        jar = self.state.jar
        for waiting in (jar.pending.spans(), jar.delayed.tasks.values(), jar.blocked.tasks.values()):
            answers.end(None, answers.among(waiting))
        for agent in self.state.members.agents.values():
            killed: list[int] = []
            for slave in agent.slaves.values():
                tasks = answers.among(slave.held.spans)
                if tasks:
                    reason = "an earlier life of the master has answered"
                    answers.end(slave.sid, without_extra(self.state, slave.sid, tasks, reason))
                    slave.last_heard = now
                    self.kinds.unload(slave)
                    killed += answers.ids_of(tasks)
            if killed:
                self.state.send(agent, messages.Cancel(sorted(killed), [1] * len(killed), kill=True))


class _Answers:
    """The answers of a row, and the tasks that wait for them.

    Args:
        state: what all parts share.
        record: the row.
        reuse: knows the answers.
        numbers: for each of these tasks: its occurrence. Some of them have ended.
        places: for each occurrence: the place of its answer in the row.
    """

    def __init__(
        self,
        state: MasterState,
        record: ResultsHandedOver,
        reuse: Reuse,
        numbers: Mapping[int, int],
        places: Mapping[int, int],
    ) -> None:
        self.state = state
        self.record = record
        self.reuse = reuse
        self.numbers = numbers
        self.places = places
        self._ids = self._of_numbers()

    def _of_numbers(self) -> TaskIds:
        firsts, counts, _ = groups.spans_of(sorted(self.numbers), [0] * len(self.numbers))
        return TaskIds(zip(firsts, counts, strict=True))

    def among(self, spans: Iterable[Span]) -> list[TaskRange]:
        """Those of the tasks that a record can end."""
        return named((span for span in spans if _can_end(span)), self._ids)

    def ids_of(self, tasks: Sequence[TaskRange]) -> list[int]:
        """The ids of tasks."""
        return [number for each in tasks for number in range(each.first, each.first + each.count)]

    def end(self, sid: SlaveId | None, tasks: Sequence[TaskRange]) -> None:
        """End tasks that are at one slave, or that are in the same state."""
        if not tasks:
            return
        ids = self.ids_of(tasks)
        own, frames = groups.select(
            self.record.results, self.record.frames, [self.places[self.numbers[task]] for task in ids]
        )
        attempts = [each.attempt for each in tasks for _ in range(each.count)]
        own = replace(own, tasks=ids, counts=[1] * len(ids), attempts=attempts)
        for span in self.state.record(records.TasksAnswered(sid, tasks, own, frames)):
            self.reuse.give_out(span, [self.numbers[task] for task in span.ids])


def _counting(group: Results, numbers: Sequence[int], reuse: Reuse) -> list[int]:
    """The places of those results that count."""
    return [
        place
        for place, number in enumerate(numbers)
        if number >= 0 and place not in group.again and reuse.answers.of(number) is None
    ]


def _can_end(span: Span) -> bool:
    return span.state in lifecycle.TRANSITIONS[lifecycle.TaskEvent.TAKE_OVER]
