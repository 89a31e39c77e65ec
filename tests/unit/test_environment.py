"""The settings that a master gives to an agent, and an agent to a slave, through the environment."""

from __future__ import annotations

import pytest

from mwpy._values.errors import UsageError
from mwpy._values.options import MasterStream, slave_or_template, thread_limits


@pytest.mark.parametrize("text", ["", "1", "{", '{"stream": 3}', '{"shoe": 1}'])
def test_settings_that_no_agent_wrote_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MWPY_SLAVE is set, but not by an agent"):
        slave_or_template(text)


@pytest.mark.parametrize("text", ["", "1", "{", '{"stream": 3}', '{"shoe": 1}'])
def test_a_stream_that_no_master_gave_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="MWPY_MASTER is set, but not by a master"):
        MasterStream.from_json(text)


@pytest.mark.parametrize(("cores", "slaves", "share"), [(64, 64, "1"), (64, 6, "10"), (2, 8, "1"), (8, 1, "8")])
def test_a_slave_gets_its_share_of_the_cores_for_the_threads_of_numeric_libraries(
    cores: int, slaves: int, share: str
) -> None:
    limits = thread_limits({}, cores, slaves)
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"} <= set(limits)
    assert set(limits.values()) == {share}


def test_the_users_own_limit_of_threads_is_kept() -> None:
    """Each library reads OMP_NUM_THREADS if its own variable is missing, so the limit there counts for all of them."""
    assert "MKL_NUM_THREADS" not in thread_limits({"MKL_NUM_THREADS": "3"}, 8, 2)
    assert thread_limits({"MKL_NUM_THREADS": "3"}, 8, 2)["OMP_NUM_THREADS"] == "4"
    assert thread_limits({"OMP_NUM_THREADS": "2"}, 8, 2) == {}
    assert thread_limits({"OMP_NUM_THREADS": "2", "PYTHON_CPU_COUNT": "4"}, 8, 2) == {}


def test_the_slaves_of_a_job_share_the_number_of_threads_that_the_batch_system_set_for_the_job() -> None:
    """HTCondor sets each of these variables to the number of processors of the job."""
    of_job = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHON_CPU_COUNT"), "4")
    assert thread_limits(of_job, 8, 4) == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert thread_limits(of_job, 8, 1) == {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    limits = thread_limits({"MKL_NUM_THREADS": "6", "NCPUS": "6"}, 8, 2)
    assert (limits["MKL_NUM_THREADS"], limits["OMP_NUM_THREADS"]) == ("3", "3")


@pytest.mark.parametrize("name", ["SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "NSLOTS"])
def test_the_slaves_of_a_job_share_no_more_cores_than_it_has(name: str) -> None:
    """A batch system that does not bind its jobs to cores lets a process use all cores of the machine."""
    assert thread_limits({name: "4"}, 64, 2)["OMP_NUM_THREADS"] == "2"
    assert thread_limits({name: "128"}, 64, 2)["OMP_NUM_THREADS"] == "32"
