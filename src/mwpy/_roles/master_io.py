"""The I/O thread of a master: it does what the core decides, and reports to the core what happens.

The thread owns the core, the link, the audit file and the resource file. It shares three things with the algorithm's
thread: deques that one thread fills and the other empties, a queue of outcomes, and figures that are published as a
whole. So the I/O thread needs no lock. Only the threads that submit tasks have one, because any thread may use an
executor.

`MasterIo` touches the outside only through the edges that it is given, so the simulator runs the same loop over fakes.
"""

from __future__ import annotations

import itertools
import platform
import reprlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from attrs import Factory, define

from mwpy._core.master.algorithms import FailedCalls
from mwpy._core.master.core import MasterCore
from mwpy._core.master.members import num_present
from mwpy._core.master.state import (
    Actions,
    CancelTasks,
    Command,
    Confirmed,
    HoldResults,
    MasterSettings,
    Received,
    ReleaseResults,
    ResultRead,
    Returned,
    Send,
    ShutDown,
    Stored,
    Waiting,
)
from mwpy._core.master.submissions import Submissions
from mwpy._core.pauses import Pause, between_messages
from mwpy._roles.edges import MasterConnections
from mwpy._roles.local_agents import LocalAgent
from mwpy._roles.sessions import Said, Sessions
from mwpy._roles.users import OpenMap, Users
from mwpy._system import clock, process
from mwpy._system.clock import Clock
from mwpy._transport import shared_objects, wire
from mwpy._transport.codec import plain_arguments
from mwpy._values import messages, records
from mwpy._values.algorithm import REGISTRY
from mwpy._values.connections import Frames, Garbage, Happened, Stranger, TurnedAway, Vanished
from mwpy._values.earlier import Given
from mwpy._values.errors import CannotRun, MasterUnreachable, MwpyError, ProtocolError, RunDatabaseError, UsageError
from mwpy._values.messagepack import as_read, encode
from mwpy._values.options import Options
from mwpy._values.phrases import duration
from mwpy._values.records import Notice
from mwpy._values.task import StoredAt
from mwpy.audit import AuditFile

if TYPE_CHECKING:
    from mwpy._database.store import Writer
    from mwpy._roles.network import ResourceKeeper
    from mwpy.resource_file import ResourceFile

TICK_S = 1.0
"""Seconds between two checks of the resource file and the local agents when nothing else happens."""

END_TICK_S = 0.02
"""The same during shutdown. It is short, because the exit of a local agent raises no event."""

ANSWER_S = 10.0
"""How long a thread of this process waits for an overview. Without slaves, nobody answers while a task runs."""

FAREWELL_S = 2.5
"""Seconds beyond the grace period for the agents' goodbyes."""

LINGER_S = 0.5
"""Seconds for sending the last messages."""


def _read(number: int, stored: StoredAt) -> ResultRead:
    """Read the value of a task from the run database. The tasks that wait for a damaged one fail."""
    try:
        entry, buffers = stored.load()
    except MwpyError as error:
        return ResultRead(number, cause=f"the result of task {number} cannot be read: {error}", root=number)
    return ResultRead(number, [encode(as_read(entry)), *buffers])


def _hand_over(
    outcomes: Sequence[tuple[SimpleQueue[Actions | BaseException], Actions]],
    sends: CommittedSends,
    held: int,
    said: Said,
) -> None:
    for queue, actions in outcomes:
        queue.put(actions)
    if held or said:
        sends.tell(held, said)


