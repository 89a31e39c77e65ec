"""Optuna search: ask Optuna for trials, run them on slaves, and start another trial as soon as one has ended.

    pip install optuna
    python examples/optuna_search/optuna_search.py --trials 40      # this machine, one slave per core

Optuna stays in the master: it suggests the parameters of a trial, and learns from its value. The slaves only compute.
"""

import argparse
import sys

import optuna

import mwpy

SPACE = {
    "x": optuna.distributions.FloatDistribution(-10, 10),
    "y": optuna.distributions.FloatDistribution(-10, 10),
}


@mwpy.task_algorithm
def objective(x: float, y: float) -> float:
    """Compute what the search minimizes. This runs on a slave."""
    return (x - 2) ** 2 + (y + 5) ** 2


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run trials, some of them at the same time. The trial itself is the tag of its task."""
    parser = argparse.ArgumentParser(prog="optuna_search.py")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=4, help="how many trials run or wait at the same time")
    parser.add_argument("--sampler", choices=("tpe", "random"), default="tpe")
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "tpe": optuna.samplers.TPESampler(seed=7, constant_liar=True),  # expects other trials to run meanwhile
        "random": optuna.samplers.RandomSampler(seed=7),
    }
    study = optuna.create_study(sampler=samplers[options.sampler])

    def start() -> None:
        trial = study.ask(SPACE)
        mw.submit(objective.task(**trial.params), tag=trial)

    for _ in range(min(options.at_once, options.trials)):
        start()
    ended = 0
    while ended < options.trials:
        mw.loop()
        for result in mw.results():
            if result.ok:
                study.tell(result.tag, result.value)
            else:
                print(result.error)
                study.tell(result.tag, state=optuna.trial.TrialState.FAIL)
            ended += 1
            if len(study.trials) < options.trials:
                start()
    best = study.best_trial
    print(
        f"{ended} trials; the best is {best.number}: {best.value:.6f} at x={best.params['x']:.3f}, "
        f"y={best.params['y']:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
