"""Starts and ends a computation: connections, resource file, run database, local slaves, and the master's parts."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, evolve
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.master.state import CancelTasks, Running, how_to_start
from mwpy._roles.definitions import setup_of
from mwpy._roles.inbox import FORKED, Access, Inbox
from mwpy._roles.replay import look_in
from mwpy._system import clock, forks, live_line, process
from mwpy._system.packages import module_path
from mwpy._system.process import agent_command, count_cores, log_levels
from mwpy._system.script import MAIN, LoadedScript, loaded_script, mentions_main, queued
from mwpy._transport.codec import Codec, codec_of
from mwpy._transport.error_texts import encodable
from mwpy._transport.local_link import LocalMasterLink
from mwpy._values.algorithm import REGISTRY
from mwpy._values.bounds import MAX_SLAVES
from mwpy._values.errors import OutOfTime, UsageError
from mwpy._values.messagepack import encode_json
from mwpy._values.options import (
    AGENT,
    AGENT_VARIABLE,
    BATCH_SYSTEMS,
    MASTER_VARIABLE,
    MODULE_PATH,
    OWN_MODULE_PATH,
    SCRIPT_VARIABLE,
    Options,
    job_end,
)
from mwpy._values.records import Notice, Started
from mwpy._values.requires import within
from mwpy._values.sources import SOURCES

if TYPE_CHECKING:
    from mwpy._core.master.core import MasterCore
    from mwpy._core.master.state import MasterSettings
    from mwpy._database.store import Writer
    from mwpy._roles.master_io import MasterIo
    from mwpy._roles.network import ResourceKeeper
    from mwpy._transport.link import MasterLink
    from mwpy.audit import AuditFile


# Cancels what a cell of a notebook has submitted, if the cell is interrupted.
#
# IPython says when a cell begins and how it ends. mwpy does not import IPython: where nobody has imported it, there are
# no cells, and an interrupt ends maps only.


BEGIN, END = "pre_run_cell", "post_run_cell"
"""The events of IPython."""


class UsedInCells(Protocol):
    """Something that cells use. IPython runs cells in the main thread, and calls these methods there."""

    def cell_begins(self) -> None: ...
    def cell_interrupted(self) -> None: ...


def follow_cells(used: UsedInCells) -> None:
    """Tell an object about the cells that begin and are interrupted, as long as something else refers to it."""
    shell = live_line.shell_of_ipython()
    if shell is None:
        return
    reference, events = weakref.ref(used), shell.events

    def begin(_: object) -> None:
        if (found := reference()) is not None:
            found.cell_begins()

    def end(result: object) -> None:
        if (found := reference()) is None:
            events.unregister(BEGIN, begin)
            events.unregister(END, end)
        elif _is_interrupted(result):
            found.cell_interrupted()

    events.register(BEGIN, begin)
    events.register(END, end)


def _is_interrupted(result: Any) -> bool:
    """Whether a cell was interrupted. A cell that awaits is cancelled, and may have no result."""
    asyncio = sys.modules.get("asyncio")
    kinds = KeyboardInterrupt if asyncio is None else (KeyboardInterrupt, asyncio.CancelledError)
    return result is None or isinstance(result.error_in_exec, kinds)


@define(eq=False, repr=False)
class CellTasks:
    """The tasks that the cell which runs has submitted to one master."""

    access: Access
    inbox: Inbox
    _before: int = 0
    """The last task that was submitted before the cell began."""

    def cell_begins(self) -> None:
        """Remember which tasks are of earlier cells."""
        if self.access.usable:
            self._before = self.access.io.submissions.total

    def cell_interrupted(self) -> None:
        """Kill the tasks of this cell that have not ended. Only a map that goes on learns of them."""
        if not self.access.usable:
            return
        self.inbox.end_abandoned()
        io = self.access.io
        for executor in io.users.submitters:
            executor.cell_interrupted()
        with io.submitting:
            count = io.submissions.total - self._before
        if count:
            killed = {*self.inbox.ask(CancelTasks([(self._before + 1, count)], Running.KILL))}
            dropped = [result for result in self.inbox.results if result.task_id in killed]
            self.inbox.results[:] = [result for result in self.inbox.results if result.task_id not in killed]
            self.inbox.fetched(dropped)


# The connections of a master: streams to the agents that it starts, and the network if other agents can join.
#
# A master that only its own agents can join opens no port, has no key, and does not load ZeroMQ.


RESERVE_SHARE = 8
LEAST_RESERVE = 16
"""One in eight files, and at least 16, are left for the master algorithm; agents that are being refused may have half
of them."""


def start_agent(link: LocalMasterLink, command: Sequence[str], *, environment: Mapping[str, str]) -> process.Child:
    """Start an agent on this machine, with a stream to this master.

    Raises:
        OSError: it cannot be started.
    """
    given = link.open()
    try:
        variables = {**environment, MASTER_VARIABLE: given.to_json()}
        return process.start(command, environment=variables, pass_fds=given.fds)
    finally:
        for fd in given.fds:
            os.close(fd)


class Connections(Struct, frozen=True):
    """The connections of a master that starts."""

    link: LocalMasterLink
    max_open_files: int
    """How many files this process may open."""
    room: int
    """How many agents there is room for."""
    key: str = ""
    """The key of the computation; empty if only agents of this master can join."""
    addresses: Sequence[str] = ()
    """Where other agents find the master."""
    port: int = 0
    """Their port; 0 if only agents of this master can join."""


def open_connections(options: Options, key: str | None) -> Connections:
    """Make the connections of a master.

    Args:
        key: the key of the computation; None for that of the last master of the run database, or a new one.

    Raises:
        UsageError: the host or the port cannot be used.
    """
    limit = process.raise_limit()
    if only_here(options) and options.master_port is None:
        return Connections(_with_streams(None, options), limit, limit)
    from mwpy._roles.network import FormerPlace, addresses, listen, recall  # only here, because it loads ZeroMQ
    from mwpy._transport.link import new_key

    SOURCES.remember()  # before a slave can join that loads files which were edited meanwhile
    former = FormerPlace() if options.run_database is None else recall(options.run_database)
    key = key or former.key or new_key()
    link = listen(options, key, only_here(options), former.port)
    reserve = max(LEAST_RESERVE, limit // RESERVE_SHARE)
    room = max(1, limit - process.count_open() - reserve)
    link.limit(room + reserve // 2)
    found = addresses(options, link.port, only_here(options))
    return Connections(_with_streams(link, options), limit, room, key, found, link.port)


def _with_streams(network: MasterLink | None, options: Options) -> LocalMasterLink:
    largest = max(options.max_read_buffer_size, options.max_write_buffer_size)
    return LocalMasterLink(network, options.silence_s(), largest)


def only_here(options: Options) -> bool:
    """Whether only local slaves can join, because others would have neither a resource file nor the key."""
    return not (options.resource_file or options.master_host or options.key_file or options.key)


def directions(options: Options, slaves: int) -> dict[str, str]:
    """Return the variables that make a process an agent of this master, with this many slaves."""
    words = ["--mw-slave", "--mw-member-id", encodable(options.member_id)]
    words += ["--mw-slave-processes", str(slaves), "--mw-audit-file", os.devnull]
    words += ["--mw-grace-period", str(options.grace_period)]
    words += ["--mw-client-timeout", str(options.silence_s()), *options.for_agents(local=True)]
    return {AGENT_VARIABLE: encode_json(words).decode()}


FINISH_GRACE_S = 10.0
"""Seconds that slaves get to end by themselves when the computation is complete."""

INTERRUPT_GRACE_S = 1.5
"""The same after Ctrl-C or SIGTERM; it is shorter because a user waits."""

FEW_AGENTS = 200
"""If there is room for fewer agents, the master says so at the start."""


class Computation:
    """A started computation, and the way to end it. It also ends when nothing can use it any more, and at exit.

    Args:
        access: holds the I/O thread of its master.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.overseer: OwnOverseer | None = None
        """What this computation has started to submit jobs."""
        look_in(access.io.failed_calls)
        self._unused = weakref.finalize(access, _end_unused, weakref.ref(access), access.io)
        _all.add(self)

    def end_executors(self, give_up: bool) -> None:
        """Shut down the executors that share the computation, and wait for their tasks.

        Args:
            give_up: whether the tasks are cancelled, and those that run are killed. An interrupt does the same.

        Raises:
            OutOfTime: the master must end soon, and the tasks have not ended.
            UsageError: another thread started the computation.
        """
        owners = [*self.access.io.users.submitters]
        for owner in owners:
            owner.give_up() if give_up else owner.close()
        try:
            for owner in owners:
                owner.join()
                if isinstance(owner.broken, OutOfTime) and not give_up:
                    raise owner.broken
        except KeyboardInterrupt:
            for owner in owners:
                owner.give_up()
            raise

    def end(self, finished: bool, has_returned: bool = True) -> None:
        """Shut all agents down, and wait for them. A second call does nothing.

        Args:
            finished: whether the computation is complete. If not, agents exit with a code that keeps their jobs queued.
            has_returned: whether the master algorithm came to its end, and did not raise an exception.

        Raises:
            UsageError: another thread started it.
        """
        if self._unused.alive:
            self.end_executors(give_up=True)
            end, finished = self.access.io.end, finished and not self.access.user.interrupted
            self._unused.detach()
            self.access.close()
            try:
                end(finished, FINISH_GRACE_S if finished else INTERRUPT_GRACE_S, returned=finished and has_returned)
            finally:
                if self.overseer is not None:
                    self.overseer.end()

    def leave_to_parent(self) -> None:
        """Let only the parent of this process, which was forked just now, use the computation and end it."""
        if self._unused.detach() and self.access.usable:
            self.access.close(FORKED)


