"""What users may mean by a keyword that mwpy does not have: a misspelt one, or one of another library."""

from __future__ import annotations

from collections.abc import Collection

ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("workers", "max_workers", "num_workers", "n_workers", "nworkers"), ("slaves",)),
    **dict.fromkeys(("n_jobs", "jobs", "processes", "num_processes", "nprocs"), ("slaves",)),
    **dict.fromkeys(("max_tasks_per_child", "maxtasksperchild"), ("slave_max_tasks",)),
    **dict.fromkeys(("mp_context", "start_method"), ("slave_start",)),
    **dict.fromkeys(("cores", "n_cores", "num_cores"), ("slaves", "cpus")),
    **dict.fromkeys(("cpu", "ncpus", "n_cpus", "num_cpus", "cpus_per_task", "threads"), ("cpus",)),
    **dict.fromkeys(("gpu", "ngpus", "n_gpus", "num_gpus"), ("gpus",)),
    **dict.fromkeys(("mem", "ram", "mem_gb"), ("memory",)),
    **dict.fromkeys(("timeout", "time_limit", "walltime"), ("seconds_max",)),
    **dict.fromkeys(("retries", "max_retries", "num_retries", "n_retries"), ("attempts_max", "retry_errors")),
}
"""Keywords of other libraries and of batch systems, and what mwpy calls this."""

OF_A_MASTER = "slaves", "slave_max_tasks", "slave_start"
"""What only the calls have that start a master."""


def close_to(name: str, known: Collection[str], likeness: float = 0.6) -> list[str]:
    """Return the known keywords that a user may mean by an unknown one; none if no one is like it.

    Args:
        likeness: how similar a misspelt name is at least, from 0 to 1.
    """
    from difflib import get_close_matches

    elsewhere = [each for each in ELSEWHERE.get(name.lower(), ()) if each in known]
    return elsewhere or get_close_matches(name.lower(), known, 1, likeness)


def remedy_for(name: str, value: object, known: Collection[str]) -> str:
    """Return what to write instead of an unknown keyword of a call; nothing if no other one is like it.

    Args:
        value: what the user gave. It is shown if it is a number.
        known: the keywords that the call has.
    """
    others = ELSEWHERE.get(name.lower(), ("",))
    if others[0] in OF_A_MASTER and not any(each in known for each in others):
        return f"give {others[0]} to mwpy.open or mwpy.Executor"
    found = close_to(name, known)
    shown = f"={value}" if len(found) == 1 and type(value) in (int, float) else ""
    return f"write {' or '.join(found)}{shown}" if found else ""
