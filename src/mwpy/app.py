"""`mwpy.main`: the function that the last line of a script calls, in every role.

The modules of a role are imported when the process starts this role. Thousands of slaves may start from one shared
disk. Modules that only masters and agents need, above all ZeroMQ, load slower than the modules of a slave.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from mwpy._system import clock, process, script, shadows
from mwpy._system.process import handle_here
from mwpy._system.script import MAIN
from mwpy._values.algorithm import IN_AN_IMPORT, REGISTRY, refusal
from mwpy._values.bounds import shortened
from mwpy._values.errors import CannotRun, ExitCode, MwpyError, OutOfTime, RunDatabaseError, UsageError
from mwpy._values.options import (
    AGENT,
    AGENT_VARIABLE,
    MASTER_VARIABLE,
    SLAVE_VARIABLE,
    MasterStream,
    Options,
    Role,
    help_text,
    parse,
)
from mwpy._values.policy import FailureLimit, Policies, check_keywords

if TYPE_CHECKING:
    from types import FrameType

    from mwpy._core.master.state import Command
    from mwpy._roles.computation import Computation
    from mwpy.audit import AuditFile
    from mwpy.master import LocalMaster, Master
    from mwpy.slave import Slave

__all__ = ["local_master", "main", "master_algorithm", "slave_algorithm", "version_string"]

M = TypeVar("M", bound="Callable[[Master, list[str]], int | None]")
S = TypeVar("S", bound="Callable[[Slave, list[str]], int | None]")

VERSION = "0.1.0"


def version_string() -> str:
    """Return the version of this library."""
    return VERSION


def master_algorithm(function: M) -> M:
    """Mark the function `(mw: Master, argv: list[str]) -> int | None` that drives the master.

    Its return value, 0 to 255, is the process's exit code. None, as without a `return`, counts as 0.
    """
    REGISTRY.masters.append(function)
    return function


def slave_algorithm(function: S) -> S:
    """Mark the function `(mw: Slave, argv: list[str]) -> int | None` that wraps a slave's loop.

    It is optional: without it, a slave runs `mw.loop_simple()`. Code before the loop runs once in each slave process.
    The slave takes its first task when the loop is called for the first time. The value that it returns is as for
    `master_algorithm`.
    """
    REGISTRY.slaves.append(function)
    return function


def main(argv: Sequence[str] | None = None) -> int:
    """Run this process in the role that its command line gives it.

    Args:
        argv: the arguments without the program's name; None for those of the process. Then `sys.argv` has only the
            script's own arguments while the algorithms run, so that `argparse` needs no arguments.

    Returns:
        The exit code, 0 to 255: what the master algorithm returned (0 for None), or the code of an error (see the
        manual). Pass it to `sys.exit`.

    Raises:
        SystemExit: this process is an agent or a slave, which ends here. Or the exit code is not 0 and the caller
            discards it, as the plain statement `mwpy.main()` does; otherwise the process would end with 0.
        UsageError: the call is inside a task, or in a script that is imported; the message says how to guard it. Or
            `argv` is a function or a text.

    Examples:
        >>> if __name__ == "__main__":                         # doctest: +SKIP
        ...     sys.exit(mwpy.main())
    """
    caller = sys._getframe(1)
    REGISTRY.enter("mwpy.main()")
    if caller.f_globals.get("__name__") == "__mp_main__":
        raise refusal("mwpy.main()", IN_AN_IMPORT)
    if isinstance(argv, str) or callable(argv):
        raise UsageError(
            f"mwpy.main() takes the arguments of the command line as a list, not {shortened(repr(argv), 100)}. It "
            f"finds the algorithms by their decorators, so call mwpy.main() without arguments"
        )
    before = sys.argv[1:]
    arguments = list(before if argv is None else argv)
    try:
        code = report_errors(lambda: _run(arguments, has_own=argv is None))
    finally:
        sys.argv[1:] = before
    if code and script.discards_result(caller):
        sys.exit(code)
    return code


def report_errors(run: Callable[[], int]) -> int:
    """Call the main function of a process. If it raises an error of mwpy, print one line and return the exit code."""
    try:
        return run()
    except MwpyError as error:
        print(f"mwpy: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and script.is_unread():
            return ExitCode.OK
        shadows.explain(error)
        raise
    finally:
        with suppress(OSError):  # such as a full disk, which Python reports at the end
            script.is_unread()


def _run(arguments: list[str], has_own: bool) -> int:
    """Run this process in its role.

    Args:
        has_own: whether the arguments are those of the process.
    """
    options, rest = parse(arguments, os.environ)
    if SLAVE_VARIABLE in os.environ:
        from mwpy import slave

        sys.argv[1:] = rest if has_own else sys.argv[1:]
        sys.exit(report_errors(lambda: slave.run(os.environ[SLAVE_VARIABLE], REGISTRY.slave(), rest)))
    if options.help or options.help_all:
        print(help_text(sys.argv[0], every_option=options.help_all), end="")
        return ExitCode.OK
    if options.version_string:
        print(version_string())
        return ExitCode.OK
    if options.role is Role.SLAVE:
        sys.exit(report_errors(lambda: _run_agent_of_script(options)))
    return _run_master(options, rest, has_own)


def _run_agent_of_script(options: Options) -> int:
    _require_file()
    REGISTRY.slave()  # report an error in the script before anything is started
    return run_agent(options, _command_line())


def _require_file() -> None:
    if not script.can_run_elsewhere():
        raise UsageError(
            "mwpy.main() needs a script in a file, because the slaves run the same script: save it in a file, or write "
            "`with mwpy.open() as mw:` here"
        )


@process.explained("this agent cannot run")
def run_agent(options: Options, slave_command: Sequence[str]) -> int:
    """Run this process as an agent that starts its slaves with `slave_command`."""
    has_master = os.environ.pop(AGENT_VARIABLE, None)  # they are not meant for programs that its tasks start
    stream = os.environ.pop(MASTER_VARIABLE, None)
    if options.examine:
        from mwpy._doctor import examination

        return examination.run(options, slave_command, VERSION)
    from mwpy._roles.slave_processes import Launcher
    from mwpy._system import forks

    forks.keep_children()
    process.raise_limit()
    limits = options.slave_max_tasks or 0, options.slave_max_memory or 0
    launcher = Launcher(slave_command, options.slave_processes, *limits)
    if has_master and options.forks:
        launcher.prepare()
    master = MasterStream.from_json(stream) if stream else None
    from mwpy._roles import agent  # this takes as long as the template needs to load the script

    return agent.run(options, _audit(options), launcher, master)


def _run_master(options: Options, rest: list[str], has_own: bool) -> int:
    algorithm, found = REGISTRY.master(), vars(sys.modules[MAIN]).copy()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handle_here(signal.SIGTERM, signal.default_int_handler)
    in_process = options.role is Role.LOCAL and options.local == 0
    database = options.run_database and os.path.abspath(options.run_database)  # the algorithm may change the folder
    computation = _start_in_process(options, found) if in_process else _start_master(options, rest, found)
    if not in_process:
        handle_here(signal.SIGTERM, _announced_end(options, computation.access.io.command))
    from mwpy._core.master.totals import summary_of  # while the agent starts
    from mwpy._transport.codec import Codec
    from mwpy.master import Master

    finished, has_returned, io = True, False, computation.access.io
    returned: object
    try:
        master = Master(computation.access, Codec(found), for_all=options.policies)
        if options.progress:
            master.progress()
        if options.page is not None:
            _show_page(master, *options.page)
        sys.argv[1:] = rest if has_own else sys.argv[1:]
        returned = algorithm(master, rest)
        computation.end_executors(give_up=False)
        has_returned = True
        script.is_unread()
    except KeyboardInterrupt:
        finished, returned = False, int(ExitCode.INTERRUPTED)
        print("mwpy: interrupted; the slaves are shut down", file=sys.stderr)
    except (CannotRun, OutOfTime, RunDatabaseError) as error:
        finished, returned = False, int(error.exit_code)
        print(f"mwpy: {error}", file=sys.stderr)
    except SystemExit as leaving:
        has_returned, returned = True, script.code_of(leaving)
    except BaseException as error:
        if not (isinstance(error, BrokenPipeError) and script.is_unread()):
            shadows.explain(error)
            traceback.print_exc()
        returned = int(ExitCode.FAILED)
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)
    computation.end(finished, has_returned)
    if io.store_failure is not None and finished:  # only the end was not stored
        returned = int(io.store_failure.exit_code)
        print(f"mwpy: {io.store_failure}", file=sys.stderr)
    if options.summary:
        print(summary_of(io.core.totals), file=sys.stderr, flush=True)
    if options.on_end is not None:
        from mwpy.run_database import run_at_end

        run_at_end(options.on_end, f"{summary_of(io.core.totals)}\n", database)
    if finished:  # after an interrupt, another Ctrl-C would only spoil the end of the process
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
    return script.exit_code(returned, "master algorithm")


def _announced_end(options: Options, command: Callable[[Command], None]) -> Callable[[int, FrameType | None], None]:
    """Return what a master does on SIGTERM: if this announces the known end of its job, it sends no more tasks.

    Then the algorithm gets `OutOfTime`. Any other SIGTERM, and a second one, interrupts.
    """
    from mwpy._core.master.state import EndSoon

    announced = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal announced
        if announced or not options.is_near_the_end(clock.wall()):
            signal.default_int_handler(number, frame)
        announced = True
        command(EndSoon())

    return handle


def _start_in_process(options: Options, found: dict[str, Any]) -> Computation:
    """Start a master whose tasks run in this process. `found` is what slaves find of the script, by name."""
    from mwpy._roles.computation import start_own_slave
    from mwpy._transport.codec import Codec

    if REGISTRY.slave() is not None:
        raise UsageError("--mw-local 0 starts no slave, and a slave algorithm needs one: give --mw-local 1")
    if options.resource_file is not None or options.key_file is not None:
        raise UsageError(
            "--mw-local 0 runs all tasks in this process, so no slave can join: give --mw-master, too, or leave out "
            "--mw-resource-file and --mw-key-file"
        )
    return start_own_slave(options, _audit(options), Codec(found))


def _show_page(master: Master, host: str, port: int) -> None:
    """Show the page of a master. Without it, the computation goes on."""
    try:
        master.page(port, host=host)
    except UsageError as error:
        print(f"mwpy: --mw-page: {error}. The computation goes on without a page", file=sys.stderr)


def _start_master(options: Options, rest: list[str], found: dict[str, Any]) -> Computation:
    """Start a master, and its slaves on this machine. `found` is what slaves find of the script, by name."""
    from mwpy._roles.computation import only_here, start
    from mwpy._system.process import count_cores
    from mwpy._transport.codec import Codec

    _require_file()
    local_slaves = options.local or 0
    if options.role is Role.LOCAL and options.local is None:
        local_slaves = count_cores()
    if not local_slaves and options.resource_file is None and options.key_file is None and options.key is None:
        raise UsageError(
            "no slave could ever join: give --mw-resource-file FILE (or --mw-key-file FILE) for slaves elsewhere, "
            "or --mw-local N for slaves here"
        )
    published = [options.slave_executable] if options.slave_executable else _program()
    published.append("--mw-slave")
    if options.resource_file is not None:
        published += ["--mw-resource-file", os.path.abspath(options.resource_file)]
    published += options.for_agents(local=False)
    published += rest
    audit = None
    if not only_here(options):  # now, because agents that connect all at once may leave no file to open
        import mwpy.master  # noqa: F401
    if not only_here(options) or options.audit_file or options.audit_level:  # before an agent starts, if it can fail
        audit = _audit(options)
    return start(
        options,
        open_audit=lambda: audit or _audit(options),
        key=_key(options),
        slave_command=published,
        local_command=_command_line(),
        local_slaves=local_slaves,
        codec=lambda: Codec(found),
    )


def local_master(
    slaves: int | None = None,
    *,
    resource_file: str | os.PathLike[str] | None = None,
    system: str | None = None,
    max_jobs: int = 100,
    overseer_options: Sequence[str] = (),
    max_failures: FailureLimit = None,
    lifetime: float | None = None,
    slave_max_tasks: int | None = None,
    slave_max_memory: int | str | None = None,
    slave_start_timeout: float | None = None,
    slave_start: str | None = None,
    run_database: str | os.PathLike[str] | None = None,
    run_database_sync: str | None = None,
    rerun: str | None = None,
    reuse_changed_code: bool = False,
    run_database_notices: bool = True,
    offers: Mapping[str, Any] | str | None = None,
    run_offers: Mapping[str, int] | str | None = None,
    **policy: Unpack[Policies],
) -> LocalMaster:
    """Start a master with slaves on this machine, for a REPL, a notebook or a plain script. `mwpy.open` is the same.

    Slaves load a script that calls this inside `if __name__ == "__main__":`. Elsewhere its functions travel by value.

    Args:
        slaves: how many slave processes; None for one per core, or for none with a resource file. With 0 and without
            such a file, tasks run in this process whenever the master waits for results, so that `breakpoint()`,
            tracebacks and Ctrl-C reach them.
        resource_file, system, max_jobs, overseer_options: as for `mwpy.Executor`: agents of other machines, and the
            batch system that starts them. They get what is defined in the script by value. In a queue, the queue gives
            the slaves, and keeps a run database, unless a resource file is named here.
        max_failures: at how many failures of all tasks the computation stops, as for `Master.map_results`; None for no
            limit. The calls that wait for tasks then raise `TooManyFailures`.
        lifetime: how long the master may run, in seconds; None until the end of its job in a batch system, if there is
            one. Before the end, the calls that wait for tasks raise `OutOfTime`.
        slave_max_tasks: a slave process is replaced by a new one after this many tasks; None for no limit. With
            `slaves=0`, this argument and the next three have no effect.
        slave_max_memory: a slave process is replaced by a new one when it has more memory than this after a task, in
            bytes, or as a text such as `"4 GB"`; None for no limit.
        slave_start_timeout: a slave that is not ready this long after its start, in seconds, is killed; None for 300.
        slave_start: `"fork"` or `"spawn"`, as `--mw-slave-start`; None for fork on Linux and spawn elsewhere.
        run_database: a SQLite file that keeps results for a restart, as `--mw-run-database`; None for none. The next
            three arguments are as `--mw-run-database-sync`, `--mw-rerun` and `--mw-reuse-changed-code`.
        run_database_notices: whether messages say how many results the run database has, and that no task finds its
            result there. False suits a program that says this in its own words.
        offers: what tasks can require of this machine, in addition to what is found or instead of it, such as
            `{"cpus": 8, "gpus": 2}`; as `--mw-offers`. None for what is found.
        run_offers: the amounts that the whole run has, such as `{"licence": 3}`; as `--mw-run-offers`. None for none.
        policy: the policies of all tasks, with the keywords of `mwpy.Policies`. Those of a function or a call override
            them.

    Returns:
        A master. Its slaves end with the `with` block. Without a block, they end with `close()`, when nothing refers to
        the master any more, or with this process.

    Raises:
        UsageError: the number of slaves is negative, or another argument or a policy is unknown or wrong.
        MwpyError: it cannot start.

    Examples:
        >>> with mwpy.local_master(slaves=2) as mw:            # doctest: +SKIP
        ...     total = sum(mw.map(lambda x: x * x, range(100)))

        In a notebook, where several cells use it:

        >>> mw = mwpy.local_master(slaves=2)                   # doctest: +SKIP
        >>> total = sum(mw.map(lambda x: x * x, range(100)))   # doctest: +SKIP
        >>> mw.close()                                         # doctest: +SKIP
    """
    given = {**locals()}
    del given["policy"]
    REGISTRY.enter("mwpy.open()")
    check_keywords("mwpy.open()", given, policy)
    from mwpy._roles.computation import open_local

    computation, codec = open_local(**given, ends_with_job=True)
    from mwpy.master import LocalMaster  # while the agent starts

    return LocalMaster(computation, codec, policy)


@atexit.register
def _report_forgotten_main() -> None:
    """If the script declares a master algorithm and has no call of `mwpy.main`, end this process with an error."""
    declared = [each for each in REGISTRY.masters if each.__module__ == "__main__"]
    if REGISTRY.used or REGISTRY.is_slave or not declared or script.mentions_main(declared[0].__code__.co_filename):
        return
    print(
        f"mwpy: nothing was computed: the script declares the master algorithm {declared[0].__qualname__}, and never "
        f'calls mwpy.main(). Add `if __name__ == "__main__":` and `sys.exit(mwpy.main())` at its end',
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.USAGE)  # only this changes the exit code of a script that has ended


def _command_line() -> list[str]:
    """The command line of this process, its local agent and its slaves. The environment determines the role of each."""
    words, arguments = script.command_line()
    if words[-1:] == sys.argv[:1]:
        words[-1] = _script_path(words[-1])
    return [sys.executable, *words, *arguments]


def _script_path(word: str) -> str:
    """The path of the script, which the command line may give relative to a folder that the script has left."""
    path = getattr(sys.modules["__main__"], "__file__", None) or word
    is_script = os.path.isabs(path) and os.path.basename(path) == os.path.basename(word) and os.path.exists(path)
    return path if is_script and not (os.path.exists(word) and os.path.samefile(path, word)) else word


def _program() -> list[str]:
    """The program that starts an agent for slaves of this script: interpreter, `mwpy slave`, its options, script path.

    A packed application (PEX) contains mwpy and is an agent by itself. In this case the program is the packed file, not
    its unpacked copy on this machine.
    """
    if "PEX" in os.environ:
        return [getattr(sys, "_base_executable", sys.executable), os.environ["PEX"]]
    words, _ = script.command_line()
    if words[-1:] == sys.argv[:1] and os.path.isfile(path := _script_path(words[-1])):
        words[-1] = os.path.abspath(path)
    return [sys.executable, *AGENT, *words]


def _audit(options: Options) -> AuditFile:
    """The audit file that the options name. Without one, standard error shows what a person wants to see."""
    from mwpy.audit import AuditFile, Level

    path, level = options.audit_file, Level(options.audit_level or "groups")
    if path is None and options.audit_level == "groups":
        raise UsageError("--mw-audit-level groups is for files: give --mw-audit-file FILE, too")
    shows_events = path is None and options.role is not Role.LOCAL
    return AuditFile(path, level, options.audit_file_max_size, shows_events=shows_events)


def _key(options: Options) -> str | None:
    """The key of the computation from an option; None for a fresh one. A missing key file is written."""
    if options.key_file is None:
        return options.key
    if os.path.exists(options.key_file):
        from mwpy._roles.join import read_key

        return read_key(options)
    from mwpy._transport.link import new_key

    key = new_key()
    try:
        fd = os.open(options.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write the key file {options.key_file}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(key + "\n")
    return key
