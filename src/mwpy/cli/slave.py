"""mwpy slave [SCRIPT [ARGUMENT ...]] --mw-resource-file FILE: start an agent; only its slaves load the script.

The agent connects before the script is loaded. So if the script cannot be imported on this machine, the master reports
this with the last words of the slaves. `python SCRIPT --mw-slave`, in contrast, runs the top level of the script in the
agent itself. If it fails there, the traceback is only in the files of the batch system.

The options are those of a script (`--mw-...`), so `mwpy._values.options` parses them. With `--queue FOLDER` instead,
this machine serves the running entries of a queue one after the other, and `--mw-slave-processes` is the only option.

examples:
  mwpy slave app.py --mw-resource-file app.rsc
  mwpy slave --mw-resource-file app.rsc --mw-slave-processes 8
  mwpy slave --queue /data/queue --mw-slave-processes 8

exit codes:
  0    the computation is finished, or there was no task for as long as --mw-idle-exit says
  2    a bad option, or no resource file
  3    the master refused the agent
  4    no address of the master answered
  5    the agent was evicted, or its time was used up
  6    the slaves end before they can take a task
  255  the master was lost
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.options import SCRIPT_VARIABLE, SLAVE_VARIABLE, help_text, parse
from mwpy.app import run_agent

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run as an agent. Its slaves run the script, or, without a script, functions by value and installed modules."""
    if SLAVE_VARIABLE in os.environ:
        from mwpy import slave

        return slave.run(os.environ[SLAVE_VARIABLE], None, [*arguments])
    from mwpy._system.process import agent_command  # slaves do not need it

    if SCRIPT_VARIABLE in os.environ:  # the arguments are those of the script that its slaves load
        return run_agent(parse([], os.environ)[0], [*agent_command(), *arguments])
    if arguments and arguments[0].partition("=")[0] == "--queue":
        return _serve_queue(arguments)
    if list(arguments) == ["--help"]:
        arguments = ["--mw-help"]
    options, script = parse(["--mw-slave", *arguments], os.environ)
    if options.help or options.help_all:
        from mwpy.cli._arguments import help_of  # agents do not need it

        print(help_text("mwpy slave [SCRIPT]", every_option=options.help_all) + help_of(__doc__)[1], end="")
        return ExitCode.OK
    code = run_agent(options, [sys.executable, *script] if script else agent_command())
    if code == ExitCode.OK and script and not script[0].startswith("-") and not os.path.exists(script[0]):
        raise UsageError(f"there is no script {script[0]}; no slave was started")
    return code


def _serve_queue(arguments: Sequence[str]) -> int:
    """Serve the entries of a queue until this process is stopped."""
    from pathlib import Path  # only here, because agents do not need it

    from mwpy._queue.folder import Folder
    from mwpy._queue.oversight import serve
    from mwpy._system.process import count_cores
    from mwpy.cli._arguments import Parser, number

    parser = Parser("slave", description="Serve the running entries of this user in a queue, one after the other.")
    parser.add_argument("--queue", type=Path, required=True, metavar="FOLDER", help="the queue")
    slaves = "how many slaves; default one per core"
    parser.add_argument("--mw-slave-processes", type=number(1, int), default=count_cores(), metavar="N", help=slaves)
    parsed = parser.parse_args(arguments)
    return serve(Folder(parsed.queue), parsed.mw_slave_processes)
