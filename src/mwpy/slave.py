"""The slave: a process that runs task algorithms, one at a time.

An agent starts its slaves with its own command line, so `__main__` is the script there too. `mwpy.main` finds the
variable `MWPY_SLAVE` and calls `run`. With another value of this variable, the process is a template: then `run` forks
slaves, and goes on in each of them. A slave algorithm drives a `Slave`; without one, the slave runs its plain loop.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from mwpy._roles.runner import FOREVER_S, ResultNotPicklable, ResultTooLarge, TaskRunner
from mwpy._system import forks, memory, script
from mwpy._system.forks import die_with_parent
from mwpy._system.locks import use
from mwpy._system.packages import reseed, take_module_path
from mwpy._system.process import handle_here
from mwpy._system.script import LoadedScript
from mwpy._system.time_left import Surroundings
from mwpy._transport.channel import Answer, SlaveEnd, TemplateOrders
from mwpy._values.algorithm import REGISTRY
from mwpy._values.bounds import SlaveId
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.options import (
    BREAKPOINT_VARIABLE,
    EXAMINED,
    FAULT_HANDLER,
    MODULE_PATH,
    OWN_MODULE_PATH,
    SCRIPT_VARIABLE,
    SLAVE_VARIABLE,
    SlaveSettings,
    TemplateSettings,
    slave_or_template,
)
from mwpy._values.sources import SOURCES

__all__ = ["ResultNotPicklable", "ResultTooLarge", "Slave", "SlaveLoop", "run"]

# The template: a process that has loaded the script, runs nothing, and forks slaves when its agent orders one.
#
# Its first slave gets the standard output and error with which the template was started, because what the script prints
# while it is loaded belongs to the start of this slave. While the template forks another slave, it has the output and
# error of that slave: if it hangs there, the fault handler writes where. Between two orders it has none.
#
# If the script has left something that must not be copied, the template becomes its first slave.


NAME = b"mwpy-template"
"""The name of the template in `ps`."""


def serve(settings: TemplateSettings) -> SlaveSettings:
    """Fork slaves until the agent closes the orders; then end this process.

    Returns:
        In each slave: its settings.
    """
    if not forks.die_with_parent(settings.agent_pid):
        os._exit(ExitCode.FAILED)
    for number in (signal.SIGINT, signal.SIGTERM):  # as in a slave: only the agent acts on them
        signal.signal(number, signal.SIG_IGN)
    forks.keep_children()  # the script may ignore their ends
    orders = TemplateOrders(settings.orders)
    own_name = forks.name_process(NAME)
    unsafe = _why_unsafe(orders)
    if not unsafe:
        forks.prepare_forks()
    while (order := orders.take()) is not None:
        slave, outputs = order
        answer = Answer(slave.slave, os.getpid(), unsafe) if unsafe else _fork(slave, outputs)
        if answer is not None:
            orders.answer(answer)
        if answer is None or unsafe:
            orders.close()
            forks.name_process(own_name)
            return slave
    os._exit(ExitCode.OK)


def _why_unsafe(orders: TemplateOrders) -> str:
    try:
        return forks.why_unsafe([orders.fileno()])
    except Exception as error:  # an object of the script behaves strangely
        return f"it cannot be found out whether the script can be forked ({type(error).__name__}: {error})"


def _fork(slave: SlaveSettings, outputs: Sequence[int]) -> Answer | None:
    """Fork a slave, and return the answer to the order; None in the slave."""
    forks.flush()
    if outputs:
        _have_outputs(*outputs)
    try:
        pid = forks.fork_orphan()
        answer = Answer(slave.slave, pid, own_bytes=memory.resident_bytes())
    except OSError as error:
        answer = Answer(slave.slave, failure=str(error))
    else:
        if not pid:
            return None
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    _have_outputs(nowhere, os.dup(nowhere))
    for fd in slave.fds:
        os.close(fd)
    return answer


def _have_outputs(stdout: int, stderr: int) -> None:
    """Replace standard output and error by two descriptors, which are closed."""
    for number, fd in ((1, stdout), (2, stderr)):
        os.dup2(fd, number)
        os.close(fd)


CLOSED = (
    "mwpy: a task closed or replaced the connection of its slave, so this slave ends: close only the file descriptors "
    "that the task has opened"
)


class SlaveLoop(NamedTuple):
    """What `Slave.loop` and `Slave.loop_iterate` return: CL-MW's six values."""

    master_disconnect: bool
    """The master is gone, or it ended this slave. Leave the slave algorithm."""
    explicit_shutdown: bool
    """The master ended this slave."""
    total_results_completed: int
    """How many tasks this slave has run so far."""
    num_tasks: int
    """How many tasks have arrived and were not run."""
    num_results: int
    """How many results are finished and were not sent."""
    result_grouping: int
    """How many results the master wants at a time; 0 if the slave decides."""


