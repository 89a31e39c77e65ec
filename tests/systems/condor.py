"""A real HTCondor pool on one machine.

Debian 12 has no HTCondor, and the daemons of Debian 13 need a newer C library than Debian 12 has. So they run in a tree
of Debian 13, by chroot. The tests' own interpreter, its packages and the checkout are mounted there at their own paths;
an interpreter that was built for an older C library runs with a newer one. The pool uses the network and the processes
of the machine, but its own /tmp.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

from tests.systems.debian import CACHE, tree
from tests.systems.namespace import run, start_daemon, wait_until
from tests.systems.system import System

SUITE = "trixie"
PORT = 19618
SLOTS = 8

DAEMON = "condor_master"
"""The daemon that starts the others, and ends with them."""

CONDOR_UID = 20000

FOLDERS = ("var/spool/condor", "var/lib/condor/execute", "var/log/condor", "run/condor", "run/lock/condor")
"""Where HTCondor writes; each is a folder of `state` that is mounted in the tree."""

CONFIGURATION = f"""
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{PORT}
NETWORK_INTERFACE = 127.0.0.1
ENABLE_IPV6 = False
UID_DOMAIN = pool.test
FILESYSTEM_DOMAIN = pool.test
TRUST_DOMAIN = pool.test
TRUST_UID_DOMAIN = True
# One partitionable slot that holds {SLOTS} jobs of one core each, whatever the machine's real size.
NUM_CPUS = {SLOTS}
MEMORY = {SLOTS * 2048}
BASE_CGROUP =
START = True
SUSPEND = False
PREEMPT = False
KILL = False
# A job that is run again takes a whole negotiation: 2.5 s with these values, and 60 s with HTCondor's own.
# NEGOTIATOR_CYCLE_DELAY is an older name of NEGOTIATOR_MIN_INTERVAL that the package's configuration uses.
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 0
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
STARTER_UPDATE_INTERVAL = 2
STARTER_INITIAL_UPDATE_INTERVAL = 1
SHADOW_QUEUE_UPDATE_INTERVAL = 2
PERIODIC_EXPR_INTERVAL = 2
RUNBENCHMARKS = 0
# Seconds from SIGTERM to SIGKILL for a job that is removed or evicted. A busy machine needs some to pass a signal on.
MachineMaxVacateTime = 15
# Seconds until a job is run again when its machine has crashed; HTCondor's own value is 40 minutes.
JOB_DEFAULT_LEASE_DURATION = 30
MASTER_BACKOFF_CONSTANT = 1
SHUTDOWN_GRACEFUL_TIMEOUT = 25
SHUTDOWN_FAST_TIMEOUT = 10
"""

NO_PRIVATE_TMP = "MOUNT_UNDER_SCRATCH =\n"
"""HTCondor gives each job a /tmp of its own; a checkout in /tmp would be hidden from jobs."""


class CondorPool(System):
    """An HTCondor pool with one slot machine; `pool("condor_q")` runs a command in it."""

    def __init__(self) -> None:
        super().__init__("condor", "test-condor", CACHE / SUITE)
        self._root = self.namespace.root
        self._settings = self._root / "etc" / "condor" / "config.d"

    def prepare(self) -> None:
        tree(SUITE, "minicondor", "procps")
        run(["usermod", "-R", self._root, "-u", CONDOR_UID, "condor"])
        self.add_users(self._root / "etc")
        for path in self._settings.glob("[56]*-tests"):
            path.unlink()
        (self._settings / "50-tests").write_text(CONFIGURATION)
        shutil.copy("/etc/hosts", self._root / "etc" / "hosts")
        (self._root / "root").chmod(0o755)  # an interpreter may be mounted below it

    def furnish(self) -> None:
        self.namespace.bind(self._root, self._root)
        self.namespace.mount("-t", "proc", "proc", self._root / "proc")
        for place in ("dev", "sys"):
            self.namespace.mount("--rbind", f"/{place}", self._root / place)
        for place in FOLDERS:
            folder = self.state / place
            folder.mkdir(parents=True)
            os.chown(folder, CONDOR_UID, CONDOR_UID)
            self.namespace.bind(folder, self._root / place)
        for place in ("home", "work"):
            folder = self.state / place
            self.namespace.bind(folder, Path(f"{self._root}{folder}"))

    def show(self, place: Path) -> None:
        self.namespace.bind(place, Path(f"{self._root}{place}"), read_only=True)
        settings = self._settings / "51-tests"
        if re.match("/(var/)?tmp/", str(place)) and not settings.exists():
            settings.write_text(NO_PRIVATE_TMP)
            if self.namespace.members(DAEMON):
                self("condor_reconfig", "-all", user="root")

    def start(self) -> None:
        self("ldconfig", user="root")  # finds the library of an interpreter in /usr/local
        words = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", DAEMON, "-f")
        start_daemon(self.command(*words, user="root"), self.state / "log" / "master.out")
        wait_until(self.answers, "the start of HTCondor")

    def restart(self, *, fast: bool = False) -> None:
        """Stop its daemons, which evicts the jobs, and start them again; the queue stays.

        A fast restart gives the jobs no time to end.
        """
        self.namespace.signal(signal.SIGQUIT if fast else signal.SIGTERM, DAEMON)
        wait_until(lambda: not self.namespace.members(DAEMON), "the end of HTCondor")
        self.namespace.kill()
        self.start()

    def answers(self) -> bool:
        kinds = ("-schedd", "-startd")
        return all(self("condor_status", kind, "-af", "Name", user="root", check=False).stdout for kind in kinds)

    def logs(self) -> list[Path]:
        return [*self.state.glob("log/*"), *self.state.glob("var/log/condor/MasterLog")]

    def configure(self, *lines: str) -> None:
        """Change settings of the running pool. Without lines, restore the pool's own settings."""
        (self._settings / "60-tests").write_text("".join(f"{line}\n" for line in lines))
        self("condor_reconfig", "-all", user="root")
