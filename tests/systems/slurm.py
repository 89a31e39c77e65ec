"""A real Slurm on one machine, from this machine's Debian packages.

Configuration, key, sockets and state are its own; its commands find it by SLURM_CONF. It has no accounting database. It
uses control groups only if it limits the memory of jobs.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

from tests.systems.debian import install
from tests.systems.namespace import start_daemon, wait_until
from tests.systems.system import System

PORT = 16817
CPUS = 8
"""The number of processors, which may be more than the machine has: `SlurmdParameters=config_overrides` allows it."""

HOST = socket.gethostname().partition(".")[0]

DAEMONS = ("slurmctld", "slurmd")

# With cred_expire=5, a requeued job waits for 6.5 s. By default it waits for 121 s.
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.txt
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=100000
SlurmdParameters=config_overrides
JobRequeue=1
ReturnToService=2
KillWait=10
CompleteWait=0
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
UnkillableStepTimeout=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes=ALL MaxTime=INFINITE State=UP
"""


# Replaces the same settings above.
LIMITS_MEMORY = """\
TaskPlugin=task/cgroup
SelectTypeParameters=CR_CPU_Memory
"""

CGROUPS = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainRAMSpace=yes
"""


class SlurmNode(System):
    """A Slurm with one node; `node("squeue")` runs a command there.

    Args:
        name: a name other than the default, for a separate Slurm.
        port: the first of its two ports.
        limits_memory: limit the memory of each job with a control group (version 1).
    """

    commands = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "salloc", "sstat")

    def __init__(self, name: str = "slurm", port: int = PORT, *, limits_memory: bool = False) -> None:
        super().__init__(name, "test-batch")
        self._port = port
        self._limits_memory = limits_memory
        self.config = self.state / "slurm.conf"
        """The path of its configuration, for commands that run outside the namespace."""

    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.config)}

    def prepare(self) -> None:
        install("munge", "slurmctld", "slurmd", "slurm-client")
        for folder in ("state", "spool", "run"):
            (self.state / folder).mkdir()
        key = self.state / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for path in (key, self.state / "run"):
            shutil.chown(path, "munge", "munge")
        text = CONFIGURATION.format(
            host=HOST,
            port=self._port,
            slurmd_port=self._port + 1,
            folder=self.state,
            cpus=CPUS,
            memory=CPUS * 1024,
        )
        if self._limits_memory:
            replaced = [line.partition("=")[0] for line in LIMITS_MEMORY.splitlines()]
            kept = [line for line in text.splitlines(keepends=True) if line.partition("=")[0] not in replaced]
            text = "".join(kept) + LIMITS_MEMORY
            (self.state / "cgroup.conf").write_text(CGROUPS)
        self.config.write_text(text)

    def start(self) -> None:
        munge = self.state / "run" / "munge"
        words = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground"]
        words += [f"--socket={munge}.socket", f"--key-file={self.state}/munge.key", f"--pid-file={munge}.pid"]
        words += [f"--log-file={munge}.log", f"--seed-file={munge}.seed", "--num-threads=2"]
        start_daemon(self.command(*words, user="root"), self.state / "log" / "munged.out")
        wait_until((self.state / "run" / "munge.socket").exists, "the start of munge")
        self._start_daemons()

    def _start_daemons(self) -> None:
        for name in DAEMONS:
            start_daemon(self.command(name, "-D", user="root"), self.state / "log" / f"{name}.out")
        wait_until(self.answers, "the start of Slurm")

    def leave(self) -> None:
        """Take it down if this is the last run, and remove its control groups, which are empty then."""
        super().leave()
        if self._limits_memory and not self.is_up:
            for folder, _, _ in os.walk(f"/sys/fs/cgroup/memory/slurm_{HOST}", topdown=False):
                Path(folder).rmdir()

    def restart(self) -> None:
        """Stop its daemons and start them again; running jobs go on."""
        self.namespace.signal(signal.SIGTERM, *DAEMONS)
        wait_until(lambda: not self.namespace.members(*DAEMONS), "the end of Slurm's daemons")
        self._start_daemons()

    def answers(self) -> bool:
        state = self("sinfo", "-h", "-o", "%T", user="root", check=False).stdout.strip()
        return state in ("idle", "mixed", "allocated")

    def logs(self) -> list[Path]:
        return [*self.state.glob("log/*"), *self.state.glob("run/*.log")]