def _end_unused(access: weakref.ref[Access], io: MasterIo) -> None:
    """End a computation to which nothing refers, or at exit. At exit, something may still use it later."""
    used = access()
    if used is not None:
        used.close()
    io.end(False, INTERRUPT_GRACE_S, returned=not hasattr(sys, "last_type"))


_all: weakref.WeakSet[Computation] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for computation in _all:
        computation.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


@process.explained("the computation cannot start")
def start(
    options: Options,
    *,
    open_audit: Callable[[], AuditFile],
    key: str | None,
    slave_command: Sequence[str],
    local_command: Sequence[str],
    local_slaves: int,
    codec: Callable[[], Codec],
    environment: dict[str, str] | None = None,
    advice: str = "",
) -> Computation:
    """Start a master: bind, write the resource file, start the local agent.

    What an agent does not need is imported when it has started: the start of its slaves takes longest.

    Args:
        open_audit: makes the audit file.
        key: the computation's key; None for a new one.
        slave_command: the command in the resource file that starts an agent with slaves.
        local_command: the command that starts an agent here; `MWPY_AGENT` gives it its options.
        local_slaves: how many slaves to start here; 0 for none.
        codec: makes what pickles the set-up of agents.
        environment: variables for the local agent.
        advice: how slaves can be started, for the message that none is connected; empty for the usual ways.

    Raises:
        MwpyError: it cannot start; the message says what to change.
    """
    forks.keep_children()
    generation = f"{int(clock.wall() * 1000):x}-{os.getpid()}"
    connections = open_connections(options, key)
    link = connections.link
    start_one = partial(start_agent, link)
    first: process.Child | None = None
    store: Writer | None = None
    environment = {**(environment or {}), **directions(options, local_slaves)}
    try:
        if options.run_database is not None:
            from mwpy._roles.run_store import open_writer, read_into  # it loads SQLite and what compares code

            # before anything is started that would have to be ended if another master has the run database
            store = open_writer(options, options.run_database, generation)
        if options.run_database is not None and connections.key:  # now that no other master has the run database
            from mwpy._roles.network import FormerPlace, keep

            keep(options.run_database, FormerPlace(connections.key, connections.port))
        if local_slaves and (store is None or store.generation == 1):
            first = start_one(local_command, environment=environment)
        from mwpy._roles import master_io

        audit = open_audit()
        core = _new_core(options, generation, connections, audit, codec(), advice or _advice(options, slave_command))
        if store is not None:
            read_into(core, store, options)
        if local_slaves and first is None:  # not before the file was read, because an agent gives up after some seconds
            first = start_one(local_command, environment=environment)
        io = master_io.MasterIo(core, link, audit, clock, start_one, store)
        if store is not None:
            store.follow(io.store_failed, io.committed.stored)
        if options.resource_file is not None:
            io.resource = _publish(options, options.resource_file, generation, connections, slave_command)
        where = " ".join(connections.addresses) or "for slaves on this machine"
        audit.write([Started("MASTER", options.member_id, f"READY {where}")], clock.wall())
        if first is not None:
            io.local.keep(local_command, environment, first)
            io.local_slaves = local_slaves
        io.thread.start()
    except BaseException:
        if store is not None:
            store.close()
        link.close(0.0)
        if first is not None:
            first.kill()
            first.poll()
        raise
    return Computation(Access(io, threading.current_thread()))


