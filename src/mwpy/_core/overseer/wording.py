"""How the lines that an overseer prints name jobs."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["count_of_jobs", "count_of_slaves", "ids_of"]

IDS_SHOWN = 5


def count_of_jobs(count: int) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} job{'' if count == 1 else 's'}"


def count_of_slaves(count: int) -> str:
    """`1 slave`, `2 slaves`."""
    return f"{count} slave{'' if count == 1 else 's'}"


def ids_of(job_ids: Sequence[str]) -> str:
    """The ids of jobs. If there are many: the first few, and how many more there are."""
    more = f" and {len(job_ids) - IDS_SHOWN} more" if len(job_ids) > IDS_SHOWN else ""
    return ", ".join(job_ids[:IDS_SHOWN]) + more
