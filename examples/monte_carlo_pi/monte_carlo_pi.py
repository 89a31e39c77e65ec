"""Monte Carlo: approximate pi with random points. `mw.map` needs no tuning.

    python examples/monte_carlo_pi/monte_carlo_pi.py                       # this machine, one slave per core
    python examples/monte_carlo_pi/monte_carlo_pi.py --trial-sets 1000     # a better approximation

On several machines, start the master first. The slaves find it through its resource file:

    python examples/monte_carlo_pi/monte_carlo_pi.py --mw-master --mw-resource-file pi.rsc
    python examples/monte_carlo_pi/monte_carlo_pi.py --mw-slave --mw-resource-file pi.rsc

Each trial set uses its number as its seed, so the answer does not depend on the number of slaves.
"""

import argparse
import random
import sys
import time

import mwpy

TRIALS_IN_A_SET = 100_000
"""Points in one task. They take some hundredths of a second, which is much longer than sending a task."""


@mwpy.task_algorithm
def trial_set(seed: int) -> int:
    """Draw random points in the unit square. Return how many are in the quarter circle."""
    uniform = random.Random(seed).random
    return sum(uniform() ** 2 + uniform() ** 2 <= 1.0 for _ in range(TRIALS_IN_A_SET))


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Add up the trial sets as they arrive, in any order."""
    trial_sets = parse(argv).trial_sets
    mw.allocate_slaves(min(trial_sets, 1000))
    start = time.perf_counter()
    in_circle = sum(mw.imap_unordered(trial_set, range(trial_sets)))
    seconds = time.perf_counter() - start
    in_square = trial_sets * TRIALS_IN_A_SET
    print(f"Finished {trial_sets} trial sets of {TRIALS_IN_A_SET} points in {seconds:.2f} s.")
    print(f"Pi[{in_circle}/{in_square}]: {4 * in_circle / in_square:.6f}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Approximate pi.")
    parser.add_argument("--trial-sets", type=int, default=100, metavar="N", help="number of tasks (default: 100)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(mwpy.main())
