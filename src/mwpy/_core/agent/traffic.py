"""What passes through an agent: tasks, results, states, reports, shared objects, and what starting slaves write.

Tasks on their way to slaves, and results on their way to the master.

The agent passes groups of tasks on to its slaves at once. When a slave starts a task, it writes this into memory that
its agent can read. The agent can stop the slave from starting more tasks (see `_transport/channel`). So the agent can
take a task back from a slave that is deep in native code. The core asks for a recall (`AgentActions.recall`). The event
`Recalled` says how far the slave got. The core then reports to slave and master which tasks it took back.

A slave that runs a cancelled task is killed, and another slave replaces it. It is killed after a recall: then it cannot
have started the next task, which is not cancelled. But a slave often needs longer to start than the task to finish.
So the slave gets `SPARED_S` first. The master does not wait for this.

A group that is passed on as a whole is not encoded again: its frames are sent as they were received.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain

from attrs import Factory, define
from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._core.agent.child import (
    AgentState,
    Child,
    DropShare,
    Due,
    OpenShare,
    Outgoing,
    WriteShare,
)
from mwpy._core.agent.limits import SILENT_S, Watch
from mwpy._core.holding import TaskIds, divided, take_named
from mwpy._values import groups, messages, records
from mwpy._values.bounds import MAX_TASKS, Buffer
from mwpy._values.causes import Cause
from mwpy._values.last_words import LastWords
from mwpy._values.messages import PART_BYTES, LoadFailure, Share

# States and reports of tasks on their way to the master.
#
# A task may leave states or report in a tight loop, and each state may be large. The slave sends each of them to its
# agent, so none is lost with the slave. The agent keeps the newest state and the newest report of each slave. It sends
# one when `NEWEST_S` have passed since the last one and the master has read the last one. So a slow network cannot make
# those that wait for it grow without bound. Nobody needs those of a task that has ended, with one exception: a task
# that failed may be tried again, or replayed by the user. So when a slave ends, and when a task fails, the newest state
# is sent at once.


NEWEST_S = 1.0
"""Seconds between two states of a slave that are sent to the master, and between two reports. If its agent is killed,
at most this much work is repeated. A thousand slaves send the master at most a thousand messages of each kind a second.
The manual names this number."""


# Tasks that a slave has finished, and whose results wait behind a long task.
#
# The slave writes the results of very short tasks of a portion into its journal when their block has ended, which takes
# two milliseconds. If a task of the block runs for long, nobody would get the results before it. So if a silent slave
# stays at the same task, the agent gives the tasks before it back to the master, and they may run again elsewhere. When
# the slave sends their results after all, nobody holds the tasks any more, so the results are dropped.


AGAIN_S = 0.01
"""Seconds from the first look at a silent slave to the next one, which shows whether it is still at the same task. By
then, a result has waited for as long as it may."""


FAILED_LOADS_ALLOWED = 3
"""When this many slaves in a row cannot load an algorithm, the last one is not replaced. The manual names this number.
"""

SPARED_S = 0.1
"""Seconds that a slave gets to finish a cancelled task before it is killed: less than a fresh slave needs to start."""


@define(eq=False, repr=False)
class Traffic:
    """Tasks, results, states and reports that pass through the agent."""

    _state: AgentState
    _watch: Watch
    _shares: Shares

    def pass_on(self, child: Child, group: messages.Tasks, received: Sequence[Buffer]) -> None:
        """Pass tasks on to a slave, which is ready."""
        actions = self._state.actions
        if not child.held:
            actions.feed.append(child.number)
        before = child.passed_on
        child.hold(group)
        actions.records.append(records.TasksReceived(child.name, child.passed_on - before))
        actions.to_slaves.append((child.number, Outgoing(group, (), received)))

    def name(self, child: Child, message: messages.SlaveNamed, received: Sequence[Buffer]) -> None:
        """The master has given a slave its id."""
        child.name = message.sid
        self._state.record(records.SlaveNamed(child.number, message.sid))
        self._state.actions.to_slaves.append((child.number, Outgoing(message, (), received)))

    def revoke(self, child: Child, count: int) -> None:
        """The master wants tasks back: recall them. If the slave holds none, answer at once."""
        if child.held:
            self._state.actions.recall.append((child.number, count))
        else:
            self._state.to_master(messages.Revoked(child.number, [], [], []))

    def cancel(self, message: messages.Cancel) -> None:
        """The master wants no result of some tasks: recall them from the slaves that hold them."""
        ids = _ids_in(message)
        for child in self._state.living():
            if child.former is None and any(named for _, named in divided(child.held, ids)):
                self._state.actions.recall.append((child.number, message))

    def recalled(
        self, child: Child, started: int, wanted: int | messages.Cancel | None, now: float
    ) -> messages.Revoked | None:
        """Take back tasks that a slave has not started. Report them to the slave, and to the master if it waits. Return
        them; None if the slave is killed.

        One message names at most `MAX_TASKS` spans. If there may be more, recall them, too: a slave expects one message
        for each recall.
        """
        if wanted is None:
            if self._end_doomed(child, started):
                return None
            revoked = child.take_back(started, 0)
        elif isinstance(wanted, messages.Cancel):
            revoked = child.cancel(_ids_in(wanted), started, now + SPARED_S if wanted.kill else None)
        else:
            revoked = child.take_back(started, wanted)
        self._state.to_slave(child, revoked)
        is_asked = isinstance(wanted, int) or (wanted is not None and not wanted.kill)
        if is_asked and child.former is None:
            self._state.to_master(revoked)
        more = wanted - sum(revoked.counts) if isinstance(wanted, int) else wanted
        if more and len(revoked.tasks) == MAX_TASKS and child.has_unstarted(started):
            self._state.actions.recall.append((child.number, more))
        return revoked

    def _end_doomed(self, child: Child, started: int) -> bool:
        """Kill a slave if it still runs the task that must not finish, and return whether it does.

        A slave that is killed gets no answer to the recall, so that it starts nothing before it is dead.
        """
        doomed, child.doomed = child.doomed, None
        if doomed is None or doomed.position != started:
            return False
        child.kill(doomed.because, doomed.cause)
        child.killed_at, child.allowed = started, doomed.allowed
        self._state.actions.kill.append(child.number)
        return True

    def results(self, child: Child, group: messages.Results, received: Sequence[Buffer], now: float) -> None:
        """Pass results on, except for tasks that are not held: their results were already read in the journal."""
        if group.failed:
            self.send_newest(child, Due.STATE, now)
        kept = child.end(group)
        if not kept:
            return
        actions = self._state.actions
        count = sum(map(len, kept))
        actions.records.append(records.ResultsSent(child.name, count))
        passed, frames = group, received[1:]
        if count != sum(group.counts):
            passed, frames = groups.select(group, frames, [*chain.from_iterable(kept)])
        if child.former is not None:
            former, passed = child.former, replace(passed, shares=[])
            actions.to_master.append(Outgoing(messages.Handover(former.generation, former.sid, passed), frames))
            return
        if self._state.settings.keeps_outputs:
            self._shares.keep(passed.shares, frames[1:])
        actions.to_master.append(Outgoing(passed, (), received) if passed is group else Outgoing(passed, frames))

    def algorithm_failed(self, child: Child, message: messages.AlgorithmFailed, received: Sequence[Buffer]) -> None:
        """A slave cannot run an algorithm: it no longer holds the tasks that the message names.

        If another slave may succeed, replace it. After several failures in a row, keep the slave for other algorithms.
        """
        child.end(message)
        if message.failure is LoadFailure.PASSING and child.failed_before + 1 >= FAILED_LOADS_ALLOWED:
            self._state.to_master(replace(message, failure=LoadFailure.REPEATED))
            return
        self._state.actions.to_master.append(Outgoing(message, (), received))
        if message.failure is LoadFailure.PASSING and child.is_ready:
            child.load_failed, child.loss = True, Cause.START_UP
            self._state.stop(child, finished=False)

    # ---- states and reports ---------------------------------------------------------------------------------

    def left(
        self, child: Child, due: Due, message: messages.Checkpoint | messages.Reported, frames: Sequence[Buffer]
    ) -> None:
        """A task has left a state, or has reported: send it when it is time, and the master has read the last one."""
        newest = child.newest[due]
        newest.waiting = message, frames
        if not newest.is_unread:
            child.due(due, newest.until)

    def read(self, child: Child, due: Due) -> None:
        """The master has read a state, or a report, of a slave."""
        newest = child.newest[due]
        newest.is_unread = False
        if newest.waiting is not None:
            child.due(due, newest.until)

    def send_newest(self, child: Child, due: Due, now: float) -> None:
        """Send the newest one if there is one, and the slave holds its task."""
        newest = child.newest[due]
        waiting, newest.waiting = newest.waiting, None
        if waiting is not None and child.holds(waiting[0].task, waiting[0].attempt):
            newest.is_unread, newest.until = True, now + NEWEST_S
            self._state.actions.to_master.append(Outgoing(waiting[0], (), waiting[1]))

    # ---- late results ---------------------------------------------------------------------------------------

    def look_for_late(self, child: Child, now: float) -> None:
        """A slave is silent. If it was at the same task before, give the late tasks back; else look again."""
        stood, child.stood_at = child.stood_at == child.started, child.started
        late = child.lost(child.started)[:MAX_TASKS]
        if late and stood:
            self.send_newest(child, Due.STATE, now)
            firsts, counts, attempts = map(list, zip(*late, strict=True))
            revoked = messages.Revoked(child.number, firsts, counts, attempts, late=True)
            take_named(child.held, revoked)
            self._state.to_master(revoked)
        elif late:
            child.dues[Due.SILENCE] = now + AGAIN_S
        elif child.held and child.started < child.held[0].position:  # it waits for a shared object, and then starts
            child.dues[Due.SILENCE] = now + SILENT_S


def _ids_in(message: messages.Cancel) -> TaskIds:
    return TaskIds(zip(message.tasks, message.counts, strict=True))


# The standard error of starting slaves, of which identical failures are printed once.
#
# An agent on a machine that lacks a module starts three slaves, and each writes the same traceback. The agent holds
# back the output of a starting slave until the slave is up or ends. If it ends before it is up, and an earlier slave
# left exactly the same last words, its output is not printed. The output of the first slave and of a set-up is not held
# back: they load the script, or take long.


HELD_BACK_BYTES = 64 * 1024
"""How much of a starting slave's standard error is held back. When there is more, it is printed."""