def _new_core(
    options: Options, generation: str, connections: Connections, audit: AuditFile, codec: Codec, advice: str
) -> MasterCore:
    """Make the core, and say so if there is room for few agents only."""
    from mwpy._core.master.core import MasterCore
    from mwpy._roles import master_io

    master_io.say_past_end(options, audit)
    settings = master_io.settings_of(options, generation, only_here(options))
    room, files = connections.room, connections.max_open_files
    if room < FEW_AGENTS and not only_here(options):
        notice = (
            f"there is room for {room} agents, because this process may have only {files} open files; raise this limit "
            f"(ulimit -n) if you need more, or start agents with more slaves each (--mw-slave-processes)"
        )
        audit.write([Notice(notice)], clock.wall())
    settings = replace(_with_setup(settings, codec), log_levels=log_levels(), max_agents=room, max_open_files=files)
    return MasterCore(replace(settings, advice=advice or settings.advice))


def _advice(options: Options, slave_command: Sequence[str]) -> str:
    """How slaves can be started; empty if nobody has said where they find the master."""
    if options.resource_file is None:
        return ""
    if queued() is not None:
        return "The queue gives it slaves: `mwpy queue list` says what it waits for"
    return how_to_start(shlex.join(slave_command), shlex.quote(os.path.abspath(options.resource_file)))


