"""Terms: what all calls of a task algorithm have in common, its definition and its policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

from attrs import define, field

from mwpy._core.master.algorithms import Defined
from mwpy._roles.definitions import Definitions
from mwpy._values.algorithm import Algorithm, algorithm_of
from mwpy._values.policy import Policies, TaskPolicy

__all__ = ["Terms", "TermsOf"]

Terms = tuple[Defined, TaskPolicy, SupportsIndex | None]
"""A definition, a policy and a seed."""


@define(eq=False)
class TermsOf:
    """Finds the terms of calls.

    Args:
        definitions: those of this master.
        for_all: the policies of all tasks.
    """

    definitions: Definitions
    for_all: Policies
    default: TaskPolicy = field(init=False)
    """The policy of tasks that have no other."""

    def __attrs_post_init__(self) -> None:
        self.default = TaskPolicy.of(**self.for_all)

    def defined(self, algorithm: Algorithm) -> Defined:
        """Return the definition of an algorithm."""
        return self.definitions.known.get(algorithm) or self.definitions.define(algorithm)

    def policy(self, algorithm: Algorithm, given: Policies) -> tuple[TaskPolicy, SupportsIndex | None]:
        """Return the policy and the seed of a call. What is given with it overrides what its function is marked with.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it; the caller's fault.
        """
        merged: Policies = {**self.for_all, **algorithm.policy, **given}
        return TaskPolicy.of(**merged) if merged else self.default, merged.get("seed")

    def of(self, algorithm: Algorithm, given: Policies) -> Terms:
        """Return the terms of a call. It raises what `policy` raises."""
        return self.defined(algorithm), *self.policy(algorithm, given)

    def of_map(self, function: Callable[..., Any], given: Policies) -> Terms:
        """Return the terms of all calls of a map. It raises what `policy` raises."""
        return self.of(self.definitions.prepare(algorithm_of(function)), given)
