"""Which machines to avoid, because jobs fail there although they run well elsewhere.

A machine is avoided only with evidence: jobs run well on another machine where none has failed since. Otherwise the
fault is probably in the script, and submitting elsewhere would only cause more failures.

The machines that the master has excluded are avoided, too. The master knows a machine by the name that the machine
gives itself, and the batch system may use another one. So the overseer finds its name by the jobs that were there. Such
a job may end before the resource file names it, so the machines of the last jobs are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from mwpy._values.jobs import Job

__all__ = ["Hosts"]

FAILURES_ALLOWED = 3
"""After this many failures in a row, a machine is avoided."""

AVOIDED_S = 3600.0
"""Seconds until an avoided machine is tried again. After a repair it is useful again."""

JOBS_REMEMBERED = 1000
"""Of how many jobs that have ended the machines are remembered."""


class _Failures(Struct, eq=False):
    count: int = 0
    last_at: float = 0.0


class Hosts(Struct, eq=False):
    """The machines on which jobs of one computation have run. A machine whose name is not known is ``""``."""

    _failures: dict[str, _Failures] = field(default_factory=dict)
    """The failures in a row at the start of jobs, by machine."""
    _good: dict[str, None] = field(default_factory=dict)
    """The machines on which a job has run well."""
    _excluded: dict[str, dict[str, None]] = field(default_factory=dict)
    """The hosts that the master has excluded, and the names that the batch system has for each."""
    _machines: dict[str, str] = field(default_factory=dict)
    """The machines of the last jobs that have ended."""

    def fail(self, host: str, now: float) -> None:
        """Count a job that failed at its start."""
        failures = self._failures.setdefault(host, _Failures())
        failures.count += 1
        failures.last_at = now

    def succeed(self, host: str, time: float) -> None:
        """Count a job that was no longer young at this time."""
        self._good[host] = None
        if (failures := self._failures.get(host)) is not None and time > failures.last_at:
            del self._failures[host]

    def exclude(self, hosts: Iterable[str]) -> None:
        """Record which hosts the master has excluded. Others may be used again."""
        self._excluded = {host: self._excluded.get(host, {}) for host in hosts}

    def name(self, host: str, job: Job | None, job_id: str) -> None:
        """Record the name of an excluded host in the batch system, if the machine of a job there is known.

        Args:
            job: the job in the list of the batch system; None if it has ended.
        """
        if machine := self._machines.get(job_id, "") if job is None else job.host:
            self._excluded[host][machine] = None

    def leave(self, job_id: str, machine: str) -> None:
        """Record on which machine a job has ended."""
        if machine:
            self._machines[job_id] = machine
            if len(self._machines) > JOBS_REMEMBERED:
                del self._machines[next(iter(self._machines))]

    @property
    def excluded(self) -> tuple[str, ...]:
        """The machines that the master has excluded, as far as their names are known."""
        return tuple(machine for machines in self._excluded.values() for machine in machines)

    def suspects(self, now: float) -> tuple[str, ...]:
        """The machines with recent failures in a row, whether jobs run well elsewhere or not."""
        return tuple(
            host
            for host, failures in self._failures.items()
            if host and failures.count >= FAILURES_ALLOWED and now < failures.last_at + AVOIDED_S
        )

    def failing(self, now: float) -> tuple[str, ...]:
        """The machines on which jobs fail at their start, and run well elsewhere."""
        return self.suspects(now) if any(host not in self._failures for host in self._good) else ()

    def avoided(self, now: float) -> tuple[str, ...]:
        """The machines to which no job is submitted."""
        return tuple(dict.fromkeys((*self.failing(now), *self.excluded)))

    def forget(self) -> None:
        """Forget all failures and successes."""
        self._failures.clear()
        self._good.clear()
        self._excluded.clear()
