"""What the machine and the job of an agent offer to tasks, and how a task gets its part of this.

The agent looks at what its batch system says, at its control group and at the machine; the smallest number counts.
`--mw-offers` overrides what is found. GPUs are found by their device files, because each program that lists them takes
a second, and the start of an agent would wait for it.

A slave gives each task the GPUs that it was given through the variables which the libraries of all vendors read, and
its processors by pinning its threads. So a program that the task starts sees the same.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from glob import glob
from typing import Any

from attrs import Factory, define

from mwpy._system import memory, process
from mwpy._values.errors import UsageError, describe_exit
from mwpy._values.options import THREAD_VARIABLES, Options, job_cpus
from mwpy._values.requires import CPUS, DISK, GPUS, HOST, MEMORY, PLATFORM, PYTHON, Given, Offers, offers_in

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Each names the GPUs that a process may use, for one vendor or library."""

JOB_GPU_VARIABLES = ("SLURM_JOB_GPUS", "SGE_HGR_gpu")
"""Each names the GPUs of a job, in Slurm and in Grid Engine."""

NO_GPU = ("-1", "NoDevFiles", "none", "10000")
"""What stands for no GPU in these variables; HTCondor writes the last one."""

MACHINE_AD = "_CONDOR_MACHINE_AD"
"""Names a file with what HTCondor gave to this job."""

IN_A_JOB = (MACHINE_AD, "SLURM_JOB_ID", "SGE_TASK_ID", "PBS_JOBID")
"""One of them is set in each job of HTCondor, Slurm, Grid Engine and PBS."""

COMMAND_S = 60.0
"""How long the command of `--mw-offers` may take, in seconds."""


def found(options: Options, environment: Mapping[str, str], root: str = "/") -> Offers:
    """Return what the agent of this process offers.

    Args:
        options: its options, with what was stated.
        environment: its environment variables.
        root: where the files of the system are.

    Raises:
        UsageError: the command of `--mw-offers` fails, or prints something else; the user's fault.
    """
    ad = _machine_ad(environment.get(MACHINE_AD, ""))
    cpus = [job_cpus(environment, process.count_cores()), memory.limit_of_cpus(), ad.get("cpus")]
    amounts = {CPUS: max(1, min(each for each in cpus if each)), GPUS: len(_gpus(environment, root))}
    has = [options.job_memory, memory.limit_bytes(), memory.machine_bytes(), ad.get("memory", 0) << 20]
    amounts[MEMORY] = min(each for each in has if each)
    free = _free_bytes(environment.get("TMPDIR") or "/tmp")
    amounts[DISK] = min(free, (ad.get("disk", 0) << 10) or free)
    texts = {
        PYTHON: platform.python_version(),
        PLATFORM: f"{platform.system()}-{platform.machine()}",
        HOST: platform.node(),
    }
    stated = _stated(options.offers)
    amounts |= {name: has for name, has in stated.items() if isinstance(has, int)}
    texts |= {name: has for name, has in stated.items() if isinstance(has, str)}
    pins = amounts[CPUS] <= process.count_cores() < (os.cpu_count() or 1)  # else other processes have the same ones
    return Offers(amounts, texts, sorted(stated), pins=pins)


def _free_bytes(folder: str) -> int:
    """How much disk space is free for temporary files; 0 if there is no such folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize


def _machine_ad(path: str) -> dict[str, int]:
    """The numbers in the file with what HTCondor gave to this job, by their names in lower case."""
    lines = re.findall(r"^(Cpus|Memory|Disk) = (\d+)", memory.read(path), re.MULTILINE) if path else []
    return {name.lower(): int(number) for name, number in lines}


def _gpus(environment: Mapping[str, str], root: str = "/") -> list[str]:
    """The names of the GPUs that this process may use."""
    for variable in (*GPU_VARIABLES, *JOB_GPU_VARIABLES):
        if variable in environment:
            return [name for name in re.split(r"[,\s]+", environment[variable]) if name and name not in NO_GPU]
    if any(variable in environment for variable in IN_A_JOB):
        return []  # the job did not ask for any
    nvidia = glob(os.path.join(root, "dev/nvidia[0-9]*"))
    amd = map(memory.read, glob(os.path.join(root, "sys/class/kfd/kfd/topology/nodes/*/properties")))
    count = len(nvidia) or sum(bool(re.search(r"^simd_count [1-9]", each, re.MULTILINE)) for each in amd)
    return [str(number) for number in range(count)]


def _stated(text: str | None) -> dict[str, int | str]:
    """What was stated.

    Raises:
        UsageError: the command fails, or prints something else; the user's fault.
    """
    if text is None or not text.startswith("!"):
        return offers_in("--mw-offers", text or "")
    why = ""
    try:
        ended = process.run(["/bin/sh", "-c", text[1:]], timeout_s=COMMAND_S)
        if not ended.returncode:
            return offers_in("its output", ended.out)
        wrote = ended.err.strip()[-300:]
        why = f"it ended with {describe_exit(ended.returncode)}" + (f": {wrote}" if wrote else "")
    except (OSError, process.TimedOut, UsageError) as error:
        why = str(error)
    raise UsageError(
        f"--mw-offers {text}: {why}. The command must end with exit code 0 within {COMMAND_S:.0f} s, and print one "
        f"offer a line, such as cpus=8"
    )


def programs(names: Sequence[str]) -> dict[str, str]:
    """Return where programs are, by name; an empty text for one that is not found."""
    import shutil  # only here, because it loads modules for compression

    return {name: shutil.which(name) or "" for name in names}


@define(eq=False, repr=False)
class Part:
    """Gives the tasks of this process what they were given, and nothing else."""

    given: Given | None = None
    """What the task has that runs; None if it required nothing."""
    _gpus: list[str] = Factory(lambda: _gpus(os.environ))
    """The names of all GPUs of the agent."""
    _cores: list[int] = Factory(lambda: sorted(os.sched_getaffinity(0)))
    """The processors that this process may use."""
    _variables: dict[str, str | None] = Factory(dict)
    """The variables that were changed, and their values before."""
    _threads: Any = None
    """The limits of threads of loaded libraries; None if they were not changed."""

    def use(self, given: Given | None) -> None:
        """Let the next task have what it was given; all of this process if it required nothing."""
        self._restore()
        self.given = given
        if given is None:
            return
        own = self._gpus  # if more are offered, they are offered several times
        visible = ",".join(dict.fromkeys(own[number % len(own)] if own else str(number) for number in given.gpus))
        names = [name for name in GPU_VARIABLES if name in os.environ] or [GPU_VARIABLES[0]]
        changed = dict.fromkeys(names, visible)
        if cpus := given.amounts.get(CPUS):
            changed |= dict.fromkeys(THREAD_VARIABLES, str(cpus))
            self._limit_threads(cpus)
        self._variables = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        if given.cpus and given.cpus[-1] < len(self._cores):
            _pin([self._cores[number] for number in given.cpus])

    def _restore(self) -> None:
        if self.given is None:
            return
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._threads is not None:
            self._threads.restore_original_limits()
            self._threads = None
        if self.given.cpus:
            _pin(self._cores)

    def _limit_threads(self, cpus: int) -> None:
        """Limit the libraries that are loaded already: they do not read the variables again."""
        if "numpy" in sys.modules:
            with suppress(ImportError):
                from threadpoolctl import threadpool_limits

                self._threads = threadpool_limits(limits=cpus)


def _pin(cores: list[int]) -> None:
    """Let all threads of this process use these processors only, as far as the system allows it."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            os.sched_setaffinity(int(thread), cores)
