"""A real Grid Engine on one machine, from this machine's Debian packages.

Its folder, cell, spool and ports are its own; its commands find it by SGE_ROOT. It keeps its configuration in plain
files (`classic` spooling), which are written in a moment. Its qmaster compares the name that a client gives with the
name that the client's address resolves to. So in its copy of /etc/hosts, the name of the machine comes first for
127.0.0.1: otherwise the qmaster denies access to every command, and a start waits in vain.
"""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.systems.debian import install
from tests.systems.namespace import start_daemon, wait_until
from tests.systems.system import System

PORT = 16444
SLOTS = 20
"""The number of slots, which may be more than the machine has cores."""

HOST = socket.gethostname().partition(".")[0]

PROGRAMS = Path("/var/lib/gridengine")
"""The folder of Debian's packages, with links to all programs."""

TOOLS = Path("/usr/lib/gridengine")

DAEMONS = ("sge_qmaster", "sge_execd")

BOOTSTRAP = """\
admin_user root
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{spool}/qmaster
binary_path {root}/bin
qmaster_spool_dir {spool}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

# Accounts are written at once, loads are reported often, and the machine mails nothing.
CONFIGURATION = """\
execd_spool_dir {spool}/execd
mailer /bin/true
shell_start_mode unix_behavior
min_uid 0
min_gid 0
load_report_time 00:00:02
gid_range 20100-20300
reporting_params accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00
"""

SCHEDULER = """\
schedule_interval 0:0:1
job_load_adjustments NONE
load_adjustment_decay_time 0:0:0
flush_submit_sec 1
flush_finish_sec 1
"""

EXECUTION_HOST = """\
hostname {host}
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""

PARALLEL = """\
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
"""

# A job that is deleted gets SIGUSR2, and is killed `notify` later. By default, this is a minute.
QUEUE = """\
hostlist {host}
load_thresholds NONE
pe_list smp
rerun TRUE
slots {slots}
shell /bin/sh
shell_start_mode unix_behavior
notify 00:00:20
"""

QUEUES = ("all.q", "other.q")


class SgeNode(System):
    """A Grid Engine with one machine and two queues; `node("qstat")` runs a command there."""

    commands = ("qsub", "qstat", "qdel", "qacct", "qhold", "qrls", "qconf", "qhost", "qmod")

    def __init__(self) -> None:
        super().__init__("sge", "test-batch")
        self._root = self.state / "root"
        self._common = self._root / "default" / "common"

    def variables(self) -> dict[str, str]:
        ports = {"SGE_QMASTER_PORT": str(PORT), "SGE_EXECD_PORT": str(PORT + 1)}
        return {"SGE_ROOT": str(self._root), "SGE_CELL": "default", **ports}

    def prepare(self) -> None:
        install("gridengine-master", "gridengine-exec", "gridengine-client")
        spool = self.state / "spool"
        for folder in (self._common, spool / "execd", spool / "qmaster", self.state / "objects"):
            folder.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self._root / name).symlink_to(PROGRAMS / name)
        (self._common / "act_qmaster").write_text(f"{HOST}\n")
        (self._common / "bootstrap").write_text(BOOTSTRAP.format(root=self._root, spool=spool))

    def furnish(self) -> None:
        super().furnish()
        (self.state / "etc" / "hosts").write_text(f"127.0.0.1 {HOST} localhost\n")

    def start(self) -> None:
        """Write the configuration, and start the daemons."""
        spool, share = self.state / "spool", PROGRAMS / "util" / "resources"
        places = f"{self._common};{spool}/qmaster"
        self(TOOLS / "spoolinit", "classic", "libspoolc", places, "init", user="root")
        default = Path("/usr/share/gridengine/default-configuration").read_text()
        hosts = self._object("hosts", f"hostname {HOST}\n", HOST).parent
        for kind, given in (
            ("configuration", self._object("conf", changed(default, CONFIGURATION.format(spool=spool)))),
            ("complexes", share / "centry"),
            ("usersets", share / "usersets"),
            ("managers", "root"),
            ("adminhosts", hosts),
            ("submithosts", hosts),
            ("exechosts", self._object("exechosts", EXECUTION_HOST.format(host=HOST), HOST).parent),
        ):
            self(TOOLS / "spooldefaults", kind, given, user="root")
        self._start_daemon(DAEMONS[0])
        wait_until(
            lambda: self("qconf", "-sconf", user="root", check=False).returncode == 0, "the start of sge_qmaster"
        )
        scheduler = changed(self("qconf", "-ssconf", user="root").stdout, SCHEDULER)
        self("qconf", "-Msconf", self._object("scheduler", scheduler), user="root")
        self("qconf", "-Ap", self._object("smp", PARALLEL), user="root")
        self("qconf", "-as", HOST, user="root")
        template = self("qconf", "-sq", user="root").stdout
        for name in QUEUES:
            queue = changed(template, f"qname {name}\n" + QUEUE.format(host=HOST, slots=SLOTS))
            self("qconf", "-Aq", self._object(name, queue), user="root")
        self._start_daemon(DAEMONS[1])
        wait_until(self.answers, "the start of Grid Engine")

    def _object(self, name: str, text: str, inside: str = "") -> Path:
        """Write what Grid Engine reads from a file. Return its path."""
        path = self.state / "objects" / name / inside
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def _start_daemon(self, name: str) -> None:
        # SGE_ND: it stays in the foreground
        start_daemon(self.command("env", "SGE_ND=1", name, user="root"), self.state / "log" / f"{name}.out")

    def restart(self) -> None:
        """Stop its daemons and start them again; running jobs go on."""
        self.namespace.signal(signal.SIGTERM, *DAEMONS)
        wait_until(lambda: not self.namespace.members(*DAEMONS), "the end of Grid Engine's daemons")
        for name in DAEMONS:
            self._start_daemon(name)
        wait_until(self.answers, "the start of Grid Engine")

    def answers(self) -> bool:
        """Whether the queues are ready. A machine whose load is unknown has no architecture."""
        lines = self("qstat", "-f", user="root", check=False).stdout.splitlines()
        return sum("lx-" in line and line.split()[-1].startswith("lx-") for line in lines) == len(QUEUES)

    def logs(self) -> list[Path]:
        return [*self.state.glob("log/*"), *self.state.glob("spool/*/messages"), *self.state.glob("spool/*/*/messages")]


def changed(text: str, settings: str) -> str:
    """Change the settings in a text that Grid Engine shows, one a line. Comments are left out."""
    new = dict(line.split(maxsplit=1) for line in settings.splitlines())
    lines = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
    return "".join(f"{name} {new.get(name, ' '.join(value))}\n" for name, *value in lines)
