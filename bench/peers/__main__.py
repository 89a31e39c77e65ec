"""Measure mwpy and other libraries with the same workloads, and compare them.

    python -m bench.peers --rounds 5 --workloads W1,W2 --peers ray,joblib
    python -m bench.peers --combine first.json second.json

Machines differ, and the speed of many machines varies by half from one minute to the next. Therefore each round
measures all libraries, one after the other, and only measurements of the same round are compared. The table is printed.
A JSON file contains all measurements, and the medians, ratios and ranges. The second command measures nothing, and
combines the rounds of such files.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import dropwhile
from pathlib import Path

from bench.peers.libraries import LIBRARIES
from bench.peers.report import OWN, markdown, summary
from bench.peers.runner import Measurement, machine, run
from bench.peers.workloads import WORKLOADS

TABLE = "<!-- table -->"
"""The line after which a page has the table."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default="", help="their names, or how they begin: W1,W4a (default: all)")
    parser.add_argument("--peers", default="", help="the libraries beside mwpy (default: all)")
    parser.add_argument("--output", type=Path, default=Path("peers.json"), help="the JSON file (%(default)s)")
    parser.add_argument("--combine", type=Path, nargs="+", default=[], help="JSON files of earlier runs")
    parser.add_argument("--page", type=Path, help=f"a page whose table, after {TABLE}, is replaced")
    options = parser.parse_args()
    workloads = [key for key in WORKLOADS if key.startswith(tuple(options.workloads.split(",")))]
    libraries = [OWN, *options.peers.split(",")] if options.peers else [*LIBRARIES]
    if unknown := {*libraries} - {*LIBRARIES}:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    measurements = combined(options.combine)
    for each in run(workloads, libraries, 0 if options.combine else options.rounds):
        print(each, file=sys.stderr, flush=True)
        measurements.append(each)
        write(options.output, measurements)  # what was measured is kept if the run is interrupted
    write(options.output, measurements)
    print(markdown(measurements))
    if options.page:
        options.page.write_text(with_table(options.page.read_text(encoding="utf-8"), measurements), encoding="utf-8")


def write(output: Path, measurements: list[Measurement]) -> None:
    found = {"machine": machine(), "figures": summary(measurements), "measurements": measurements}
    output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def with_table(page: str, measurements: list[Measurement]) -> str:
    """Return the page with a new table. The old one ends at the first line that does not belong to a table."""
    before, mark, after = page.partition(TABLE)
    rest = "\n".join(dropwhile(lambda line: not line or line.startswith("|"), after.splitlines()))
    return f"{before}{mark}\n\n{markdown(measurements)}\n{rest}\n"


def combined(files: list[Path]) -> list[Measurement]:
    """Return the measurements of several files. The rounds of different files stay different."""
    contents = [json.loads(path.read_text(encoding="utf-8"))["measurements"] for path in files]
    return [each | {"round": f"{number}.{each['round']}"} for number, file in enumerate(contents) for each in file]


if __name__ == "__main__":
    main()
