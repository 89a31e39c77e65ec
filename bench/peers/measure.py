"""Measure one workload of one library in this process, and print what was found.

python -m bench.peers.measure LIBRARY WORKLOAD
"""

from __future__ import annotations

import json
import sys
import traceback

from bench.peers.libraries import load
from bench.peers.peer import Cannot
from bench.peers.workloads import WORKLOADS

MARK = "measured: "
"""How the line with the figures begins. Libraries may print other lines."""


def main(library: str, workload: str) -> None:
    """Print a line with the figures, or with the reason why there are none."""
    try:
        for figures in WORKLOADS[workload].measure(load(library)):
            _print({"figures": figures})
    except Cannot as reason:
        _print({"reason": str(reason)})
    except Exception as error:
        traceback.print_exc()
        _print({"reason": f"{type(error).__name__}: {error}"})


def _print(found: dict[str, object]) -> None:
    print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
