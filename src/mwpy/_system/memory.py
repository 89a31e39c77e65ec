"""How much memory this process uses, and each child with its descendants; and a control group that limits a child.

The memory of mapped files does not count: the kernel can drop it at any time. Pages that a lone process shares with the
process from which it was forked do not count. If it has descendants, pages that several processes share count in equal
parts. To find this out, the kernel visits each page, which takes 0.04 seconds for a gigabyte. So the exact number is
read only if the resident memory, a number that the kernel keeps, is over a bound.

A control group is made only where the agent may do so: below its own group, if this group is writable. In version 2, a
group that has processes cannot limit groups below it. But HTCondor since 24.8 starts a job in `NAME.slice/NAME.scope`:
the slice has the limits of the job, and belongs to it. There, groups are made beside the scope. HTCondor 23.1 to 24.7
starts the job directly in its group. To move all processes of the job into a group below was tried, and rejected:
HTCondor 23.9 finds that the kernel has killed a process somewhere in the group, says that the machine is out of memory,
and runs the job again although its exit code is 0. systemd leaves a group to its processes only with `Delegate=yes`.
The kernel counts a killed process in its own group, also if a group above was full, so a kill counts as one at the
limit of a slave only if the group of the slave itself was full (`oom` in `memory.events`).
"""

from __future__ import annotations

import atexit
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec import Struct

from mwpy._system import clock

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

RUSAGE_UNIT = 1024
"""In how many bytes `getrusage` counts memory."""

PATIENCE_S = 1.0
"""Seconds at the exit of this process in which killed processes may leave their groups."""

POLL_S = 0.01

GROUPS = "/sys/fs/cgroup"
"""Where the control groups are. In version 1, each controller has its own folder there."""

OWN = "/proc/self/cgroup"
"""The file that names the control groups of this process."""

SHARED_MEMORY = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV")
"""How the names of mappings of shared memory begin."""

_SHARED, _OF_FILE = ("Pss:", "SwapPss:"), ("Private_Dirty:", "SwapPss:")
_OF_NO_FILE = (*_OF_FILE, "Private_Clean:")
"""The rows of a mapping in `smaps` that count, for shared memory, for files, and for all others."""

_PROPORTIONAL = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""The rows of `smaps_rollup` that count: what belongs to processes, shared memory, and what was swapped out."""


def resident_bytes() -> int:
    """Return how much memory this process has now, without mapped files and shared memory."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * PAGE_BYTES


def forget_peak() -> None:
    """Let the peak of this process begin again with what it uses now, if the kernel allows it."""
    with suppress(OSError):
        _write("/proc/self/clear_refs", "5")


def peak_bytes(above: int) -> int:
    """Return the most resident memory of this process since `forget_peak`, in bytes, if it exceeds a bound; else 0.

    The cheap number of `getrusage` may be that of the process which started this one, so it only shows when to look.
    """
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RUSAGE_UNIT <= above:
        return 0
    peak = _sum_of(read("/proc/self/status"), ("VmHWM:",))
    return peak if peak > above else 0


