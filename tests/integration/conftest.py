"""What many tests need: a folder with processes, and ends of the link in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage
from tests.loopback import Loopback, loopback


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def ends() -> Iterator[Loopback]:
    with loopback() as ends:
        yield ends
