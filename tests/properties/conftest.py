"""The time limit of the property tests: none, for Hypothesis bounds their number, and a busy machine takes its time.

A test that a limit interrupts looks to Hypothesis like one that behaves differently from time to time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))
