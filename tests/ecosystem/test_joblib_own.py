"""joblib's own tests of its backends pass with the backend `mwpy`; `joblib_own.py` says which of them run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
def test_joblibs_own_tests_pass_with_mwpy(stage: Stage) -> None:
    """They run in a process of their own, because they change the default backend."""
    plugins = ("-p", "tests.ecosystem.joblib_own", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    configuration = ("-c", "/dev/null", "--rootdir", stage.folder, "--timeout", 120)
    running = stage.start(
        "",
        *("-q", *plugins, *configuration, "--pyargs", "joblib.test.test_parallel"),
        program=[sys.executable, "-m", "pytest"],
        variables={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert running.end(280.0) == 0, f"{running.out[-8000:]}\n{running.err[-2000:]}"
    found = re.search(r"(\d+) passed", running.out)
    assert found
    assert int(found[1]) > 100
    stage.no_process_left()
