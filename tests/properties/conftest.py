"""Property tests have no time limit.

Hypothesis limits the number of examples, and a busy machine may need long for them. If a time limit interrupts a test,
Hypothesis reports that the test is flaky.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))