class MasterIo:
    """The loop of the I/O thread.

    Args:
        core: the core, which decides.
        link: the connections to agents.
        audit: the audit file.
        clock: the time.
        start: the function that starts a process.
        store: where records are stored for a restart; None for nowhere.
    """

    def __init__(
        self,
        core: MasterCore,
        link: MasterConnections,
        audit: AuditFile,
        clock: Clock,
        start: Callable[..., process.Child],
        store: Writer | None = None,
    ) -> None:
        self.core = core
        self.link = link
        self._sessions = Sessions(link, core.state.settings.client_timeout_s)
        members = core.state.members
        self.local = LocalAgent(
            start, clock, lambda text: self._notice([text]), lambda: members.slaves_seen, members.has_process
        )
        """The agent on this machine."""
        self._store = store
        self._store_watch = None if store is None else StoreWatch(store, lambda text: self._notice([text]))
        if store is not None and self._store_watch is not None:
            store.on_wait = self._store_watch.look
        self.committed = CommittedSends(link.wake)
        """What follows when records are stored."""
        self.submissions = Submissions(core.state.jar, keyed=store is not None)
        """The algorithm's thread adds to them, and wakes the link if it is asleep."""
        self.before_tasks: list[object] = REGISTRY.before_tasks() if store is not None else []
        """What runs before tasks. A cell of a notebook may declare another set-up, which is for later masters."""
        self.submitting = threading.RLock()
        """Held to submit tasks. The garbage collection may submit while the same thread holds it."""
        self.algorithm_numbers: Iterator[int] = itertools.count()
        """Gives each task algorithm its number."""
        self.users = Users()
        """The threads that use the master."""
        self.local_slaves = 0
        """How many slaves are started on this machine."""
        self.commands: deque[Command] = deque()
        self._questions: deque[tuple[SimpleQueue[Any], Callable[[], Any]]] = deque()
        """What other threads ask this one to answer, and where they wait."""
        self.expected: int | None = None
        """How many tasks there will be in all, as the user says; else None."""
        self.maps: WeakSet[OpenMap] = WeakSet()
        """The maps, also those of executors. `open_maps` has those that are not closed."""
        self.unread_maps = 0
        """How many maps were closed before somebody asked for a value."""
        self.handled_log_bytes = 0
        """About how many bytes of records of `logging` were handled. It is changed while `submitting` is held."""
        self.holds_back = False
        """Whether the core holds tasks back until the algorithm fetches results. Wake the link when it does."""
        self._handed_bytes = 0
        """About how many bytes of results were handed over to it."""
        self.store_failure: RunDatabaseError | None = None
        """Why nothing can be stored any more."""
        self.page: Any = None
        """The page that shows this master; None if there is none."""
        self.failed_calls = FailedCalls()
        """The calls that failed lately, for `mwpy.replay`."""
        core.answers.maps = lambda: [tasks.status for tasks in self.open_maps()]
        core.answers.unsubmitted = self.unsubmitted
        core.answers.arguments = self._arguments_of
        self.resource: ResourceKeeper | None = None
        """The resource file; None if there is none."""
        self._audit = audit
        self._clock = clock
        self._tick_at = 0.0
        self._turned_at = inf
        """When the last turn began; infinity before the first one."""
        self._end_by: float | None = None
        self.thread = threading.Thread(target=self._run, name="mwpy-io", daemon=True)

    @property
    def num_slaves(self) -> int:
        """How many slaves are connected. Any thread may ask."""
        return num_present(self.core.state.members)

    def _run(self) -> None:
        try:
            while not self.iterate():
                pass
        except BaseException as error:
            self.users.fail(error)
        finally:
            self._clean_up()

    def iterate(self) -> bool:
        """Wait for something to happen, report it to the core, and do what the core decides.

        Returns:
            Whether the loop must end.
        """
        before = self._clock.monotonic()
        timeout_s = min(self.prepare_to_wait(before), self._sessions.longest_wait_s)
        happened = self.link.poll(timeout_s, before)
        self._sessions.waited(self._turned_at + max(0.0, timeout_s), self._clock.monotonic())
        return self.turn(happened)

    def prepare_to_wait(self, now: float) -> float:
        """Finish the remaining work before the link waits.

        Returns:
            How long to wait at most, in seconds.
        """
        due = self.core.next_deadline()
        until = min(self._tick_at, self._sessions.say_at)
        until = until if due is None else min(due, until)
        self.link.asleep = True  # from here on, a thread that adds work wakes the link
        submissions = self.submissions
        has_work = submissions.total > submissions.taken or bool(self.commands or self._questions)
        timeout_s = 0.0 if has_work else until - now
        self._deliver()  # last, because the waiting thread needs the interpreter lock, which this thread releases next
        return timeout_s

    def turn(self, happened: Sequence[Happened]) -> bool:
        """Report to the core what happened, and do what it decides.

        Returns:
            Whether the loop must end.
        """
        core, clock = self.core, self._clock
        state, feeding = core.state, core.feeding
        self._turned_at = state.now = now = clock.monotonic()
        state.wall = clock.wall()
        for event in happened:
            self._note(event, now)
        if self._store is not None:
            for news in self.committed.take():
                if isinstance(news, Stored):
                    core.handle(news, now)
                else:
                    self._sessions.say(news)
        self._take_commands()
        core.waiting, core.logs.handled = self.users.waiting(), self.handled_log_bytes
        feeding.unfetched = self._handed_bytes - self.users.algorithm.fetched_bytes
        while self._questions:
            answer, question = self._questions.popleft()
            answer.put(question())
        core.decide(now)
        self.holds_back = feeding.holds_back
        said = self._sessions.due(now) if now >= self._sessions.say_at else []
        self._do(core.take_actions(), said)
        closing = state.closing
        if now >= self._tick_at:
            self._tick_at = now + (TICK_S if closing is None else END_TICK_S)
            if self.resource is not None:
                self._notice(self.resource.offer(self._content(self.resource), now))
            core.silence.waits_for_disk = self._store_watch is not None and self._store_watch.look()
            if closing is None:
                self._look_for_help()
                if platform.node() not in state.members.excluded:
                    self.local.look()
        if closing is None:
            return False
        self._deliver()
        self._end_by = self._end_by or now + closing.grace_s + FAREWELL_S
        return now > self._end_by or not (state.members.agents or self.local.running)

    def _look_for_help(self) -> None:
        """If somebody waits for tasks, and no slave will ever run them, say why, again and again."""
        core = self.core
        if core.losses.cannot_go_on and core.waiting is not Waiting.NOT:
            self.users.fail(CannotRun(f"{core.losses.cannot_go_on}. Correct this, and start again"))
            return
        why, members = self.local.why_none, core.state.members
        if why is None or members.agents or members.away or not core.state.settings.only_here:
            return
        if core.state.jar.runnable and core.waiting is not Waiting.NOT:
            why = why or next(reversed(core.losses.departures), "their agent ended")
            error = CannotRun(
                f"no slave can start here, and none elsewhere can join. Correct this, and start again: {why}"
            )
            self.users.fail(error)

    def _note(self, happened: Happened, now: float) -> None:
        match happened:
            case Frames(connection, address, frames):
                peer = self._sessions.peer_of(connection)
                if not peer or self.core.admission.ignores(peer):
                    return
                try:
                    message, payload = wire.decode(frames, wire.FROM_AGENT)
                    earlier = b""
                    if isinstance(message, messages.Hello):
                        earlier = self._sessions.goes_on(peer, message, self.core.state.members.peers)
                    is_taken = not earlier and self._sessions.takes(peer, message, frames, now)
                except ProtocolError as error:
                    self.core.handle(Garbage(peer, address, str(error)), now)
                else:
                    if earlier:
                        self.core.handle(Returned(earlier, address), now)
                    elif not is_taken:
                        can_be_needed = bool(self.core.state.jar.blocked.results)
                        if can_be_needed and isinstance(message, messages.Results) and message.shares:
                            message, payload = shared_objects.spooled(message, payload)
                        self.core.handle(Received(peer, address, message, payload), now)
                    while self._sessions.confirmed:
                        self.core.handle(Confirmed(*self._sessions.confirmed.popleft()), now)
            case Garbage(connection, address, reason):
                if peer := self._sessions.peer_of(connection):
                    self.core.handle(Garbage(peer, address, reason), now)
            case Vanished(connection, silent_s):
                if peer := self._sessions.ended(connection):
                    self.core.handle(Vanished(peer, self._sessions.silence(silent_s, now)), now)
                    self._sessions.settle(peer, is_away=peer in self.core.state.members.peers)
            case Stranger() | TurnedAway():
                self.core.handle(happened, now)

    def _take_commands(self) -> None:
        """Take the tasks first: a command that was given before a task was submitted is here, too.

        But a command may name a task that was submitted after the others were taken. Then it waits for this task.
        """
        spans, commands = self.submissions.take(), list[Command]()
        while self.commands and not self._waits_for_task(self.commands[0]):
            commands.append(self.commands.popleft())
        if spans:
            self.core.submit(spans)
        for command in commands:
            self.core.obey(command)

    def _waits_for_task(self, command: Command) -> bool:
        if not (self.submissions and isinstance(command, CancelTasks | HoldResults | ReleaseResults)):
            return False
        return command.last > self.submissions.taken

    def _do(self, actions: Actions, said: Said) -> None:
        self._audit.write(actions.records, self._clock.wall())
        sends, held = (actions.sends, 0) if self._store is None else self._to_send(actions)
        for send in sends:
            self._sessions.send(send.peer, send.message, send.frames)
        for number, stored in actions.reads:
            self.commands.append(_read(number, stored))
        actions.sends = []  # a busy algorithm gets the actions later, and they would keep the frames in memory
        for peer in actions.forget:
            self._sessions.forget(peer)
        for peer in actions.disconnect:
            self._sessions.disconnect(peer)
        for call in actions.failed:
            self.failed_calls.keep(call)
        self.users.divide(actions, self.core.state.jar.ended)
        ended = actions.results or actions.owned or actions.unrunnable
        fetchable = ended or actions.connected or actions.disconnected
        self._handed_bytes += actions.result_bytes
        if fetchable or actions.cancelled or actions.logged or actions.stopped or actions.ends_at is not None:
            self.users.algorithm.news = actions
        if self._store is not None:
            self._save(self._store, actions, held, said)
        elif said:
            self._sessions.say(said)

    def _to_send(self, actions: Actions) -> tuple[Sequence[Send], int]:
        """Return what is sent now, and the number of the messages that wait until the records are in the file; 0 if
        none do."""
        waiting = self.committed
        due, before = waiting.take_due(), waiting.held
        others = waiting.add(actions.sends)
        waiting.drop((*actions.forget, *actions.disconnect))
        return [*due, *others] if due else others, waiting.held if waiting.held > before else 0

    def _save(self, store: Writer, actions: Actions, held: int, said: Said) -> None:
        """Store what happened. The threads that use the master get the outcomes when they are in the file."""
        outcomes = self.users.take_news()
        if actions.records or outcomes or held or said:
            calls = {call.task_id: call.payload for call in actions.failed}
            then = partial(_hand_over, outcomes, self.committed, held, said) if outcomes or held or said else None
            store.write(Given(actions.records, self.core.state.wall, then, calls))

    def _deliver(self) -> None:
        """Hand over what the threads may be waiting for."""
        for outcomes, news in self.users.take_news():
            outcomes.put(news)

    # ---- resource file and end -----------------------------------------------------------------------------

    def _content(self, resource: ResourceKeeper) -> ResourceFile:
        from mwpy._roles.network import updated  # only a master with a resource file needs it

        return updated(resource.template, self.core, self._clock.wall())

    def _notice(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.core.state.notices.newest.append((self._clock.monotonic(), text))
        self._audit.write([records.Notice(text) for text in texts], self._clock.wall())

    def _clean_up(self) -> None:
        if self.resource is not None:
            self._notice(self.resource.close(self._content(self.resource)))
        self.local.close()
        self.committed.close()
        self.link.close(LINGER_S)
        if self._store is not None:
            self._store.close()
        self._audit.close()

    def runnable(self) -> int:
        """How many tasks of the algorithm have not ended."""
        with self.submitting:
            return self.users.runnable(self.submissions.total)

    def store_failed(self, reason: str) -> None:
        """Nothing can be stored any more: the algorithm's thread raises this instead of getting outcomes. Any thread
        may call this."""
        self.store_failure = RunDatabaseError(reason)
        self.committed.fail()
        self.users.fail(self.store_failure)

    def command(self, command: Command) -> None:
        """Send a command to the core. Any thread may call this."""
        self.commands.append(command)
        if self.link.asleep:
            self.link.wake()

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Let the I/O thread answer a question.

        Raises:
            Empty: there was no answer in time.
        """
        answer: SimpleQueue[Any] = SimpleQueue()
        self._questions.append((answer, question))
        if self.link.asleep:
            self.link.wake()
        return answer.get(timeout=ANSWER_S)

    def cancel_unsent(self, command: CancelTasks) -> Sequence[int]:
        """Cancel tasks, and return which are cancelled, as far as this is known soon. Any thread may call this."""

        def cancel() -> Sequence[int]:
            self._take_commands()  # they may have been submitted just now
            self.core.obey(command)
            return self.core.state.actions.cancelled.pop()[1]

        if threading.current_thread() is self.thread:  # the garbage collection calls this
            self.command(command)
        elif self.thread.is_alive() and not self._has_ended():
            with suppress(Empty):
                return cast(Sequence[int], self._ask(cancel))
        return ()

    def status(self, *, detailed: bool = True, is_here: bool = False) -> dict[str, Any]:
        """Return what the master does, as `mwpy.status`. Any thread may call this.

        Args:
            is_here: whether this thread does the work of the I/O thread.

        Raises:
            MasterUnreachable: there was no answer in time.
        """
        answers = self.core.answers
        answer = answers.overview if detailed else answers.status
        try:
            if not self._has_ended():
                now = self._clock.monotonic()
                found = answer(now) if is_here else self._ask(lambda: answer(self.core.state.now))
                return messages.plain_status(found)
        except Empty:
            if not self._has_ended():
                raise MasterUnreachable(
                    f"the master gave no answer for {ANSWER_S:g} s. Without slaves, its thread runs a task"
                ) from None
        return {"state": "finished"}

    def open_page(self, host: str, port: int) -> Any:
        """Show a page of this master, print its address, and return it. There is at most one.

        Raises:
            UsageError: the port is in use, or what it needs is not installed; the caller's fault.
        """
        if self.page is None:
            try:
                module = import_module("mwpy.page")  # it is a user of mwpy, so no part of mwpy needs it
            except ImportError as error:
                raise UsageError(f"the page needs `pip install 'mwpy-cluster[page]'` ({error})") from None
            self.page = module.Page(self.status, host=host, port=port)
            if self.resource is not None:
                self.page.show_jobs(self.resource.path)
            print(f"mwpy: {self.page}", file=sys.stderr, flush=True)
        return self.page

    def _has_ended(self) -> bool:
        return self.core.state.closing is not None

    def _arguments_of(self, task: int) -> Sequence[str]:
        """The arguments of a task that failed, as short texts, if they are plain values; else nothing."""
        call = self.failed_calls.get(task)
        found = None if call is None else plain_arguments(call.payload)
        return [*map(reprlib.repr, found or ())]

    def open_maps(self) -> list[OpenMap]:
        """The maps whose values may still be asked for. Any thread may call this."""
        return [tasks for tasks in list(self.maps) if not tasks.closed]

    def unsubmitted(self) -> int | None:
        """How many tasks will be submitted: the items that open maps have not read; None if a map does not know it. The
        user may have said how many tasks there will be.

        Any thread may call this.
        """
        if self.expected is not None:
            return max(0, self.expected - self.submissions.total)
        unread = [tasks.unread for tasks in self.open_maps()]
        return None if None in unread else sum(each or 0 for each in unread)

    def end(self, finished: bool, grace_s: float, returned: bool) -> None:
        """End the computation and wait for the thread. If it was never started, this thread does its work.

        The garbage collection may call this, also in the I/O thread, which cannot wait for itself.
        """
        try:
            self.users.algorithm.progress.end_all()
        finally:  # a function of the user may have raised
            self._tick_at = 0.0
            maps = self.open_maps()
            unread = self.unread_maps + sum(not tasks.is_read for tasks in maps)
            self.command(ShutDown(finished, grace_s, sum(tasks.num_open for tasks in maps), unread, returned))
            if self.thread.ident is None:
                self._run()
            elif threading.current_thread() is not self.thread:
                self.thread.join(grace_s + 2 * FAREWELL_S + 1.0)
            if self.page is not None:
                self.page.close()


# What a master is made of, besides its connections. It is imported while the local agent starts: it takes as long.


SAVING_S = 60.0
SAVING_SHARE = 0.1
"""Before a master ends, its algorithm gets a tenth of its time to save what it has, and at most a minute. The manual
names these numbers."""


def settings_of(options: Options, generation: str, only_here: bool) -> MasterSettings:
    left_s = options.seconds_left(clock.wall())
    ends_at = None if left_s is None else clock.monotonic() + left_s
    saving_s = 0.0 if left_s is None else min(SAVING_S, SAVING_SHARE * left_s)
    return MasterSettings(
        member_id=options.member_id,
        generation=generation,
        task_group=options.slave_task_group,
        result_group=options.slave_result_group or 0,
        max_result_bytes=options.max_read_buffer_size,
        max_call_bytes=options.max_write_buffer_size,
        client_timeout_s=options.silence_s(),
        only_here=only_here,
        max_failures=options.max_failures,
        max_waiting_bytes=options.max_waiting_results,
        feeds_until=None if ends_at is None else ends_at - saving_s,
        ends_at=ends_at,
        started_at=clock.monotonic(),
        run_offers=options.run_offers or {},
    )


def say_past_end(options: Options, audit: AuditFile) -> None:
    """Say so if the end of the job that the environment names has passed."""
    if past := options.about_past_end(clock.wall()):
        audit.write([Notice(past)], clock.wall())


# Says when the disk of the run database does not answer.
#
# A network file system may be away, or a disk may be overloaded or frozen. A write to it then neither ends nor fails,
# and nothing can end it. No result reaches the master algorithm meanwhile, so the user must learn why.


SHORT_S = 1.0
"""After this many seconds of a write, other reasons why nothing progresses are not reported."""


LONG_S = 5.0
"""A write that takes this many seconds is reported."""


@define(eq=False, repr=False)
class StoreWatch:
    """Watches the store of a master. The I/O thread calls it.

    Args:
        store: where records are stored.
        notice: shows the user a message.
    """

    _store: Writer
    _notice: Callable[[str], None]
    _quiet: Pause = Factory(lambda: between_messages(LONG_S))

    def look(self) -> bool:
        """Say that the disk does not answer, if this is due. Return whether results wait for the disk."""
        delay_s = self._store.delay_s()
        if delay_s < LONG_S:
            self._quiet.reset()
        elif delay_s >= self._quiet.until:
            self._quiet.begin(delay_s)
            self._notice(
                f"the run database {self._store.path} has not answered for {duration(round(delay_s))}, so new results "
                f"do not reach the master algorithm: is its file system away, or its disk overloaded? mwpy goes on "
                f"when it answers"
            )
        return delay_s >= SHORT_S


# What follows when records are in the run database: messages of the master, and news for its core.
#
# A task that must not run twice leaves for its slave only when the file says so. Otherwise a master that is killed
# between the two would leave a task that runs, and a file that knows nothing of it. All other tasks are sent at once,
# because the next life of the master may run them again.
#
# Later messages to the same agent wait behind such a task, because their order counts: a message may take tasks back
# that an earlier one brings.
#
# Results of a former generation that an agent has brought are answers as soon as they have a row in the file.
#
# What was handled is said to the agents when it is in the file (see `sessions.py`).


@define(eq=False, repr=False)
class CommittedSends:
    """The messages that wait. The I/O thread calls all methods, except those that say otherwise.

    Args:
        wake: lets the I/O thread ask for messages that are due.
    """

    wake: Callable[[], None]
    held: int = 0
    """The number of the last messages that were held back."""
    _committed: int = 0
    """Up to this number, messages can be sent."""
    _waiting: dict[bytes, deque[tuple[int, Send]]] = Factory(dict)
    """By peer: the messages that wait, in their order, each with its number."""
    _news: deque[Stored | int | Said] = Factory(deque)
    """What the file has since the I/O thread looked: news for the core, the number of the last messages that can be
    sent, and what to say about handled messages."""
    _has_failed: bool = False
    _is_closed: bool = False
    _lock: threading.Lock = Factory(threading.Lock)
    """Held to wake the I/O thread, which must not end meanwhile."""

    def add(self, sends: Sequence[Send]) -> Sequence[Send]:
        """Hold back those of the messages that must wait. Return the others."""
        if not self._waiting and not any(send.after_commit for send in sends):
            return sends
        others: list[Send] = []
        self.held += 1
        for send in sends:
            if send.after_commit or send.peer in self._waiting:
                self._waiting.setdefault(send.peer, deque()).append((self.held, send))
            else:
                others.append(send)
        return others

    def tell(self, *news: Stored | int | Said) -> None:
        """This is in the file: see `_news`. The writer's thread calls this."""
        self._news.extend(news)
        with self._lock:
            if not self._is_closed:
                self.wake()

    def stored(self, record: records.ResultsHandedOver, row: int) -> None:
        """Results that an agent has brought are in the file. The writer's thread calls this."""
        self.tell(Stored(record, row))

    def take(self) -> Iterator[Stored | Said]:
        """Yield the news for the core, and what can be said about handled messages, in order."""
        while self._news:
            news = self._news.popleft()
            if isinstance(news, int):
                self._committed = max(self._committed, news)
            else:
                yield news

    def fail(self) -> None:
        """Nothing can be stored any more: tasks that wait are never sent. Any thread may call this."""
        self._has_failed = True

    def take_due(self) -> list[Send]:
        """Return the messages that can be sent now, in their order."""
        due: list[Send] = []
        for peer in [*self._waiting]:
            queue = self._waiting[peer]
            while queue and (self._has_failed or queue[0][0] <= self._committed or not queue[0][1].after_commit):
                number, send = queue.popleft()
                if number <= self._committed or not send.after_commit:
                    due.append(send)
            if not queue:
                del self._waiting[peer]
        return due

    def drop(self, peers: Iterable[bytes]) -> None:
        """Forget the messages to peers that are gone."""
        for peer in peers:
            self._waiting.pop(peer, None)

    def close(self) -> None:
        """Nothing is sent any more."""
        with self._lock:
            self._is_closed = True
