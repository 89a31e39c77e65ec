"""What is submitted with a task, and the key by which a restarted master finds its answer.

The keys of tasks and the digests of their code, by which a restarted master finds what was answered before.

They are made in the thread of the master algorithm when a task is submitted, because arguments can change afterwards.
The key of a task with plain arguments alone follows from its encoded call, so nothing is done for it here.

A task whose arguments or code cannot be compared has no key, and runs again at each start. A notice says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

from msgspec import Struct, field

from mwpy._core.master.algorithms import Defined
from mwpy._roles.definitions import Definitions
from mwpy._transport.codec import Codec, with_condition, with_seed
from mwpy._values.algorithm import Algorithm, algorithm_of
from mwpy._values.code import NotComparable, call_digest, code_of, value_digest
from mwpy._values.errors import UsageError
from mwpy._values.policy import Policies, TaskPolicy, condition_in
from mwpy._values.records import AlgorithmDefined
from mwpy._values.shares import NO_KEY, PLAIN_CALLS, combined_key, plain_keys
from mwpy._values.task import SEED_BYTES

# Terms: what all calls of a task algorithm have in common, its definition and its policy.


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


NOT_COMPARED = (
    "tasks of {name} run again at each start, because their arguments cannot be compared with those of an earlier run: "
    "{reason}. Give them a key (key=), or pass arguments of other types"
)

NO_CODE = (
    "tasks of {name} run again at each start, because its code cannot be compared with that of an earlier run: {reason}"
)


def with_code(
    record: AlgorithmDefined, function: Callable[..., Any], notice: Callable[[str], None]
) -> AlgorithmDefined:
    """Return the definition of an algorithm with the digest of its code."""
    try:
        code = code_of(function)
    except NotComparable as error:
        notice(NO_CODE.format(name=record.definition.name, reason=error))
        return record
    return AlgorithmDefined(record.definition, record.packed, code.digest.hex(), code.parts)


class TaskKeys(Struct, eq=False):
    """Makes the keys of the tasks of one master.

    Args:
        notice: shows the user a message, once.
    """

    notice: Callable[[str], None]
    referable: dict[int, tuple[Defined, bytes | None, bytes]] = field(default_factory=dict)
    """The tasks to whose results others may refer until they are fetched, by id: their algorithm, their key if it was
    made here, and the encoded call, from which the key follows otherwise."""
    _reasons: dict[int, str] = field(default_factory=dict)
    """For each algorithm: why its last task without a key has none."""

    def of(
        self,
        defined: Defined,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: bytes,
        extras: Extras | None,
        seed: int | None,
    ) -> bytes | None:
        """Return the key of a task; None if it follows from the encoded call.

        Args:
            call: the encoded call, before anything was added to it.
            extras: what travels with it.
            seed: its seed, if it has one.
        """
        if extras is not None and extras.key is not None:
            return self._of_user(defined, extras.key(*args, **kwargs) if callable(extras.key) else extras.key)
        try:
            if extras is None and call[0] in PLAIN_CALLS:
                return None
            digest = plain_keys([call]) if call[0] in PLAIN_CALLS else call_digest(args, kwargs, self._identity)
        except NotComparable as error:
            self._not_compared(defined, error)
            return NO_KEY
        return digest if seed is None else combined_key(b"seed", seed.to_bytes(SEED_BYTES, "big"), digest)

    def _of_user(self, defined: Defined, key: object) -> bytes:
        """Return the key of a task for which the user has given one."""
        try:
            return combined_key(b"key", value_digest(key))
        except NotComparable as error:
            self._not_compared(defined, error)
            return NO_KEY

    def _not_compared(self, defined: Defined, error: NotComparable) -> None:
        """Tell the user why arguments cannot be compared."""
        if self._reasons.get(defined.number) != str(error):
            self._reasons[defined.number] = str(error)
            self.notice(NOT_COMPARED.format(name=defined.name, reason=error))

    def forget(self, numbers: Iterable[int]) -> None:
        """No later task can refer to these tasks."""
        for number in numbers:
            self.referable.pop(number, None)

    def _identity(self, number: int) -> bytes:
        """What identifies a task to which another one refers: its algorithm and its key."""
        found = self.referable.get(number)
        if found is None:
            raise NotComparable(f"the key of task {number}, to which they refer, is not known")
        defined, key, call = found
        key = plain_keys([call]) if key is None else key
        if key == NO_KEY or not defined.record.code:
            raise NotComparable(f"task {number}, to which they refer, cannot be compared")
        return combined_key(b"task", key, defined.record.code.encode(), defined.name.encode())
