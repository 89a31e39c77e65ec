"""What the methods of a master use: made once for each thread that uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mwpy._core.master.commands import Tell
from mwpy._core.master.failed_calls import FailedCalls
from mwpy._roles.access import Access
from mwpy._roles.cells import CellTasks, follow_cells
from mwpy._roles.code_watch import CodeWatch
from mwpy._roles.definitions import Definitions
from mwpy._roles.held_results import HeldResults
from mwpy._roles.inbox import Inbox
from mwpy._roles.replay import calls_of_newest_master
from mwpy._roles.terms import TermsOf
from mwpy._system.modules import is_interactive
from mwpy._system.own_code import OWN_CODE
from mwpy._transport.codec import Codec
from mwpy._values.policy import Policies
from mwpy._values.records import AlgorithmDefined

if TYPE_CHECKING:
    from mwpy._roles.task_keys import TaskKeys

__all__ = ["MasterParts"]


class MasterParts(Struct, frozen=True, eq=False):
    """What the methods of a master use."""

    access: Access
    codec: Codec
    definitions: Definitions
    terms: TermsOf
    inbox: Inbox
    held: HeldResults
    cell: CellTasks
    keys: TaskKeys | None
    """What makes the keys of tasks; None without a run database."""

    @classmethod
    def of(
        cls,
        access: Access,
        codec: Codec,
        for_all: Policies,
        failed: FailedCalls | None = None,
    ) -> MasterParts:
        """The parts of a new master.

        Args:
            for_all: the policies of all its tasks.
            failed: keeps the calls that fail; None for a new object, in which `mwpy.replay` looks from now on.
        """
        OWN_CODE.remember()
        settings = access.io.core.state.settings
        watch = CodeWatch(access, only_here=settings.only_here) if codec.main_by_value and is_interactive() else None

        def notice(text: str) -> None:
            access.io.command(Tell(text))

        keys, with_code = _keys_of(notice) if access.io.submissions.keyed else (None, None)
        definitions = Definitions(codec, watch, with_code, notice, access.io.algorithm_numbers)
        inbox = Inbox(access, settings, failed or calls_of_newest_master())
        terms = TermsOf(definitions, for_all, codec, keys is not None)
        held = HeldResults(access, inbox)
        cell = CellTasks(access, inbox, held)
        if codec.main_by_value:
            follow_cells(cell)
        return cls(access, codec, definitions, terms, inbox, held, cell, keys)


def _keys_of(
    notice: Callable[[str], None],
) -> tuple[TaskKeys, Callable[[AlgorithmDefined, Callable[..., Any]], AlgorithmDefined]]:
    from mwpy._roles.task_keys import TaskKeys, with_code  # only here, because it loads what compares code

    return TaskKeys(notice), partial(with_code, notice=notice)
