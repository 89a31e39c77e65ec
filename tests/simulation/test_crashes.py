"""Whole computations whose master has a run database, crashes at any moment, and starts again.

`test_cluster.py` runs many such histories among the others. The tests here show that they are what they should be.
"""

from __future__ import annotations

import pytest

from mwpy.testing import Cluster


@pytest.mark.timeout(0)
def test_no_life_of_a_master_computes_what_an_earlier_one_has_got(seeds: range) -> None:
    """The master crashes several times, and loses a part of its last commit. All tasks end in its last life."""
    histories = [Cluster(seed, crashes=True) for seed in seeds[: max(10, len(seeds) // 50)]]
    for cluster in histories:
        cluster.run()
        assert len(cluster.ended) == cluster.submitted
    assert sum(cluster.lives for cluster in histories) > 2 * len(histories)
    assert sum(len(cluster.checker.lives.reused) for cluster in histories) > 5 * len(histories)
