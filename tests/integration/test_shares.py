"""Shared objects in real processes: slaves use the same memory, and each agent gets an object once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mwpy
from mwpy._core.master.dispatch import Shares
from mwpy._transport import shared_objects
from mwpy._values.messages import PART_BYTES


@pytest.fixture(params=["this host", "another host"])
def mw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[mwpy.Master]:
    """A master with two slaves. In one case, its agent does not find the memory of the master."""
    if request.param == "another host":
        here, location = os.getpid(), shared_objects._location
        monkeypatch.setattr(shared_objects, "_location", lambda file: "" if os.getpid() == here else location(file))
    with mwpy.local_master(slaves=2) as mw:
        yield mw


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which parts agents ask for."""
    asked: list[int] = []
    send_part = Shares.send_part

    def send(self: Shares, agent: Any, wanted: Any) -> None:
        asked.append(wanted.start)
        send_part(self, agent, wanted)

    monkeypatch.setattr(Shares, "send_part", send)
    return asked


@dataclass
class Setup:
    """Something that a user may pass to a task."""

    table: Any
    names: list[Any]


def look_up(place: int, table: Any) -> tuple[float, bool, bool, set[str], int]:
    """Use a table. Return an element, whether the table could be changed, and which memory it is in."""
    with Path("/proc/self/maps").open(encoding="ascii") as maps:
        memories = {line.split()[4] for line in maps if "mwpy-shared" in line}
    return float(table[place]), table.flags.writeable, table.flags.owndata, memories, os.getppid()


def describe(setup: Setup) -> tuple[str, float, Any]:
    return type(setup.table).__name__, float(setup.table.sum()), setup.names


def end_agent_once(table: Any, agent: int) -> float:
    """Kill the agent, the first time."""
    if os.getppid() == agent:
        os.kill(agent, signal.SIGKILL)
        signal.pause()
    return float(table[-1])


def test_all_slaves_use_the_same_memory_and_the_agent_gets_it_once(mw: mwpy.Master, parts: list[int]) -> None:
    """An array is read-only and not copied. When its agent is killed, the next agent gets it again."""
    size = 3 * PART_BYTES
    table = mw.share(np.arange(size // 8, dtype=float))
    results = [*mw.map(look_up, range(200), itertools.repeat(table))]
    assert [value for value, *_ in results] == [*range(200)]
    assert {each[1:3] for each in results} == {(False, False)}
    assert len({memory for *_, memories, _ in results for memory in memories}) == 1
    again = mw.share(np.arange(size // 8, dtype=float))
    [total] = mw.map(partial(np.sum), [again])
    assert total == np.arange(size // 8).sum()
    asked = [0, PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES] if parts else []
    assert sorted(parts) == asked
    agent = results[0][-1]
    assert [*mw.map(end_agent_once, [table], [agent])] == [size // 8 - 1]
    assert sorted(parts) == sorted(asked * 2)


def test_a_handle_can_be_anywhere_in_the_arguments_and_in_a_function(mw: mwpy.Master) -> None:
    table, names = mw.share(np.ones(20_000)), mw.share(["a", "b"])
    setup = Setup(table, [names, {"more": names}])
    mw.submit(mwpy.task(describe, setup), tag="nested")
    mw.loop()
    [result] = mw.results()
    assert result.value == ("ndarray", 20_000.0, [["a", "b"], {"more": ["a", "b"]}])
    assert [*mw.map(lambda x: x + len(names) + table.sum(), [1, 2])] == [20_003.0, 20_004.0]
    assert [*mw.map(partial(max, names), [["a", "c"]])] == [["a", "c"]]


def scale(table: dict[str, Any], factor: float) -> float:
    """Change a shared object, as `frame["x"] *= factor` does."""
    table["x"] = table["x"] * factor
    table["factors"].append(factor)
    return float(table["x"].sum()) + 0.5 * len(table["factors"])


def scaled(mw: mwpy.Master) -> dict[str, list[float]]:
    """What tasks return that change a shared object, in all ways in which they get it."""
    table = mw.share({"x": np.ones(1_000_000), "factors": []})
    factors = [2.0, 3.0, 4.0]
    return {
        "argument": [*mw.map(scale, itertools.repeat(table), factors)],
        "partial": [*mw.map(partial(scale, table), factors)],
        "closure": [*mw.map(lambda factor: scale(table, factor), factors)],
        "task": [result.value for result in mw.as_completed([mwpy.task(scale, table, k) for k in factors])],
    }


SCALED = [2e6 + 0.5, 3e6 + 0.5, 4e6 + 0.5]


def test_a_task_that_changes_a_shared_object_does_not_change_it_for_other_tasks(mw: mwpy.Master) -> None:
    for way, values in scaled(mw).items():
        assert sorted(values) == SCALED, way


def test_a_task_in_the_process_of_the_master_changes_only_its_own_object() -> None:
    with mwpy.local_master(slaves=0) as mw:
        for way, values in scaled(mw).items():
            assert sorted(values) == SCALED, way


def test_a_notice_says_that_tasks_must_not_change_a_shared_object_that_is_large_without_arrays(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with mwpy.local_master(slaves=1) as mw:
        mw.share({"x": np.ones(1_000_000)})
        mw.share("x" * 2_000_000)
        assert sum(mw.map(len, [mw.share(["x" * 2_000_000])])) == 1
    [line] = [line for line in capfd.readouterr().err.splitlines() if "mw.share" in line]
    assert "this list has 1 MiB or more beside its arrays, so all tasks of a slave use the same object" in line


def test_a_master_without_slaves_gives_tasks_the_same_objects() -> None:
    with mwpy.local_master(slaves=0) as mw:
        mine = np.ones(20_000)
        table = mw.share(mine)
        mine[:] = 2.0
        [(value, writeable, owned, *_)] = mw.map(look_up, [0], [table])
        assert (value, writeable, owned) == (1.0, False, False)
    with pytest.raises(mwpy.UsageError, match="the computation is over"):
        mw.share(1)


def fail(table: Any) -> None:
    raise ValueError(f"{table[0]}")


def test_a_failed_task_can_run_again_here_while_there_is_a_handle() -> None:
    with mwpy.local_master(slaves=0) as mw:
        table = mw.share([5])
        [result] = mw.map_results(fail, [table])
    with pytest.raises(ValueError, match="5"):
        mwpy.replay(result.task_id)


def test_an_algorithm_shares_far_more_objects_than_a_process_may_open_files(tmp_path: Path) -> None:
    """Each object is given up when its handle is gone. Some handles stay, so the agent drops objects by number, too."""
    script = tmp_path / "iterative.py"
    script.write_text(
        """
import collections, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import mwpy

if __name__ == "__main__":
    kept = collections.deque(maxlen=70)
    with mwpy.local_master(slaves=1) as mw:
        for number in range(400):
            kept.append(mw.share([number]))
            assert [*mw.map(sum, [kept[-1]])] == [number]
            if number > 300:
                kept.popleft()
"""
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
