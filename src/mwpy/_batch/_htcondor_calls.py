"""The program that calls HTCondor's Python bindings. It reads a JSON request, and answers with a line of JSON.

It is a separate process because the bindings hold the interpreter lock while they wait: 20 s for a schedd that does not
answer a query, and forever for a schedd that stops in the middle of a submission. In these cases the separate process
can be killed. Each call starts a new one: this takes 0.15 s, and an overseer calls a few times a minute.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

ATTRIBUTES = (
    *("ClusterId", "ProcId", "MwpyMark", "JobStatus", "JobCurrentStartDate", "ServerTime", "LastRejMatchReason"),
    *("HoldReason", "HoldReasonCode", "HoldReasonSubCode", "EnteredCurrentStatus"),
    *("ResidentSetSize", "RequestMemory"),
    *("RemoveReason", "ExitBySignal", "ExitCode", "ExitSignal", "Err"),
    *("RemoteHost", "LastRemoteHost"),
)


def submit(text: str, count: int) -> list[int]:
    """Submit jobs. Return their cluster and their number."""
    import htcondor2

    result = htcondor2.Schedd().submit(htcondor2.Submit(text), count=count)
    return [int(result.cluster()), int(result.num_procs())]


def query() -> list[dict[str, Any]]:
    """Return the jobs in the queue that have a mark."""
    import htcondor2

    return [_plain(ad) for ad in htcondor2.Schedd().query("MwpyMark =!= undefined", list(ATTRIBUTES))]


def remove(job_ids: list[str]) -> None:
    """Remove jobs from the queue. Some of them may have ended already."""
    import htcondor2

    reason = ("removed by mwpy oversee", 0)  # HTCondor ignores a reason that is a plain string
    htcondor2.Schedd().act(htcondor2.JobAction.Remove, job_ids, reason=reason)


def history(cluster: int, process: int, since: int) -> list[dict[str, Any]]:
    """Return the history's entry about a job.

    Entries before the Unix time `since` are not searched, because a history may have gigabytes.
    """
    import htcondor2

    constraint = f"ClusterId == {cluster} && ProcId == {process}"
    until = f"EnteredCurrentStatus < {since}"
    return [_plain(ad) for ad in htcondor2.Schedd().history(constraint, list(ATTRIBUTES), match=1, since=until)]


def _plain(ad: Any) -> dict[str, Any]:
    found = {name: ad.get(name) for name in ATTRIBUTES}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float)}


CALLS: dict[str, Callable[..., Any]] = {"submit": submit, "query": query, "remove": remove, "history": history}


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that a library prints must not look like an answer
    name, arguments = json.load(sys.stdin)
    try:
        answer = {"answer": CALLS[name](*arguments)}
    except Exception as error:
        answer = {"error": " ".join(str(error).split()) or type(error).__name__}
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
