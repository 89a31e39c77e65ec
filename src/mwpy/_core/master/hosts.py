"""Excludes a host whose tasks fail or die there, although tasks of the same algorithm succeed elsewhere.

Theory of operation. An attempt is bad if its task raised an exception, or if its slave was lost by the task's fault (a
crash, too much memory, too much time). A slave that dies in its start is bad, too. Evictions and all other losses
without a fault count as nothing, and so do tasks that are addressed to a slave, because the master algorithm chose
their host. Attempts are counted per group of results, never per task.

The first bad attempt of an algorithm on a host begins a `_Suspicion`, which is a sequential test (CUSUM, E. S. Page,
1954): its score rises by 1 with each bad attempt, and falls by `GOOD_WEIGHT` = 3 with each good one. At 0 the suspicion
ends, and all of it is forgotten; at `NEEDED` = 10 the host is judged. So it does not matter how many tasks succeeded
there before it broke. A host where a tenth of all tasks fails by chance comes from 1 to 10 in less than one of 10^8
suspicions. If half of them fail, this happens in one of 300, and then the other hosts decide.

Hosts are compared only within the same tasks: another host is a witness for those tasks whose ids lie between the first
and the last bad task of the suspicion. This protects a host that happens to get a block of bad tasks, which fail at
once, so that it also gets the next ones: no task between them succeeded elsewhere. A witness is good if its part of bad
attempts is at most a fifth (`FAR_LOWER`) of that on the suspected host. The host is excluded if the good witnesses have
ended at least `WITNESSED` = 10 attempts, and if there are more good witnesses than others. If 10 of 20 tasks fail,
wherever they run, these 10 are the ones on the suspected host in one of 185,000 cases. If the algorithm fails
everywhere, no witness is good.

At most half of all hosts are excluded, and a host is not excluded if no other one can run a waiting algorithm. After
`EXCLUDED_S`, an excluded host may come back, because it may be repaired. The next exclusion lasts twice as long.

A host is excluded by the name that it gives itself, and a batch system may have another name for it. So the resource
file names the last jobs on this host, and the overseer takes the name from these jobs. A job that lands there anyway is
refused with exit code 3: with 0 it would leave the queue, and a bad host would consume all jobs.

The names of hosts and jobs come from members, and a member can lie: who has the key can claim the name of another host
and fail there. It cannot exclude more than half of the hosts, and all tables have a limited size.

What would change the choice: with tasks of hours, ten attempts elsewhere take hours, and the host fails many tasks
meanwhile. To send it no tasks on suspicion would cost its capacity whenever tasks fail by chance.
"""

from __future__ import annotations

from collections import deque

from attrs import Factory, define

from mwpy._core.master.admission import Admission
from mwpy._core.master.members import AgentState, ConnectedAgent
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterState
from mwpy._values import messages, records
from mwpy._values.causes import Cause
from mwpy._values.phrases import counted
from mwpy._values.task import SlaveKind

NEEDED = 10
"""The score at which a host is judged: so many bad attempts in a row, or more with good ones between them. The manual
names this number."""

GOOD_WEIGHT = 3
"""One good attempt counts as much as this many bad ones, so a host is suspected only if three quarters are bad."""

MOST = 2 * NEEDED
"""The highest score. So seven good attempts in a row end a suspicion, however many were bad before."""

WITNESSED = 10
"""How many attempts must have ended on good witnesses."""

FAR_LOWER = 0.2
"""The part of bad attempts on a good witness is at most this fraction of that on the suspected host."""

EXCLUDED_S = 3600.0
"""Seconds until an excluded host may come back; twice as long after each further exclusion. The manual names this."""

DOUBLINGS_MAX = 10
"""An exclusion doubles at most this often: then it lasts for 42 days."""

ALGORITHMS_KEPT = 100
"""How many algorithms may have suspicions at a time. When there are more, the oldest is forgotten."""

HOSTS_KEPT = 100
"""How many hosts are suspected at a time because of one algorithm, are witnesses against one host, or are named in the
resource file. If an algorithm fails on more hosts than this, the hosts are not the cause."""

FADES_AT = 100
"""When a witness has ended this many attempts, they count half: what is long ago matters less."""

BEYOND_KEPT = 100
"""How many groups of results of other hosts wait until it is known whether their tasks are between the bad ones."""

JOBS_KEPT = 10
"""How many jobs of an excluded host are named in the resource file."""

STARTS = "(start of a slave)"
"""Stands for the name of an algorithm: the starts of slaves."""


