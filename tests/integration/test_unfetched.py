"""Results that a master algorithm does not fetch, with real processes."""

from __future__ import annotations

import sys

import pytest
from tests.integration.apps.stage import Stage, until

APP = """
import os, sys, time
import mwpy

def work(number):
    open(f"ran {number}", "w").close()
    return os.urandom(100_000)

@mwpy.master_algorithm
def master(mw, argv):
    for number in range(300):
        mw.submit(mwpy.task(work, number))
    while not os.path.exists("reported"):
        time.sleep(0.01)
    ran = sum(name.startswith("ran") for name in os.listdir("."))
    got = 0
    while got < 300:
        mw.loop()
        got += len(mw.results())
    slow = mw.map(work, range(300))
    last = [value for value in slow][-1]
    print(0 < ran < 300, got, len(last))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


@pytest.fixture
def stage(stage: Stage) -> Stage:
    (stage.folder / "app.py").write_text(APP)
    return stage


def test_results_that_nobody_fetches_hold_tasks_back_and_fetching_them_lets_all_tasks_run(stage: Stage) -> None:
    """A map goes on, too, although its results exceed the limit again and again."""
    options = ("--mw-local", "2", "--mw-max-waiting-results", "500000", "--mw-slave-task-group", "2")
    started = stage.start("", *options, program=[sys.executable, "app.py"])
    until(lambda: "wait for the master algorithm, so no more tasks are sent" in started.err, "a notice")
    (stage.folder / "reported").touch()
    assert started.end() == 0
    assert started.out == "True 300 100000\n"
    stage.no_process_left()
