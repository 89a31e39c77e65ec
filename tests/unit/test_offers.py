"""What an agent finds on its machine and in its job, and how a task gets its part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwpy._system.offers import MACHINE_AD, Part, _gpus, found
from mwpy._values.options import Options
from mwpy._values.requires import Given


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """A machine with four GPUs, and files whose names are similar."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "10000", MACHINE_AD: "/no/such/file"}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a"}, ["GPU-a"]),
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1"}, ["1"]),
        ({MACHINE_AD: "/no/such/file"}, []),
        ({"SGE_TASK_ID": "undefined"}, []),
        ({"SGE_TASK_ID": "1", "SGE_HGR_gpu": "1 3"}, ["1", "3"]),
        ({"PBS_JOBID": "7.head"}, []),
        ({"PBS_JOBID": "7.head", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, ["GPU-a", "GPU-b"]),
    ],
)
def test_gpus_are_those_of_the_job_or_of_the_machine(
    devices: str, environment: dict[str, str], names: list[str]
) -> None:
    assert _gpus(environment, devices) == names
    assert found(Options(), environment, devices).amounts["gpus"] == len(names)


def test_the_smallest_number_counts(tmp_path: Path) -> None:
    """HTCondor names a file with what a job has; memory is in MiB there, and disk in KiB."""
    ad = tmp_path / "machine.ad"
    ad.write_text('Cpus = 1\nMemory = 64\nDisk = 1024\nName = "slot1_1@node"\n')
    amounts = found(Options(), {MACHINE_AD: str(ad)}).amounts
    assert (amounts["cpus"], amounts["memory"], amounts["disk"]) == (1, 64 << 20, 1 << 20)
    assert found(Options(job_memory=5 << 20), {}).amounts["memory"] == 5 << 20
    for variable in ("NSLOTS", "NCPUS", "PBS_NUM_PPN"):
        assert found(Options(), {variable: "1"}).amounts["cpus"] == 1


def test_a_task_is_pinned_to_its_processors_and_the_next_one_is_not() -> None:
    cores = sorted(os.sched_getaffinity(0))
    part = Part()
    try:
        part.use(Given({"cpus": 1}, [len(cores) - 1], []))
        assert sorted(os.sched_getaffinity(0)) == cores[-1:]
    finally:
        part.use(None)
    assert sorted(os.sched_getaffinity(0)) == cores


def test_gpus_that_are_offered_twice_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    part = Part()
    seen = []
    for gpus in ([0], [3], [0, 2], [1, 2]):
        part.use(Given({"gpus": len(gpus)}, [], gpus))
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    part.use(None)
    assert [*seen, os.environ["CUDA_VISIBLE_DEVICES"]] == ["GPU-a", "GPU-b", "GPU-a", "GPU-b,GPU-a", "GPU-a,GPU-b"]
