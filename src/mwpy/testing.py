"""A whole computation in one thread, on a simulated network and clock, with every kind of fault.

`Cluster(seed)` runs a real master and real agents in a simulated world. The same seed always gives the same history.

    >>> cluster = Cluster(seed=1)
    >>> cluster.run()
    >>> len(cluster.ended) == cluster.submitted
    True
"""

from mwpy._simulation.checkers import SimulationFailure
from mwpy._simulation.cluster import Cluster

__all__ = ["Cluster", "SimulationFailure"]
