"""Repeats a part of the tasks on another host and compares the results, to find hosts that compute wrongly.

The user says how many percent of the tasks are repeated (`--mw-verify`). A number that is calculated from the task id
chooses them, so a run chooses the same tasks each time. Tasks that are addressed to a slave, must not run twice, or
must run alone are not repeated, and neither are those of which several attempts live. The slave sends the result of a
chosen task with a structural digest (see `_values/sameness/structure.py`), and the master never unpickles.

The first answer of a chosen task is kept, and the task is sent to a slave on another host. If both answers are the
same, the algorithm gets the first one. If they differ, a third host decides. A host that was outvoted before does not
count against others. Without a majority, the algorithm gets the first answer, and a notice names all hosts.

From the moment in which a host is outvoted, each of its answers is compared. Answers without a digest, which it
computed before, do not count: these tasks run again. The algorithm already has the other results that only this host
computed. They are counted in a notice, and a record names their ids (`doubts.py`). When the algorithm asks, they are
computed again (`corrections.py`).

A verification never holds an answer forever. The algorithm gets the answer at once when no slave on another host can
run the task, when the repetitions of the task are lost as often as its policy allows, when the task is cancelled but
may finish, and when the time of the master is nearly over. What is lost is only the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mwpy._core.holding import TaskIds
from mwpy._core.master.answered import Answer
from mwpy._core.master.hosts import Hosts
from mwpy._core.master.kept_answers import KeptAnswers
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import groups, messages, records
from mwpy._values.digested import mark_of
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import DIGESTED, MALFORMED, Pickled
from mwpy._values.plain_enum import PlainEnum
from mwpy._values.records import TaskRange
from mwpy._values.task import SlaveKind, SlaveState, TaskState

__all__ = ["ANSWERS_MAX", "OUTVOTED_ALLOWED", "Verification"]

ANSWERS_MAX = 3
"""How many hosts compute a task at most."""

OUTVOTED_ALLOWED = 3
"""A host gets no more work when it was outvoted so often. The manual names this number."""

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the multiples of it, modulo 2^64, are spread evenly."""

_REPEATING, _CANCELLING = TaskState.REPEATING, TaskState.CANCELLING
_SERVING = (SlaveState.IDLE, SlaveState.BUSY)