def program_bytes() -> int:
    """Return the most resident memory of any program that this process has ever waited for."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * RUSAGE_UNIT


def available_bytes() -> int | None:
    """Return how much memory this machine can still give to processes; None if the kernel does not say this."""
    return _sum_of(read("/proc/meminfo"), ("MemAvailable:",)) or None


def free_bytes() -> int | None:
    """Return how much memory this process can still get on this machine, or in its job; None if it is not known."""
    free = [available_bytes()]
    for _, own in _own_groups():
        most, used = read(f"{own}/memory.max").strip(), read(f"{own}/memory.current").strip()
        free.append(int(most) - int(used) if most.isdecimal() and used else None)
    return min((each for each in free if each is not None), default=None)


def machine_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def limit_bytes() -> int | None:
    """Return how much memory the control groups of this process may use; None if they have no limit."""
    groups = [(group, version is V1) for version, group in _with_parents("memory")]
    limits = [read(f"{group}/{'memory.limit_in_bytes' if old else 'memory.max'}").strip() for group, old in groups]
    return min((int(each) for each in limits if each.isdecimal()), default=None)


def limit_of_cpus() -> int | None:
    """Return how many processors the control groups of this process may use; None if they have no limit."""
    found: list[int] = []
    for version, group in _with_parents("cpu"):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version is V1 else ("cpu.max",)
        numbers = " ".join(read(f"{group}/{name}") for name in files).split()
        if len(numbers) == 2 and all(each.isdecimal() for each in numbers):
            found.append(max(1, int(numbers[0]) // int(numbers[1])))
    return min(found, default=None)


def _with_parents(controller: str) -> Iterator[tuple[_Version, str]]:
    """The groups of this process for a controller, and the groups that contain them."""
    for version, own in _own_groups(controller):
        group = own
        while len(group) > len(GROUPS):
            yield version, group
            group = os.path.dirname(group)


def family(pid: int) -> list[int]:
    """Return a process and its descendants. A process whose parent has ended is no descendant any more."""
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                found += map(int, read(f"/proc/{each}/task/{thread}/children").split())
    return found


def used_by(pid: int, exact_above: int) -> int:
    """Return how many bytes of memory a process and its descendants use.

    Args:
        exact_above: up to this number, the answer may be larger than what is in use.
    """
    pids = family(pid)
    resident = sum(map(_resident, pids))
    if resident <= exact_above:
        return resident
    if len(pids) == 1:
        return _private(pid)
    return sum(_sum_of(read(f"/proc/{each}/smaps_rollup"), _PROPORTIONAL) for each in pids)


def _resident(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if fields else 0


def _sum_of(text: str, names: Sequence[str]) -> int:
    """The sum of the rows with these names in a file of the kernel, in bytes."""
    rows = (line.split() for line in text.splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row[0] in names)


def _private(pid: int) -> int:
    """The memory of a process, without the pages that it shares with others, except for shared memory."""
    total, counted = 0, tuple[str, ...]()
    for line in read(f"/proc/{pid}/smaps").splitlines():
        words = line.split()
        if not words[0].endswith(":"):  # another mapping: addresses, rights, start, device, inode, and perhaps its name
            is_shared = len(words) > 5 and words[5].startswith(SHARED_MEMORY)
            counted = _SHARED if is_shared else _OF_FILE if words[4] != "0" else _OF_NO_FILE
        elif words[0] in counted:
            total += int(words[1]) * 1024
    return total


_unused: dict[str, None] = {}
"""The folders of groups that are to be removed."""


def _remove_unused(patience_s: float = 0.0) -> None:
    """Remove groups in which no process is left, and wait for the last processes of the others."""
    until = clock.monotonic() + patience_s
    while True:
        for folder in [*_unused]:
            with suppress(OSError):
                os.rmdir(folder)
                del _unused[folder]
        if not _unused or clock.monotonic() >= until:
            return
        clock.sleep(POLL_S)


class _Version(Struct, frozen=True):
    """The files of a control group that limits memory."""

    limits: dict[str, str | None]
    """The files to write a limit to. For memory without swap, a limit is written; for swap alone, it is this text."""
    unlimited: str
    """What these files contain if there is no limit."""
    events: str
    """The file that says how many processes the kernel has killed."""


V1 = _Version({"memory.limit_in_bytes": None, "memory.memsw.limit_in_bytes": None}, "-1", "memory.oom_control")
V2 = _Version({"memory.max": None, "memory.swap.max": "0"}, "max", "memory.events")


def _own_groups(controller: str = "memory") -> Iterator[tuple[_Version, str]]:
    """The groups of this process for a controller: the version and the folder of each."""
    for line in read(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield V1, f"{GROUPS}/{controller}{path}"
        elif not controllers:
            yield V2, f"{GROUPS}{path}"


def _parent(version: _Version, own: str) -> str:
    """The folder of the group below which this process makes groups, if it is in the group `own`.

    Raises:
        OSError: in version 2, this group cannot limit groups below it, or this process may not change it.
    """
    if version is V1:
        return own
    above, name = os.path.split(own)
    if name.endswith(".scope") and os.path.basename(above) == name.removesuffix("scope") + "slice":
        own = above
    _write(f"{own}/cgroup.subtree_control", "+memory")
    return own


def _write(path: str, value: str) -> None:
    with open(path, "r+", encoding="ascii") as file:  # never makes a file
        file.write(value)


class MemoryGroup:
    """A control group that limits the memory of some processes.

    Args:
        name: its name; unique among the children of this process.

    Raises:
        OSError: this process cannot make one.
    """

    def __init__(self, name: str) -> None:
        for version, own in _own_groups():
            self._version, self._folder = version, f"{_parent(version, own)}/{name}"
            os.mkdir(self._folder)
            return
        raise FileNotFoundError("there are no control groups")

    def add(self, pids: Sequence[int]) -> None:
        """Move processes into it, and thus everything that they start. What they use already is not counted."""
        for pid in pids:
            with suppress(OSError):  # it has ended
                _write(f"{self._folder}/cgroup.procs", str(pid))

    def limit(self, most: int | None) -> None:
        """Set the limit in bytes; None for no limit.

        If more is in use, the kernel may refuse a lower limit (version 1) or kill a process (version 2).
        """
        for name, text in self._version.limits.items():
            with suppress(OSError):
                _write(f"{self._folder}/{name}", self._version.unlimited if most is None else text or str(most))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed because it was full.

        Version 2 also counts the processes that were killed because a group above it was full.
        """
        counts = _counts(f"{self._folder}/{self._version.events}")
        return counts.get("oom_kill", 0) if self._version is V1 or counts.get("oom") else 0

    def remove(self) -> None:
        """Remove it. As long as a process is left in it, a later call and the exit of this process try again."""
        atexit.unregister(_remove_unused)
        atexit.register(_remove_unused, PATIENCE_S)
        _unused[self._folder] = None
        _remove_unused()


def count_job_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory in the control group of this process.

    0 if the kernel does not count them.
    """
    return sum(_counts(f"{own}/{version.events}").get("oom_kill", 0) for version, own in _own_groups())


def count_machine_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory on this machine; 0 if it does not count."""
    return _counts("/proc/vmstat").get("oom_kill", 0)


def _counts(path: str) -> dict[str, int]:
    """The numbers in a file of the kernel with one name and one number in a line."""
    return {name: int(number) for name, number in map(str.split, read(path).splitlines())}


def read(path: str) -> str:
    """Return the content of a file of the kernel; empty if it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
