"""One module for each library."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from bench.peers.peer import Cannot, Peer


class Library(NamedTuple):
    """Where a library's `Peer` is, and the distribution that it needs; none if it is part of Python."""

    module: str
    peer: str
    distribution: str = ""

    def version(self) -> str:
        """Return its version.

        Raises:
            Cannot: it is not installed.
        """
        from importlib import metadata  # only the runner needs it

        try:
            return metadata.version(self.distribution) if self.distribution else ""
        except metadata.PackageNotFoundError:
            raise Cannot(f"{self.distribution} is not installed") from None


LIBRARIES = {
    "mwpy": Library("mwpy_local_master", "MwpyLocalMaster", "mwpy-cluster"),
    "concurrent.futures": Library("process_pool_executor", "Executor"),
    "multiprocessing.Pool": Library("multiprocessing_pool", "MultiprocessingPool"),
    "joblib": Library("joblib_loky", "JoblibLoky", "joblib"),
    "dask.distributed": Library("dask_distributed", "DaskDistributed", "distributed"),
    "ray": Library("ray_tasks", "RayTasks", "ray"),
    "parsl": Library("parsl_htex", "ParslHtex", "parsl"),
    "ipyparallel": Library("ipyparallel_view", "IpyparallelView", "ipyparallel"),
}


def load(name: str) -> Peer:
    """Import a library, and return it without workers."""
    library = LIBRARIES[name]
    module = import_module(f"bench.peers.libraries.{library.module}")
    return getattr(module, library.peer)()