class Verification:
    """Decides which tasks are repeated, and which answer the algorithm gets."""

    def __init__(self, state: MasterState, hosts: Hosts, kept: KeptAnswers) -> None:
        self.state = state
        self.hosts = hosts
        self.kept = kept
        self.doubts = kept.doubts
        self.outvoted = self.doubts.outvoted
        """The hosts that computed wrong results, and how many."""
        self.is_on = state.settings.verify > 0.0
        """Whether any task is repeated."""
        self._ended = False
        """Whether nothing is verified any more, because the time of the master is nearly over."""
        self._accused: dict[str, str] = {}
        """Hosts that should get no more work, and for each a task that it computed wrongly."""
        self._new: dict[int, None] = {}
        """The tasks with an answer that was not compared yet."""

    # ---- which tasks -----------------------------------------------------------------------------------------

    def chosen(self, slave: ConnectedSlave, spans: Iterable[Span]) -> list[int]:
        """Return the positions of those tasks whose results need a digest if this slave computes them."""
        positions: list[int] = []
        start = 0
        for span in spans:
            if span.state is _REPEATING or _may_repeat(span):
                each = span.state is _REPEATING or slave.agent.host in self.outvoted
                positions += [start + place for place, number in enumerate(span.ids) if each or self.is_chosen(number)]
            start += span.count
        return positions

    def is_chosen(self, number: int) -> bool:
        """Whether the task with this id is repeated."""
        return number * GOLDEN % (1 << 64) < self.state.settings.verify / 100.0 * (1 << 64)

    def can_repeat(self, span: Span, hosts: Sequence[str]) -> bool:
        """Whether there is a slave on another host that can run a task."""
        return any(self._is_able(slave, span, hosts) for slave in self.state.members.slaves.values())

    def _is_able(self, slave: ConnectedSlave, span: Span, hosts: Sequence[str]) -> bool:
        """Whether a slave can run a task, and is not on one of these hosts."""
        return (
            slave.state in _SERVING
            and slave.agent.host not in hosts
            and span.algorithm.number not in slave.refused
            and slave.kind_to_be is not SlaveKind.ORDERED
            and not slave.agent.leaving
            and slave.agent.has_time(span, self.state.now)
        )

    def places(self) -> Iterator[tuple[ConnectedSlave, dict[int, Span]]]:
        """Yield slaves to which tasks can be sent that wait for a repetition, with these tasks.

        The caller sends some of them, or finds that the slave is full.
        """
        waiting, members = self.state.jar.answered.waiting, self.state.members
        for slave in [*members.idle.values(), *members.hungry.values()]:
            for place in list(waiting):
                if slave.has_room and place in waiting:
                    first = next(iter(waiting[place].values()))
                    if self._is_able(slave, first, place[-1]):
                        yield slave, waiting[place]

    # ---- what arrives ----------------------------------------------------------------------------------------

    def keep(
        self, slave: ConnectedSlave, group: messages.Results, frames: Sequence[Buffer], values: Sequence[object]
    ) -> tuple[messages.Results, Sequence[Buffer], dict[int, list[float]]]:
        """Keep those answers of a group that are compared.

        Returns:
            The group of all other results, its frames, and the compute times of the kept ones by algorithm, in seconds.

        Raises:
            ProtocolError: a digest cannot be read; the agent's fault.
        """
        places = {number: place for place, (number, _) in enumerate(groups.each_task(group))}
        ids = TaskIds((number, 1) for number in places)
        kept: list[int] = []
        again: list[TaskRange] = []
        transient = {*group.again}
        for span in slave.held.spans:
            if span.state is _REPEATING or _may_repeat(span):
                for number in [first + at for first, count in ids.among(span) for at in range(count)]:
                    place = places[number]
                    what = self._what_to_do(slave, span, number, values[place], again=place in transient)
                    if what is _Do.KEEP:
                        kept.append(place)
                    elif what is _Do.RUN_AGAIN:
                        again.append(span.part(number, 1, span.attempt))
        if not (kept or again):
            return group, frames, {}
        seconds_of = self._keep(slave, *groups.select(group, frames, sorted(kept))) if kept else {}
        if again:
            reason = f"{slave.agent.host} computed other results wrongly, and this one cannot be compared"
            self.state.record(records.TasksReturned(slave.sid, again, reason))
        gone = {*kept, *(places[each.first] for each in again)}
        rest = [place for place in range(len(places)) if place not in gone]
        return *groups.select(group, frames, rest), seconds_of

    def _what_to_do(self, slave: ConnectedSlave, span: Span, number: int, entry: object, *, again: bool) -> _Do:
        try:
            mark, why_not = mark_of(entry, again=again)
        except MALFORMED as error:
            raise ProtocolError(f"Results: the digest of task {number} cannot be read: {error}") from error
        if span.state is _REPEATING:
            return _Do.KEEP
        host = slave.agent.host
        if number in self.state.jar.allocated.several:  # its other attempt is killed, by the id of the task
            return _Do.GIVE
        if self._ended or not (host in self.outvoted or self.is_chosen(number)):
            return _Do.GIVE
        if not self.can_repeat(span, (host,)):
            self._say_alone(span, host)
        elif mark:
            return _Do.KEEP
        elif host in self.outvoted and not again and (type(entry) is not Pickled or entry.kind != DIGESTED):
            return _Do.RUN_AGAIN
        else:
            self._say_not_comparable(span, why_not)
        return _Do.GIVE

    def _keep(self, slave: ConnectedSlave, group: messages.Results, frames: Sequence[Buffer]) -> dict[int, list[float]]:
        seconds_of: dict[int, list[float]] = {}
        for span in self.state.record(records.AnswersKept(slave.sid, slave.agent.host, group, frames)):
            self._new[span.first] = None
            answer = self.state.jar.answered.answers[span.first][-1]
            self.hosts.ended(span, answer.host, 1, int(answer.failed), answer.mark)
            seconds_of.setdefault(span.algorithm.number, []).append(answer.seconds)
        return seconds_of

    # ---- deciding --------------------------------------------------------------------------------------------

    def decide(self, now: float, *, out_of_time: bool) -> None:
        """Compare the new answers, and give out those that nobody else will confirm.

        Args:
            now: the time on the core's clock, in seconds.
            out_of_time: whether the master ends soon, so that nothing is repeated any more.
        """
        answered = self.state.jar.answered
        new, self._new = self._new, {}
        confirmed: dict[tuple[str, ...], list[TaskRange]] = {}
        for number in new:
            if number in answered.tasks:  # else it was cancelled
                span, answers = answered.tasks[number], answered.answers[number]
                right = self._compare(span, answers)
                if right:
                    confirmed.setdefault(_hosts(right), []).append(span.part(number, 1, right[0].attempt))
        for hosts, tasks in confirmed.items():
            verdict = f"{' and '.join(hosts)} computed the same"
            if len(hosts) == 1:
                verdict = f"{hosts[0]} computed it; hosts that computed other results wrongly disagree"
                self.doubts.given(hosts[0], [answered.tasks[each.first] for each in tasks])
            self.kept.give(tasks, verdict, is_sure=len(hosts) > 1)
        for host, example in self._accused.items():
            text = f"{self.outvoted[host]} of its results were different on two other hosts"
            self.hosts.exclude(host, text, example, now, key=f"outvoted {host}")
        self._accused.clear()
        if out_of_time:
            self._ended = True
            self.kept.release(answered.tasks.values(), "the time of the master is nearly over")
        for place, queue in list(answered.waiting.items()):
            first, hosts = next(iter(queue.values())), place[-1]
            if not self.can_repeat(first, hosts):
                self._say_alone(first, " and ".join(hosts))
                self.kept.release(queue.values(), f"no slave on another host than {' and '.join(hosts)} can run it")

    def _compare(self, span: Span, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Return the answers that are right; none if this is not known. Then the task is repeated, or given out."""
        if len(answers) == 1:
            return ()
        bad = next((answer for answer in answers if not answer.mark), None)
        if bad is not None:
            self._say_not_comparable(span, bad.why_not)
            self.kept.release([span], f"its result cannot be compared: {bad.why_not}")
            return ()
        groups: dict[str, list[Answer]] = {}
        for answer in answers:
            groups.setdefault(answer.mark, []).append(answer)
        if len(groups) == 1:
            return answers
        right = self._majority([*groups.values()])
        hosts = [[answer.host for answer in group] for group in groups.values()]
        if right is not None:
            wrong = [answer.host for answer in answers if answer.mark != right[0].mark]
            self.state.record(records.AnswersDiffer(span.part(span.first, 1, span.attempt), hosts, wrong))
            for host in wrong:
                self._outvote(host, span, right)
            return right
        if len(answers) == ANSWERS_MAX or not self.can_repeat(span, _hosts(answers)):
            self._give_up(span, hosts)
        return ()

    def _majority(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Answer] | None:
        """Return the answers of most hosts. If as many agree on others, hosts that were outvoted before count less."""
        for votes in (len, self._num_trusted):
            most = max(map(votes, groups))
            best = [group for group in groups if votes(group) == most]
            if len(best) == 1:
                return best[0]
        return None

    def _num_trusted(self, group: Sequence[Answer]) -> int:
        return sum(answer.host not in self.outvoted for answer in group)

    def _outvote(self, host: str, span: Span, right: Sequence[Answer]) -> None:
        """A host computed a wrong result."""
        self.outvoted[host] = self.outvoted.get(host, 0) + 1
        if self.outvoted[host] >= OUTVOTED_ALLOWED:
            self._accused[host] = str(span)
        doubted = self.doubts.doubt(host)
        agreed = " and ".join(answer.host for answer in right)
        self.state.notice(
            f"host {host} computed another result of {span} than {agreed}, so this result of {host} is not used. From "
            f"now on, each task that {host} runs is repeated on another host.{doubted} Compare this machine with the "
            f"others: packages, processor, memory. Does the task use time, random numbers without a seed, or the order "
            f"of a set?",
            key="" if doubted else f"outvoted {host}",
        )

    def _give_up(self, span: Span, hosts: Sequence[Sequence[str]]) -> None:
        """Give out the first answer: the hosts differ, and no majority is possible."""
        self.state.record(records.AnswersDiffer(span.part(span.first, 1, span.attempt), hosts, []))
        named = " and ".join(host for group in hosts for host in group)
        self.state.notice(
            f"{named} computed different results of {span}, and it is not known which is right. The algorithm gets the "
            f"result of {hosts[0][0]}. Does the task use time, random numbers without a seed, or the order of a set? "
            f"Otherwise compare these machines, and start slaves on more hosts, so that a majority decides",
            key=f"undecided {named} {span.algorithm.name}",
        )
        self.kept.release([span], f"{named} computed different results")

    def _say_alone(self, span: Span, host: str) -> None:
        self.state.notice(
            f"results of {span.algorithm.name} are not verified: no slave on another host than {host} can run it now. "
            f"Start slaves on other hosts",
            key="alone",
        )

    def _say_not_comparable(self, span: Span, why_not: str) -> None:
        self.state.notice(
            f"results of {span.algorithm.name} cannot be verified: {why_not}. Return values that consist of data",
            key=f"not comparable {span.algorithm.name}",
        )

    def drop(self, slave: ConnectedSlave, held: Sequence[Span], why_not: Callable[[Span], str]) -> list[Span]:
        """Decide about tasks that a lost slave may have started: give out the answers to those that cannot be repeated
        once more. Return all others."""
        others: list[Span] = []
        for span in held:
            why = why_not(span) if span.state is _REPEATING else ""
            if why:
                self.kept.release([span], f"its repetition on {slave.agent.host} was lost: {why}")
            else:
                others.append(span)
        return others

    def check(self) -> None:
        """Assert that nothing is kept if nothing is verified."""
        answered = self.state.jar.answered
        assert self.is_on or not answered.tasks, "an answer is kept, but nothing is verified"
        assert all(len(each) <= ANSWERS_MAX for each in answered.answers.values()), "a task was repeated too often"
        self.doubts.check()


class _Do(PlainEnum):
    """What happens to a result that arrived."""

    GIVE = "give it to the algorithm"
    KEEP = "keep it until it is compared"
    RUN_AGAIN = "run the task again"


def _hosts(answers: Iterable[Answer]) -> tuple[str, ...]:
    return tuple(answer.host for answer in answers)


def _may_repeat(span: Span) -> bool:
    """Whether the tasks of a span may run on several hosts."""
    policy = span.policy
    return policy.retry and policy.sid is None and span.state is not _CANCELLING and not span.runs_alone
