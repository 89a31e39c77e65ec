"""A short chaos run, and some kills of a master. `make chaos` and `make kill-master` run them for longer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.chaos.faults import KINDS
from tests.chaos.kills import Kills, text

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
        assert re.search(rf"^{kind} +(\d+|left out)$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^losses +0$", done.stdout, re.MULTILINE), done.stdout


def test_a_kill_of_the_master_repeats_nothing_that_the_algorithm_had_got(tmp_path: Path) -> None:
    """The aggregate is exact each time."""
    kills = Kills(tmp_path, seed=1, kills=3, tasks=12_000)
    kills.run()
    assert kills.is_whole, text(kills)
