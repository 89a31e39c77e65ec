"""Run a computation while faults of many kinds happen, and count what it loses.

Agents and slaves are killed, stopped, cut off and slowed; the master is killed and stopped; the disk is full; clocks
are stepped. The report counts the faults by kind and the losses: results that are missing, wrong or came twice, and
tasks that must not run twice and did. The exit code is 0 if there is none.

With --kills, the master of a simple computation is killed at random moments, and nothing else happens. The report says
how much finished work each kill repeats. The exit code is 0 if this is at most the last second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos import machines
from tests.chaos.chaos_run import Chaos
from tests.chaos.kills import Kills, text
from tests.chaos.verdict import judge


def main() -> int:
    options = parser().parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # the commands for networks are there
    apart = ""
    if not machines.is_inside():
        apart = machines.why_not()
        if not apart:
            machines.enter(sys.argv[1:])
    folder = Path(options.folder or tempfile.mkdtemp(prefix="mwpy-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"the files of the run are in {folder}", flush=True)
    is_good = kill_master(folder, options) if options.kills else cause_chaos(folder, options, apart)
    if is_good and not options.folder:
        shutil.rmtree(folder)
    return 0 if is_good else 1


def cause_chaos(folder: Path, options: argparse.Namespace, apart: str) -> bool:
    """Run a computation among faults. Return whether it lost nothing."""
    chaos = Chaos(folder, options.seed, options.minutes * 60, options.machines, apart)
    chaos.run()
    verdict = judge(chaos)
    print(verdict.text())
    return verdict.is_good


def kill_master(folder: Path, options: argparse.Namespace) -> bool:
    """Kill the master at random moments. Return whether it lost nothing, and each kill repeated little."""
    kills = Kills(folder, options.seed, options.kills, options.tasks)
    kills.run()
    print(text(kills))
    return kills.is_good


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    made.add_argument("--minutes", type=float, default=10.0, help="for how long faults begin")
    made.add_argument("--seed", type=int, default=1, help="of the faults")
    made.add_argument("--machines", type=int, default=3, help="how many machines there are beside that of the master")
    made.add_argument("--kills", type=int, default=0, help="kill only the master, this many times")
    made.add_argument("--tasks", type=int, default=300_000, help="how many tasks the computation with --kills has")
    made.add_argument(
        "--folder",
        default="",
        help="an empty folder for all files of the run; else a temporary one, which stays if the run finds a loss",
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
