"""How a task of an executor is submitted to its master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from mwpy._roles.executor_future import Future
from mwpy._roles.parts import MasterParts
from mwpy._roles.terms import Terms
from mwpy._values.algorithm import algorithm_of
from mwpy._values.errors import UsageError
from mwpy._values.policy import Policies
from mwpy._values.seeds import Seeds

__all__ = ["Submission", "Work"]

Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any], Policies]
"""A task that waits in the queue: its future, function, arguments, and the policies that are given with the call. It is
a plain tuple, because there is one for each task."""


class Submission(Struct, eq=False):
    """Submits tasks, in the thread of the executor.

    Args:
        parts: the parts of the master.
        wrap: makes the function that a slave runs for a function that was submitted.
    """

    _parts: MasterParts
    _wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    _seeds: Seeds = field(default_factory=Seeds)

    def terms_of(self, work: Work) -> Terms:
        """The algorithm and the policies of a task."""
        prepared = self._parts.definitions.prepare(algorithm_of(self._wrap(work[1])))
        return self._parts.terms.of(prepared, work[4])

    def submit(self, work: Work, terms: Terms) -> int:
        """Submit a task, and return its id. Whatever is wrong with its arguments is raised."""
        parts, (defined, policy, extras), (future, _, args, kwargs, _) = self._parts, terms, work
        payload, buffers = parts.codec.dumps_call(args, kwargs, defined.name)
        if buffers and parts.held.refer(buffers):
            raise UsageError("mwpy.result has no meaning in an executor: pass the value of the other task itself")
        seed = None if extras is None or extras.seed is None else self._seeds.next(extras.seed)
        key = None if parts.keys is None else parts.keys.of(defined, args, kwargs, payload, extras, seed)
        if extras is not None:
            payload = extras.add(payload, seed)
        submissions = parts.access.io.submissions
        if key is None:
            return submissions.add(defined, policy, payload, buffers, future)
        return submissions.add_keyed(defined, policy, payload, buffers, future, key)
