"""What all tests share: how many seeds to simulate, and how a failing run tells its story.

A failure that comes from a seed must show the seed and what happened. Either raise an exception with
attributes `seed` and `transcript`, or ask for the fixture `story` and append lines to it; both are
printed below the traceback of a failing test and nowhere else.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import settings

DEFAULT_SEEDS = 2000
"""How many seeds `make test` simulates."""

LONGEST_STORY = 400
"""How many of a story's last lines are printed: the end is what explains a failure."""

STORY = pytest.StashKey[list[str]]()

settings.register_profile("mwpy", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("mwpy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=DEFAULT_SEEDS, help="how many seeds the simulator runs")


@pytest.fixture(scope="session")
def seeds(pytestconfig: pytest.Config) -> range:
    """The seeds to simulate: 0 and up, as many as `--seeds` says."""
    return range(pytestconfig.getoption("--seeds"))


@pytest.fixture
def story(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are shown if the test fails; the first should name the seed."""
    lines: list[str] = request.node.stash.setdefault(STORY, [])
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        lines = item.stash.get(STORY, []) + _told_by(call.excinfo.value if call.excinfo else None)
        if lines:
            report.sections.append(("story of the failing run", "\n".join(lines[-LONGEST_STORY:])))
    return report


def _told_by(error: BaseException | None) -> list[str]:
    """Read the seed and the transcript off an exception that carries them."""
    seed = getattr(error, "seed", None)
    transcript = getattr(error, "transcript", ())
    lines = transcript.splitlines() if isinstance(transcript, str) else [str(line) for line in transcript]
    return lines if seed is None else [*lines, f"seed {seed}"]