@define(eq=False, repr=False)
class _Witness:
    """What ended on another host."""

    ended: int = 0
    bad: int = 0

    def count(self, ended: int, bad: int) -> None:
        self.ended += ended
        self.bad += bad
        while self.ended > FADES_AT:
            self.ended, self.bad = self.ended // 2, self.bad // 2


@define(eq=False, repr=False)
class _Suspicion:
    """What ended since the first bad attempt of an algorithm on a host."""

    first: int
    last: int
    """The bad tasks have ids from `first` to `last`."""
    example: str
    """How the first of them failed."""
    score: int = 0
    ended: int = 0
    bad: int = 0
    witnesses: dict[str, _Witness] = Factory(dict)
    """The other hosts on which tasks with such ids ended."""
    _beyond: deque[tuple[int, str, int, int]] = Factory(lambda: deque(maxlen=BEYOND_KEPT))
    """What ended on other hosts with higher ids: id, host, how many attempts, how many bad ones."""

    def count(self, last: int, ended: int, bad: int) -> None:
        self.ended += ended
        self.bad += bad
        self.score = min(MOST, self.score + bad - GOOD_WEIGHT * (ended - bad))
        if bad and last > self.last:
            self.last = last
            for _ in range(len(self._beyond)):
                self.hear(*self._beyond.popleft())

    def hear(self, number: int, host: str, ended: int, bad: int) -> None:
        """Count attempts of tasks from an id on, which ended on another host."""
        if number > self.last:
            self._beyond.append((number, host, ended, bad))
        elif number >= self.first and (host in self.witnesses or len(self.witnesses) < HOSTS_KEPT):
            self.witnesses.setdefault(host, _Witness()).count(ended, bad)

    @property
    def good(self) -> list[_Witness]:
        """The witnesses that say that the tasks are not to blame."""
        limit = FAR_LOWER * self.bad / self.ended
        return [each for each in self.witnesses.values() if each.bad <= limit * each.ended]


