"""mwpy doctor RESOURCE_FILE [--with SYSTEM]: check whether agents can serve a computation, and what prevents it.

Send one agent through a batch system, or start one here. The agent checks whether it could serve the computation: the
addresses of the master, keys, clock, Python, libraries, imports of the application, memory, disk space and the time
left. To compare, an agent does the same on this machine first, with the command from the resource file. With ssh, each
host is checked. Each fault is reported with its remedy. The computation is not disturbed.

With --json, `faults` is the number of faults, and each of the `findings` has `about`, `found`, `remedy` (empty if there
is no fault) and `spare` (whether it does not work but is not needed, or was not examined because no slot is free).
Output of the job is on standard error.

examples:
  mwpy doctor app.rsc
  mwpy doctor app.rsc --with htcondor --memory 4GB
  mwpy doctor app.rsc --with ssh --hosts hosts.txt --json

exit codes:
  0    all is well
  1    a fault was found
  2    a bad option, or no resource file
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict

from mwpy import resource_file
from mwpy._batch import Batch, Launch
from mwpy._doctor.examination import Finding, examine
from mwpy._roles.overseer import mark_of
from mwpy._values.errors import ExitCode
from mwpy._values.options import BATCH_SYSTEMS
from mwpy._values.phrases import counted
from mwpy.cli._arguments import Parser, add_job_options, batch_system, lines, number

__all__ = ["main", "make_parser"]

FAULT_FOUND = 1


def main(arguments: Sequence[str]) -> int:
    """Examine; return the exit code."""
    parsed = make_parser().parse_args(arguments)
    findings = _findings(parsed)
    faults = sum(bool(finding.remedy) for finding in findings)
    if parsed.json:
        print(json.dumps({"faults": faults, "findings": [asdict(finding) for finding in findings]}))
    else:
        print(*map(_line, findings), f"{counted(faults, 'fault')} found" if faults else "all is well", sep="\n")
    return FAULT_FOUND if faults else ExitCode.OK


def _findings(parsed: argparse.Namespace) -> list[Finding]:
    content = resource_file.read(parsed.path)
    if content.computation_status == resource_file.FINISHED:
        return [Finding("computation", f"finished, says {parsed.path}; agents exit with 0")]
    batch = batch_system(parsed)
    batches: dict[str, Batch] = {}
    if parsed.system == "ssh":
        from mwpy._batch.ssh import Ssh

        assert isinstance(batch, Ssh)
        batches.update(batch.apart())
    elif parsed.system not in (None, "local"):
        batches[""] = batch
    launch = Launch(
        mark=f"doctor-{os.getpid()}-{mark_of(parsed.path)}",
        resource_path=os.path.abspath(parsed.path),
        command=(),
        slaves=1,
        log_dir=os.path.abspath(parsed.log_dir or f"{parsed.path}.jobs"),
        extra=lines(parsed),
        prologue=" && ".join(parsed.prologue),
        name=parsed.job_name or "",
    )
    out = sys.stderr if parsed.json else sys.stdout
    return examine(
        launch, content, batches, parsed.command, parsed.timeout, lambda line: print(line, file=out, flush=True)
    )


def make_parser() -> Parser:
    """Describe the command line."""
    parser = Parser("doctor", __doc__)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="the file that the master writes")
    where = "where the agent runs; default: on this machine"
    parser.add_argument("--with", dest="system", choices=BATCH_SYSTEMS, help=where)
    parser.add_argument(
        "--timeout",
        type=number(0.1, float),
        default=600.0,
        metavar="SECONDS",
        help="how long the job may wait and run before it is removed; default 600",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    add_job_options(parser)
    return parser


def _line(finding: Finding) -> str:
    text = f"{'FAULT' if finding.remedy else 'spare' if finding.spare else 'ok':<8}{finding.about}: {finding.found}"
    return f"{text}\n        -> {finding.remedy}" if finding.remedy else text
