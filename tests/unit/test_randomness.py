"""The shared random generators: slaves seed them again, and loading code does not disturb them."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

from mwpy._system.packages import reseed, undisturbed


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def _draw() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def _seed() -> None:
    random.seed(1)
    np.random.seed(1)


@undisturbed()
def _load_in_vain() -> None:
    _seed()
    raise ImportError


def test_code_that_seeds_the_generators_while_it_is_loaded_does_not_disturb_them() -> None:
    """A seed that a slave algorithm has set stays. The same holds if the code cannot be loaded."""
    _seed()
    expected = [_draw(), _draw()]
    _seed()
    found = [_draw()]
    with pytest.raises(ImportError):
        _load_in_vain()
    assert [*found, _draw()] == expected


def test_a_generator_that_is_loaded_inside_is_seeded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_random = sys.modules["numpy.random"]
    monkeypatch.delitem(sys.modules, "numpy.random")
    reseed()
    _seed()
    expected = _draw()
    _seed()
    with undisturbed():
        monkeypatch.setitem(sys.modules, "numpy.random", numpy_random)
    found = _draw()
    assert found[0] == expected[0]
    assert found[1] != expected[1]
    assert isinstance(numpy_random, types.ModuleType)
