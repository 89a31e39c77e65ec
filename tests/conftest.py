"""Settings of all tests: default signals, the number of seeds to simulate, and the output of a failing run.

A failure that comes from a seed must show the seed and what happened. There are two ways: raise an exception with the
attributes `seed` and `transcript`, or use the fixture `story` and append lines to it. Both are printed below the
traceback of a failing test, and only there.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from tests.integration.apps.stage import Stage

DEFAULT_SEEDS = 150
"""The number of seeds that `make test` simulates."""

LONGEST_STORY = 400
"""The number of lines at the end of a story that are printed. The end explains the failure."""

MEMORY = "/dev/shm"

STORY = pytest.StashKey[list[str]]()

settings.register_profile("mwpy", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("mwpy")


def restore_signals() -> None:
    """Let every process that a test starts begin with default handling of signals.

    A shell ignores SIGINT and SIGQUIT in its background jobs, and `nohup` ignores SIGHUP. A child process inherits
    ignored and blocked signals, but no handlers. Therefore this process gets a handler that does nothing: it still
    ignores the signal, and its children do not. Only SIGINT interrupts this process again, because tests may send it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)


restore_signals()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=DEFAULT_SEEDS, help="number of seeds that the simulator runs")
    parser.addoption("--frames", type=int, default=3000, help="number of hostile frames that a master is sent")
    parser.addoption("--kills", type=int, default=60, help="number of kills in a computation, ten in a second")
    parser.addoption("--losses", type=int, default=10, help="number of power losses of a computation")
    parser.addoption("--agents", type=int, default=60, help="number of agents in an HTCondor pool")
    parser.addoption("--seed", type=int, help="the only seed that the simulator runs")


def pytest_collection_finish() -> None:
    """Leave what was made so far out of later garbage collections. Several tests collect, and thousands of collected
    tests would make each collection take a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def seeds(pytestconfig: pytest.Config) -> range:
    """The seeds to simulate: 0, 1, 2 and so on. `--seeds` sets their number."""
    if (seed := pytestconfig.getoption("--seed")) is not None:
        return range(seed, seed + 1)
    return range(pytestconfig.getoption("--seeds"))


@pytest.fixture
def frames(pytestconfig: pytest.Config) -> int:
    """The number of hostile frames."""
    return int(pytestconfig.getoption("--frames"))


@pytest.fixture
def num_kills(pytestconfig: pytest.Config) -> int:
    """The number of kills in a computation."""
    return int(pytestconfig.getoption("--kills"))


@pytest.fixture
def losses(pytestconfig: pytest.Config) -> int:
    """The number of power losses of a computation."""
    return int(pytestconfig.getoption("--losses"))


@pytest.fixture
def num_agents(pytestconfig: pytest.Config) -> int:
    """The number of agents that join a computation in an HTCondor pool."""
    return int(pytestconfig.getoption("--agents"))


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of hostile frames and of power losses."""
    return int(pytestconfig.getoption("--seed") or 0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A folder with processes, which end with the test."""
    with Stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if the machine has one: few tests need to wait for a disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def story(request: pytest.FixtureRequest) -> list[str]:
    """Lines that are printed if the test fails. The first line should name the seed."""
    lines: list[str] = request.node.stash.setdefault(STORY, [])
    return lines


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        lines = item.stash.get(STORY, []) + _story_of(call.excinfo.value if call.excinfo else None)
        if lines:
            report.sections.append(("story of the failing run", "\n".join(lines[-LONGEST_STORY:])))
    return report


def _story_of(error: BaseException | None) -> list[str]:
    """Return the transcript and the seed of an exception, if it has them."""
    seed = getattr(error, "seed", None)
    transcript = getattr(error, "transcript", ())
    lines = transcript.splitlines() if isinstance(transcript, str) else [str(line) for line in transcript]
    return lines if seed is None else [*lines, f"seed {seed}"]
