"""What is submitted with a task: its definition, its policy, and what is only needed sometimes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

from msgspec import Struct

from mwpy._core.master.algorithms import Defined
from mwpy._roles.definitions import Definitions
from mwpy._transport.codec import Codec, with_condition, with_seed
from mwpy._values.algorithm import Algorithm, algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.policy import Policies, TaskPolicy, condition_in


class Extras(Struct, frozen=True):
    """What travels with the arguments of a task."""

    seed: SupportsIndex | None
    """The seed of its policy, from which the seed of the task is made."""
    condition: bytes
    """The pickled condition under which it is tried again; empty if there is none."""
    key: Any = None
    """With a run database: the key of the task, or the function that makes it; None if the arguments count."""

    def add(self, call: bytes, seed: int | None) -> bytes:
        """Add the condition to an encoded call, and the seed of the task if it has one."""
        if self.condition:
            call = with_condition(call, self.condition)
        return call if seed is None else with_seed(call, seed)


Terms = tuple[Defined, TaskPolicy, Extras | None]
"""A definition, a policy, and what travels with the arguments, if anything."""


class TermsOf:
    """Finds the terms of calls.

    Args:
        definitions: those of this master.
        for_all: the policies of all tasks.
        codec: pickles conditions.
        keyed: whether keys of tasks count, because there is a run database.
    """

    def __init__(self, definitions: Definitions, for_all: Policies, codec: Codec, keyed: bool = False) -> None:
        self.definitions = definitions
        self.for_all = for_all
        self.codec = codec
        self.keyed = keyed
        self.default = TaskPolicy.of(**for_all), self._extras(for_all)
        """The policy of tasks that have no other, and what travels with their arguments."""

    def defined(self, algorithm: Algorithm) -> Defined:
        """Return the definition of an algorithm."""
        return self.definitions.known.get(algorithm) or self.definitions.define(algorithm)

    def policy(self, algorithm: Algorithm, given: Policies) -> tuple[TaskPolicy, Extras | None]:
        """Return the policy of a call, and what travels with its arguments.

        What is given with the call overrides what its function is marked with.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it; the caller's fault.
            ArgumentNotPicklable: `retry_errors` cannot be pickled; the caller's fault.
        """
        if not (algorithm.policy or given):
            return self.default
        merged: Policies = {**self.for_all, **algorithm.policy, **given}
        if not (merged.get("retry", True) or "speculate" in algorithm.policy or "speculate" in given):
            merged.pop("speculate", None)  # for all tasks means: for all that may run again
        return TaskPolicy.of(**merged), self._extras(merged)

    def _extras(self, policy: Policies) -> Extras | None:
        seed, condition = policy.get("seed"), condition_in(policy)
        key = policy.get("key") if self.keyed else None
        if seed is None and condition is None and key is None:
            return None
        return Extras(seed, b"" if condition is None else self.codec.dumps_condition(condition), key)

    def of(self, algorithm: Algorithm, given: Policies) -> Terms:
        """Return the terms of a call. It raises what `policy` raises."""
        return self.defined(algorithm), *self.policy(algorithm, given)

    def of_map(self, function: Callable[..., Any], given: Policies) -> Terms:
        """Return the terms of all calls of a map. It raises what `policy` raises."""
        check_map_key(given)
        return self.of(self.definitions.prepare(algorithm_of(function)), given)


def check_map_key(given: Policies) -> None:
    """Check the key that a map is given.

    Raises:
        UsageError: all items would have the same key; the caller's fault.
    """
    key = given.get("key")
    if key is not None and not callable(key):
        raise UsageError(f"key={key!r}: a map needs a function that returns the key of an item, such as key=str")
