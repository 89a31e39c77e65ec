"""Tasks that require cores, GPUs, memory and programs, with real slaves."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from tests.integration.apps.stage import fetched

import mwpy

GPUS = "CUDA_VISIBLE_DEVICES"


def had(seconds: float) -> tuple[dict[str, int], str, list[int], str, int, tuple[float, float]]:
    """What a task was given and sees, its process, and when it ran."""
    began = time.monotonic()
    time.sleep(seconds)
    seen = os.environ.get(GPUS, ""), sorted(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    return mwpy.given(), *seen, os.getpid(), (began, time.monotonic())


def test_no_two_tasks_have_the_same_gpu_at_a_time_and_no_process_changes_its_gpus() -> None:
    """The GPUs are only stated, so a task sees their numbers."""
    with mwpy.local_master(slaves=6, offers={"gpus": 4, "cpus": 6}) as mw:
        rows = [row for gpus in (1, 2, 1, 4, 3, 1) for row in mw.map(had, [0.002] * 30, gpus=gpus)]
    times: dict[str, list[tuple[float, float]]] = {}
    processes: dict[int, set[str]] = {}
    for given, names, _, _, pid, ran in rows:
        assert len(names.split(",")) == given["gpus"]
        processes.setdefault(pid, set()).add(names)
        for name in names.split(","):
            times.setdefault(name, []).append(ran)
    assert set(times) == {"0", "1", "2", "3"}
    for spans in times.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    assert all(len(names) == 1 for names in processes.values())


def test_wide_and_narrow_tasks_share_the_cores_that_an_agent_offers() -> None:
    """Never more than eight are taken, and all of them are taken at some moment."""
    random = Random(1)
    with mwpy.local_master(slaves=8, offers={"cpus": 8}) as mw:
        for _ in range(120):
            mw.submit(mwpy.task(had, random.uniform(0.001, 0.02)), cpus=random.choice((1, 1, 2, 4, 8)))
        rows: list[Any] = [result.value for result in fetched(mw, 120)]
    changes = [(row[5][0], row[0]["cpus"]) for row in rows] + [(row[5][1], -row[0]["cpus"]) for row in rows]
    taken = peak = 0
    for _, change in sorted(changes):
        taken += change
        peak = max(peak, taken)
    assert (taken, peak) == (0, 8)


def test_a_task_sees_what_it_was_given_and_the_next_one_sees_everything_again() -> None:
    cores = sorted(os.sched_getaffinity(0))
    policies: tuple[mwpy.Policies, ...] = ({}, {"cpus": 1, "memory": "512 MB"}, {})
    with mwpy.local_master(slaves=1) as mw:
        before, one, after = (next(iter(mw.map(had, [0.0], **policy))) for policy in policies)
    own = cores[:1] if len(cores) < (os.cpu_count() or 1) else cores
    assert one[:4] == ({"cpus": 1, "memory": 512 << 20}, "", own, "1")
    assert before[:4] == after[:4]
    assert (before[0], before[2]) == ({}, cores)


def test_a_program_that_a_task_starts_sees_the_same() -> None:
    show = mwpy.command(f"echo ${GPUS} $OMP_NUM_THREADS", shell=True, outputs={"shown": "STDOUT"})
    with mwpy.local_master(slaves=2, offers={"gpus": 2, "cpus": 4}) as mw:
        mw.submit(show.task(), gpus=2, cpus=3)
        mw.loop()
        (result,) = mw.results()
    assert result.value.outputs["shown"].read_text() == "0,1 3\n"


def test_a_program_is_required_by_its_name() -> None:
    with mwpy.local_master(slaves=1) as mw:
        assert list(mw.map(abs, [-1], requires={"sh": True, "python": ">=3.8", "host": "*"})) == [1]
        with pytest.raises(mwpy.TaskUnrunnable, match="no-such-program required, and it has none"):
            list(mw.map(abs, [-1], requires={"no-such-program": True}))


def test_without_slaves_a_task_runs_in_the_process_of_the_master_if_it_fits() -> None:
    with mwpy.local_master(slaves=0, offers={"gpus": 2}) as mw:
        assert [row[0]["gpus"] for gpus in (1, 2) for row in mw.map(had, [0.0], gpus=gpus)] == [1, 2]
        with pytest.raises(mwpy.TaskUnrunnable, match="gpus 3 required, and it offers 2"):
            list(mw.map(had, [0.0], gpus=3))


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ({"cpus": -1}, "cpus=-1: give a whole number"),
        ({"cpus": 1.5}, "give a whole number"),
        ({"gpus": "all"}, "give a whole number"),
        ({"memory": "2 bananas"}, 'such as "2 GB"'),
        ({"requires": {"cores": 4}}, "write 'cpus'"),
        ({"requires": {"python": 3.12}}, '">=3.12"'),
        ({"requires": {"python": ">=abc"}}, '">=3.10,<4"'),
        ({"requires": ["gpus"]}, "give a dictionary"),
        ({"priority": 0.5}, "give a whole number"),
        ({"cost": -1}, "give a number from 0 on"),
    ],
)
def test_a_wrong_requirement_is_an_error_of_the_call(policy: dict[str, Any], text: str) -> None:
    with pytest.raises(mwpy.UsageError, match=text):
        mwpy.task_algorithm(**policy)(had)


@pytest.mark.parametrize(
    ("offers", "text"),
    [
        ("cpus=many", "write such as cpus=8"),
        ("cores=8", "write 'cpus'"),
        ({"memory": "x"}, "write such as cpus=8"),
        ("python=3", "write such as cpus=8"),
    ],
)
def test_a_wrong_offer_is_an_error_of_the_call(offers: Any, text: str) -> None:
    with pytest.raises(mwpy.UsageError, match=text):
        mwpy.local_master(slaves=1, offers=offers)


def test_a_task_that_uses_more_than_it_required_is_ended_although_the_offer_is_a_lie() -> None:
    with mwpy.local_master(slaves=1, offers={"memory": "1 TB"}) as mw:
        (result,) = mw.map_results(bytearray, [400 << 20], memory="100 MB", attempts_max=1)
    assert "--mw-offers says that this agent has 1.0 TiB" in str(result.error)


def test_a_command_prints_what_an_agent_offers() -> None:
    with mwpy.local_master(slaves=1, offers="!echo licence=2; echo gpus=3") as mw:
        assert next(iter(mw.map(had, [0.0], gpus=3, requires={"licence": 2})))[1] == "0,1,2"
