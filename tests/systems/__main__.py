"""Bring up a real batch system by hand and use it; see README.md in this folder."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from tests.systems.condor import CondorPool
from tests.systems.namespace import SystemFailed
from tests.systems.sge import SgeNode
from tests.systems.slurm import SlurmNode
from tests.systems.ssh import SshNode
from tests.systems.system import USERS, System, purge

SYSTEMS: dict[str, Callable[[], System]] = {"condor": CondorPool, "slurm": SlurmNode, "sge": SgeNode, "ssh": SshNode}

DOWN = 3
"""Exit code of `status` for a system that is not running."""


def main() -> int:
    options = parser().parse_args()
    if options.verb == "purge":
        purge()
        return 0
    system = SYSTEMS[options.system]()
    if options.verb == "up":
        system.up(by_hand=True)
        print(f"{system.name} is up; its files are in {system.state}")
    elif options.verb == "down":
        system.down()
        print(f"{system.name} {'stays up as long as tests use it' if system.is_up else 'is down'}")
    elif not system.is_up:
        print(f"{system.name} is down")
        return DOWN
    elif options.verb == "status":
        print(f"{system.name} {'is up' if system.answers() else 'does not answer'}; its files are in {system.state}")
    elif options.verb == "restart":
        system.restart()
    else:
        command = system.command(*options.words, user=options.user, folder=options.folder)
        os.execvp(command[0], command)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python3 -m tests.systems", description=__doc__)
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, description in (
        ("up", "install it if need be, start it, and let it run until `down`"),
        ("down", "kill it and its jobs and remove its files, as soon as no test uses it"),
        ("restart", "restart its daemons; its queue stays"),
        ("status", f"say whether it is up; exit code {DOWN} if not"),
    ):
        verbs.add_parser(verb, help=description).add_argument("system", choices=SYSTEMS)
    run = verbs.add_parser("run", help="run a command in it")
    run.add_argument("system", choices=SYSTEMS)
    run.add_argument("--user", choices=USERS, default="submit", help="as this user (%(default)s)")
    run.add_argument("--folder", type=Path, default="/", help="in this folder (%(default)s)")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments")
    verbs.add_parser("purge", help="remove what is kept between runs of the tests")
    return made


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SystemFailed as error:
        sys.exit(f"{shlex.join(sys.argv[1:])}: {error}")