@define(eq=False, repr=False)
class StartOutput:
    """Holds back the standard error of starting slaves."""

    _state: AgentState
    _printed: dict[tuple[str, str], None] = Factory(dict)
    """The last words (standard error, fault) of slaves that ended before they were up."""

    def wrote(self, child: Child, data: bytes) -> None:
        """A slave wrote to standard error."""
        child.unprinted += data
        if child.is_up or child.number == 1 or child.sets_up or len(child.unprinted) > HELD_BACK_BYTES:
            self._print(child)

    def is_up(self, child: Child) -> None:
        """A slave has sent a message."""
        child.is_up = True
        self._print(child)

    def ended(self, child: Child, words: LastWords, rest: bytes) -> None:
        """A slave ended: print the rest of its output, unless an earlier slave failed with the same last words."""
        child.unprinted += rest
        key = (words.stderr, words.fault)
        if key not in self._printed:
            self._print(child)
        if not child.is_up:
            self._printed[key] = None

    def _print(self, child: Child) -> None:
        if child.unprinted:
            self._state.actions.error_output.append(bytes(child.unprinted))
            child.unprinted = bytearray()


# The shared objects at the agent: it fetches them from the master, and its slaves use them.
#
# A group of tasks names the shared objects that its tasks need. The group is passed on at once, and the slave waits
# with it until the agent gives it these objects. So nothing here delays a recall. The agent asks for an object part by
# part, and only a few parts are on their way at a time. So other messages pass between them.
#
# The agent decides by itself what else it keeps: objects that tasks of its slaves need, and others up to a limit of
# bytes and of open files, those that were used last. It fetches an object again that it has dropped. The master
# answers, and says which objects are gone.


