"""pandas: groups of a table as tasks, and a table of results."""

from __future__ import annotations

import json

import pandas as pd

import mwpy

TABLE = pd.DataFrame({"group": [number % 7 for number in range(700)], "value": range(700)})


def summarized(group: pd.DataFrame) -> pd.Series:
    """Summarize one group."""
    return pd.Series({"total": group["value"].sum(), "spread": group["value"].std(), "rows": len(group)})


if __name__ == "__main__":
    groups = TABLE.groupby("group")
    with mwpy.Executor(slaves=2) as executor:
        names, frames = zip(*groups, strict=True)
        parallel = pd.DataFrame(list(executor.map(summarized, frames)), index=pd.Index(names, name="group"))
    serial = groups[["value"]].apply(summarized)
    with mwpy.local_master(slaves=2) as mw:
        results = mwpy.to_frame(mw.map_results(summarized, frames, ordered=True))
    columns = [
        {"groups": table.to_json(), "kinds": [str(kind) for kind in table.dtypes]} for table in (serial, parallel)
    ]
    totals = [
        [float(summarized(frame)["total"]) for frame in frames],
        [float(row["total"]) for row in results["value"]],
    ]
    print(json.dumps({"serial": [columns[0], totals[0]], "parallel": [columns[1], totals[1]]}))