class Slave:
    """A slave process, as its slave algorithm sees it.

    Examples:
        >>> @mwpy.slave_algorithm                             # doctest: +SKIP
        ... def slave(mw: mwpy.Slave, argv: list[str]) -> int:
        ...     cache.update(load(mw.sid))
        ...     return mw.loop_simple()
    """

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    @property
    def sid(self) -> SlaveId:
        """The id that the master gave this slave. Reading it makes the slave ready for tasks, and waits for the id.

        Raises:
            SystemExit: the computation ended before this slave had an id, so the slave ends, too. Nobody's fault.
        """
        runner = self._runner
        runner.get_ready()
        while runner.sid is None and not runner.ended:
            runner.receive(FOREVER_S)
        if runner.sid is None:
            raise SystemExit(self._end())
        return runner.sid

    def loop_simple(self) -> int:
        """Run tasks until the computation is over.

        Returns:
            What the slave algorithm should return: 0 if the master ended this slave, 255 if the master was lost.
        """
        runner = self._runner
        while not runner.ended:
            runner.turn(None, sys.maxsize, again=True)
        return self._end()

    def _end(self) -> int:
        return int(ExitCode.OK if self._runner.shut_down else ExitCode.FAILED)

    def loop(self, timeout: float | None = None) -> SlaveLoop:
        """Wait for tasks, run the tasks that have arrived, and return. Tasks that arrive during this call are left for
        the next call.

        Args:
            timeout: how long to wait for the first task, in seconds; None for as long as it takes.
        """
        self._runner.turn(timeout, sys.maxsize)
        return self._state()

    def loop_iterate(self, timeout: float = 0.0001) -> SlaveLoop:
        """Run a single task, if there is one.

        Args:
            timeout: how long to wait for it, in seconds.
        """
        self._runner.turn(timeout, 1)
        return self._state()

    def _state(self) -> SlaveLoop:
        runner = self._runner
        waiting, unsent = runner.num_waiting, runner.num_unsent
        return SlaveLoop(runner.ended, runner.shut_down, runner.completed, waiting, unsent, runner.result_group)


def run(described: str, slave_algorithm: Callable[[Slave, list[str]], int | None] | None, argv: list[str]) -> int:
    """Run this process as a slave until the slave ends.

    Args:
        described: the content of `MWPY_SLAVE`.
        slave_algorithm: the slave algorithm of the script; None for that of the script that is loaded here, or the
            plain loop.
        argv: the command line without mwpy's own options; if a script is loaded here, with its name.

    Returns:
        The exit code: what the slave algorithm returned.
    """
    for name in (SLAVE_VARIABLE, FAULT_HANDLER):  # a program that a task starts is no slave
        os.environ.pop(name, None)
    _restore_module_path()
    if described == EXAMINED:
        import json

        from mwpy._system.own_code import imported

        print(json.dumps(imported()))
        return ExitCode.OK
    REGISTRY.is_slave = True
    if (loaded := os.environ.pop(SCRIPT_VARIABLE, None)) is not None:
        LoadedScript.from_json(loaded).load(argv)
        slave_algorithm, argv = REGISTRY.slave(), argv[1:]
    SOURCES.remember()  # in the template, for all its slaves
    settings = slave_or_template(described)
    if isinstance(settings, TemplateSettings):
        settings = serve(settings)
    surroundings = Surroundings()
    end = SlaveEnd(settings.fds, surroundings)
    _prepare_process(settings.agent_pid, end.fault)
    use(settings.folder)
    if settings.sets_up:
        from mwpy._roles import set_up  # only here, because slaves do not need it

        return set_up.run(end, settings.slave, settings.sets_up)
    reseed()  # the script was loaded, and may have seeded the generators; and a fork has a copy of them
    wear = settings.max_tasks, settings.max_memory_bytes
    limits = settings.result_group, settings.max_result_bytes
    runner = TaskRunner(end, settings.slave, *limits, wear=wear, surroundings=surroundings)
    slave = Slave(runner)
    try:
        if slave_algorithm is None:
            return slave.loop_simple()
        returned: object = slave_algorithm(slave, argv)
        runner.flush()
        return script.exit_code(returned, "slave algorithm")
    finally:
        if end.was_closed:
            print(CLOSED, file=sys.stderr, flush=True)
        end.close()
        _flush_files()


def _restore_module_path() -> None:
    """Give programs that tasks start the module path of the user, and not that of this interpreter."""
    own = os.environ.pop(OWN_MODULE_PATH, None)
    if own is not None:  # an interpreter may ignore the environment, and has the working directory in its path
        take_module_path(os.environ[MODULE_PATH])
    if own:
        os.environ[MODULE_PATH] = own
    elif own is not None:
        os.environ.pop(MODULE_PATH, None)


def _flush_files() -> None:
    """Write what tasks have left in files that are still open. A fork does not close the files in variables of modules
    that its template has loaded."""
    for each in gc.get_objects():
        if issubclass(type(each), io.IOBase):
            with suppress(Exception):  # a task has closed it, or replaced a method
                each.flush()


def _prepare_process(agent_pid: int, fault: int) -> None:
    """Make this process die with its agent, ignore Ctrl-C and SIGTERM, and report crashes in native code.

    Ctrl-C is for the master. Some batch systems send SIGTERM to all processes of a job. Only the agent acts on it: it
    gives the running task its grace period, and kills this process if the task does not finish. Processes that a task
    forks or starts end on both as usual.
    """
    if not die_with_parent(agent_pid):
        os._exit(ExitCode.FAILED)
    for number in (signal.SIGINT, signal.SIGTERM):
        handle_here(number, lambda *_: None)
    faulthandler.enable(fault)
    if BREAKPOINT_VARIABLE not in os.environ:  # a user may name a debugger that needs no terminal
        sys.breakpointhook = _refuse_breakpoint
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A line that a task prints is visible at once, survives a kill, and is not mixed with the lines of others. With
        # PYTHONUNBUFFERED alone, each argument of a print would be written by itself.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def _refuse_breakpoint(*_args: object, **_kwargs: object) -> NoReturn:
    raise UsageError(
        "breakpoint() in a task: a slave has no terminal for a debugger. Run the tasks in the master's process with "
        f"--mw-local 0 or mwpy.open(slaves=0), or set {BREAKPOINT_VARIABLE} to a debugger that needs no terminal"
    )