PARTS_COMING = 4
"""How many parts are on their way at a time. Together, they are the longest wait for other messages."""


class _Kept(Struct, eq=False):
    """A shared object at the agent."""

    share: Share
    """Its location is that of the master's content. When the agent has made room for it: of the agent's content."""
    has_room: bool = False
    is_here: bool = False
    reason: str = ""
    """Why it cannot be kept; empty if it can."""
    asked: int = 0
    """The parts before this byte were asked for."""
    coming: dict[int, None] = field(default_factory=dict)
    """The parts that were asked for and have not arrived."""
    needed: dict[int, int] = field(default_factory=dict)
    """The slaves that were passed tasks that need it: the position of the last one of these tasks, by slave."""
    given: dict[int, None] = field(default_factory=dict)
    """The slaves that know it."""


@define(eq=False, repr=False)
class Shares:
    """Decides which shared objects the agent fetches, gives to slaves and drops."""

    _state: AgentState
    _kept: OrderedDict[str, _Kept] = Factory(OrderedDict)
    """All of them, by digest. The first one was used least recently."""

    def passed_on(self, child: Child, group: messages.Tasks) -> None:
        """A slave was passed tasks that need shared objects."""
        for share in group.shares:
            kept = self._kept.get(share.digest)
            if kept is not None and kept.reason and not self._is_needed(kept):
                self._drop(kept)
                kept = None
            if kept is None:
                kept = self._kept[share.digest] = self._begin(share)
            self._kept.move_to_end(share.digest)
            kept.needed[child.number] = child.passed_on
            self._give(child, kept)

    def keep(self, shares: Sequence[Share], buffers: Sequence[Buffer]) -> None:
        """A slave has sent results with large buffers. Keep those that are shared with later tasks."""
        for share, buffer in zip(shares, buffers, strict=False):
            if share.size and share.digest not in self._kept:
                self._kept[share.digest] = self._begin(share, buffer)

    def _begin(self, share: Share, content: Buffer = b"") -> _Kept:
        """Ask for room for a new one, and drop others that are not needed."""
        settings = self._state.settings
        here = [each.share.size for each in self._kept.values() if not each.reason]
        excess = sum(here) + share.size - settings.max_share_bytes
        too_many = len(here) + 1 - settings.max_share_files
        for kept in [*self._kept.values()]:
            if (excess > 0 or too_many > 0) and not self._is_needed(kept):
                excess -= kept.share.size
                too_many -= 1
                self._drop(kept)
        self._ask()  # parts of the dropped ones may have been on their way
        self._state.actions.share_files.append(OpenShare(share, content))
        return _Kept(share)

    def _is_needed(self, kept: _Kept) -> bool:
        """Whether a slave holds a task that needs it."""
        for number, last in kept.needed.items():
            child = self._state.children.get(number)
            if child is not None and child.held and child.held[0].position <= last:
                return True
        return False

    def _drop(self, kept: _Kept) -> None:
        digest = kept.share.digest
        del self._kept[digest]
        self._state.actions.share_files.append(DropShare(digest))
        for child in self._state.living():
            if child.number in kept.given:
                self._state.to_slave(child, messages.ShareForgotten(digest))

    def begin_again(self) -> None:
        """Another generation of the master begins. Slaves keep what their running tasks use."""
        for digest in self._kept:
            self._state.actions.share_files.append(DropShare(digest))
        self._kept.clear()

    def slave_ended(self, child: Child) -> None:
        """A slave has ended: it needs and knows nothing more."""
        for kept in self._kept.values():
            kept.needed.pop(child.number, None)
            kept.given.pop(child.number, None)

    def opened(self, share: Share, is_complete: bool) -> None:
        """There is room for one, at the location of `share`. Fetch its content, unless it is complete."""
        kept = self._kept.get(share.digest)
        if kept is None:  # it was dropped meanwhile
            return
        kept.share, kept.has_room, kept.is_here = share, True, is_complete
        if is_complete:
            self._give_to_all(kept)
        else:
            self._ask()

    def not_kept(self, digest: str, reason: str) -> None:
        """One cannot be kept. The tasks that need it fail."""
        kept = self._kept.get(digest)
        if kept is not None and not kept.reason:
            kept.reason = reason
            kept.coming.clear()
            self._give_to_all(kept)
            self._ask()

    def part(self, message: messages.SharePart, part: Buffer) -> None:
        """A part has arrived. Ignore it if it was not asked for: the object was dropped meanwhile."""
        kept = self._kept.get(message.digest)
        if kept is None or message.start not in kept.coming:
            return
        del kept.coming[message.start]
        self._state.actions.share_files.append(WriteShare(message.digest, message.start, part))
        if kept.asked >= kept.share.size and not kept.coming:
            kept.is_here = True
            self._give_to_all(kept)
        self._ask()

    def gone(self, digest: str) -> None:
        """The master sends no part of one, because its tasks have ended. If it is here, it is given up."""
        kept = self._kept.get(digest)
        if kept is None:
            return
        if not (kept.is_here and self._is_needed(kept)):
            self._drop(kept)
            self._ask()

    def _ask(self) -> None:
        """Ask for the next parts."""
        room = PARTS_COMING - sum(len(kept.coming) for kept in self._kept.values())
        for kept in self._kept.values():
            if not kept.has_room or kept.is_here or kept.reason:
                continue
            while room > 0 and kept.asked < kept.share.size:
                self._state.to_master(messages.ShareWanted(kept.share.digest, kept.asked))
                kept.coming[kept.asked] = None
                kept.asked += PART_BYTES
                room -= 1

    def _give_to_all(self, kept: _Kept) -> None:
        for child in self._state.living():
            if child.number in kept.needed:
                self._give(child, kept)

    def _give(self, child: Child, kept: _Kept) -> None:
        """Give one to a slave that does not know it, if it is here, or if it never will be."""
        if (kept.is_here or kept.reason) and child.number not in kept.given:
            kept.given[child.number] = None
            self._state.to_slave(child, messages.ShareGiven(kept.share, kept.reason))
