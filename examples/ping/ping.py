"""Ping: create many tiny tasks as they are needed, and measure how fast they run.

    python examples/ping/ping.py                       # this machine, one slave per core
    python examples/ping/ping.py --pings 200000        # more pings
    python examples/ping/ping.py --mw-local 2          # this machine, two slaves

On several machines, start the master first. The slaves find it through its resource file:

    python examples/ping/ping.py --mw-master --mw-resource-file ping.rsc
    python examples/ping/ping.py --mw-slave --mw-resource-file ping.rsc --mw-slave-processes 4

For HTCondor, see docs/clusters/htcondor.md.
"""

import argparse
import sys
import time
from itertools import repeat

import mwpy


@mwpy.task_algorithm
def ping(word: str) -> str:
    """Answer a ping. This runs on a slave."""
    return "ping-ok" if word == "ping" else "ping-not-ok"


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Count the answers as they arrive."""
    pings = parse(argv).pings
    mw.allocate_slaves(1000)  # the number of slaves that the resource file requests from a batch system
    good = bad = 0
    start = time.perf_counter()
    for result in mw.map_results(ping, repeat("ping", pings)):
        if result.ok and result.value == "ping-ok":
            good += 1
        else:
            bad += 1
            print(f"a ping came back wrong: {result.error or result.value}", file=sys.stderr)
    seconds = time.perf_counter() - start
    rate = pings / seconds
    print(f"{pings} pings: {good} good, {bad} bad, in {seconds:.2f} s: {rate:.0f} tasks per second")
    return 0 if bad == 0 else 1


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send pings to slaves and count the answers.")
    parser.add_argument("--pings", type=int, default=10_000, metavar="N", help="number of pings (default: 10000)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(mwpy.main())
