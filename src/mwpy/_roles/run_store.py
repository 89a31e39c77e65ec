"""What a master with a run database does: it opens and reads the file, and makes the keys of tasks.

By its key, a restarted master finds what a task was answered before. Keys and the digests of code are made when a task
is submitted, because arguments can change afterwards. The key of a task with plain arguments alone follows from its
encoded call, so nothing is done for it here.

A task whose arguments or code cannot be compared has no key, and runs again at each start. A notice says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import Factory, define

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import GENERATIONS_KEPT, Reuse
from mwpy._database.store import Writer
from mwpy._values.code import NotComparable, call_digest, captured_changes, changes, code_of, value_digest
from mwpy._values.options import Options
from mwpy._values.phrases import counted, first_of
from mwpy._values.records import AlgorithmDefined
from mwpy._values.shares import NO_KEY, PLAIN_CALLS, combined_key, plain_keys
from mwpy._values.task import SEED_BYTES

LOST = (
    "parts of the run database are missing or damaged: {parts}. The results in them do not count, so their tasks run "
    "again"
)

ALONE = (
    "the run database {path} is on a network file system ({kind}), so nothing else can open it until this master ends. "
    "On a local disk, mwpy runs and sqlite3 can read it meanwhile"
)


def open_writer(options: Options, path: str, name: str) -> Writer:
    """Open the run database of a computation, and start its threads.

    Args:
        path: the file.
        name: the name of this generation.

    Raises:
        RunDatabaseError: it cannot be used; the message says why.
    """
    writer = Writer.open(path, member_id=options.member_id, full=options.run_database_sync == "full", name=name)
    writer.start()
    return writer


def read_into(core: MasterCore, writer: Writer, options: Options) -> None:
    """Let a core use the results that are in a run database, and begin the next generation.

    Raises:
        RunDatabaseError: the file is damaged.
    """
    stored, rerun = writer.stored, options.rerun == "failed"
    core.reuse = reuse = Reuse(core.state, stored.read, changes, captured_changes, rerun, options.reuse_changed_code)
    for entry in stored.earlier():
        reuse.apply(entry)
    reuse.begin()
    reuse.succession.know(stored.agents(GENERATIONS_KEPT))
    writer.begin()
    reuse.names = stored.generations()
    if writer.network:
        core.state.notice(ALONE.format(path=writer.path, kind=writer.network))
    if lost := [*dict.fromkeys(stored.lost)]:
        core.state.notice(LOST.format(parts=first_of(lost, len(lost))))
    reuse.says_misses = options.run_database_notices
    if reuse.answered and options.run_database_notices:
        core.state.notice(
            f"the run database {writer.path} has the results of {counted(reuse.answered, 'task')}. Those of them "
            f"that this run submits again are not computed again"
        )


NOT_COMPARED = (
    "tasks of {name} run again at each start, because their arguments cannot be compared with those of an earlier run: "
    "{reason}. Give them a key (key=), or pass arguments of other types"
)

NO_CODE = (
    "tasks of {name} run again at each start, because its code cannot be compared with that of an earlier run: {reason}"
)


def with_code(
    record: AlgorithmDefined, function: Callable[..., Any], notice: Callable[[str], None], before: Sequence[object]
) -> AlgorithmDefined:
    """Return the definition of an algorithm with the digest of its code, and of what runs before its tasks."""
    try:
        code = code_of(function, before)
    except NotComparable as error:
        notice(NO_CODE.format(name=record.definition.name, reason=error))
        return record
    return AlgorithmDefined(record.definition, record.packed, code.digest.hex(), code.parts)


@define(eq=False, repr=False)
class TaskKeys:
    """Makes the keys of the tasks of one master.

    Args:
        notice: shows the user a message, once.
    """

    notice: Callable[[str], None]
    referable: dict[int, tuple[Defined, bytes | None, bytes]] = Factory(dict)
    """The tasks to whose results others may refer until they are fetched, by id: their algorithm, their key if it was
    made here, and the encoded call, from which the key follows otherwise."""
    _reasons: dict[int, str] = Factory(dict)
    """For each algorithm: why its last task without a key has none."""

    def of(
        self,
        defined: Defined,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: bytes,
        given: Any,
        is_bare: bool,
        seed: int | None,
    ) -> bytes | None:
        """Return the key of a task; None if it follows from the encoded call.

        Args:
            call: the encoded call, before anything was added to it.
            given: the key that its policy gives, or the function that makes it; None for none.
            is_bare: whether nothing is added to it.
            seed: its seed, if it has one.
        """
        try:
            if given is not None:
                return combined_key(b"key", value_digest(given(*args, **kwargs) if callable(given) else given))
            if is_bare and call[0] in PLAIN_CALLS:
                return None
            digest = plain_keys([call]) if call[0] in PLAIN_CALLS else call_digest(args, kwargs, self._identity)
        except NotComparable as error:
            if self._reasons.get(defined.number) != str(error):
                self._reasons[defined.number] = str(error)
                self.notice(NOT_COMPARED.format(name=defined.name, reason=error))
            return NO_KEY
        return digest if seed is None else combined_key(b"seed", seed.to_bytes(SEED_BYTES, "big"), digest)

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