def _with_setup(settings: MasterSettings, codec: Codec) -> MasterSettings:
    """Add the set-up that the script declares."""
    set_up, stops = setup_of(codec)
    return replace(settings, set_up=set_up, set_up_stops=stops)


def _publish(
    options: Options, path: str, generation: str, connections: Connections, slave_command: Sequence[str]
) -> ResourceKeeper:
    """Write the resource file."""
    from mwpy._roles.network import ResourceKeeper, first_content

    content = first_content(options, generation, connections.addresses, connections.key, slave_command)
    return ResourceKeeper(path, content)


def start_own_slave(options: Options, audit: AuditFile, codec: Codec) -> Computation:
    """Start a master whose tasks run in this process, in the thread that calls this."""
    if options.run_database is not None:
        raise UsageError(
            "a run database needs a slave, because tasks in the master's process are for debugging: start at least one "
            "(--mw-local 1, or mwpy.open(slaves=1)), or give no run database"
        )
    from mwpy._core.master.core import MasterCore
    from mwpy._roles import master_io
    from mwpy._roles.own_slave import LiveOutcomes, OwnSlave, drive
    from mwpy._system import offers

    slave = OwnSlave(options.member_id, offers.found(options, os.environ))
    master_io.say_past_end(options, audit)
    settings = replace(
        master_io.settings_of(options, "", only_here=True), task_group=1, result_group=1, in_this_process=True
    )
    io = master_io.MasterIo(MasterCore(_with_setup(settings, codec)), slave, audit, clock, process.start)
    io.users.algorithm.outcomes = LiveOutcomes(slave)
    audit.write([Started("MASTER", options.member_id, "READY in this process")], clock.wall())
    return Computation(Access(io, threading.current_thread(), partial(drive, io, slave)))


# The start of a master that `mwpy.main` does not start: its slaves load the script, if they can.


NOT_RUN = (
    "the slave algorithm {name} would not run: it needs mwpy.main(), or slaves that load the script: a master that "
    'is opened inside `if __name__ == "__main__":`, with slaves and without a resource file. Elsewhere, prepare slaves '
    "with mwpy.Executor(initializer=...) or @mwpy.agent_setup"
)


def open_local(
    slaves: int | None,
    resource_file: str | os.PathLike[str] | None,
    system: str | None,
    max_jobs: int,
    overseer_options: Sequence[str],
    *,
    least: int = 0,
    ends_with_job: bool = False,
    **given: object,
) -> tuple[Computation, Codec]:
    """Start a master with slaves on this machine, and its overseer. The thread that calls this is its owner.

    With no slave, and without a resource file, its tasks run in this process. In a queue, its slaves are those of the
    queue.

    Args:
        least: how many slaves it has at least, if no others can join.
        ends_with_job: whether it ends before the job of this process.
        given: other options, by name.

    Returns:
        The computation, and what encodes its tasks.

    Raises:
        UsageError: an argument is wrong; the caller's fault.
        MwpyError: it cannot start.
    """
    if resource_file is None and (place := queued()) is not None:
        resource_file, slaves, system = place[0], 0, None
        given["run_database"] = given["run_database"] or place[1]
    options = Options.of(**given)
    if ends_with_job:
        options = evolve(options, job_end=job_end(os.environ))
    least = least if resource_file is None else 0
    wanted = f"a whole number from {least} to {MAX_SLAVES:,}, or None for one per core"
    slaves = within(least, MAX_SLAVES, index, wanted)("slaves", slaves)
    script, overseer = None, None
    if resource_file is not None:
        slaves, options = slaves or 0, evolve(options, resource_file=os.path.abspath(resource_file))
        overseer = own_overseer(str(options.resource_file), system, max_jobs, overseer_options)
    elif system is not None:
        raise UsageError(f"system={system!r} needs a resource file for its jobs: give resource_file, too")
    else:
        script = loaded_script()
    own = [each.__qualname__ for each in REGISTRY.slaves if each.__module__ == MAIN]
    if own and (script is None or slaves == 0):
        raise UsageError(NOT_RUN.format(name=own[0]))
    return _start_local(slaves, options, script, overseer), codec_of(script)


