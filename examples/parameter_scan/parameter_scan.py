"""Parameter scan: 2,000 parameter sets, a table, failures and progress.

    python examples/parameter_scan/parameter_scan.py                       # this machine, one slave per core

It writes the table to scan.csv. It needs pandas; with tqdm, the line about the progress has a bar. On several machines:

    python examples/parameter_scan/parameter_scan.py --mw-master --mw-resource-file scan.rsc
    python examples/parameter_scan/parameter_scan.py --mw-slave --mw-resource-file scan.rsc
"""

import math
import sys

import mwpy


def pendulum(setting: dict[str, float]) -> dict[str, float]:
    """Return the period of a pendulum that starts at an angle, in seconds. Beyond 180 degrees there is none."""
    mean, root = 1.0, math.cos(math.radians(setting["angle"]) / 2)
    while mean - root > 1e-12:
        mean, root = (mean + root) / 2, math.sqrt(mean * root)
    return {"period": 2 * math.pi * math.sqrt(setting["length"] / 9.81) / root}


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    sets = [{"length": n / 10, "angle": 4.0 * m} for n in range(1, 41) for m in range(1, 51)]
    table = mwpy.to_frame(mw.map_results(pendulum, sets, progress=True))
    table.to_csv("scan.csv")
    print(table.fillna({"error": "ok"}).groupby("error").agg({"period": ["count", "mean"], "angle": ["min", "max"]}))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
