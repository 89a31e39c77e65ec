"""A short chaos run, and some kills of a master. `make chaos` and `make kill-master` run them for longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.chaos.chaos_run import Chaos
from tests.chaos.faults import KINDS, plan
from tests.chaos.kills import Kills, costs, text
from tests.chaos.supervision import End
from tests.chaos.verdict import judge

ROOT = Path(__file__).parent.parent.parent

SHORT_S = 24
"""How long faults begin in the short run: long enough for each kind."""

PATIENCE_S = 280.0


def test_a_chaos_run_loses_nothing(tmp_path: Path) -> None:
    """The report counts each kind of fault, or says why it is left out."""
    options = ["--minutes", str(SHORT_S / 60), "--seed", "1", "--machines", "2", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert re.search(rf"^{kind} +(\d+ +0|left out)$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^all +\d+ +0$", done.stdout, re.MULTILINE), done.stdout


def test_a_kill_of_the_master_repeats_nothing_that_the_algorithm_had_got(tmp_path: Path) -> None:
    """The aggregate is exact each time."""
    kills = Kills(tmp_path, seed=1, kills=3, tasks=12_000)
    kills.run()
    assert kills.is_whole, text(kills)


def test_a_seed_gives_the_same_faults(tmp_path: Path) -> None:
    first, second = (plan(7, 60, list(KINDS)) for _ in range(2))
    assert [(each.kind, each.at_s, each.for_s) for each in first] == [
        (each.kind, each.at_s, each.for_s) for each in second
    ]
    assert {each.kind for each in first} == {*KINDS}


def test_a_repetition_is_the_cost_of_the_kill_that_came_before_it(tmp_path: Path) -> None:
    """The first kill costs nothing, the second one a task that had ended half a second before."""
    (tmp_path / "executions").write_text("1 0.0 1.0 9\n2 2.0 3.0 9\n2 5.0 6.0 9\n3 5.0 6.0 9\n3 6.0 7.0 9\n")
    (tmp_path / "lives").write_text("0\n1.8\n4\n")
    (first, second), in_one_life = costs(tmp_path, [1.5, 3.5])
    assert in_one_life == 1
    assert (first.after, first.repeated) == (1, 0)
    assert (second.after, second.repeated, second.work_s, second.oldest_s) == (2, 1, 1.0, 0.5)


def test_a_missing_result_counts_for_the_kinds_of_faults_that_happened_meanwhile(tmp_path: Path) -> None:
    """The fault that had ended before the task was started is not blamed."""
    (tmp_path / "executions").write_text("+ 0/single/1 10.0 host1 9\n")
    chaos = Chaos(tmp_path, 1, 60, 1, "")
    chaos.out = '{"rounds": 1, "results": 0, "missing": ["0/single/1"], "wrong": [], "twice": [], "unrunnable": []}'
    chaos.master = [End(20.0, 0, "", "")]
    chaos.faults = plan(1, 60, ["agent killed", "disk full"])[:2]
    for fault, begun in zip(chaos.faults, (5.0, 12.0), strict=True):
        fault.begun, fault.ended = begun, begun + 1
    verdict = judge(chaos)
    early, late = (fault.kind for fault in chaos.faults)
    assert not verdict.is_good
    assert re.search(rf"^{early} +1 +0$", verdict.text(), re.MULTILINE), verdict.text()
    assert re.search(rf"^{late} +1 +1$", verdict.text(), re.MULTILINE), verdict.text()
    assert "LOSS missing: 0/single/1" in verdict.text()