def _start_local(
    slaves: int | None, options: Options, script: LoadedScript | None, overseer: OwnOverseer | None
) -> Computation:
    ignored = [word for word in sys.argv[1:] if word.startswith("--mw-")]
    if ignored and not mentions_main(sys.argv[0]):
        raise UsageError(
            f"{ignored[0]}: a script that opens its master itself, without mwpy.main(), has no such options: write "
            f"keywords, such as mwpy.open(slaves=2, run_database='run.db')"
        )
    file = options.resource_file
    if slaves == 0 and file is None:
        return start_own_slave(options, _without_a_file(), codec_of(script))
    command = agent_command()
    environment = {MODULE_PATH: module_path(), OWN_MODULE_PATH: os.environ.get(MODULE_PATH, "")}
    arguments: list[str] = []
    if script is not None:
        environment[SCRIPT_VARIABLE], arguments = script.to_json(), sys.argv
    elsewhere = ["--mw-slave", "--mw-resource-file", file, *options.for_agents(local=False)] if file is not None else []
    computation = start(
        options,
        open_audit=_without_a_file,
        key=None,
        slave_command=[*command, *elsewhere],
        local_command=agent_command(arguments),
        local_slaves=count_cores() if slaves is None else slaves,
        codec=lambda: codec_of(script),
        environment=environment,
        advice=""
        if overseer is None
        else f"The overseer of this master submits jobs: {overseer.log} says what it does",
    )
    if overseer is not None:
        try:
            overseer.start()
        except BaseException:
            computation.end(False)
            raise
        computation.overseer = overseer
    return computation


def _without_a_file() -> AuditFile:
    from mwpy.audit import AuditFile  # when the agent has started

    return AuditFile()


# The overseer that a master starts for its own resource file.


END_S = 60.0
"""How long the batch system may take to remove the jobs at the end, in seconds."""

KILL_S = 0.01
"""Seconds between two checks whether a killed process has ended."""

LOG = ".overseer"
"""What follows the name of the resource file in the name of the overseer's log file."""


@define(eq=False, repr=False)
class OwnOverseer:
    """A process that oversees one computation. It ends with the thread that starts it, even if this process is killed.

    Args:
        path: the resource file.
        system: the batch system.
        max_jobs: how many jobs it may have in the queue.
        options: more options of `mwpy oversee`.
        modules: where the jobs of this machine find modules.
    """

    path: str
    system: str
    max_jobs: int
    options: Sequence[str]
    modules: str
    _child: process.Child | None = None

    @property
    def log(self) -> str:
        """The file with what it writes."""
        return f"{self.path}{LOG}"

    @property
    def _command(self) -> list[str]:
        return [sys.executable, *AGENT[:-1], "oversee", self.path, "--with", self.system, *self.options]

    def start(self) -> None:
        """Start it.

        Raises:
            OSError: it cannot be started, or its log file cannot be written.
        """
        own = ["--max", str(self.max_jobs), "--parent", str(os.getpid())]
        with open(self.log, "wb") as log:
            environment = {MODULE_PATH: self.modules}
            self._child = process.start([*self._command, *own], environment=environment, output=(log, log))

    def end(self) -> None:
        """End it, and remove the jobs of the computation, which is over. If this fails, say so on standard error."""
        child = self._child
        if child is None:
            return
        child.kill()
        while child.poll() is None:
            clock.sleep(KILL_S)
        child.close()
        command = [*self._command, "--remove"]
        try:
            ended = process.run(command, timeout_s=END_S)
            problem = "" if not ended.returncode else ended.err
        except (OSError, process.TimedOut) as error:
            problem = str(error)
        if problem:
            text = f"mwpy: jobs of {self.path} may be left ({' '.join(problem.split())}): run `{shlex.join(command)}`"
            print(text, file=sys.stderr, flush=True)


def own_overseer(path: str, system: str | None, max_jobs: int, options: Sequence[str]) -> OwnOverseer | None:
    """Make the overseer of a master, if it has one.

    Raises:
        UsageError: an argument is wrong; the caller's fault.
    """
    within(1, inf, index, "a whole number from 1 on")("max_jobs", max_jobs)
    if system is None:
        return None
    if system not in BATCH_SYSTEMS:
        raise UsageError(f"system={system!r}: give one of {', '.join(BATCH_SYSTEMS)}, or None for no overseer")
    return OwnOverseer(path, system, max_jobs, options, module_path())
