"""What is submitted with a task: the definition of its algorithm, its policy, its encoded arguments, seed and key.

`mw.submit`, maps and executors submit all tasks through `Calls`. Each thread that uses a master has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from msgspec import Struct

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import Tell
from mwpy._roles.definitions import CodeWatch, Definitions
from mwpy._transport.codec import Codec, with_extras
from mwpy._values.algorithm import Algorithm, TaskCall, algorithm_of
from mwpy._values.bounds import Buffer
from mwpy._values.errors import UsageError
from mwpy._values.installed import is_interactive
from mwpy._values.policy import Policies, TaskPolicy, condition_in, merged
from mwpy._values.sources import SOURCES
from mwpy._values.task import seed_at

if TYPE_CHECKING:
    from mwpy._roles.master_io import MasterIo
    from mwpy._roles.run_store import TaskKeys


class Extras(Struct, frozen=True):
    """What travels with the arguments of a task."""

    seed: SupportsIndex | None
    """The seed of its policy, from which the seed of the task is made."""
    condition: bytes
    """The pickled condition under which it is tried again; empty if there is none."""
    key: Any = None
    """With a run database: the key of the task, or the function that makes it; None if the arguments count."""


Terms = tuple[Defined, TaskPolicy, Extras | None]
"""What tasks have in common: a definition, a policy, and what travels with the arguments, if anything."""

EncodedCall = tuple[bytes, Sequence[Buffer]]
"""The arguments of a call, and their large buffers."""


class Calls:
    """Makes what is submitted of calls.

    Args:
        definitions: those of this user of a master.
        for_all: the policies of all tasks.
        refer: makes the core keep the results to which a call refers, as `Inbox.refer`.
        keys: makes the keys of tasks; None without a run database.
    """

    def __init__(
        self,
        definitions: Definitions,
        for_all: Policies,
        refer: Callable[[Sequence[Buffer]], Sequence[int]],
        keys: TaskKeys | None = None,
    ) -> None:
        self.definitions = definitions
        self.for_all = for_all
        self.refer = refer
        self.keys = keys
        self.codec = definitions.codec
        self.default = TaskPolicy.of(**for_all), self._extras(for_all)
        """The policy of tasks that have no other, and what travels with their arguments."""
        self._seeds: Counter[int] = Counter()
        """How often each seed was used by tasks that were submitted one by one."""

    @classmethod
    def of(
        cls, io: MasterIo, codec: Codec, for_all: Policies, refer: Callable[[Sequence[Buffer]], Sequence[int]]
    ) -> Calls:
        """Those of a new user of a master."""
        SOURCES.remember()
        settings = io.core.state.settings
        compares = not settings.in_this_process
        watch = CodeWatch(io, only_here=settings.only_here) if codec.main_by_value and is_interactive() else None

        def notice(text: str) -> None:
            io.command(Tell(text))

        keys = with_code = None
        if io.submissions.keyed:
            from mwpy._roles import run_store  # only here, because it loads what compares code

            keys, with_code = (
                run_store.TaskKeys(notice),
                partial(run_store.with_code, notice=notice, before=io.before_tasks),
            )
        return cls(Definitions(codec, watch, with_code, notice, compares, io.algorithm_numbers), for_all, refer, keys)

    def policy(self, algorithm: Algorithm, given: Policies) -> tuple[TaskPolicy, Extras | None]:
        """Return the policy of a call, and what travels with its arguments.

        What is given with the call overrides what its function is marked with.

        Raises:
            UsageError: a policy is unknown or wrong, and the message names it; the caller's fault.
            ArgumentNotPicklable: `retry_errors` cannot be pickled; the caller's fault.
        """
        if not (algorithm.policy or given):
            return self.default
        policy = merged(self.for_all, algorithm.policy, given)
        if not (policy.get("retry", True) or "speculate" in algorithm.policy or "speculate" in given):
            policy.pop("speculate", None)  # for all tasks means: for all that may run again
        return TaskPolicy.of(**policy), self._extras(policy)

    def _extras(self, policy: Policies) -> Extras | None:
        seed, condition = policy.get("seed"), condition_in(policy)
        key = policy.get("key") if self.keys is not None else None
        if seed is None and condition is None and key is None:
            return None
        return Extras(seed, b"" if condition is None else self.codec.dumps_condition(condition), key)

    def terms(self, algorithm: Algorithm, given: Policies) -> Terms:
        """Return the terms of a call. It raises what `policy` raises."""
        return self.definitions.of(algorithm), *self.policy(algorithm, given)

    def terms_of_map(self, function: Callable[..., Any], given: Policies) -> Terms:
        """Return the terms of all calls of a map. It raises what `policy` raises."""
        check_map_key(given)
        return self.terms(self.definitions.prepare(algorithm_of(function)), given)

    def task(
        self,
        terms: Terms,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        position: int | None = None,
        encoded: EncodedCall | None = None,
    ) -> tuple[bytes, Sequence[Buffer], bytes | None, Sequence[int]]:
        """Return what is submitted of a task: its arguments, their large buffers, its key, and the ids of the tasks to
        whose results it refers.

        Args:
            position: that of its item, if it is of a map, for its seed.
            encoded: its arguments, if they are encoded already.

        Raises:
            ArgumentNotPicklable: an argument cannot be pickled; the caller's fault.
            UsageError: there is no result to which an argument refers; the caller's fault.
        """
        defined, _, extras = terms
        call, buffers = encoded or self.codec.dumps_call(args, kwargs, defined.name)
        refers = self.refer(buffers) if buffers else ()
        seed = None
        if extras is not None and extras.seed is not None:
            number = index(extras.seed)
            seed = seed_at(number, self._seeds[number] if position is None else position)
            self._seeds[number] += position is None
        key = None
        if self.keys is not None:
            given = None if extras is None else extras.key
            key = self.keys.of(defined, args, kwargs, call, given, extras is None, seed)
        if extras is not None:
            call = with_extras(call, seed, extras.condition)
        return call, buffers, key, refers


def check_map_key(given: Policies) -> None:
    """Check the key that a map is given.

    Raises:
        UsageError: all items would have the same key; the caller's fault.
    """
    key = given.get("key")
    if key is not None and not callable(key):
        raise UsageError(f"key={key!r}: a map needs a function that returns the key of an item, such as key=str")


def algorithm_of_call(call: TaskCall[Any], method: str) -> Algorithm:
    """Return the algorithm of a task call. `method` is what the user called with it.

    Raises:
        UsageError: it is no task call; the caller's fault.
    """
    try:
        return call.algorithm
    except AttributeError:
        raise UsageError(
            f"{method} needs a call that was not made yet, not a {type(call).__qualname__}: write f.task(x), or "
            f"mwpy.task(f, x)"
        ) from None
