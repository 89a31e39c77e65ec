"""Monte Carlo: pi from random points, with `mw.map`, which needs no tuning.

    python examples/monte_carlo_pi/monte_carlo_pi.py                       # here, a slave on each core
    python examples/monte_carlo_pi/monte_carlo_pi.py --trial-sets 1000     # a better pi

On several machines, the master first; the slaves read from its resource file where it is:

    python examples/monte_carlo_pi/monte_carlo_pi.py --mw-master --mw-resource-file pi.rsc
    python examples/monte_carlo_pi/monte_carlo_pi.py --mw-slave --mw-resource-file pi.rsc

Each trial set is seeded by its number, so the answer is the same on any number of slaves.
"""

import argparse
import random
import sys
import time

import mwpy

TRIALS_IN_A_SET = 100_000
"""Points in one task: some hundredths of a second, long beside what a task costs to send."""


@mwpy.task_algorithm
def trial_set(seed: int) -> int:
    """Throw points into the unit square; return how many fell into the quarter circle."""
    throw = random.Random(seed).random
    return sum(throw() ** 2 + throw() ** 2 <= 1.0 for _ in range(TRIALS_IN_A_SET))


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Add up the trial sets as they come, in any order."""
    trial_sets = parse(argv).trial_sets
    mw.allocate_slaves(min(trial_sets, 1000))
    start = time.perf_counter()
    in_circle = sum(result.value for result in mw.map(trial_set, range(trial_sets)))
    seconds = time.perf_counter() - start
    in_square = trial_sets * TRIALS_IN_A_SET
    print(f"Finished {trial_sets} trial sets of {TRIALS_IN_A_SET} points in {seconds:.2f} s.")
    print(f"Pi[{in_circle}/{in_square}]: {4 * in_circle / in_square:.6f}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Approximate pi.")
    parser.add_argument("--trial-sets", type=int, default=100, metavar="N", help="how many tasks (100)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(mwpy.main())
