"""Seeds of tasks: they depend on the user's seed and on the position, and nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

import mwpy
from mwpy._roles.definitions import Definitions
from mwpy._roles.submission import Calls
from mwpy._transport.codec import Codec, extras_of, loads_call, with_extras
from mwpy._values.algorithm import algorithm_of
from mwpy._values.bounds import TaskId
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import decode
from mwpy._values.task import RUNNING, Origin, UnrunnableTask, seed_at

CODEC = Codec()


def test_the_seed_of_a_task_never_changes() -> None:
    """A user compares the numbers of this year with those of the next year. So this number is fixed for good."""
    assert seed_at(1, 0) == 0x8FAD34BBB0C1ED095FBF1B50CB0E4878 != seed_at(1, 1)
    assert seed_at(np.int64(1), 0) == seed_at(1, 0)


def test_no_two_seeds_or_positions_give_the_same_seed() -> None:
    seeds = {seed_at(seed, position) for seed in (-1, 0, 1, 11, 2**70) for position in range(112)}
    assert len(seeds) == 5 * 112
    assert max(seed.bit_length() for seed in seeds) == 128


def test_tasks_that_are_submitted_one_by_one_are_counted_for_each_seed() -> None:
    """A task with another seed in between changes nothing."""
    calls = Calls(Definitions(CODEC), {}, lambda _: ())
    tasks = [calls.task(calls.terms(algorithm_of(max), {"seed": seed}), (1,), {}) for seed in (5, 7, 5, 7, 5)]
    found = [extras_of(decode(call))[0] for call, *_ in tasks]
    assert found == [seed_at(5, 0), seed_at(7, 0), seed_at(5, 1), seed_at(7, 1), seed_at(5, 2)]


def test_a_seed_suits_the_generators_of_python_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RUNNING, "seed", seed_at(1, 0))
    draws = [(random.Random(mwpy.task_seed()).random(), np.random.default_rng(mwpy.task_seed()).random()) for _ in "ab"]
    assert draws[0] == draws[1]


def test_without_a_seed_the_error_says_where_to_write_one() -> None:
    with pytest.raises(UsageError, match=r"seed=1"):
        mwpy.task_seed()


@pytest.mark.parametrize("arguments", [((1, "a"), {}), ((), {"word": [2]}), ((np.zeros(10_000), 3), {})])
def test_a_call_with_a_seed_has_the_same_arguments(arguments: tuple[tuple[object, ...], dict[str, object]]) -> None:
    """An unrunnable task shows them, too."""
    payload, buffers = CODEC.dumps_call(*arguments, "f")
    seeded = with_extras(payload, seed_at(1, 0), b"")
    entry = decode(seeded)
    assert (extras_of(entry)[0], extras_of(decode(payload))[0]) == (seed_at(1, 0), None)
    assert repr(loads_call(entry, buffers)) == repr(loads_call(decode(payload), buffers))
    task = UnrunnableTask(TaskId(3), "f", None, "tag", "it kills", (), seeded, buffers, Origin("f", None, None, 1, 0.0))
    assert repr(task.arguments) == repr(arguments)
