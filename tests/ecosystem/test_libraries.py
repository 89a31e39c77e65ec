"""Libraries that run their work on slaves compute the same numbers as without mwpy, and leave no process behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import optuna
import pytest
from tests.integration.apps.notebook import Notebook
from tests.integration.apps.stage import Stage

APPS = Path(__file__).parent / "apps"
ROOT = Path(__file__).parent.parent.parent
TRIALS = 30


@pytest.mark.parametrize("app", sorted(path.stem for path in APPS.glob("*.py")))
def test_a_library_computes_the_same_as_without_mwpy(app: str, stage: Stage) -> None:
    """Each application computes everything twice, and prints both."""
    running = stage.start("", program=[sys.executable, str(APPS / f"{app}.py")])
    assert running.end() == 0, running.err
    assert running.report["parallel"]
    assert running.report["parallel"] == running.report["serial"]
    stage.no_process_left()


def test_trials_of_optuna_are_the_same_as_without_mwpy(stage: Stage) -> None:
    """The example asks for trials and reports their values in another order than Optuna alone. The trials are those of
    the same random numbers."""
    example = ROOT / "examples" / "optuna_search" / "optuna_search.py"
    arguments = ("--trials", TRIALS, "--sampler", "random", "--mw-local", 2)
    running = stage.start("", *arguments, program=[sys.executable, str(example)])
    assert running.end() == 0, running.err
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=7))
    study.optimize(
        lambda trial: (trial.suggest_float("x", -10, 10) - 2) ** 2 + (trial.suggest_float("y", -10, 10) + 5) ** 2,
        n_trials=TRIALS,
    )
    best = study.best_trial
    assert running.out.splitlines()[-1] == (
        f"{TRIALS} trials; the best is {best.number}: {best.value:.6f} at x={best.params['x']:.3f}, "
        f"y={best.params['y']:.3f}"
    )
    stage.no_process_left()


def test_optuna_learns_from_trials_that_end_in_any_order(stage: Stage) -> None:
    """With its usual sampler, the suggestions depend on the values that have arrived."""
    example = ROOT / "examples" / "optuna_search" / "optuna_search.py"
    running = stage.start("", "--trials", TRIALS, "--mw-local", 2, program=[sys.executable, str(example)])
    assert running.end() == 0, running.err
    assert re.fullmatch(rf"{TRIALS} trials; the best is \d+: \d+\.\d+ at x=.*, y=.*", running.out.splitlines()[-1])
    stage.no_process_left()


def test_a_notebook_uses_joblib_and_an_executor(stage: Stage) -> None:
    """Functions of the notebook travel by value, and cells change them. The kernel's end ends the kept slaves.

    On a busy machine, the first call says that no slave has connected yet. So only the last line counts.
    """
    with Notebook(stage) as notebook:
        notebook.run("import joblib, mwpy, mwpy.joblib\nmwpy.joblib.register()\nscale = 2")
        notebook.run("def scaled(x): return scale * x")
        call = "joblib.Parallel(n_jobs=2)(joblib.delayed(scaled)(x) for x in range(4))"
        assert notebook.run(call) == "[0, 2, 4, 6]"
        with_mwpy = f"with joblib.parallel_config(backend='mwpy'):\n    values = {call}\nvalues"
        assert notebook.run(with_mwpy).splitlines()[-1] == "[0, 2, 4, 6]"
        notebook.run("scale = 3")
        assert notebook.run(with_mwpy).splitlines()[-1] == "[0, 3, 6, 9]"
        notebook.run("executor = mwpy.Executor(slaves=2)")
        assert notebook.run("list(executor.map(scaled, range(4)))") == "[0, 3, 6, 9]"
    stage.no_process_left()
