"""Libraries that accept a map or a pool get the same numbers from mwpy as without it."""

from __future__ import annotations

import io
from collections.abc import Iterator

import emcee
import numpy as np
import pytest
from scipy.optimize import differential_evolution, rosen
from tqdm import tqdm

import mwpy


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        yield mw


def log_probability(x: np.ndarray) -> float:
    return float(-0.5 * np.sum(x**2))


def test_differential_evolution_of_scipy_with_workers(mw: mwpy.Master) -> None:
    bounds = [(0.0, 2.0)] * 4
    arguments = {"rng": 7, "maxiter": 30, "popsize": 8, "updating": "deferred", "polish": False}
    serial = differential_evolution(rosen, bounds, **arguments)
    parallel = differential_evolution(rosen, bounds, workers=mw.map, **arguments)
    assert parallel.x.tolist() == serial.x.tolist()
    assert (parallel.fun, parallel.nfev) == (serial.fun, serial.nfev)


def test_an_ensemble_sampler_of_emcee_with_a_pool(mw: mwpy.Master) -> None:
    start = np.random.default_rng(7).normal(size=(12, 3))

    def chain(pool: mwpy.Master | None) -> list[object]:
        sampler = emcee.EnsembleSampler(12, 3, log_probability, pool=pool)
        sampler.random_state = np.random.RandomState(7).get_state()
        sampler.run_mcmc(start, 30)
        return [sampler.get_chain().tolist(), sampler.get_log_prob().tolist()]

    assert chain(mw) == chain(None)


def test_tqdm_around_a_map(mw: mwpy.Master) -> None:
    shown = io.StringIO()
    assert sum(tqdm(mw.map(abs, range(1000)), total=1000, file=shown)) == sum(range(1000))
    assert "1000/1000" in shown.getvalue()