@define(eq=False, repr=False)
class Hosts:
    """Decides which hosts get no more work."""

    state: MasterState
    admission: Admission
    deadline: float | None = None
    """When the next excluded host may come back, on the core's clock; None if no host is excluded."""
    suspicions: dict[str, dict[str, _Suspicion]] = Factory(dict)
    """By the name of the algorithm, and by the suspected host. No algorithm is without suspicions."""
    ripe: dict[tuple[str, str], None] = Factory(dict)
    """The algorithms and hosts that should be judged."""
    _until: dict[str, float] = Factory(dict)
    """The excluded hosts, and when they may come back."""
    _times: dict[str, int] = Factory(dict)
    """How often hosts were excluded."""
    _jobs: dict[str, dict[str, None]] = Factory(dict)
    """The last jobs on the excluded hosts."""
    _starts: int = 0
    """How many slaves have started or died in their start; this stands for their ids."""

    # ---- counting --------------------------------------------------------------------------------------------

    def ended(self, span: Span, host: str, ended: int, bad: int, example: str = "") -> None:
        """Count attempts of tasks in a span that have ended on a host.

        Args:
            ended: how many attempts.
            bad: how many of them were bad.
            example: how one of them was bad.
        """
        if span.policy.sid is None and (bad or span.algorithm.name in self.suspicions):
            self._count(span.algorithm.name, host, span.ids, ended, bad, example)

    def started(self, host: str, *, failure: str = "") -> None:
        """Count a slave that is ready, or that died in its start.

        Args:
            failure: why it died; empty if it is ready.
        """
        self._starts += 1
        if failure or STARTS in self.suspicions:
            self._count(STARTS, host, range(self._starts, self._starts + 1), 1, int(bool(failure)), failure)

    def _count(self, name: str, host: str, ids: range, ended: int, bad: int, example: str) -> None:
        suspicions = self.suspicions.get(name, {})
        for suspect, suspicion in suspicions.items():
            if suspect != host:
                suspicion.hear(ids[0], host, ended, bad)
        own = suspicions.get(host)
        if own is None:
            if not bad or host in self._until:
                return
            own = self._suspect(name, host, _Suspicion(ids[0], ids[-1], example))
        own.count(ids[-1], ended, bad)
        if own.score <= 0:
            self._acquit(name, host)
        elif own.score >= NEEDED:
            self.ripe[name, host] = None

    def _suspect(self, name: str, host: str, suspicion: _Suspicion) -> _Suspicion:
        suspicions = self.suspicions.setdefault(name, {})
        suspicions[host] = suspicion
        if len(suspicions) > HOSTS_KEPT:
            del suspicions[next(iter(suspicions))]
        if len(self.suspicions) > ALGORITHMS_KEPT:
            del self.suspicions[next(iter(self.suspicions))]
        return suspicion

    def _acquit(self, name: str, host: str) -> None:
        del self.suspicions[name][host]
        if not self.suspicions[name]:
            del self.suspicions[name]

    def note_job(self, host: str, job: str) -> None:
        """Record that an agent of a job runs on a host. If the host is excluded, the resource file names the job."""
        if job and host in self._jobs:
            jobs = self._jobs[host]
            jobs[job] = None
            if len(jobs) > JOBS_KEPT:
                del jobs[next(iter(jobs))]

    @property
    def named(self) -> dict[str, list[str]]:
        """The excluded hosts, and their last jobs, for the resource file."""
        return {host: list(jobs) for host, jobs in self._jobs.items()}

    @property
    def num_useless(self) -> int:
        """How many unordered slaves without a task there are on the excluded hosts."""
        if not self._until:
            return 0
        return sum(
            slave.kind_to_be is SlaveKind.UNORDERED and not slave.held.spans and slave.agent.host in self._until
            for slave in self.state.members.slaves.values()
        )

    def came_back(self, agent: ConnectedAgent) -> None:
        """If the host of a connected agent is excluded, the agent leaves when its running tasks have ended."""
        reason = self.state.members.excluded.get(agent.host)
        if reason is not None and agent.state is AgentState.CONNECTED:
            self.note_job(agent.host, agent.job)
            self.admission.retire(agent, reason, Cause.SCALED_DOWN)
            self.state.send(agent, messages.Refused(reason, finish=True))

    # ---- deciding --------------------------------------------------------------------------------------------

    def decide(self, now: float) -> None:
        """Exclude hosts, and let others come back."""
        for host in [host for host, until in self._until.items() if now >= until]:
            del self._until[host], self._jobs[host]
            self.state.record(records.HostReadmitted(host))
        ripe, self.ripe = self.ripe, {}
        for name, host in ripe:
            suspicion = self.suspicions.get(name, {}).get(host)
            if suspicion is not None and suspicion.score >= NEEDED:
                self._judge(name, host, suspicion, now)
        self.deadline = min(self._until.values(), default=None)

    def _judge(self, name: str, host: str, suspicion: _Suspicion, now: float) -> None:
        good = suspicion.good
        ended, bad = sum(each.ended for each in good), sum(each.bad for each in good)
        if 2 * len(good) <= len(suspicion.witnesses) or ended < WITNESSED:
            return
        what = "starts of slaves" if name == STARTS else f"attempts of {name}"
        text = (
            f"{suspicion.bad} of {suspicion.ended} {what} failed there, and {bad} of {ended} on "
            f"{counted(len(good), 'other host')}"
        )
        if why_not := self._why_not(host):
            text = f"host {host}: {text}. It still gets work, because {why_not}. For example: {suspicion.example}"
            self.state.notice(text, key=f"not excluded {host} {name}")
        else:
            self.exclude(host, text, suspicion.example, now)

    def _why_not(self, host: str) -> str:
        """Why a host must not be excluded; empty if it may be."""
        agents = [agent for agent in self.state.members.agents.values() if not agent.leaving]
        serving = {agent.host for agent in agents}
        others = serving - {host} - self._until.keys()
        if 2 * (len(self._until) + 1) > len(serving | self._until.keys() | {host}) or len(self._until) >= HOSTS_KEPT:
            return "too many would be excluded: something else seems to be wrong"
        left = [agent for agent in agents if agent.host in others]
        for number, _ in self.state.jar.pending.unaddressed():
            if all(number in agent.refused for agent in left):
                return f"no other host can run {self.state.jar.algorithms.defined[number].name}"
        return ""

    def exclude(self, host: str, text: str, example: str, now: float) -> None:
        """Send a host no more work, for this reason, of which an example says more."""
        times = self._times.pop(host, 0)
        self._times[host] = min(times + 1, DOUBLINGS_MAX)
        if len(self._times) > HOSTS_KEPT:
            del self._times[next(iter(self._times))]
        seconds = EXCLUDED_S * 2.0**times
        self._until[host], self._jobs[host] = now + seconds, {}
        for name in [name for name, suspicions in self.suspicions.items() if host in suspicions]:
            self._acquit(name, host)
        reason = f"host {host} gets no more work for {seconds / 3600:g} h: {text}"
        self.state.record(records.HostExcluded(host, reason))
        for agent in self.state.members.agents.values():
            self.came_back(agent)
        self.state.notice(
            f"{reason}. For example: {example}. Its tasks run elsewhere. Compare this machine with the others: files, "
            f"free disk space and memory, packages, environment variables. A new master uses it again at once"
        )
