"""Processes under test have default handling of signals, also when the tests run in the background of a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

STANDARD = (1 << 31) - 1
"""The bits of the standard signals. The signals of the C library follow, and `make` leaves two of those ignored."""


def test_a_process_that_a_test_starts_ignores_and_blocks_no_signal() -> None:
    command = ["cat", "/proc/self/status"]
    status = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    masks = [int(mask, 16) & STANDARD for mask in re.findall(r"^Sig(?:Blk|Ign):\s*(\w+)$", status, re.MULTILINE)]
    assert masks == [0, 0]


def test_the_same_is_true_when_the_tests_are_started_with_signals_ignored() -> None:
    """A script that runs `make test &` under nohup starts the tests in this way."""
    test = (
        f"{Path(__file__).relative_to(ROOT)}::{test_a_process_that_a_test_starts_ignores_and_blocks_no_signal.__name__}"
    )
    ignoring = ["sh", "-c", 'trap "" INT QUIT HUP TERM; exec "$@"', "sh"]
    command = [*ignoring, sys.executable, "-m", "pytest", "-q", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
